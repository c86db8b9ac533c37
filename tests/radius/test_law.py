"""What every law shares: checks of radii and probabilities, quantiles by search."""

import math

import pytest
import torch

from latentcal.radius import CalibrationSample, Chi, ScaledRadius, StreamingRadius, StudentRadius
from latentcal.radius.law import RadiusLaw


def test_weights_are_compared_with_the_largest_and_not_with_one():
    radii = torch.tensor([1.0, 2.0, 3.0])
    for unit in (1e-8, 1.0, 1e8):
        weights = unit * torch.tensor([1.0, 1e-11, 1e-13], dtype=torch.float64)
        sample = CalibrationSample(radii, weights=weights)
        assert sample.radii.tolist() == [1.0, 2.0]
        assert float(sample.weights.mean()) == pytest.approx(1)


def test_the_range_of_wrong_probabilities_is_said_of_tensors_with_a_gradient_as_well():
    u = torch.tensor([0.5, 1.5], requires_grad=True)
    with pytest.raises(ValueError, match=r"\[0.5, 1.5\]"):
        Chi(2).icdf(u)
    with pytest.raises(ValueError, match=r"\[-0.5, 1.5\]"):
        Chi(2).icdf_log_cdf(torch.tensor([-0.5, 1.5], requires_grad=True))


def test_quantiles_beyond_the_floats_are_the_ends_themselves():
    v = torch.tensor([-1e7, -1.0], dtype=torch.float64)
    law = ScaledRadius(StudentRadius(2, 0.5), 2.0, 3.0)
    for far, tail, end in (
        (RadiusLaw._quantile(law, v, torch.log1p(-torch.exp(v))), law.log_cdf, 0.0),
        (RadiusLaw._quantile(law, torch.log1p(-torch.exp(v)), v), law.log_sf, math.inf),
    ):
        assert float(far[0]) == end
        assert float(tail(far[1])) == pytest.approx(-1.0)


def test_the_middles_of_a_law_that_has_learned_are_those_of_what_it_is_now(generator):
    law = StreamingRadius.fit(Chi(2).sample((200,), generator), reference=Chi(2))
    levels = torch.tensor([[0.125], [0.375], [0.625], [0.875]], dtype=torch.float64)
    with torch.inference_mode():
        before = law.middles(4)
    torch.testing.assert_close(before, law.icdf(levels))
    torch.testing.assert_close(law.middles(2), law.icdf(levels.new_tensor([[0.25], [0.75]])))
    law.update(3 * Chi(2).sample((200,), generator))
    torch.testing.assert_close(law.middles(4), law.icdf(levels))
    assert bool((law.middles(4) > before).all())
