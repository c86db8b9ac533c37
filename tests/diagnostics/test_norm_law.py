"""Latent norms beside the law that a model assumes."""

import pytest
import torch
from scipy.stats import binom

import latentcal as lc
from latentcal.diagnostics.measures import norm_law
from latentcal.flow import ConditionalFlow
from toys import ScaleFromX, scaled_gaussian


class Widened(ConditionalFlow):
    """N(0, exp(2 x_0) I), whose base law depends on x and not its maps."""

    def __init__(self):
        super().__init__(lc.RadialBase(ScaleFromX(lc.radius.Chi(2)), 2, lc.norms.Euclidean()))


def chi(n, dim, generator):
    return torch.randn(n, dim, dtype=torch.float64, generator=generator).norm(dim=1)


def test_shares_are_those_of_the_rows_and_of_the_law(generator):
    norms = 1.4 * chi(3000, 3, generator)
    law = norm_law(scaled_gaussian(3, 1.0), None, norms)
    for i in (0, 7, 23):
        low, high = law.edges[i], law.edges[i + 1]
        inside = ((norms > low) & (norms <= high)) | ((norms == low) if i == 0 else False)
        assert float(law.observed[i]) == pytest.approx(float(inside.double().mean()))
        expected = lc.radius.Chi(3).cdf(high) - lc.radius.Chi(3).cdf(low)
        assert float(law.assumed[i]) == pytest.approx(float(expected))
    assert 0.99 < float(law.observed.sum()) <= 1
    assert bool((law.observed > law.upper).any())  # the rows are wider than the law says
    assert bool((law.observed < law.lower).any())


def test_bars_of_a_calibrated_model_stay_in_the_band_as_often_as_stated(generator):
    sets, outside = 200, 0
    for _ in range(sets):
        law = norm_law(scaled_gaussian(2, 1.0), None, chi(400, 2, generator))
        outside += bool(((law.observed < law.lower) | (law.observed > law.upper)).any())
    assert outside <= binom.isf(1e-4, sets, 0.05)


def test_a_law_that_depends_on_x_is_averaged_over_the_rows(generator):
    x = torch.randn(1000, 1, dtype=torch.float64, generator=generator)
    law = norm_law(Widened(), x, torch.exp(x[:, 0]) * chi(1000, 2, generator))
    inside = (law.observed >= law.lower) & (law.observed <= law.upper)
    assert bool(inside.all())
    wrong = norm_law(scaled_gaussian(2, 1.0), x, torch.exp(x[:, 0]) * chi(1000, 2, generator))
    assert not bool(((wrong.observed >= wrong.lower) & (wrong.observed <= wrong.upper)).all())  # control


def test_equal_norms_have_no_histogram():
    assert norm_law(scaled_gaussian(2, 1.0), None, torch.ones(30, dtype=torch.float64)) is None
