"""Comparisons of the methods of a study: where one is worse, ranks, agreement with the published values."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.stats import friedmanchisquare, rankdata, t, wilcoxon

from latentcal.diagnostics import holm
from latentcal.metrics import ReliabilityCurve, reliability_curve

from .datasets import find
from .estimates import Estimate, estimate, joint_errors, paired_difference
from .evaluate import CURVE
from .published import published_figure
from .store import DONE, Record
from .study_cells import Cells

SMALL = 1100  # rows
TOLERANCE = 0.01  # of a negative log-likelihood


@dataclass(frozen=True)
class Verdict:
    """The result of a claim on each data set.

    Attributes:
        holds: data sets on which it holds.
        misses: data sets on which it does not, each with the size of the violation.
        unjudged: data sets on which it cannot be judged, each with the reason.
    """

    holds: tuple[str, ...]
    misses: dict[str, float]
    unjudged: dict[str, str]

    @property
    def held(self) -> int:
        """Number of data sets on which it holds."""
        return len(self.holds)

    @property
    def judged(self) -> int:
        """Number of data sets on which it can be judged."""
        return len(self.holds) + len(self.misses)

    @property
    def open(self) -> int:
        """Number of data sets on which it cannot be judged."""
        return len(self.unjudged)


def against_published(
    cells: Cells, metric: str, method: str, limit: float = 2.0, *, heavy_atoms: bool | None = None
) -> Verdict:
    """Data sets on which our mean is better than the published one, or worse by at most ``limit``.

    ``limit`` and the misses are in joint standard errors. Data sets with one seed, or without a published
    figure, are not judged. ``heavy_atoms`` selects data sets with or without them; None for all.
    """
    distances: dict[str, float | str] = {}
    for dataset in cells.datasets:
        if heavy_atoms is not None and _has_heavy_atoms(dataset) != heavy_atoms:
            continue
        ours, theirs = (
            cells.estimate(dataset, method, metric),
            published_figure(cells.suite, dataset, metric, method),
        )
        z = joint_errors(ours, theirs)
        if z is not None:
            distances[dataset] = z
        elif theirs is None:
            distances[dataset] = "not published"
        else:
            distances[dataset] = _why(cells, dataset, method, metric, ours)
    return _verdict(distances, limit)


def _has_heavy_atoms(dataset: str) -> bool | None:
    """Whether a target has the same value in most rows; None where that is not known."""
    try:
        return find(dataset).heavy_atoms
    except ValueError:  # a set of the user's own
        return None


def better_than_published(cells: Cells, metric: str, method: str, limit: float = 2.0) -> int:
    """Number of data sets on which our mean is lower than published by more than ``limit`` joint errors."""
    distances = [
        joint_errors(
            cells.estimate(dataset, method, metric), published_figure(cells.suite, dataset, metric, method)
        )
        for dataset in cells.datasets
    ]
    return sum(z is not None and z < -limit for z in distances)


def not_above(cells: Cells, metric: str, method: str, other: str, limit: float = 2.0) -> Verdict:
    """Data sets on which a method's mean exceeds another's by at most ``limit`` joint standard errors."""
    distances: dict[str, float | str] = {}
    for dataset in cells.datasets:
        ours, theirs = (cells.estimate(dataset, name, metric) for name in (method, other))
        z = joint_errors(ours, theirs)
        missing = method if ours is None or ours.n == 1 else other
        found = ours if missing == method else theirs
        distances[dataset] = z if z is not None else _why(cells, dataset, missing, metric, found)
    return _verdict(distances, limit)


def differences(cells: Cells, method: str, other: str, metric: str = "nll") -> dict[str, Estimate]:
    """Mean difference to another method with its paired standard error, over seeds, by data set."""
    found = {
        dataset: paired_difference(
            cells.values(dataset, method, metric), cells.values(dataset, other, metric)
        )
        for dataset in cells.datasets
    }
    return {dataset: difference for dataset, difference in found.items() if difference is not None}


def not_worse(
    cells: Cells, method: str, other: str, metric: str = "nll", by: float = TOLERANCE, errors: float = 2.0
) -> Verdict:
    """Data sets on which a method is not worse by more than ``by`` and ``errors`` paired standard errors.

    The misses are the mean differences. A data set with one seed is judged only if the difference is at most
    ``by``, or infinite.
    """
    found = differences(cells, method, other, metric)
    holds, misses, unjudged = [], {}, {}
    for dataset in cells.datasets:
        difference = found.get(dataset)
        if difference is None:
            unjudged[dataset] = "no seed that both have"
        elif difference.mean <= by:
            holds.append(dataset)
        elif math.isinf(difference.mean):
            misses[dataset] = difference.mean
        elif difference.standard_error is None:
            unjudged[dataset] = "one seed"
        elif difference.mean > errors * difference.standard_error:
            misses[dataset] = difference.mean
        else:
            holds.append(dataset)
    return Verdict(tuple(holds), misses, unjudged)


@dataclass(frozen=True)
class HarmTests:
    """Tests of all cells together: whether a method is worse than another by more than a tolerance.

    Attributes:
        p_values: Holm's adjusted one-sided p-values by (suite, data set).
        harmed: the cells with a p-value at the level or below, and their mean differences.
        unjudged: cells with one seed only, or with no seed that both have.
        within: number of cells whose mean difference is at most the tolerance.
        shown: number of cells where the opposite test, without adjustment, shows that it is no larger.
    """

    p_values: dict[tuple[str, str], float]
    harmed: dict[tuple[str, str], float]
    unjudged: tuple[tuple[str, str], ...]
    within: int
    shown: int


def harm_tests(
    studies: Iterable[Cells],
    method: str,
    other: str,
    metric: str = "nll",
    by: float = TOLERANCE,
    level: float = 0.05,
) -> HarmTests:
    """Student's paired test in every cell that a method is worse than another by more than ``by``.

    An infinite mean difference has p = 0; differences without spread have p = 0 above the tolerance, else 1.
    """
    found: dict[tuple[str, str], tuple[float, float]] = {}
    unjudged = []
    for cells in studies:
        known = differences(cells, method, other, metric)
        for dataset in cells.datasets:
            difference, place = known.get(dataset), (cells.suite, dataset)
            if difference is None or (difference.standard_error is None and not difference.infinite):
                unjudged.append(place)
                continue
            error, excess = difference.standard_error, difference.mean - by
            p = float(t.sf(excess / error, difference.n - 1)) if error else float(excess <= 0)
            found[place] = (p, difference.mean)
    adjusted = dict(zip(found, holm([p for p, _ in found.values()]), strict=True))
    harmed = {place: found[place][1] for place, p in adjusted.items() if p <= level}
    within = sum(mean <= by for _, mean in found.values())
    shown = sum(1 - p <= level for p, _ in found.values())
    return HarmTests(adjusted, harmed, tuple(unjudged), within, shown)


def lower_mean(
    cells: Cells, method: str, other: str, metric: str = "nll", *, below: int | None = None
) -> Verdict:
    """Data sets on which a method's mean is lower than another's, over common seeds.

    Args:
        cells: records of a suite.
        method: the method.
        other: the one that it is compared with.
        metric: one of ``MEASURES``.
        below: only data sets with fewer rows; all if None.
    """
    found = differences(cells, method, other, metric)
    holds, misses, unjudged = [], {}, {}
    for dataset in cells.datasets:
        rows = cells.rows(dataset)
        if below is not None and (rows is None or rows >= below):
            continue
        if dataset not in found:
            unjudged[dataset] = "no seed that both have"
        elif found[dataset].mean < 0:
            holds.append(dataset)
        else:
            misses[dataset] = found[dataset].mean
    return Verdict(tuple(holds), misses, unjudged)


@dataclass(frozen=True)
class Ranks:
    """Ranks of methods, 1 for the lowest mean, ties sharing theirs.

    Attributes:
        by_case: for each (suite, data set) the rank of every method.
        left_out: cases in which some methods have no figure, with these methods.
    """

    by_case: dict[tuple[str, str], dict[str, float]]
    left_out: dict[tuple[str, str], tuple[str, ...]]

    @property
    def mean(self) -> dict[str, float]:
        """Mean rank by method, best first."""
        methods = next(iter(self.by_case.values()), {})
        means = {name: statistics.fmean(ranks[name] for ranks in self.by_case.values()) for name in methods}
        return dict(sorted(means.items(), key=lambda pair: pair[1]))


@dataclass(frozen=True)
class RankTests:
    """Tests of the hypothesis that methods rank alike; the data sets are the independent cases.

    The rank of a method on a data set is its mean over the suites, since base flows of one data set share
    its rows.

    Attributes:
        datasets: number of data sets.
        p_value: of Friedman's test of all methods.
        pairs: for each two methods, the better one first, Holm's adjusted p-value of Wilcoxon's signed-rank
            test of their ranks.
    """

    datasets: int
    p_value: float
    pairs: dict[tuple[str, str], float]

    def alike(self, level: float = 0.05) -> list[tuple[str, ...]]:
        """Largest groups of neighbouring methods of which no two differ at the level, the best first."""
        names = list(dict.fromkeys(name for pair in self.pairs for name in pair))
        groups: list[tuple[str, ...]] = []
        for first, last in itertools.combinations(range(len(names)), 2):
            group = tuple(names[first : last + 1])
            if all(self.pairs[pair] > level for pair in itertools.combinations(group, 2)):
                groups = [known for known in groups if not set(known) <= set(group)]
                if not any(set(group) <= set(known) for known in groups):
                    groups.append(group)
        return groups


def compare_ranks(ranked: Ranks) -> RankTests:
    """Friedman's test of all methods and Wilcoxon's test of each two, over data sets.

    Args:
        ranked: ranks of at least three methods on at least two data sets.
    """
    names = list(ranked.mean)
    by_dataset: dict[str, list[dict[str, float]]] = {}
    for (_, dataset), case in ranked.by_case.items():
        by_dataset.setdefault(dataset, []).append(case)
    columns = [
        np.array([statistics.fmean(case[name] for case in cases) for cases in by_dataset.values()])
        for name in names
    ]
    if len(names) < 3 or len(by_dataset) < 2:
        raise ValueError(
            "Tests of ranks need at least three methods on two data sets, got "
            f"{len(names)} on {len(by_dataset)}."
        )
    pairs = list(itertools.combinations(range(len(names)), 2))
    p_values = [
        float(wilcoxon(columns[a], columns[b], zero_method="pratt").pvalue)
        if (columns[a] != columns[b]).any()
        else 1.0
        for a, b in pairs
    ]
    tied = all((column == columns[0]).all() for column in columns)
    return RankTests(
        len(by_dataset),
        1.0 if tied else float(friedmanchisquare(*columns).pvalue),
        {(names[a], names[b]): p for (a, b), p in zip(pairs, holm(p_values), strict=True)},
    )


def ranks(studies: Iterable[Cells], metric: str = "nll", methods: Sequence[str] | None = None) -> Ranks:
    """Ranks of the methods' means over seeds, in every suite and data set with figures of all methods.

    Only seeds that all methods have are used.

    Args:
        studies: records of one or more suites.
        metric: one of ``MEASURES``.
        methods: methods to rank; None for all methods with a record.
    """
    studies = list(studies)
    names = methods or list(dict.fromkeys(name for cells in studies for name in cells.methods))
    by_case, left_out = {}, {}
    for cells in studies:
        for dataset in cells.datasets:
            values = {name: cells.values(dataset, name, metric) for name in names}
            common = set.intersection(*(set(found) for found in values.values()))
            if common:
                by_case[cells.suite, dataset] = rank_values(
                    {name: _mean(values[name], common) for name in names}
                )
            else:
                lacking = tuple(name for name, found in values.items() if len(found) < len(cells.seeds))
                left_out[cells.suite, dataset] = lacking
    return Ranks(by_case, left_out)


def median_differences(
    studies: Iterable[Cells], method: str, metric: str = "nll"
) -> dict[str, tuple[float, int]]:
    """Median paired mean difference to each other method over suites and data sets, and their number."""
    pooled: dict[str, list[float]] = {}
    for cells in studies:
        for other in cells.methods:
            if other != method:
                found = differences(cells, method, other, metric).values()
                pooled.setdefault(other, []).extend(difference.mean for difference in found)
    return {other: (statistics.median(values), len(values)) for other, values in pooled.items() if values}


def _mean(values: dict[int, float], seeds: Iterable[int]) -> float:
    found = estimate(values[seed] for seed in seeds)
    assert found is not None
    return found.mean


def rank_values(means: dict[str, float]) -> dict[str, float]:
    """Rank of each mean; ties share the mean rank."""
    return dict(zip(means, rankdata([*means.values()]).tolist(), strict=True))


def _verdict(distances: dict[str, float | str], limit: float) -> Verdict:
    judged = {name: z for name, z in distances.items() if not isinstance(z, str)}
    return Verdict(
        tuple(name for name, z in judged.items() if z <= limit),
        {name: z for name, z in judged.items() if z > limit},
        {name: why for name, why in distances.items() if isinstance(why, str)},
    )


def _why(cells: Cells, dataset: str, method: str, metric: str, found: Estimate | None) -> str:
    if found is None:
        return next(iter(cells.why_missing(dataset, method, metric).values()), "not run")
    return "infinite" if found.infinite else "one seed"


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
    """Number of test rows behind a curve or an error."""
    sampled = record.get("sampled_rows") if name in ("hdr_curve", "hdr_ece") else None
    return int(sampled or record["n_test"])


def leaves_band(record: Record, name: str = "latent_curve", confidence: float = CONFIDENCE) -> bool:
    """Whether the curve of a record leaves the simultaneous band at any of its levels."""
    curve = curve_of(record, name, confidence)
    inside = (curve.simultaneous_lower <= curve.frequency) & (curve.frequency <= curve.simultaneous_upper)
    return not bool(inside.all())


def lower_where_base_leaves_band(cells: Cells, method: str) -> Verdict:
    """Data sets on which a method lowers the mean L-ECE of BASE, over seeds where BASE leaves its 90 % band.

    The misses are the mean differences. Data sets on which BASE stays in its band are not counted.
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
        difference = paired_difference(ours, base)
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
