import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from toy_study import load, spec, without_times

from alike import alike
from studies.tabular import METHODS, Store, record_id, run, run_suite, runs_left
from studies.tabular import execution as module
from studies.tabular.execution import failures_of


def test_a_run_gives_a_record_for_each_recalibration(tmp_path):
    records = run(spec(recalibrations=METHODS), load=load, cache=tmp_path)
    assert [record["method"] for record in records] == list(METHODS)
    assert {record["status"] for record in records} == {"done"}
    for record in records:
        again = json.loads(json.dumps(record))
        assert again["id"] == record_id(spec(), record["method"])
        assert (again["dataset"], again["seed"], again["weights"]) == ("toy", 0, "best")
        assert (again["n_train"], again["n_calibration"], again["n_test"]) == (97, 31, 22)
        assert again["train_seconds"] > 0
        assert again["evaluate_seconds"] > 0
        assert {"nll", "energy_score", "hdr_ece", "coverage", "calibrate_seconds"} <= set(again)


def test_best_weights_and_those_of_the_published_stop_have_records_of_their_own(tmp_path):
    """Of one training: the stop is 30 epochs past the best one, or before it where that came later."""
    fields = {
        "max_epochs": 400,
        "sizes": (("hidden", 8), ("learning_rate", 0.05)),
        "recalibrations": ("BASE",),
    }
    (best,) = run(spec(**fields), load=load, cache=tmp_path)
    (last,) = run(spec(**fields, weights="last"), load=load, cache=tmp_path)
    assert (best["id"], last["id"]) == (
        record_id(spec(**fields), "BASE"),
        record_id(spec(**fields, weights="last"), "BASE"),
    )
    assert best["id"] != last["id"]
    assert best["stopped"] == last["stopped"] == "no better for 60 epochs"
    assert best["epochs"] == last["epochs"] == best["epoch"] + 1 + 60
    assert last["epoch"] == best["epoch"] + 30 or 30 <= last["epoch"] < best["epoch"]
    assert best["nll"] != pytest.approx(last["nll"], rel=1e-5)


def test_a_run_is_repeatable(tmp_path):
    records = [run(spec(), load=load, cache=tmp_path / name) for name in "ab"]
    for first, second in zip(*records, strict=True):
        assert alike(without_times(first), without_times(second))
        assert not alike(first, {**second, "nll": second["nll"] + 1e-3})  # control


def test_threads_of_one_process_have_the_numbers_of_one_run_after_the_other(tmp_path):
    specs = [spec(seed, recalibrations=("BASE",)) for seed in range(4)]
    alone = [run(each, samples=False, load=load, cache=tmp_path / "a") for each in specs]
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda each: run(each, samples=False, load=load, cache=tmp_path / "b"), specs)
        )
    assert [record["nll"] for (record,) in together] == pytest.approx([record["nll"] for (record,) in alone])


def test_records_that_cannot_be_kept_are_not_made(tmp_path):
    packed = tmp_path / "records.jsonl.gz"
    packed.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="read-only"):
        run_suite([spec()], packed)


def test_the_split_of_a_run_is_its_own(tmp_path):
    fields = {"recalibrations": ("BASE",), "split": (0.4, 0.2, 0.4)}
    (record,) = run(spec(**fields), samples=False, load=load, cache=tmp_path)
    assert (record["n_train"], record["n_calibration"], record["n_test"]) == (60, 30, 60)
    assert record["split"] == [0.4, 0.2, 0.4]


def test_a_method_that_fails_does_not_take_the_others_with_it(tmp_path, monkeypatch):
    calibrate = module.calibrate

    def picky(method, base):
        if method == "BASE":
            raise ArithmeticError("no base\nsecond line")
        return calibrate(method, base)

    monkeypatch.setattr(module, "calibrate", picky)
    failed, done = run(spec(), load=load, cache=tmp_path)
    assert (failed["status"], failed["stage"]) == ("failed", "recalibration")
    assert failed["error"] == "ArithmeticError: no base"
    assert "in picky" in failed["traceback"]
    assert done["status"] == "done"


def test_a_training_that_fails_is_a_record_for_each_method(tmp_path):
    def missing(name):
        raise FileNotFoundError("no such set")

    records = run(spec(), load=missing, cache=tmp_path)
    assert {(record["status"], record["stage"]) for record in records} == {("failed", "training")}
    assert len(records) == 2


def test_what_is_done_is_not_waited_for(tmp_path):
    store = Store(tmp_path / "records.sqlite")
    done, failed, fresh = (spec(seed) for seed in range(3))
    names = done.recalibrations
    store.append([{"id": record_id(done, name), "status": "done"} for name in names])
    store.append([{"id": record_id(failed, names[0]), "status": "done"}])
    store.append(failures_of(failed, "worker", RuntimeError("gone"), [names[1]]))
    assert runs_left([done, failed, fresh], store) == [fresh]
    again = runs_left([done, failed, fresh], store, retry_failed=True)
    assert [(left.seed, left.recalibrations) for left in again] == [(1, (names[1],)), (2, names)]


def test_a_run_without_samples_is_completed_once_they_are_asked_for(tmp_path):
    store, options = Store(tmp_path / "records.sqlite"), {"load": load, "cache": tmp_path / "cache"}
    assert store.append(run(spec(), samples=False, **options)) == 2
    assert runs_left([spec()], store, samples=False) == []
    assert runs_left([spec()], store) == [spec()]
    assert [record["sampling_error"] for record in store.records()] == ["no samples were asked for"] * 2
    assert store.append(run(spec(), **options)) == 2
    assert runs_left([spec()], store) == []
    assert all(record["energy_score"] > 0 for record in store.records())
    assert store.append(run(spec(), samples=False, **options)) == 0


@pytest.mark.parametrize("weights", ["best", "last"])
def test_the_identity_of_a_record_names_training_weights_and_method(weights):
    own = spec(weights=weights)
    assert record_id(own, "auto") == f"{own.key}/{weights}/auto"
