"""Contents of the page about flows with sizes from the paper's grids: comparison, search and rounding."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..benchmarks.resumable import read
from . import rounding
from .comparisons import (
    TOLERANCE,
    HarmTests,
    against_published,
    better_than_published,
    compare_ranks,
    harm_tests,
    ranks,
)
from .datasets import list_datasets
from .pages import Records, counted, fenced, ranks_that_differ, seeds_of, total_of, with_other_settings
from .size_choice import Trial, best_of, chosen_sizes, full_grid, halving, path_of, read_trials, replay
from .spec import FLOWS, MISSPECIFIED_EPOCHS, SUITES
from .study_cells import Cells, short_name

TUNED = tuple(name for name in SUITES if name.startswith("tuned-"))

INTRODUCTION = """\
# The study with tuned flows

The published flows were tuned on a grid by validation NLL. This page repeats that for the data sets of the
[tabular study](tabular_study.md). In that study, all flows of a kind have one size and one learning rate.
BASE is a flow as trained, LR-KDE the published recalibration, and `auto` is `autocalibrate`.
`python -m studies.tabular.write_pages` writes this page from files in `studies/benchmarks/results`: the
records of the tuned flows (`tuned_study.jsonl.gz`), the searches (the folder `tuning`), `other_settings.csv`
and `rounding.csv`. The following commands make these files, and resume where they were stopped. For
comparison, the page also uses the records of the tabular study (`tabular_study.jsonl.gz`).

```sh
python -m studies.tabular.size_search convex-potential maf flow-matching
python -m studies.tabular import studies/benchmarks/results/tuned_study.jsonl.gz --store bench/tuned.sqlite
python -m studies.tabular run tuned-misspecified tuned-convex-potential tuned-maf tuned-flow-matching \\
    --methods BASE LR-KDE auto --no-samples --store bench/tuned.sqlite
python -m studies.tabular.other_settings epochs tuned-misspecified --datasets slump enb --seeds 10
python -m studies.tabular.rounding --seeds 3
python -m studies.tabular.rounding smoothed-maf --seeds 3 --datasets slump edm atp7d sf1 atp1d jura
python -m studies.tabular.write_pages --tuned bench/tuned.sqlite
```
"""
COMPARED = """\
## Comparison with the published values

The table counts the data sets on which the mean over seeds is better than the published mean, or worse by at
most two joint standard errors. The exceptions are in brackets, with their distance in joint standard errors.
A data set has *heavy atoms* if an output has the same value in more than half of the rows, as is the case in
nine of the 25 (the tables at the end name four further data sets, SC1, ME1, ME2 and ME3, which have no
records). A density can grow without bound at such a value, so the NLL on these data sets may mainly reflect
how long the flow was trained. Seed 0, which was used to choose the sizes, is included. The weights are those
of the best epoch; the published ones are those of the last epoch.
"""
COMPLETED = """\
The next table also counts the other data sets of the study, with the fixed sizes of the study. Their records
come from an earlier version of the code, which did not yet store the [reference
results](../how_to/rerun_the_study.md#records-of-different-versions) by which records of different versions
are told apart, so this was not checked for them.
"""
CAUSES = """\
Causes of the exceptions:

- *Misspecified.* On SLU and ENB, an epoch is one step. With eight steps instead of two, the NLL agrees
  with the published one on both ([table](#other-settings-of-the-exceptions)). The cause is not known: on
  the other small data sets, where an epoch is one step as well, two steps are enough.
- *Fixed sizes.* RF1, WAG and BI2 under convex potential flows, and BIO and BLO under MAF, have no search yet.
- *BI2 under MAF.* Training stops too early here: with fixed sizes and a patience of 300 epochs, the NLL is
  [below the published one](tabular_study.md#causes-of-the-exceptions).
- *L-ECE.* The L-ECE of LR-KDE on AIR under convex potential flows is not explained.
- *Convex potential flows.* On several small data sets, the NLL of BASE is dominated by a few very large
  values, so its agreement says little. [Other settings](tabular_study.md#causes-of-the-exceptions) were tried
  for SF2 and SCP.

### Other settings of the exceptions

`python -m studies.tabular.other_settings` trains the exceptions with one setting changed. Brackets show the
change from the runs above with the same seeds, and the number of seeds. The first table is for BASE, the
second for LR-KDE.
"""
SEARCH = """\
## The search

The grids and the choice of data sets were written down before the first run. The bullets say where we
deviated from this plan.

| suite | grid | combinations |
|---|---|---|
| convex potential | units 10, 20, 40; layers 2, 3, 5; learning rate 0.005, 0.001, 0.0002 | 27 |
| misspecified: convex potential, two epochs | the same (the paper names no other) | 27 |
| MAF | transforms 3, 5, 8; units 32, 64; layers 2, 3; learning rate 0.005, 0.001 | 24 |
| flow matching | units 32, 64; layers 2, 3, 5; learning rate 0.005, 0.001, 0.0002 | 18 |

- The search uses seed 0 of each data set and keeps the combination with the lowest validation NLL. The suites
  use it for seeds 0 to 9 of the 12 smallest data sets and for seeds 0 to 4 of the others. Patience is 60
  epochs for convex potential flows and 30 for the others, training ends after at most 5,000 epochs, and a
  batch has 1,024 rows, as in the study.
- The full grid is trained on the 13 data sets with fewer than 2,000 rows and on households. The plan also
  named rf1; the other data sets, rf1 included, are searched by halving, because their full grids take hours.
- Successive halving first trains all sizes with the largest learning rate, each until its training ends. The
  best two thirds of the sizes are trained with the next rate. If this lowers the lowest NLL, the best third
  of all sizes is also trained with the smallest rate. A size starts from the same weights at every rate, and
  the sizes rank in much the same order at every rate, so poor ones can be dropped early.

The next table shows the sizes: units (for MAF, transforms x units), layers, learning rate.
"""
HALVING = """\
The next table compares halving with the full grids that have been trained. Halving was not run on these data
sets. It was replayed on the recorded epochs, of which only those count that it would have trained.
"""
RULE = """\
- *Choice of the rule.* The plan named nine data sets on which to choose the rule of halving (slump, atp7d,
  sf1, oes97, atp1d, oes10, enb, wq, sf2) and six on which to evaluate it (edm, jura, scpf, ansur2,
  households, rf1). A rule that compares all combinations after the same number of epochs, whatever their
  learning rate, lost 0.27 to 0.74 nats on sf1 with convex potential flows and MAF. There, the smallest rate
  wins in the end, but is still behind when the trainings with larger rates stop.
- *A first rule failed.* In addition to the steps above, it dropped the worse half of the sizes after 50
  epochs. It found every winner on the five data sets with which it was chosen (slump, atp7d, sf1, atp1d, sf2)
  and on edm and jura, but lost 0.87 nats on scpf, where the best combination improves slowly. The present
  rule was chosen with scpf as well, so scpf can no longer test it. Instead, enb is used for the evaluation:
  its full grid had not been trained when the rule was chosen. The smallest learning rate is skipped if the
  one before brought no improvement. This was added later; it leads to the same choice on all full grids.
- *Evaluation.* Halving finds the winner on edm, jura, ansur2 and households for all three flows, and on enb
  for flow matching. For the other two flows on enb, it loses more than the 0.01 nats that the plan allowed.
  The full grid was not trained on rf1. The rule therefore failed for two of three flows on one of five data
  sets, and its losses on the data sets searched with it are not known.
"""
ROUNDING = """\
## Rounding

A training stops 30 epochs (convex potential flows: 60) after the lowest validation loss. Where this loss is
noisy, rounding decides which epoch that is. To measure this, runs of the tabular study, with fixed sizes,
were repeated with the same seeds under three instruction sets of the processor, called settings here: the
best that torch finds (AVX-512), `ATEN_CPU_CAPABILITY=avx2` and `ATEN_CPU_CAPABILITY=default`. The runs cover
the 12 smallest data sets and seeds 0 to 2; `smoothed-maf`, explained below, was run on six of these data
sets. The next table counts the runs whose best epoch depends on the setting. It also counts the data sets on
which the largest difference between the means of two settings exceeds the standard error over seeds. The last
two columns are medians, over data sets, of the ratio of this difference to that standard error.
"""
EFFECT = """\
The largest effect is that on oes10, seed 0, under the convex potential flow: the best epoch is 64, 54 or 41,
and the NLL of BASE 286, 194 or 140, because a few test rows lie far out. The suites
`smoothed-convex-potential`, `smoothed-maf` and `smoothed-flow-matching` use [a stopping
rule](../how_to/rerun_the_study.md#early-stopping-that-depends-less-on-rounding) that depends less on rounding
of the loss. It was tried for MAF on six data sets: the largest difference between the means of two settings
on any of them falls from 0.37 to 0.13 nats for BASE, but rises from 0.24 to 0.48 nats for LR-KDE.

The columns of the last table are the standard error over seeds, the standard deviation over the three
settings (pooled over seeds), and the largest difference between the means of two settings. It shows the
convex potential flow and MAF; `python -m studies.tabular.rounding --show` prints all suites.
"""


def tuned_page(found: Records, fixed: Records = ()) -> str:
    """The page.

    Args:
        found: records of the tuned suites.
        fixed: records of the study, for data sets without a search or with one seed.
    """
    studies = [cells for cells in (Cells.of(found, name) for name in TUNED) if cells.records]
    whole = [_complete(cells, Cells.of(fixed, cells.suite.removeprefix("tuned-"))) for cells in studies]
    parts = [INTRODUCTION, _in_short(studies), COMPARED, _reproduced(studies)]
    if any(each.records.keys() != cells.records.keys() for each, cells in zip(whole, studies, strict=True)):
        parts += [COMPLETED, _reproduced(whole)]
        parts += [f"In this table, {_where(whole)}.\n"]
    parts.append(CAUSES)
    parts += [with_other_settings(studies, method, {}) for method in ("BASE", "LR-KDE")]
    parts += ["## Harm\n", _harm(harm_tests(studies, "auto", "BASE"))]
    parts += [SEARCH, table_of_sizes(), _progress(), HALVING, _halving(), RULE]
    parts += ["## Tables\n"]
    parts += [fenced(name, [cells]) for cells in studies for name in ("nll", "l_ece")]
    rows = read(rounding.RESULTS)
    noisy = [row for row in rows if row["suite"] in ("convex-potential", "maf")]
    parts += [ROUNDING, _rounding_in_short(rounding.spreads(rows)), EFFECT]
    parts += ["\n".join(rounding.table(noisy)) + "\n"]
    return "\n".join(parts)


def _in_short(studies: Sequence[Cells]) -> str:
    """The main findings, counted over cells."""
    ranked = ranks(studies)
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in ranked.mean.items())
    harm = harm_tests(studies, "auto", "BASE")
    errors = total_of([against_published(cells, "l_ece", "LR-KDE") for cells in studies])
    better = sum(better_than_published(cells, "nll", "BASE") for cells in studies)
    return (
        "## In short\n\nA cell is a combination of a data set and a base flow. Of the cells, "
        f"{seeds_of(studies)}.\n\n"
        f"- Among tuned flows, {_where(studies)} ([definitions](#comparison-with-the-published-values)). The "
        f"L-ECE of LR-KDE matches or beats the published value in {errors}.\n"
        f"- The NLL of BASE is better than published by more than two joint standard errors in {better} "
        "cells.\n"
        f"- Mean ranks in NLL over {len(ranked.by_case)} cells: {means}. "
        f"{ranks_that_differ(compare_ranks(ranked))}\n"
        f"- The observed mean NLL of `auto` is at most {TOLERANCE:g} nats above that of BASE in "
        f"{harm.within} of {len(harm.p_values)} cells ([tests](#harm)).\n"
    )


def _complete(tuned: Cells, fixed: Cells) -> Cells:
    """The tuned records, and those with fixed sizes of data sets on which fewer than two seeds are tuned."""
    known = {name for name in tuned.datasets if len(tuned.values(name, "BASE", "nll")) > 1}
    records = {place: record for place, record in fixed.records.items() if place[0] not in known}
    records |= {place: record for place, record in tuned.records.items() if place[0] in known}
    return Cells(tuned.suite, tuned.weights, records)


def _where(studies: Sequence[Cells]) -> str:
    """Sentence on the numbers of cells whose NLL matches or beats the published value, without full stop."""
    counts = [
        total_of([against_published(cells, "nll", method, heavy_atoms=atoms) for cells in studies])
        for atoms in (False, True)
        for method in ("BASE", "LR-KDE")
    ]
    return (
        f"the NLL matches or beats the published value in {counts[0]} for BASE and in {counts[1]} for LR-KDE "
        f"on data sets without heavy atoms, and in {counts[2]} for BASE and in {counts[3]} for LR-KDE on "
        "those with heavy atoms"
    )


def _reproduced(studies: Sequence[Cells]) -> str:
    """Table of the numbers of data sets that agree with or beat the published values, with exceptions."""
    lines = [
        "| suite | NLL of BASE | with heavy atoms | NLL of LR-KDE | with heavy atoms "
        "| L-ECE of BASE | L-ECE of LR-KDE |",
        "|---|---|---|---|---|---|---|",
    ]
    for cells in studies:
        verdicts = [
            against_published(cells, "nll", method, heavy_atoms=atoms)
            for method in ("BASE", "LR-KDE")
            for atoms in (False, True)
        ]
        verdicts += [against_published(cells, "l_ece", method) for method in ("BASE", "LR-KDE")]
        lines.append(f"| {cells.suite.removeprefix('tuned-')} | {' | '.join(map(counted, verdicts))} |")
    return "\n".join(lines) + "\n"


def _harm(tests: HarmTests) -> str:
    """Sentences on the cells in which ``auto`` is worse than BASE."""
    smallest = min(tests.p_values.values(), default=1.0)
    cells = "; ".join(f"{suite} {short_name(name)} +{by:.3f}" for (suite, name), by in tests.harmed.items())
    return (
        "Student's paired test asks in each cell with at least two seeds whether the mean NLL of `auto` is\n"
        f"above that of BASE by more than {TOLERANCE:g} nats. With Holm's adjustment over "
        f"{len(tests.p_values)} cells, this is\nsignificant at 5 % in {len(tests.harmed) or 'no'} cells"
        f"{f' ({cells})' if cells else ''}; the smallest adjusted p-value is {smallest:.2g}.\n"
        f"With few seeds, this test misses small harm. In {tests.shown} cells, the test in the other\n"
        f"direction shows, at 5 % and without adjustment, that the mean NLL of `auto` is at most\n"
        f"{TOLERANCE:g} nats above that of BASE.\n"
    )


def table_of_sizes() -> str:
    """Table of the sizes that the searches chose, by data set and suite."""
    names = [name.removeprefix("tuned-") for name in TUNED]
    lines = [f"| data set | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for dataset in _datasets():
        cells = []
        for name in names:
            early = name == "misspecified"
            sizes = chosen_sizes(
                dataset, "convex-potential" if early else name, MISSPECIFIED_EPOCHS if early else None
            )
            cells.append("–" if sizes is None else _words(sizes))
        lines.append(f"| {short_name(dataset)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _words(sizes: dict[str, float]) -> str:
    units = " x ".join(f"{sizes[name]:g}" for name in ("flows", "hidden") if name in sizes)
    return f"{units}; {sizes['layers']:g}; {sizes['learning_rate']:g}"


def _progress() -> str:
    """A sentence on the searches that have ended, and their processor time."""
    trials = [_trials(name, flow) for flow in FLOWS for name in _datasets()]
    ended = [each for each in trials if each and _has_ended(each)]
    seconds = sum(trial.cpu_seconds + trial.nll_seconds for each in trials for trial in each)
    hours = seconds / 3600
    return (
        f"{len(ended)} of {len(trials)} searches have ended. So far, all took {hours:.1f} hours on one "
        "core.\n"
        "The suite `misspecified` uses the first two epochs of the searches of convex potential flows.\n"
    )


def _has_ended(trials: Sequence[Trial]) -> bool:
    return best_of(trials) is not None and all(trials[place].stopped for place in halving(trials, math.inf))


def _halving() -> str:
    """Table of what halving would have chosen of the full grids that are known."""
    lines = [
        "| suite | full grids | seconds, full grids | seconds, halving "
        f"| more than {TOLERANCE:g} nats worse on |",
        "|---|---|---|---|---|",
    ]
    for flow in FLOWS:
        full = {name: trials for name in _datasets() if (trials := _trials(name, flow))}
        full = {name: trials for name, trials in full.items() if all(trial.stopped for trial in trials)}
        both = {name: (replay(trials, full_grid), replay(trials, halving)) for name, trials in full.items()}
        lost = {
            name: found[1][0].nll - found[0][0].nll  # type: ignore[union-attr, operator]
            for name, found in both.items()
        }
        worse = ", ".join(f"{short_name(name)} {by:.3f}" for name, by in lost.items() if by > TOLERANCE)
        seconds = [sum(found[place][1] for found in both.values()) for place in (0, 1)]
        lines.append(f"| {flow} | {len(full)} | {seconds[0]:,.0f} | {seconds[1]:,.0f} | {worse or 'none'} |")
    return "\n".join(lines) + "\n"


def _datasets() -> list[str]:
    """Data sets with a search, small ones first."""
    entries = [entry for entry in list_datasets() if any(_trials(entry.name, flow) for flow in FLOWS)]
    return [entry.name for entry in sorted(entries, key=lambda entry: entry.shape[0])]


def _trials(dataset: str, flow: str) -> list[Trial]:
    return read_trials(path_of(dataset, flow))


def _rounding_in_short(found: Sequence[rounding.Spread]) -> str:
    """Table of how often rounding matters, by suite."""
    lines = [
        "| suite | best epoch changed | BASE differs by more than the s.e. | LR-KDE "
        "| median ratio, BASE | LR-KDE |",
        "|---|---|---|---|---|---|",
    ]
    for suite in dict.fromkeys(spread.suite for spread in found):
        base, recalibrated = (
            [spread for spread in found if (spread.suite, spread.method) == (suite, method)]
            for method in rounding.METHODS
        )
        changed, runs = sum(spread.changed for spread in base), sum(spread.seeds for spread in base)
        beyond = []
        for spreads in (base, recalibrated):
            names = [f"{short_name(s.dataset)} {s.range:.2f}" for s in spreads if s.range > s.over_seeds]
            listed = f" ({', '.join(names)})" if names else ""
            beyond.append(f"{len(names)} of {len(spreads)}{listed}")
        ratios = [statistics.median(s.range / s.over_seeds for s in each) for each in (base, recalibrated)]
        figures = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {suite} | {changed} of {runs} runs | {' | '.join(beyond)} | {figures} |")
    return "\n".join(lines) + "\n"
