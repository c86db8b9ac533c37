"""What a model was before it was recalibrated is found under all its wrappings."""

import pytest
import torch

import latentcal as lc
from latentcal.diagnostics import diagnose
from latentcal.diagnostics.latents import find_model_before, last_recalibration
from latentcal.flows import LinearGaussianFlow, Standardized

FLOW = LinearGaussianFlow(torch.eye(2), torch.zeros(2), torch.eye(2)).double()
UNITS = {
    "y_mean": torch.tensor([100.0, -3.0], dtype=torch.float64),
    "y_scale": torch.tensor([5.0, 0.1], dtype=torch.float64),
    "x_mean": torch.tensor([7.0, 0.0], dtype=torch.float64),
    "x_scale": torch.tensor([2.0, 1.0], dtype=torch.float64),
}


def drawn(generator, n):
    """Rows in the units of the flow, too wide and shifted, and the same in the units of the user."""
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    y = x + 1.5 * torch.randn(n, 2, dtype=torch.float64, generator=generator) + 0.3
    x, y = x * UNITS["x_scale"] + UNITS["x_mean"], y * UNITS["y_scale"] + UNITS["y_mean"]
    return ((x - UNITS["x_mean"]) / UNITS["x_scale"], (y - UNITS["y_mean"]) / UNITS["y_scale"]), (x, y)


def wrapped(kind, inner, user):
    """Models in the user's units: recalibrated inside the wrapper, outside, or both."""
    if kind == "outside":
        return lc.recalibrate(Standardized(FLOW, **UNITS), *user)
    if kind == "inside":
        return Standardized(lc.recalibrate(FLOW, *inner), **UNITS)
    if kind == "aligned inside":
        return Standardized(aligned(FLOW, inner), **UNITS)
    if kind == "aligned outside":
        return aligned(Standardized(FLOW, **UNITS), user)
    return lc.recalibrate(Standardized(lc.recalibrate(FLOW, *inner), **UNITS), *user)


def aligned(flow, rows):
    first, second = zip(*(part.split(150) for part in rows), strict=True)
    return lc.recalibrate(lc.align(flow, *first), *second)


@pytest.mark.parametrize("kind", ["outside", "inside", "aligned inside", "aligned outside", "both"])
def test_before_is_the_model_before_in_the_units_of_the_user(kind, generator):
    inner, user = drawn(generator, 300)
    model = wrapped(kind, inner, user)
    x, y = user
    before = find_model_before(model).flow
    first = find_model_before(before).flow if kind == "both" else before
    torch.testing.assert_close(first(x).log_prob(y), Standardized(FLOW, **UNITS)(x).log_prob(y))
    assert (model(x).log_prob(y) - first(x).log_prob(y)).abs().max() > 0.1  # control
    assert find_model_before(first) is None


def test_a_flow_as_it_was_trained_has_no_before():
    assert find_model_before(FLOW) is None
    assert find_model_before(Standardized(FLOW, **UNITS)) is None
    assert last_recalibration(FLOW, None, torch.zeros(3, 2)) == (None, 0.0)


def test_rows_that_served_inside_a_wrapper_are_recognised(generator):
    inner, user = drawn(generator, 400)
    model = Standardized(lc.recalibrate(FLOW, *(part[:200] for part in inner)), **UNITS)
    record, reused = last_recalibration(model, *user)
    assert record.n == 200
    assert reused > 0.95  # a row may differ by rounding
    assert last_recalibration(model, *(part[200:] for part in user)).reused == 0
    with pytest.warns(lc.recalibration.CalibrationReuseWarning):
        assert diagnose(model, *user, samples=10, permutations=399).points.n == 200
