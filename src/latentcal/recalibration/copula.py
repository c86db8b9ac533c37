"""The map that changes only correlations, to those observed."""

from __future__ import annotations

import torch
from torch import Tensor

from .maps import AffineMap, CrossFitted, by_fold, winsorize

_SHAPE = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # weights of the target
_ORDERS = (0, 1, 2, 4)  # number of earlier outputs that each depends on in the target
_LONGEST = 64  # most outputs to treat as a sequence
_LEAST = 1e-6  # smallest residual variance given earlier outputs


def cross_fit_copula(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z' = \tilde R^{-1/2} z` with the correlations of the latents, shrunk towards a target.

    .. math:: \tilde R = (1 - a) R + a T_p

    It gives the outputs the dependence of the rows, like a Gaussian copula, and leaves the location and
    spread of each output unchanged. R is estimated from winsorised latents, and :math:`T_0 = I`. :math:`T_p`
    has the correlations of R up to lag p; larger lags follow from the assumption that each output depends
    only on the p outputs before it, as in a path. So few numbers can be estimated from few rows. a and p
    maximise the held-out Gaussian likelihood.

    Args:
        z: (n, d) latents.
        x: not used.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows.
    """
    calm, dim = winsorize(z), z.shape[1]
    orders = [p for p in _ORDERS if p < max(1, dim - 1) and (p == 0 or dim <= _LONGEST)]
    parts = [_Correlations(calm, weights, fold != f) for f in range(int(fold.max()) + 1)]
    scores = torch.stack(
        [
            sum((part.score(weights, fold == f, p) for f, part in enumerate(parts)), z.new_zeros(len(_SHAPE)))
            for p in orders
        ]
    )
    # Ties are resolved in favour of the lowest order and the most shrinkage.
    number = int(scores.max(1).values.argmax())
    shape = len(_SHAPE) - 1 - int(scores[number].flip(0).argmax())
    whole = _Correlations(calm, weights, torch.ones_like(fold, dtype=torch.bool))
    maps = [part.round(orders[number], _SHAPE[shape]) for part in (*parts, whole)]
    return CrossFitted(maps[-1], *by_fold(z, x, fold, list(maps[:-1])))


class _Correlations:
    """Correlations of some rows, and all rows in units of their standard deviations."""

    def __init__(self, z: Tensor, weights: Tensor, seen: Tensor) -> None:
        weight = weights[seen] / weights[seen].sum()
        mean = weight @ z[seen]
        spread = (weight @ (z[seen] - mean) ** 2).sqrt().clamp(min=1e-8)
        self.standard = (z - mean) / spread
        self.matrix = (self.standard[seen] * weight[:, None]).T @ self.standard[seen]
        self.matrix = self.matrix.diagonal_scatter(torch.ones_like(mean))

    def score(self, weights: Tensor, rows: Tensor, order: int) -> Tensor:
        """Log-likelihood of rows at every weight of the target, up to a constant."""
        root = self._whiten(order)
        variances, axes = torch.linalg.eigh(root @ self.matrix @ root.T)  # without the target
        shape = variances.new_tensor(_SHAPE)[:, None]
        shrunk = ((1 - shape) * variances + shape).clamp(min=_LEAST)
        squares = weights[rows] @ (self.standard[rows] @ root.T @ axes) ** 2
        log_abs_det = torch.log(root.diagonal()).sum() - 0.5 * torch.log(shrunk).sum(-1)
        return weights[rows].sum() * log_abs_det - 0.5 * (squares / shrunk).sum(-1)

    def round(self, order: int, shape: float) -> AffineMap:
        """The map for one target and its weight."""
        none = self.matrix.new_zeros(len(self.matrix))
        if order == 0 and shape == 1:
            return AffineMap(
                none, none + 1
            )  # the identity to the last bit: a rung that adds nothing must tie
        inverse = torch.linalg.inv(self._whiten(order))
        variances, axes = torch.linalg.eigh((1 - shape) * self.matrix + shape * inverse @ inverse.T)
        return AffineMap(none, (axes * variances.clamp(min=_LEAST).rsqrt()) @ axes.T)

    def _whiten(self, order: int) -> Tensor:
        """The triangular matrix that takes the dependence on the last ``order`` outputs out, (d, d)."""
        root = torch.eye(len(self.matrix)).to(self.matrix)
        for j in range(1, len(root) if order else 0):
            before = slice(max(0, j - order), j)
            inner = self.matrix[before, before] + _LEAST * torch.eye(min(j, order)).to(root)
            slopes = torch.linalg.solve(inner, self.matrix[before, j])
            left = (1 - slopes @ (2 * self.matrix[before, j] - self.matrix[before, before] @ slopes)).clamp(
                min=_LEAST
            )
            root[j, before], root[j, j] = -slopes / left.sqrt(), left.rsqrt()
        return root
