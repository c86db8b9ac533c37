"""Mutation score of the mathematical core: the share of small faults that the tests detect.

    nice -n 10 python tools/mutants.py --count 290 --seed 1 --quick --cap 3 --without prerank
    nice -n 10 python tools/mutants.py --survivors --without prerank
    python tools/mutants.py --score

A first pass records which tests run which lines and how long they take (in build/mutants, per test file,
repeated if the file or the core has changed). Then every mutant of a random sample, in proportion to the
number of possible mutants of each module, is tested by the tests that run its line, until one fails. Each
mutant is a row of tools/results/mutants.csv as soon as its outcome is known. Mutants with a row are not
tested again, except with ``--survivors``, which keeps the outcome of the first pass in a separate column.
Survivors that no test can detect are explained in tools/results/mutants_explained.csv.

mutants_first.csv and mutants_first_explained.csv contain an earlier sample (seed 0, with an earlier
arrangement of the modules); tests were written for its survivors. Its mutants are not drawn again, so the
first pass over mutants.csv measures the tests on new faults. That sample was tested in two steps: ``--quick
--cap 3``, then its survivors again with ``--cap 6`` before any test was added. Pre-ranks, and the probit
mixture that only they use, are left out (``--without prerank``; eight rows were removed). To save time,
test_persistence, test_inputs, test_numerics, test_special, test_splines and test_checks are left out as well.
Explained survivors were tested in the first step only, the others at the end by the new tests alone.

Both passes fork a process that has loaded torch but not latentcal; a child imports the faulty module instead
of the true one. A mutant that takes five seconds more than three times the usual time counts as killed.
"""

from __future__ import annotations

import argparse
import csv
import gc
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import math
import os
import random
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "build" / "mutants"
RESULTS = ROOT / "tools" / "results" / "mutants.csv"
EXPLAINED = RESULTS.with_name("mutants_explained.csv")
EARLIER = RESULTS.with_name("mutants_first.csv")
EARLIER_EXPLAINED = RESULTS.with_name("mutants_first_explained.csv")
KEY = ("module", "line", "operator", "before", "after")
COLUMNS = (*KEY, "first", "outcome", "test", "seconds")
CORE = ("radius", "base.py", "transport.py", "flow.py", "pit.py", "conformal", "metrics", "recalibration")
TESTS = ("radius", "recalibration", "conformal", "metrics", *(
    f"test_{name}.py" for name in (
        "base", "checks", "discrete", "flow", "inputs", "metamorphic", "norms", "numerics", "persistence",
        "pit", "shift", "special", "splines", "transport",
    )
))  # fmt: skip
# Packages that the tests and the library import, loaded once before the forks.
WARM = ("pytest", "torch", "torch.distributions", "numpy", "scipy.stats", "scipy.special", "scipy.optimize",
        "hypothesis", "mpmath", "safetensors.torch", "zuko", "sklearn.base", "pandas", "tqdm")  # fmt: skip
MEMORY = 8 << 30
PYTEST = [
    "-q",
    "--tb=no",
    "--no-header",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestConfigWarning",
]


def files_of(names: Iterable[str], folder: str, pattern: str) -> list[str]:
    """Python files in the named files and folders, as paths in the repository."""
    paths = [ROOT / folder / name for name in names]
    found = [path for part in paths for path in (sorted(part.glob(pattern)) if part.is_dir() else [part])]
    return [str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py"]


def leave_out(paths: Iterable[str], words: Iterable[str]) -> list[str]:
    """The paths that contain none of the words."""
    return [path for path in paths if not any(word in path for word in words)]


def file_of(test: str) -> str:
    """Path of the file that a test is in."""
    return test.partition("::")[0]


class Coverage:
    """A pytest plugin that records the lines of the core that each test runs, and its duration.

    Lines run while a file is imported are recorded separately. Lines run by a module's fixture are counted
    for all tests that use it.
    """

    def __init__(self, core: Iterable[str]) -> None:
        self.files = {str(ROOT / path): path for path in core}
        self.now: set[tuple[str, int]] = set()
        self.reading, self.fixtures = self.now, {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.lines: dict[str, list[int]] = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        path = self.files.get(frame.f_code.co_filename)
        if (
            path is None or not frame.f_code.co_flags & inspect.CO_OPTIMIZED
        ):  # elsewhere, or not in a function
            return None

        def note(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            self.now.add((path, frame.f_lineno))
            return note

        return note

    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self.now
        if fixturedef.scope != "function":
            self.now = self.fixtures.setdefault(fixturedef.argname, set())
        yield
        self.now = before

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.now, start = set(), time.process_time()
        yield
        lines = self.now.union(*(self.fixtures.get(name, ()) for name in item.fixturenames))
        for path, line in lines:
            self.lines.setdefault(f"{path}:{line}", []).append(len(self.seconds))
        self.seconds[item.nodeid] = round(time.process_time() - start, 4)
        self.now = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


class Selection:
    """A pytest plugin that runs the given tests in the given order, each with its own time limit."""

    def __init__(self, seconds: dict[str, float], say: Callable[..., None]) -> None:
        self.seconds, self.say, self.failed = seconds, say, ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:  # the name of a test stands for all its cases
            name = item.nodeid.partition("[")[0]
            if name in self.seconds:
                self.seconds.setdefault(item.nodeid, self.seconds[name])
        place = {name: number for number, name in enumerate(self.seconds)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])

    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self.say(test=item.nodeid)
        # By default, this signal ends the process, also inside a loop of torch.
        signal.setitimer(signal.ITIMER_PROF, 3 * self.seconds[item.nodeid] + 5)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)


class Faulty(importlib.machinery.SourceFileLoader):
    """A loader, and finder, of the module with a fault."""

    def __init__(self, mutant: Mutant) -> None:
        name = mutant.module.removeprefix("src/").removesuffix(".py").replace("/", ".")
        super().__init__(name, str(ROOT / mutant.module))
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutant.tree(), self.path, "exec")


def cover(path: str, core: list[str], store: Path, say: Callable[..., None]) -> None:
    """Record the lines that the tests of one file run, in a separate process."""
    import pytest

    plugin = Coverage(core)
    for name in ("pytest_fixture_setup", "pytest_runtest_protocol"):
        setattr(Coverage, name, pytest.hookimpl(hookwrapper=True)(getattr(Coverage, name)))
    sys.settrace(plugin.trace)
    pytest.main([path, *PYTEST], plugins=[plugin])
    sys.settrace(None)
    reading = [f"{path}:{line}" for path, line in plugin.reading]
    found = {"seconds": plugin.seconds, "failed": sorted(plugin.failed), "reading": reading}
    store.write_text(json.dumps(found | {"lines": plugin.lines}))
    say(count=len(plugin.seconds), failed=sorted(plugin.failed))


def attack(mutant: Mutant | None, rounds: list[dict[str, float]], say: Callable[..., None]) -> None:
    """Run tests against a mutant in rounds, in a separate process; reports the running test and the end.

    Without a mutant the tests should pass.
    """
    import pytest

    Selection.pytest_runtest_protocol = pytest.hookimpl(hookwrapper=True)(Selection.pytest_runtest_protocol)
    if mutant is not None:
        finder = Faulty(mutant)
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
        signal.setitimer(signal.ITIMER_PROF, 30)
        say(test="import")
        importlib.import_module(finder.name)
    for tests in rounds:
        signal.setitimer(signal.ITIMER_PROF, 60)
        say(test="collection")
        files = list(dict.fromkeys(map(file_of, tests)))
        if pytest.main([*files, "-x", *PYTEST], plugins=[Selection(tests, say)]) != 0:
            return
    say(survived=True)


def start(work: Callable[[Callable[..., None]], None]) -> tuple[int, int]:
    """Process number and pipe of a forked child that does the work and reports its messages."""
    reading, writing = os.pipe()
    if process := os.fork():
        os.close(writing)
        return process, reading
    os.close(reading)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(ROOT)

    def say(**what: object) -> None:
        os.write(writing, json.dumps(what).encode() + b"\n")

    with suppress(BaseException):
        work(say)
    os._exit(0)


def run_all(jobs: Iterator[tuple[Any, Callable[..., None]]], processes: int) -> Iterator[tuple[Any, Any]]:
    """The last message of each job's child, as they end, its duration, and whether it was stopped."""
    running: dict[int, list[Any]] = {}
    jobs, waiting = iter(jobs), True
    while waiting or running:
        while waiting and len(running) < processes:
            job = next(jobs, None)
            waiting = job is not None
            if job is not None:
                process, pipe = start(job[1])
                running[pipe] = [job[0], process, time.monotonic(), b""]
        for pipe in select.select(list(running), [], [], 5)[0]:
            name, process, began, _ = running[pipe]
            data = os.read(pipe, 1 << 20)
            running[pipe][3] += data
            if not data:
                os.close(pipe)
                said = [json.loads(line) for line in running.pop(pipe)[3].splitlines()]
                killed_by = os.WTERMSIG(os.waitpid(process, 0)[1])
                yield (
                    name,
                    (said[-1] if said else {})
                    | {
                        "seconds": round(time.monotonic() - began, 1),
                        "too long": killed_by == signal.SIGPROF,
                    },
                )


def coverage(core: list[str], without: list[str], processes: int) -> list[dict[str, Any]]:
    """Seconds and lines of the tests by file; from the store if nothing has changed."""
    everything = "".join((ROOT / path).read_text(encoding="utf-8") for path in core)
    tests = leave_out(files_of(TESTS, "tests", "test_*.py"), without)
    tests += [path for path in core if ">>>" in (ROOT / path).read_text(encoding="utf-8")]
    stores = {}
    for path in tests:
        text = (ROOT / path).read_text(encoding="utf-8") + everything
        version = hashlib.sha256(text.encode()).hexdigest()[:12]
        stores[path] = STORE / f"{path.replace('/', '.')}.{version}.json"
    jobs = (
        (path, lambda say, path=path, store=store: cover(path, core, store, say))
        for path, store in stores.items()
        if not store.exists()
    )
    STORE.mkdir(parents=True, exist_ok=True)
    for path, said in run_all(jobs, processes):
        if "count" not in said:
            sys.exit(f"{path} cannot be run: {said}.")
        print(
            f"{path}: {said['count']} tests in {said['seconds']} s", *said["failed"], sep="\n    ", flush=True
        )
    return [json.loads(store.read_text()) for store in stores.values()]


class Choice:
    """The tests to run on a mutant, among those that pass without one."""

    def __init__(self, files: list[dict[str, Any]]) -> None:
        self.seconds: dict[str, float] = {}
        self.running: dict[str, dict[int, set[str]]] = {}
        self.reading: dict[str, dict[int, set[str]]] = {}
        for file in files:
            names = list(file["seconds"])
            self.seconds |= file["seconds"]
            everyone = dict.fromkeys(file["reading"], range(len(names)))
            for table, lines in ((self.running, file["lines"]), (self.reading, everyone)):
                for place, numbers in lines.items():
                    path, _, line = place.rpartition(":")
                    found = table.setdefault(path, {}).setdefault(int(line), set())
                    found |= {names[number] for number in numbers} - set(file["failed"])
        self.sizes = Counter(map(file_of, self.seconds))

    def rounds(self, mutant: Mutant, cap: float, quick: bool) -> tuple[list[dict[str, float]], bool]:
        """Tests that run the mutant's lines, the quickest first, in rounds; whether some are left out.

        A default is used by what runs the function; a constant of a module or class by what runs functions
        of that module. The files named after the module or concerned most come first: to read many files
        takes longer than to run their quick tests. A quarter of the time is for tests of what was made while
        their file was read, drawn at random since most are about something else. ``quick`` is the first round
        only, of the two files concerned most.
        """
        first, last = mutant.line, mutant.last_line
        if mutant.operator == "default":
            first, last = mutant.function
        elif mutant.function == (0, 0):
            first, last = 0, sys.maxsize
        running, reading = (
            set().union(
                *(names for line, names in table.get(mutant.module, {}).items() if first <= line <= last)
            )
            for table in (self.running, self.reading)
        )
        files, own = Counter(map(file_of, running)), Path(mutant.module).stem
        near = sorted(files, key=lambda path: (own not in path, -files[path] / self.sizes[path], path))
        near = near[: 2 if quick else 4]
        drawn = sorted(reading - running, key=lambda name: hashlib.sha256(name.encode()).digest())
        chosen, rounds = set(), []
        for limit, part in (
            (cap, [name for name in running if file_of(name) in near]),
            (cap, [name for name in running if file_of(name) not in near]),
            (1.25 * cap, drawn),
        )[: 1 if quick else None]:
            tests: dict[str, float] = {}
            spent = sum(self.seconds[name] for name in chosen)
            if part is not drawn:
                part.sort(key=lambda name: (own not in file_of(name), self.seconds[name], name))
            for name in part:
                if spent == 0 or spent + self.seconds[name] < limit:
                    tests[name] = self.seconds[name]
                    spent += self.seconds[name]
            chosen |= set(tests)
            rounds += [tests] if tests else []
        return rounds, len(chosen) < len(running | reading)


def sample(candidates: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """About ``count`` mutants, from each module in proportion to its number, at least one each."""
    total = sum(map(len, candidates.values()))
    chosen = []
    for module, mutants in candidates.items():
        share = math.ceil(count * len(mutants) / total)
        chosen += random.Random(f"{seed} {module}").sample(mutants, min(share, len(mutants)))
    return chosen


def read(path: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Rows of a table by the identifier of the mutant."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}


def write(rows: Iterable[dict[str, str]]) -> None:
    """All rows, by module and line."""
    unfinished = RESULTS.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["module"], int(row["line"]), row["after"])))
    unfinished.replace(RESULTS)


def score(rows: Iterable[dict[str, str]], explained: set[tuple[str, ...]], column: str) -> str:
    """Share of killed mutants among all, and among those that a test can detect."""
    rows = [row for row in rows if row[column]]
    killed = sum(row[column].startswith("killed") for row in rows)
    equivalent = sum(
        tuple(row[name] for name in KEY) in explained for row in rows if not row[column].startswith("killed")
    )
    return (
        f"{killed} of {len(rows)} killed ({killed / max(len(rows), 1):.1%}), {equivalent} equivalent: "
        f"{killed / max(len(rows) - equivalent, 1):.1%} of the others"
    )


def main() -> None:
    """Sample mutants, test them, and write the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--survivors", action="store_true", help="test again the mutants that no test detected"
    )
    parser.add_argument("--only", nargs="*", help="only modules whose paths contain one of these words")
    parser.add_argument("--without", nargs="*", default=[], help="no modules or tests with such a word")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cap", type=float, default=60.0, help="seconds of tests a mutant, quickest first")
    parser.add_argument("--quick", action="store_true", help="only the two test files concerned most")
    parser.add_argument("--tests", nargs="*", help="names of the only tests to try, such as new ones")
    parser.add_argument("--score", action="store_true", help="only print the score")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.path.insert(0, str(ROOT / "src"))
    rows, explained = read(RESULTS), set(read(EXPLAINED))
    earlier, earlier_explained = read(EARLIER), set(read(EARLIER_EXPLAINED))
    if not options.score:
        for name in WARM:
            with suppress(ImportError):
                importlib.import_module(name)
        assert "latentcal" not in sys.modules
        gc.freeze()  # else the collections of the children would copy all memory
        core = leave_out(files_of(CORE, "src/latentcal", "*.py"), options.without)
        choice = Choice([] if options.tests else coverage(core, options.without, options.processes))
        mutants = sample({path: mutants_of(path) for path in core}, options.count, options.seed)
        if options.survivors:
            alive = {key for key, row in rows.items() if not row["outcome"].startswith("killed")} - explained
            mutants = [mutant for path in core for mutant in mutants_of(path) if mutant.key in alive]
        else:
            tried = {key[2:] for key in earlier}  # without module and line: statements move
            mutants = [m for m in mutants if m.key not in rows and m.key[2:] not in tried]
        if options.only:
            mutants = [mutant for mutant in mutants if any(word in mutant.module for word in options.only)]
        random.Random(options.seed).shuffle(
            mutants
        )  # so that the known outcomes are a random sample at any time
        given = [dict.fromkeys(options.tests or [], options.cap)]
        for _, said in run_all(iter([("", lambda say: attack(None, given, say))] * bool(options.tests)), 1):
            if "survived" not in said:
                sys.exit(f"A test fails without a fault: {said['test']}.")
        plans = [
            (m, given, True) if options.tests else (m, *choice.rounds(m, options.cap, options.quick))
            for m in mutants
        ]
        jobs = (
            ((mutant, rounds, capped), lambda say, mutant=mutant, rounds=rounds: attack(mutant, rounds, say))
            for mutant, rounds, capped in plans
        )
        for number, ((mutant, rounds, capped), said) in enumerate(run_all(jobs, options.processes), 1):
            outcome = "survived, tests capped" if capped else "survived"
            if not rounds and not capped:
                outcome = "survived, no test runs it"
            if "survived" not in said:
                outcome = "killed, too long" if said["too long"] else "killed"
            row = dict(zip(KEY, mutant.key, strict=True)) | {"outcome": outcome, "test": said.get("test", "")}
            row["seconds"] = str(said["seconds"])
            row["first"] = rows[mutant.key]["first"] if mutant.key in rows else outcome
            rows[mutant.key] = row
            write(rows.values())
            print(
                f"{number}/{len(plans)} {outcome}: {mutant.module}:{mutant.line} {mutant.after}", flush=True
            )
    for name, table, reasons in (
        ("earlier sample", earlier, earlier_explained),
        ("this sample", rows, explained),
        ("both", earlier | rows, explained | earlier_explained),
    ):
        for when, column in (("first pass", "first"), ("now", "outcome")):
            print(f"{name}, {when}: {score(table.values(), reasons, column)}")


if __name__ == "__main__":
    main()
