import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from quick_processes import copies, quick_workers  # noqa: F401 (fixtures)
from toy_study import failing_task, quick_task, real_task, spec

from alike import alike
from studies.tabular import Store, record_id, run_all, run_suite

HERE = Path(__file__).parent


def ids_of(path):
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def expected(specs):
    return {record_id(own, method) for own in specs for method in own.recalibrations}


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


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost_or_doubled(tmp_path):
    specs, lines = [spec(seed) for seed in range(4)], []
    path = tmp_path / "records.jsonl"
    task = partial(quick_task, folder=tmp_path, deaths=1)
    run_suite(specs, path, processes=2, task=task, report=lines.append)
    names = ids_of(path)
    assert len(names) == len(set(names))
    assert set(names) == expected(specs)
    assert sum("signal 9" in line for line in lines) == 1
    assert Store(path).failures() == []
    assert lines[-1].startswith("4/4")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_a_run_that_always_kills_its_worker_is_given_up_and_can_be_retried(tmp_path):
    specs, path = [spec(seed) for seed in range(2)], tmp_path / "records.jsonl"
    task = partial(quick_task, folder=tmp_path, deaths=2)
    run_suite(specs, path, task=task, retries=1, report=lambda line: None)
    first, second = (record_id(specs[1], name) for name in specs[1].recalibrations)
    status = Store(path).status()
    assert status[first] == "done"  # recorded before the first death, and kept
    assert status[second] == "failed"
    (failure,) = Store(path).failures()
    assert "signal 9" in failure["error"]
    run_suite(specs, path, task=task, report=lambda line: None)  # skips what failed
    assert Store(path).status()[second] == "failed"
    run_suite(specs, path, task=task, retry_failed=True, report=lambda line: None)
    assert set(Store(path).status().values()) == {"done"}
    done = [record["id"] for record in Store(path).records()]
    assert sorted(done) == sorted(expected(specs))


@pytest.mark.usefixtures("quick_workers")
def test_a_task_that_raises_does_not_stop_the_rest():
    lines = []
    specs = [spec(seed) for seed in range(3)]
    outcomes = run_all(specs, failing_task, cost=lambda own: 1.0 + own.seed, report=lines.append)
    assert [outcome.state for outcome in outcomes] == ["done", "failed", "done"]
    assert "one is not liked" in outcomes[1].message
    assert "FAILED" in lines[1]
    assert lines[1].endswith("one is not liked")
    assert lines[0].startswith("1/3")
    assert lines[2].endswith("left about 0 s: fine")


def test_nothing_to_do_starts_no_process(tmp_path):
    assert run_all([], failing_task) == []
    with pytest.raises(ValueError, match="processes"):
        run_all([], failing_task, processes=0)


def runner_script(folder: Path, task: str, seeds: int) -> subprocess.Popen:
    """The runner as a process of its own."""
    script = f"""
        import sys
        from functools import partial
        from pathlib import Path
        sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[2])!r}]
        from toy_study import quick_task, real_task, spec
        from studies.tabular import run_suite

        if __name__ == "__main__":
            folder = Path({str(folder)!r})
            run_suite([spec(seed) for seed in range({seeds})], folder / "records.jsonl", task={task})
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


@pytest.mark.usefixtures("quick_workers")
def test_the_runner_is_killed_its_workers_end_and_a_second_run_completes(tmp_path):
    specs, path = [spec(seed) for seed in range(6)], tmp_path / "records.jsonl"
    with runner_script(tmp_path, "partial(quick_task, folder=folder, pause=300)", 6) as runner:
        until(lambda: path.exists() and path.read_text().count("\n") >= 3)
        runner.send_signal(signal.SIGKILL)
    worker = int((tmp_path / "pid").read_text())
    until(lambda: not alive(worker), 20)
    before = ids_of(path)
    assert len(before) == 3
    run_suite(specs, path, task=partial(quick_task, folder=tmp_path), report=lambda line: None)
    names = ids_of(path)
    assert names[: len(before)] == before
    assert len(names) == len(set(names))
    assert set(names) == expected(specs)


@pytest.mark.slow
def test_an_interrupt_ends_runner_and_workers(tmp_path):
    path = tmp_path / "records.jsonl"
    with runner_script(tmp_path, "partial(quick_task, folder=folder, pause=0.2)", 50) as runner:
        until(lambda: path.exists() and path.read_text().count("\n") >= 2)
        runner.send_signal(signal.SIGINT)
        _, errors = runner.communicate(timeout=30)
    worker = int((tmp_path / "pid").read_text())
    assert runner.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "leaked" not in errors
    until(lambda: not alive(worker), 10)
    assert Store(path).failures() == []


@pytest.mark.slow
def test_real_runs_survive_kills_of_runner_and_worker_with_the_same_numbers(tmp_path):
    calm, stormy = tmp_path / "calm", tmp_path / "stormy"
    for folder in (calm, stormy):
        folder.mkdir()
    specs = [spec(seed) for seed in range(3)]
    run_suite(specs, calm / "records.jsonl", task=real_task(calm), report=lambda line: None)
    path = stormy / "records.jsonl"
    with runner_script(stormy, "real_task(folder)", 3) as runner:
        until(lambda: path.exists() and path.read_text().count("\n") >= 1)
        runner.send_signal(signal.SIGKILL)
    run_suite(specs, path, task=real_task(stormy), report=lambda line: None)
    own, other = (
        {record["id"]: (record["nll"], record["energy_score"]) for record in Store(p).records()}
        for p in (path, calm / "records.jsonl")
    )
    assert alike(own, other)
    assert len(own) == 6
    assert len(ids_of(path)) == 6
