import pytest
import torch
from torch import distributions as td

from latentcal.adapters.student_fit import FREEDOMS, fit_student
from latentcal.base import student_t

N, DIM = 4000, 4


def points(freedom, scale, seed=0):
    source = torch.Generator().manual_seed(seed)
    return scale * student_t(DIM, freedom).sample((N,), source, torch.float64)


@pytest.mark.parametrize("freedom", [4.0, 20.0])
def test_scale_and_freedom_are_found(freedom):
    """Standard errors of the log scale are below 0.012 and 0.008."""
    fit = fit_student(points(freedom, 2.5))
    assert fit.scale == pytest.approx(2.5, rel=0.06)
    assert abs(FREEDOMS.index(fit.freedom) - FREEDOMS.index(freedom)) <= 1


def test_a_normal_sample_has_many_degrees_of_freedom():
    source = torch.Generator().manual_seed(0)
    assert fit_student(torch.randn(N, DIM, dtype=torch.float64, generator=source)).freedom >= 50


def test_the_log_density_is_that_of_the_law():
    z = points(6.0, 1.5)
    fit = fit_student(z)
    law = student_t(DIM, fit.freedom)
    expected = law.log_prob(z / fit.scale) - DIM * torch.log(torch.tensor(fit.scale, dtype=torch.float64))
    torch.testing.assert_close(fit.log_density((z**2).sum(-1), DIM), expected)


def test_it_is_a_maximum_of_the_likelihood():
    z = points(6.0, 1.5)
    square, fit = (z**2).sum(-1), fit_student(z)
    best = float(fit.log_density(square, DIM).mean())
    for other in (fit._replace(scale=1.05 * fit.scale), fit._replace(scale=0.95 * fit.scale)):
        assert float(other.log_density(square, DIM).mean()) < best


def test_precise_points_tell_a_shift():
    """Half of the points have a hundredth of the noise of the others, which tell next to nothing."""
    source = torch.Generator().manual_seed(0)
    scale = torch.where(torch.arange(N) % 2 == 0, 0.01, 1.0).to(torch.float64)[:, None]
    shift = torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    y = shift + scale * torch.randn(N, DIM, dtype=torch.float64, generator=source)
    design = torch.eye(DIM, dtype=torch.float64) / scale[..., None]
    fit = fit_student(y / scale, design)
    torch.testing.assert_close(fit.shift, shift, atol=2e-3, rtol=0)
    assert float((y.mean(0) - shift).abs().max()) > 2e-3  # control: a plain mean
    assert fit.scale == pytest.approx(1, rel=0.05)


def test_points_that_are_all_the_same_have_a_law():
    fit = fit_student(torch.zeros(30, 2, dtype=torch.float64))
    assert fit.scale > 0
    assert td.Normal(0.0, fit.scale).scale > 0
