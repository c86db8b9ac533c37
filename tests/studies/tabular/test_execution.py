"""Many runs on dask workers: separate processes, reached over TCP, that may die."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import toy_study
from toy_study import deadly_load, load, spec, without_times

from alike import alike
from studies.tabular import Store, execution, record_id, run, run_suite

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def quick_start():
    """Workers start as copies of a process that has imported what they need: at once, not in seconds."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    # Optimisers of torch import torch._dynamo when the first one is made, which takes seconds, too.
    multiprocessing.set_forkserver_preload(["studies.tabular", "torch._dynamo", "distributed"])
    patch = pytest.MonkeyPatch()
    patch.setattr(distributed.utils, "_forkserver_preload_set", True)
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield
    patch.undo()


@pytest.fixture(scope="module")
def address(tmp_path_factory, quick_start):
    """Of a cluster of two workers of one thread each, in processes of their own."""
    before = os.environ.get("PYTHONPATH")
    here = [str(Path(toy_study.__file__).parent), str(HERE.parents[2]), before or ""]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)
    try:
        with distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=50,
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster:
            yield cluster.scheduler_address
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def quiet(line):
    """No report."""


def expected(specs):
    return {record_id(own, method) for own in specs for method in own.recalibrations}


def ids_of(path):
    return [record["id"] for record in Store(path).records()]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_workers_over_tcp_give_the_numbers_of_this_process(address, tmp_path):
    assert address.startswith("tcp://127.0.0.1:")
    specs, path, lines = [spec(seed) for seed in range(3)], tmp_path / "records.sqlite", []
    there = {"scheduler": address, "load": load, "cache": tmp_path / "there", "samples": False}
    outcomes = run_suite(specs, path, **there, report=lines.append)
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    assert (lines[0][:4], lines[-1][:4]) == ("1/3,", "3/3,")
    assert "left about 0 s" in lines[-1]
    here = [r for own in specs for r in run(own, samples=False, load=load, cache=tmp_path / "here")]
    found = {record["id"]: without_times(record) for record in Store(path).records()}
    assert alike(found, {record["id"]: without_times(record) for record in here})
    assert run_suite(specs, path, **there, report=quiet) == []  # there is nothing left


def test_a_worker_that_is_killed_loses_and_doubles_nothing(address, tmp_path):
    path, specs = tmp_path / "records.sqlite", [spec(seed) for seed in range(4)]
    deadly = partial(deadly_load, folder=tmp_path, deaths=2)
    outcomes = run_suite(
        specs, path, scheduler=address, load=deadly, cache=tmp_path / "c", samples=False, report=quiet
    )
    assert len(list(tmp_path.glob("death-*"))) == 2
    assert [outcome.state for outcome in outcomes] == ["done"] * 4
    assert sorted(ids_of(path)) == sorted(expected(specs))
    assert Store(path).failures() == []


def test_what_a_worker_cannot_do_is_recorded_and_can_be_retried(address, tmp_path):
    path, lines = tmp_path / "records.sqlite", []
    there = {"scheduler": address, "cache": tmp_path / "cache", "report": lines.append}
    (outcome,) = run_suite([spec()], path, **there)  # the study's own loader does not know the toy
    assert outcome.state == "failed"
    assert "FAILED" in lines[0]
    assert [record["stage"] for record in Store(path).failures()] == ["training"] * 2
    assert run_suite([spec()], path, load=load, **there) == []
    (outcome,) = run_suite([spec()], path, load=load, retry_failed=True, samples=False, **there)
    assert outcome.state == "done"
    assert Store(path).failures() == []
    assert len(Store(path).partial()) == 2
    assert run_suite([spec()], path, load=load, samples=False, **there) == []
    (outcome,) = run_suite([spec()], path, load=load, **there)  # completed by what needs samples
    assert outcome.state == "done"
    assert Store(path).partial() == set()


@pytest.mark.slow
def test_a_run_that_always_kills_its_worker_is_given_up(address, tmp_path):
    path = tmp_path / "records.sqlite"
    deadly = partial(deadly_load, folder=tmp_path, deaths=100)
    (outcome,) = run_suite([spec()], path, scheduler=address, load=deadly, cache=tmp_path, report=quiet)
    assert outcome.state == "lost"
    assert 2 <= len(list(tmp_path.glob("death-*"))) <= 8
    assert {record["stage"] for record in Store(path).failures()} == {"worker"}
    assert Store(path).status() == dict.fromkeys(expected([spec()]), "failed")


def test_a_record_is_stored_before_its_run_ends(address, tmp_path, monkeypatch):
    """Without the run's own answer its records are in the store all the same."""
    monkeypatch.setattr(execution, "_keep", lambda future, own, store: execution.Outcome(own, "done", ""))
    path = tmp_path / "records.sqlite"
    run_suite([spec()], path, scheduler=address, load=load, cache=tmp_path, samples=False, report=quiet)
    until(lambda: set(ids_of(path)) == expected([spec()]), 10)


def test_nothing_to_do_starts_no_worker(tmp_path):
    assert run_suite([], tmp_path / "records.sqlite") == []
    with pytest.raises(ValueError, match="workers must be at least 1"):
        run_suite([spec()], tmp_path / "records.sqlite", workers=0)
    with pytest.raises(ValueError, match="no address of a scheduler"):
        run_suite([spec()], tmp_path / "records.sqlite", scheduler="here")


def start_runner(folder: Path, seeds: int) -> subprocess.Popen:
    """A suite on this machine, in a process of its own."""
    script = f"""
        import sys
        from functools import partial
        from pathlib import Path
        sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[2])!r}]
        from toy_study import slow_load, spec
        from studies.tabular import run_suite

        if __name__ == "__main__":
            folder = Path({str(folder)!r})
            load = partial(slow_load, folder=folder)
            specs = [spec(seed) for seed in range({seeds})]
            run_suite(specs, folder / "records.sqlite", load=load, cache=folder / "cache", samples=False)
    """
    path = folder / "runner_script.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts jobs in the background deaf to interrupts, and their children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_the_runner_is_killed_its_workers_end_and_a_second_run_completes(address, tmp_path):
    specs, path = [spec(seed) for seed in range(3)], tmp_path / "records.sqlite"
    with start_runner(tmp_path, 3) as runner:
        until(lambda: len(ids_of(path)) == 2)
        runner.send_signal(signal.SIGKILL)
    worker = int((tmp_path / "pid").read_text())
    until(lambda: not alive(worker), 20)
    before = ids_of(path)
    there = {"scheduler": address, "load": load, "cache": tmp_path / "cache", "samples": False}
    assert len(run_suite(specs, path, **there, report=quiet)) == 2
    assert ids_of(path)[:2] == before
    assert sorted(ids_of(path)) == sorted(expected(specs))


@pytest.mark.slow
def test_an_interrupt_ends_runner_and_workers(tmp_path):
    path = tmp_path / "records.sqlite"
    with start_runner(tmp_path, 3) as runner:
        until(lambda: len(ids_of(path)) == 2)
        runner.send_signal(signal.SIGINT)
        _, errors = runner.communicate(timeout=60)
    assert runner.returncode != 0
    assert "KeyboardInterrupt" in errors
    worker = int((tmp_path / "pid").read_text())
    until(lambda: not alive(worker), 20)
    assert Store(path).failures() == []
