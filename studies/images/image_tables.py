"""Tables of the image experiment, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..estimates import Estimate, estimate, paired
from .scores import ALL, BASE

Record = dict[str, Any]

PUBLISHED = {
    "l_ece": {BASE: Estimate(0.474, 0.000625, 20), "LR-KDE": Estimate(0.00895, 0.00160, 20)},
    "bpd": {BASE: Estimate(5.477, 3.523e-05, 20), "LR-KDE": Estimate(5.465, 1.772e-05, 20)},
}
"""AFHQ at 256 x 256, calibrated on training images (Dheur and Ben Taieb, 2025)."""

PUBLISHED_SECONDS = {"HDR-R": 183_182.0, "LR": 1_259.0}
"""Calibration on CIFAR-10, from the same paper."""


def scores_table(records: Sequence[Record]) -> str:
    """L-ECE, BPD and its paired change of every method and calibration set, over all test images."""
    lines = ["| calibrated on | method | L-ECE | BPD | change of BPD |", "|---|---|---|---|---|"]
    for calibration, method in _rows(records):
        own = _select(records, calibration, method, ALL)
        cells = [_cell(own, "l_ece", 4), _cell(own, "bpd", 5), _change(records, own)]
        lines.append(f"| {calibration or '-'} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def classes_table(records: Sequence[Record], calibration: str, methods: Sequence[str]) -> str:
    """L-ECE and BPD of each class."""
    columns = [(measure, method) for measure in ("l_ece", "bpd") for method in methods]
    titles = [f"{'L-ECE' if measure == 'l_ece' else 'BPD'}, {method}" for measure, method in columns]
    lines = [f"| class | images | {' | '.join(titles)} |", "|---" * (2 + len(columns)) + "|"]
    for name in dict.fromkeys(record["class"] for record in records):
        cells = []
        for measure, method in columns:
            own = _select(records, "" if method == BASE else calibration, method, name)
            cells.append(_cell(own, measure, 3 if measure == "l_ece" else 4))
        images = next(record["images"] for record in records if record["class"] == name)
        lines.append(f"| {name} | {images} | {' | '.join(cells)} |")
    return "\n".join(lines)


def beside_published(records: Sequence[Record], calibration: str) -> str:
    """Our figures with the published law, calibrated as in the paper, beside the published ones."""
    lines = ["| | L-ECE BASE | L-ECE LR | BPD BASE | BPD LR |", "|---|---|---|---|---|"]
    published, ours = [], []
    for measure, digits in (("l_ece", 4), ("bpd", 5)):
        for method in (BASE, "LR-KDE"):
            published.append(_shown(PUBLISHED[measure][method], digits))
            own = _select(records, "" if method == BASE else calibration, method, ALL)
            ours.append(_cell(own, measure, digits))
    lines.append(f"| published: 256 x 256, d = 196,608 | {' | '.join(published)} |")
    lines.append(f"| here: 32 x 32, d = 3,072 | {' | '.join(ours)} |")
    return "\n".join(lines)


def mean_of(
    records: Iterable[Record], measure: str, method: str, calibration: str = "", name: str = ALL
) -> float:
    """Mean of a measure over the evaluations."""
    found = estimate(record[measure] for record in _select(records, calibration, method, name))
    if found is None:
        raise ValueError(f"There is no record of {method}, calibrated on {calibration!r}, for {name}.")
    return found.mean


def _select(records: Iterable[Record], calibration: str, method: str, name: str) -> list[Record]:
    wanted = (calibration, method, name)
    return [
        record for record in records if (record["calibration"], record["method"], record["class"]) == wanted
    ]


def _rows(records: Iterable[Record]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((record["calibration"], record["method"]) for record in records))


def _cell(records: Sequence[Record], measure: str, digits: int) -> str:
    return _shown(estimate(record[measure] for record in records), digits)


def _change(records: Sequence[Record], own: Sequence[Record]) -> str:
    """Mean difference of BPD to the base in the same evaluations: the same noise, so the error is small."""
    if own[0]["method"] == BASE:
        return ""
    before = {record["evaluation"]: record["bpd"] for record in _select(records, "", BASE, ALL)}
    after = {record["evaluation"]: record["bpd"] for record in own}
    return _shown(paired(after, before), 5, sign="+")


def _shown(found: Estimate | None, digits: int, sign: str = "") -> str:
    if found is None:
        return ""
    error = "" if found.standard_error is None else f" ± {found.standard_error:.1g}"
    return f"{found.mean:{sign}.{digits}f}{error}"
