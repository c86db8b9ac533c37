"""Do latents look like draws of the base, in radius and direction alike?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..flow import ConditionalFlow, evaluation_mode

_MOST_ROWS, _FEWEST_ROWS = 1500, 200
_NUMBERS = 2e7  # n d at most
_ROUNDING = 1e-9


class EnergyTest(NamedTuple):
    """A statistic, and the probability of one as large where latents follow the base."""

    statistic: float
    p_value: float
    n: int
    """Rows that were used."""


def energy_test(z: Tensor, drawn: Tensor, *, permutations: int, generator: torch.Generator) -> EnergyTest:
    r"""Energy test of latents against as many draws of the base, made at the same features.

    .. math:: E = \frac1n \sum_{i, j} \big( |z_i - z'_j| + |z'_i - z_j| - |z_i - z_j| - |z'_i - z'_j| \big)
              = \frac1n s^\top K s, \qquad s = (1, \dots, 1).

    If the model is right, latent and draw of a row can change places: s then has random signs. The p-value
    is exact for every n, also where the base depends on x.

    Args:
        z: (n, d) latents.
        drawn: (n, d) draws of the base, the i-th at the features of the i-th row.
        permutations: random exchanges.
        generator: source of randomness.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z, drawn = torch.randn(2, 300, 2, generator=generator)
        >>> energy_test(z + 0.5, drawn, permutations=199, generator=generator).p_value
        0.005
    """
    z, drawn = z.to(torch.float64), drawn.to(torch.float64)
    if z.shape != drawn.shape:
        raise ValueError(f"z {tuple(z.shape)} and drawn {tuple(drawn.shape)} must have one shape (n, d).")
    across = torch.cdist(z, drawn)
    kernel = across + across.T - torch.cdist(z, z) - torch.cdist(drawn, drawn)
    n = len(z)
    observed = float(kernel.sum())
    signs = 2 * torch.randint(2, (permutations, n), generator=generator).to(torch.float64) - 1
    exchanged = ((signs @ kernel) * signs).sum(1)
    exceeded = int((exchanged >= observed - _ROUNDING * abs(observed)).sum())
    return EnergyTest(observed / n, (1 + exceeded) / (1 + permutations), n)


def base_test(
    model: ConditionalFlow,
    x: Tensor | None,
    z: Tensor,
    *,
    permutations: int,
    generator: torch.Generator,
) -> EnergyTest:
    """``energy_test`` of a model's latents z (n, d) at x (n, p) or None, on at most 1,500 rows."""
    n, d = z.shape
    most = int(min(_MOST_ROWS, max(_FEWEST_ROWS, _NUMBERS / d)))
    part = torch.arange(n) if n <= most else torch.randperm(n, generator=generator)[:most]
    with torch.no_grad(), evaluation_mode(model):
        base = model(None if x is None else x[part]).base
        drawn = base.sample((len(part),), generator).cpu()
    return energy_test(z[part], drawn, permutations=permutations, generator=generator)
