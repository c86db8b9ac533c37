"""Maps of the dependence between latent coordinates: correlation by x, rotation, layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .._internal.features import AdditiveFeatures, ProductFeatures, ProductSearch
from .._internal.smoothers import RidgeFit, RidgeSmoother, Smoother, find_clear_gains, fit_ridge
from .maps import LARGEST, AffineMap, Chain, CrossFitted, LatentMap, fit_log_scale, winsorize
from .marginals import cross_fit_marginals

MOST_CORRELATED = 16  # coordinates: their pairs have a function of x each
_STARTS, _STEPS = 3, 100  # of the search for a rotation
_LAYERS, _CLIP = 8, 3.0  # at most; nats that one row may gain or lose in one


class CorrelationMap(LatentMap):
    r""":math:`z' = e^{-s(x)} \odot L(x)^{-1} z`: the Cholesky factor of the covariance is a function of x.

    .. math:: z'_j = e^{-s_j(x)} \Big(z_j - \sum_{k < j} c_{jk}(x)\, z_k\Big)

    The regression coefficients c may have any values: the covariance they stand for is always positive
    definite.

    Args:
        slopes: c, a smoother with d (d - 1) / 2 answers, row by row below the diagonal; they are held within
            [-limit, limit].
        log_scale: s, a smoother with d answers, held within the same limits.
        limit: largest absolute value of both.
    """

    def __init__(self, slopes: Smoother, log_scale: Smoother, limit: float = LARGEST) -> None:
        super().__init__()
        dim = log_scale.answers
        if slopes.answers != dim * (dim - 1) // 2:
            raise ValueError(f"{dim} coordinates have {dim * (dim - 1) // 2} slopes, got {slopes.answers}.")
        if not 0 <= limit < math.inf:
            raise ValueError(f"limit must be finite and not negative, got {limit}.")
        self.slopes, self.log_scale, self.limit = slopes, log_scale, limit

    @property
    def dim(self) -> int:
        return self.log_scale.answers

    def forward(self, z: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        below, log_scale = self._at(x)
        z = z.to(torch.float64)
        z = (z - (below @ z[..., None])[..., 0]) * torch.exp(-log_scale)
        return z, -log_scale.sum(-1).expand(z.shape[:-1])

    def inverse(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        below, log_scale = self._at(x)
        z = z.to(torch.float64) * torch.exp(log_scale)
        factor = torch.eye(self.dim, dtype=z.dtype, device=z.device) - below
        factor = factor.expand(*z.shape[:-1], self.dim, self.dim)
        return torch.linalg.solve_triangular(factor, z[..., None], upper=False, unitriangular=True)[..., 0]

    def _at(self, x: Tensor | None) -> tuple[Tensor, Tensor]:
        """Slopes (..., d, d) below the diagonal and log scales (..., d)."""
        if x is None:
            raise ValueError("This map depends on x: pass the features.")
        slopes = self.slopes(x).clamp(-self.limit, self.limit)
        below = slopes.new_zeros(*slopes.shape[:-1], self.dim, self.dim)
        j, k = torch.tril_indices(self.dim, self.dim, -1)
        below[..., j, k] = slopes
        return below, self.log_scale(x).clamp(-self.limit, self.limit)


def cross_fit_correlation(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z' = e^{-s(x)} \odot L(x)^{-1} z`, each entry of L a function of x.

    .. math:: z_j \approx \sum_{k < j} c_{jk}(x)\, z_k, \qquad c_{jk}(x) = a_{jk} + b_{jk}^\top \phi(x)

    is linear in a and b: a ridge regression for each coordinate, whose penalty held-out errors choose. The
    features have products of two columns of x for coordinates whose held-out error these lower by more than
    its standard error; rows are mapped by products that the other folds chose. What the regression leaves has
    the scale :math:`e^{s_j(x)}`.

    Args:
        z: (n, d) latents.
        x: (n, p) features.
        fold: (n,) fold of each row.
        weights: (n,) of the rows.
    """
    if x is None:
        raise ValueError("A map that depends on x needs features.")
    calm, mapped = winsorize(z), z.clone()
    additive = AdditiveFeatures.fit(x)
    columns = additive(x)
    fits = {j: _regress(calm, j, columns, fold, weights) for j in range(1, z.shape[1])}
    promising, chosen = _choose_products(calm, ProductSearch(additive, columns), fits, fold, weights)
    richer = {j: _regress(calm, j, columns, fold, weights, chosen) for j in promising}
    crossed = [
        j
        for j, fit in richer.items()
        if bool(find_clear_gains(fits[j], fit, calm[:, j : j + 1], fold, weights))
    ]
    features = chosen[-1] if crossed else additive
    slopes = [z.new_zeros(0, 1 + len(features))]
    for j in fits:
        fit = richer[j] if j in crossed else fits[j]
        own = fit.coefficients.reshape(j, -1)
        slopes.append(torch.nn.functional.pad(own, (0, 1 + len(features) - own.shape[1])))
        for number, (coefficients, _) in enumerate(fit.by_fold):
            rows = fold == number
            at_x = chosen[number].extend(columns[rows]) if j in crossed else columns[rows]
            mapped[rows, j] -= _predict(coefficients, at_x, z[rows, :j])
    table = torch.cat(slopes)
    rest, log_scale, held_out = fit_log_scale(x, z, mapped, fold, weights)
    slopes_of_x = RidgeSmoother(features, table[:, 1:].T.contiguous(), table[:, 0].contiguous())
    return CrossFitted(CorrelationMap(slopes_of_x, log_scale), rest, -held_out.sum(-1))


def _regress(
    z: Tensor,
    j: int,
    columns: Tensor,
    fold: Tensor,
    weights: Tensor,
    products: Sequence[ProductFeatures] = (),
) -> RidgeFit:
    """Regression of coordinate j of z (n, d) on those before it, with slopes that depend on columns (n, m).

    Columns are extended by products, if there are any: in the fit without each of the folds by its own, in
    that of all rows by the last.
    """

    def design(columns: Tensor) -> Tensor:
        earlier = z[:, :j, None]
        return torch.cat([earlier, earlier * columns[:, None]], 2).flatten(1)

    designs = (design(part.extend(columns)) for part in products[:-1]) if products else None
    whole = products[-1].extend(columns) if products else columns
    return fit_ridge(design(whole), z[:, j : j + 1], fold, weights, centred=False, designs=designs)


def _predict(coefficients: Tensor, columns: Tensor, earlier: Tensor) -> Tensor:
    """A coordinate (n,) from those before it (n, j), by coefficients (j (1 + m), 1) at columns (n, m)."""
    table = coefficients.reshape(earlier.shape[1], -1)
    slopes = table[:, 0] + columns @ table[:, 1:].T
    return (slopes.clamp(-LARGEST, LARGEST) * earlier).sum(1)


def _choose_products(
    z: Tensor, search: ProductSearch, fits: Mapping[int, RidgeFit], fold: Tensor, weights: Tensor
) -> tuple[list[int], list[ProductFeatures]]:
    """Coordinates of z (n, d) that products may help to predict, and these: by fold, and last of all rows.

    What tells is the gradient of the squared error by each slope: the error times an earlier coordinate.
    """

    def gradients(predictions: Iterable[Tensor]) -> Tensor:
        parts = [(z[:, j] - own)[:, None] * z[:, :j] for j, own in zip(fits, predictions, strict=True)]
        return torch.cat([z[:, :0], *parts], 1)

    def left_by(coefficients: Sequence[Tensor]) -> Tensor:
        pairs = zip(fits, coefficients, strict=True)
        return gradients(_predict(own, search.columns, z[:, :j]) for j, own in pairs)

    found = search.find_promising(gradients(fit.held_out[:, 0] for fit in fits.values()), weights)
    coordinates = torch.tril_indices(z.shape[1], z.shape[1], -1, device=z.device)[0]
    promising = torch.unique(coordinates[found]).tolist()
    if not promising:
        return [], []
    parts = zip(*(fit.by_fold for fit in fits.values()), strict=True)
    by_fold = [[coefficients for coefficients, _ in part] for part in parts]
    whole = [fit.coefficients for fit in fits.values()]
    return promising, search.choose_by_fold(map(left_by, [*by_fold, whole]), fold, weights)


def cross_fit_rotation(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The rotation :math:`z' = W z` whose coordinates are least normal: maps of each can repair them.

    W is found by independent component analysis (the fixed-point iteration with the contrast log cosh, from
    several starts) and has the order and signs that bring it nearest to the identity. Under a law of the
    Euclidean norm alone it changes nothing; it is made for the map of marginals behind it. All rows have a
    hand in W: rotations of single folds would differ in the order of their axes, and a rotation has no
    scale by which it could adapt to a row.

    Args:
        z: (n, d) latents.
        x: not needed.
        fold: not needed.
        weights: (n,) of the rows.
    """
    step = AffineMap(torch.zeros_like(z[0]), find_rotation(z, weights))
    return CrossFitted(step, *step(z))


def cross_fit_layers(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    """Rotations and maps of marginals in turn, as long as held-out likelihood rises: a small flow.

    Each layer turns the latent to the directions in which it is least normal, and maps these to normal
    scores. Enough of them make any cloud round, also one of several modes.

    Args:
        z: (n, d) latents.
        x: not needed.
        fold: (n,) fold of each row.
        weights: (n,) of the rows.
    """
    steps: list[LatentMap] = []
    total = torch.zeros_like(weights)
    for _ in range(_LAYERS):
        rotation = cross_fit_rotation(z, x, fold, weights)
        layer = cross_fit_marginals(rotation.z, x, fold, weights)
        gain = layer.log_abs_det + 0.5 * (z**2 - layer.z**2).sum(1)
        if float(weights @ gain.clamp(-_CLIP, _CLIP)) <= 0:
            break
        z, total = layer.z, total + layer.log_abs_det
        steps += [rotation.map, layer.map]
    return CrossFitted(Chain(steps), z, total)


def find_rotation(z: Tensor, weights: Tensor) -> Tensor:
    """Orthogonal matrix (d, d) whose rows are the least normal directions of z (n, d)."""
    share, dim = weights / weights.sum(), z.shape[1]
    centred = z - share @ z
    variances, axes = torch.linalg.eigh((centred * share[:, None]).T @ centred)
    white = centred @ (axes / variances.clamp(min=1e-8 * float(variances.max())).sqrt()) @ axes.T
    source = torch.Generator().manual_seed(0)
    starts = [torch.eye(dim, dtype=z.dtype)] + [
        torch.linalg.qr(torch.randn(dim, dim, generator=source, dtype=z.dtype)).Q for _ in range(_STARTS - 1)
    ]
    found = [_rotate(white, share, start.to(z.device)) for start in starts]
    strengths = [float(_negentropy(white @ rotation.T, share).sum()) for rotation in found]
    return _nearest_to_identity(found[strengths.index(max(strengths))])


def _rotate(white: Tensor, share: Tensor, rotation: Tensor) -> Tensor:
    """A local optimum of the contrast, from a start (d, d)."""
    for _ in range(_STEPS):
        score = torch.tanh(white @ rotation.T)
        update = (score * share[:, None]).T @ white - (share @ (1 - score**2))[:, None] * rotation
        left, _, right = torch.linalg.svd(update)
        before, rotation = rotation, left @ right
        if float(1 - (before * rotation).sum(1).abs().min()) < 1e-7:
            break
    return rotation


def _negentropy(y: Tensor, share: Tensor) -> Tensor:
    """How far columns of variance 1 are from normal, (n, d) -> (d,): by one odd and one even moment."""
    odd = share @ (y * torch.exp(-(y**2) / 2))
    even = share @ y.abs() - math.sqrt(2 / math.pi)
    return 36 / (8 * math.sqrt(3) - 9) * odd**2 + even**2 / (2 - 6 / math.pi)


def _nearest_to_identity(rotation: Tensor) -> Tensor:
    """The rows in the order, and with the signs, that put the largest entries on the diagonal."""
    from scipy.optimize import linear_sum_assignment

    _, rows = linear_sum_assignment(-rotation.T.abs().cpu().numpy())
    ordered = rotation[torch.as_tensor(rows, device=rotation.device)]
    return ordered * torch.where(ordered.diagonal() < 0, -1.0, 1.0)[:, None]
