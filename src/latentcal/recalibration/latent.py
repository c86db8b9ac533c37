"""Latent recalibration: replace the law of a flow's latent norm by the one that the data follow."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ..base import RadialBase
from ..fingerprint import CalibrationReuseWarning, Fingerprint, warn_of_reuse
from ..flow import ConditionalFlow, evaluation_mode
from ..radius.guarantee import guarantee
from ..radius.law import RadiusLaw, tied_share
from ..radius.reference import BallRadius
from ..radius.stacked import StackedRadius
from ..transport import radial_transport

__all__ = [
    "CalibrationReuseWarning",
    "NLLTerms",
    "Recalibration",
    "latent_norms",
    "nll_decomposition",
    "recalibrate",
]


@dataclass(frozen=True)
class Recalibration:
    """How a flow was recalibrated; printing it says so in words.

    Args:
        law: the fitted law of the latent norm.
        reference: base law of the flow as it was trained.
        n: calibration points.
        lambda_: (n + 1) times the largest distance of the fitted distribution function from i/(n + 1) at the
            i-th norm; a diagnostic, since it was read off the data.
        epsilon: (1 + lambda) / (n + 1); it bounds the mean error of coverage only where lambda was bounded
            before the data were seen.
        fit_seconds: time that fitting the law took.
        tied: share of the norms that equal another one.
        fingerprint: sketch of the calibration rows.
    """

    law: RadiusLaw
    reference: RadialBase = field(repr=False)
    n: int
    lambda_: float
    epsilon: float
    fit_seconds: float
    tied: float
    fingerprint: Fingerprint = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(
            (
                f"Recalibrated on {self.n:,} points: {type(self.law).__name__} "
                f"in place of {type(self.reference.radius).__name__}",
                f"  epsilon     {self.epsilon:.4f} (lambda = {self.lambda_:.2f}; read off the data, "
                "so a diagnostic of the coverage error and not a bound)",
                f"  tied norms  {self.tied:.1%}",
                f"  fitted in   {self.fit_seconds:.3f} s",
            )
        )


class NLLTerms(NamedTuple):
    """Terms of a negative log-likelihood, (n,) each, that sum to it."""

    latent: Tensor
    radial: Tensor
    flow: Tensor


def latent_norms(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    progress: bool = False,
) -> Tensor:
    r"""Latent norms :math:`\rho(\mathrm{encode}(y; x))` of data, in evaluation mode and without gradients.

    Args:
        flow: the flow.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        batch_size: points that the flow encodes at a time; all at once (or as the batches come) if None.
        progress: show a progress bar.

    Returns:
        (n,) float64, on the CPU.
    """
    parts: list[Tensor] = []
    _visit_norms(flow, x, y, batch_size, progress, lambda _x, _y, norms: parts.append(norms))
    return torch.cat(parts)


def recalibrate(
    flow: ConditionalFlow,
    x: Any,
    y: Any = None,
    *,
    fit: Callable[..., RadiusLaw] = StackedRadius.fit,
    weights: Tensor | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> ConditionalFlow:
    r"""A flow with the same maps whose latent norm has the law that the calibration data follow.

    .. math:: \log f'(y|x) = \log f(y|x) + \log f_L(l) - \log f_\rho(l),
              \qquad l = \rho(\mathrm{encode}(y; x)),

    with :math:`f_\rho` the law of the norm under the flow's base and :math:`f_L` the one fitted to the norms
    of the calibration data. These must be rows that training did not see. The flow itself is not changed; how
    the new one was made is in its ``recalibration``. Of an iterable's batches only x and the norms are kept.

    Args:
        flow: the flow, with :class:`RadialBase` as its base.
        x: (n, p) features or None for an unconditional flow; or, without ``y``, an iterable such as a
            DataLoader of batches (x, y), or of y alone.
        y: (n, d) outputs.
        fit: called as ``fit(radii, reference=law, x=x, weights=weights)``; ``SplineRadius.fit`` and its like.
        weights: (n,) of the calibration points; equal if None.
        batch_size: points that the flow encodes at a time; all at once (or as the batches come) if None.
        progress: show a progress bar.

    Returns:
        The recalibrated flow.

    Warns:
        CalibrationReuseWarning: where a flow is recalibrated a second time on the same rows.
    """
    if isinstance(fit, type):
        raise TypeError(f"fit must be a function that fits a law: pass {fit.__name__}.fit.")
    previous: Recalibration | None = getattr(flow, "recalibration", None)
    parts: list[Tensor] = []
    features: list[Tensor] = []
    fingerprint = Fingerprint()
    seen: set[int] = set()

    def keep(batch_x: Tensor | None, batch_y: Tensor, norms: Tensor) -> None:
        nonlocal fingerprint
        parts.append(norms)
        if batch_x is not None:
            features.append(batch_x)
        fingerprint = fingerprint.merge(Fingerprint.of(batch_x, batch_y))
        if previous is not None:
            seen.update(previous.fingerprint.matches(batch_x, batch_y))

    _visit_norms(flow, x, y, batch_size, progress, keep)
    radii = torch.cat(parts)
    all_x = torch.cat(features) if features else None
    if weights is not None and np.shape(weights) != (len(radii),):
        raise ValueError(
            f"weights has shape {tuple(np.shape(weights))} for {len(radii)} points; give one each."
        )
    if previous is not None:
        warn_of_reuse(
            len(seen) / max(len(previous.fingerprint.hashes), 1),
            "A second recalibration on them only fits their noise more closely.",
        )
        fingerprint = fingerprint.merge(previous.fingerprint)

    started = time.perf_counter()
    law = fit(radii, reference=flow.base.radius, x=all_x, weights=weights)
    fit_seconds = time.perf_counter() - started
    if not isinstance(law, RadiusLaw):
        raise TypeError(f"fit must return a RadiusLaw, it returned {type(law).__name__}.")
    at_x = law.given(all_x)
    # A law that depends on x is judged by its PIT values, which may be sorted; the radii belong to their x.
    bound = guarantee(law, radii) if at_x is law else guarantee(BallRadius(1), at_x.cdf(radii))
    model = flow.with_base(flow.base.with_radius(law))
    model.recalibration = Recalibration(
        law=law,
        reference=flow.base if previous is None else previous.reference,
        n=len(radii),
        lambda_=bound.lambda_,
        epsilon=bound.epsilon,
        fit_seconds=fit_seconds,
        tied=tied_share(radii),
        fingerprint=fingerprint,
    )
    return model


def nll_decomposition(model: ConditionalFlow, x: Tensor | None, y: Tensor) -> NLLTerms:
    r"""The three terms of a recalibrated model's negative log-likelihood.

    .. math:: -\log f'(y|x) = \underbrace{-\log f_Z(z)}_{latent}
              + \underbrace{\log |\det \nabla R(z)|}_{radial}
              \underbrace{- \log |\det \nabla_y z'|}_{flow},
              \qquad z' = \mathrm{encode}(y; x),\; z = R^{-1}(z'),

    with :math:`f_Z` the base that the flow was trained with and R the radial map from it to the recalibrated
    one. The flow's term is that of the uncalibrated model, and for such a model the radial term is 0.

    Args:
        model: a recalibrated (or any) flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.

    Returns:
        Named tuple (latent, radial, flow) of (n,) float64 terms.
    """
    with torch.no_grad(), evaluation_mode(model):
        pred = model(x)
        norms, log_abs_det = pred.norm_and_log_abs_det(y)
        log_latent = pred.base.log_prob_at_norm(norms)
        if model.recalibration is None:
            return NLLTerms(-log_latent, torch.zeros_like(norms), -log_abs_det)
        reference = copy.deepcopy(model.recalibration.reference).to(norms.device)
        before = radial_transport(reference, pred.base).inverse_radius(norms)
        log_before = reference.log_prob_at_norm(before)
        # Where z is beyond the floats, or has density 0, the two terms cannot be told apart.
        lost = torch.isinf(log_before) | torch.isinf(log_latent)
        log_before = torch.where(lost, log_latent, log_before)
        # log|det R(z)| as the ratio of the densities of z and z' itself, not of z and R(R^-1(z')).
        radial = (log_before - log_latent).masked_fill(lost, 0.0)
        return NLLTerms(-log_before, radial, -log_abs_det)


def _visit_norms(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    batch_size: int | None,
    progress: bool,
    visit: Callable[[Tensor | None, Tensor, Tensor], None],
) -> None:
    """Call ``visit(x, y, norms)`` with one batch of data after the other, norms on the CPU."""
    if not isinstance(flow, ConditionalFlow):
        raise TypeError(
            f"flow must be a ConditionalFlow, got {type(flow).__name__}. "
            "The arguments are (flow, x, y); a model of another library is wrapped first, by an adapter."
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    batches, total = row_batches(x, y)
    row = 0
    with (
        torch.no_grad(),
        evaluation_mode(flow),
        tqdm(total=total, desc="latent norms", unit=" points", disable=not progress) as bar,
    ):
        for batch_x, batch_y in batches:
            _check_batch(flow, batch_x, batch_y)
            size = batch_size or max(len(batch_y), 1)
            for start in range(0, len(batch_y), size):
                part_x = None if batch_x is None else batch_x[start : start + size]
                part_y = batch_y[start : start + size]
                norms = flow(part_x).latent_norm(part_y).cpu()
                _check_norms(norms, row)
                visit(part_x, part_y, norms)
                row += len(norms)
                bar.update(len(norms))
    if row == 0:
        raise ValueError("There are no calibration points: x and y are empty, or the iterable gave nothing.")


def row_batches(x: Any, y: Any) -> tuple[Iterable[tuple[Tensor | None, Tensor]], int | None]:
    """Pairs of tensors (x, y) from data or from an iterable of batches, and the number of points if known."""
    if y is not None:
        pair = (None if x is None else _as_tensor(x), _as_tensor(y))
        return [pair], (len(pair[1]) if pair[1].dim() else None)
    if x is None or isinstance(x, Tensor) or hasattr(x, "__array__") or not isinstance(x, Iterable):
        raise ValueError(
            "y is missing. The arguments are (flow, x, y), or (flow, None, y) for an unconditional flow; "
            "only an iterable of batches, such as a DataLoader, goes without y."
        )
    return map(_as_pair, x), None


def _as_pair(batch: Any) -> tuple[Tensor | None, Tensor]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return (None if batch[0] is None else _as_tensor(batch[0])), _as_tensor(batch[1])
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return None, _as_tensor(batch[0])
    if isinstance(batch, Tensor) or hasattr(batch, "__array__"):
        return None, _as_tensor(batch)
    raise TypeError(f"A batch must be a pair (x, y), or y alone; got {type(batch).__name__}.")


def _as_tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_batch(flow: ConditionalFlow, x: Tensor | None, y: Tensor) -> None:
    dim = flow.base.dim
    shapes = f"y: {tuple(y.shape)}, x: {None if x is None else tuple(x.shape)}"
    if y.dim() != 2 or (x is not None and x.dim() != 2):
        raise ValueError(
            f"x must be (n, p) and y (n, d), one row a point ({shapes}). A single output is y[:, None]."
        )
    if y.shape[1] != dim:
        raise ValueError(
            f"y has {y.shape[1]} outputs but the flow's latent has {dim} dimensions ({shapes}). "
            "Arguments are (flow, x, y); were x and y swapped?"
        )
    if x is not None and len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows and y has {len(y)} ({shapes}); they must belong together.")


def _check_norms(norms: Tensor, first_row: int) -> None:
    infinite = torch.isinf(norms)
    if bool(infinite.any()):
        rows = (first_row + infinite.nonzero().reshape(-1)[:5]).tolist()
        raise ValueError(
            f"{int(infinite.sum())} of {len(norms)} latent norms are infinite (first rows: {rows}): "
            "the flow's encode overflows there. Drop those rows, or clip y."
        )
