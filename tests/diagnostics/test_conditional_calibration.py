"""Conditional calibration: right models pass at the stated rate, faults are found by their own tests."""

import json
import warnings
from collections import Counter

import pytest
import torch
from scipy.stats import binom

import same
from alike import alike
from latentcal.base import RadialBase, standard_normal, uniform_cube
from latentcal.diagnostics import conditional_calibration
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from latentcal.radius import Chi
from latentcal.recalibration import CalibrationReuseWarning, recalibrate
from toys import NormalCDFFlow, ScaleFromX, scaled_gaussian

FLOW = scaled_gaussian(4, 1.0)
RADIAL = ["uniform PIT", "PIT and x"]
DIRECTIONS = ["mean direction", "spread of directions", "PIT and direction", "direction and x"]
BY_X = ["correlation and x", "latents and x"]


class Overflowing(ConditionalFlow):
    """A flow whose latents leave the floats."""

    def encode(self, y, x=None):
        return y.abs() / 0.0, torch.zeros(y.shape[:-1])


def draw(generator, n, kind="calibrated", d=4, p=3):
    """Features, outputs of N(0, I) with a fault, and groups."""
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    y = torch.randn(n, d, dtype=torch.float64, generator=generator)
    groups = torch.randint(3, (n,), generator=generator)
    if kind == "scale":
        y = y * torch.exp(0.4 * x[:, :1])
    elif kind == "groups":
        y = y * torch.tensor([0.7, 1.0, 1.5], dtype=torch.float64)[groups, None]
        x[:, 2] = groups
    elif kind == "shift":
        y[:, 0] += 0.3
    elif kind == "correlation":
        y[:, 1] = 0.5 * y[:, 0] + 0.75**0.5 * y[:, 1]
    elif kind == "shift by x":
        y[:, 0] += 0.3 * x[:, 0]
    elif kind == "correlation by x":
        r = 0.85 * torch.sin(1.5 * x[:, 0])
        y[:, 1] = r * y[:, 0] + (1 - r**2).sqrt() * y[:, 1]
    elif kind == "scale by a product":
        y = y * torch.exp(0.4 * x[:, :1] * x[:, 1:2])
    elif kind == "shift by a product":
        y[:, 0] += 0.4 * x[:, 0] * x[:, 1]
    elif kind == "skew":
        y[:, 0] = torch.empty(n, dtype=torch.float64).exponential_(generator=generator) - 1
    return x, y, groups


def rejections(kind, generator, *, n, runs, **options):
    """How often each test has p < 0.05, and how often there was any finding."""
    counts = Counter()
    for _ in range(runs):
        x, y, groups = draw(generator, n, kind, **options)
        report = conditional_calibration(FLOW, x, y, groups=groups, permutations=199, generator=generator)
        counts.update(finding.name for finding in report.findings if finding.p_value < 0.05)
        counts["any"] += not report.calibrated
    return counts


@pytest.fixture
def _no_slabs(monkeypatch):
    """Slabs and sizes of findings take most of the time and belong to no test."""
    monkeypatch.setattr("latentcal.diagnostics.conditional_report._FEWEST_SLAB_ROWS", 10**9)
    monkeypatch.setattr("latentcal.diagnostics.conditional_report.measure_effects", lambda case, found: found)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_slabs")
def test_a_calibrated_model_is_rejected_at_the_stated_level(generator):
    runs = 200
    counts = rejections("calibrated", generator, n=200, runs=runs)
    low, high = binom.ppf(0.0005, runs, 0.05), binom.isf(0.0005, runs, 0.05)
    # Each band fails with probability 0.1 %.
    for name in [*RADIAL, *DIRECTIONS, *BY_X]:
        assert low <= counts[name] <= high, name
    assert counts["groups"] <= high  # Bonferroni: at most the level
    assert counts["any"] <= high  # Holm: of all tests together


@pytest.mark.parametrize(
    ("kind", "finding", "silent"),
    [
        ("scale", ["PIT and x", "uniform PIT", "groups"], DIRECTIONS),
        ("groups", ["PIT and x", "groups"], DIRECTIONS),
        ("shift", ["mean direction"], ["PIT and x", "direction and x"]),
        ("correlation", ["spread of directions"], ["PIT and x", "direction and x", "mean direction"]),
        ("shift by x", ["direction and x", "latents and x"], []),
        ("correlation by x", ["correlation and x"], ["PIT and x", "direction and x"]),
        ("scale by a product", ["PIT and x", "latents and x"], DIRECTIONS),
        ("shift by a product", ["direction and x"], []),
        ("skew", ["PIT and direction"], ["PIT and x", "direction and x"]),
    ],
)
@pytest.mark.usefixtures("_no_slabs")
def test_each_fault_is_found_by_the_test_it_belongs_to(kind, finding, silent, generator):
    runs = 12
    counts = rejections(kind, generator, n=1000, runs=runs)
    for name in finding:
        assert counts[name] >= runs - 1, name
    for name in silent:
        assert counts[name] <= 5, name  # Bin(12, 0.05) above with probability 1e-5


def test_one_feature_of_many_is_named_with_few_rows(generator):
    x, y, _ = draw(generator, 60, p=355)
    x[:, 100] = 3.0
    y = y * torch.exp(0.8 * x[:, 7:8])
    report = conditional_calibration(FLOW, x, y, generator=generator)
    assert report.suspect == 7
    assert report["PIT and x"].found
    assert "mostly on x[7]" in report["PIT and x"].verdict


def test_a_fault_is_seen_where_every_pit_rounds_to_one(generator):
    x, y, _ = draw(generator, 300, "scale")
    report = conditional_calibration(FLOW, x, 1000 * y, generator=generator)
    assert float(report.u.median()) == 1
    assert report["PIT and x"].found


def test_a_model_whose_radius_depends_on_x_is_judged_at_its_own_x(generator):
    x, y, _ = draw(generator, 500)
    y = y * torch.exp(x[:, :1])
    right = FLOW.with_base(RadialBase(ScaleFromX(Chi(4)), 4))
    assert conditional_calibration(right, x, y, generator=generator).calibrated
    assert conditional_calibration(FLOW, x, y, generator=generator)["PIT and x"].found


def test_without_x_only_directions_and_uniformity_are_tested(generator):
    _, y, groups = draw(generator, 300)
    report = conditional_calibration(FLOW, None, y, groups=groups, generator=generator)
    assert [finding.name for finding in report.findings] == ["uniform PIT", *DIRECTIONS[:3], "groups"]
    assert set(report.absent) == {"PIT and x", "direction and x", *BY_X, "slabs"}
    assert report.slabs is None
    constant = conditional_calibration(FLOW, torch.ones(300, 2), y, generator=generator)
    assert constant.absent["PIT and x"] == "every feature is constant"
    with pytest.raises(KeyError, match="constant"):
        constant["slabs"]
    with pytest.raises(KeyError, match="No finding"):
        constant["nonsense"]


def test_directions_of_another_norm_are_left_out_with_a_reason(generator):
    cube = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2), uniform_cube(2))
    y = 2 * torch.rand(200, 2, generator=generator) - 1
    x = torch.randn(200, 1, generator=generator)
    report = conditional_calibration(cube, x, y, generator=generator)
    assert report.calibrated
    assert all("Euclidean" in report.absent[name] for name in DIRECTIONS)
    interval = NormalCDFFlow(1.0)
    y = x + torch.randn(200, 1, generator=generator)
    assert conditional_calibration(interval, x, y, generator=generator).calibrated


def test_in_one_dimension_the_direction_is_the_sign(generator):
    flow = scaled_gaussian(1, 1.0)
    y = torch.randn(300, 1, dtype=torch.float64, generator=generator)
    x = torch.randn(300, 1, generator=generator)
    report = conditional_calibration(flow, x, y, generator=generator)
    assert "sign" in report.absent["spread of directions"]
    assert report.calibrated
    assert conditional_calibration(flow, x, y + 0.4, generator=generator)["mean direction"].found


def test_large_dimensions_say_what_was_left_out(generator):
    flow = LinearGaussianFlow(None, torch.zeros(1000), torch.eye(1000))
    x = torch.randn(60, 5, generator=generator)
    y = torch.randn(60, 1000, generator=generator)
    report = conditional_calibration(flow, x, y, generator=generator)
    assert report.calibrated  # fails in 5 % of seeds
    assert "first moments" in report["PIT and direction"].detail
    assert "16 random coordinates" in report["direction and x"].detail
    assert "chi-squared" in report["spread of directions"].detail


def test_the_worst_slab_of_a_narrow_model_is_where_the_data_are_wide(generator):
    x, y, _ = draw(generator, 2000, "scale")
    report = conditional_calibration(FLOW, x, y, generator=generator)
    lowest, highest = report.slabs.lowest, report.slabs.highest
    assert lowest.interval[1] < 0.6
    assert highest.interval[0] > 0.9
    assert float(x[lowest.contains(x), 0].mean()) > 1
    assert float(x[highest.contains(x), 0].mean()) < -0.5


def test_the_report_reads_well_and_goes_into_json(generator):
    x, y, groups = draw(generator, 400, "scale")
    names = ["age", "income", "height"]
    labels = [("north", "south", "west")[g] for g in groups]
    report = conditional_calibration(FLOW, x, y, groups=labels, feature_names=names, generator=generator)
    text = str(report)
    assert "400 rows, d = 4, p = 3" in text
    assert "mostly on age (rank correlation +0." in text
    assert "ConditionalRadius" in text
    assert "lowest coverage in a slab" in text
    assert "worst of 3 groups" in text
    assert max(len(line) for line in text.splitlines()) < 280
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert values["suspect"] == "age"
    assert values["groups"][0]["label"] == "north"
    assert {finding["name"] for finding in values["findings"]} == {*RADIAL, *DIRECTIONS, *BY_X, "groups"}
    fine = conditional_calibration(FLOW, *draw(generator, 400)[:2], generator=generator)
    assert "none of 8 tests finds a fault" in str(fine)


def round_numbers(value):
    """A document whose numbers have nine digits: a sum may depend on where in memory its terms lie."""
    if isinstance(value, dict):
        return {name: round_numbers(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_numbers(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_results_repeat_themselves_and_leave_no_trace(generator):
    x, y, _ = draw(generator, 100)
    state = torch.get_rng_state()
    FLOW.train()
    first, second = (round_numbers(conditional_calibration(FLOW, x, y).to_dict()) for _ in range(2))
    assert first == second
    assert FLOW.training
    assert same.drawn(torch.get_rng_state(), state)


def test_rows_that_recalibrated_the_model_are_noticed(generator):
    x, y, _ = draw(generator, 400)
    model = recalibrate(FLOW, x[:200], y[:200])
    with pytest.warns(CalibrationReuseWarning):
        conditional_calibration(model, x[:200], y[:200])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conditional_calibration(model, x[200:], y[200:])


def test_arrays_and_other_precisions_are_taken(generator):
    x, y, groups = draw(generator, 100)
    expected = conditional_calibration(FLOW, x, y, groups=groups).to_dict()
    arrays = conditional_calibration(FLOW, x.numpy(), y.numpy(), groups=groups.tolist())
    assert alike(arrays.to_dict(), expected)
    flow = LinearGaussianFlow(None, torch.zeros(4), torch.eye(4))
    single = conditional_calibration(flow, x.float(), y.float())
    assert single["mean direction"].p_value == pytest.approx(expected["findings"][2]["p_value"], abs=0.01)


def test_few_rows_have_no_slabs(generator):
    x, y, _ = draw(generator, 30)
    assert "fewer than 40" in conditional_calibration(FLOW, x, y).absent["slabs"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": object()}, TypeError, "ConditionalFlow"),
        ({"y": torch.zeros(50)}, ValueError, r"y\[:, None\]"),
        ({"y": None}, ValueError, "y is missing"),
        ({"y": torch.zeros(50, 3)}, ValueError, "swapped"),
        ({"x": torch.zeros(49, 2)}, ValueError, "belong together"),
        ({"x": torch.zeros(50)}, ValueError, r"\(n, p\)"),
        ({"x": torch.zeros(10, 2), "y": torch.zeros(10, 4)}, ValueError, "at least 20 rows, got 10"),
        ({"x": torch.full((50, 2), torch.nan)}, ValueError, "x has NaN"),
        ({"y": torch.full((50, 4), torch.nan)}, ValueError, "y has NaN"),
        ({"model": Overflowing(standard_normal(4))}, ValueError, "infinite"),
        ({"groups": [1, 2]}, ValueError, r"\(50,\)"),
        ({"feature_names": ["a"]}, ValueError, "must be 2 names"),
        ({"coverage": 1.0}, ValueError, "coverage"),
        ({"slab_share": 0.0}, ValueError, "slab_share"),
        ({"level": 0.0}, ValueError, "level"),
        ({"permutations": 99}, ValueError, "at least 199"),
    ],
)
def test_bad_input_is_refused_with_a_reason(change, error, message):
    options = {"model": FLOW, "x": torch.randn(50, 2), "y": torch.randn(50, 4)} | change
    with pytest.raises(error, match=message):
        conditional_calibration(options.pop("model"), options.pop("x"), options.pop("y"), **options)
