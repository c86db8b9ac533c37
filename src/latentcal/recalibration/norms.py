"""A flow with a law fitted to latent norms that are known already."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..metrics.autocorrelation import autocorrelation_test
from ..radius.guarantee import guarantee
from ..radius.law import RadiusLaw, tied_share
from ..radius.reference import BallRadius
from .effective import FEWEST_IN_TIME, effective_n_of
from .record import Recalibration


def check_base(flow: ConditionalFlow, x: Tensor | None) -> None:
    """A clear error where the law of the radius depends on x already: another one would lose that."""
    if flow.base.radius.given(x) is not flow.base.radius:
        raise ValueError(
            f"The law of the flow's radius, {type(flow.base.radius).__name__}, depends on x already: another "
            "law in its place would lose that. Recalibrate the flow that it was made from, by all rows."
        )


def recalibrate_norms(
    flow: ConditionalFlow,
    radii: Tensor,
    x: Tensor | None,
    fingerprint: Fingerprint,
    *,
    fit: Callable[..., RadiusLaw],
    weights: Tensor | None = None,
    order: Literal["time"] | None = None,
    **about: Any,
) -> ConditionalFlow:
    """The flow with the law that ``fit`` makes of radii (n,) at features (n, p).

    ``about`` are further fields of the record.
    """
    check_base(flow, x)
    started = time.perf_counter()
    law = fit(radii, reference=flow.base.radius, x=x, weights=weights)
    fit_seconds = time.perf_counter() - started
    if not isinstance(law, RadiusLaw):
        raise TypeError(f"fit must return a RadiusLaw, it returned {type(law).__name__}.")
    at_x = law.given(x)
    # A law that depends on x is judged by its PIT values, which may be sorted; the radii belong to their x.
    with torch.no_grad():
        u = None if at_x is law and order is None else at_x.cdf(radii)
    in_time = order == "time" and len(radii) >= FEWEST_IN_TIME
    serial = autocorrelation_test(u) if in_time and u is not None else None
    effective_n = effective_n_of(weights, len(radii), serial)
    judged = (law, radii) if at_x is law else (BallRadius(1), u)
    bound = guarantee(*judged, weights=weights, effective_n=effective_n)
    model = flow.with_base(flow.base.with_radius(law))
    previous: Recalibration | None = flow.recalibration
    model.recalibration = Recalibration(
        law=law,
        reference=flow.base if previous is None else previous.reference,
        n=len(radii),
        lambda_=bound.lambda_,
        epsilon=bound.epsilon,
        fit_seconds=fit_seconds,
        tied=tied_share(radii),
        fingerprint=fingerprint if previous is None else fingerprint.merge(previous.fingerprint),
        effective_n=effective_n,
        autocorrelation=None if serial is None else serial.p_value,
        **about,
    )
    return model
