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

MOST_CORRELATED = 16  # most coordinates: each pair has its own function of x
_STARTS, _STEPS = 3, 20  # starts and steps of the search for a rotation; more steps do not improve it
_LAYERS, _CLIP = 8, 3.0  # most layers; nats to which the gain or loss of a row in one layer is clipped


class CorrelationMap(LatentMap):
    r""":math:`z' = e^{-s(x)} \odot L(x)^{-1} z`, with a Cholesky factor of the covariance that depends on x.

    .. math:: z'_j = e^{-s_j(x)} \Big(z_j - \sum_{k < j} c_{jk}(x)\, z_k\Big)

    The implied covariance is positive definite for any values of the regression coefficients c.

    Args:
        slopes: c, a smoother with d (d - 1) / 2 outputs, row by row below the diagonal, clipped to [-limit,
            limit].
        log_scale: s, a smoother with d outputs, clipped to the same limits.
        limit: largest absolute value of both.
    """

    def __init__(self, slopes: Smoother, log_scale: Smoother, limit: float = LARGEST) -> None:
        super().__init__()
        dim = log_scale.answers
        if slopes.answers != dim * (dim - 1) // 2:
            raise ValueError(f"{dim} coordinates need {dim * (dim - 1) // 2} slopes, got {slopes.answers}.")
        if not 0 <= limit < math.inf:
            raise ValueError(f"limit must be finite and at least 0, got {limit}.")
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

    The model is linear in a and b and is fitted by ridge regression for each coordinate, with the penalty
    chosen by held-out errors. Products of two columns of x are included for coordinates whose held-out error
    they reduce by more than its standard error; the products for a row are chosen on the other folds. The
    residuals have the scale :math:`e^{s_j(x)}`.

    Args:
        z: (n, d) latents.
        x: (n, p) features.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
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

    If there are products, they extend the columns: those of each fold in the fit without it, the last ones in
    the fit to all rows.
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
    """Coordinates of z (n, d) that products may help to predict, and the products, by fold and for all rows.

    They are chosen by the gradient of the squared error in each slope: the error times an earlier coordinate.
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
    r"""The rotation :math:`z' = W z` to the least normal coordinates, for maps of single coordinates.

    W is found by independent component analysis (the fixed-point iteration with the contrast log cosh, from
    several starts) with the order and signs that bring it closest to the identity. It does not affect a law
    of the Euclidean norm, so it is fitted to all rows, and the returned latents are not out of fold. It does
    affect maps of marginals: see :func:`cross_fit_rotated_marginals`.

    Args:
        z: (n, d) latents.
        x: not used.
        fold: not used.
        weights: (n,) weights of the rows.
    """
    step = AffineMap(torch.zeros_like(z[0]), find_rotation(z, weights))
    return CrossFitted(step, *step(z))


def cross_fit_rotated_marginals(
    z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor, *, nested: bool = False
) -> CrossFitted:
    """A rotation followed by a map of each coordinate, both fitted without the fold they are applied to.

    Rows appear less normal in directions that were fitted to them. Therefore each fold has a rotation fitted
    to the other rows. Its axes are matched in order and sign to the nearest axes of the rotation of all rows,
    because the weights of laws are chosen separately for each axis.

    Args:
        z: (n, d) latents.
        x: not used.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
        nested: see :func:`cross_fit_marginals`.
    """
    rotation = find_rotation(z, weights)
    turns = []
    for number in range(int(fold.max()) + 1):
        seen = fold != number
        turns.append(_match_axes(find_rotation(z[seen], weights[seen]), rotation) @ rotation.T)
    step = AffineMap(torch.zeros_like(z[0]), rotation)
    marginals = cross_fit_marginals(z @ rotation.T, x, fold, weights, turns, nested=nested)
    return marginals._replace(map=Chain([step, marginals.map]))


def cross_fit_layers(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    """A small flow of alternating rotations and maps of marginals, grown while held-out likelihood rises.

    Each layer rotates the latent to its least normal directions and maps these to normal scores. Enough
    layers make any distribution normal, even one with several modes. A layer is added if it increases the
    likelihood of rows that were not used to fit its rotation, its laws and their weights. It is fitted to
    in-sample latents of the layers before it, because out of fold each fold would have its own directions and
    the next rotation would find less. Therefore the returned latents are out of fold for the last layer only.

    Args:
        z: (n, d) latents.
        x: not used.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
    """
    steps: list[LatentMap] = []
    answer = CrossFitted(Chain([]), z, torch.zeros_like(weights))
    before = answer.log_abs_det
    for _ in range(_LAYERS):
        layer = cross_fit_rotated_marginals(z, x, fold, weights, nested=True)
        gain = layer.log_abs_det + 0.5 * (z**2 - layer.z**2).sum(1)
        if float(weights @ gain.clamp(-_CLIP, _CLIP)) <= 0:
            break
        steps.append(layer.map)
        answer = CrossFitted(Chain(steps), layer.z, before + layer.log_abs_det)
        z, change = layer.map(z)
        before = before + change
    return answer


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
    return _match_axes(found[strengths.index(max(strengths))], torch.eye(dim).to(z))


def _rotate(white: Tensor, share: Tensor, rotation: Tensor) -> Tensor:
    """A local optimum of the contrast, from a start (d, d)."""
    weighted = white * share[:, None]
    for _ in range(_STEPS):
        score = torch.tanh(white @ rotation.T)
        update = score.T @ weighted - (1 - share @ score.square())[:, None] * rotation
        left, _, right = torch.linalg.svd(update)
        before, rotation = rotation, left @ right
        if float(1 - (before * rotation).sum(1).abs().min()) < 1e-7:
            break
    return rotation


def _negentropy(y: Tensor, share: Tensor) -> Tensor:
    """Distance of columns of variance 1 from normality, (n, d) -> (d,), by one odd and one even moment."""
    odd = share @ (y * torch.exp(-(y**2) / 2))
    even = share @ y.abs() - math.sqrt(2 / math.pi)
    return 36 / (8 * math.sqrt(3) - 9) * odd**2 + even**2 / (2 - 6 / math.pi)


def _match_axes(rotation: Tensor, target: Tensor) -> Tensor:
    """The rows (d, d) with the order and signs that bring them nearest to those of a target."""
    from scipy.optimize import linear_sum_assignment

    _, rows = linear_sum_assignment(-(target @ rotation.T).abs().cpu().numpy())
    ordered = rotation[torch.as_tensor(rows, device=rotation.device)]
    return ordered * torch.where((ordered * target).sum(1) < 0, -1.0, 1.0)[:, None]
