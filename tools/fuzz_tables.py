"""Random tables, well-formed and damaged, through the readers and the command line.

    python tools/fuzz_tables.py                 # 21,000 tables, writes results/fuzz_tables.csv
    python tools/fuzz_tables.py --case 1234     # one table with its traceback; --keep DIR keeps it

A table is determined by its number and can be made again. Mutation ``number % 50`` is applied to it, and
sometimes a second one. One table in forty goes through the command line (fit with a linear flow, predict,
diagnose), all others through ``load_csv``, ``split`` and ``Preprocessing``. Outcomes:

- answer: every number that was not changed is read as it was written;
- clear error: ValueError, TypeError or an error of the command line, raised by latentcal itself, in one line
  of at most 300 characters besides the path;
- other exception: of another type, from inside another library, or longer than that;
- silently different: other numbers or rows than those written, a formula or escape sequence in an answer;
- hang: more than 10 s of processor time, or two minutes;
- over 1 GB: peak memory of the whole process.

The results have one row for each mutation, appended when it is done; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import click
import numpy as np
import torch
from table_mutations import MUTATIONS, Draft, draw

import latentcal as lc
from latentcal.cli import main as command_line
from latentcal.tables import Preprocessing, load_csv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from studies.benchmarks.resumable import append, read

RESULTS = Path(__file__).parent / "results" / "fuzz_tables.csv"
OUTCOMES = ("answer", "clear error", "other exception", "silently different", "hang", "over 1 GB")
BAD = OUTCOMES[2:]
SECONDS, SECONDS_ON_THE_CLOCK, BYTES, LONGEST = 10, 120, 1 << 30, 300
COMMAND_LINE = 40  # one case of so many
SECOND = ("delimiter", "all quoted", "line ends", "byte order mark", "spaces", "gzip")
CLEAR = {
    "ArgumentError",
    "ValueError",
    "TypeError",
    "WhereError",
    "ModelFileError",
    "ClickException",
    "UsageError",
    "BadParameter",
}
QUOTED = ("ValueError: ", "TypeError: ")  # of others, which must not be passed on as they are
PACKAGES = (str(Path(lc.__file__).parent), str(Path(click.__file__).parent))


class DifferentError(Exception):
    """An answer that differs from the file."""


class HangError(BaseException):
    """No answer in time; not an Exception, so that no handler catches it."""


def build(number: int) -> Draft:
    """The table with this number."""
    random = np.random.default_rng([20_26, number])
    draft = draw(random)
    name = list(MUTATIONS)[number % len(MUTATIONS)]
    MUTATIONS[name](draft, random)
    if random.random() < 0.25 and draft.suffix == ".csv" and draft.encoding == "utf-8":
        MUTATIONS[str(random.choice(SECOND))](draft, random)
    return draft


def check_values(draft: Draft, data: lc.tables.TableDataset) -> None:
    """Raise if a number was not read as it was written."""
    if draft.rows not in (None, data.file_rows):
        raise DifferentError(f"{data.file_rows} rows instead of {draft.rows}")
    names = [name.strip() for name in draft.names]
    rows = data.rows.numpy()
    for column in data.columns:
        if column.kind not in ("integer", "real", "boolean") or column.name not in names:
            continue
        place = names.index(column.name)
        known = draft.known[rows, place]
        written = draft.values[rows, place].copy()
        written[np.isinf(written)] = np.nan  # missing in the file
        for kind, found, expected in _views(data, column.name, column.values, written):
            if not np.array_equal(found[known], expected[known], equal_nan=True):
                raise DifferentError(f"{kind} of the column {column.name[:50]!r}")


def _views(data: lc.tables.TableDataset, name: str, values: np.ndarray, written: np.ndarray) -> list[tuple]:
    single = written.astype(np.float32)
    found = [("values", values, written)]
    if name in data.target_names:
        found.append(("y", data.y[:, data.target_names.index(name)].numpy(), single))
    elif name in data.feature_names:
        found.append(("x", data.x[:, data.feature_names.index(name)].numpy(), single))
    return found


def through_library(draft: Draft, path: Path, random: np.random.Generator) -> None:
    """Read the file, split it, and encode it with the learned rules."""
    options: dict = {"min_rows": 10, **draft.options}
    if random.random() < 0.3:
        options["max_rows"] = int(random.integers(10, 80))
    if random.random() < 0.2:
        options["missing"] = "error"
    data = load_csv(path, draft.targets, **options)
    check_values(draft, data)
    if not bool(torch.isfinite(data.x).all() and torch.isfinite(data.y).all()):
        raise DifferentError("a number that is not finite")
    rules = Preprocessing.from_dict(json.loads(json.dumps(data.preprocessing.to_dict())))
    form = {key: options[key] for key in ("delimiter", "encoding") if key in options}
    again = rules.transform(path, targets=True, missing="drop", **form)
    places = {row: place for place, row in enumerate(again.rows.tolist())}
    # With max_rows, the rules come from some rows; others may have further gaps or categories.
    chosen = [places[row] for row in data.rows.tolist()]
    if not (torch.equal(again.x[chosen], data.x) and torch.equal(again.y[chosen], data.y)):
        raise DifferentError("x or y by transform")
    by_column = {column.name: column.values for column in data.columns}
    memory = Preprocessing.fit(by_column, draft.targets).transform(by_column, missing="drop")
    if "max_rows" not in options and len(memory.rows) < len(data):
        raise DifferentError("rows of the table in memory")
    parts = lc.splits.split(data, seed=0)
    if not bool(torch.isfinite(parts.train.x).all() and torch.isfinite(parts.test.y).all()):
        raise DifferentError("a number of a part that is not finite")


def run_command(*words: object) -> tuple[int, str, str]:
    """Code, output and error stream of a command in this process, with the traceback of an error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command_line(["--debug", *map(str, words)])
        except SystemExit as end:
            code = end.code
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return (code if isinstance(code, int) else 1), texts[0], texts[1]


def through_commands(draft: Draft, original: Draft, path: Path, random: np.random.Generator) -> None:
    """Fit to the file or to the undamaged table, then predict and diagnose."""
    learned = path
    form = ["--missing", "drop"]
    form += [word for key, value in draft.options.items() for word in (f"--{key}", value)]
    fit_form = form
    if random.random() < 0.5:
        learned, fit_form = path.with_name("original.csv"), form[:2]
        learned.write_bytes(original.content())
    targets = io.StringIO()
    csv.writer(targets).writerow(draft.targets if learned == path else original.targets)
    model = path.with_name("model")
    fit = ["--targets", targets.getvalue().strip(), "--flow", "linear-gaussian", "--min-rows", 10]
    fit += ["--test-share", "0.4", "--recalibration", random.choice(["stacked", "none"])]
    commands = [
        ["fit", learned, *fit, "--out", model, *fit_form],
        ["info", model],
        ["predict", model, path, *form, "--draws", 10, "--keep", _quoted(draft.names[0])],
        ["diagnose", model, path, *form],
    ]
    for words in commands:
        code, out, err = run_command(*words)
        if "\x1b" in out + err and words[0] != "predict":
            raise DifferentError("an escape sequence on the terminal")
        if code:
            raise CommandError(err)
        if words[0] == "predict":
            _check_predictions(out, len(draft.cells))


class CommandError(Exception):
    """A command that ended with an error; its error stream, traceback included."""


def _quoted(name: str) -> str:
    text = io.StringIO()
    csv.writer(text).writerow([name.strip()])
    return text.getvalue().strip("\r\n")


def _check_predictions(out: str, rows: int) -> None:
    header, *lines = list(csv.reader(io.StringIO(out)))
    for line in (header, *lines):
        for cell in line:
            if cell[:1] in ("=", "+", "-", "@", "\t", "\r"):
                try:
                    float(cell)
                except ValueError:
                    raise DifferentError("a formula in the predictions") from None
    numbers = np.array([line[2:] for line in lines], dtype=float)
    if not np.isfinite(numbers).all() or len(lines) > rows:
        raise DifferentError("predictions that are not finite, or of rows that are not there")


def classify(error: BaseException, path: Path) -> tuple[str, str]:
    """Outcome of an error, and the text to show."""
    if isinstance(error, HangError):
        return "hang", "no answer in time"
    if isinstance(error, DifferentError):
        return "silently different", str(error)
    if isinstance(error, CommandError):
        return _classify_command(str(error), path)
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return _judged(lines, str(error), path)


def _classify_command(stream: str, path: Path) -> tuple[str, str]:
    *before, last = stream.splitlines() or [""]
    start = next((i for i, line in enumerate(before) if line.startswith("Traceback")), len(before))
    if not last.startswith("Error: "):
        return "other exception", last
    return _judged(before[start:], last.removeprefix("Error: "), path)


def _judged(lines: list[str], message: str, path: Path) -> tuple[str, str]:
    """Outcome of a traceback; a clear error is raised on purpose, as is each error that it quotes."""
    message = message.replace(str(path), "PATH").replace(str(path.parent), "DIR")
    blocks: list[tuple[str, bool]] = []  # type and text of each error of the chain, and whether it is our own
    file = code = ""
    for line in lines:
        if line.startswith('  File "'):
            file, code = line.split('"')[1], ""
        elif line.startswith("    ") and not code:
            code = line.strip()
        elif line and not line.startswith((" ", "Traceback", "During", "The above")) and file:
            blocks.append((line, file.startswith(PACKAGES) and code.startswith(("raise", "self.fail"))))
            file = ""
    kind = blocks[-1][0].partition(":")[0].rpartition(".")[2] if blocks else "?"
    quoted = [
        own for text, own in blocks if text.startswith(QUOTED) and text.partition(": ")[2][:60] in message
    ]
    good = bool(blocks) and kind in CLEAR and blocks[-1][1] and all(quoted) and _readable(message)
    return ("clear error" if good else "other exception"), f"{kind}: {message}"


def _readable(message: str) -> bool:
    return 0 < len(message) <= LONGEST and all(c.isprintable() for c in message)


def peak() -> int:
    """Peak memory of this process since ``forget_peak`` if the system supports it, else since its start."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def run(number: int, folder: Path, debug: bool = False) -> tuple[str, str]:
    """Outcome of a case, and the text to show."""
    draft, original = build(number), draw(np.random.default_rng([20_26, number]))
    random = np.random.default_rng([7, number])
    path = folder / f"table{draft.suffix}"
    path.write_bytes(draft.content())

    def stop(*_: object) -> None:
        raise HangError

    forget_peak()
    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)
    signal.alarm(SECONDS_ON_THE_CLOCK)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", RuntimeWarning)
            if number // len(MUTATIONS) % COMMAND_LINE == 0:
                through_commands(draft, original, path, random)
            else:
                through_library(draft, path, random)
        outcome = ("answer", "")
    except (Exception, HangError) as error:
        if debug:
            traceback.print_exc()
        outcome = classify(error, path)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    if peak() > BYTES:
        outcome = ("over 1 GB", f"{peak() / 1e6:.0f} MB")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=21_000)
    parser.add_argument("--case", type=int, help="run only this case, with its traceback")
    parser.add_argument("--keep", type=Path, help="folder for the files of --case")
    parser.add_argument("--only", help="run only this mutation and write nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.case is not None:
        with contextlib.ExitStack() as stack:
            folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            print(
                list(MUTATIONS)[arguments.case % len(MUTATIONS)],
                *run(arguments.case, folder, debug=True),
                sep=": ",
            )
        return
    done = {row["mutation"] for row in read(arguments.out)} if arguments.only is None else set()
    for place, name in enumerate(MUTATIONS):
        if name in done or arguments.only not in (None, name):
            continue
        counts, failing, start = Counter[str](), [], time.time()
        for number in range(place, arguments.cases, len(MUTATIONS)):
            with tempfile.TemporaryDirectory() as folder:
                outcome, shown = run(number, Path(folder))
            counts[outcome] += 1
            if outcome in BAD:
                failing.append(number)
                print(f"  case {number}: {outcome}: {shown[:400]}", flush=True)
        row = {"mutation": name, "cases": counts.total(), **{o: counts[o] for o in OUTCOMES}}
        row["failing"] = " ".join(map(str, failing))
        print(f"{row}, {time.time() - start:.0f} s", flush=True)
        if arguments.only is None:
            append(arguments.out, row)
    if arguments.only is None:
        rows = read(arguments.out)
        print({key: sum(int(row[key]) for row in rows) for key in ("cases", *OUTCOMES)})
        sys.exit(any(int(row[key]) for row in rows for key in BAD))


if __name__ == "__main__":
    main()
