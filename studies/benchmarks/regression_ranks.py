"""Tables of the comparison of regressors: values by table, mean ranks, paired differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.stats import rankdata

from .regression_scores import COVERAGE
from .regression_tables import DISCRETE

Record = dict[str, str]
Rows = dict[tuple[str, int, str], np.ndarray]  # values of the test rows by table, split and method
RANKED = (
    "nll",
    "energy",
    "variogram",
    "interval",
    "hdr_ece",
    "depth_ece",
    "marginal_ece",
    "rmse",
    "coverage",
)
SMALL = 1000  # rows of a table that counts as small, at most
SUBSETS: dict[str, Callable[[str, int], bool]] = {
    "all": lambda table, rows: True,
    "small": lambda table, rows: rows <= SMALL,
    "large": lambda table, rows: rows > SMALL,
    "not discrete": lambda table, rows: table not in DISCRETE,
}


def mean_values(records: Iterable[Record], metric: str) -> dict[str, dict[str, float]]:
    """Mean of a metric by table and method over the splits that all methods have; infinite after a failure.

    A method that was stopped at its time limit, or that lacks the metric, is omitted. Coverage is replaced by
    its distance to the nominal coverage.
    """
    values: dict[str, dict[str, dict[str, float]]] = {}
    for record in records:
        value = math.inf if record["status"].startswith("failed") else float(record[metric])
        if not math.isnan(value):
            by_method = values.setdefault(record["table"], {})
            by_method.setdefault(record["method"], {})[record["split"]] = value
    means: dict[str, dict[str, float]] = {}
    for table, by_method in values.items():
        if common := set.intersection(*map(set, by_method.values())):
            means[table] = {m: sum(own[s] for s in common) / len(common) for m, own in by_method.items()}
            if metric == "coverage":
                means[table] = {m: abs(value - COVERAGE) for m, value in means[table].items()}
    return means


def mean_ranks(values: dict[str, dict[str, float]]) -> dict[str, tuple[float, int]]:
    """Mean rank of each method over the tables with a value, and their number; ties share ranks."""
    ranks: dict[str, list[float]] = {}
    for by_method in values.values():
        for method, rank in zip(by_method, rankdata(list(by_method.values())), strict=True):
            ranks.setdefault(method, []).append(float(rank))
    return {method: (sum(own) / len(own), len(own)) for method, own in ranks.items()}


def paired_difference(rows: Rows, table: str, one: str, other: str) -> tuple[float, float] | None:
    """Mean difference of two methods over the splits, with its standard error; None if one has no value.

    The error is that of the rows within the splits. Splits share rows, so it is slightly too small.
    """
    splits = [split for name, split, method in rows if (name, method) == (table, one)]
    pairs = [(rows[table, s, one], rows.get((table, s, other))) for s in splits]
    gaps = [own - base for own, base in pairs if base is not None]
    if not gaps:
        return None
    mean = sum(float(gap.mean()) for gap in gaps) / len(gaps)
    return mean, math.sqrt(sum(float(gap.var(ddof=1)) / len(gap) for gap in gaps)) / len(gaps)


def show_values(records: Sequence[Record], methods: Sequence[str], metric: str) -> str:
    """Table of values by data set and method, in Markdown; the best are bold."""
    means = mean_values(records, metric)
    sizes = {record["table"]: (int(record["rows"]), record["outputs"]) for record in records}
    shown = [method for method in methods if any(method in by_method for by_method in means.values())]
    lines = [["table", "n", "d", *shown], ["---"] * (3 + len(shown))]
    for table in sorted(means, key=lambda name: sizes[name][0]):
        by_method = means[table]
        best = min(by_method.values())
        cells = [f"{by_method[m]:.3f}" if m in by_method else "" for m in shown]
        bold = [f"**{c}**" if by_method.get(m) == best else c for m, c in zip(shown, cells, strict=True)]
        lines.append([table, f"{sizes[table][0]:,}", sizes[table][1], *bold])
    return _markdown(lines)


def show_ranks(records: Sequence[Record], methods: Sequence[str], subset: str) -> str:
    """Mean ranks of the methods on a subset of the tables, with the CPU seconds of a fit, in Markdown."""
    keep = SUBSETS[subset]
    records = [record for record in records if keep(record["table"], int(record["rows"]))]
    ranks = {metric: mean_ranks(mean_values(records, metric)) for metric in RANKED}
    seconds: dict[str, list[float]] = {}
    regions: dict[str, list[float]] = {}
    for record in records:
        if not math.isnan(spent := float(record["seconds"])):  # else it was stopped on an earlier split
            seconds.setdefault(record["method"], []).append(spent)
        if not math.isnan(region := float(record["region_coverage"])):
            regions.setdefault(record["method"], []).append(region)
    lines = [["method", "tables", *RANKED, "region coverage", "median seconds"]]
    lines.append(["---"] * len(lines[0]))
    for method in (m for m in methods if m in ranks["energy"]):
        cells = [f"{ranks[metric][method][0]:.2f}" if method in ranks[metric] else "" for metric in RANKED]
        region = f"{np.mean(regions[method]):.3f}" if method in regions else ""
        count = str(ranks["energy"][method][1])
        lines.append([method, count, *cells, region, f"{np.median(seconds[method]):.1f}"])
    return _markdown(lines)


def show_differences(rows: Rows, methods: Sequence[str], base: str) -> str:
    """Paired differences of each method to one of them, with two standard errors, in Markdown."""
    tables = list(dict.fromkeys(table for table, _, _ in rows))
    shown = [m for m in methods if m != base and any(method == m for _, _, method in rows)]
    lines = [["table", *shown], ["---"] * (1 + len(shown))]
    for table in tables:
        gaps = [paired_difference(rows, table, method, base) for method in shown]
        lines.append([table, *("" if gap is None else f"{gap[0]:+.3f} ± {2 * gap[1]:.3f}" for gap in gaps)])
    return _markdown(lines)


def show_stopped(records: Iterable[Record]) -> str:
    """Methods without a result, with the tables and the reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["status"] != "ok":
            reasons.setdefault((record["method"], record["status"]), []).append(record["table"])
    return "\n".join(
        f"{method}, {status}: {', '.join(dict.fromkeys(tables))}"
        for (method, status), tables in reasons.items()
    )


def _markdown(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
