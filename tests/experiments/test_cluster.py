"""Runs on dask workers: separate processes, reached over TCP, that may die."""

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import toy_study
from quick_processes import copies  # noqa: F401 (a fixture)
from toy_study import load, real_task, slow_load, spec, without_times

from alike import alike
from latentcal.experiments import Store, record_id, run_suite
from latentcal.experiments import cluster as cluster_module
from latentcal.experiments.cluster import _client, run_on_cluster

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, copies):  # noqa: F811 (has the name of its fixture)
    """Two workers of one thread each, in processes of their own."""
    start = dask.config.set({"distributed.worker.multiprocessing-method": copies.get_start_method()})
    patch = pytest.MonkeyPatch()
    patch.setattr(distributed.utils, "_forkserver_preload_set", True)  # by ``copies``
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(toy_study.__file__).parent), before or ""])
    try:
        with (
            start,
            distributed.LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
                local_directory=str(tmp_path_factory.mktemp("dask")),
            ) as cluster,
        ):
            yield cluster
    finally:
        patch.undo()
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def quiet(line):
    """No report."""


def figures(path):
    """Records by id, without what depends on the clock."""
    return {record["id"]: without_times(record) for record in Store(path).records()}


@pytest.mark.slow
def test_two_workers_over_tcp_give_the_numbers_of_the_local_runner(cluster, tmp_path):
    specs = [spec(seed) for seed in range(3)]
    (tmp_path / "local").mkdir()
    here = real_task(tmp_path / "local", samples=False)
    run_suite(specs, tmp_path / "local" / "records.jsonl", task=here, samples=False, report=quiet)
    address = cluster.scheduler_address
    assert address.startswith("tcp://127.0.0.1:")
    there = {"scheduler": address, "load": load, "cache": tmp_path / "cache", "report": quiet}
    there["samples"] = False
    outcomes = run_on_cluster(specs, tmp_path / "cluster.jsonl", **there)
    assert [outcome.state for outcome in outcomes] == ["done"] * 3
    expected = figures(tmp_path / "local" / "records.jsonl")
    assert len(expected) == 6
    assert alike(figures(tmp_path / "cluster.jsonl"), expected)
    assert run_on_cluster(specs, tmp_path / "cluster.jsonl", **there) == []  # there is nothing left


def test_a_worker_that_is_killed_in_the_middle_loses_and_doubles_nothing(cluster, tmp_path):
    path, specs = tmp_path / "records.jsonl", [spec(seed) for seed in range(4)]
    there = {"scheduler": cluster.scheduler_address, "load": slow_load, "cache": tmp_path / "cache"}
    with distributed.Client(cluster) as client:
        victim = next(iter(client.run(os.getpid).values()))

    def kill():
        while not (path.exists() and path.read_text().count("\n") >= 2):
            time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcomes = run_on_cluster(specs, path, **there, report=quiet)
    killer.join(5)
    assert not killer.is_alive()
    assert [outcome.state for outcome in outcomes] == ["done"] * 4
    lines = path.read_text().splitlines()
    assert len(lines) == 8
    assert {record["id"] for record in Store(path).records()} == {
        record_id(each, method) for each in specs for method in each.recalibrations
    }


def test_what_a_worker_cannot_do_is_recorded_and_can_be_retried(cluster, tmp_path):
    path = tmp_path / "records.jsonl"
    there = {"scheduler": cluster.scheduler_address, "cache": tmp_path / "cache", "report": quiet}
    (outcome,) = run_on_cluster([spec()], path, **there)  # the study's own loader does not know the toy
    assert outcome.state == "failed"
    assert [record["stage"] for record in Store(path).failures()] == ["training"] * 2
    assert run_on_cluster([spec()], path, load=load, **there) == []
    (outcome,) = run_on_cluster([spec()], path, load=load, retry_failed=True, samples=False, **there)
    assert outcome.state == "done"
    assert Store(path).failures() == []
    assert len(Store(path).partial()) == 2
    assert run_on_cluster([spec()], path, load=load, samples=False, **there) == []
    (outcome,) = run_on_cluster([spec()], path, load=load, **there)  # completed by what needs samples
    assert outcome.state == "done"
    assert Store(path).partial() == set()


def double(x):
    return 2 * x


def heard(address, wrap=lambda plain: plain):
    """What a stranger at the scheduler's door is told; nothing where the connection is closed."""
    with socket.create_connection(address, timeout=10) as plain:
        try:
            with wrap(plain) as stranger:
                stranger.sendall(b"let me in" * 100)
                return stranger.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""


@pytest.mark.slow
def test_a_cluster_on_this_machine_refuses_who_has_no_key():
    pytest.importorskip("cryptography")
    with _client(None, 1) as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert client.submit(double, 21).result() == 42
        assert all(worker.startswith("tls://127.0.0.1:") for worker in client.scheduler_info()["workers"])
        host, port = address.removeprefix("tls://").split(":")
        assert heard((host, int(port))) == b""
        without_certificate = ssl.create_default_context()
        without_certificate.check_hostname, without_certificate.verify_mode = False, ssl.CERT_NONE
        assert heard((host, int(port)), without_certificate.wrap_socket) == b""
        pages = client.cluster.scheduler.http_server.port
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{pages}/info/main/workers.html", timeout=5)


def test_a_cluster_on_this_machine_is_asked_for_with_keys_and_on_the_loopback_alone(monkeypatch):
    class Cluster(contextlib.nullcontext):
        def __init__(self, **options):
            super().__init__()
            asked.append(options)

    asked = []
    monkeypatch.setattr(distributed, "LocalCluster", Cluster)
    monkeypatch.setattr(distributed, "Client", contextlib.nullcontext)
    monkeypatch.setattr("distributed.security.Security.temporary", lambda: "keys")
    with _client(None, 3):
        pass
    (options,) = asked
    assert options["security"] == "keys"
    assert options["host"] == "127.0.0.1"
    assert options["dashboard_address"] == "127.0.0.1:0"
    assert options["scheduler_kwargs"] == {"dashboard": False}


def test_without_cryptography_a_cluster_on_this_machine_says_that_it_is_open(monkeypatch):
    def missing():
        raise ImportError("no cryptography")

    monkeypatch.setattr("distributed.security.Security.temporary", missing)
    with pytest.warns(UserWarning, match="other users of this machine can run code in it"):
        assert cluster_module._credentials() is None
