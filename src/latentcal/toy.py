"""Toy problems: conditional laws of y given x with known densities, to sample and to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Chi2,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    constraints,
)

__all__ = [
    "HOUSEHOLD_TARGETS",
    "MultivariateStudentT",
    "Toy",
    "arc",
    "bimodal",
    "heteroscedastic_arc",
    "heteroscedastic_linear",
    "household_table",
    "mixture_of_normals",
    "multivariate_normal",
    "student_t",
    "two_moons",
]
HOUSEHOLD_TARGETS = ("food", "housing", "energy")
_REGIONS = ("north", "east", "south", "west")
_TENURES = ("owner", "tenant", "other")


@dataclass(frozen=True)
class Toy:
    r"""A known law of y given x, with :math:`x \sim U(0, 1)^p`.

    Args:
        name: name of the toy.
        x_dim: number of features p; 0 if y does not depend on x (x is then (n, 0)).
        y_dim: number of outputs d.
        law: (..., p) -> distribution with batch shape (...) and event shape (d,), in the dtype of x.

    Examples:
        >>> toy = heteroscedastic_linear()
        >>> x, y = toy.sample(5, generator=torch.Generator().manual_seed(0))
        >>> x.shape, y.shape, toy.conditional(x).log_prob(y).shape
        (torch.Size([5, 1]), torch.Size([5, 2]), torch.Size([5]))
    """

    name: str
    x_dim: int
    y_dim: int
    law: Callable[[Tensor], Distribution]

    def conditional(self, x: Tensor) -> Distribution:
        """The true law of y at x, (..., p): batch shape (...), event shape (d,)."""
        if x.ndim == 0 or x.shape[-1] != self.x_dim:
            raise ValueError(f"{self.name} has {self.x_dim} features, got x of shape {tuple(x.shape)}.")
        return self.law(x)

    def sample(
        self, n: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """n independent pairs: x (n, p) and y (n, d).

        Args:
            n: number of pairs.
            generator: source of randomness on the CPU; torch's global one by default.
            dtype: of x and y.
        """
        x = torch.rand(n, self.x_dim, generator=generator, dtype=dtype)
        with draw_from(generator):
            return x, self.conditional(x).sample()


def arc(scale: float = 0.05, components: int = 100) -> Toy:
    r"""One moon: a mixture of normals along a half circle, without features.

    .. math:: y \sim \tfrac1K \sum_k N\big(1.3\, (\cos a_k, \tfrac12 - \sin a_k), \sigma^2 I\big),
              \qquad a_k = \pi \tfrac{k}{K - 1}, \quad k = 0, \dots, K - 1.

    Args:
        scale: standard deviation across the arc.
        components: number K of normals.
    """
    return Toy("arc", 0, 2, lambda x: _normals(1.3 * _half_circle(x, components), scale))


def heteroscedastic_arc(scale: float = 0.05, components: int = 100) -> Toy:
    """The arc with a radius of 1.3 - x: the spread of y shrinks with x."""

    def law(x: Tensor) -> Distribution:
        return _normals((1.3 - x[..., None]) * _half_circle(x, components), scale)

    return Toy("heteroscedastic_arc", 1, 2, law)


def two_moons(scale: float = 0.1, components: int = 100) -> Toy:
    """Two interleaved half circles of radius 1, each a mixture of normals, without features."""

    def law(x: Tensor) -> Distribution:
        curve = _half_circle(x, components)
        lower = curve + x.new_tensor([1.0, 0.0])
        upper = curve * x.new_tensor([1.0, -1.0]) + x.new_tensor([0.0, 0.5])
        return _normals(torch.cat([lower, upper], dim=-2), scale)

    return Toy("two_moons", 0, 2, law)


def bimodal() -> Toy:
    r"""Two normals in the plane: as x grows, the first gains weight and widens while the second narrows.

    .. math:: y \mid x \sim w\, N\big((2, 2), s^2 I\big) + (1 - w)\, N\big((-2, -2), (\tfrac32 - s)^2 I\big),
              \qquad w = 0.3 + 0.4 x, \quad s = 0.5 + 0.5 x.
    """

    def law(x: Tensor) -> Distribution:
        centres = x.new_tensor([[2.0, 2.0], [-2.0, -2.0]]).expand(*x.shape[:-1], 2, 2)
        scales = torch.cat([0.5 + 0.5 * x, 1.0 - 0.5 * x], dim=-1)
        weights = torch.cat([0.3 + 0.4 * x, 0.7 - 0.4 * x], dim=-1)
        return _normals(centres, scales[..., None], weights)

    return Toy("bimodal", 1, 2, law)


def multivariate_normal(dim: int = 2, correlation: float = 0.5) -> Toy:
    """A normal with mean 0, variances 1 and the same correlation between all outputs, without features."""
    tril = _equicorrelation(dim, correlation)

    def law(x: Tensor) -> Distribution:
        return MultivariateNormal(x.new_zeros(*x.shape[:-1], dim), scale_tril=tril.to(x))

    return Toy("multivariate_normal", 0, dim, law)


def mixture_of_normals(dim: int = 2, components: int = 3, scale: float = 0.5) -> Toy:
    r"""A mixture of normals with different weights along a curve, without features.

    .. math:: y \sim \sum_{k=1}^K \tfrac{2k}{K (K+1)} N(c_k, \sigma^2 I),
              \qquad c_{kj} = 3 \cos\big(\pi j (k - \tfrac12) / K\big), \quad j = 1, \dots, d.

    Args:
        dim: number of outputs d.
        components: number K of normals.
        scale: standard deviation of each normal.
    """
    k = torch.arange(1, components + 1, dtype=torch.float64)
    centres = 3 * torch.cos(math.pi * torch.outer(k - 0.5, torch.arange(1, dim + 1)) / components)

    def law(x: Tensor) -> Distribution:
        leading = x.shape[:-1]
        return _normals(
            centres.to(x).expand(*leading, components, dim), scale, k.to(x).expand(*leading, components)
        )

    return Toy("mixture_of_normals", 0, dim, law)


def student_t(dim: int = 2, degrees_of_freedom: float = 3.0, correlation: float = 0.5) -> Toy:
    """A multivariate Student-t around 0 with equicorrelated scale matrix, without features."""
    tril = _equicorrelation(dim, correlation)

    def law(x: Tensor) -> Distribution:
        return MultivariateStudentT(degrees_of_freedom, x.new_zeros(*x.shape[:-1], dim), tril.to(x))

    return Toy("student_t", 0, dim, law)


def heteroscedastic_linear(
    x_dim: int = 1, y_dim: int = 2, contrast: float = 8.0, degrees_of_freedom: float = math.inf
) -> Toy:
    r"""A linear mean with noise that grows with x, so linear regression is correct only in the mean.

    .. math:: y = W x + \tfrac14 c^{\bar x} L \varepsilon, \qquad W_{jk} = \cos(j + 2k), \qquad
              \varepsilon \sim N(0, I) \text{ or } t_\nu(0, I),

    with :math:`\bar x` the mean of the features and :math:`L L^\top` a correlation of 1/2 between outputs.

    Args:
        x_dim: number of features p.
        y_dim: number of outputs d.
        contrast: ratio c of the largest to the smallest noise.
        degrees_of_freedom: nu of the noise, which is normal if nu is infinite.
    """
    tril = _equicorrelation(y_dim, 0.5)
    weight = torch.cos(torch.arange(y_dim, dtype=torch.float64)[:, None] + 2 * torch.arange(x_dim))

    def law(x: Tensor) -> Distribution:
        noise = 0.25 * contrast ** x.mean(-1)[..., None, None] * tril.to(x)
        mean = x @ weight.to(x).T
        if math.isinf(degrees_of_freedom):
            return MultivariateNormal(mean, scale_tril=noise)
        return MultivariateStudentT(degrees_of_freedom, mean, noise)

    return Toy("heteroscedastic_linear", x_dim, y_dim, law)


class MultivariateStudentT(Distribution):
    r"""Multivariate Student-t law with location ``loc`` and scale matrix :math:`L L^\top`.

    .. math:: y = \mu + L z / \sqrt{g / \nu}, \qquad z \sim N(0, I), \quad g \sim \chi^2_\nu.

    Args:
        degrees_of_freedom: nu > 0.
        loc: mu, (..., d).
        scale_tril: L, (..., d, d) lower triangular with positive diagonal; broadcasts with ``loc``.
    """

    arg_constraints: dict[str, Any] = {  # noqa: RUF012 (torch's convention)
        "loc": constraints.real_vector,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, degrees_of_freedom: float, loc: Tensor, scale_tril: Tensor) -> None:
        if not degrees_of_freedom > 0:
            raise ValueError(f"degrees_of_freedom must be positive, got {degrees_of_freedom}.")
        self.degrees_of_freedom = degrees_of_freedom
        batch = np.broadcast_shapes(loc.shape[:-1], scale_tril.shape[:-2])
        self.loc = loc.expand(*batch, loc.shape[-1])
        self.scale_tril = scale_tril.expand(*batch, *scale_tril.shape[-2:])
        super().__init__(torch.Size(batch), loc.shape[-1:])

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, (..., d) -> (...)."""
        nu, d = self.degrees_of_freedom, self.loc.shape[-1]
        residual = (value - self.loc)[..., None]
        tril = self.scale_tril.expand(*residual.shape[:-2], d, d)
        z = torch.linalg.solve_triangular(tril, residual, upper=False)[..., 0]
        constant = math.lgamma((nu + d) / 2) - math.lgamma(nu / 2) - d / 2 * math.log(nu * math.pi)
        log_det = torch.log(self.scale_tril.diagonal(dim1=-2, dim2=-1)).sum(-1)
        return constant - log_det - (nu + d) / 2 * torch.log1p((z**2).sum(-1) / nu)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of shape (*sample_shape, ..., d), differentiable in loc and scale_tril."""
        shape = torch.Size(sample_shape) + self.batch_shape
        z = torch.randn(*shape, *self.event_shape, dtype=self.loc.dtype, device=self.loc.device)
        g = Chi2(self.loc.new_tensor(self.degrees_of_freedom)).sample(shape)
        z = z / torch.sqrt(g / self.degrees_of_freedom)[..., None]
        return self.loc + (self.scale_tril @ z[..., None])[..., 0]


def household_table(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns (n,) of a synthetic table of households: an identifier, seven features and three expenses.

    Expenses grow with income and with the number of persons. They are skewed, depend on each other, and are
    more variable for larger incomes, which a linear model with normal errors cannot describe.

    Args:
        n: number of rows.
        seed: seed of the rows; other seeds give other households of the same kind.

    Examples:
        >>> table = household_table(3)
        >>> list(table)[-3:], table["food"].shape
        (['food', 'housing', 'energy'], (3,))
    """
    random = np.random.default_rng(seed)
    region = random.integers(len(_REGIONS), size=n)
    tenure = random.choice(len(_TENURES), size=n, p=(0.55, 0.4, 0.05))
    urban = random.random(n) < 0.7
    age = random.integers(20, 90, size=n)
    persons = 1 + random.poisson(1.3, size=n).clip(max=12)
    income = np.exp(10.3 + 0.15 * np.log(persons) - ((age - 50) / 45) ** 2 + 0.5 * random.standard_normal(n))
    rooms = (1 + persons * 0.6 + income / 4e4 + random.gamma(2.0, 0.7, size=n)).round().clip(max=20)
    common = random.standard_normal(n)
    noise = 0.25 + 0.1 * (income > np.median(income) if n else 0)
    shocks = noise * (0.7 * common + 0.7 * random.standard_normal((len(HOUSEHOLD_TARGETS), n)))
    level = np.log(income)
    logs = (
        1.9 + 0.55 * level + 0.35 * np.log(persons) + shocks[0],
        1.2 + 0.65 * level + 0.3 * (tenure == 1) + 0.15 * urban + 1.4 * shocks[1],
        1.6 + 0.35 * level + 0.4 * np.log(rooms) + 0.1 * (region == 0) + 1.1 * shocks[2],
    )
    expenses = {name: np.exp(log).round(2) for name, log in zip(HOUSEHOLD_TARGETS, logs, strict=True)}
    return {
        "household": np.array([f"h{seed}-{i}" for i in range(n)]),
        "region": np.array(_REGIONS)[region],
        "tenure": np.array(_TENURES)[tenure],
        "urban": urban,
        "age": age,
        "persons": persons,
        "rooms": rooms.astype(int),
        "income": income.round(2),
        **expenses,
    }


def _normals(centres: Tensor, scale: float | Tensor, weights: Tensor | None = None) -> Distribution:
    """Mixture of spherical normals: centres (..., k, d), weights (..., k), equal by default."""
    weights = torch.ones_like(centres[..., 0]) if weights is None else weights
    scales = torch.as_tensor(scale, dtype=centres.dtype, device=centres.device).expand_as(centres)
    return MixtureSameFamily(Categorical(weights), Independent(Normal(centres, scales), 1))


def _half_circle(x: Tensor, points: int) -> Tensor:
    """Points of the half circle (cos a, 1/2 - sin a), for every x: (..., p) -> (..., points, 2)."""
    angle = torch.linspace(0, math.pi, points, dtype=x.dtype, device=x.device)
    curve = torch.stack([torch.cos(angle), 0.5 - torch.sin(angle)], dim=-1)
    return curve.expand(*x.shape[:-1], points, 2)


def _equicorrelation(dim: int, correlation: float) -> Tensor:
    """Cholesky factor (d, d) of the matrix with ones on the diagonal and ``correlation`` elsewhere."""
    if not -1 / max(dim - 1, 1) < correlation < 1:
        raise ValueError(
            f"The common correlation of {dim} outputs must lie strictly between "
            f"{-1 / max(dim - 1, 1):.3g} and 1, got {correlation}."
        )
    matrix = torch.full((dim, dim), correlation, dtype=torch.float64).fill_diagonal_(1.0)
    return torch.linalg.cholesky(matrix)


@contextmanager
def draw_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let torch's distributions draw from ``generator`` instead of the global one inside the block."""
    if generator is None:
        yield
        return
    if generator.device.type != "cpu":
        raise ValueError(f"Toys are drawn on the CPU; the generator is on {generator.device}.")
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.get_rng_state())
