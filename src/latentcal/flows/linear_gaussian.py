"""The linear-Gaussian flow, with every quantity in closed form, and ridge regression as such a flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._internal.numerics import to_tensor
from .._internal.validate import as_floating, as_rows, check_finite
from .._internal.wording import counted
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow
from .training import TrainingLog, mean_nll
from .triangular import LinearTriangle

PENALTIES = tuple(10.0**k for k in range(-6, 3))


class LinearGaussianFlow(ConditionalFlow):
    r"""Affine maps with the density of linear regression.

    .. math:: y = W x + b + L z, \qquad z = L^{-1} (y - W x - b), \qquad \log|\det| = -\sum_j \log L_{jj}

    With the base N(0, I) the prediction is :math:`N(W x + b, L L^\top)`.

    Args:
        weight: W, (d, p); None for an unconditional flow.
        bias: b, (d,).
        scale_tril: L, (d, d), lower triangular with a positive diagonal.
        base: law of z; N(0, I) if None.

    Examples:
        >>> flow = LinearGaussianFlow(torch.tensor([[2.0]]), torch.zeros(1), torch.eye(1))
        >>> flow(torch.tensor([3.0])).log_prob(torch.tensor([6.0]))  # -log(2 pi) / 2
        tensor(-0.9189)
    """

    weight: Tensor | None
    bias: Tensor
    scale_tril: Tensor

    def __init__(
        self, weight: Tensor | None, bias: Tensor, scale_tril: Tensor, base: RadialBase | None = None
    ) -> None:
        weight = None if weight is None else _parameter(weight, "weight")
        bias, scale_tril = _parameter(bias, "bias"), _parameter(scale_tril, "scale_tril")
        if bias.dim() != 1:
            raise ValueError(f"bias must be (d,), got {tuple(bias.shape)}.")
        dim = bias.shape[0]
        if scale_tril.shape != (dim, dim):
            raise ValueError(
                f"scale_tril must be ({dim}, {dim}) like the bias, got {tuple(scale_tril.shape)}."
            )
        if weight is not None and (weight.dim() != 2 or weight.shape[0] != dim):
            raise ValueError(f"weight must be ({dim}, p) like the bias, got {tuple(weight.shape)}.")
        tensors = {"bias": bias, "scale_tril": scale_tril} | ({} if weight is None else {"weight": weight})
        for name, tensor in tensors.items():
            if not (
                bias.is_floating_point() and tensor.dtype == bias.dtype and bool(torch.isfinite(tensor).all())
            ):
                raise ValueError(f"{name} must be finite, and all of one floating dtype; got {tensor.dtype}.")
        if not bool((scale_tril == scale_tril.tril()).all()) or not bool((scale_tril.diagonal() > 0).all()):
            raise ValueError("scale_tril must be lower triangular with a positive diagonal.")
        super().__init__(base_or_normal(base, dim, "the bias"))
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.register_buffer("scale_tril", scale_tril)

    @classmethod
    def fit(cls, x: Tensor | None, y: Tensor, *, base: RadialBase | None = None) -> LinearGaussianFlow:
        """The least-squares fit with intercept and the unbiased covariance of the residuals.

        Args:
            x: (n, p) features, or None.
            y: (n, d) outputs; n must be at least p + d + 1.
            base: law of z; N(0, I) if None.
        """
        x, y = as_rows(x, y)
        (n, dim), features = y.shape, 0 if x is None else x.shape[1]
        if n < features + dim + 1:
            raise ValueError(
                f"{n} points are too few for {features} features and {dim} outputs: "
                f"at least p + d + 1 = {features + dim + 1} are needed."
            )
        y64 = y.to(torch.float64)
        bias = y64.mean(0)
        residuals = y64 - bias
        weight = None
        if x is not None:
            x64 = x.to(torch.float64)
            x_mean = x64.mean(0)
            # torch's default on a CPU sometimes loses a feature if others are collinear.
            driver = "gelsd" if x64.device.type == "cpu" else None
            weight = torch.linalg.lstsq(x64 - x_mean, residuals, driver=driver).solution.T
            residuals = residuals - (x64 - x_mean) @ weight.T
            bias = bias - weight @ x_mean
        covariance = residuals.T @ residuals / (n - features - 1)
        # Residuals that are zero up to rounding would be treated as very certain predictions.
        exact = covariance.diagonal() <= 1e-24 * (y64**2).mean(0)
        scale_tril, failed = torch.linalg.cholesky_ex(covariance)
        if bool(exact.any()) or int(failed) or not bool(torch.isfinite(scale_tril).all()):
            raise ValueError(
                "The residuals have no invertible covariance: an output is constant, a linear function of x "
                "or of the other outputs, or not finite. Remove it."
            )
        dtype = y.dtype if y.is_floating_point() else torch.get_default_dtype()
        return cls(None if weight is None else weight.to(dtype), bias.to(dtype), scale_tril.to(dtype), base)

    @property
    def features(self) -> int:
        """Number of features p; 0 for an unconditional flow."""
        return 0 if self.weight is None else self.weight.shape[1]

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        z, log_slope = self.triangle(x).every(y)
        return z[0], log_slope[0].sum(-1)

    def triangle(self, x: Tensor | None) -> LinearTriangle:
        """The map at features x, (..., p)."""
        return LinearTriangle(self._mean(x), self.scale_tril)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self._mean(x) + z @ self.scale_tril.T

    def _mean(self, x: Tensor | None) -> Tensor:
        if self.weight is None:
            return self.bias
        if x is None:
            raise ValueError(
                f"This flow is conditional, but x of shape (..., {self.weight.shape[1]}) is missing."
            )
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"x has {counted(x.shape[-1], 'feature')}, but the flow has weights for "
                f"{self.weight.shape[1]} (x: {tuple(x.shape)})."
            )
        return x.to(self.weight.dtype) @ self.weight.T + self.bias


def _parameter(values: Tensor, name: str) -> Tensor:
    # Triangular solvers support only 32 or 64 bits.
    values = check_finite(as_floating(to_tensor(values, name)), name)
    return values.to(torch.promote_types(values.dtype, torch.float32))


def fit_ridge(
    x: Tensor,
    y: Tensor,
    validation: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor | None],
    penalties: Sequence[float] = PENALTIES,
    *,
    weights: Tensor | None = None,
) -> tuple[LinearGaussianFlow, TrainingLog]:
    r"""Linear regression of centred data with the penalty of the highest validation likelihood.

    .. math:: W = (X^\top X + n \lambda I)^{-1} X^\top Y, \qquad
              \Sigma = \frac{R^\top R}{n - 1 - \mathrm{df}(\lambda)} + \lambda I

    Here R are the residuals. The solution exists for any data, such as fewer rows than features or outputs
    exactly linear in x. With weights (n,) of mean 1, rows of X, Y and R are multiplied by their square roots,
    and the data are centred with the weights.
    """
    given = (x, y, weights)
    if weights is not None:
        root = (weights / weights.mean()).sqrt()[:, None].to(x)
        x, y = root * x, root * y
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    log, fitted = TrainingLog(stopped=f"tried {len(penalties)} penalties"), []
    for penalty in penalties:
        damped = s**2 + len(x) * penalty
        weight = (u.T @ y).T * (s / damped) @ vh
        residual = y - x @ weight.T
        freedom = (len(x) - 1 - (s**2 / damped).sum()).clamp(min=1e-6)
        covariance = residual.T @ residual / freedom + penalty * torch.eye(y.shape[1])
        bias = y.new_zeros(y.shape[1])
        fitted.append(LinearGaussianFlow(weight, bias, torch.linalg.cholesky(covariance)))
        log.train_loss.append(mean_nll(fitted[-1], *given))
        log.validation_loss.append(mean_nll(fitted[-1], *validation))
    log.best_epoch = min(range(len(fitted)), key=log.validation_loss.__getitem__)
    return fitted[log.best_epoch], log
