"""FlowRegressor and other probabilistic regressors on twenty real tables, without tuning.

    LATENTCAL_DATA=... python -m studies.benchmarks.regressors run --splits 3
    LATENTCAL_DATA=... python -m studies.benchmarks.regressors run --tables slump enb --methods NSF "5 NSFs"
    python -m studies.benchmarks.regressors table --metric energy

Tables and splits are in regression_tables.py, methods in regression_peers.py, scores in regression_scores.py.
Every method is fitted to the same 80 % of at most 3,000 rows, including any validation rows of its own, and
scored on the other 20 %. Units are standard deviations of the training outputs; times are processor seconds.
Results are appended to results/regressors.csv. Runs that are already there are skipped, unless ``--again`` is
given: then later rows replace earlier ones. The negative log densities and energy scores of the test rows are
in results/regressors_rows.csv.gz, for paired comparisons of any two methods. A method that takes more than 3
CPU minutes for one fit is stopped, and not tried on further splits of that table.

``ours before`` is FlowRegressor("convex_potential") before it could choose its flow. Its rows were made with
that code, and ``--again`` with later code would change them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from .regression_peers import FAMILIES, METHODS, Family, has_auto
from .regression_ranks import (
    RANKED,
    SUBSETS,
    Record,
    Rows,
    show_differences,
    show_ranks,
    show_stopped,
    show_values,
)
from .regression_scores import COLUMNS, Scores, score_forecast
from .regression_tables import TABLES, Case, read_table, split_table
from .resumable import RESULTS, append, read

OUT = RESULTS / "regressors.csv"
SPLITS = 3
Key = tuple[str, int, str]  # table, split, method
read_once = cache(read_table)


def run_family(family: Family, case: Case, wanted: Sequence[str]) -> Iterator[tuple[Record, Scores | None]]:
    """Records of the wanted methods of a family on one split, and the scores of the test rows."""
    fits, spent, left = family.fit(case.x, case.y, case.split), 0.0, list(family.methods)
    while not set(left).isdisjoint(wanted):
        started, forecast, scores, status = time.process_time(), None, None, "ok"
        try:
            with stop_after(family.limit):
                _, forecast = next(fits)
            spent += time.process_time() - started
            if left[0] in wanted:
                source = torch.Generator().manual_seed(case.split)
                scores = score_forecast(
                    forecast(case.x_new, source), torch.from_numpy(case.y_new), case.split
                )
        except TimeoutError:
            status = f"stopped after {family.limit:.0f} s"
        except Exception as error:  # from any library; the other methods continue
            status = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
        # Without a fit, the later methods have none either.
        ended, left = (left, []) if forecast is None else (left[:1], left[1:])
        for method in ended:
            if method in wanted:
                yield make_line(case, method, spent, status, scores), scores


def make_line(case: Case, method: str, seconds: float, status: str, scores: Scores | None) -> Record:
    means = dict.fromkeys(COLUMNS, math.nan) if scores is None else scores.means
    sizes = {"rows": case.rows, "features": case.x.shape[1], "outputs": case.y.shape[1]}
    return {"table": case.table, "split": case.split, "method": method, **sizes} | {
        "seconds": seconds,
        **means,
        "status": status,
    }


@contextmanager
def stop_after(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError when the process has used so much CPU time; only in the main thread, on POSIX."""
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def rows_path(out: Path) -> Path:
    return out.with_name(f"{out.stem}_rows.csv.gz")


def append_rows(path: Path, key: Key, scores: Scores) -> None:
    """Append scores of the test rows as a gzip member, so that the file is valid at any time."""
    text = io.StringIO()
    values = [" ".join(f"{value:.3f}" for value in part) for part in (scores.nll, scores.energy)]
    csv.writer(text).writerow([*key, *values])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(gzip.compress(text.getvalue().encode(), mtime=0))


def read_rows(path: Path, metric: str) -> Rows:
    """Values of the test rows, ``"nll"`` or ``"energy"``, for the methods that have them."""
    rows: Rows = {}
    if not path.exists():
        return rows
    with gzip.open(path, "rt", newline="") as file:
        for table, split, method, nll, energy in csv.reader(file):
            values = np.array((nll if metric == "nll" else energy).split(), dtype=np.float64)
            if not np.isnan(values).any():
                rows[table, int(split), method] = values
    return rows


def latest(records: Sequence[Record]) -> list[Record]:
    """The last record of each table, split and method."""
    return list({(r["table"], r["split"], r["method"]): r for r in records}.values())


def stopped_before(records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """Status of methods that were stopped on a table, whatever the split."""
    return {(r["table"], r["method"]): r["status"] for r in records if r["status"].startswith("stopped")}


def list_cells(tables: Sequence[str], methods: Sequence[str], splits: int) -> list[tuple[str, int, Family]]:
    """The runs to do, small tables and early splits first."""
    sizes = {name: len(split_table(name, read_once(name), 0).x) for name in tables}
    order = sorted(tables, key=sizes.__getitem__)
    return [
        (table, split, family)
        for split in range(splits)
        for table in order
        for family in FAMILIES
        if not set(family.methods).isdisjoint(methods) and len(read_once(table).x) <= family.most_rows
    ]


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    methods = list(arguments.methods)
    if not has_auto() and (new := [name for name in methods if name.startswith("ours, ")]):
        print(f"Left out: {', '.join(new)}. This FlowRegressor has no flow='auto' with a budget.", flush=True)
        methods = [name for name in methods if name not in new]
    records: list[Record] = latest(read(arguments.out))
    cells = list_cells(arguments.tables, methods, arguments.splits)
    started = time.time()
    for count, (table, split, family) in enumerate(cells, 1):
        done = {(r["table"], int(r["split"]), r["method"]) for r in records}
        wanted = [
            m for m in family.methods if m in methods and (arguments.again or (table, split, m) not in done)
        ]
        if not wanted:
            continue
        case = split_table(table, read_once(table), split)
        stopped = {} if arguments.again else stopped_before(records)
        known = {m: status for (t, m), status in stopped.items() if t == table and m in wanted}
        lines = [(make_line(case, method, math.nan, status, None), None) for method, status in known.items()]
        if known.keys() != {*wanted}:
            lines = run_family(family, case, wanted)
        for line, scores in lines:
            if scores is not None:
                append_rows(rows_path(arguments.out), (table, split, str(line["method"])), scores)
            append(arguments.out, line)
            records.append({key: str(value) for key, value in line.items()})
            print(f"{count}/{len(cells)}, {time.time() - started:.0f} s: {line}", flush=True)


def show(arguments: argparse.Namespace) -> None:
    records = [r for r in latest(read(arguments.out)) if r["method"] in arguments.methods]
    records = [r for r in records if r["table"] in arguments.tables]
    values = show_values(records, arguments.methods, arguments.metric)
    print(f"{arguments.metric}, mean over the splits\n\n{values}")
    for subset in SUBSETS:
        print(f"\nMean ranks, tables: {subset}\n\n{show_ranks(records, arguments.methods, subset)}")
    if arguments.metric in ("nll", "energy"):
        rows = read_rows(rows_path(arguments.out), arguments.metric)
        rows = {key: values for key, values in rows.items() if key[0] in arguments.tables}
        differences = show_differences(rows, arguments.methods, arguments.base)
        print(f"\n{arguments.metric} minus that of {arguments.base}, ± two standard errors\n\n{differences}")
    print(f"\n{show_stopped(records)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for name, command in (("run", run), ("table", show)):
        own = commands.add_parser(name)
        own.set_defaults(command=command)
        own.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
        own.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
        own.add_argument("--out", type=Path, default=OUT)
        if name == "run":
            own.add_argument("--splits", type=int, default=SPLITS)
            own.add_argument("--threads", type=int, default=1)
            own.add_argument("--again", action="store_true", help="repeat runs that are already there")
        else:
            own.add_argument("--metric", choices=RANKED, default="nll")
            own.add_argument(
                "--base", choices=METHODS, default="linear Gaussian", help="method for the differences"
            )
    arguments = parser.parse_args()
    with threadpool_limits(getattr(arguments, "threads", 1)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments.command(arguments)


if __name__ == "__main__":
    main()
