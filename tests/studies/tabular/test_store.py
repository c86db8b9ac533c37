import json
import multiprocessing
import sqlite3
import time
from contextlib import closing

import pytest
from alone import append_forever, append_many

from studies.tabular import Store, StoreWarning
from studies.tabular.store import DONE, FAILED


def record(name, status="done", **fields):
    return {"id": name, "status": status, **fields}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "records.sqlite"


def test_records_come_back_as_they_were_given(path):
    first = record("a", nll=1.25, curve=[0.1, 0.2], worst=float("inf"), missing=None)
    Store(path).append([first, record("b")])
    assert Store(path).records() == [first, record("b")]


def test_a_store_that_is_not_there_is_empty(path):
    assert Store(path).records() == []
    assert Store(path).status() == {}
    assert not path.exists()


def test_an_empty_file_is_an_empty_store(path):
    path.parent.mkdir()
    path.touch()
    assert (Store(path).records(), Store(path).status(), Store(path).partial()) == ([], {}, set())
    assert path.stat().st_size == 0
    assert Store(path).append([record("a")]) == 1
    assert Store(path).records() == [record("a")]


def test_what_is_done_is_never_doubled(path):
    one, other = Store(path), Store(path)
    assert one.append([record("a", by=1)]) == 1
    assert other.append([record("a", by=2), record("b", by=2), record("b", by=3)]) == 1
    assert one.records() == [record("a", by=1), record("b", by=2)]


def test_only_the_whole_takes_the_place_of_a_part(path):
    part, whole = {"id": "a", "status": DONE, "partial": True}, {"id": "a", "status": DONE, "nll": 1.0}
    failed = {"id": "a", "status": FAILED}
    assert [Store(path).append([record]) for record in (failed, part, part)] == [1, 1, 0]
    assert (Store(path).partial(), Store(path).failures()) == ({"a"}, [])
    assert [Store(path).append([record]) for record in (whole, part, failed)] == [1, 0, 0]
    assert (Store(path).records(), Store(path).partial()) == ([whole], set())


def test_a_part_that_could_not_be_completed_stays_and_its_failure_is_known(path):
    part, failed = {"id": "a", "status": DONE, "partial": True}, {"id": "a", "status": FAILED, "error": "e"}
    assert [Store(path).append([record]) for record in (part, failed)] == [1, 1]
    store = Store(path)
    assert (store.records(), store.failures(), store.status()) == ([part], [failed], {"a": FAILED})
    store.append([{"id": "a", "status": DONE}])
    assert (Store(path).failures(), Store(path).status()) == ([], {"a": DONE})


def test_a_failure_can_be_followed_by_another_attempt(path):
    store = Store(path)
    store.append([record("a", "failed", error="first"), record("b", "failed")])
    store.append([record("a", "failed", error="second")])
    assert [failure["error"] for failure in Store(path).failures() if failure["id"] == "a"] == ["second"]
    assert store.append([record("a", nll=1.0)]) == 1
    assert Store(path).status() == {"a": "done", "b": "failed"}
    assert store.append([record("a", "failed")]) == 0
    assert Store(path).records() == [record("a", nll=1.0)]


@pytest.mark.parametrize("name", ["notes.txt", "notes.jsonl"])
@pytest.mark.parametrize("content", [b"my notes of today", b"\x1f\x8b\x08\x00 packed", b'{"a": 1}\n'])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path, content, name):
    path = tmp_path / name
    path.write_bytes(content)
    for use in (Store(path).records, Store(path).status):
        with pytest.raises(ValueError, match="is not a file of records"):
            use()
    with pytest.raises(ValueError, match=r"is not a file of records|read-only"):
        Store(path).append([record("a")])
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_database_of_something_else_is_refused(path):
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE songs (title TEXT)")
    for use in (Store(path).records, lambda: Store(path).append([record("a")])):
        with pytest.raises(ValueError, match="is not a file of records"):
            use()


def test_records_are_exchanged_as_lines_that_can_be_read_only(path):
    part, failed = record("b", partial=True), record("b", "failed", error="no samples")
    Store(path).append([record("a", worst=float("inf")), part, failed])
    for name in ("records.jsonl", "records.jsonl.gz"):
        packed = path.with_name(name)
        Store(path).export(packed)
        store = Store(packed)
        assert store.records() == [record("a", worst=float("inf")), part]
        assert (store.failures(), store.status()) == ([failed], {"a": "done", "b": "failed"})
        with pytest.raises(ValueError, match="read-only"):
            store.append([record("c")])
        other = Store(path.with_name(f"{name}.sqlite"))
        assert other.append([*store.records(), *store.failures()]) == 3
        assert (other.records(), other.failures()) == (store.records(), store.failures())
    content = packed.read_bytes()
    Store(path).export(packed)
    assert packed.read_bytes() == content  # the same records give the same bytes
    packed.write_bytes(content[:20])
    with pytest.raises(ValueError, match=r"records.jsonl.gz is damaged"):
        Store(packed).records()


def test_lines_that_are_no_records_are_reported_and_left_out(tmp_path):
    path = tmp_path / "records.jsonl"
    lines = [json.dumps(record("a")), "not json", "[1]", json.dumps(record("b")), '{"id": "c", "sta']
    path.write_text("\n".join(lines))
    with pytest.warns(StoreWarning, match="3 of 5 lines"):
        assert [r["id"] for r in Store(path).records()] == ["a", "b"]


def test_reading_needs_no_right_to_write(path):
    Store(path).append([record("a")])
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert Store(path).records() == [record("a")]
    finally:
        path.parent.chmod(0o755)
    assert list(path.parent.iterdir()) == [path]


def test_a_record_without_identity_is_refused(path):
    with pytest.raises(ValueError, match="id and a status"):
        Store(path).append([{"nll": 1.0}])
    with pytest.raises(ValueError, match="id and a status"):
        Store(path).append([record("a", "perhaps")])


def test_several_processes_append_without_loss_or_doubling(path):
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(3)
    processes = [
        context.Process(target=append_many, args=(path, worker, 40, together)) for worker in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names = [each["id"] for each in Store(path).records()]
    own = {f"{worker}-{i}" for worker in range(3) for i in range(40)}
    assert len(names) == len(set(names))
    assert set(names) == own | {f"common-{i}" for i in range(40)}


def test_a_writer_that_is_killed_leaves_whole_records(path):
    writer = multiprocessing.get_context("spawn").Process(target=append_forever, args=(path,))
    writer.start()
    while not path.exists() or path.stat().st_size < 50_000:
        assert writer.is_alive()
        time.sleep(0.01)
    writer.kill()
    writer.join()
    records = Store(path).records()
    assert [r["id"] for r in records] == [str(i) for i in range(len(records))]
    assert Store(path).append([record("next")]) == 1  # the lock was let go
