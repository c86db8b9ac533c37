"""Is the direction of the latent uniform on the sphere, as that of a radial base is?"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..norms import Euclidean

_SIMULATED = 20_000  # numbers n d up to which the null law of second moments is simulated
_OPERATIONS = 2e10
_NUMBERS = 2e7  # n d at most
_CHUNK = 1 << 22  # numbers held at a time
_MOST_PRODUCTS = 300
_ROUNDING = 1e-9


class DirectionTest(NamedTuple):
    """A statistic, and the probability of one as large where the null hypothesis holds."""

    statistic: float
    p_value: float
    n: int
    """Rows that were used."""
    simulated: bool
    """Whether the p-value is exact, from simulation, and not from a limiting law."""


def unit_directions(z: Tensor, generator: torch.Generator) -> Tensor:
    r"""Directions :math:`\omega = z / |z|`, (n, d) -> (n, d) float64; a random one for z = 0."""
    z = z.to(device="cpu", dtype=torch.float64)
    largest = z.abs().amax(1, keepdim=True)
    z = z / torch.where(largest > 0, largest, 1.0)  # squares of very large or small z would leave the floats
    size = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    random = Euclidean().sample_direction((len(z),), z.shape[1], generator)
    return torch.where(size > 0, z / torch.where(size > 0, size, 1.0), random)


def usable_rows(dim: int) -> int:
    """Rows whose directions are looked at: 20 million numbers in all."""
    return max(1000, int(_NUMBERS / dim))


def mean_direction_test(omega: Tensor, *, permutations: int, generator: torch.Generator) -> DirectionTest:
    r"""Rayleigh's test: is the mean direction zero?

    .. math:: R = n d \, |\bar\omega|^2,

    about :math:`\chi^2_d` for uniform directions. The p-value comes from random changes of sign of the rows:
    it is exact for every n and d where :math:`\omega` and :math:`-\omega` have one law. So the test speaks
    of a shift and leaves stretched directions to :func:`second_moment_test`. For d = 1 it is the sign test.

    Args:
        omega: (n, d) unit vectors.
        permutations: sign changes.
        generator: source of randomness.
    """
    n, d = omega.shape
    if (most := max(500, int(_OPERATIONS / (2 * (d + 20) * permutations)))) < n:
        omega, n = omega[torch.randperm(n, generator=generator)[:most]], most
    observed = float((omega.sum(0) ** 2).sum())
    exceeded = 0
    for done in range(0, permutations, step := max(1, _CHUNK // n)):
        shape = (min(step, permutations - done), n)
        signs = 2 * torch.randint(2, shape, generator=generator).to(torch.float64) - 1
        exceeded += int((((signs @ omega) ** 2).sum(1) >= observed * (1 - _ROUNDING)).sum())
    return DirectionTest(d / n * observed, (1 + exceeded) / (1 + permutations), n, True)


def second_moment_test(omega: Tensor, *, simulations: int, generator: torch.Generator) -> DirectionTest:
    r"""Bingham's test: are all directions equally frequent, up to second moments?

    .. math:: B = \frac{n d (d + 2)}{2} \Big( \operatorname{tr} T^2 - \frac1d \Big)
              \approx \chi^2_{(d - 1)(d + 2)/2}, \qquad T = \frac1n \sum_i \omega_i \omega_i^\top.

    Its mean is that of the chi-squared law and its variance 1 - 1/n times that one's, for every n and d. Up
    to n d = 20,000 the p-value comes from simulated uniform directions and is exact, beyond from the
    chi-squared law. The trace is taken in the smaller of d x d and n x n, on fewer rows where both are large.

    Args:
        omega: (n, d) unit vectors, d >= 2.
        simulations: simulated sets of directions.
        generator: source of randomness.
    """
    from scipy.stats import chi2

    n, d = omega.shape
    if d < 2:
        raise ValueError("In one dimension a direction is a sign and has no second moments.")
    most = int(max(_OPERATIONS / d**2, math.sqrt(_OPERATIONS / d)))
    if most < n:
        omega, n = omega[torch.randperm(n, generator=generator)[:most]], most
    observed = float(_bingham(omega))
    if n * d > _SIMULATED:
        return DirectionTest(observed, float(chi2.sf(observed, (d - 1) * (d + 2) / 2)), n, False)
    exceeded = 0
    for done in range(0, simulations, step := max(1, _CHUNK // (n * d))):
        simulated = Euclidean().sample_direction((min(step, simulations - done), n), d, generator)
        exceeded += int((_bingham(simulated) >= observed).sum())
    return DirectionTest(observed, (1 + exceeded) / (1 + simulations), n, True)


def direction_columns(omega: Tensor) -> tuple[Tensor, Tensor, bool]:
    r"""First and second moments of directions as columns of a dependence test.

    Args:
        omega: (n, d) unit vectors.

    Returns:
        (n, c) centred columns :math:`\sqrt d \omega_j` and, for d from 2 to 23, the products
        :math:`\omega_j \omega_k`; (c,) their blocks 0 and 1; and whether the products are there. The weights
        make both blocks indifferent to rotations.
    """
    d = omega.shape[1]
    first = math.sqrt(d) * omega
    with_products = d > 1 and d * (d + 1) // 2 <= _MOST_PRODUCTS
    if not with_products:
        return first - first.mean(0), torch.zeros(d, dtype=torch.long), False
    j, k = torch.triu_indices(d, d)
    weight = torch.where(j == k, 0.5, 1.0).to(omega) * (d * (d + 2))
    columns = torch.cat([first, weight.sqrt() * omega[:, j] * omega[:, k]], 1)
    blocks = torch.cat([torch.zeros(d, dtype=torch.long), torch.ones(len(j), dtype=torch.long)])
    return columns - columns.mean(0), blocks, True


def _bingham(omega: Tensor) -> Tensor:
    """The statistic of directions, (..., n, d) -> (...)."""
    n, d = omega.shape[-2:]
    gram = omega.mT @ omega if d <= n else omega @ omega.mT
    return n * d * (d + 2) / 2 * ((gram**2).sum((-2, -1)) / n**2 - 1 / d)
