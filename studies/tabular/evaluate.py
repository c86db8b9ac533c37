"""Figures of a recalibrated model on the test rows: scores, calibration, coverage, volume, durations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from latentcal import latent_pit, nll_decomposition
from latentcal.metrics import calibration_error, empirical_coverage, energy_score
from latentcal.recalibration import PrerankRecalibrated

from .methods import Calibrated
from .sampling import Draws, draw_samples
from .trainings import TrainedRun

SAMPLES = 100
LEVELS = (0.5, 0.8, 0.9, 0.95)
CURVE = tuple(i / 50 for i in range(1, 50))
REGION = 0.9
NO_SAMPLES = "no samples were asked for"

Figures = dict[str, Any]


def evaluate(run: TrainedRun, calibrated: Calibrated, samples: int = SAMPLES) -> Figures:
    """Figures by name; None for what a method does not have, infinity where a density is 0 somewhere.

    - ``nll``, and ``nll_minus_base`` with its standard error over the test rows, paired;
      ``nll_latent``, ``nll_radial``, ``nll_flow``: the terms that sum to it.
    - ``l_ece`` and ``latent_curve``: error and distribution function of the latent PIT.
    - ``hdr_ece`` and ``hdr_curve``: of the HDR PIT, estimated from the samples. HDR recalibration is ranked
      by the density of the base model, as published.
    - ``energy_score`` from the same samples; two models of one run share their random numbers.
    - ``coverage`` at ``LEVELS``, of latent regions (of regions of highest density for HDR recalibration).
    - ``log_volume``, ``median_volume``: of the latent region of 90 %, in standardised units; the log
      is averaged over the test rows.
    - ``evaluate_seconds``: processor time.

    What needs samples is measured on the first ``sampled_rows`` test rows, which are in random order; of HDR
    recalibration that is all but the NLL of the base, to which the mean step on these rows is added. It is
    None where the flow cannot decode samples or none are asked for; ``sampling_error`` says why.

    Args:
        run: the trained flow.
        calibrated: the model.
        samples: predictive samples a row; 0 leaves out what needs them, which is most of the time. HDR
            recalibration always draws its own.

    Raises:
        FloatingPointError: a figure is not a number.
    """
    start = time.process_time()
    with torch.no_grad():
        if calibrated.prerank is None:
            figures = _of_latents(run, calibrated)
            figures |= (
                _guard(_of_samples, run, calibrated, samples) if samples else {"sampling_error": NO_SAMPLES}
            )
        else:
            figures = _guard(_of_prerank, run, calibrated, samples)
    figures["evaluate_seconds"] = time.process_time() - start
    if wrong := [name for name, value in figures.items() if _has_nan(value)]:
        raise FloatingPointError(f"{calibrated.method} has figures that are not numbers: {', '.join(wrong)}.")
    return figures


def _of_latents(run: TrainedRun, calibrated: Calibrated) -> Figures:
    """Figures that only need the cached latents."""
    model, x, z = calibrated.model, run.split.test.x, run.latents.test_z.double()
    log_det = run.latents.test_log_det.double()
    u = latent_pit(model(x), z)
    terms = nll_decomposition(model, x, z)
    own, base = model(x).log_prob(z), run.flow.base.log_prob(z)
    return {
        **_nll(own + log_det, base + log_det),
        "nll_latent": float(terms.latent.mean()),
        "nll_radial": float(terms.radial.mean()),
        "nll_flow": float((terms.flow - log_det).mean()),
        "l_ece": float(calibration_error(u)),
        "latent_curve": _curve(u),
        "coverage": _coverage(u),
    }


def _of_samples(run: TrainedRun, calibrated: Calibrated, samples: int) -> Figures:
    x, y = run.split.test
    model, z = calibrated.model, run.latents.test_z.double()
    log_prob = model(x).log_prob(z) + run.latents.test_log_det.double()
    scores, pits, log_volumes = [], [], []
    for part in draw_samples(run, model, samples):
        scores.append(energy_score(part.y, y[part.rows].to(part.y.dtype)).double())
        pits.append((part.log_prob >= log_prob[part.rows]).double().mean(0))
        inside = (-part.log_prob).masked_fill(part.u > REGION, -math.inf)
        log_volumes.append(torch.logsumexp(inside, 0) - math.log(samples))
    u, log_volume = torch.cat(pits), torch.cat(log_volumes)
    return {
        "sampled_rows": len(u),
        "energy_score": float(torch.cat(scores).mean()),
        "hdr_ece": float(calibration_error(u)),
        "hdr_curve": _curve(u),
        "log_volume": float(log_volume.mean()),
        "median_volume": float(torch.exp(log_volume.median())),
    }


def _of_prerank(run: TrainedRun, calibrated: Calibrated, samples: int) -> Figures:
    """Figures of HDR recalibration: samples of the base, weighted as its resampling would choose them."""
    prerank, (x, y) = calibrated.prerank, run.split.test
    assert prerank is not None
    z = run.latents.test_z.double()
    base = calibrated.model(x).log_prob(z) + run.latents.test_log_det.double()
    parts = [
        _resample(prerank, part, y[part.rows], base[part.rows])
        for part in draw_samples(run, calibrated.model, prerank.samples)
    ]
    scores, u, rank = (torch.cat(column) for column in zip(*parts, strict=True))
    law: Any = prerank.recalibration.law  # of ranks: the published method resamples
    tilt = law.log_rank_ratio(prerank.samples)[rank]
    return {
        "sampled_rows": len(u),
        **_nll_of_tilt(tilt, base),
        "energy_score": float(scores.mean()),
        "hdr_ece": float(calibration_error(u.clamp(0, 1))),
        "hdr_curve": _curve(u.clamp(0, 1)),
        "coverage": _coverage(u.clamp(0, 1)),
    }


class _Resampled(NamedTuple):
    scores: Tensor
    u: Tensor
    rank: Tensor


def _resample(prerank: PrerankRecalibrated, part: Draws, y: Tensor, log_prob: Tensor) -> _Resampled:
    """Energy score, HDR PIT and rank of rows (m,), averaged over the resampling of their candidates."""
    order = part.log_prob.argsort(0, descending=True)
    shares = torch.tensor(prerank.quotas, dtype=torch.float64) / sum(prerank.quotas)
    sizes = torch.tensor(prerank.pools).diff()
    densest_first = part.y.gather(0, order[..., None].expand_as(part.y))
    scores = pooled_energy_score(densest_first, y, sizes, shares)
    share_up_to = torch.cat([shares.new_zeros(1), (shares / sizes).repeat_interleave(sizes).cumsum(0)])
    at_least = (part.log_prob >= log_prob).sum(0)
    return _Resampled(scores, share_up_to[at_least], (part.log_prob > log_prob).sum(0))


def pooled_energy_score(samples: Tensor, y: Tensor, sizes: Tensor, shares: Tensor) -> Tensor:
    r"""Energy score of each observation for samples drawn from pools with different shares.

    .. math:: \sum_i w_i \lVert y_i' - y \rVert
              - \tfrac12 \sum_{i \ne j} w_{ij} \lVert y_i' - y_j' \rVert, \qquad
              w_i = \frac{p_b}{m_b}, \quad
              w_{ij} = w_i w_j \cdot \begin{cases} m_b / (m_b - 1) & \text{in one pool } b \\
              1 & \text{else} \end{cases}

    with :math:`m_b` samples and a share :math:`p_b` of pool b: what two independent sets, each drawn from its
    own pools, would give on average. With one pool it is :func:`latentcal.metrics.energy_score`.

    Args:
        samples: (s, n, d), one pool after the other.
        y: (n, d) observations.
        sizes: (b,) numbers of samples of the pools, at least 2 each.
        shares: (b,) of sum 1.

    Returns:
        (n,) float64 scores.
    """
    points, y = samples.double().transpose(0, 1), y.double()
    pool = torch.arange(len(sizes)).repeat_interleave(sizes)
    w = (shares / sizes)[pool]
    pairs = torch.outer(w, w) * torch.where(pool[:, None] == pool, (sizes / (sizes - 1))[pool], 1.0)
    pairs.fill_diagonal_(0.0)
    misfit = torch.linalg.vector_norm(points - y[:, None], dim=-1) @ w
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return misfit - (distances * pairs).sum((1, 2)) / 2


def _guard(figures_of: Any, run: TrainedRun, calibrated: Calibrated, samples: int) -> Figures:
    try:
        return {"sampling_error": None, **figures_of(run, calibrated, samples)}
    except FloatingPointError as error:
        return {"sampling_error": str(error)}


def _nll(log_prob: Tensor, base: Tensor) -> Figures:
    excess = base - log_prob  # of the negative log-likelihood over that of the base
    error = float(excess.std() / math.sqrt(len(excess))) if bool(torch.isfinite(excess).all()) else math.inf
    nll, difference = float(-log_prob.mean()), float(excess.mean())
    return {"nll": nll, "nll_minus_base": difference, "nll_minus_base_se": error}


def _nll_of_tilt(tilt: Tensor, base: Tensor) -> Figures:
    """NLL on all rows (n,), from the base's and the log ratio to it on the first (m,)."""
    figures = _nll(base[: len(tilt)] + tilt, base[: len(tilt)])
    return figures | {"nll": figures["nll_minus_base"] - float(base.mean())}


def _curve(u: Tensor) -> list[float]:
    """Share of u at or below each level of ``CURVE``."""
    return [round(value, 5) for value in empirical_coverage(u, CURVE).tolist()]


def _coverage(u: Tensor) -> dict[str, float]:
    shares = empirical_coverage(u, LEVELS).tolist()
    return {f"{level:g}": share for level, share in zip(LEVELS, shares, strict=True)}


def _has_nan(value: Any) -> bool:
    return any(isinstance(number, float) and math.isnan(number) for number in _numbers(value))


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    else:
        yield value
