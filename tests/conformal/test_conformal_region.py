"""Regions hold what they promise: thresholds, membership, coverage."""

import math

import numpy as np
import pytest
import torch
from conformal_toys import Skewed, data, mixture
from torch import nn
from torch.distributions import Normal

import same
from latentcal.conformal import (
    DCPScore,
    HPDScore,
    InfiniteRegionWarning,
    LatentScore,
    PCPScore,
    Score,
    conformal_region,
)
from latentcal.fingerprint import CalibrationReuseWarning
from latentcal.pit import latent_pit
from latentcal.radius import EmpiricalRadius, StackedRadius
from latentcal.recalibration import latent_norms, recalibrate
from toys import SinhFlow, scaled_gaussian

SCORES = {
    "latent": "latent",
    "density": "density",
    "hpd": HPDScore(samples=20),
    "pcp": PCPScore(samples=20),
    "function": lambda model, x, y: (y - x).abs().amax(-1),
}
ONE_OUTPUT = {"dcp": DCPScore(), "dcp_one_sided": DCPScore(one_sided=True)}
each_score = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


def coverage_of(region, x, y):
    return float(region.contains(y, x).double().mean())


# --- coverage


def mean_coverage(make, dim, n, generator, repetitions=200, fresh=150):
    """Mean coverage over calibration sets, and four of its standard errors (failure rate 6e-5)."""
    coverages = torch.empty(repetitions, dtype=torch.float64)
    for i in range(repetitions):
        x, y = data(n + fresh, dim, generator)
        coverages[i] = coverage_of(make(x[:n], y[:n]), x[n:], y[n:])
    return float(coverages.mean()), 4 * float(coverages.std()) / math.sqrt(repetitions)


@pytest.mark.parametrize(
    ("dim", "score"),
    [(2, score) for score in SCORES.values()] + [(1, score) for score in ONE_OUTPUT.values()],
    ids=[*SCORES, *ONE_OUTPUT],
)
def test_coverage_is_between_the_level_and_the_level_plus_1_in_n_plus_1(dim, score, generator):
    n, level = 50, 0.9
    mean, noise = mean_coverage(
        lambda x, y: conformal_region(Skewed(dim), x, y, coverage=level, score=score), dim, n, generator
    )
    assert noise < 0.02
    assert level - noise < mean < level + 1 / (n + 1) + noise


@pytest.mark.parametrize("control", ["draws of the model", "one rank short"])
def test_the_check_of_coverage_rejects_wrong_thresholds(control, generator):
    n, level, flow = 50, 0.9, Skewed(2)

    def make(x, y):
        if control == "one rank short":  # without a rank for the new point
            return conformal_region(flow, x, y, coverage=math.ceil(level * n) / (n + 1))
        return conformal_region(flow, x, flow(x).sample(generator=generator), coverage=level)

    mean, noise = mean_coverage(make, 2, n, generator, 400)
    assert mean < level - noise


def test_few_samples_do_not_make_ties_that_inflate_the_coverage(generator):
    # With 5 samples an empirical rank has 6 values, and the 0.5-quantile of many would cover 0.5 to 0.67.
    n, score = 199, HPDScore(samples=5)
    mean, noise = mean_coverage(
        lambda x, y: conformal_region(Skewed(2), x, y, coverage=0.5, score=score), 2, n, generator, 100
    )
    assert 0.5 - noise < mean < 0.505 + noise
    assert noise < 0.025


# --- thresholds


@pytest.mark.parametrize("n", [9, 19, 99, 100, 199, 999])
@each_score
def test_the_threshold_is_the_order_statistic_of_the_scores(score, n, generator):
    x, y = data(n, 2, generator)
    region = conformal_region(Skewed(2), x, y, coverage=[0.5, 0.55, 0.9], score=score)
    for level, threshold in zip((50, 55, 90), region.threshold.tolist(), strict=True):
        rank = -(-level * (n + 1) // 100)  # in whole numbers
        assert threshold == sorted(region.scores.tolist())[rank - 1]
        assert float(region.at(level / 100).threshold) == threshold
        assert float(region.at(torch.tensor(level / 100)).threshold) == threshold  # float32
    assert region.n == n
    assert region.threshold.dtype == torch.float64


def test_the_latent_region_is_the_set_below_the_empirical_quantile_of_the_norms(generator):
    flow = Skewed(3)
    x, y = data(400, 3, generator)
    for n in (19, 50, 99, 199):
        for coverage in (0.05, 0.1, 0.5, 0.55, 0.8, 0.9, 0.95):
            region = conformal_region(flow, x[:n], y[:n], coverage=coverage)
            radius = EmpiricalRadius.fit(latent_norms(flow, x[:n], y[:n])).icdf(
                torch.tensor(coverage, dtype=torch.float64)
            )
            torch.testing.assert_close(region.threshold, radius)
            assert same.decided(region.contains(y[n:], x[n:]), latent_norms(flow, x[n:], y[n:]) <= radius)
            # Of the calibration rows one lies on the boundary, inside.
            assert int(region.contains(y[:n], x[:n]).sum()) == math.ceil(round(coverage * (n + 1), 9))


def test_the_latent_region_is_the_sublevel_set_of_the_recalibrated_pit_up_to_its_boundary(generator):
    flow = Skewed(2)
    x, y = data(2000, 2, generator)
    for n in (19, 50, 99, 200):
        model = recalibrate(flow, x[:n], y[:n], fit=EmpiricalRadius.fit)
        u = latent_pit(model(x[n:]), y[n:])
        for coverage in (0.1, 0.5, 0.9):
            region = conformal_region(flow, x[:n], y[:n], coverage=coverage)
            assert same.decided(region.contains(y[n:], x[n:]), u < coverage - 1e-9)
            edge = int((latent_norms(flow, x[:n], y[:n]) - region.threshold).abs().argmin())
            assert bool(region.contains(y[:n], x[:n])[edge])


def test_too_few_points_make_the_region_everything_and_say_so(generator):
    x, y = data(9, 2, generator)
    conformal_region(Skewed(2), x, y, coverage=0.9)  # ceil(0.9 * 10) = 9: just enough
    with pytest.warns(
        InfiniteRegionWarning, match=r"8 calibration points are too few .* 0\.9: .*least 9"
    ) as w:
        region = conformal_region(Skewed(2), x[:8], y[:8], coverage=[0.5, 0.9])
    assert w[0].filename == __file__
    assert region.threshold.isinf().tolist() == [False, True]
    assert region.contains(1e6 * y, x).tolist()[1] == [True] * 9
    volume = region.volume(x)
    assert volume.value.isinf().tolist() == [[False] * 9, [True] * 9]
    assert volume.error[1].tolist() == [0] * 9
    lower, upper = region.bounds(x)
    assert (lower[1] == -math.inf).all()
    assert (upper[1] == math.inf).all()
    assert region.sample(x, 3).shape == (2, 3, 9, 2)
    assert region.boundary(x[0])[1] == []
    with pytest.warns(InfiniteRegionWarning) as w:
        region.at(0.99)
    assert w[0].filename == __file__


# --- membership


@each_score
def test_leading_dims_broadcast_and_levels_come_first(score, generator):
    flow = Skewed(2)
    x, y = data(60, 2, generator)
    region = conformal_region(flow, x[:50], y[:50], coverage=[0.5, 0.9], score=score)
    many = flow(x[50:]).sample((7,), generator=generator)
    inside = region.contains(many, x[50:])
    assert inside.shape == (2, 7, 10)
    assert inside.dtype == torch.bool
    assert bool((inside[0] <= inside[1]).all())
    assert same.decided(region.contains(many, x[50:], coverage=0.9), inside[1])
    assert same.decided(region.at(0.5).contains(many, x[50:]), inside[0])
    for i in (0, 6):
        assert same.decided(region.contains(many[i], x[50:]), inside[:, i])
        assert same.decided(region.contains(many[i, 3], x[53]), inside[:, i, 3])
    assert same.decided(region.contains(many[:, 0], x[50]), inside[:, :, 0])
    blocks = region.contains(many.reshape(7, 2, 5, 2), x[50:].reshape(2, 5, 2))
    assert same.decided(blocks, inside.reshape(2, 7, 2, 5))
    assert region.contains(many[:, :0], x[:0]).shape == (2, 7, 0)


def test_a_flow_without_features_needs_no_x(generator):
    flow = scaled_gaussian(2, 1.0)
    y = 2 * torch.randn(99, 2, generator=generator, dtype=torch.float64)
    for score in ("latent", "density", "hpd", "pcp"):
        region = conformal_region(flow, None, y, coverage=0.8, score=score, generator=generator)
        assert coverage_of(region, None, y) == pytest.approx(80 / 99)
        assert region.contains(y.reshape(3, 33, 2)).shape == (3, 33)
        assert region.contains(y[0]).shape == ()
        assert region.sample(n=5, generator=generator).shape == (5, 2)
        assert region.volume(generator=generator).value.shape == ()
        assert region.bounds(generator=generator).lower.shape == (2,)


@pytest.mark.parametrize("score", ["density", "hpd", "pcp"])
def test_a_model_without_latent_space_has_regions_too(score, generator):
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = x + torch.randn(40, 2, generator=generator, dtype=torch.float64)
    region = conformal_region(mixture, x[:30], y[:30], coverage=0.8, score=score, generator=generator)
    assert coverage_of(region, x[:30], y[:30]) == pytest.approx(25 / 30)
    draws = region.sample(x[30:], 20, generator=generator)
    assert draws.shape == (20, 10, 2)
    assert bool(region.contains(draws, x[30:]).all())
    assert bool((region.volume(x[30:], generator=generator).value > 0).all())


def test_data_may_be_of_another_dtype_or_arrays(generator):
    flow = SinhFlow(2, dtype=torch.float32)
    x, y = data(99, 2, generator)
    region = conformal_region(flow, x[:49].float(), y[:49].float(), score="density")
    array = y.numpy()
    array.flags.writeable = False
    other = conformal_region(flow, x[:49].numpy(), array[:49], score="density", coverage=np.float32(0.9))
    torch.testing.assert_close(region.threshold, other.threshold, rtol=1e-5, atol=1e-5)
    assert same.decided(region.contains(y[49:], x[49:]), other.contains(array[49:], x[49:].numpy()))
    assert region.sample(x[:3]).dtype == torch.float32


def test_modules_are_evaluated_in_evaluation_mode_without_gradients(generator):
    class Noisy(SinhFlow):
        def __init__(self):
            super().__init__(2)
            self.dropout = nn.Dropout(0.5)

        def encode(self, y, x=None):
            return super().encode(y, self.dropout(x))

    x, y = data(50, 2, generator)
    flow = Noisy().train()
    region = conformal_region(flow, x, y)
    assert flow.training
    torch.testing.assert_close(region.scores, conformal_region(SinhFlow(2), x, y).scores)
    assert not region.threshold.requires_grad
    assert same.repeated(region.contains(y, x), region.contains(y, x))


def test_batches_do_not_change_the_scores(generator):
    x, y = data(50, 2, generator)
    for score in (LatentScore(), HPDScore(samples=7, seed=3), PCPScore(samples=7, seed=3)):
        region, batched = (
            conformal_region(Skewed(2), x, y, score=score, batch_size=size) for size in (None, 3)
        )
        torch.testing.assert_close(region.scores, batched.scores, rtol=1e-12, atol=1e-12)


# --- what voids the guarantee


def test_rows_of_the_recalibration_are_recognised_where_they_matter(generator):
    x, y = data(300, 2, generator)
    model = recalibrate(Skewed(2), x[:200], y[:200], fit=StackedRadius.fit)
    for score in ("density", "hpd", "pcp"):
        with pytest.warns(CalibrationReuseWarning, match=r"About 100% .*guarantee .*does not hold") as caught:
            conformal_region(model, x[:200], y[:200], score=score)
        assert caught[0].filename == __file__
        conformal_region(model, x[200:], y[200:], score=score)  # new rows: silent
    # Latent recalibration keeps the maps, so the latent region is that of the flow itself: silent.
    region = conformal_region(model, x[:200], y[:200])
    alone = conformal_region(Skewed(2), x[:200], y[:200])
    torch.testing.assert_close(region.threshold, alone.threshold)


def test_a_region_knows_its_calibration_rows(generator):
    x, y = data(100, 2, generator)
    region = conformal_region(Skewed(2), x[:50], y[:50])
    assert region.fingerprint.share_of(x, y) == 1
    assert region.fingerprint.share_of(x[50:], y[50:]) == 0


# --- scores of one's own


def test_a_score_of_ones_own_is_a_class_or_a_function(generator):
    class Residual(Score):
        def __call__(self, model, x, y):
            return (y - x).norm(dim=-1)

    x, y = data(99, 2, generator)
    regions = [
        conformal_region(Skewed(2), x, y, score=score)
        for score in (Residual(), lambda model, x, y: (y - x).norm(dim=-1))
    ]
    expected = (y - x).norm(dim=-1).sort().values[89]
    assert [float(region.threshold) for region in regions] == pytest.approx([float(expected)] * 2)
    lower, upper = regions[0].bounds(x[:3], generator=generator)
    torch.testing.assert_close(upper, x[:3] + expected, rtol=0, atol=0.01 * float(expected))
    torch.testing.assert_close(lower, x[:3] - expected, rtol=0, atol=0.01 * float(expected))


def test_a_point_prediction_is_enough_for_a_score_that_needs_no_more(generator):
    x, y = data(99, 2, generator)
    region = conformal_region(lambda x: 2 * x, x, y, score=lambda model, x, y: (y - model(x)).norm(dim=-1))
    assert coverage_of(region, x, y) == pytest.approx(90 / 99)


def test_a_generator_decides_on_the_samples_of_a_score(generator):
    x, y = data(50, 2, generator)
    regions = [
        conformal_region(Skewed(2), x, y, score="hpd", generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert same.repeated(regions[0].scores, regions[1].scores)
    assert same.different(regions[0].scores, regions[2].scores)


# --- words


def test_a_region_says_what_it_is(generator):
    x, y = data(99, 2, generator)
    text = str(conformal_region(Skewed(2), x, y, coverage=[0.5, 0.9]))
    assert "LatentScore() on 99 calibration points" in text
    assert "90.0%: score at most" in text
    assert "the coverage is 83.4% to 95.0%" in text  # Beta(90, 10)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 1.5, math.nan, [], [[0.9]], [0.5, 1.0]])
def test_coverage_must_be_a_probability(coverage, generator):
    x, y = data(20, 2, generator)
    with pytest.raises(ValueError, match="coverage must be a number between 0 and 1"):
        conformal_region(Skewed(2), x, y, coverage=coverage)


def test_wrong_arguments_are_explained(generator):
    x, y = data(20, 2, generator)
    flow = Skewed(2)
    for arguments, message in (
        ((flow, x, y[:, 0]), r"y \(n, d\), one row for each point .*y\[:, None\]"),
        ((flow, x[:5], y), r"x has 5 rows and y has 20"),
        ((flow, x[:0], y[:0]), "at least 1 row, got 0"),
        (
            (flow, x, torch.cat([y, y], 1)),
            r"y has 4 outputs, but the model's events have shape \(2,\).*swapped",
        ),
        ((lambda x: Normal(x[:, 0], 1), x, y), r"Independent\(distribution, 1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            conformal_region(*arguments)
    with pytest.raises(ValueError, match="score must be one of latent, density, hpd, dcp, pcp"):
        conformal_region(flow, x, y, score="norm")
    with pytest.raises(TypeError, match=r"a score such as HPDScore\(\), or a function; got HPDScore"):
        conformal_region(flow, x, y, score=HPDScore)
    with pytest.raises(TypeError, match=r"latent norm needs a flow; .*has no latent space"):
        conformal_region(mixture, x, y)
    with pytest.raises(ValueError, match="DCP needs a single output, but the model has 2"):
        conformal_region(flow, x, y, score="dcp")
    bad = y.index_fill(0, torch.tensor([3]), math.nan)
    with pytest.raises(ValueError, match=r"NaN or infinite values in 1 of 20"):
        conformal_region(flow, x, bad, score=lambda model, x, y: (y - x).norm(dim=-1))
    with pytest.raises(ValueError, match=r"one number for each point: \(1, 20\) .*got \(1, 20, 2\)"):
        conformal_region(flow, x, y, score=lambda model, x, y: y)
    region = conformal_region(flow, x, y)
    with pytest.raises(ValueError, match="do not broadcast"):
        region.contains(y, x[:7])
    for name in ("n", "samples"):
        method = region.sample if name == "n" else region.volume
        with pytest.raises(ValueError, match="at least"):
            method(x, **{name: 0})
