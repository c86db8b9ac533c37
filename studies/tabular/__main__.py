"""The paper's study on tables, from the command line: run, status, table, figures, import, export.

The variable LATENTCAL_DATA names the folder with the data. Start with:

    python -m studies.tabular run quick
    python -m studies.tabular table quick --metric nll
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import matplotlib

from .datasets import find
from .execution import record_id, run_suite, runs_left
from .formats import FORMATS, format_tables
from .provenance import made_otherwise
from .spec import METHODS, SUITES, WEIGHTS, RunSpec, Weights, suite
from .status import mixed, status_lines, studies_of
from .store import FAILED, Store
from .study_cells import Cells
from .study_report import draw_figures, write_report
from .study_tables import TABLES, tables_of

PROGRAM = "python -m studies.tabular"
STORE = Path("bench") / "records.sqlite"
_EXAMPLES = {
    "run": """
        {0} quick
        {0} convex-potential maf --seeds 3 --processes 2
        {0} maf --seeds 5-9 --datasets slump ENB --weights last
        {0} maf --methods BASE LR-stacked --no-samples
        {0} flow-matching --scheduler tcp://10.0.0.1:8786""",
    "status": """
        {0}
        {0} maf --store results/records.sqlite""",
    "table": """
        {0} convex-potential
        {0} maf --metric l_ece --format latex --out l_ece.tex
        {0} convex-potential maf flow-matching misspecified --metric claims
        {0} misspecified --metric paired --method auto""",
    "figures": """
        {0} convex-potential --out figures
        {0} maf misspecified --out figures --weights last --no-flows""",
    "import": """
        {0} studies/benchmarks/results/tabular_study.jsonl.gz --store study.sqlite""",
    "export": """
        {0} records.jsonl.gz --store study.sqlite""",
}


class CommandError(Exception):
    """An error that ends a command with one line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"Error: {message[0].upper()}{message[1:]}. See {self.prog} --help.\n")


def main(words: Sequence[str] | None = None) -> None:
    """Run a command line; errors are one line, or a traceback with --debug."""
    given = _parser().parse_args(words)
    options = vars(given)
    command, debug = options.pop("command"), options.pop("debug")
    try:
        command(**options)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug or not isinstance(error, (CommandError, ValueError, OSError, ImportError)):
            raise
        sys.exit(f"Error: {' '.join(str(error).split())}")


def run(
    suites: Sequence[str],
    seeds: Sequence[int] | None,
    datasets: Sequence[str] | None,
    processes: int,
    store: Path,
    weights: Weights,
    methods: Sequence[str],
    samples: bool,
    retry_failed: bool,
    scheduler: str | None,
    report: bool,
) -> None:
    """Do the runs of suites that are not yet recorded, then write tables and figures next to the records.

    It can be stopped at any time (Ctrl-C), and the same command resumes. Failures are recorded and do not
    stop the other runs.
    """
    specs = _specs(suites, seeds, datasets, weights, methods)
    how: dict[str, Any] = {"retry_failed": retry_failed, "samples": samples}
    todo = runs_left(specs, Store(store), **how)
    if todo:
        ids = {record_id(spec, method) for spec in specs for method in METHODS}
        known = [record for record in Store(store).records() if record["id"] in ids]
        _refuse([f"with what this code would add, {line}" for line in made_otherwise(known)], store)
    print(f"{len(todo)} of {len(specs)} runs are to be done; records go to {store}.", flush=True)
    try:
        if todo:
            run_suite(specs, store, scheduler=scheduler, workers=processes, **how)
    except KeyboardInterrupt:
        print("Records are kept. The same command resumes.", file=sys.stderr)
        raise
    if report:
        folder = store.parent / "report"
        paths = write_report(_studies(store, suites, weights, datasets), folder, report=_complain)
        print(f"{len(paths)} files with tables and figures are in {folder}.")
    _check(specs, Store(store))


def show_status(suites: Sequence[str], store: Path) -> None:
    """Show what is recorded, what failed and why, and what is missing; for all suites if none is named.

    Runs without samples count as done. Records made with other trainings or laws are an error.
    """
    records = _records(store)
    print("\n".join(status_lines(records, suites)))
    _refuse(mixed(studies_of(records, suites)), store)


def show_table(
    suites: Sequence[str],
    metric: str,
    method: str | None,
    form: str,
    out: Path | None,
    datasets: Sequence[str] | None,
    store: Path,
    weights: Weights,
) -> None:
    """Show a table of suites with the published figures.

    Besides the measures, there are tables of the terms of the NLL (decomposition), calibration times (times),
    paired differences (paired), ranks (ranks) and claims (claims). The last two combine all suites that are
    named.
    """
    text = format_tables(tables_of(metric, _studies(store, suites, weights, datasets), method), form)
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
        print(f"{out} is written.")


def show_figures(
    suites: Sequence[str],
    out: Path,
    flows: bool,
    datasets: Sequence[str] | None,
    store: Path,
    weights: Weights,
) -> None:
    """Draw the figures of suites as PNG and SVG.

    Laws of the latent norm and predictive densities need the trained flows of the cache. Without these, or
    with --no-flows, they are omitted.
    """
    found = _studies(store, suites, weights, datasets)
    for cells in found:
        folder = out / f"{cells.suite}-{cells.weights}" if len(found) > 1 else out
        paths = draw_figures(cells, folder, from_flows=flows, report=_complain)
        print(f"{len(paths)} files are in {folder}.")


def import_records(file: Path, store: Path) -> None:
    """Add the records of a file of JSON lines, or of another store, to a store."""
    other = _records(file)
    count = Store(store).append([*other.records(), *other.failures()])
    print(f"{count} records are new in {store}.")


def export_records(file: Path, store: Path) -> None:
    """Write the records of a store as JSON lines, compressed where the name ends in .gz."""
    _records(store).export(file)
    print(f"{file} is written.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(metavar="COMMAND", required=True)

    def part(name: str, command: Any) -> argparse.ArgumentParser:
        about = "\n\n".join(" ".join(text.split()) for text in str(command.__doc__).split("\n\n"))
        examples = re.sub(r"\n +", "\n    ", _EXAMPLES[name].format(f"{PROGRAM} {name}"))
        own = parts.add_parser(
            name,
            help=about.splitlines()[0],
            description=about,
            epilog=f"Examples:{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        own.set_defaults(command=command)
        own.add_argument("--debug", action="store_true", help="show the traceback of an error")
        own.add_argument("--store", type=Path, default=STORE, help="file of the records (%(default)s)")
        if name in ("import", "export"):
            own.add_argument(
                "file", metavar="FILE", type=Path, help="file of JSON lines, .jsonl or .jsonl.gz"
            )
            return own
        some = "*" if name == "status" else "+"
        own.add_argument("suites", metavar="SUITE", nargs=some, type=_suite, help=", ".join(SUITES))
        if name != "status":
            own.add_argument("--datasets", nargs="+", type=_dataset, help="only these sets, by any name")
            own.add_argument(
                "--weights",
                choices=WEIGHTS,
                default="best",
                help="of the best epoch, or of the epoch at which the published training stops (%(default)s)",
            )
        return own

    running = part("run", run)
    running.add_argument(
        "--seeds", nargs="+", action=_Seeds, help="a number of seeds (3), or the seeds (0 1 2, or 5-9)"
    )
    running.add_argument(
        "--processes",
        type=_count,
        default=os.cpu_count() or 1,
        help="parallel runs with one thread each (one per core)",
    )
    running.add_argument(
        "--methods", nargs="+", type=_method, default=METHODS, help=f"of {', '.join(METHODS)} (all)"
    )
    running.add_argument(
        "--samples",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draw samples at the test rows, which energy score and HDR-ECE need; HDR-R always draws its own",
    )
    running.add_argument("--retry-failed", action="store_true", help="repeat failed runs")
    running.add_argument("--scheduler", metavar="ADDRESS", help="address of a dask cluster, tcp://...")
    running.add_argument(
        "--report",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write tables and figures at the end",
    )
    part("status", show_status)
    table = part("table", show_table)
    table.add_argument("--metric", choices=TABLES, default="nll", help="which table (%(default)s)")
    table.add_argument("--method", choices=METHODS, help="method of a table about one method")
    table.add_argument("--format", dest="form", choices=FORMATS, default="text")
    table.add_argument("--out", type=Path, help="file to write; by default, the table is printed")
    figures = part("figures", show_figures)
    figures.add_argument("--out", type=Path, required=True, help="folder of the files")
    figures.add_argument(
        "--flows",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also draw figures that need trained flows",
    )
    part("import", import_records)
    part("export", export_records)
    return parser


def _suite(word: str) -> str:
    if word not in SUITES:
        raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(SUITES)}")
    return word


def _dataset(word: str) -> str:
    try:
        return find(word).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _method(word: str) -> str:
    known = {name.lower(): name for name in METHODS}
    if word.lower() not in known:
        raise argparse.ArgumentTypeError(f"there is no method {word!r}; choose of {', '.join(METHODS)}")
    return known[word.lower()]


def _count(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number of at least 1")
    return int(word)


class _Seeds(argparse.Action):
    """Seeds: ``3`` for 0, 1, 2, or several of them, ``0 1 2`` or ``0,4`` or ``5-9``."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        try:
            setattr(namespace, self.dest, parse_seeds(values))
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from error


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Seeds from a number of seeds, a list, or ranges.

    Examples:
        >>> parse_seeds(["3"]), parse_seeds(["0", "4"]), parse_seeds(["5-7"]), parse_seeds(["3,"])
        ((0, 1, 2), (0, 4), (5, 6, 7), (3,))
    """
    parts = [part for word in words for part in word.split(",") if part]
    if not parts or not all(re.fullmatch(r"\d+(-\d+)?", part) for part in parts):
        raise ValueError(f"{' '.join(words)!r} are not seeds; write 3, or 0 1 2, or 5-9")
    ranges = [[int(end) for end in part.split("-")] for part in parts]
    if len(words) == 1 and words[0].isdigit() and ranges[0][0] > 0:
        return tuple(range(ranges[0][0]))
    seeds = dict.fromkeys(seed for ends in ranges for seed in range(ends[0], ends[-1] + 1))
    if not seeds:
        raise ValueError(f"{' '.join(words)!r} is an empty range; write the smaller seed first, 5-9")
    return tuple(seeds)


def _specs(
    suites: Sequence[str],
    seeds: Sequence[int] | None,
    datasets: Sequence[str] | None,
    weights: Weights,
    methods: Sequence[str],
) -> list[RunSpec]:
    """Runs ordered by seed, so that the first ones cover all suites and data sets."""
    chosen: dict[str, Any] = {"weights": weights, "recalibrations": tuple(dict.fromkeys(methods))}
    if datasets is not None:
        chosen["datasets"] = list(dict.fromkeys(datasets))
    found = [spec for name in suites for spec in suite(name, seeds, **chosen)]
    places = {seed: place for place, seed in enumerate(dict.fromkeys(spec.seed for spec in found))}
    return list(dict.fromkeys(sorted(found, key=lambda spec: places[spec.seed])))


def _records(path: Path) -> Store:
    """The store in an existing file."""
    if not path.is_file():
        raise CommandError(f"There is no file {path}. `{PROGRAM} run` makes it; --store names another one.")
    return Store(path)


def _studies(
    path: Path, names: Sequence[str], weights: Weights, datasets: Sequence[str] | None
) -> list[Cells]:
    """The records of suites, at least one for each."""
    store = _records(path)
    found = [Cells.read(store, name, weights, datasets) for name in dict.fromkeys(names)]
    for cells in found:
        if not cells.records:
            raise CommandError(
                f"{path} has no record of the suite {cells.suite} with {weights} weights. "
                f"`{PROGRAM} run {cells.suite} --weights {weights} --store {path}` makes them."
            )
    _refuse(mixed(found), path)
    return found


def _refuse(lines: Sequence[str], path: Path) -> None:
    """Raise if records were made by different code and must not be combined."""
    if lines:
        raise CommandError(
            f"The records of {path} cannot be combined: {'; '.join(lines)}. "
            "Begin another file with --store, and export what is to be kept."
        )


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def _check(specs: Sequence[RunSpec], store: Store) -> None:
    """Raise if runs failed or are missing."""
    status = store.status()
    ids = [record_id(spec, method) for spec in specs for method in spec.recalibrations]
    failed, missing = sum(status.get(i) == FAILED for i in ids), sum(i not in status for i in ids)
    if failed or missing:
        raise CommandError(
            f"{failed} of {len(ids)} records failed and {missing} are missing. `{PROGRAM} status "
            f"--store {store.path}` says why, --retry-failed tries again."
        )


if __name__ == "__main__":
    matplotlib.use("Agg")  # no windows
    main()
