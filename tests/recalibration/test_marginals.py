"""Splines that make the coordinates of the latent normal."""

import pytest
import torch

from latentcal.recalibration.marginals import _interpolate, _score_within, _splines


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
