"""Published figures by suite, data set, metric and method.

They are the numbers of the tables of *Multivariate Latent Recalibration for Conditional Normalizing Flows*
(Dheur and Ben Taieb, NeurIPS 2025): means and standard errors over 10 runs, with the weights of the last
epoch and sizes from a grid search.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple

from ..datasets import find

BASE_MODELS = {
    "convex-potential": "convex_potential",
    "maf": "maf",
    "flow-matching": "flow_matching",
    "misspecified": "misspecified_convex_potential",
    "quick": "convex_potential",
}
BASE_MODELS |= {
    f"{kind}-{name}": model
    for name, model in BASE_MODELS.items()
    for kind in ("tuned", "smoothed")
    if name != "quick" and (kind, name) != ("smoothed", "misspecified")
}
"""Published base model by suite."""

PUBLISHED_AS = {"BASE": "BASE", "LR-KDE": "LR", "HDR-R": "HDR-R"}
"""Published name by method; the other methods are not published."""

_TERMS = {
    ("BASE", "nll_latent"): "BASE -log f_Z(z)",
    ("LR-KDE", "nll_latent"): "LR -log f_Z(z)",
    ("LR-KDE", "nll_radial"): "LR -log|det R|^-1",
    ("BASE", "nll"): "BASE nll",
    ("LR-KDE", "nll"): "LR nll",
}


class PublishedFigure(NamedTuple):
    """A published mean over 10 runs, its standard error, and whether it was printed in bold."""

    mean: float
    standard_error: float
    bold: bool


def published_figure(suite: str, dataset: str, metric: str, method: str) -> PublishedFigure | None:
    """The published figure; None if there is none.

    Args:
        suite: name of a suite, which stands for its base model.
        dataset: full name or abbreviation.
        metric: ``"nll"``, ``"energy_score"``, ``"l_ece"`` or ``"hdr_ece"``.
        method: one of ``METHODS``.

    Examples:
        >>> published_figure("convex-potential", "slump", "nll", "LR-KDE")
        PublishedFigure(mean=2.29, standard_error=0.14, bold=True)
        >>> published_figure("convex-potential", "slump", "nll", "LR-stacked") is None
        True
    """
    name = PUBLISHED_AS.get(method)
    return _results().get((_base_model(suite), _abbreviation(dataset), metric, name or ""))


def published_terms(suite: str, dataset: str) -> dict[tuple[str, str], float]:
    """Published terms of the negative log-likelihood by (method, term); empty where there are none.

    The terms are ``nll_latent``, ``nll_radial`` and their sum with the flow's term, ``nll``. In the paper,
    this table and that of the results contradict each other.
    """
    return _terms().get((_base_model(suite), _abbreviation(dataset)), {})


def published_seconds(suite: str, dataset: str) -> dict[str, float]:
    """Published calibration times in seconds by method, on an RTX A6000; empty where there are none."""
    return _seconds().get((_base_model(suite), _abbreviation(dataset)), {})


def published_sets() -> tuple[str, ...]:
    """Full names of the data sets of the published tables, small ones first."""
    entries = {find(key[1]) for key in _results()}
    return tuple(entry.name for entry in sorted(entries, key=lambda entry: (entry.shape[0], entry.name)))


def _base_model(suite: str) -> str:
    if suite not in BASE_MODELS:
        raise ValueError(f"There is no suite {suite!r}; choose one of {', '.join(BASE_MODELS)}.")
    return BASE_MODELS[suite]


def _abbreviation(dataset: str) -> str:
    try:
        return find(dataset).abbreviation
    except ValueError:  # a set of the user's own
        return ""


@cache
def _results() -> dict[tuple[str, str, str, str], PublishedFigure]:
    return {
        (row["base_model"], row["dataset"], row["metric"], row["method"]): PublishedFigure(
            float(row["mean"]), float(row["standard_error"]), row["bold"] == "1"
        )
        for row in _rows("results.csv")
    }


@cache
def _terms() -> dict[tuple[str, str], dict[tuple[str, str], float]]:
    keys = {term: key for key, term in _TERMS.items()}
    table: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in _rows("nll_decomposition.csv"):
        terms = table.setdefault((row["base_model"], row["dataset"]), {})
        terms[keys[row["term"]]] = float(row["mean"])
    return table


@cache
def _seconds() -> dict[tuple[str, str], dict[str, float]]:
    return {
        (row["base_model"], row["dataset"]): {
            method: float(row[name]) for method, name in PUBLISHED_AS.items() if name in row
        }
        for row in _rows("calibration_seconds.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    with resources.files(__package__).joinpath(name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
