"""Tests of dependence, direction and law, with p-values from shuffles, sign changes or simulations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from ..flow import ConditionalFlow, evaluation_mode
from ..norms import Euclidean

_OPERATIONS = 2e10  # most multiplications for a test, about a second or two
_SHUFFLE = 20  # number of columns whose products take as long as shuffling a score
_FEWEST_ROWS = 500
_ROUNDING = 1e-9
_SIMULATED = 20_000  # numbers n d up to which the null law of second moments is simulated
_NUMBERS = 2e7  # largest n d
_MOST_PRODUCTS = 300
_MOST_PAIRS, _FEWEST_PAIRS = 1500, 200
_FIRST_SHUFFLES = 64  # shuffles before early stopping is first checked
_MOST_FEATURE_PAIRS = 100  # includes all pairs of up to 14 features
_RANK, _SPARE = 48, 8  # kernel functions that are kept, and extra ones for accuracy
_KERNEL_ROWS = 1000
_KERNEL_COORDINATES = 64
_NORM_WEIGHT = 1 / 8  # weight of the norm relative to coordinates: more hides correlations, less scales


class Outcome(NamedTuple):
    """A statistic, and the probability of one as large under the null hypothesis."""

    statistic: float
    p_value: float
    n: int
    """Number of rows used."""
    simulated: bool = True
    """Whether the p-value is exact, from simulation, rather than asymptotic."""


def random_part(n: int, most: int, generator: torch.Generator) -> Tensor:
    """Indices of at most ``most`` of n rows, drawn at random if there are more."""
    return torch.arange(n) if n <= most else torch.randperm(n, generator=generator)[:most]


@dataclass(frozen=True, eq=False)
class Dependence:
    """Outcome of a permutation test."""

    p_value: float
    """p-value of the strongest block: share of shuffles, including the data, with a block as strong."""
    strength: Tensor
    """(b,) standardised sum of squared correlations of each block; -inf for one without columns."""
    adjusted: Tensor
    """(b,) p-value of each block, adjusted for the b blocks."""

    @property
    def statistic(self) -> float:
        """Strength of the strongest block."""
        return float(self.strength.max())

    @property
    def strongest(self) -> int:
        """Index of the strongest block."""
        return int(self.strength.argmax())


def permutation_test(
    columns: Tensor,
    blocks: Tensor,
    scores: Tensor,
    *,
    count: int,
    permutations: int,
    generator: torch.Generator,
    enough: int | None = None,
) -> Dependence:
    r"""Test of independence of columns and scores, by shuffling the rows of one of them.

    .. math:: T = \max_b \frac{S_b - k_b}{\sqrt{2 k_b}}, \qquad
              S_b = \frac1n \sum_{c \in b,\, l} \Big( \sum_i \varphi_{ic} \psi_{il} \Big)^2,
              \qquad k_b = \sum_{c \in b,\, l} \overline{\varphi_c^2} \, \overline{\psi_l^2}.

    The level is exact for every n if the rows are exchangeable (independent rows are; rows of a time series
    are not): :math:`P(p \le \alpha) \le \alpha`. This also holds if the test stops early, at the l-th
    shuffle, because ``enough`` shuffles are as strong as the data: then :math:`p = \text{enough} / l` (Besag
    and Clifford, 1991).

    Args:
        columns: (n, c) functions of one side, centred.
        blocks: (c,) index of the block to which each column belongs, 0 to b - 1.
        scores: (n, m) functions of the other side, centred.
        count: number of blocks b.
        permutations: largest number of shuffles.
        generator: source of randomness.
        enough: number of shuffles as strong as the data after which the test stops; None for no early stop.
    """
    n, m = scores.shape
    c = len(blocks)
    if c == 0 or m == 0:
        return Dependence(1.0, torch.full((count,), -math.inf), torch.ones(count))
    size = torch.zeros(count, dtype=torch.float64).index_add_(0, blocks, (columns**2).mean(0))
    size = size * (scores**2).mean(0).sum()
    narrow, wide = (scores, columns) if m <= c else (columns, scores)
    across = narrow.T.contiguous()

    def strengths(orders: list[Tensor]) -> Tensor:
        """Strength of every block after each of k shuffles, (b, k)."""
        shuffled = torch.cat([across[:, order] for order in orders])
        square = ((shuffled @ wide) ** 2 / n).reshape(len(orders), len(across), -1)
        square = square.sum(1 if m <= c else 2).T
        total = torch.zeros(count, len(orders), dtype=torch.float64).index_add_(0, blocks, square)
        return ((total - size[:, None]) / (2 * size[:, None]).sqrt()).nan_to_num(nan=-math.inf)

    observed = strengths([torch.arange(n)])[:, 0]
    limit = observed - _ROUNDING * observed.abs()  # values equal up to summation order count as equal
    exceeded, done = torch.zeros(count, dtype=torch.float64), 0
    most = rows_at_a_time(n * len(across))
    step = most if enough is None else min(_FIRST_SHUFFLES, most)
    while done < permutations:
        orders = [torch.randperm(n, generator=generator) for _ in range(min(step, permutations - done))]
        as_strong = strengths(orders).amax(0) >= limit[:, None]
        if enough is not None:
            running = exceeded[observed.argmax()] + as_strong[observed.argmax()].cumsum(0)
            if running[-1] >= enough:
                last = int((running >= enough).long().argmax()) + 1
                adjusted = (exceeded + as_strong[:, :last].sum(1)) / (done + last)
                return Dependence(float(adjusted.min()), observed, adjusted)
        exceeded += as_strong.sum(1)
        done, step = done + len(orders), min(2 * step, most)
    adjusted = (1 + exceeded) / (1 + permutations)
    return Dependence(float(adjusted.min()), observed, adjusted)


def affordable_rows(columns: int, scores: int, permutations: int) -> int:
    """Number of rows for a permutation test of a second or two: 10,000 for 1,000 columns and one score.

    The smaller set of the two is shuffled, and counts as the scores.
    """
    columns, scores = max(columns, scores), min(columns, scores)
    return max(_FEWEST_ROWS, int(_OPERATIONS / (2 * (columns + _SHUFFLE) * scores * permutations)))


def rank_polynomials(values: Tensor) -> tuple[Tensor, Tensor]:
    r"""Orthonormal polynomials of degrees 1 and 2 in the ranks of each column, and the column's index.

    They detect trends along a column and differences between its middle and its ends, and they span all
    functions of a column with three values. Because of the ranks they are invariant to outliers and scale. A
    column with two values has only degree 1; a constant column has none.

    Args:
        values: (n, p), infinities allowed.

    Returns:
        (n, c) columns of mean 0 and mean square 1, and (c,) indices 0 to p - 1 of the columns they belong to.
    """
    from scipy.stats import rankdata

    n, p = values.shape
    ranks = torch.from_numpy(rankdata(values.numpy(), axis=0))
    centred = (2 * ranks - 1) / n - 1  # mid-ranks on [-1, 1], with mean 0
    first, has_first = _unit(centred)
    square = first**2 - (first**2).mean(0)
    second, has_second = _unit(square - first * (first * square).mean(0))
    columns = torch.cat([first[:, has_first], second[:, has_second]], 1)
    index = torch.arange(p)
    return columns, torch.cat([index[has_first], index[has_second]])


def pairs_of_features(p: int, generator: torch.Generator) -> Tensor:
    """(k, 2) pairs j < k of p features, independent of the data: all of them, or 100 at random."""
    pairs = torch.combinations(random_part(p, _MOST_FEATURE_PAIRS, generator).sort().values)
    return pairs[random_part(len(pairs), _MOST_FEATURE_PAIRS, generator)]


def rank_products(values: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Products of the ranks of two columns, orthogonal to functions of either column, and the pair's index.

    Args:
        values: (n, p).
        pairs: (k, 2) columns to multiply.

    Returns:
        (n, c) columns of mean 0 and mean square 1, orthogonal to the rank polynomials of both factors, and
        (c,) indices 0 to k - 1 of their pairs. Products that are functions of one column are left out.
    """
    single, index = rank_polynomials(values)
    first = torch.zeros(values.shape, dtype=torch.float64)
    degree_one = torch.arange(len(index)) < len(index.unique())
    first[:, index[degree_one]] = single[:, degree_one]
    products = []
    for j, k in pairs.tolist():
        product = first[:, j] * first[:, k]
        alone = single[:, (index == j) | (index == k)]
        product = (product - product.mean())[:, None]
        products.append(product - alone @ torch.linalg.lstsq(alone, product).solution)
    if not products:
        return single[:, :0], index[:0]
    columns, present = _unit(torch.cat(products, 1))
    return columns[:, present], torch.arange(len(pairs))[present]


def normal_scores(values: Tensor) -> Tensor:
    """Standard normal quantiles of the ranks of each column, (n, k) -> (n, k); 0 for a constant column."""
    from scipy.stats import rankdata

    return torch.special.ndtri((torch.from_numpy(rankdata(values.numpy(), axis=0)) - 0.5) / len(values))


def round_latents(directions: Tensor, logit: Tensor, generator: torch.Generator) -> Tensor:
    r"""Latents as a cloud that is close to N(0, I) for a correct model, and the score of their norm.

    The norms are replaced by their ranks, on the scale of :math:`\chi_d`. For a correct model the cloud is
    then independent of x even if the law of the norm depends on x.

    Args:
        directions: (n, d) latents divided by their norms.
        logit: (n,) log odds of the latent PIT.
        generator: source of random coordinates, used if there are more than 64 coordinates.

    Returns:
        (n, k + 1) coordinates, the last one being the normal score of the norm with weight 1/8.
    """
    from scipy.stats import chi, rankdata

    n, d = directions.shape
    radius = torch.from_numpy(chi.ppf((rankdata(logit.numpy()) - 0.5) / n, d))
    cloud = radius[:, None] * directions
    if d > _KERNEL_COORDINATES:
        random = torch.randn(d, _KERNEL_COORDINATES, dtype=torch.float64, generator=generator)
        cloud = cloud @ random / math.sqrt(d)
    return torch.cat([cloud, math.sqrt(_NORM_WEIGHT * cloud.shape[1]) * normal_scores(logit[:, None])], 1)


def kernel_columns(values: Tensor, generator: torch.Generator) -> Tensor:
    """The 48 strongest functions of a centred Gaussian kernel whose width is the median distance.

    The sum of their squared covariances with those of another kernel is the Hilbert-Schmidt independence
    criterion, up to weaker functions.

    Args:
        values: (n, k).
        generator: source of the random vectors used to find them.
    """
    n = len(values)
    distance = torch.cdist(values, values)
    width = distance[torch.triu(torch.ones_like(distance, dtype=torch.bool), 1)].median().clamp(min=1e-100)
    kernel = torch.exp(-0.5 * (distance / width) ** 2)
    kernel = kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
    random = torch.randn(n, min(n, _RANK + _SPARE), dtype=torch.float64, generator=generator)
    basis = torch.linalg.qr(kernel @ (kernel @ random)).Q
    size, vectors = torch.linalg.eigh(basis.T @ kernel @ basis)
    return (basis @ vectors * size.clamp(min=0).sqrt())[:, -_RANK:]


def kernel_rows(n: int, generator: torch.Generator) -> Tensor:
    """Rows for a kernel test, at most 1,000."""
    return random_part(n, _KERNEL_ROWS, generator)


def _unit(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Columns scaled to mean square 1, and a mask of those that are not zero."""
    size = (columns**2).mean(0).sqrt()
    present = size > 1e-6
    return columns / torch.where(present, size, 1.0), present


def unit_directions(z: Tensor, generator: torch.Generator) -> Tensor:
    r"""Directions :math:`\omega = z / |z|`, (n, d) -> (n, d) float64; a random one for z = 0."""
    z = z.to(device="cpu", dtype=torch.float64)
    largest = z.abs().amax(1, keepdim=True)
    z = z / torch.where(largest > 0, largest, 1.0)  # squares of extreme z would over- or underflow
    size = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    random = Euclidean().sample_direction((len(z),), z.shape[1], generator)
    return torch.where(size > 0, z / torch.where(size > 0, size, 1.0), random)


def usable_rows(dim: int) -> int:
    """Largest number of rows whose directions are tested: 20 million numbers in total."""
    return max(1000, int(_NUMBERS / dim))


def mean_direction_test(omega: Tensor, *, permutations: int, generator: torch.Generator) -> Outcome:
    r"""Rayleigh's test of a zero mean direction.

    .. math:: R = n d \, |\bar\omega|^2,

    approximately :math:`\chi^2_d` for uniform directions. The p-value comes from random sign changes of the
    rows. It is exact for every n and d if :math:`\omega` and :math:`-\omega` have the same law, so the test
    detects shifts but not stretched directions (see :func:`second_moment_test`). For d = 1 it is the sign
    test.

    Args:
        omega: (n, d) unit vectors.
        permutations: number of sign changes.
        generator: source of randomness.
    """
    omega = omega[random_part(len(omega), affordable_rows(omega.shape[1], 1, permutations), generator)]
    n, d = omega.shape
    observed = float((omega.sum(0) ** 2).sum())
    exceeded = 0
    for done in range(0, permutations, step := rows_at_a_time(n)):
        shape = (min(step, permutations - done), n)
        signs = _random_signs(shape, generator)
        exceeded += int((((signs @ omega) ** 2).sum(1) >= observed * (1 - _ROUNDING)).sum())
    return Outcome(d / n * observed, (1 + exceeded) / (1 + permutations), n)


def second_moment_test(omega: Tensor, *, simulations: int, generator: torch.Generator) -> Outcome:
    r"""Bingham's test of uniform directions, based on second moments.

    .. math:: B = \frac{n d (d + 2)}{2} \Big( \operatorname{tr} T^2 - \frac1d \Big)
              \approx \chi^2_{(d - 1)(d + 2)/2}, \qquad T = \frac1n \sum_i \omega_i \omega_i^\top.

    For every n and d, its mean equals that of the chi-squared law and its variance is smaller by the factor
    1 - 1/n. Up to n d = 20,000 the p-value comes from simulated uniform directions and is exact; beyond, it
    comes from the chi-squared law. The trace uses the smaller of the d x d and n x n matrices, and fewer rows
    if both are large.

    Args:
        omega: (n, d) unit vectors, d >= 2.
        simulations: number of simulated sets of directions.
        generator: source of randomness.
    """
    from scipy.stats import chi2

    n, d = omega.shape
    if d < 2:
        raise ValueError("In one dimension directions are signs, which have no second moments.")
    most = int(max(_OPERATIONS / d**2, math.sqrt(_OPERATIONS / d)))
    omega = omega[random_part(n, most, generator)]
    n = len(omega)
    observed = float(_bingham(omega))
    if n * d > _SIMULATED:
        return Outcome(observed, float(chi2.sf(observed, (d - 1) * (d + 2) / 2)), n, simulated=False)
    exceeded = 0
    for done in range(0, simulations, step := rows_at_a_time(n * d)):
        drawn = Euclidean().sample_direction((min(step, simulations - done), n), d, generator)
        exceeded += int((_bingham(drawn) >= observed).sum())
    return Outcome(observed, (1 + exceeded) / (1 + simulations), n)


def direction_columns(omega: Tensor) -> tuple[Tensor, Tensor, bool]:
    r"""First and second moments of directions as columns of a dependence test.

    Args:
        omega: (n, d) unit vectors.

    Returns:
        (n, c) centred columns :math:`\sqrt d \omega_j` and, for d from 2 to 23, the products
        :math:`\omega_j \omega_k`; (c,) their blocks 0 and 1; and whether products are included. The weights
        make both blocks invariant to rotations.
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


def _random_signs(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randint(2, shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)


def _bingham(omega: Tensor) -> Tensor:
    """The statistic of directions, (..., n, d) -> (...)."""
    n, d = omega.shape[-2:]
    gram = omega.mT @ omega if d <= n else omega @ omega.mT
    return n * d * (d + 2) / 2 * ((gram**2).sum((-2, -1)) / n**2 - 1 / d)


def energy_test(z: Tensor, drawn: Tensor, *, permutations: int, generator: torch.Generator) -> Outcome:
    r"""Energy test of latents against as many draws of the base at the same features.

    .. math:: E = \frac1n \sum_{i, j} \big( |z_i - z'_j| + |z'_i - z_j| - |z_i - z_j| - |z'_i - z'_j| \big)
              = \frac1n s^\top K s, \qquad s = (1, \dots, 1).

    If the model is correct, the latent and the draw of a row are exchangeable, so s has random signs. The
    p-value is exact for every n, even if the base depends on x.

    Args:
        z: (n, d) latents.
        drawn: (n, d) draws of the base, the i-th at the features of the i-th row.
        permutations: number of random exchanges.
        generator: source of randomness.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z, drawn = torch.randn(2, 300, 2, generator=generator)
        >>> energy_test(z + 0.5, drawn, permutations=199, generator=generator).p_value
        0.005
    """
    z, drawn = z.to(torch.float64), drawn.to(torch.float64)
    if z.shape != drawn.shape:
        raise ValueError(
            f"z {tuple(z.shape)} and drawn {tuple(drawn.shape)} must have the same shape (n, d)."
        )
    across = torch.cdist(z, drawn)
    kernel = across + across.T - torch.cdist(z, z) - torch.cdist(drawn, drawn)
    n = len(z)
    signs = torch.cat([torch.ones(1, n, dtype=torch.float64), _random_signs((permutations, n), generator)])
    # Single-precision products take half the time; values equal up to their rounding count as equal.
    unit = (kernel / kernel.abs().max().clamp(min=torch.finfo(torch.float64).tiny)).float()
    energies = ((signs.float() @ unit).double() * signs).sum(1)
    observed, exchanged = energies.split([1, permutations])
    rounding = torch.finfo(torch.float32).eps * float(unit.abs().sum())
    exceeded = int((exchanged >= observed - rounding).sum())
    return Outcome(float(kernel.sum()) / n, (1 + exceeded) / (1 + permutations), n)


def base_test(
    model: ConditionalFlow,
    x: Tensor | None,
    z: Tensor,
    *,
    permutations: int,
    generator: torch.Generator,
) -> Outcome:
    """``energy_test`` of a model's latents z (n, d) at x (n, p) or None, on at most 1,500 rows."""
    n, d = z.shape
    most = int(min(_MOST_PAIRS, max(_FEWEST_PAIRS, _NUMBERS / d)))
    part = random_part(n, most, generator)
    with torch.no_grad(), evaluation_mode(model):
        base = model(None if x is None else x[part]).base
        drawn = base.sample((len(part),), generator).cpu()
    return energy_test(z[part], drawn, permutations=permutations, generator=generator)
