"""Curves of records against the bands in which those of calibrated models lie."""

from __future__ import annotations

import dataclasses
from functools import cache

import torch

from latentcal.metrics import ReliabilityCurve, reliability_curve

from .cells import Cells
from .comparisons import Verdict
from .estimates import paired
from .evaluate import CURVE
from .store import DONE, Record

CONFIDENCE = 0.9


def curve_of(record: Record, name: str = "latent_curve", confidence: float = CONFIDENCE) -> ReliabilityCurve:
    """Reliability curve of a record, with the bands of as many test rows; it has no p-values.

    Args:
        record: one that is done.
        name: ``"latent_curve"`` or ``"hdr_curve"``.
        confidence: probability with which the curve of a calibrated model lies in a band.
    """
    if record.get(name) is None:
        why = record.get("sampling_error") or "its method has none"
        raise ValueError(f"The record {record['id']} has no {name}: {why}.")
    frequency = torch.tensor(record[name], dtype=torch.float64)
    return dataclasses.replace(_bands(rows_of(record, name), confidence), frequency=frequency, p_values={})


def rows_of(record: Record, name: str) -> int:
    """Test rows that a curve or an error rests on."""
    sampled = record.get("sampled_rows") if name in ("hdr_curve", "hdr_ece") else None
    return int(sampled or record["n_test"])


def leaves_band(record: Record, name: str = "latent_curve", confidence: float = CONFIDENCE) -> bool:
    """Whether the curve of a record leaves the simultaneous band somewhere, as far as its levels show."""
    curve = curve_of(record, name, confidence)
    inside = (curve.simultaneous_lower <= curve.frequency) & (curve.frequency <= curve.simultaneous_upper)
    return not bool(inside.all())


def lower_where_base_leaves_band(cells: Cells, method: str) -> Verdict:
    """Where a method lowers the mean L-ECE of BASE, over the seeds in which BASE leaves its 90 % band.

    The misses are the mean differences; data sets in which BASE stays in its band are no cases.
    """
    holds, misses, unjudged = [], {}, {}
    for dataset in cells.datasets:
        curves = _curves_of_base(cells, dataset)
        seeds = [seed for seed, record in curves.items() if leaves_band(record)]
        if not curves:
            unjudged[dataset] = "no curve of BASE"
        if not seeds:
            continue
        ours, base = (
            {s: v for s, v in cells.values(dataset, name, "l_ece").items() if s in seeds}
            for name in (method, "BASE")
        )
        difference = paired(ours, base)
        if difference is None:
            unjudged[dataset] = "no seed that both have"
        elif difference.mean < 0:
            holds.append(dataset)
        else:
            misses[dataset] = difference.mean
    return Verdict(tuple(holds), misses, unjudged)


def _curves_of_base(cells: Cells, dataset: str) -> dict[int, Record]:
    """Records of BASE that have a latent curve, by seed."""
    found = {seed: cells.records.get((dataset, "BASE", seed), {}) for seed in cells.seeds}
    return {s: r for s, r in found.items() if r.get("status") == DONE and r.get("latent_curve") is not None}


@cache
def _bands(n: int, confidence: float) -> ReliabilityCurve:
    uniform = torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)
    return reliability_curve(uniform, CURVE, confidence)
