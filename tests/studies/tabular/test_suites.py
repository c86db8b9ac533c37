import os
from types import SimpleNamespace

import pytest

from studies.tabular import SUITES, size_choice, suite
from studies.tabular import spec as suites
from studies.tabular.size_choice import Trial, path_of, write_trials


def entry(name, rows, available=True, comparable=True, remote=None):
    fields = {"available": available, "comparable": comparable, "remote": remote}
    return SimpleNamespace(name=name, shape=(rows, 3, 2), **fields)


@pytest.fixture
def _folder(monkeypatch):
    known = [
        entry("bio", 45730),
        entry("slump", 103, remote="somewhere"),
        entry("scm1d", 9803, available=False),
        entry("scm1d_partial", 5756, comparable=False),
        entry("households", 7207),
    ]
    monkeypatch.setattr(suites, "list_datasets", lambda: known)
    monkeypatch.setenv("LATENTCAL_DATA", "a folder")


@pytest.mark.usefixtures("_folder")
def test_a_seed_is_finished_before_the_next_and_small_sets_come_first():
    runs = [(spec.seed, spec.dataset) for spec in suite("maf", seeds=[0, 1])]
    sets = ["slump", "households", "bio"]
    assert runs == [(seed, name) for seed in (0, 1) for name in sets]


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("name", ["convex-potential", "maf", "flow-matching"])
def test_a_main_suite_has_three_seeds_of_its_flow(name):
    runs = suite(name)
    assert {spec.flow for spec in runs} == {name}
    assert sorted({spec.seed for spec in runs}) == [0, 1, 2]


@pytest.mark.usefixtures("_folder")
def test_the_misspecified_suite_stops_convex_potentials_after_two_epochs():
    assert {(spec.flow, spec.max_epochs) for spec in suite("misspecified")} == {("convex-potential", 2)}


@pytest.mark.usefixtures("_folder")
def test_without_a_folder_a_suite_has_the_sets_of_the_web(monkeypatch):
    monkeypatch.delenv("LATENTCAL_DATA")
    assert [spec.dataset for spec in suite("maf", seeds=[0])] == ["slump"]


def test_one_name_is_one_data_set():
    assert [spec.dataset for spec in suite("maf", seeds=[0], datasets="ENB")] == ["enb"]


@pytest.fixture
def _searches(monkeypatch, tmp_path):
    """Searches of convex potential flows: one ended on slump and on bio, one was cut on households."""
    monkeypatch.setattr(size_choice, "RESULTS", tmp_path)
    for dataset, stopped in (("slump", "no better"), ("households", ""), ("bio", "no better")):
        trials = [
            Trial({"hidden": hidden}, {2: 3.0 + hidden}, 9, 5, 1.0, 1.0 - hidden, stopped)
            for hidden in (10, 20)
        ]
        write_trials(path_of(dataset, "convex-potential"), trials, {0, 1})


@pytest.mark.usefixtures("_folder", "_searches")
def test_a_tuned_suite_has_the_sizes_that_an_ended_search_chose_and_more_seeds_of_small_sets():
    runs = suite("tuned-convex-potential")
    assert {dict(spec.sizes)["hidden"] for spec in runs} == {20}
    seeds = {name: [spec.seed for spec in runs if spec.dataset == name] for name in ("slump", "bio")}
    assert seeds == {"slump": list(range(10)), "bio": list(range(5))}
    assert len(runs) == 15
    assert [spec.dataset for spec in suite("tuned-convex-potential", seeds=[7])] == ["slump", "bio"]


@pytest.mark.usefixtures("_folder", "_searches")
def test_the_tuned_misspecified_suite_has_the_best_sizes_after_two_epochs():
    runs = suite("tuned-misspecified", seeds=[0])
    assert [spec.dataset for spec in runs] == ["slump", "households", "bio"]
    assert {(spec.max_epochs, dict(spec.sizes)["hidden"]) for spec in runs} == {(2, 10)}


def test_quick_is_six_sets_with_two_seeds():
    runs = suite("quick")
    assert len(runs) == 12
    assert len({spec.dataset for spec in runs}) == 6


def test_fields_of_the_runs_can_be_given():
    runs = suite("maf", seeds=[7], datasets=["enb"], weights="last", recalibrations=("BASE",))
    assert [(spec.weights, spec.recalibrations, spec.seed) for spec in runs] == [("last", ("BASE",), 7)]


def test_without_data_the_error_says_where_to_put_them(monkeypatch):
    monkeypatch.setattr(suites, "list_datasets", lambda: [entry("slump", 103, available=False)])
    with pytest.raises(FileNotFoundError, match="LATENTCAL_DATA"):
        suite("maf")


def test_an_unknown_suite_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="flow-matching"):
        suite("glow")
    assert set(SUITES) >= {"convex-potential", "misspecified", "quick", "tuned-maf"}


def test_larger_sets_are_expected_to_take_longer():
    small, large = (suite("maf", [0], datasets=[name])[0] for name in ("slump", "bio"))
    assert suites.cost_of(small) < suites.cost_of(large)


@pytest.mark.data
@pytest.mark.skipif(
    not os.environ.get("LATENTCAL_DATA"), reason="LATENTCAL_DATA names no folder with the real data"
)
def test_the_folder_holds_the_25_sets_that_can_be_compared_smallest_first():
    names = suites.study_sets()
    assert len(names) == 25
    assert (names[0], "scm1d_partial" in names, "households" in names) == ("slump", False, True)
