from typing import Any

import pytest
import torch
from torch import Tensor

from latentcal._internal.splines import LineSpline, SplineStep, UnitSpline, monotone_slopes


def random_spline(bins: int, seed: int = 0) -> UnitSpline:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.rand(2, bins, dtype=torch.float64, generator=generator) + 0.05
    slopes = torch.exp(torch.randn(bins + 1, dtype=torch.float64, generator=generator))
    return UnitSpline(3 * sizes[0], 7 * sizes[1], slopes)


def both_ends(m: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of [0, 1] from 1e-300 to 1 - 1e-300, and their complements."""
    small = torch.logspace(-300, -0.4, m, dtype=torch.float64)
    return torch.cat([small, 1 - small.flip(0)]), torch.cat([1 - small, small.flip(0)])


@pytest.mark.parametrize("bins", [1, 2, 9])
def test_the_inverse_inverts_with_full_relative_accuracy_at_both_ends(bins):
    spline = random_spline(bins)
    x, complement = both_ends()
    y, y_complement, _ = spline(x, complement)
    back, back_complement = spline.inverse(y, y_complement)
    torch.testing.assert_close(back, x, rtol=1e-12, atol=0)
    torch.testing.assert_close(back_complement, complement, rtol=1e-12, atol=0)
    torch.testing.assert_close(y + y_complement, torch.ones_like(y), rtol=1e-13, atol=0)


@pytest.mark.parametrize("bins", [1, 9])
def test_near_an_end_the_map_is_the_end_slope_times_the_distance(bins):
    spline = random_spline(bins)
    tiny, one = torch.tensor([1e-300], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    y, _, log_slope = spline(tiny, one)
    assert (y / tiny).item() == pytest.approx(spline.slopes[0].item(), rel=1e-12)
    assert log_slope.exp().item() == pytest.approx(spline.slopes[0].item(), rel=1e-12)
    _, y_complement, log_slope = spline(one, tiny)
    assert (y_complement / tiny).item() == pytest.approx(spline.slopes[-1].item(), rel=1e-12)
    assert log_slope.exp().item() == pytest.approx(spline.slopes[-1].item(), rel=1e-12)


def test_ends_go_to_ends():
    spline = random_spline(5)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    y, y_complement, _ = spline(ends, 1 - ends)
    torch.testing.assert_close(y, ends, rtol=0, atol=1e-14)
    torch.testing.assert_close(y_complement, 1 - ends, rtol=0, atol=1e-14)


def test_the_slope_is_that_of_finite_differences_and_of_autograd():
    spline = random_spline(6)
    x = torch.linspace(0.003, 0.997, 101, dtype=torch.float64)
    h = 1e-6
    _, _, log_slope = spline(x, 1 - x)
    difference = (spline(x + h, 1 - x - h)[0] - spline(x - h, 1 - x + h)[0]) / (2 * h)
    torch.testing.assert_close(log_slope.exp(), difference, rtol=1e-6, atol=0)
    x.requires_grad_()
    for value in (spline(x, 1 - x)[0], -spline(x, 1 - x)[1]):
        (slope,) = torch.autograd.grad(value.sum(), x)
        torch.testing.assert_close(slope, log_slope.exp(), rtol=1e-9, atol=0)


def test_the_map_goes_through_its_knots_with_their_slopes():
    spline = random_spline(7)
    y, y_complement, log_slope = spline(spline.x, spline.x_complement)
    torch.testing.assert_close(y, spline.y, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(y_complement, spline.y_complement, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(log_slope.exp(), spline.slopes, rtol=1e-9, atol=0)


def test_equal_bins_and_unit_slopes_are_the_identity():
    spline = UnitSpline(torch.full((4,), 2.0).double(), torch.ones(4).double(), torch.ones(5).double())
    x, complement = both_ends()
    y, y_complement, log_slope = spline(x, complement)
    torch.testing.assert_close(y, x, rtol=1e-12, atol=0)
    torch.testing.assert_close(y_complement, complement, rtol=1e-12, atol=0)
    assert log_slope.abs().max() < 1e-12


def test_bins_far_below_the_rounding_of_one_are_told_apart_at_both_ends():
    widths = torch.tensor([1e-40, 1e-30, 1e-20, 1.0, 1e-20, 1e-30, 1e-40], dtype=torch.float64)
    heights = torch.ones(7, dtype=torch.float64)
    spline = UnitSpline(widths, heights, monotone_slopes(widths, heights))
    middles = torch.tensor([5e-41, 5e-31, 5e-21], dtype=torch.float64)
    y, y_complement, _ = spline(middles, 1 - middles)
    mirrored_complement, mirrored, _ = spline(1 - middles, middles)
    torch.testing.assert_close(mirrored, y, rtol=1e-12, atol=0)
    torch.testing.assert_close(mirrored_complement, y_complement, rtol=1e-12, atol=0)
    assert ((y * 7).floor() == torch.arange(3)).all()
    torch.testing.assert_close(spline.inverse(y, y_complement)[0], middles, rtol=1e-9, atol=0)
    torch.testing.assert_close(spline.inverse(y_complement, y)[1], middles, rtol=1e-9, atol=0)


def test_monotone_slopes_are_harmonic_means_inside_and_the_bins_own_at_the_ends():
    widths = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    heights = torch.tensor([3.0, 2.0, 4.0], dtype=torch.float64)
    assert monotone_slopes(widths, heights).tolist() == pytest.approx([3.0, 1.5, 1.6, 4.0])


def test_monotone_slopes_of_vanishing_bins_are_finite():
    widths = torch.tensor([1e-300, 1e-300, 1.0, 1e-300], dtype=torch.float64)
    assert monotone_slopes(widths, torch.ones(4, dtype=torch.float64)).isfinite().all()


@pytest.mark.parametrize("seed", range(5))
def test_a_spline_with_monotone_slopes_rises_everywhere(seed):
    generator = torch.Generator().manual_seed(seed)
    widths, heights = torch.exp(3 * torch.randn(2, 30, dtype=torch.float64, generator=generator))
    spline = UnitSpline(widths, heights, monotone_slopes(widths, heights))
    x = torch.linspace(0, 1, 5001, dtype=torch.float64)
    y, _, log_slope = spline(x, 1 - x)
    assert (y.diff() > 0).all()
    assert log_slope.isfinite().all()


def test_gradients_reach_the_parameters():
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.rand(size, dtype=torch.float64, generator=generator) + 0.5 for size in (4, 4, 5)]
    x = torch.linspace(0.05, 0.95, 9, dtype=torch.float64)

    def total(*arguments: torch.Tensor) -> torch.Tensor:
        y, y_complement, log_slope = UnitSpline(*arguments)(x, 1 - x)
        return (y * x + y_complement.sqrt() + log_slope).sum()

    assert torch.autograd.gradcheck(total, [p.requires_grad_() for p in parameters])


# --- maps of the line


def line_spline(dim: int = 3, knots: int = 7, seed: int = 0) -> LineSpline:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(2, dim, knots, dtype=torch.float64, generator=generator) + 0.05
    slopes = torch.exp(torch.randn(dim, knots, dtype=torch.float64, generator=generator))
    return LineSpline(torch.cumsum(steps[0], 1) - 2, torch.cumsum(steps[1], 1) - 1, slopes)


def line_points(dim: int = 3) -> torch.Tensor:
    far = torch.logspace(-3, 6, 40, dtype=torch.float64)
    return torch.cat([-far.flip(0), torch.linspace(-3, 4, 301, dtype=torch.float64), far])[:, None].repeat(
        1, dim
    )


@pytest.mark.parametrize("knots", [2, 3, 33])
def test_a_map_of_the_line_is_increasing_and_its_inverse_inverts_far_beyond_the_ends(knots):
    spline, x = line_spline(knots=knots), line_points()
    y, log_slope = spline(x)
    assert (spline(torch.sort(x, 0).values)[0].diff(dim=0) >= 0).all()
    assert torch.isfinite(log_slope).all()
    torch.testing.assert_close(spline.inverse(y), x, rtol=1e-12, atol=1e-12)


def test_a_map_of_the_line_has_the_slope_of_autograd_at_its_knots_too():
    spline = line_spline()
    for x in (line_points(), spline.x.T.clone()):
        x = x.clone().requires_grad_()
        y, log_slope = spline(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(slope, torch.exp(log_slope), rtol=1e-10, atol=0)
        y = y.detach().requires_grad_()
        (inverse_slope,) = torch.autograd.grad(spline.inverse(y).sum(), y)
        torch.testing.assert_close(inverse_slope, torch.exp(-log_slope.detach()), rtol=1e-7, atol=0)


def test_a_map_of_the_line_goes_through_its_knots_with_their_slopes():
    spline = line_spline()
    y, log_slope = spline(spline.x.T)
    torch.testing.assert_close(y, spline.y.T)
    torch.testing.assert_close(log_slope, spline.slopes.T.log(), rtol=1e-10, atol=1e-12)
    beyond, same = spline(spline.x[:, -1] + 10)
    torch.testing.assert_close(beyond, spline.y[:, -1] + 10 * spline.slopes[:, -1])
    torch.testing.assert_close(same, spline.slopes[:, -1].log())


def test_a_map_of_the_line_keeps_leading_dims():
    spline, x = line_spline(), line_points()[:24].reshape(2, 3, 4, 3)
    y, log_slope = spline(x)
    assert y.shape == log_slope.shape == x.shape
    torch.testing.assert_close(y.reshape(-1, 3), spline(x.reshape(-1, 3))[0])
    assert spline(x[:0])[0].shape == (0, 3, 4, 3)


def test_knots_that_nearly_meet_leave_the_inverse_finite():
    x = torch.tensor([[-1.0, 0.0, 1e-9, 2e-9, 1.0]], dtype=torch.float64)
    y = torch.tensor([[-1.0, -1e-12, 0.0, 1e-12, 5.0]], dtype=torch.float64)
    spline = LineSpline(x, y, torch.tensor([[1.0, 20.0, 0.05, 20.0, 1.0]], dtype=torch.float64))
    points = torch.cat([torch.linspace(-1e-9, 3e-9, 100, dtype=torch.float64), x[0]])[:, None]
    back = spline.inverse(spline(points)[0])
    torch.testing.assert_close(back, points, rtol=1e-6, atol=1e-13)


def zuko_spline(phi: Tensor) -> Any:
    """zuko's map of the same numbers, (..., 3 K - 1)."""
    transforms = pytest.importorskip("zuko.transforms")
    bins = (phi.shape[-1] + 1) // 3
    return transforms.MonotonicRQSTransform(*phi.split([bins, bins, bins - 1], -1), bound=5.0, slope=1e-3)


def spline_step(phi: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    z, log_slope, *_ = SplineStep.apply(phi, t, 5.0, 1e-3)
    return z, log_slope


@pytest.mark.parametrize("bins", [2, 8])
def test_a_step_of_a_spline_is_that_of_zuko_with_its_derivatives(bins, generator):
    phi = 3 * torch.randn(400, 3, 3 * bins - 1, generator=generator, dtype=torch.float64)
    t = 3 * torch.randn(400, 3, generator=generator, dtype=torch.float64)
    assert 0.02 < float((t.abs() > 5).double().mean()) < 0.5  # control: both parts of the map are asked for
    of_z, of_slope = (torch.randn(400, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    answers = []
    for call in (
        spline_step,
        lambda phi, t: zuko_spline(phi).call_and_ladj(t),
    ):
        arguments = phi.clone().requires_grad_(), t.clone().requires_grad_()
        values = call(*arguments)
        answers.append([*values, *torch.autograd.grad(values, arguments, (of_z, of_slope))])
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_a_step_of_a_spline_agrees_with_finite_differences(generator):
    phi = torch.randn(20, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    t = torch.linspace(-6, 6, 20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spline_step, (phi, t))
    assert torch.autograd.gradgradcheck(spline_step, (phi, t))


def test_a_step_of_a_spline_can_be_mapped_over_rows(generator):
    phi = torch.randn(7, 11, generator=generator, dtype=torch.float64)
    t = torch.linspace(-6, 6, 7, dtype=torch.float64)
    mapped = torch.func.vmap(torch.func.grad_and_value(lambda phi, t: sum(spline_step(phi, t)), (0, 1)))
    ((by_phi, by_t), value) = mapped(phi, t)
    phi.requires_grad_(), t.requires_grad_()
    expected = sum(spline_step(phi, t))
    torch.testing.assert_close(value, expected)
    for ours, theirs in zip((by_phi, by_t), torch.autograd.grad(expected.sum(), (phi, t)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_step_of_a_spline_is_finite_at_its_knots_and_ends():
    # Equal bins have their knots at known points; the map is the identity beyond the ends.
    t = torch.tensor([-5.0, -2.5, 0.0, 2.5, 5.0, 5.0 + 1e-6, -1e30, 1e30], dtype=torch.float32)
    phi = torch.zeros(8, 11, requires_grad=True)
    z, log_slope = spline_step(phi, t)
    (z.sum() + log_slope.sum()).backward()
    torch.testing.assert_close(z.detach(), t)
    torch.testing.assert_close(log_slope.detach(), torch.zeros(8))
    assert bool(torch.isfinite(phi.grad).all())
