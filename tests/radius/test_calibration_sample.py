"""What laws are fitted to: checked once, rows without weight left out, and bare radii as a shorthand."""

import math

import pytest
import torch

from latentcal.radius import (
    BallRadius,
    CalibrationSample,
    Chi,
    ConditionalRadius,
    EmpiricalRadius,
    GammaKDE,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    StreamingRadius,
)
from latentcal.radius.calibration_sample import tied_share

RADII = torch.linspace(0.2, 3.0, 40)
X = torch.linspace(-1, 1, 40)[:, None]
LAWS = (
    GammaKDE,
    SplineRadius,
    EmpiricalRadius,
    ScaledRadius,
    StackedRadius,
    StreamingRadius,
    ConditionalRadius,
)


def test_rows_without_weight_are_left_out_of_everything():
    weights = torch.tensor([1.0, 0.0, 3.0, 1e-30])
    sample = CalibrationSample(torch.arange(1.0, 5.0), Chi(2), torch.arange(8.0).reshape(4, 2), weights)
    assert sample.radii.tolist() == [1, 3]
    assert sample.x.tolist() == [[0, 1], [4, 5]]
    assert sample.weights.tolist() == [0.5, 1.5]
    assert sample.kept.tolist() == [True, False, True, False]
    assert (sample.n, sample.effective_n, sample.weighted) == (2, pytest.approx(1.6), True)


def test_without_weights_all_rows_count_alike():
    sample = CalibrationSample(RADII, Chi(2))
    assert sample.weights.tolist() == [1] * 40
    assert (sample.weighted, sample.effective_n, sample.upper) == (False, 40, math.inf)
    assert sample.radii.dtype == sample.weights.dtype == torch.float64


def test_some_of_the_rows_keep_what_belongs_to_them():
    part = CalibrationSample(RADII, Chi(2), X, 1 + RADII).take(torch.arange(40) < 3)
    torch.testing.assert_close(part.radii, RADII[:3].double())
    torch.testing.assert_close(part.x, X[:3])
    torch.testing.assert_close(part.weights, (1 + RADII[:3].double()) / (1 + RADII[:3].double()).mean())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"radii": torch.tensor([])}, "calibration set is empty"),
        ({"radii": torch.full((40,), math.nan)}, "40 of 40 radii are NaN"),
        ({"reference": BallRadius(2)}, "radii are beyond 1"),
        ({"x": X[:39]}, r"x must be \(n, p\) for 40 radii"),
        ({"x": X[:, 0]}, r"x must be \(n, p\)"),
        ({"x": math.nan * X}, "NaN or infinite"),
        ({"weights": torch.ones(3)}, r"weights must be \(40,\), one for each point; got \(3,\)"),
        ({"weights": -torch.ones(40)}, "must be finite, not negative"),
    ],
)
def test_what_is_no_sample_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        CalibrationSample(**({"radii": RADII} | arguments))


@pytest.mark.parametrize("law", [*LAWS, ConditionalRadius])
def test_bare_radii_are_a_shorthand_for_a_sample(law):
    sample = CalibrationSample(RADII, Chi(2), X)
    r = torch.linspace(0.1, 4, 40, dtype=torch.float64)
    first, second = law.fit(sample), law.fit(RADII, reference=Chi(2), x=X)
    torch.testing.assert_close(first.given(X).cdf(r), second.given(X).cdf(r))
    with pytest.raises(TypeError, match="leave out these arguments"):
        law.fit(sample, reference=Chi(2))


def test_a_sample_made_in_inference_mode_can_be_fitted():
    with torch.inference_mode():
        sample = CalibrationSample(1 * RADII, Chi(2), 1 * X, 1 + RADII)
    for law in (ScaledRadius, ConditionalRadius):
        fitted = law.fit(sample)
        assert not any(tensor.is_inference() for tensor in fitted.state_dict().values())


def test_tied_radii_are_all_those_that_equal_another_one(generator):
    for values in (1, 3, 40, 10_000):
        radii = torch.randint(values, (60,), generator=generator).double()
        _, counts = torch.unique(radii, return_counts=True)
        assert tied_share(radii) == pytest.approx(float(counts[counts > 1].sum()) / 60)
    assert tied_share(torch.empty(0)) == 0
