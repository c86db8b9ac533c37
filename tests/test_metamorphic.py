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
pytestmark = pytest.mark.filterwarnings("ignore::latentcal.CalibrationReuseWarning")
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
    moved = recalibrated(name, lc.Standardized(flow, shift, scale), x, y * scale + shift)
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
