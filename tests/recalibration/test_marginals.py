"""Splines that make the coordinates of the latent normal."""

import pytest
import torch

from latentcal.radius.scaled import ascend, by_autograd
from latentcal.recalibration.marginals import _bend, _fit_bent, _interpolate, _score_within, _splines


def test_levels_are_found_between_the_nodes_of_an_increasing_function():
    nodes = torch.linspace(-8, 8, 161, dtype=torch.float64)
    scale = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    cdf = torch.special.ndtr(scale * nodes)
    wanted = torch.linspace(-3, 3, 33, dtype=torch.float64)
    found = _interpolate(torch.special.ndtr(wanted), cdf, nodes)
    # Linear between nodes 0.1 apart: off by less than the curvature, 0.1^2 / 8 |z|.
    torch.testing.assert_close(found, wanted / scale, rtol=0, atol=0.01)


@pytest.mark.parametrize("n", [50, 400])
def test_splines_reach_as_far_as_two_points_of_the_data(n, generator):
    z = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    fold = torch.arange(n) % 5
    for _, values, _ in _splines(z, fold, torch.ones(n, dtype=torch.float64)):
        torch.testing.assert_close(
            values[:, -1], torch.full((2,), _score_within(n)).double(), rtol=0.02, atol=0
        )
        torch.testing.assert_close(
            values[:, 0], -torch.full((2,), _score_within(n)).double(), rtol=0.02, atol=0
        )


def test_bent_laws_have_the_highest_penalised_likelihood(generator):
    """The closed derivatives lead to the maximum that those by autograd lead to."""
    nodes = torch.linspace(-8, 8, 161, dtype=torch.float64)
    centers = torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64)
    mass = 300 * torch.softmax(-((nodes - centers).abs() ** 1.5), 1)
    mass = mass * (0.1 + torch.rand(mass.shape, generator=generator, dtype=torch.float64)).sqrt()

    def likelihood(theta):
        score, log_slope = _bend(nodes.expand(3, -1), theta)
        fit = (mass * (-(score.clamp(-1e3, 1e3) ** 2) / 2 + log_slope)).sum(1)
        return fit - 2 * (theta[:, 2:] ** 2).sum(1)

    start, free = torch.zeros(3, 4, dtype=torch.float64), torch.ones(4, dtype=torch.bool)
    limit = torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    theta = _fit_bent(nodes, mass)
    torch.testing.assert_close(
        theta, ascend(by_autograd(likelihood), start, free=free, limit=limit), rtol=0, atol=1e-6
    )
    assert float(theta.abs().min()) > 1e-4  # control: every number has moved
