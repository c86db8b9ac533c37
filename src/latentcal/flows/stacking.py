"""Weights of regressions in a stack, from their held-out predictions."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_COMMON_ROWS = 50  # strength, in rows, of the shrinkage towards weights common to all outputs
_SHRINKAGE = 3.0  # penalty on weights of log scales
_LARGEST_SUM = 1.2  # largest sum of these weights
_FREEDOM = 4.0  # degrees of freedom of the t law of residuals for log scales


def stacking_weights(guesses: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Non-negative weights (j, d) of regressions with the smallest held-out squared error.

    The weights of an output are shrunk towards common weights of all outputs. They apply to deviations from
    the mean of y.

    Args:
        guesses: (j, n, d) held-out predictions.
        y: (n, d) outputs.
        weights: (n,) weights of the rows.
    """
    share = weights / weights.sum()
    level = share @ y
    spread = (share @ (y - level) ** 2).sqrt()
    guesses, aim = (guesses - level) / spread, (y - level) / spread
    gram = torch.einsum("jnd,n,knd->djk", guesses, share, guesses)
    cross = torch.einsum("jnd,n,nd->dj", guesses, share, aim)
    common = _non_negative(gram.mean(0), cross.mean(0))
    found = []
    for own, target in zip(gram, cross, strict=True):
        pull = _COMMON_ROWS / len(y) * own.diagonal().mean()
        found.append(_non_negative(own + pull * torch.eye(len(own)).to(own), target + pull * common))
    return torch.stack(found, 1)


def map_weights(z: Tensor, log_slope: Tensor, weights: Tensor) -> Tensor:
    r"""Weights (m,) of triangular maps in their mean, by maximum held-out likelihood.

    .. math:: \max_w \; \sum_i \log N\Big(\sum_m w_m z_{im};\, 0, I\Big)
              + \sum_{i, j} \log \sum_m w_m e^{s_{imj}}, \qquad w_m \ge 0, \quad \sum_m w_m = 1

    The objective is concave in w.

    Args:
        z: (m, n, d) latents.
        log_slope: s, (m, n, d) logarithms of the slopes.
        weights: (n,) weights of the rows.
    """
    from scipy.optimize import minimize

    latent, count = z.reshape(len(z), -1).numpy(), len(z)
    # Subtract the maximum, so that one very steep map does not overflow.
    top = log_slope.amax(0)
    slope = torch.exp(log_slope - top).reshape(count, -1).numpy()
    share = (weights / weights.sum())[:, None].expand(z.shape[1:]).reshape(-1).numpy()

    def loss(own: np.ndarray) -> tuple[float, np.ndarray]:
        mean, steep = own @ latent, np.maximum(own @ slope, 1e-300)
        value = share @ (mean**2 / 2 - np.log(steep))
        return float(value), latent @ (share * mean) - slope @ (share / steep)

    found = minimize(
        loss,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda own: own.sum() - 1, "jac": np.ones_like},
    ).x
    found = np.clip(found, 0.0, None)
    return torch.from_numpy(found / found.sum())


def _non_negative(gram: Tensor, cross: Tensor) -> Tensor:
    """The non-negative w that minimises w' G w / 2 - c' w, for G (j, j) and c (j,)."""
    from scipy.optimize import nnls

    jitter = 1e-10 * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
    factor = torch.linalg.cholesky(gram + jitter)
    aim = torch.linalg.solve_triangular(factor, cross[:, None], upper=False)[:, 0]
    return torch.from_numpy(nnls(factor.T.numpy(), aim.numpy())[0])


def log_scale_weights(guesses: Tensor, residuals: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""Weights (j, d) and levels (d,) of log scales, from held-out residuals.

    .. math:: \log s_k(x) = c_k + \sum_j w_{jk} g_{jk}(x), \qquad w_{jk} \ge 0, \quad \sum_j w_{jk} \le 1.2

    The weights maximise the likelihood of t-distributed residuals minus a small penalty, so a few outliers
    have little influence. The objective is concave in c and w. Levels are set so that standardised residuals
    have mean square 1.

    Args:
        guesses: g, (j, n, d) held-out log scales.
        residuals: (n, d) held-out residuals.
        weights: (n,) weights of the rows.
    """
    of_rows = weights.numpy()
    found = [
        _fit_log_scale(guesses[:, :, k].T.numpy(), residuals[:, k].numpy(), of_rows)
        for k in range(residuals.shape[1])
    ]
    levels, own = zip(*found, strict=True)
    return torch.from_numpy(np.stack(own, 1)), torch.tensor(levels, dtype=torch.float64)


def _fit_log_scale(
    columns: np.ndarray, residuals: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray]:
    """c and w of one output, for log scales (n, j), residuals (n,) and weights of the rows (n,)."""
    from scipy.optimize import minimize

    center, unit = columns.mean(0), math.sqrt(float(np.average(residuals**2, weights=weights))) or 1.0
    columns, square = columns - center, (residuals / unit) ** 2

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        log_scale = values[0] + columns @ values[1:]
        ratio = square * np.exp(-2 * log_scale) / _FREEDOM
        slope = weights * (1 - (_FREEDOM + 1) * ratio / (1 + ratio))
        penalty = _SHRINKAGE * values[1:]
        value = weights @ (log_scale + (_FREEDOM + 1) / 2 * np.log1p(ratio)) + penalty @ values[1:] / 2
        return value, np.r_[slope.sum(), columns.T @ slope + penalty]

    start, bounds = np.zeros(1 + columns.shape[1]), [(-20.0, 20.0)] + [(0.0, 1.0)] * columns.shape[1]
    own = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x[1:]
    own = own * min(1.0, _LARGEST_SUM / max(own.sum(), 1e-300))
    left = float(np.average(square * np.exp(-2 * columns @ own), weights=weights)) or 1.0
    return math.log(unit) + math.log(left) / 2 - float(center @ own), own
