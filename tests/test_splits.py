"""Splits: disjoint parts of the right size, standardised on the training part, reproducible, and honest."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import latentcal as lc
import same
from latentcal.splits import group_split, split, time_split

N = 1000
KINDS = {
    "random": lambda data, **options: split(data, seed=3, **options),
    "time": lambda data, **options: time_split(data, torch.arange(len(data[0])), **options),
    "group": lambda data, **options: group_split(data, np.arange(len(data[0])) // 2, seed=3, **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def data(generator):
    x = 5 + 3 * torch.randn(N, 4, generator=generator)
    y = -2 + 0.1 * torch.randn(N, 2, generator=generator)
    return x, y


def parts_of(result):
    parts = {"train": result.train, "validation": result.validation, "calibration": result.calibration}
    return {name: part for name, part in {**parts, "test": result.test}.items() if part is not None}


@every_kind
@pytest.mark.parametrize("calibration", [0.0, 0.1])
def test_parts_are_disjoint_cover_all_rows_and_have_their_sizes(data, kind, calibration):
    result = KINDS[kind](data, calibration=calibration)
    sizes = {name: len(rows) for name, rows in result.indices.items()}
    expected = {
        "train": 650 - 1000 * calibration,
        "validation": 200,
        "calibration": 1000 * calibration,
        "test": 150,
    }
    assert sizes == {name: size for name, size in expected.items() if size}
    assert same.decided(torch.cat([*result.indices.values()]).sort().values, torch.arange(N))
    assert {name: len(part.x) for name, part in parts_of(result).items()} == sizes
    assert (result.calibration is None) == (calibration == 0)


@every_kind
def test_a_calibration_part_leaves_the_test_part_as_it_was(data, kind):
    without, with_one = (KINDS[kind](data, calibration=share) for share in (0.0, 0.2))
    assert same.decided(without.indices["test"], with_one.indices["test"])
    assert set(with_one.indices["train"].tolist()) < set(without.indices["train"].tolist())


@every_kind
def test_the_training_part_is_standardised_and_the_others_use_its_units(data, kind):
    result = KINDS[kind](data, calibration=0.1)
    for name, part in parts_of(result).items():
        rows = result.indices[name]
        for values, raw, mean, scale in (
            (part.x, data[0][rows], result.x_mean, result.x_scale),
            (part.y, data[1][rows], result.y_mean, result.y_scale),
        ):
            torch.testing.assert_close((raw.double() - mean) / scale, values.double(), rtol=1e-5, atol=1e-6)
            off = max(float(values.mean(0).abs().max()), float((values.std(0, correction=0) - 1).abs().max()))
            assert (off < 1e-5) == (name == "train")


def test_the_same_seed_gives_the_same_parts_and_another_seed_others(data):
    groups = np.arange(N) // 5
    for draw in (split, lambda data, seed: group_split(data, groups, seed)):
        first, again, other = draw(data, 0), draw(data, 0), draw(data, 1)
        for name, part in parts_of(first).items():
            assert same.drawn(first.indices[name], again.indices[name])
            assert same.repeated(part.x, parts_of(again)[name].x)
            assert same.repeated(part.y, parts_of(again)[name].y)
        # Independent test parts share 22.5 rows on average, half of them with probability < 1e-5.
        shared = set(first.indices["test"].tolist()) & set(other.indices["test"].tolist())
        assert len(shared) < 75


def test_splitting_neither_reads_nor_changes_the_global_source_of_randomness(data):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = split(data, seed=5)
    assert same.drawn(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert same.drawn(split(data, seed=5).indices["train"], first.indices["train"])


def test_at_most_max_rows_are_used_and_they_come_from_everywhere(data):
    result = split(data, seed=0, max_rows=200)
    used = torch.cat([*result.indices.values()])
    assert [len(rows) for rows in result.indices.values()] == [130, 40, 30]
    assert len(set(used.tolist())) == 200
    assert int((used >= 500).sum()) in range(60, 140)  # binomial(200, 1/2) is outside with probability < 1e-8
    grouped = group_split(data, np.arange(N) // 5, seed=0, max_rows=200)
    assert sum(map(len, grouped.indices.values())) == 200
    assert sum(map(len, split(data, seed=0, max_rows=None).indices.values())) == N


def test_fifty_thousand_rows_are_the_default_limit():
    x = torch.arange(60_000.0)[:, None]
    assert [len(rows) for rows in split((x, x), seed=0).indices.values()] == [32_500, 10_000, 7_500]


def test_means_and_scales_make_a_flow_that_speaks_the_units_of_the_data(data):
    result = split(data, seed=0)
    flow = lc.flows.LinearGaussianFlow(weight=torch.ones(2, 4), bias=torch.zeros(2), scale_tril=torch.eye(2))
    own = lc.flows.Standardized(flow, **result.flow_units)
    rows = result.indices["test"]
    z, _ = own.encode(data[1][rows], data[0][rows])
    torch.testing.assert_close(z, flow.encode(result.test.y, result.test.x)[0])
    y = own.decode(z, data[0][rows])
    torch.testing.assert_close(y, data[1][rows], check_dtype=False)


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.3, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_column_becomes_zero_with_scale_one(data, constant, dtype):
    x, y = data
    x = x.to(dtype, copy=True)
    x[:, 1] = constant
    result = split((x, y), seed=0)
    assert float(result.x_scale[1]) == 1
    for part in parts_of(result).values():
        assert bool((part.x[:, 1] == 0).all())


def test_a_column_that_is_constant_in_training_alone_stays_finite(data):
    x, y = data
    x = x.clone()
    x[:, 0] = 0
    x[split(data, seed=0).indices["test"], 0] = 7
    result = split((x, y), seed=0)
    assert bool((result.test.x[:, 0] == 7).all())


def test_float64_large_offsets_and_no_features_are_cases(generator):
    y = 1e9 + torch.randn(N, 1, generator=generator, dtype=torch.float64)
    result = split((torch.empty(N, 0), y), seed=0)
    assert result.train.x.shape == (650, 0)
    assert result.train.y.dtype == torch.float64
    assert float(result.train.y.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_numpy_arrays_and_integers_are_welcome():
    result = split((np.arange(200).reshape(100, 2), np.arange(100.0)[:, None]), seed=0)
    assert result.train.x.dtype == torch.float32
    assert float(result.train.x.mean()) == pytest.approx(0, abs=1e-5)


def test_inputs_are_not_modified(data):
    x, y = (values.clone() for values in data)
    for cut in KINDS.values():
        cut(data)
    assert same.copied(data[0], x)
    assert same.copied(data[1], y)


def test_later_parts_are_later_in_time_and_equal_times_stay_together(data, generator):
    time = torch.randint(0, 60, (N,), generator=generator)
    result = time_split(data, time, calibration=0.1)
    assert [*result.indices] == ["train", "validation", "calibration", "test"]
    times = [time[rows] for rows in result.indices.values()]
    for earlier, later in pairwise(times):
        assert int(earlier.max()) < int(later.min())
    # A cut moves by at most half the rows of one time, about 17 here.
    for rows, wanted in zip(result.indices.values(), (550, 200, 100, 150), strict=True):
        assert abs(len(rows) - wanted) < 40


def test_without_times_the_rows_are_taken_as_they_come(data):
    result = time_split(data)
    assert same.decided(torch.cat([*result.indices.values()]), torch.arange(N))


def test_dates_order_the_rows(data):
    dates = np.datetime64("2020-01-01") + np.arange(N)[::-1]
    assert result_order(time_split(data, dates)) == list(range(N))[::-1]
    dates[3] = np.datetime64("NaT")
    with pytest.raises(ValueError, match="time has missing values, first in row 3"):
        time_split(data, dates)


def result_order(result):
    return torch.cat([*result.indices.values()]).tolist()


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_in_two_parts(data, seed):
    groups = np.array([f"site {i}" for i in np.random.default_rng(0).integers(0, 50, N)])
    result = group_split(data, groups, seed, calibration=0.1)
    members = [set(groups[rows]) for rows in result.indices.values()]
    assert sum(map(len, members)) == len(set.union(*members)) == 50
    for rows, wanted in zip(result.indices.values(), (550, 200, 100, 150), strict=True):
        assert abs(len(rows) - wanted) < 40  # a group has about 20 rows
    # control: a random split tears groups apart
    torn = [set(groups[rows]) for rows in split(data, seed).indices.values()]
    assert sum(map(len, torn)) > 50


def test_few_groups_still_give_every_part_one(data):
    groups = np.repeat([0, 1, 2], [900, 50, 50])
    for seed in range(6):
        assert sorted(map(len, group_split(data, groups, seed).indices.values())) == [50, 50, 900]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (
            lambda x, y: split((x[:6], y[:6]), 0),
            r"6 rows are too few to split: .*test 1; each part needs at least 2",
        ),
        (lambda x, y: split((x[:2], y[:2]), 0), "3 parts .* cannot be made from 2 rows"),
        (lambda x, y: split((x, y[:-1]), 0), r"\(1000, 4\), y: \(999, 2\)"),
        (lambda x, y: split((x, y[:, 0]), 0), r"For a single output use y\[:, None\]"),
        (lambda x, y: split((x / 0, y), 0), "x has NaN or infinite values"),
        (lambda x, y: split((x, y), 0, fractions=(0.5, 0.5)), "three positive shares"),
        (lambda x, y: split((x, y), 0, fractions=(0.5, 0.4, 0.2)), "sum to 1"),
        (lambda x, y: split((x, y), 0, fractions=(0.8, 0.2, 0.0)), "three positive shares"),
        (lambda x, y: split((x, y), 0, calibration=0.65), "taken from the training part's 0.65"),
        (lambda x, y: split((x, y), 0, calibration=-0.1), "at least 0"),
        (lambda x, y: split((x, y), 0, max_rows=-1), "max_rows must be at least 1, got -1"),
        (lambda x, y: time_split((x, y), torch.zeros(N)), "cannot be made from 1 rows, groups or times"),
        (lambda x, y: time_split((x, y), torch.zeros(3)), "one entry for each of the 1000 rows"),
        (lambda x, y: group_split((x, y), [1, 2], 0), "groups must have one entry for each"),
        (lambda x, y: group_split((x, y), np.arange(N) % 2, 0), "cannot be made from 2 rows, groups"),
    ],
)
def test_what_cannot_be_split_is_an_error_that_says_why(data, cut, message):
    with pytest.raises(ValueError, match=message):
        cut(*data)


def test_a_split_prints_its_sizes_and_cannot_be_changed(data):
    result = split(data, seed=0)
    assert repr(result) == "Split(train 650, validation 200, test 150; 4 features, 2 targets)"
    with pytest.raises(AttributeError):
        result.train = result.test
