"""Runs side by side on one machine: a process each, watched, replaced when it dies."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from .spec import RunSpec

Task = Callable[[RunSpec], str]
"""What is done with a run; says in words what became of it. It must be importable, and safe to be killed."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of a run: ``"done"``, ``"failed"`` (the task raised) or ``"lost"`` (its process died)."""

    spec: RunSpec
    state: str
    message: str


def run_all(
    specs: Sequence[RunSpec],
    task: Task,
    *,
    processes: int = 1,
    retries: int = 2,
    cost: Callable[[RunSpec], float] = lambda spec: 1.0,
    report: Callable[[str], None] = lambda line: print(line, flush=True),
    on_lost: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Do a task for every run, in order, in processes of one thread each.

    A process that dies takes only its own run with it: the run is tried again in a new process, a bounded
    number of times. An interrupt (Ctrl-C) ends the processes and is passed on. If this process itself is
    killed, its workers end too. Tasks keep their results themselves, so nothing that is done is lost.

    Args:
        specs: the runs.
        task: what is done with each.
        processes: how many at a time.
        retries: how often a run is begun again after its process died.
        cost: expected duration of a run in any unit, for the time that is left.
        report: takes one line for each run.
        on_lost: called with a run that is given up because its processes died.

    Returns:
        What became of each run, in the order in which they ended.
    """
    if processes < 1 or retries < 0:
        raise ValueError(f"processes must be at least 1 and retries at least 0, got {processes}, {retries}.")
    queue = deque((spec, 0) for spec in specs)
    progress, outcomes = Progress([cost(spec) for spec in specs]), []
    workers: list[_Worker] = []
    try:
        while queue or any(worker.spec is not None for worker in workers):
            while queue and (worker := _free(workers, task, processes)) is not None:
                worker.begin(*queue.popleft())
            for worker in _ready(workers):
                spec, attempt = worker.spec, worker.attempt
                outcome = worker.collect()
                if spec is None:
                    workers.remove(worker)
                    continue
                if outcome is None:
                    workers.remove(worker)
                    died = f"its process died ({worker.how_it_died()})"
                    if attempt < retries:
                        report(f"{spec.key}: {died}; it is begun again")
                        queue.appendleft((spec, attempt + 1))
                        continue
                    outcome = Outcome(spec, "lost", f"{died} {attempt + 1} times")
                    if on_lost is not None:
                        on_lost(outcome)
                outcomes.append(outcome)
                report(progress.line(cost(spec), outcome))
    finally:
        for worker in workers:
            worker.end()
    return outcomes


class _Worker:
    """A process that does one run after the other."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_work, args=(other, task), daemon=True)
        with _single_threaded():
            self.process.start()
        other.close()
        self.spec: RunSpec | None = None
        self.attempt = 0

    def begin(self, spec: RunSpec, attempt: int) -> None:
        self.spec, self.attempt = spec, attempt
        with suppress(OSError):  # it may be dead; `collect` finds out
            self.connection.send(spec)

    def collect(self) -> Outcome | None:
        """What became of the run, None if the process died; the worker is free again."""
        spec, self.spec = self.spec, None
        try:
            if spec is not None and self.connection.poll():
                return Outcome(spec, *self.connection.recv())
        except (EOFError, OSError):
            pass
        return None

    def how_it_died(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def end(self) -> None:
        self.connection.close()  # one that waits for work ends by itself
        if self.spec is not None:
            self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _free(workers: list[_Worker], task: Task, processes: int) -> _Worker | None:
    for worker in workers:
        if worker.spec is None:
            return worker
    if len(workers) == processes:
        return None
    workers.append(_Worker(task))
    return workers[-1]


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Workers that have answered or died, waiting for the first."""
    handles: dict[Any, _Worker] = {}
    for worker in workers:
        handles |= {worker.connection: worker, worker.process.sentinel: worker}
    return list(dict.fromkeys(handles[handle] for handle in wait(list(handles))))


def _work(connection: Connection, task: Task) -> None:
    """The life of a worker process."""
    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            spec = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            state, message = "done", task(spec)
        except KeyboardInterrupt:
            return
        except Exception:
            state, message = "failed", traceback.format_exc()
        try:
            connection.send((state, message))
        except OSError:
            return


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Linear algebra of processes that are started inside the block has one thread."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Progress:
    """Lines that say how far it is and how long it will take.

    Args:
        costs: expected durations of the runs, in any unit.
    """

    def __init__(self, costs: Sequence[float]) -> None:
        self._count, self._total, self._cost = 0, len(costs), sum(costs)
        self._done, self._start = 0.0, time.monotonic()

    def line(self, cost: float, outcome: Outcome) -> str:
        """The line of a run of this cost that has ended."""
        self._count, self._done = self._count + 1, self._done + cost
        elapsed = time.monotonic() - self._start
        left = elapsed * (self._cost - self._done) / self._done if self._done else 0.0
        words = (
            outcome.message if outcome.state == "done" else f"{outcome.state.upper()} {outcome.spec.key}: "
        )
        if outcome.state != "done":
            words += outcome.message.strip().splitlines()[-1]
        return f"{self._count}/{self._total}, {_clock(elapsed)}, left about {_clock(left)}: {words}"


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes else f"{seconds:.0f} s"
