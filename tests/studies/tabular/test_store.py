import gzip
import json
import multiprocessing
import os
import time

import pytest
from alone import append_forever, append_many

from studies.tabular import Store, StoreWarning
from studies.tabular.store import DONE, FAILED


def record(name, status="done", **fields):
    return {"id": name, "status": status, **fields}


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "records.jsonl"


def test_records_come_back_as_they_were_given(path):
    first = record("a", nll=1.25, curve=[0.1, 0.2], worst=float("inf"), missing=None)
    Store(path).append([first, record("b")])
    assert Store(path).records() == [first, record("b")]
    assert len(path.read_text().splitlines()) == 2


def test_a_store_that_is_not_there_is_empty(path):
    assert Store(path).records() == []
    assert Store(path).status() == {}
    assert not path.exists()


def test_what_is_done_is_never_doubled(path):
    one, other = Store(path), Store(path)
    assert one.append([record("a", by=1)]) == 1
    assert other.append([record("a", by=2), record("b", by=2), record("b", by=3)]) == 1
    assert one.records() == [record("a", by=1), record("b", by=2)]
    assert len(lines_of(path)) == 2


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


@pytest.mark.parametrize("cut", [2, 7, 20])
def test_a_truncated_last_line_is_moved_aside_and_the_rest_stays(path, cut):
    Store(path).append([record("a", nll=1.0), record("b", nll=2.0)])
    os.truncate(path, path.stat().st_size - cut)
    before = path.read_bytes()
    store = Store(path)
    with pytest.warns(StoreWarning, match="cannot be read"):
        assert store.records() == [record("a", nll=1.0)]
    assert store.records() == [record("a", nll=1.0)]  # warned once
    assert path.read_bytes() == before  # reading changes nothing
    assert store.append([record("b", nll=2.0)]) == 1
    aside = path.with_name(path.name + ".damaged")
    assert aside.read_text().startswith('{"id": "b"')
    assert [line["id"] for line in lines_of(path)] == ["a", "b"]


def test_a_record_that_lacks_the_end_of_its_line_counts(path):
    Store(path).append([record("a"), record("b")])
    os.truncate(path, path.stat().st_size - 1)
    assert Store(path).append([record("b"), record("c")]) == 1
    assert [line["id"] for line in lines_of(path)] == ["a", "b", "c"]
    assert not path.with_name(path.name + ".damaged").exists()


def test_a_single_line_that_was_cut_short_is_repaired(path):
    Store(path).append([record("a")])
    os.truncate(path, 8)
    with pytest.warns(StoreWarning):
        assert Store(path).append([record("a")]) == 1
    assert lines_of(path) == [record("a")]


@pytest.mark.parametrize(
    "content", [b"my notes", b"my notes\nof today\n", b"\x1f\x8b\x08\x00 packed", b'{"a": 1}', b'{"a": 1}\n']
)
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for use in (Store(path).records, Store(path).status, lambda: Store(path).append([record("a")])):
        with pytest.raises(ValueError, match="is not a file of records"):
            use()
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_compressed_file_can_be_read_only(path):
    Store(path).append([record("a"), record("b", "failed")])
    packed = path.with_name("records.jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    store = Store(packed)
    assert (store.records(), store.status()) == ([record("a")], {"a": "done", "b": "failed"})
    with pytest.raises(ValueError, match="Unpack it first"):
        store.append([record("c")])
    packed.write_bytes(packed.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"records.jsonl.gz is damaged"):
        Store(packed).records()


def test_reading_needs_no_right_to_write(path):
    Store(path).append([record("a")])
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert Store(path).records() == [record("a")]
    finally:
        path.parent.chmod(0o755)
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_emptied_forgets_what_was_cut_short_in_it(path):
    path.parent.mkdir()
    path.write_text('{"id": "a", "sta')
    store = Store(path)
    with pytest.warns(StoreWarning):
        store.records()
    path.write_text("")
    store.append([record("b")])
    assert list(path.parent.iterdir()) == [path]


def test_appending_after_a_crash_repairs_first(path):
    Store(path).append([record("a")])
    with path.open("a") as file:
        file.write('{"id": "b", "sta')
    with pytest.warns(StoreWarning):
        Store(path).append([record("c")])
    assert [line["id"] for line in lines_of(path)] == ["a", "c"]


def test_a_damaged_line_in_the_middle_is_reported_and_left_out(path):
    Store(path).append([record("a")])
    with path.open("a") as file:
        file.write("not json\n[1]\n" + json.dumps(record("b")) + "\n")
    with pytest.warns(StoreWarning) as caught:
        assert [r["id"] for r in Store(path).records()] == ["a", "b"]
    (warning,) = caught
    assert "2 lines" in str(warning.message)


def test_a_store_notices_that_its_file_was_replaced(path):
    store = Store(path)
    store.append([record("a"), record("b")])
    path.write_text(json.dumps(record("c")) + "\n")
    assert store.status() == {"c": "done"}


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
    names = [line["id"] for line in lines_of(path)]
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
