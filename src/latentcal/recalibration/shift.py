"""Covariate shift: density ratios of future features to those of calibration rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._internal.features import AdditiveFeatures, ProductSearch
from .._internal.numerics import as_tensor
from .._internal.validate import as_number, as_whole, check_finite, check_size

_PENALTIES = tuple(10.0 ** (i / 2) for i in range(7, -7, -1))  # relative to 1 a row
_STEPS = 50


def density_ratio(
    x_calibration: Any,
    x_target: Any,
    *,
    folds: int = 5,
    clip: float | None = 20.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Weights of calibration rows for features with another distribution, by classification.

    .. math:: w(x) = \frac{n}{m} \cdot \frac{P(\text{target} \mid x)}{P(\text{calibration} \mid x)}
              \approx \frac{f_\text{target}(x)}{f_\text{calibration}(x)}

    P comes from logistic regression on additive features, with a penalty chosen by held-out likelihood. The
    largest penalty, at which all weights are nearly 1, is kept unless another is better by one standard
    error, so that weights stay near 1 if there is no shift. A second regression includes products of
    features, for shifts in their dependence; it is used if it is better by one more standard error. The
    weight of a row comes from a model, and products, chosen without that row. Weights have mean 1.

    Weights above ``clip`` times the mean are clipped to that value, because single rows would add too much
    noise; then a large shift is corrected only in part. The effective number of equally weighted rows,
    :math:`(\sum w)^2 / \sum w^2`, is ``model.recalibration.effective_n`` of the flow recalibrated with them.

    Args:
        x_calibration: (n, p) features of the calibration rows.
        x_target: (m, p) future features.
        folds: number of folds for cross-fitting.
        clip: largest weight; None for no limit.
        generator: generator to shuffle the rows; seeded with 0 if None.

    Returns:
        (n,) float64 weights of mean 1 for ``recalibrate(..., weights=...)``.
    """
    calibration, target = _features("x_calibration", x_calibration), _features("x_target", x_target)
    if calibration.shape[1] != target.shape[1]:
        raise ValueError(
            f"x_calibration has {calibration.shape[1]} features and x_target {target.shape[1]}; "
            "they must be the same."
        )
    n, m, folds = len(calibration), len(target), as_whole(folds, "folds", 2)
    if not 2 <= folds <= min(n, m):
        raise ValueError(
            f"folds must lie between 2 and {min(n, m)}, the number of rows of the smaller set; got {folds}."
        )
    if clip is not None and not as_number(clip, "clip") >= 1:
        raise ValueError(f"clip must be at least 1, the mean weight; got {clip}.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    x = torch.cat([calibration, target])
    is_target = torch.cat([torch.zeros(n), torch.ones(m)]).to(torch.float64)
    # Both sets get equal total weight, so that the odds equal the ratio; the total stays the row count.
    balance = torch.where(is_target > 0, (n + m) / (2 * m), (n + m) / (2 * n)).to(torch.float64)
    fold = torch.cat([_fold_of(size, folds, generator) for size in (n, m)])
    logits = torch.empty(2, len(_PENALTIES), n + m, dtype=torch.float64)  # additive, and with products
    for k in range(folds):
        seen, held_out = fold != k, fold == k
        labels, shares = is_target[seen], balance[seen]
        features = AdditiveFeatures.fit(x[seen], fine=False)  # the ratio is assumed smooth
        columns, there = features(x[seen]), features(x[held_out])
        path = _logistic_path(_with_one(columns), labels, shares)
        logits[:, :, held_out] = path @ _with_one(there).T
        search = ProductSearch(features, columns)
        if search.pairs > 0:
            crossed = search.choose(labels[:, None], shares)  # uses only the rows of this fit
            path = _logistic_path(_with_one(crossed.extend(columns)), labels, shares)
            logits[1][:, held_out] = path @ _with_one(crossed.extend(there)).T
    loss = balance * torch.nn.functional.softplus(torch.where(is_target > 0, -logits, logits))
    chosen = logits[_simplest(loss)][:n]
    weights = torch.exp(chosen - chosen.max())
    return _clip(weights, clip)


def _logistic_path(columns: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Coefficients (q, k) of logistic regressions on columns (n, k), penalty by penalty, by Newton steps."""
    size = columns.shape[1]
    beta = columns.new_zeros(size)
    path = []
    for penalty in _PENALTIES:
        ridge = columns.new_full((size,), penalty * len(labels))
        ridge[0] = 0.0  # the constant
        loss = _loss(columns, labels, weights, ridge, beta)
        for _ in range(_STEPS):
            p = torch.sigmoid(columns @ beta)
            gradient = columns.T @ (weights * (p - labels)) + ridge * beta
            curvature = (columns.T * (weights * p * (1 - p))) @ columns + torch.diag(ridge)
            curvature.diagonal().add_(1e-10 * curvature.diagonal().mean())
            step = torch.linalg.solve(curvature, gradient)
            scale, new_loss = 1.0, _loss(columns, labels, weights, ridge, beta - step)
            while not new_loss <= loss and scale > 1e-6:
                scale /= 2
                new_loss = _loss(columns, labels, weights, ridge, beta - scale * step)
            if not new_loss <= loss:
                break
            done = loss - new_loss <= 1e-9 * abs(loss)
            beta, loss = beta - scale * step, new_loss
            if done:
                break
        path.append(beta)
    return torch.stack(path)


def _loss(columns: Tensor, labels: Tensor, weights: Tensor, ridge: Tensor, beta: Tensor) -> float:
    logit = columns @ beta
    fit = (weights * (torch.nn.functional.softplus(logit) - labels * logit)).sum()
    return float(fit + (ridge * beta**2).sum() / 2)


def _simplest(loss: Tensor) -> tuple[int, int]:
    """Model and penalty by held-out losses (2, q, n): the best of the richer model, that of the plain one, or
    the largest penalty, whichever is the first that is clearly better than those after it."""
    plain, crossed = (int(each.argmin()) for each in loss.mean(2))
    if not _is_better(loss[0, plain], loss[0, 0]):
        plain = 0
    return (1, crossed) if _is_better(loss[1, crossed], loss[0, plain]) else (0, plain)


def _is_better(loss: Tensor, other: Tensor) -> bool:
    """Whether the first of two losses (n,) is less by more than one standard error."""
    gain = other - loss
    return float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5


def _clip(weights: Tensor, clip: float | None) -> Tensor:
    """Weights of mean 1, none above ``clip``."""
    weights = weights / weights.mean()
    if clip is None:
        return weights
    for _ in range(100):  # clipping increases all other weights after normalisation
        if float(weights.max()) <= clip * (1 + 1e-9):
            break
        weights = weights.clamp(max=clip)
        weights = weights / weights.mean()
    return weights


def _fold_of(n: int, folds: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator, device=generator.device).cpu() % folds


def _with_one(columns: Tensor) -> Tensor:
    return torch.cat([columns.new_ones(len(columns), 1), columns], 1)


def _features(name: str, x: Any) -> Tensor:
    x = as_tensor(x, name).cpu().to(torch.float64)
    if x.dim() != 2 or 0 in x.shape:
        raise ValueError(f"{name} must be (n, p), one row for each point; got shape {tuple(x.shape)}.")
    return check_size(check_finite(x, name), name)
