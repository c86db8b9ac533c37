"""Records say what made them, and those of other code are told apart, whatever it calls its parts."""

import json

import pytest
import torch
from toy_study import load, spec

from latentcal import GammaKDE
from studies.tabular import METHODS, is_trained, methods, run, trainings
from studies.tabular.provenance import commit, made_otherwise, mixtures
from studies.tabular.spec import FLOWS
from studies.tabular.trainings import entry_of


@pytest.fixture
def _anew():
    """Numbers are computed for this test, and for the next."""
    caches = (trainings.training_numbers, methods.law_numbers)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def change_initialisation(monkeypatch):
    make_flow = trainings.make_flow

    def narrower(*arguments):
        flow = make_flow(*arguments)
        with torch.no_grad():
            flow.potential.shape.weight.mul_(0.9)
        return flow

    monkeypatch.setattr(trainings, "make_flow", narrower)
    trainings.training_numbers.cache_clear()


def change_law(monkeypatch):
    fit = methods._FITS["LR-KDE"]

    def wider(flow, x, z):
        model = fit(flow, x, z)
        law = model.base.radius
        return model.with_base(type(model.base)(GammaKDE(law.centers, 0.5 * law.rate), flow.base.dim))

    monkeypatch.setitem(methods._FITS, "LR-KDE", wider)
    methods.law_numbers.cache_clear()


def made(**fields):
    numbers = {"training": [1.0, 2.0], "law": [3.0], **fields}
    return {"status": "done", "method": "LR-KDE", "version": "0.1.0", "made_by": numbers}


@pytest.mark.parametrize("flow", FLOWS)
def test_training_has_numbers_for_every_flow(flow):
    assert len(trainings.training_numbers(flow)) == 4


def test_each_law_has_its_own_numbers():
    found = {name: tuple(methods.law_numbers(name)) for name in METHODS}
    assert found["BASE"] == found["HDR-R"] == ()  # which have no law of the radius
    assert len(set(found.values())) == len(METHODS) - 1


def test_a_record_says_what_made_it(tmp_path):
    for record in run(spec(), load=load, cache=tmp_path):
        about = json.loads(json.dumps(record))["made_by"]
        assert about["training"] == trainings.training_numbers("convex-potential")
        assert about["law"] == methods.law_numbers(record["method"])
        assert about["commit"] == commit()
        assert about["processor"] == torch.backends.cpu.get_cpu_capability()


@pytest.mark.usefixtures("_anew")
def test_records_of_this_code_may_be_added_to_and_those_of_another_law_or_initialisation_not(
    tmp_path, monkeypatch
):
    known = run(spec(recalibrations=("BASE", "LR-KDE")), load=load, cache=tmp_path)
    assert made_otherwise(known) == []
    change_law(monkeypatch)
    assert made_otherwise(known) == ["records of 2 laws of LR-KDE are mixed"]
    change_initialisation(monkeypatch)
    assert made_otherwise(known)[0] == "records of 2 trainings are mixed"


@pytest.mark.usefixtures("_anew")
def test_a_flow_of_another_initialisation_is_not_taken_from_the_cache(tmp_path, monkeypatch):
    (record,) = run(spec(recalibrations=("BASE",)), load=load, cache=tmp_path)
    change_initialisation(monkeypatch)
    assert is_trained(spec(), tmp_path)
    (failed,) = run(spec(recalibrations=("BASE",)), load=load, cache=tmp_path)
    assert (record["status"], failed["status"]) == ("done", "failed")
    assert "Remove that folder" in failed["error"]


def test_an_entry_that_does_not_say_gives_records_that_do_not_say(tmp_path):
    run(spec(recalibrations=("BASE",)), load=load, cache=tmp_path)
    path = entry_of(spec(), tmp_path) / "log.json"
    report = json.loads(path.read_text())
    del report["numbers"]
    path.write_text(json.dumps(report))
    (record,) = run(spec(recalibrations=("BASE",)), load=load, cache=tmp_path)
    assert record["made_by"]["training"] is None
    assert mixtures([record, made()]) == ["records of 2 trainings (one of them not recorded) are mixed"]


def test_rounding_is_no_other_version_and_the_law_of_another_method_neither():
    assert mixtures([made(), made(training=[1.00001, 2.0], commit="other")]) == []
    assert mixtures([made(), made(law=[9.0]) | {"method": "auto"}]) == []
    assert mixtures([made(), made(law=[3.1])]) == ["records of 2 laws of LR-KDE are mixed"]
    assert mixtures([made(), made() | {"version": "0.2.0"}]) == []
    assert mixtures([made(), made(law=[9.0]) | {"status": "failed"}]) == []
    unknown = {name: value for name, value in made().items() if name != "made_by"}
    assert mixtures([unknown, unknown]) == []
    assert mixtures([unknown, unknown | {"version": "0.2.0"}])
