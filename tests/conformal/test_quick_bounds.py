"""Quick bounds of latent regions: exact for linear flows, close and from within for others."""

import pytest
import torch

from latentcal.conformal import HPDScore, LatentScore, Region
from latentcal.flows import LinearGaussianFlow
from toys import SinhFlow, moved_by


def _region(flow):
    """The ball of radius 2 in the latent space."""
    return Region(flow, LatentScore(), torch.full((99,), 2.0, dtype=torch.float64), 0.9)


def test_quick_bounds_are_exact_where_the_flow_is_linear(generator):
    weight, factor, x = (
        torch.randn(shape, generator=generator).double() for shape in ((5, 2), (5, 5), (7, 2))
    )
    factor = factor.tril(-1) + 2 * torch.eye(5).double()
    lower, upper = _region(LinearGaussianFlow(weight, torch.zeros(5).double(), factor)).bounds(x, quick=True)
    torch.testing.assert_close(upper, x @ weight.T + 2 * factor.norm(dim=1))
    torch.testing.assert_close(lower, x @ weight.T - 2 * factor.norm(dim=1))


def test_quick_bounds_are_close_to_the_ends_of_a_curved_region(generator):
    flow = moved_by(SinhFlow(3), 0.3)
    x = torch.randn(7, 3, generator=generator).double()
    lower, upper = _region(flow).bounds(x, quick=True, generator=generator)
    ends = torch.stack([torch.zeros(3), *2 * torch.eye(3), *-2 * torch.eye(3)]).double()
    y = flow.decode(ends[:, None].expand(-1, 7, -1), x)
    width = y.amax(0) - y.amin(0)
    assert bool(((upper - y.amax(0)).abs() < 1e-2 * width).all())
    assert bool(((lower - y.amin(0)).abs() < 1e-2 * width).all())
    assert bool((upper <= y.amax(0) + 1e-9).all())  # from within


@pytest.mark.filterwarnings("ignore::latentcal.conformal.InfiniteRegionWarning")
def test_quick_bounds_of_an_infinite_region_are_infinite_and_levels_come_first(generator):
    flow = moved_by(SinhFlow(3), 0.3)
    x = torch.randn(7, 3, generator=generator).double()
    lower, upper = _region(flow).at([0.5, 0.999]).bounds(x, quick=True)
    assert lower.shape == upper.shape == (2, 7, 3)
    assert bool(torch.isfinite(lower[0]).all())
    assert bool((upper[1] == torch.inf).all())


def test_bounds_are_found_where_decode_has_no_slope(generator):
    flow, x = moved_by(SinhFlow(3), 0.3), torch.randn(4, 3, generator=generator).double()
    expected = _region(flow).bounds(x, generator=generator)
    width = expected.upper - expected.lower
    decode = flow.decode
    flow.decode = lambda z, x: decode(z, x).detach()
    for quick, tolerance in ((False, 1e-4), (True, 3e-2)):
        found = _region(flow).bounds(x, quick=quick, generator=generator)
        for side, wanted in zip(found, expected, strict=True):
            assert bool(((side - wanted).abs() < tolerance * width).all())


def test_quick_bounds_of_one_output_are_its_ends():
    region, x = _region(SinhFlow(1)), torch.zeros(4, 1).double()
    torch.testing.assert_close(region.bounds(x, quick=True), region.bounds(x))


def test_a_score_without_a_shorter_search_takes_the_long_one():
    region = Region(SinhFlow(2), HPDScore(samples=50), torch.linspace(0, 1, 99).double(), 0.9)
    quick, long = (
        region.bounds(torch.zeros(3, 2).double(), quick=way, generator=torch.Generator().manual_seed(0))
        for way in (True, False)
    )
    torch.testing.assert_close(quick, long)
