"""What must not matter does not: order, batches, units and scale of weights leave a fitted model as it is."""

import pytest
import torch

import latentcal as lc

FITS = {
    "stacked": lc.StackedRadius.fit,
    "gamma_kde": lc.GammaKDE.fit,
    "spline": lc.SplineRadius.fit,
    "scaled": lc.ScaledRadius.fit,
    "empirical": lc.EmpiricalRadius.fit,
    "conditional": lc.ConditionalRadius.fit,
}
# The spline is the end of a search: its likelihood is flat, so it is known to fewer digits.
TOLERANCE = dict.fromkeys(FITS, 1e-6) | {"spline": 2e-2}
# Judging a model by its own rows warns, which is not the matter here.
pytestmark = pytest.mark.filterwarnings("ignore::latentcal.recalibration.CalibrationReuseWarning")
each_fit = pytest.mark.parametrize("name", FITS)
each_weighted_fit = pytest.mark.parametrize("name", [name for name in FITS if name != "empirical"])


@pytest.fixture(scope="module")
def rows():
    source = torch.Generator().manual_seed(3)
    x = torch.randn(300, 2, generator=source, dtype=torch.float64)
    noise = torch.randn(300, 2, generator=source, dtype=torch.float64)
    # Two clusters of norms: rows in the order of their norms were the worst case.
    return x, x + noise * torch.where(x[:, :1] > 0, 0.3, 3.0)


@pytest.fixture(scope="module")
def flow(rows):
    return lc.flows.LinearGaussianFlow.fit(*rows)


def recalibrated(name: str, flow, x, y, **options):
    return lc.recalibrate(flow, x, y, fit=FITS[name], **options)


def assert_alike(one, other, rows, tolerance: float) -> None:
    x, y = rows
    pits = [lc.latent_pit(model(x), y) for model in (one, other)]
    torch.testing.assert_close(pits[0], pits[1], rtol=0, atol=tolerance)


def distance(one, other, rows) -> float:
    x, y = rows
    return float((lc.latent_pit(one(x), y) - lc.latent_pit(other(x), y)).abs().max())


@each_fit
@pytest.mark.filterwarnings("ignore:Rows look ordered")  # by their norm
@pytest.mark.parametrize("order", ["by norm", "at random"])
def test_the_order_of_calibration_rows_does_not_matter(name, order, rows, flow, generator):
    x, y = rows
    norms = lc.latent_norms(flow, x, y)
    index = norms.argsort() if order == "by norm" else torch.randperm(len(x), generator=generator)
    model, other = recalibrated(name, flow, x, y), recalibrated(name, flow, x[index], y[index])
    assert_alike(model, other, rows, TOLERANCE[name])
    half = recalibrated(name, flow, x[:150], y[:150])
    assert distance(model, half, rows) > 2e-2  # control: other rows do matter


def test_the_order_of_rows_does_not_matter_to_the_ladder(rows, flow, generator):
    x, y = (part[:120] for part in rows)
    index = torch.randperm(len(x), generator=generator)
    model, other = lc.autocalibrate(flow, x, y), lc.autocalibrate(flow, x[index], y[index])
    assert model.recalibration.ladder.chosen == other.recalibration.ladder.chosen
    torch.testing.assert_close(other(x).log_prob(y), model(x).log_prob(y), rtol=1e-6, atol=1e-6)


@each_fit
def test_batches_do_not_matter(name, rows, flow):
    x, y = rows
    batches = [(x[:7], y[:7]), (x[7:200], y[7:200]), (x[200:], y[200:])]
    assert_alike(
        recalibrated(name, flow, x, y), lc.recalibrate(flow, batches, fit=FITS[name]), rows, TOLERANCE[name]
    )


@each_weighted_fit
@pytest.mark.parametrize("factor", [1e-206, 1e-3, 1e200])
def test_the_scale_of_the_weights_does_not_matter(name, factor, rows, flow):
    x, y = rows
    weights = 1 + x[:, 0].abs()
    model = recalibrated(name, flow, x, y, weights=weights)
    other = recalibrated(name, flow, x, y, weights=factor * weights)
    assert_alike(model, other, rows, TOLERANCE[name])
    assert other.recalibration.effective_n == pytest.approx(model.recalibration.effective_n)


@each_weighted_fit
def test_a_row_of_weight_0_is_an_absent_row(name, rows, flow):
    x, y = rows
    weights = (torch.arange(len(x)) % 3 != 0).double()
    model = recalibrated(name, flow, x, y, weights=weights)
    absent = recalibrated(name, flow, x[weights > 0], y[weights > 0])
    assert_alike(model, absent, rows, TOLERANCE[name])


@each_weighted_fit
def test_the_units_of_y_do_not_matter(name, rows, flow):
    x, y = rows
    shift, scale = torch.tensor([5.0, -300.0]).double(), torch.tensor([1e3, 1e-4]).double()
    model = recalibrated(name, flow, x, y)
    moved = recalibrated(name, lc.flows.Standardized(flow, shift, scale), x, y * scale + shift)
    found = moved(x).log_prob(y * scale + shift) + scale.log().sum()
    torch.testing.assert_close(found, model(x).log_prob(y), rtol=0, atol=max(1e-4, 20 * TOLERANCE[name]))


@each_fit
def test_recalibrating_inside_inference_mode_gives_an_ordinary_model(name, rows, flow):
    x, y = rows
    with torch.inference_mode():
        model = recalibrated(name, flow, 1 * x, 1 * y)
    assert_alike(model, recalibrated(name, flow, x, y), rows, TOLERANCE[name])
    assert not any(tensor.is_inference() for tensor in model.base.state_dict().values())


def test_float32_data_give_the_law_of_float64_data(rows, flow):
    x, y = rows
    single = lc.recalibrate(flow, x.float(), y.float())
    assert_alike(lc.recalibrate(flow, x, y), single, rows, 1e-3)


@each_fit
def test_recalibrating_twice_with_other_rows_ends_where_the_second_law_is(name, rows, flow):
    """The second law is fitted to norms that the first recalibration left as they were."""
    x, y = rows
    once = recalibrated(name, flow, x[150:], y[150:])
    first = recalibrated("scaled", flow, x[:150], y[:150])
    twice = recalibrated(name, first, x[150:], y[150:])
    norms = [lc.latent_norms(model, x, y) for model in (flow, first, twice)]
    torch.testing.assert_close(norms[1], norms[0])
    torch.testing.assert_close(norms[2], norms[0])
    if name in ("empirical", "gamma_kde"):  # the others lean on the law that they replace
        assert_alike(once, twice, rows, TOLERANCE[name])
    else:
        assert distance(once, twice, rows) < 0.1


@each_fit
def test_the_units_of_x_do_not_matter(name, rows, flow):
    x, y = rows
    shift, scale = torch.tensor([3.0, -70.0]).double(), torch.tensor([1e3, 1e-4]).double()
    moved = lc.flows.Standardized(flow, 0 * shift, shift / shift, shift, scale)
    model, other = recalibrated(name, flow, x, y), recalibrated(name, moved, x * scale + shift, y)
    pits = [
        lc.latent_pit(model(x), y),
        lc.latent_pit(other(x * scale + shift), y),
    ]
    torch.testing.assert_close(pits[0], pits[1], rtol=0, atol=max(1e-6, TOLERANCE[name]))


def test_shift_weights_do_not_depend_on_the_units_of_x(rows):
    x = rows[0]
    target = x[:100] + 0.7
    scale, shift = torch.tensor([1e4, 1e-3]).double(), torch.tensor([-50.0, 2.0]).double()
    plain = lc.density_ratio(x, target)
    torch.testing.assert_close(
        lc.density_ratio(x * scale + shift, target * scale + shift), plain, rtol=1e-4, atol=1e-6
    )
    assert plain.std() > 0.1  # control: there is a shift to see


@pytest.mark.parametrize("score", ["latent", "density"])
def test_the_order_of_rows_does_not_matter_to_a_region(score, rows, flow, generator):
    x, y = rows
    index = torch.randperm(len(x), generator=generator)
    one = lc.conformal_region(flow, x, y, score=score).threshold
    torch.testing.assert_close(lc.conformal_region(flow, x[index], y[index], score=score).threshold, one)
    p = lc.anomaly_pvalue(flow, x, y, calibration=(x, y), score=score)
    torch.testing.assert_close(
        lc.anomaly_pvalue(flow, x[index], y[index], calibration=(x, y), score=score), p[index]
    )
    half = lc.conformal_region(flow, x[:40], y[:40], score=score).threshold
    assert abs(float(half - one)) > 1e-3  # control


def test_the_order_of_rows_does_not_matter_to_metrics_and_conditional_laws(rows, flow, generator):
    x, y = rows
    index = torch.randperm(len(x), generator=generator)
    draws = flow(x).sample((8,), generator)
    for score in (lc.metrics.energy_score, lc.metrics.variogram_score):
        torch.testing.assert_close(score(draws[:, index], y[index]), score(draws, y)[index])
    u = lc.latent_pit(flow(x), y)
    for statistic in ("ks", "cvm", "ad"):
        one, other = (lc.metrics.uniformity_test(values, statistic) for values in (u, u[index]))
        assert other.p_value == pytest.approx(one.p_value, rel=1e-9)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e30])
def test_energy_and_variogram_scores_have_the_units_of_y(size, rows, flow, generator):
    x, y = (part[:20] for part in rows)
    draws = flow(x).sample((8,), generator)
    plain = lc.metrics.energy_score(draws, y)
    torch.testing.assert_close(lc.metrics.energy_score(draws * size, y * size) / size, plain)
    single = lc.metrics.energy_score((draws * size).float(), (y * size).float()) / size
    torch.testing.assert_close(single.double(), plain, rtol=1e-4, atol=1e-5)
    scaled = lc.metrics.variogram_score(draws * size, y * size, order=1.0) / size**2
    torch.testing.assert_close(scaled, lc.metrics.variogram_score(draws, y, order=1.0))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_size_of_batches_does_not_matter_to_norms_and_regions(size, rows, flow):
    x, y = rows
    torch.testing.assert_close(lc.latent_norms(flow, x, y, batch_size=size), lc.latent_norms(flow, x, y))
    thresholds = [
        lc.conformal_region(flow, x, y, score="density", batch_size=batch).threshold for batch in (None, size)
    ]
    torch.testing.assert_close(thresholds[0], thresholds[1])


@each_fit
def test_float32_data_give_every_law_of_float64_data(name, rows, flow):
    x, y = rows
    single = recalibrated(name, flow, x.float(), y.float())
    step = 2.1 / (len(x) + 1) if name == "empirical" else 2e-3  # a norm may change places with its neighbour
    assert_alike(recalibrated(name, flow, x, y), single, rows, max(step, TOLERANCE[name]))


def test_the_laws_of_weighted_alignments_do_not_depend_on_the_scale_of_weights(rows, flow):
    x, y = rows[0], 1.5 * rows[1] + 1
    weights = 1 + x[:, 0].abs()
    one = lc.align(flow, x, y, weights=weights)(x).log_prob(y)
    for factor in (1e-206, 1e200):
        torch.testing.assert_close(lc.align(flow, x, y, weights=factor * weights)(x).log_prob(y), one)
    kept = (torch.arange(len(x)) % 4 != 0).double()
    absent = lc.align(flow, x[kept > 0], y[kept > 0])(x).log_prob(y)
    torch.testing.assert_close(lc.align(flow, x, y, weights=kept)(x).log_prob(y), absent)
    assert float((absent - one).abs().max()) > 1e-3  # control
