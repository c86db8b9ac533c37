"""Downloads, from a web server of the test's own: mirrors, retries, checksums, and what is broken off."""

import gzip
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from studies import study_files
from studies.study_files import RemoteFile, fetch
from studies.tabular import DatasetEntry, datasets

pytest.importorskip("pooch")

CONTENT = b"a,y\n" + b"".join(b"%d.5,%d\n" % (i, i) for i in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
STALLED = 30.0  # seconds that the server sits on a half-sent file, unless it is let go


class Handler(BaseHTTPRequestHandler):
    """Answers by the first part of the path: the kinds of server that a mirror can be."""

    def do_GET(self):
        kind = self.path.split("/")[1]
        self.server.hits[kind] += 1
        if kind == "flaky":
            kind = "good" if self.server.hits[kind] > 2 else "503"
        if kind.isdigit():
            self.send_error(int(kind))
            return
        body = {"other": CONTENT.replace(b"7", b"8"), "html": b"<!DOCTYPE html><p>Log in.</p>"}.get(
            kind, CONTENT
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind in ("short", "stalled"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if kind == "stalled":
                self.server.half_sent.set()
                self.server.let_go.wait(STALLED)
        else:
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.hits, server.half_sent, server.let_go = Counter(), threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.let_go.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def waits(monkeypatch):
    """The waits between rounds, which take no time here."""
    waits = []
    monkeypatch.setattr(study_files.time, "sleep", waits.append)
    return waits


def address(server, kind):
    return f"http://127.0.0.1:{server.server_port}/{kind}/tiny.csv"


def file_at(server, *kinds):
    return RemoteFile("folder/tiny.csv", SHA256, tuple(address(server, kind) for kind in kinds))


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_downloaded_once_and_then_taken_from_the_cache(server, tmp_path):
    for _ in range(2):
        path = fetch(file_at(server, "good"), tmp_path)
        assert path == tmp_path / "folder/tiny.csv"
        assert path.read_bytes() == CONTENT
    assert server.hits == {"good": 1}
    assert files_in(tmp_path) == [path]


def test_the_variable_names_the_cache(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTCAL_CACHE", str(tmp_path))
    assert fetch(file_at(server, "good")) == tmp_path / "data/folder/tiny.csv"


def test_a_damaged_file_in_the_cache_is_replaced(server, tmp_path):
    path = fetch(file_at(server, "good"), tmp_path)
    path.write_bytes(CONTENT[:-100])
    assert fetch(file_at(server, "good"), tmp_path).read_bytes() == CONTENT
    assert server.hits == {"good": 2}


@pytest.mark.parametrize("bad", ["500", "404", "short", "other", "html"])
def test_the_second_mirror_serves_where_the_first_fails_without_any_waiting(server, tmp_path, waits, bad):
    assert fetch(file_at(server, bad, "good"), tmp_path).read_bytes() == CONTENT
    assert server.hits == {bad: 1, "good": 1}
    assert waits == []


def test_what_may_pass_is_tried_again_with_growing_waits(server, tmp_path, waits):
    assert fetch(file_at(server, "flaky"), tmp_path, wait=0.5).read_bytes() == CONTENT
    assert server.hits == {"flaky": 3}
    assert waits == [0.5, 1.0]


@pytest.mark.parametrize(("bad", "hits"), [("404", 1), ("403", 1), ("other", 1), ("429", 3), ("short", 3)])
def test_what_cannot_pass_is_not_asked_again(server, tmp_path, waits, bad, hits):
    with pytest.raises(FileNotFoundError):
        fetch(file_at(server, bad), tmp_path, rounds=3)
    assert server.hits == {bad: hits}


@pytest.mark.parametrize("bad", ["short", "other", "html", "500"])
def test_a_failed_transfer_leaves_nothing_behind(server, tmp_path, waits, bad):
    with pytest.raises(FileNotFoundError):
        fetch(file_at(server, bad), tmp_path)
    assert files_in(tmp_path) == []


def test_when_all_fail_one_error_names_each_reason_and_what_to_put_where(server, tmp_path, waits):
    with pytest.raises(FileNotFoundError) as error:
        fetch(file_at(server, "500", "404", "short", "other"), tmp_path)
    message = str(error.value)
    for kind, reason in {
        "500": "the server answered 500",
        "404": "the server answered 404",
        "short": "the transfer broke off",
        "other": "what came is damaged or another file: its SHA-256 differs",
    }.items():
        assert f"{address(server, kind)}: {reason}" in message
    assert SHA256 in message
    assert f"at {tmp_path / 'folder/tiny.csv'}" in message


def test_offline_is_an_error_that_says_so(tmp_path, waits):
    closed = RemoteFile(
        "tiny.csv", SHA256, ("http://127.0.0.1:9/tiny.csv", "http://nowhere.example/tiny.csv")
    )
    with pytest.raises(FileNotFoundError, match=r"no connection.*no connection.*Check the connection"):
        fetch(closed, tmp_path)
    assert waits == [1.0, 2.0, 4.0]


def test_a_server_that_falls_silent_is_given_up(server, tmp_path, waits):
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match=r"no connection|no answer in time"):
        fetch(file_at(server, "stalled"), tmp_path, rounds=1, timeout=0.2)
    assert time.monotonic() - started < STALLED / 2
    assert files_in(tmp_path) == []


def test_a_process_killed_in_mid_transfer_leaves_nothing_that_is_taken_for_whole(server, tmp_path):
    # The module is loaded by its path: it needs nothing of the package, and torch takes seconds to import.
    script = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("study_files", {study_files.__file__!r})
study_files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study_files)
file = study_files.RemoteFile("folder/tiny.csv", {SHA256!r}, ({address(server, "stalled")!r},))
study_files.fetch(file, {str(tmp_path)!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    try:
        assert server.half_sent.wait(20)
        started = time.monotonic()
        while not any(path.stat().st_size for path in files_in(tmp_path)):  # the first bytes are on disk
            assert time.monotonic() - started < 10
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    target = tmp_path / "folder/tiny.csv"
    assert not target.exists()
    assert [path.stat().st_size < len(CONTENT) for path in files_in(tmp_path)] == [True]
    assert fetch(file_at(server, "good"), tmp_path) == target
    assert target.read_bytes() == CONTENT


def test_without_pooch_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r"pip install 'latentcal\[studies\]'"):
        fetch(RemoteFile("tiny.csv", SHA256, ("http://127.0.0.1:9/",)), tmp_path)


@pytest.fixture
def entry(server, monkeypatch):
    """A set that is on the web, where no data folder is set."""
    monkeypatch.delenv("LATENTCAL_DATA", raising=False)
    file = RemoteFile("folder/tiny.csv", SHA256, (address(server, "good"),))
    shape = (20_000, 1, 1)
    return DatasetEntry("tiny", "", "folder/tiny.csv.gz", shape, 1, "none", "this test", remote=file)


def test_a_set_is_downloaded_where_no_folder_is_set(entry, server):
    for _ in range(2):
        data = datasets.load_entry(entry)
    assert data.x[:2, 0].tolist() == [0.5, 1.5]
    assert server.hits == {"good": 1}


def test_a_folder_goes_before_the_web(entry, server, tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTCAL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"download\('tiny', '.*'\) fetches it") as error:
        datasets.load_entry(entry)
    assert str(tmp_path / "folder/tiny.csv.gz") in str(error.value)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/tiny.csv.gz").write_bytes(gzip.compress(CONTENT))
    assert len(datasets.load_entry(entry)) == 20_000
    assert server.hits == {}


def test_a_failed_download_names_the_set_and_the_variable(entry, server, waits):
    broken = replace(entry, remote=entry.remote._replace(urls=(address(server, "404"),)))
    with pytest.raises(
        FileNotFoundError, match=r"The data set tiny: .*answered 404.*LATENTCAL_DATA.*folder="
    ):
        datasets.load_entry(broken)


def test_a_download_into_the_data_folder_is_found_there(entry, tmp_path, monkeypatch):
    monkeypatch.setitem(datasets._BY_NAME, "tiny", entry)
    assert datasets.download("tiny", tmp_path) == tmp_path / "folder/tiny.csv"
    assert len(datasets.load("tiny", tmp_path)) == 20_000


def test_no_set_is_on_the_web_against_its_licence_or_without_a_checksum():
    on_the_web = {entry.name: entry.remote for entry in datasets.ENTRIES if entry.remote}
    without = {"scm1d", "scm1d_partial", "meps_19", "meps_20", "meps_21", "calcofi", "taxi"}
    assert {entry.name for entry in datasets.ENTRIES} - {*on_the_web} == without
    for name, file in on_the_web.items():
        assert f"{file.file}.gz" == datasets.find(name).file
        assert len(file.sha256) == 64
        assert file.urls
        assert all(url.startswith("https://") for url in file.urls)


@pytest.mark.parametrize("name", ["scm1d", "meps_20", "taxi"])
def test_a_set_that_is_not_on_the_web_says_what_to_put_where(name, monkeypatch):
    monkeypatch.delenv("LATENTCAL_DATA", raising=False)
    entry = datasets.find(name)
    for load in (datasets.load, datasets.download):
        with pytest.raises(FileNotFoundError, match=r"cannot be downloaded.*LATENTCAL_DATA") as error:
            load(name)
        assert entry.file in str(error.value)
        assert (entry.how_to_get or entry.source) in str(error.value)


@pytest.mark.data
@pytest.mark.skipif(
    not os.environ.get("LATENTCAL_DATA"), reason="LATENTCAL_DATA names no folder with the real data"
)
def test_the_checksums_are_those_of_the_real_files():
    folder = Path(os.environ["LATENTCAL_DATA"])
    for entry in datasets.ENTRIES:
        if entry.remote:
            content = gzip.decompress((folder / entry.file).read_bytes())
            assert hashlib.sha256(content).hexdigest() == entry.remote.sha256, entry.name
