"""The recalibrations in the comparison, each from the latents of one trained flow."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from latentcal import (
    ConditionalFlow,
    ConditionalRadius,
    GammaKDE,
    RadiusLaw,
    SplineRadius,
    StackedRadius,
    autocalibrate,
    latent_norms,
    recalibrate,
    recalibrate_prerank,
)
from latentcal.flows import LinearGaussianFlow
from latentcal.recalibration import Aligned, PrerankRecalibrated

from .sampling import sampler
from .trainings import TrainedRun

HDR = "HDR-R"
_ENCODED_AT_A_TIME = 4096

Fit = Callable[[ConditionalFlow, Tensor, Tensor], ConditionalFlow]
"""A flow of latents, features (n, p) and latents (n, d) of the calibration rows -> the recalibrated flow."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A recalibrated model in the latent space of a trained flow.

    Attributes:
        method: its name.
        model: a flow from the trained flow's latents, of which ``attached`` makes one from y; for HDR
            recalibration the unchanged one.
        prerank: for HDR recalibration the recalibrated predictor, else None.
        encode_seconds: processor time of encoding the calibration rows; 0 where it is part of the fit.
        fit_seconds: processor time of the rest.
        detail: what else is worth keeping, by name.
        remarks: warnings that were given.
    """

    method: str
    model: ConditionalFlow
    prerank: PrerankRecalibrated | None = None
    encode_seconds: float = 0.0
    fit_seconds: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Processor time of the calibration, from rows to model."""
        return self.encode_seconds + self.fit_seconds


def calibrate(method: str, run: TrainedRun) -> Calibrated:
    """Recalibrate a trained flow on its validation rows, as published, and measure the time.

    Methods that only need latents use those of the cache; the time of encoding the rows with the flow is
    measured and included.

    Args:
        method: one of ``METHODS``.
        run: the trained flow.
    """
    x, y = run.split.validation
    flow = latent_flow(run.flow)
    if method == "BASE":
        return Calibrated(method, flow)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if method == HDR:
            start = time.process_time()
            prerank = _prerank(sampler(run.flow), x, y, run.spec.seed)
            calibrated = Calibrated(method, flow, prerank, fit_seconds=time.process_time() - start)
        elif method in _FITS:
            start = time.process_time()
            latent_norms(run.flow, x, y, batch_size=_ENCODED_AT_A_TIME)
            encoded = time.process_time()
            model = _FITS[method](flow, x, run.latents.calibration_z.double())
            done = time.process_time()
            calibrated = Calibrated(method, model, None, encoded - start, done - encoded, _detail(model))
        else:
            raise ValueError(f"There is no method {method!r}; choose one of BASE, {', '.join(_FITS)}, {HDR}.")
    remarks = sorted({f"{item.category.__name__}: {item.message}" for item in caught})
    return Calibrated(**{**vars(calibrated), "remarks": tuple(remarks)})


@cache
def law_numbers(method: str) -> list[float]:
    """Log densities of a method after recalibration on fixed latents; none if it has no law.

    They change if the law changes.
    """
    if method not in _FITS:
        return []
    source = torch.Generator().manual_seed(0)
    x, z = (torch.randn(200, 2, generator=source, dtype=torch.float64) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = latent_flow(LinearGaussianFlow(None, z.new_zeros(2), torch.eye(2, dtype=z.dtype)))
        model = _FITS[method](base, x, torch.exp(x[:, :1]) * z + x)  # of which each method has its share
    with torch.no_grad():
        return [round(value, 6) for value in model(x[:4]).log_prob(2 * z[:4]).tolist()]


def latent_flow(flow: ConditionalFlow) -> ConditionalFlow:
    """The identity on the latents of a flow, in float64, with its base law."""
    dim = flow.base.dim
    eye = torch.eye(dim, dtype=torch.float64)
    return LinearGaussianFlow(None, eye.new_zeros(dim), eye, base=flow.base).eval()


def attach(model: ConditionalFlow, flow: ConditionalFlow) -> ConditionalFlow:
    """A flow of y: the composition of a trained flow and a model of its latents."""
    whole = Aligned(flow, model.map) if isinstance(model, Aligned) else flow
    whole = whole.with_base(model.base)
    whole.recalibration = model.recalibration
    return whole.eval()


def _radial(flow: ConditionalFlow, x: Tensor, z: Tensor, fit: Callable[..., RadiusLaw]) -> ConditionalFlow:
    return recalibrate(flow, x, z, fit=fit, discrete="ignore")


def _prerank(flow: ConditionalFlow, x: Tensor, y: Tensor, seed: int) -> PrerankRecalibrated:
    source = torch.Generator().manual_seed(seed)
    try:
        return recalibrate_prerank(flow, x, y, method="resampling", generator=source)
    except (RuntimeError, ArithmeticError) as error:  # samples that cannot be decoded
        warnings.warn(f"Done again in float64, since: {error}", RuntimeWarning, stacklevel=2)
        flow = copy.deepcopy(flow).double()
        return recalibrate_prerank(flow, x, y, method="resampling", generator=source.manual_seed(seed))


_FITS: dict[str, Fit] = {
    "LR-KDE": partial(_radial, fit=GammaKDE.fit),
    "LR-spline": partial(_radial, fit=SplineRadius.fit),
    "LR-stacked": partial(_radial, fit=StackedRadius.fit),
    "LR-aligned": Aligned.fit,
    "LR-conditional": partial(_radial, fit=ConditionalRadius.fit),
    "auto": partial(autocalibrate, discrete="ignore"),
}


def _detail(model: ConditionalFlow) -> dict[str, Any]:
    record = model.recalibration
    detail = {"law": type(record.law).__name__, "lambda": record.lambda_, "tied": record.tied}
    ladder = getattr(record, "ladder", None)
    return detail if ladder is None else {**detail, "rung": ladder.names[ladder.chosen]}
