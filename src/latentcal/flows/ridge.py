"""Linear regression with a penalty, as a flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .linear_gaussian import LinearGaussianFlow
from .training import TrainingLog, mean_nll

PENALTIES = tuple(10.0**k for k in range(-6, 3))


def fit_ridge(
    x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor], penalties: Sequence[float] = PENALTIES
) -> tuple[LinearGaussianFlow, TrainingLog]:
    r"""Linear regression of centred data with the penalty that the validation part likes best.

    .. math:: W = (X^\top X + n \lambda I)^{-1} X^\top Y, \qquad
              \Sigma = \frac{R^\top R}{n - 1 - \mathrm{df}(\lambda)} + \lambda I

    with the residuals R. It exists for any data: fewer rows than features, outputs that are exact in x.
    """
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
        log.train_loss.append(mean_nll(fitted[-1], x, y))
        log.validation_loss.append(mean_nll(fitted[-1], *validation))
    log.best_epoch = min(range(len(fitted)), key=log.validation_loss.__getitem__)
    return fitted[log.best_epoch], log
