"""Mean and spread of Gaussian processes, stored as arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import check_shapes
from .._internal.smoothers import Smoother
from .._internal.validate import check_features

_FARTHEST = 1e6  # standard deviations at which features are clipped


class KernelRegression(Smoother):
    r"""The mean of a Gaussian process for each target, with a Matérn plus a linear kernel.

    .. math:: \hat t(x) = c + \sum_i \alpha_i\, k(x, x_i), \qquad
              k(x, x') = a \big(1 + r + \tfrac{r^2}{3}\big) e^{-r} + \tfrac bp \langle x, x' \rangle, \qquad
              r = \sqrt5 \Big(\sum_j \frac{(x_j - x'_j)^2}{\ell_j^2}\Big)^{1/2}

    Features are standardised.

    Args:
        mean: (p,) subtracted from the features.
        scale: (p,) positive divisors of the features.
        points: (m, p) standardised rows :math:`x_i`.
        length: (k, p) positive length scales of each target.
        signal: (k,) a, not negative.
        slope: (k,) b, not negative.
        coefficients: (k, m) :math:`\alpha`.
        level: (k,) c.
    """

    mean: Tensor
    scale: Tensor
    points: Tensor
    length: Tensor
    signal: Tensor
    slope: Tensor
    coefficients: Tensor
    level: Tensor

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        points: Tensor,
        length: Tensor,
        signal: Tensor,
        slope: Tensor,
        coefficients: Tensor,
        level: Tensor,
    ) -> None:
        super().__init__()
        shapes = {"mean": "p", "scale": "p", "points": "m p", "length": "k p", "signal": "k", "slope": "k"}
        values = (mean, scale, points, length, signal, slope, coefficients, level)
        tensors = dict(zip([*shapes, "coefficients", "level"], values, strict=True))
        shapes |= {"coefficients": "k m", "level": "k"}
        check_shapes(**{name: (tensor, shapes[name]) for name, tensor in tensors.items()})
        if not bool((scale > 0).all()) or not bool((length > 0).all()):
            raise ValueError("scale and length must be positive.")
        if not bool((signal >= 0).all()) or not bool((slope >= 0).all()):
            raise ValueError("signal and slope must not be negative.")
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @property
    def features(self) -> int:
        """Number of features p."""
        return len(self.mean)

    @property
    def answers(self) -> int:
        return len(self.level)

    def standardize(self, x: Tensor) -> Tensor:
        """Standardised features for the kernel, (..., p) -> (n, p)."""
        rows = check_features(x, self.features).to(torch.float64).reshape(-1, self.features)
        # Squares of larger values, which do not occur in data, might overflow.
        return ((rows - self.mean) / self.scale).clamp(-_FARTHEST, _FARTHEST)

    def kernel(self, rows: Tensor) -> Tensor:
        """k between standardised rows (n, p) and the points, (k, n, m)."""
        parts = zip(self.length, self.signal, self.slope, strict=True)
        return torch.stack([kernel_between(rows, self.points, *own) for own in parts])

    def forward(self, x: Tensor) -> Tensor:
        """Estimated targets, (..., p) -> (..., k)."""
        rows = self.standardize(x)
        size = rows_at_a_time(self.answers * len(self.points))
        parts = [self.combine(self.kernel(part)) for part in rows.split(size)]
        return torch.cat(parts).reshape(*x.shape[:-1], self.answers)

    def combine(self, kernel: Tensor) -> Tensor:
        """Estimated targets (n, k) from the kernel (k, n, m)."""
        return (kernel @ self.coefficients[..., None])[..., 0].T + self.level


class KernelSpread(Smoother):
    r"""Log predictive scale of a Gaussian process for each output.

    .. math:: s(x)^2 = k(x, x) - k(x, X)\, P\, k(X, x) + \sigma^2

    If the points are all rows, :math:`P = (K + \sigma^2 I)^{-1}` is exact; otherwise it is that of a process
    with inducing points.

    Args:
        regression: the mean of the process, with its kernel.
        precision: P, (k, m, m).
        noise: (k,) positive variances of the noise.
    """

    precision: Tensor
    noise: Tensor

    def __init__(self, regression: KernelRegression, precision: Tensor, noise: Tensor) -> None:
        super().__init__()
        check_shapes(
            coefficients=(regression.coefficients, "k m"), precision=(precision, "k m m"), noise=(noise, "k")
        )
        if not bool((noise > 0).all()):
            raise ValueError("noise must be positive.")
        self.regression = regression
        self.register_buffer("precision", precision)
        self.register_buffer("noise", noise)

    @property
    def answers(self) -> int:
        return len(self.noise)

    def forward(self, x: Tensor) -> Tensor:
        """Log scales, (..., p) -> (..., k)."""
        own, parts = self.regression, []
        for rows in own.standardize(x).split(rows_at_a_time(self.answers * len(own.points))):
            kernel = own.kernel(rows)
            prior = own.signal + own.slope * rows.square().mean(-1, keepdim=True)  # (n, k)
            known = ((kernel @ self.precision) * kernel).sum(-1).T
            parts.append(torch.log((prior - known).clamp(min=0) + self.noise) / 2)
        return torch.cat(parts).reshape(*x.shape[:-1], self.answers)


def kernel_between(one: Tensor, other: Tensor, length: Tensor, signal: Tensor, slope: Tensor) -> Tensor:
    """Matérn and linear kernel between standardised rows, (n, p), (m, p) -> (n, m)."""
    scaled, to = one / length, other / length
    square = scaled.square().sum(-1)[:, None] + to.square().sum(-1) - 2 * scaled @ to.T
    r = (5 * square).clamp(min=1e-14).sqrt()  # the root is not differentiable at 0
    return signal * (1 + r + r**2 / 3) * torch.exp(-r) + slope / one.shape[1] * (one @ other.T)
