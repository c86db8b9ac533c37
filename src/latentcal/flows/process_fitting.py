"""Fits a Gaussian process to each output, exact on few rows and with inducing points on many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import ROWS
from .._internal.smoothers import standardizer
from .gaussian_process import KernelRegression, KernelSpread, kernel_between

_MOST_POINTS = 500  # most rows as kernel points; other rows only affect the coefficients
_MANY_ROWS = 2000
_JITTER = 1e-8
_SMALLEST_NOISE = 1e-4  # smallest noise variance for an output of variance 1
_FIRST_ROWS = 250  # rows for the first steps; all rows continue from there
_FOLD_ROWS = 400  # rows for the steps without a fold
_SAME, _OWN = (True, 0.4), (False, 0.8)  # penalties on deviations from the common length scale
_CLEAR = 20.0  # nats by which another start must be better


class Process(NamedTuple):
    """Mean and spread of a Gaussian process for each output."""

    mean: KernelRegression
    spread: KernelSpread


class ProcessFit(NamedTuple):
    """A Gaussian process fitted to all rows, and those fitted without each of the folds."""

    mean: KernelRegression
    spread: KernelSpread
    by_fold: list[Process]


def fit_gaussian_process(
    x: Tensor, y: Tensor, fold: Tensor, weights: Tensor, *, seed: int = 0, tried: int = 400
) -> ProcessFit:
    """A Gaussian process of y (n, d) at x (n, p), with a separate kernel for each output.

    The kernel maximises the marginal likelihood, with a penalty on unequal length scales, on at most
    ``tried`` random rows. With up to 500 rows the process is exact; with more, it has 500 inducing points.
    The process without a fold uses a kernel that was optimised for some more steps without that fold; with
    2,000 rows or more, it uses the kernel of all rows, because overfitting of the kernel is then negligible.

    Args:
        x: (n, p) features.
        y: (n, d) outputs.
        fold: (n,) fold of each row.
        weights: (n,) weights of the rows, of mean 1; the noise of a row is divided by its weight.
        seed: seed of the random rows.
        tried: largest number of rows to fit the kernel to.
    """
    mean, scale = standardizer(x)
    rows = (x - mean) / scale
    level = weights @ y / weights.sum()
    spread = ((y - level).square().T @ weights / weights.sum()).sqrt()
    targets, weights = (y - level) / spread, weights.clamp(min=1e-6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    points = order[:_MOST_POINTS].sort().values

    def infer(seen: Tensor, kernels: Sequence[_Kernel]) -> Process:
        own = seen.nonzero().reshape(-1)
        at = own if len(points) == len(rows) else points
        known = rows[own], weights[own]
        posteriors = [
            _Exact(known[0], target[own], known[1], kernel)
            if len(at) == len(own)
            else _Sparse(known[0], rows[at], target[own], known[1], kernel)
            for target, kernel in zip(targets.T, kernels, strict=True)
        ]
        return _join(posteriors, mean, scale, rows[at], level, spread)

    def learn(drawn: Tensor, starts: Sequence[_Kernel | None]) -> list[_Kernel]:
        return [
            _learn_kernel(rows[drawn], target[drawn], weights[drawn], start)
            for target, start in zip(targets.T, starts, strict=True)
        ]

    kernels = learn(order[:tried], [None] * y.shape[1])
    by_fold = []
    for number in range(int(fold.max()) + 1):
        few = order[fold[order] != number][: min(tried, _FOLD_ROWS)]
        by_fold.append(infer(fold != number, learn(few, kernels) if len(rows) < _MANY_ROWS else kernels))
    return ProcessFit(*infer(torch.ones_like(fold, dtype=torch.bool), kernels), by_fold)


def _join(
    posteriors: Sequence[_Posterior],
    mean: Tensor,
    scale: Tensor,
    points: Tensor,
    level: Tensor,
    spread: Tensor,
) -> Process:
    """The processes of the outputs, joined in units of the outputs, with levels and spreads (d,)."""
    kernels = [posterior.kernel for posterior in posteriors]
    regression = KernelRegression(
        mean,
        scale,
        points,
        torch.stack([kernel.length for kernel in kernels]),
        torch.stack([kernel.signal for kernel in kernels]) * spread**2,
        torch.stack([kernel.slope for kernel in kernels]) * spread**2,
        torch.stack([posterior.coefficients for posterior in posteriors]) / spread[:, None],
        level,
    )
    precision = torch.stack([posterior.precision for posterior in posteriors])
    noise = torch.stack([kernel.noise for kernel in kernels])
    return Process(
        regression, KernelSpread(regression, precision / spread[:, None, None] ** 2, noise * spread**2)
    )


class _Posterior:
    """One output given the rows: its kernel, coefficients (m,) and precision (m, m) of points."""

    kernel: _Kernel
    coefficients: Tensor
    precision: Tensor


class _Exact(_Posterior):
    """Posterior whose points are the rows themselves."""

    def __init__(self, rows: Tensor, target: Tensor, weights: Tensor, kernel: _Kernel) -> None:
        self.kernel = kernel
        covariance = kernel(rows, rows) + torch.diag(kernel.noise / weights)
        self.precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        self.coefficients = self.precision @ target


class _Sparse(_Posterior):
    """Posterior of a process with inducing points (m, p)."""

    def __init__(
        self, rows: Tensor, points: Tensor, target: Tensor, weights: Tensor, kernel: _Kernel
    ) -> None:
        self.kernel, self.rows, self.points = kernel, rows, points
        weights = weights / kernel.noise
        identity = torch.eye(len(points), dtype=rows.dtype, device=rows.device)
        jitter = _JITTER * kernel.prior(points).max() * identity
        self.factor = torch.linalg.cholesky(kernel(points, points) + jitter)
        gram, cross = identity.clone(), torch.zeros_like(points[:, 0])
        for part in torch.arange(len(rows), device=rows.device).split(ROWS):
            white = self._whiten(part)
            gram += (white * weights[part]) @ white.T
            cross += white @ (weights * target)[part]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
        half = torch.linalg.solve_triangular(self.factor.T, identity - inverse, upper=True)
        precision = torch.linalg.solve_triangular(self.factor.T, half.T, upper=True)
        self.precision = (precision + precision.T) / 2
        known = (inverse @ cross)[:, None]
        self.coefficients = torch.linalg.solve_triangular(self.factor.T, known, upper=True)[:, 0]

    def _whiten(self, own: Tensor) -> Tensor:
        """Rows in coordinates in which the values at the points are independent, (b,) -> (m, b)."""
        return torch.linalg.solve_triangular(
            self.factor, self.kernel(self.points, self.rows[own]), upper=False
        )


class _Kernel(NamedTuple):
    """Kernel and noise of one output of variance 1."""

    parameters: Tensor
    """Logarithms of the common length scale, signal, slope and noise, and (p,) offsets of length scales."""

    @property
    def length(self) -> Tensor:
        return (self.parameters[0] + self.parameters[4:]).exp()

    @property
    def signal(self) -> Tensor:
        return self.parameters[1].exp()

    @property
    def slope(self) -> Tensor:
        return self.parameters[2].exp()

    @property
    def noise(self) -> Tensor:
        return self.parameters[3].exp()

    def __call__(self, one: Tensor, other: Tensor) -> Tensor:
        return kernel_between(one, other, self.length, self.signal, self.slope)

    def prior(self, rows: Tensor) -> Tensor:
        """k(x, x) at rows (n, p), (n,)."""
        return self.signal + self.slope * rows.square().mean(-1)


def _learn_kernel(rows: Tensor, target: Tensor, weights: Tensor, start: _Kernel | None = None) -> _Kernel:
    """The kernel with the largest penalised marginal likelihood, or a few steps from ``start`` towards it.

    The penalty on length scales that differ from the common one is logarithmic, so few differ much. A squared
    penalty finds some features that this one misses, but is more easily misled by chance. Its result is used
    as a second start, and must be clearly better.
    """
    evidence = _Evidence(rows, target, weights)
    if start is not None:
        return _Kernel(evidence.climb(start.parameters, len(rows), _SAME, 6)[0])
    # Length scales grow with the square root of the number of features, as distances do.
    usual = math.log(rows.shape[1]) / 2
    plain = torch.tensor([usual + 0.5, 0.0, -1.0, -1.5, *[0.0] * rows.shape[1]], dtype=torch.float64)
    same, loss = evidence.climb(plain, _FIRST_ROWS, _SAME, 25)
    own, other = evidence.climb(evidence.climb(plain, _FIRST_ROWS, _OWN, 15)[0], _FIRST_ROWS, _SAME, 15)
    best = own if other < loss - _CLEAR else same
    return _Kernel(evidence.climb(best, len(rows), _SAME, 20)[0] if len(rows) > _FIRST_ROWS else best)


class _Evidence:
    """Marginal likelihood of a kernel on standardised rows (n, p) with targets (n,) and weights (n,)."""

    def __init__(self, rows: Tensor, target: Tensor, weights: Tensor) -> None:
        self.rows, self.target, self.weights = rows, target, weights
        self.linear = rows @ rows.T / rows.shape[1]
        usual = math.log(rows.shape[1]) / 2
        self.expected = torch.tensor([usual + math.sqrt(2), 0.0, 0.0, -2.0], dtype=torch.float64)
        self.bounds = [(-4.0, 9.0), (-8.0, 5.0), (-12.0, 5.0), (math.log(_SMALLEST_NOISE), 2.0)]
        self.bounds += [(-6.0, 6.0)] * rows.shape[1]

    def climb(self, start: Tensor, n: int, penalty: tuple[bool, float], steps: int) -> tuple[Tensor, float]:
        """Parameters after the given number of steps on the first n rows, and their loss."""
        from scipy.optimize import minimize

        found = minimize(
            self.loss,
            start.numpy(),
            args=(n, *penalty),
            jac=True,
            method="L-BFGS-B",
            bounds=self.bounds,
            options={"maxiter": steps},
        )
        return torch.from_numpy(found.x), float(found.fun)

    def loss(self, values: np.ndarray, n: int, far: bool, width: float) -> tuple[float, np.ndarray]:
        r"""Negative log-likelihood and penalty, and their gradient.

        With the covariance K and :math:`a = K^{-1} y`, the derivative of the loss by a parameter is the trace
        of :math:`S\, \partial K` with :math:`S = (K^{-1} - a a^\top) / 2`. The derivative of the Matérn
        kernel by squared distances in units of the length scales is :math:`-\tfrac{5}{6} (1 + r) e^{-r}`.
        """
        kernel = _Kernel(torch.from_numpy(values))
        rows, target, linear = self.rows[:n] / kernel.length, self.target[:n], self.linear[:n, :n]
        noise = kernel.noise / self.weights[:n]
        size = rows.square().sum(1)
        r = (5 * (size[:, None] + size - 2 * rows @ rows.T)).clamp_(min=0).sqrt_()
        decay = kernel.signal * torch.exp(-r)
        matern = (1 + r + r * r / 3) * decay
        covariance = torch.add(matern, linear, alpha=float(kernel.slope))
        covariance.diagonal().add_(noise)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed):
            return math.inf, np.zeros_like(values)
        inverse = torch.cholesky_inverse(factor)
        solved = inverse @ target
        by_covariance = inverse.addr_(solved, solved, alpha=-1).mul_(0.5)
        by_square = (1 + r).mul_(decay).mul_(by_covariance).mul_(-5 / 6)
        by_length = -4 * ((by_square.sum(1) @ rows.square()) - (rows * (by_square @ rows)).sum(0))
        gap, own = kernel.parameters[:4] - self.expected, kernel.parameters[4:] / width
        gradient = torch.cat([gap / 9, by_length + (2 * own / (1 + own**2) if far else own) / width])
        gradient[0] += by_length.sum()
        gradient[1] += (by_covariance * matern).sum()
        gradient[2] += (by_covariance * linear).sum() * kernel.slope
        gradient[3] += by_covariance.diagonal() @ noise
        penalty = (torch.log1p(own**2) if far else own**2 / 2).sum() + gap.square().sum() / 18
        value = target @ solved / 2 + factor.diagonal().log().sum() + penalty
        return float(value), gradient.numpy()
