"""Saves that are killed, meet a full disk, lack permission, or run at the same time as another save.

    python tools/kill_saves.py                  # some minutes; writes results/kill_saves.csv

Each attempt is a process forked from this one, so that it starts quickly, and ends by SIGKILL: before one of
its file events or after a random time. Every event is tried (open, rename, remove, make a folder, truncate,
write, fsync; for a database, every command and every few steps of one). Afterwards, the folder must contain
the complete old or new version, and the next save must leave only a manifest and its numbers. Needs a system
with fork.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import errno
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import latentcal as lc  # noqa: E402
from latentcal.cli import main as command_line  # noqa: E402
from latentcal.cli.model import load_model  # noqa: E402
from studies.tabular.store import Store  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "kill_saves.csv"
_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
_ROWS = 120
_STEPS = 5  # of a database's virtual machine


class Subject(NamedTuple):
    """Something that is saved repeatedly.

    Args:
        write: writes version 0, 1, ... to a place.
        version: of what is there; raises where it is not whole.
        rest: number of files that belong there.
    """

    write: Callable[[Path, int], None]
    version: Callable[[Path], int]
    rest: int


def subjects(folder: Path) -> dict[str, Subject]:
    """Everything that writes models or records."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, 2, generator=generator)
    y = x + torch.randn(_ROWS, 2, generator=generator)
    table = folder / "rows.csv"
    rows = [["a", "b", "u", "v"], *torch.cat([x, y], 1).tolist()]
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    estimators = [
        lc.FlowRegressor("linear_gaussian", recalibration="scaled", random_state=seed).fit(
            x.numpy(), y.numpy()
        )
        for seed in range(2)
    ]

    def save(place: Path, version: int) -> None:
        lc.save(lc.ScaledRadius(lc.radius.Chi(version + 1), 2.0), place)

    def fit(place: Path, version: int) -> None:
        quiet("fit", table, "--targets", "u,v", "--flow", "linear-gaussian", "--recalibration", "scaled",
              "--seed", version % 2, "--test-share", 0, "--out", place, "--overwrite")  # fmt: skip

    def recalibrate(place: Path, version: int) -> None:
        if not place.exists():
            fit(place, 0)
        quiet("recalibrate", place, table, "--recalibration", ("scaled", "spline")[version % 2], "--force")

    def regressor_version(place: Path) -> int:
        return int(lc.FlowRegressor.load(place).random_state)

    def recalibrated_version(place: Path) -> int:
        law = load_model(place).estimator.model_.base.radius
        return {"ScaledRadius": 0, "SplineRadius": 1}[type(law).__name__]

    return {
        "lc.save": Subject(save, lambda place: lc.load(place).reference.dim - 1, 2),
        "FlowRegressor.save": Subject(
            lambda place, version: estimators[version % 2].save(place), regressor_version, 2
        ),
        "latentcal fit": Subject(fit, lambda place: int(load_model(place).estimator.random_state) % 2, 2),
        "latentcal recalibrate": Subject(recalibrate, recalibrated_version, 2),
        "study store": Subject(append_record, last_record, 1),
    }


def append_record(place: Path, version: int) -> None:
    """Add a record of the version, with some content."""
    record = {"id": str(version), "status": "done", "filling": "x" * (997 * (version % 7))}
    Store(place / "records.sqlite").append([record])


def last_record(place: Path) -> int:
    """The version of the last record; raises if an earlier one is missing."""
    ids = [int(record["id"]) for record in Store(place / "records.sqlite").records()]
    if ids != [*range(len(ids))]:
        raise ValueError(f"records {ids[:5]}... are not consecutive")
    return ids[-1]


def quiet(*words: object) -> None:
    """Run a command without output; raises if it fails."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        try:
            command_line([str(word) for word in words])
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{words[0]} ended with {end.code}") from None


def in_process(action: Callable[[], Any], patience: float | None = None) -> int:
    """Exit status of a process that runs an action; it is killed after a time limit."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")
            action()
            code = 0
        except OSError as error:
            # A database that cannot write raises its own error.
            told = isinstance(error.__cause__, sqlite3.OperationalError)
            code = 2 if told or error.errno in (errno.EFBIG, errno.ENOSPC, errno.EACCES, errno.EROFS) else 3
        except BaseException as error:
            code = 4 if "Cannot write" in repr(error.__context__) else 3
            print(repr(error)[:300], file=sys.stderr)
        finally:
            os._exit(code)
    if patience is not None:
        time.sleep(patience)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def die_before(event: int, folder: Path) -> None:
    """Kill this process before its n-th event in a folder."""
    left, fsync, write = event, os.fsync, os.write

    def count() -> None:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def hook(name: str, arguments: tuple[Any, ...]) -> None:
        if name in _EVENTS and str(arguments[0]).startswith(str(folder)):
            count()

    sys.addaudithook(hook)
    os.fsync = lambda descriptor: (count(), fsync(descriptor))[1]  # type: ignore[assignment]
    os.write = lambda descriptor, data: (count(), write(descriptor, data[: len(data) // 2 or 1]))[1]  # type: ignore
    sqlite3.connect = _counting_connect(count)  # type: ignore[assignment]


def _counting_connect(count: Callable[[], None]) -> Callable[..., sqlite3.Connection]:
    """``sqlite3.connect`` whose connections count their commands, the steps of these, and their end."""
    connect = sqlite3.connect

    class Counting(sqlite3.Connection):
        def execute(self, *words: Any) -> sqlite3.Cursor:
            count()
            return super().execute(*words)

        def close(self) -> None:
            count()
            super().close()

    def counting(*words: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*words, **options, factory=Counting)
        database.set_progress_handler(count, _STEPS)
        return database

    return counting


def examine(subject: Subject, place: Path, allowed: set[int], counts: Counter[str]) -> None:
    """Count whether a place holds an allowed version, other files there, and whether these are removed."""
    counts["attempts"] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            version = subject.version(place)
        except Exception as error:
            print("broken:", repr(error)[:300], flush=True)
            counts["broken"] += 1
            return
    counts["broken"] += version not in allowed
    counts["new"] += version > 0
    extra = max(0, len([*place.iterdir()]) - subject.rest)
    counts["most left"] = max(counts["most left"], extra)


def examine_next(subject: Subject, place: Path, version: int, counts: Counter[str]) -> None:
    """Count next saves that fail or leave further files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject.write(place, version)
        counts["broken"] += subject.version(place) % 2 != version % 2
    names = [path.name for path in place.iterdir() if not path.name.endswith(".damaged")]
    counts["not cleaned"] += len(names) != subject.rest


def kill_at_events(name: str, subject: Subject, root: Path) -> Counter[str]:
    """Kill before every event of one save."""
    counts: Counter[str] = Counter()
    for event in range(200):
        place = root / "events"
        shutil.rmtree(place, ignore_errors=True)
        subject.write(place, 0)

        def action(place: Path = place, event: int = event) -> None:
            die_before(event, place)
            subject.write(place, 1)

        status = in_process(action)
        if status == 0:
            counts["new"] += 0
            return counts
        examine(subject, place, {0, 1}, counts)
        examine_next(subject, place, subject.version(place) + 1 if name == "study store" else 0, counts)
    return counts


def kill_at_random(name: str, subject: Subject, root: Path, kills: int, longest: float) -> Counter[str]:
    """Kill a process that saves again and again."""
    counts: Counter[str] = Counter()
    rng, place, last = random.Random(0), root / "random", 0
    shutil.rmtree(place, ignore_errors=True)
    subject.write(place, 0)
    for _ in range(kills):

        def action(first: int = last + 1) -> None:
            for version in range(first, first + 10**6):
                subject.write(place, version)

        in_process(action, patience=rng.uniform(0.0, longest))
        before = counts["broken"]
        examine(subject, place, {*range(10**4)} if name in ("lc.save", "study store") else {0, 1}, counts)
        if counts["broken"] == before:
            last = subject.version(place)
        if rng.random() < 0.2:
            last += 1
            examine_next(subject, place, last, counts)
        if name == "lc.save" and last > 500:
            last = 0
            subject.write(place, 0)
    return counts


def fill_disk(name: str, subject: Subject, root: Path) -> Counter[str]:
    """Limit the size of files, as on a disk that becomes full."""
    counts: Counter[str] = Counter()
    for limit in (*range(0, 600, 30), *range(600, 6000, 300), *range(6000, 50_000, 4000)):
        place = root / "full"
        shutil.rmtree(place, ignore_errors=True)
        subject.write(place, 0)
        before = sorted(path.name for path in place.iterdir())

        def action(place: Path = place, limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            subject.write(place, 1)

        status = in_process(action) >> 8
        examine(subject, place, {1} if status == 0 else {0}, counts)
        if status and name != "study store":
            counts["not cleaned"] += sorted(path.name for path in place.iterdir()) != before
        counts["other errors"] += status not in (0, 2, 4) and not name.startswith("latentcal")
        examine_next(subject, place, subject.version(place) + 1 if name == "study store" else 0, counts)
    return counts


def forbid(name: str, subject: Subject, root: Path, attempts: int) -> Counter[str]:
    """Write to a folder without permission."""
    counts: Counter[str] = Counter()
    for _ in range(attempts):
        place = root / "forbidden"
        shutil.rmtree(place, ignore_errors=True)
        subject.write(place, 0)
        before = {path.name: path.read_bytes() for path in place.iterdir()}

        def action(place: Path = place) -> None:
            os.chmod(place, 0o555)
            if os.getuid() == 0:
                os.setuid(65534)
            subject.write(place, 1)

        status = in_process(action) >> 8
        os.chmod(place, 0o755)
        examine(subject, place, {0}, counts)
        counts["broken"] += before != {path.name: path.read_bytes() for path in place.iterdir()}
        counts["other errors"] += status not in (2, 4) and not name.startswith("latentcal")
    return counts


def race(subject: Subject, root: Path, races: int) -> Counter[str]:
    """Let two processes save at once, to a folder that contains a model or does not exist."""
    counts: Counter[str] = Counter()
    for number in range(races):
        place = root / "race"
        shutil.rmtree(place, ignore_errors=True)
        if number % 2:
            subject.write(place, 0)
        start, go = os.pipe()
        children = []
        for version in (2, 5):
            child = os.fork()
            if child == 0:
                os.close(go)
                os.read(start, 1)  # until the other end is closed
                try:
                    subject.write(place, version)
                    os._exit(0)
                except BaseException as error:
                    print("race:", repr(error)[:300], file=sys.stderr, flush=True)
                    os._exit(1)
            children.append(child)
        os.close(start), os.close(go)
        counts["other errors"] += sum(os.waitpid(child, 0)[1] != 0 for child in children)
        examine(subject, place, {2, 5}, counts)
        examine_next(subject, place, 1, counts)
    return counts


def experiments(root: Path, share: float = 1.0) -> Iterator[tuple[str, str, Counter[str]]]:
    """Run all attempts, but only a ``share`` of the random ones."""
    found = subjects(root)
    random_kills = {
        "lc.save": (300, 0.05),
        "FlowRegressor.save": (150, 0.1),
        "latentcal fit": (60, 1.0),
        "latentcal recalibrate": (60, 0.6),
        "study store": (150, 0.03),
    }
    for name, subject in found.items():
        kills, longest = random_kills[name]
        yield name, "killed before an event", kill_at_events(name, subject, root)
        kills = max(3, round(share * kills))
        yield name, "killed at random", kill_at_random(name, subject, root, kills, longest)
    for name in ("lc.save", "FlowRegressor.save", "study store"):
        yield name, "full disk", fill_disk(name, found[name], root)
    for name in ("lc.save", "FlowRegressor.save"):
        yield name, "forbidden folder", forbid(name, found[name], root, max(2, round(share * 20)))
    yield "lc.save", "two writers", race(found["lc.save"], root, max(6, round(share * 300)))


def main() -> None:
    """Run everything, print and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the random kills and races")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Its own lock is shared with the forks: a fork that is killed while holding it never releases it.
    tqdm.set_lock(threading.RLock())
    columns = ("attempts", "new", "broken", "most left", "not cleaned", "other errors")
    with tempfile.TemporaryDirectory() as place, options.results.open("w", newline="") as file:
        os.chmod(place, 0o755)
        lines = csv.writer(file)
        lines.writerow(["what", "how", *columns])
        for name, how, counts in experiments(Path(place), options.share):
            lines.writerow([name, how, *(counts[column] for column in columns)])
            print(
                f"{name:<24}{how:<26}",
                *(f"{column} {counts[column]}" for column in columns),
                sep="  ",
                flush=True,
            )


if __name__ == "__main__":
    main()
