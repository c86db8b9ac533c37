"""Rounded outputs are no fault of a model, and do not hide one."""

import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from latentcal.diagnostics import diagnose
from latentcal.diagnostics.latents import encode_rows
from latentcal.diagnostics.rounding_cells import describe_cells, randomize_cells
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from toys import SamplerOnly, scaled_gaussian

QUICK = {"samples": 20, "permutations": 399}
STEPS = {"tenth": 0.1, "third": 1 / 3, "coarse": 1.0}


class LogNormal(ConditionalFlow):
    """exp of a standard normal, which has no cell below 0."""

    def __init__(self):
        super().__init__(lc.base.standard_normal(1))

    def encode(self, y, x=None):
        return y.log(), -y.log()[..., 0]

    def decode(self, z, x=None):
        return z.exp()


def draw(generator, n, step, scale=1.0):
    x = torch.randn(n, 1, dtype=torch.float64, generator=generator)
    y = x + scale * torch.randn(n, 2, dtype=torch.float64, generator=generator)
    return x, (y / step).round() * step


FLOW = LinearGaussianFlow(torch.ones(2, 1), torch.zeros(2), torch.eye(2)).double()


def test_a_value_stays_in_its_cell_and_continuous_outputs_stay_as_they_are(generator):
    x, y = draw(generator, 500, 0.5)
    inside = randomize_cells(FLOW, x, y)
    torch.testing.assert_close((inside / 0.5).round() * 0.5, y)
    assert len(inside.unique()) > 900
    torch.testing.assert_close(inside, randomize_cells(FLOW, x, y))  # the same at every call
    plain = torch.randn(500, 2, dtype=torch.float64, generator=generator)
    assert randomize_cells(FLOW, x, plain) is plain


def test_within_a_cell_values_follow_the_density_of_the_model(generator):
    """Cells of one standard deviation: a uniform point has a variance that is 1/6 too large."""
    y = torch.randn(20_000, 1, dtype=torch.float64, generator=generator).round()
    inside = randomize_cells(scaled_gaussian(1, 1.0), None, y)
    u = torch.special.ndtr(inside[:, 0])
    assert lc.metrics.uniformity_test(u, "ks").p_value > 1e-4  # fails in 0.01 %
    uniform = y + torch.rand(y.shape, dtype=torch.float64, generator=generator) - 0.5
    control = torch.special.ndtr(uniform[:, 0])
    assert lc.metrics.uniformity_test(control, "ks").p_value < 1e-4


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_a_true_model_of_rounded_outputs_is_calibrated(step, generator):
    runs, wrong = 20, 0
    for _ in range(runs):
        report = diagnose(FLOW, *draw(generator, 600, step), **QUICK)
        wrong += report.verdict == "not_calibrated"
        assert report.notes[0].startswith("Rounded outputs: y[0] (steps of ")
    assert wrong <= binom.isf(1e-3, runs, 0.05)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_rounding_does_not_hide_that_predictions_are_too_narrow(step, generator):
    report = diagnose(FLOW, *draw(generator, 2000, step, scale=1.2), **QUICK)
    assert report.verdict == "not_calibrated"
    assert "too narrow" in report.sentence


def test_reuse_of_rounded_rows_is_recognised(generator):
    x, y = draw(generator, 300, 0.1)
    model = lc.recalibrate(FLOW, x, y)
    with pytest.warns(lc.recalibration.CalibrationReuseWarning, match="100%"):
        assert diagnose(model, x, y, **QUICK).reused == 1


def test_models_without_a_density_or_with_an_end_are_not_asked_for_more_than_they_have(generator):
    y = torch.randn(300, 2, generator=generator).round()
    inside = randomize_cells(SamplerOnly(lc.base.standard_normal(2)), None, y)
    torch.testing.assert_close(inside.round(), y)
    counts = torch.randint(0, 3, (200, 1), generator=generator).double() + 0.1
    rows = encode_rows(LogNormal(), None, counts.round() + 1)
    assert bool(torch.isfinite(rows.z).all())
    zeros = torch.randn(200, 1, dtype=torch.float64, generator=generator).exp().round().clamp(min=0.01)
    assert bool(torch.isfinite(encode_rows(LogNormal(), None, zeros).z).all())


def test_notes_name_outputs_and_are_silent_about_continuous_ones(generator):
    y = torch.randn(200, 3, dtype=torch.float64, generator=generator)
    y[:, 0] = y[:, 0].round()
    y[:50, 1] = 7.0
    rounded, lone = describe_cells(lc.recalibration.atoms(y), ["rent", "heating", "area"])
    assert rounded.startswith("Rounded outputs: rent (steps of 1, ")
    assert lone.startswith("25% of the rows have the value 7 of heating.")
    assert describe_cells(lc.recalibration.atoms(y[:, 2:]), ["area"]) == []
