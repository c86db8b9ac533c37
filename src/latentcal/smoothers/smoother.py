"""What a smoother is: a function of features, with an answer for each row that did not see it."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from ..numerics import Float64Module

_Own = TypeVar("_Own", bound="Smoother")


class Smoother(Float64Module):
    r"""An estimate of :math:`E[t \mid x]` for targets t, calling it gives (..., p) -> (..., k) in float64.

    Constructor arguments are the whole state, kept as attributes of the same names.
    """

    @property
    def answers(self) -> int:
        """Number k of targets."""
        raise NotImplementedError

    @classmethod
    def cross_fit(
        cls: type[_Own], x: Tensor, targets: Tensor, fold: Tensor, weights: Tensor, *, level: bool = True
    ) -> tuple[_Own, Tensor]:
        """The smoother of all rows, and for each row the answer of one that did not see its fold.

        Args:
            x: (n, p) features.
            targets: (n, k).
            fold: (n,) numbers 0, 1, ... of the folds.
            weights: (n,) of the rows, of mean 1.
            level: whether the mean of the targets belongs to the answers; if not, their mean is 0.

        Returns:
            The smoother and (n, k) out-of-fold answers.
        """
        raise NotImplementedError


def standardizer(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale of the columns of x (n, p), (p,) each; the scale of a constant column is 1."""
    scale = x.std(0, correction=0)
    return x.mean(0), torch.where(scale > 1e-12 * (x.abs().amax(0) + 1e-300), scale, 1.0)


def log_dispersion(
    kind: type[_Own], x: Tensor, residuals: Tensor, fold: Tensor, weights: Tensor
) -> tuple[_Own, Tensor]:
    r"""Smoother of log standard deviations, of mean 0, and its out-of-fold answers (n, k).

    .. math:: t_i = s(x_i) + \tfrac12 \big(e_i^2 e^{-2 s(x_i)} / \sigma^2 - 1\big)

    regressed on x, twice: the scoring steps of a normal likelihood of residuals e (n, k) with log deviation
    :math:`s(x) + \log \sigma`. The first starts from s = 0, the second from the out-of-fold answers.
    """
    log_scale = torch.zeros_like(residuals)
    for _ in range(2):
        square = (residuals * torch.exp(-log_scale)) ** 2
        square = square / (weights @ square / weights.sum()).clamp(min=1e-300)
        working = log_scale + (square.clamp(max=16.0) - 1) / 2
        smoother, log_scale = kind.cross_fit(x, working, fold, weights, level=False)
        log_scale = log_scale.clamp(-3, 3)
    return smoother, log_scale
