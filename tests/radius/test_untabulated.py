"""Draws from laws that are soon dropped follow the laws themselves."""

import pytest
import torch

from latentcal.radius import Chi, ConditionalRadius, GammaKDE, ScaledRadius, StackedRadius
from uniformity import distance_to_uniform, uniform_limit

N, DRAWS = 400, 20_000
SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(N, 1, generator=SOURCE, dtype=torch.float64)
X = torch.cat([X, (X > 0).double()], 1)
RADII = torch.randn(N, 3, generator=SOURCE, dtype=torch.float64).norm(dim=1) * torch.exp(0.3 * X[:, 0])
LAWS = {
    "gamma kde": GammaKDE.fit(RADII),
    "scaled": ScaledRadius(Chi(3), 1.5, 0.8),
    "stacked": StackedRadius.fit(RADII, reference=Chi(3)),
    "with tail": StackedRadius.fit(RADII, reference=Chi(3)).with_tail(ScaledRadius(Chi(3), 9.0), 0.1),
    "smooth": ConditionalRadius.fit(RADII, X, reference=Chi(3)).given(X[:1]),
    "by group": ConditionalRadius.fit(RADII, X, reference=Chi(3), groups=1).given(X[:1]),
}


@pytest.mark.parametrize("name", LAWS)
def test_draws_without_a_table_follow_the_law(name):
    law = LAWS[name]
    draws = law.sample_untabulated((DRAWS, 1), torch.Generator().manual_seed(1))
    # In the core, at most 5 / (n + 1) of the law, draws are those of the mixture; else once in 10^6.
    limit = uniform_limit(DRAWS) + 5 / (N + 1)
    assert distance_to_uniform(law.cdf(draws).reshape(-1)) < limit
    assert distance_to_uniform(law.cdf(1.2 * draws).reshape(-1)) > limit  # control
