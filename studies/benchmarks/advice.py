r"""Follow the advice of the report to its end and measure whether the model becomes worse.

    python -m studies.benchmarks.advice                      # missing runs, then the pages; 15 CPU minutes
    python -m studies.benchmarks.advice --page               # only the pages, advice.md and advice_steps.md

The tables are those of ``advice_tables``. Each is divided into 40 % of the rows to fit a ``FlowRegressor``
(including its own validation and calibration rows) and four parts of 15 %, or of 20 rows if that is more: for
the first diagnosis, for recalibration, for the second diagnosis, and for testing. The test rows are used for
nothing else. Rows are divided at random, or into consecutive blocks if they are in time order. In the second
case, one run declares the order (``order="time"`` everywhere), and another run does not, like a user who has
not thought of it; the rows of the fit are then split at random.

The advice is followed literally: the code of ``report.next_step`` is executed with the new rows as ``X`` and
``y``. The model is then diagnosed again, up to three times. A run ends earlier if the report has no next
step, if the estimator refuses the recalibration, or if the advice cannot be followed because it has no code
(train longer) or asks for rows although all are used.

Each step is a row of results/advice.csv: NLL, energy score of 100 draws (outputs in units of their standard
deviation) and coverage of 90 % regions on the test rows, and the change of each by that step with its paired
standard error, computed from 20 blocks of rows if these are in time order. ``since`` is the change of the NLL
since the first diagnosis. A step *fails* if the NLL rises by more than 0.01 nats and two standard errors.
Runs that are already there are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import latentcal as lc
from latentcal.estimator import FlowRegressor, RecalibrationRefused

from .advice_tables import IN_TIME, TABLES, Table
from .resumable import RESULTS, append, read

PATH = RESULTS / "advice.csv"
PAGES = Path(__file__).parents[2] / "docs" / "results"
SHARE, FEWEST = 0.15, 20  # rows of each part but that of the fit
STEPS, DRAWS, LEVEL, BLOCKS = 3, 100, 0.9, 20
QUICK = {"samples": 50, "permutations": 999}
WORTH, ERRORS = 0.01, 2.0
TRAINED = ("seattle", "rates", "returns", "cars", "quakes", "diabetes", "prestige")
SMALL = 1_000  # rows below which a table in no order is cut in several ways
FLOWS: dict[str, dict[str, Any]] = {
    "linear": {"flow": "linear_gaussian"},
    "trained": {
        "flow": "autoregressive",
        "flow_options": {"hidden": 32, "flows": 2},
        "learning_rate": 3e-3,
        "max_epochs": 60,
        "patience": 10,
    },
}


class Walk(NamedTuple):
    """A model and the user who follows the advice."""

    table: str
    order: str
    """``"declared"`` or ``"undeclared"`` for rows in time order, else ``"none"``."""
    flow: str
    start: str
    """The recalibration chosen by the fit."""
    seed: int


class Scores(NamedTuple):
    """Scores of each test row."""

    nll: np.ndarray
    energy: np.ndarray
    inside: np.ndarray


def cut(table: Table, walk: Walk) -> list[Table]:
    """Rows for the fit, the first diagnosis, recalibration, the second diagnosis and the test."""
    n = len(table.y)
    rows = np.arange(n)
    if walk.order == "none":
        rows = np.random.default_rng([walk.seed, *walk.table.encode()]).permutation(n)
    size = round(SHARE * n)
    if n >= 5 * FEWEST:  # smaller tables cannot be diagnosed
        size = max(size, FEWEST)
    ends = [n - parts * size for parts in (4, 3, 2, 1)]
    return [Table(table.x.iloc[part], table.y.iloc[part]) for part in np.split(rows, ends)]


@torch.no_grad()
def score(model: FlowRegressor, rows: Table, scale: np.ndarray) -> Scores:
    """Scores of a model on rows; for the energy score, outputs are in units of ``scale``."""
    x, y, units = (torch.tensor(np.array(values)) for values in (rows.x, rows.y, scale))
    draws = torch.as_tensor(model.sample(rows.x, DRAWS, random_state=0))
    energy = lc.metrics.energy_score(draws / units, y / units)
    pit = lc.latent_pit(model.model_(x), y)
    return Scores(-model.log_prob(rows.x, rows.y), energy.numpy(), (pit <= LEVEL).double().numpy())


def paired(after: np.ndarray, before: np.ndarray, in_time: bool) -> tuple[float, float]:
    """Mean of after minus before (n,), and its standard error."""
    difference = after - before
    n = len(difference)
    shares = (difference - difference.mean()) / n
    if in_time:
        blocks = min(BLOCKS, n)
        shares = np.bincount(np.arange(n) * blocks // n, shares)
    return float(difference.mean()), math.sqrt(len(shares) / (len(shares) - 1) * float(shares @ shares))


def find_code(words: str) -> list[str]:
    """The statements about the model in the advice; none if it has no code."""
    return [code for code in re.findall("`([^`]+)`", words) if re.match(r"model\.\w+( = |\()", code)]


def follow(model: FlowRegressor, code: list[str], rows: Table, declared: bool) -> str:
    """Follow the advice; returns ``"done"``, ``"refused"``, or the error."""
    names = {"model": model, "X": rows.x, "y": rows.y, "ConditionalRadius": lc.ConditionalRadius}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for line in code:
            if declared and "order=" not in line:
                line = line.replace("(X, y", '(X, y, order="time"')
            try:
                exec(line, names)
            except ValueError as error:
                return f"error: {str(error).partition('.')[0]}"
    refused = any(issubclass(each.category, RecalibrationRefused) for each in caught)
    return f"refused: {model.calibration_.partition('(')[2].rstrip(')')}" if refused else "done"


def go(walk: Walk) -> Iterator[dict[str, object]]:
    """Records of the steps of one run."""
    fit, advice, new, later, judge = cut(TABLES[walk.table](), walk)
    in_time, declared = walk.order != "none", walk.order == "declared"
    order = {"order": "time"} if declared else {}
    scale = fit.y.std().to_numpy()
    how = {"outputs": "real", "recalibration": walk.start, "random_state": walk.seed}  # NLL of densities
    model = FlowRegressor(**FLOWS[walk.flow], **how, **order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(fit.x, fit.y)
    recalibrated = model.model_
    model.model_ = model.base_model_
    first = last = score(model, judge, scale)
    model.model_ = recalibrated

    def line(step: int, did: str, outcome: str, scores: Scores, report: Any = None) -> dict[str, object]:
        changes = [paired(*each, in_time) for each in zip(scores, last, strict=True)]
        since = paired(scores.nll, first.nll, in_time)
        return {
            **walk._asdict(),
            "rows": len(judge.y),
            "d": judge.y.shape[1],
            "step": step,
            "did": did,
            "outcome": outcome,
            "verdict": "" if report is None else report.verdict,
            "comparison": "" if report is None else report.before_and_after,
            "nll": float(scores.nll.mean()),
            "energy": float(scores.energy.mean()),
            "coverage": float(scores.inside.mean()),
            **{
                f"{name}_{what}": value
                for name, change in zip(Scores._fields, changes, strict=True)
                for what, value in zip(("change", "error"), change, strict=True)
            },
            "nll_since": since[0],
            "nll_since_error": since[1],
        }

    yield line(0, "trained", "", last)
    scores = score(model, judge, scale)
    yield line(1, f"recalibrated ({walk.start})", model.calibration_, scores)
    first = last = scores
    used = False  # whether the new rows have been used for recalibration
    for step in range(2, 2 + STEPS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = model.diagnose(*(later if used else advice), **QUICK, **order)
        except ValueError as error:
            yield line(step, "diagnose", f"error: {str(error).partition('.')[0]}", last)
            return
        code = find_code(report.next_step)
        if not code or (used and "recalibrate(" in code[-1]):
            outcome = (
                "no other rows" if code else "cannot be followed" if report.next_step else "nothing to do"
            )
            yield line(step, report.next_step or "-", outcome, last, report)
            return
        outcome = follow(model, code, new, declared)
        scores = score(model, judge, scale)
        yield line(step, report.next_step, outcome, scores, report)
        last, used = scores, used or "recalibrate(" in code[-1]
        if outcome != "done":
            return


def list_walks() -> list[Walk]:
    """All runs, the fast ones first."""
    walks = []
    for flow, table in itertools.product(FLOWS, TABLES):
        if flow == "trained" and table not in TRAINED:
            continue
        if table in IN_TIME:
            starts = ("stacked", "auto") if flow == "linear" else ("stacked",)
            walks += [
                Walk(table, order, flow, start, 0)
                for start, order in itertools.product(starts, ("declared", "undeclared"))
            ]
        else:
            seeds = 1 if flow == "trained" else 5 if len(TABLES[table]().y) < SMALL else 2
            walks += [Walk(table, "none", flow, "stacked", seed) for seed in range(seeds)]
    return walks


def fails(change: float, error: float) -> bool:
    """Whether the NLL rises by more than two standard errors and by a relevant amount."""
    return change > max(WORTH, ERRORS * error)


def name_step(row: dict[str, str]) -> str:
    """Short description of a step."""
    did, code = row["did"], find_code(row["did"])
    if int(row["step"]) < 2:
        left = ", refused" if "left as trained: recal" in row["outcome"] else ""
        return did + (left or (", too few rows" if "left as trained" in row["outcome"] else ""))
    if not code:
        words = {"-": "nothing to do", "diagnose": "too few rows to diagnose"}
        return words.get(did, f"advice: {did.partition(' with ')[0]}")
    what = "undo"
    if "undo" not in did:
        law = "".join(re.findall(r"recalibration = (\S+)$", code[0])).strip('"')
        what = f"recalibrate{f', {law}' if law else ''}{', in time' if 'order=' in did else ''}"
    outcome = row["outcome"].partition(":")[0]
    return f"advice: {what}" + ("" if outcome == "done" else f" ({outcome})")


def write_table(rows: list[dict[str, str]]) -> str:
    """Table of the steps, in Markdown; only the first division of each data set."""
    heads = "table | flow | order | test rows | step | NLL | energy score | coverage | change of NLL"
    heads += " | change of energy score"
    lines = [f"| {heads} |", "|" + "---|" * len(heads.split("|"))]
    for row in (row for row in rows if row["seed"] == "0"):
        first = row["step"] == "0"
        cells = [*(row[key] for key in ("table", "flow", "order", "rows"))] if first else [""] * 4
        change, error = float(row["nll_change"]), float(row["nll_error"])
        changes = ["", ""]
        if change or error:
            energy = f"{float(row['energy_change']):+.3f} ± {float(row['energy_error']):.3f}"
            changes = [f"{change:+.3f} ± {error:.3f}{' **worse**' if fails(change, error) else ''}", energy]
        scores = [f"{float(row[key]):.3f}" for key in ("nll", "energy")]
        cells += [name_step(row), *scores, f"{100 * float(row['coverage']):.1f} %", *changes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_counts(rows: list[dict[str, str]]) -> str:
    """Table of the numbers of steps and runs that make the scores on the test rows worse or better."""
    heads = "order of rows | runs | recalibrated by `fit` | advised steps | first diagnosis to the end"
    lines = [f"| {heads} |", "|" + "---|" * len(heads.split("|"))]
    names = {"none": "none", "declared": "time, declared", "undeclared": "time, not declared"}
    for order, words in names.items():
        mine = [row for row in rows if row["order"] == order]
        walks = {tuple(row[field] for field in Walk._fields): row for row in mine}
        parts = [
            ([row for row in mine if row["step"] == "1"], "nll_change", "nll_error"),
            ([row for row in mine if int(row["step"]) > 1], "nll_change", "nll_error"),
            (list(walks.values()), "nll_since", "nll_since_error"),
        ]
        cells = []
        for part, change, error in parts:
            pairs = [(float(row[change]), float(row[error])) for row in part]
            moved = [pair for pair in pairs if any(pair)]
            worse, better = sum(fails(*pair) for pair in moved), sum(fails(-a, b) for a, b in moved)
            cells.append(f"{worse} worse, {better} better of {len(moved)}")
        lines.append(f"| {' | '.join([words, str(len(walks)), *cells])} |")
    return "\n".join(lines)


def write_pages(rows: list[dict[str, str]]) -> None:
    """Write the tables between the markers of their pages."""
    tables = {"advice": ("counts", write_counts(rows)), "advice_steps": ("steps", write_table(rows))}
    for page, (name, table) in tables.items():
        text = (PAGES / f"{page}.md").read_text()
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        (PAGES / f"{page}.md").write_text(f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--flows", nargs="*", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--out", type=Path, default=PATH)
    parser.add_argument("--page", action="store_true", help="only write the pages")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = {tuple(row[field] for field in Walk._fields) for row in read(arguments.out)}
    for walk in [] if arguments.page else list_walks():
        wanted = walk.table in arguments.tables and walk.flow in arguments.flows
        if wanted and tuple(map(str, walk)) not in done:
            for row in list(go(walk)):  # an interrupted run leaves no records
                append(arguments.out, row)
                print(*walk, *(row[key] for key in ("step", "did", "outcome")), sep=" | ", flush=True)
    if arguments.out == PATH:
        write_pages(read(PATH))


if __name__ == "__main__":
    main()
