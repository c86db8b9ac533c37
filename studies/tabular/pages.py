"""Contents of the pages about the tabular study: tables and sentences computed from the records."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..benchmarks.resumable import read
from .comparisons import (
    SMALL,
    RankTests,
    Verdict,
    against_published,
    compare_ranks,
    differences,
    lower_mean,
    lower_where_base_leaves_band,
    median_differences,
    not_above,
    not_worse,
    ranks,
)
from .formats import format_tables
from .other_settings import METHODS, SETTINGS
from .other_settings import RESULTS as OTHER_SETTINGS
from .published import published_figure
from .spec import WEIGHTS
from .study_cells import Cells, short_name
from .study_tables import tables_of, times_table
from .study_words import (
    ABOUT,
    CAUSES,
    CAUSES_OF_LAWS,
    ENERGY,
    INTRODUCTION,
    LAST,
    MISSES,
    MISSES_OF_LAWS,
    RECORDS,
    REPRODUCED,
    STACKED,
    WHAT_IS_COMPARED,
)

Records = Sequence[dict[str, Any]]

IMAGES = Path("images") / "tabular_study"
SUITES = ("convex-potential", "maf", "flow-matching", "misspecified")
SEARCHED = "searched"
LARGE = 7000  # rows from which calibration times are published
_BARS = {
    "relative_scores": "Relative NLL and energy score",
    "calibration_errors": "Calibration errors",
    "ranks": "Ranks",
}
SHOWN = {
    **dict.fromkeys(SUITES, _BARS),
    "convex-potential": {**_BARS, "predictive_densities_2": "Predictive densities before and after"},
    "misspecified": {
        **_BARS,
        "latent_reliability": "Latent reliability diagrams",
        "hdr_reliability": "HDR reliability diagrams",
        "laws_LR-stacked": "Laws of the latent norm",
    },
}
"""Figures of each suite by file name, and what they show."""


def main_page(found: Records, tuned: Records = ()) -> str:
    """The main page: the comparison, agreement with the published values, and the findings.

    Args:
        found: records of the study.
        tuned: records of the tuned suites, as other settings of the exceptions.
    """
    studies = [cells for cells in (Cells.of(found, name) for name in SUITES) if cells.records]
    searched = {name: Cells.of(tuned, f"tuned-{name}") for name in SUITES}
    parts = [
        "# The tabular study\n",
        INTRODUCTION,
        costs(found),
        in_short(studies),
        WHAT_IS_COMPARED,
        "## Comparison with the published values\n",
        REPRODUCED,
        reproduced([*studies, Cells.of(found, "convex-potential", "last")]),
        MISSES,
        with_other_settings(studies, "BASE", searched),
        CAUSES,
        MISSES_OF_LAWS,
        with_other_settings(studies, "LR-KDE", searched),
        CAUSES_OF_LAWS,
        not_explained(studies, searched),
        "## The stacked law and the published KDE\n",
        stacked_beside_kde(studies),
        STACKED,
        "## The energy score\n",
        ENERGY,
        energy_scores(studies),
        "## All claims\n",
        fenced("claims", studies),
        fenced("ranks", studies),
        f"![Ranks in all suites](../{IMAGES}/ranks.png)\n",
    ]
    for cells in studies:
        parts += [f"## {cells.suite}\n", f"{ABOUT[cells.suite]}\n"]
        if cells.suite == "convex-potential":
            parts += [console(format_tables([times_table(cells, at_least=LARGE)], "text"))]
        folder = IMAGES / cells.suite
        parts += [f"![{title}](../{folder}/{name}.png)\n" for name, title in SHOWN[cells.suite].items()]
    parts.append(RECORDS)
    return "\n".join(parts)


def page_of_tables(found: Records) -> str:
    """All tables, suite by suite."""
    parts = [
        "# Tables of the tabular study\n",
        "[The tabular study](tabular_study.md) describes the methods and the results. "
        "`python -m studies.tabular table` also writes these tables as CSV, LaTeX and HTML.\n",
    ]
    measures = ("nll", "l_ece", "hdr_ece", "energy_score")
    for cells in (Cells.of(found, name) for name in SUITES):
        if cells.records:
            parts += [f"## {cells.suite}\n", f"{ABOUT[cells.suite]}\n"]
            parts += [fenced(name, [cells]) for name in (*measures, "decomposition", "times")]
            parts += [fenced("paired", [cells], method) for method in ("LR-stacked", "auto")]
    last = Cells.of(found, "convex-potential", "last")
    if last.records:
        parts += ["## The weights of the last epoch\n"]
        parts += [LAST, best_and_last(found)]
        parts += [fenced(name, [last]) for name in ("nll", "l_ece")]
    return "\n".join(parts)


def best_and_last(found: Records) -> str:
    """Table of the NLL of best minus last weights, for best epochs before and after the published stop."""
    best, last = (Cells.of(found, "convex-potential", weights).records for weights in WEIGHTS)
    pairs = [(best[place], last[place]) for place in best.keys() & last.keys()]
    done = [pair for pair in pairs if {record["status"] for record in pair} == {"done"}]
    methods = ("BASE", "LR-KDE", "LR-stacked")
    lines = [f"| best epoch | trainings | {' | '.join(methods)} |", "|---|---|" + "---|" * len(methods)]
    for name, later in (("before the published stop", False), ("after it", True)):
        some = [(ours, theirs) for ours, theirs in done if (ours["epoch"] > theirs["epoch"]) == later]
        trainings = {(ours["dataset"], ours["seed"]) for ours, _ in some}
        figures = []
        for method in methods:
            changes = [ours["nll"] - theirs["nll"] for ours, theirs in some if ours["method"] == method]
            lower = sum(change < 0 for change in changes)
            median = f"{statistics.median(changes):+.3f}" if changes else "–"
            figures.append(f"{median} ({lower} of {len(changes)})")
        lines.append(f"| {name} | {len(trainings)} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def console(text: str) -> str:
    return f"```console\n{text.rstrip()}\n```\n"


def fenced(name: str, studies: Sequence[Cells], method: str | None = None) -> str:
    return console(format_tables(tables_of(name, studies, method), "text"))


def costs(found: Records) -> str:
    """Sentences on the number of trainings and evaluations, and their time."""
    trained = {str(record["id"]).split("/")[0]: record for record in found if record["status"] == "done"}
    training = sum(record["train_cpu_seconds"] for record in trained.values()) / 3600
    names = ("calibrate_seconds", "evaluate_seconds")
    rest = sum(record.get(name) or 0.0 for record in found for name in names) / 3600
    failed = sum(record["status"] == "failed" for record in found)
    return (
        f"{len(trained):,} trainings took {training:.1f} hours on one core. {len(found):,} recalibrations "
        f"and evaluations took {rest:.1f} hours; {failed or 'none'} of them failed. The published study took "
        "about 24 hours on an RTX A6000.\n"
    )


def in_short(studies: Sequence[Cells]) -> str:
    """The main findings, counted over cells: a data set under a base flow."""
    base = total_of([against_published(cells, "nll", "BASE") for cells in studies])
    error = total_of([against_published(cells, "l_ece", "LR-KDE") for cells in studies])
    lowered = total_of([lower_where_base_leaves_band(cells, "LR-stacked") for cells in studies])
    raised = total_of([not_above(cells, "l_ece", "LR-stacked", "BASE") for cells in studies])
    harmless = total_of([not_worse(cells, "LR-stacked", "BASE") for cells in studies])
    harmless_auto = total_of([not_worse(cells, "auto", "BASE") for cells in studies])
    small = total_of([lower_mean(cells, "LR-stacked", "LR-KDE", below=SMALL) for cells in studies])
    every = total_of([lower_mean(cells, "LR-stacked", "LR-KDE") for cells in studies])
    ranked = ranks(studies)
    tests = compare_ranks(ranked)
    (first, best), (second, next_best) = list(ranked.mean.items())[:2]
    single = sum(len(cells.values(name, "HDR-R", "nll")) == 1 for cells in studies for name in cells.datasets)
    gaps = [median for median, _ in median_differences(studies, first).values()]
    return "\n".join(
        [
            f"## In short\n\nA cell is a combination of a data set and a base flow. Of the cells, "
            f"{seeds_of(studies)}.\n",
            f"- The NLL of the base flows matches or beats the published value in {base}; the L-ECE after "
            f"the published recalibration does so in {error} "
            "([definition and exceptions](#comparison-with-the-published-values)).",
            "- A reliability curve *leaves its band* if, at some level, it leaves the simultaneous 90 % band "
            "of a calibrated model. With five seeds, the curve of a calibrated flow does so for at least one "
            "seed in about 41 % of cells. Where the curve of the base flow does so, recalibration with the "
            f"stacked law lowers the mean L-ECE over these seeds in {lowered}. In {raised}, it does not "
            "raise the L-ECE by more than two joint standard errors.",
            "- Harm is counted if the mean NLL rises by more than 0.01 nats and also by more than two paired "
            f"standard errors. In {harmless}, recalibration with the stacked law does no such harm. The "
            f"same holds for `auto` in {harmless_auto}. With three to five seeds, small harm is not "
            "detected.",
            f"- The stacked law has a lower mean NLL than the published KDE in {small} with fewer than "
            f"{SMALL:,} rows, and in {every} of any size.",
            f"- `{first}` has the best mean rank in NLL of {len(ranked.mean)} methods, {best:.2f} ({second}: "
            f"{next_best:.2f}; LR-KDE: {ranked.mean['LR-KDE']:.2f}), over {len(ranked.by_case)} cells. Its "
            f"median difference in NLL from the other methods is between {min(gaps):.2f} and "
            f"{max(gaps):.3f}. HDR-R was run with one seed in {single} of these cells, so their ranks are "
            "those of seed 0.",
            f"- {ranks_that_differ(tests)}\n",
        ]
    )


def ranks_that_differ(tests: RankTests, level: float = 0.05) -> str:
    """A sentence on the tests of ranks."""
    different = sum(p <= level for p in tests.pairs.values())
    alike = " and ".join(f"({', '.join(group)})" for group in tests.alike(level))
    return (
        f"{different} of {len(tests.pairs)} pairs of methods differ significantly in rank (Wilcoxon's "
        f"signed-rank test at {100 * level:g} % with Holm's adjustment; the cases are {tests.datasets} data "
        "sets, with ranks averaged over the base flows)."
        + (f" Groups without a significant difference: {alike}." if alike else "")
    )


def seeds_of(studies: Sequence[Cells]) -> str:
    """Phrase on the numbers of cells with each number of seeds."""
    if not any(cells.datasets for cells in studies):
        return "none has a record"
    counts = Counter(len(cells.values(name, "BASE", "nll")) for cells in studies for name in cells.datasets)
    most_first = sorted(counts.items(), reverse=True)
    *words, last = [f"{number} have {seeds} seed{'s' if seeds > 1 else ''}" for seeds, number in most_first]
    return f"{', '.join(words)} and {last}" if words else last


def total_of(verdicts: Sequence[Verdict]) -> str:
    held, judged = (sum(getattr(verdict, name) for verdict in verdicts) for name in ("held", "judged"))
    return f"{held} of {judged} cells"


def reproduced(studies: Sequence[Cells]) -> str:
    """Table of the numbers of data sets that agree with or beat the published values, with exceptions."""
    lines = [
        "| suite | NLL of BASE | L-ECE of BASE | NLL of LR-KDE | L-ECE of LR-KDE |",
        "|---|---|---|---|---|",
    ]
    for cells in studies:
        verdicts = [
            against_published(cells, metric, method)
            for method in ("BASE", "LR-KDE")
            for metric in ("nll", "l_ece")
        ]
        name = cells.suite if cells.weights == "best" else f"{cells.suite}, {cells.weights} weights"
        lines.append(f"| {name} | {' | '.join(map(counted, verdicts))} |")
    return "\n".join(lines) + "\n"


def counted(verdict: Verdict) -> str:
    """Counts of a verdict and its misses, largest first."""
    worst_first = sorted(verdict.misses.items(), key=lambda item: -item[1])
    misses = ", ".join(f"{short_name(name)} +{distance:.1f}" for name, distance in worst_first)
    return f"{verdict.held} of {verdict.judged}" + (f" ({misses})" if misses else "")


def with_other_settings(studies: Sequence[Cells], method: str, searched: Mapping[str, Cells]) -> str:
    """Table of a method's NLL with other settings, for its exceptions.

    Args:
        studies: records of the study.
        method: ``"BASE"`` or ``"LR-KDE"``.
        searched: by suite, the records with the sizes of the grid search.
    """
    tried = _tried(method)
    for name, cells in searched.items():
        for dataset in cells.datasets:
            if values := cells.values(dataset, method, "nll"):
                tried.setdefault((name, dataset), {})[SEARCHED] = values
    misses = {
        (cells.suite, dataset): cells
        for cells in studies
        for dataset in against_published(cells, "nll", method).misses
        if (cells.suite, dataset) in tried
    }
    if not misses:
        return "None of the exceptions was trained with other settings.\n"
    titles = {**SETTINGS, SEARCHED: "sizes of the search"}
    settings = [name for name in titles if any(name in tried[place] for place in misses)]
    lines = [
        f"| suite | data set | published | here | {' | '.join(titles[name] for name in settings)} |",
        "|---|---|---|---|" + "---|" * len(settings),
    ]
    for (name, dataset), cells in misses.items():
        theirs, ours = published_figure(name, dataset, "nll", method), cells.estimate(dataset, method, "nll")
        assert theirs is not None
        assert ours is not None
        figures = [f"{theirs.mean:.2f} ± {theirs.standard_error:.2f}", f"{ours.mean:.2f}"]
        known = cells.values(dataset, method, "nll")
        for setting in settings:
            found = tried[name, dataset].get(setting, {})
            seeds = found.keys() & known.keys()
            mean, change = (
                statistics.mean(values) if seeds else 0.0
                for values in ([found[s] for s in seeds], [found[s] - known[s] for s in seeds])
            )
            figures.append(f"{mean:.2f} ({change:+.2f}; {len(seeds)})" if seeds else "")
        lines.append(f"| {name} | {short_name(dataset)} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def not_explained(studies: Sequence[Cells], searched: Mapping[str, Cells]) -> str:
    """Sentences on the exceptions for which no other setting was tried, and on those only of LR-KDE."""
    flows, laws = [], []
    sizes = {(name, dataset) for name, cells in searched.items() for dataset in cells.datasets}
    for cells in studies:
        base, recalibrated = (list(against_published(cells, "nll", method).misses) for method in METHODS)
        tried = _tried("BASE").keys() | sizes
        flows += [f"{cells.suite} {short_name(name)}" for name in base if (cells.suite, name) not in tried]
        tried = _tried("LR-KDE").keys() | sizes
        alone = [name for name in recalibrated if name not in base and (cells.suite, name) not in tried]
        laws += [f"{cells.suite} {short_name(name)}" for name in alone]
    parts = {
        "No other setting was tried for": flows,
        "Of the exceptions in the NLL of LR-KDE but not of BASE, no other setting was tried for": laws,
    }
    return "\n".join(f"{words} {', '.join(found)}.\n" for words, found in parts.items() if found)


def _tried(method: str) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """A method's NLL by (suite, data set), then by setting and seed."""
    tried: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in read(OTHER_SETTINGS):
        if nll := row[METHODS[method]]:  # empty in the runs of BASE alone
            settings = tried.setdefault((row["suite"], row["dataset"]), {})
            settings.setdefault(row["setting"], {})[int(row["seed"])] = float(nll)
    return tried


def stacked_beside_kde(studies: Sequence[Cells]) -> str:
    """Table of the data sets on which the default law has a lower mean NLL than the published law."""
    lines = ["| suite | fewer than 1,100 rows | all sets | median difference in NLL |", "|---|---|---|---|"]
    for cells in studies:
        small, whole = (lower_mean(cells, "LR-stacked", "LR-KDE", below=rows) for rows in (SMALL, None))
        found = [estimate.mean for estimate in differences(cells, "LR-stacked", "LR-KDE").values()]
        if not found:
            continue
        median = statistics.median(found)
        counts = " | ".join(f"{verdict.held} of {verdict.judged}" for verdict in (small, whole))
        lines.append(f"| {cells.suite} | {counts} | {median:+.4f} |")
    return "\n".join(lines) + "\n"


def energy_scores(studies: Sequence[Cells]) -> str:
    """Table of the data sets on which recalibration lowers or raises the energy score of the base flow."""
    methods = ("LR-KDE", "LR-stacked", "auto", "HDR-R")
    lines = [f"| suite | {' | '.join(methods)} |", "|---|" + "---|" * len(methods)]
    for cells in studies:
        row = [_changes(cells, method, "energy_score") for method in methods]
        lines.append(f"| {cells.suite} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _changes(cells: Cells, method: str, metric: str) -> str:
    """Phrase on where a metric of the base flow falls or rises, and the median change."""
    found = differences(cells, method, "BASE", metric)
    percent: dict[str, float] = {}
    for dataset, difference in found.items():
        base = cells.values(dataset, "BASE", metric)
        common = [base[seed] for seed in cells.values(dataset, method, metric) if seed in base]
        percent[dataset] = 100 * difference.mean / statistics.mean(common)
    errors = {name: each.standard_error for name, each in found.items()}
    judged = {name: (found[name].mean, 2 * se) for name, se in errors.items() if se is not None}
    lower = sum(mean < -noise for mean, noise in judged.values())
    higher = [f"{short_name(k)} {percent[k]:+.1f} %" for k, (mean, noise) in judged.items() if mean > noise]
    rises = f"{len(higher)} higher ({', '.join(higher)})" if higher else "none higher"
    if not percent:
        return "not measured"
    return f"{lower} of {len(judged)} lower, {rises}; median {statistics.median(percent.values()):+.1f} %"
