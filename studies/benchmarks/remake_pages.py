"""Remake the figures of all result pages except those of the tabular study, one command after the other.

    python -m studies.benchmarks.remake_pages --list     # pages, commands, processor time of the last run
    python -m studies.benchmarks.remake_pages            # commands that are not done; hours
    python -m studies.benchmarks.remake_pages --fresh    # removes earlier results first

A finished command is recorded in results/remade.csv with its processor time and commit, and is then skipped.
An interrupted command resumes from its own results. The output of each command is in build/results. A table
of the output replaces the table of the page that has the same header and first cell. Revise the text of the
page by hand.

Not included are the tabular study with its search of sizes and its rounding, the training of image flows, and
``autocalibration_cost --before``, which needs the sources of an earlier commit. ``throughput`` needs the
folder ``peers``, and some commands need data; their pages and modules describe the sources.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .resumable import RESULTS, append, read

ROOT = Path(__file__).parents[2]
DONE = RESULTS / "remade.csv"
LOGS = ROOT / "build" / "results"
DOCS = ROOT / "docs" / "results"

# By page: each command after ``python -m studies.``, and the result files that it fills.
PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "advice.md": {"benchmarks.advice": ("advice.csv",)},
    "audit.md": {"benchmarks.audit": ("audit.csv",)},
    "base_flows.md": {"benchmarks.base_flows": ("base_flows.csv",)},
    "beyond_one_radius.md": {
        "benchmarks.oracle_share": ("oracle_share.csv",),
        "benchmarks.oracle_share --truths calibrated --repetitions 200 --sizes 30 60 120 200": (),
        "benchmarks.autocalibration": ("autocalibration.csv",),
        "benchmarks.time_order": ("time_order.csv",),
        "benchmarks.simulated_truths": ("simulated_truths.csv",),
        "benchmarks.guaranteed_coverage": ("guaranteed_coverage.csv",),
        "benchmarks.autocalibration_cost": ("autocalibration_cost.json",),
        "benchmarks.covariate_shift": ("covariate_shift.csv",),
        "benchmarks.drifting_scale": ("streaming.json",),
        "benchmarks.drifting_scale --only-followed --streams 1": (),
        "benchmarks.atoms_in_outputs": ("discrete.csv",),
    },
    "coverage.md": {
        "benchmarks.coverage --calibrations 2000 --other-calibrations 150": ("coverage.csv",),
        "benchmarks.conformal_coverage --repetitions 500": ("conformal_coverage.csv",),
        "tabular.regions": ("regions.csv",),
    },
    "diagnose.md": {
        "benchmarks.conditional_faults": ("conditional_faults.csv",),
        "benchmarks.adviser": ("adviser_harm.csv", "adviser_verdicts.csv"),
        "benchmarks.false_alarms": ("diagnose.csv", "diagnose_seconds.csv"),
        "benchmarks.false_alarms --page": (),
    },
    "images.md": {
        "benchmarks.large_images": ("large_images.json",),
        "benchmarks.tarflow_sampling": ("tarflow_sampling.json",),
        "images.image_pages": (),
    },
    "output_kinds.md": {
        "benchmarks.output_kinds --seeds 2 3": ("output_kinds.csv",),
        "benchmarks.output_tables --seeds 1 2": ("output_tables.csv",),
    },
    "predictive_distributions.md": {
        "benchmarks.predictive_distributions quantiles --seeds 2": ("predictive_quantiles.csv",),
        "benchmarks.predictive_distributions ensembles --seeds 2": ("predictive_ensembles.csv",),
        "benchmarks.predictive_distributions summary": (),
        "benchmarks.chained_models run": ("chained_models.csv",),
        "benchmarks.chained_models summary": (),
        "benchmarks.sampler_models run --seeds 4": ("sampler_models.csv",),
        "benchmarks.sampler_models summary": (),
        "benchmarks.predictive_alarms run --sets 67 --faulty 4": ("predictive_alarms.csv",),
        "benchmarks.predictive_alarms summary": (),
    },
    "radius_laws.md": {"benchmarks.held_out --spline-repetitions 50": ("held_out.csv",)},
    "regressors.md": {
        "benchmarks.regressors run --splits 3": (),  # kept: some lines were made with earlier code
        "benchmarks.regressors table --metric energy": (),
    },
    "sbi_posteriors.md": {
        "benchmarks.sbi_posteriors": ("sbi_posteriors.csv",),
        "benchmarks.sbi_posteriors --estimators fmpe --seeds 1": (),
    },
    "speed.md": {
        "benchmarks.radius": ("radius.json",),
        "benchmarks.latency": ("latency.csv",),
        "benchmarks.throughput --peers peers": ("throughput.csv", "growth.csv"),
    },
    "../how_to/command_line_files.md": {"benchmarks.large_table": ("large_table.json",)},
}


class Step(NamedTuple):
    """A command that a page needs."""

    page: str
    command: str
    results: tuple[str, ...]


def list_steps(pages: Sequence[str]) -> Iterator[Step]:
    """The commands of some pages, in their order."""
    for page in pages:
        for command, results in PAGES[page].items():
            yield Step(page, command, results)


def find_seconds() -> dict[str, float]:
    """Processor seconds of each finished command."""
    return {row["command"]: float(row["CPU s"]) for row in read(DONE)}


def show(steps: Sequence[Step]) -> str:
    """A table of pages, commands and processor seconds."""
    seconds = find_seconds()
    width = max(len(step.page) for step in steps)
    lines = []
    for page, command, _ in steps:
        used = f"{seconds[command]:.0f}" if command in seconds else "-"
        lines.append(f"{page:<{width}}  {used:>9}  python -m studies.{command}")
    total = sum(seconds.get(step.command, 0.0) for step in steps)
    done = sum(step.command in seconds for step in steps)
    return "\n".join(
        [f"{'page':<{width}}  {'CPU s':>9}  command", *lines, f"{done}/{len(steps)} done, {total:.0f} s"]
    )


def find_tables(text: str) -> dict[str, list[str]]:
    """The Markdown tables of a text, by their header and the first cell below it."""
    tables: dict[str, list[str]] = {}
    head = r"\|.*\n\|[-:| ]+\|\n"
    for match in re.finditer(rf"^({head})(\|[^|]*).*\n(?:(?!{head})\|.*\n)*", text, flags=re.MULTILINE):
        tables.setdefault(f"{match[1].splitlines()[0]} {match[2]}", []).append(match[0])
    return tables


def fill(page: Path, output: str) -> str:
    """Put the tables of an output into a page; returns what was replaced and what has no counterpart."""
    text, new = page.read_text(encoding="utf-8"), find_tables(f"{output}\n")
    old = find_tables(text)
    known = [name for name in new if len(old.get(name, ())) == len(new[name])]
    for name in known:
        for before, after in zip(old[name], new[name], strict=True):
            text = text.replace(before, after, 1)
    page.write_text(text, encoding="utf-8")
    return "; ".join(
        [f"{len(known)} of {len(new)} tables are in {page.name}"]
        + [f"without counterpart there: {name[:60]}" for name in new if name not in known]
    )


def run(step: Step) -> bool:
    """Run a command, record its processor time and fill in its page; False if it fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{step.command.replace(' ', '_')}.txt"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    before = os.times()
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            [sys.executable, "-m", *shlex.split(f"studies.{step.command}")], cwd=ROOT, stdout=file
        ).returncode
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    if code == 0:
        append(DONE, {"page": step.page, "command": step.command, "CPU s": used, "commit": commit.strip()})
        print(fill(DOCS / step.page, log.read_text(encoding="utf-8")))
    print(f"{'done' if code == 0 else 'FAILED'}, {used:.0f} CPU s: {step.command} > {log}", flush=True)
    return code == 0


def forget(steps: Sequence[Step]) -> None:
    """Remove the results of these commands and their records."""
    forgotten = {step.command for step in steps}
    kept = [row for row in read(DONE) if row["command"] not in forgotten]
    for path in [DONE, *(RESULTS / name for step in steps for name in step.results)]:
        path.unlink(missing_ok=True)
    for row in kept:
        append(DONE, dict(row))


def main() -> None:
    """List or run the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}; all by default")
    parser.add_argument("--list", action="store_true", help="only print the table")
    parser.add_argument("--fresh", action="store_true", help="remove earlier results of these pages first")
    arguments = parser.parse_args()
    if unknown := set(arguments.pages) - set(PAGES):
        parser.error(f"no such pages: {', '.join(sorted(unknown))}")
    steps = list(list_steps(arguments.pages or [*PAGES]))
    if not arguments.list:
        if arguments.fresh:
            forget(steps)
        done = find_seconds()
        failed = [step.command for step in steps if step.command not in done and not run(step)]
    print(show(steps))
    if not arguments.list and failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
