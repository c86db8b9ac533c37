"""Records of a suite in their places: nothing mixed, nothing dropped."""

import math

import pytest
from study_records import cells_of, record, records_of

from studies.tabular import Store
from studies.tabular.study_cells import MEASURES, Cells, measure, short_name


def test_data_sets_are_sorted_by_size_and_methods_as_in_tables():
    cells = cells_of("nll", {("enb", "LR-KDE"): [1.0], ("slump", "BASE"): [1.0], ("edm", "auto"): [1.0]})
    assert cells.datasets == ("slump", "edm", "enb")
    assert cells.methods == ("BASE", "LR-KDE", "auto")
    assert (cells.rows("enb"), short_name("enb")) == (768, "ENB")


def test_suites_and_weights_are_kept_apart():
    known = [
        record("slump", "BASE", 0, nll=1.0),
        record("slump", "BASE", 0, nll=2.0, weights="last"),
        record("slump", "BASE", 0, nll=3.0, suite_name="misspecified"),
        record("slump", "BASE", 0, nll=4.0, suite_name="maf"),
        record("households", "BASE", 0, nll=5.0),
    ]
    assert Cells.of(known, "convex-potential").values("slump", "BASE", "nll") == {0: 1.0}
    assert Cells.of(known, "convex-potential", "last").values("slump", "BASE", "nll") == {0: 2.0}
    assert Cells.of(known, "misspecified").values("slump", "BASE", "nll") == {0: 3.0}
    assert Cells.of(known, "maf").datasets == ("slump",)
    assert Cells.of(known, "quick").datasets == ("slump",)  # of the same flow, but not households
    assert Cells.of(known, "tuned-maf").records == {}
    assert Cells.of(known, "convex-potential", datasets=["households"]).datasets == ("households",)


def test_every_missing_figure_has_its_reason():
    known = [
        record("slump", "BASE", 0, nll=1.0),
        record("slump", "BASE", 1, error="ValueError: no"),
        record("slump", "LR-KDE", 2, nll=1.0, energy_score=None, sampling_error="far out"),
        record("slump", "HDR-R", 2, nll=None, sampling_error="far out"),
        record("slump", "auto", 2, nll=None),
        record("slump", "LR-aligned", 2, nll=1.0, sampling_error="no samples were asked for", partial=True),
    ]
    cells = Cells.of(known, "convex-potential")
    assert cells.why_missing("slump", "BASE", "nll") == {1: "failed", 2: "not run"}
    assert cells.why_missing("slump", "LR-KDE", "nll") == {0: "not run", 1: "not run"}
    assert cells.why_missing("slump", "LR-KDE", "energy_score")[2] == "no samples"
    assert cells.why_missing("slump", "HDR-R", "nll")[2] == "no samples"
    assert cells.why_missing("slump", "auto", "nll")[2] == "not defined"
    assert cells.why_missing("slump", "LR-aligned", "energy_score")[2] == "not sampled"
    assert [failed["error"] for failed in cells.failures()] == ["ValueError: no"]


def test_a_store_gives_what_is_done_and_what_failed(tmp_path):
    store = Store(tmp_path / "records.sqlite")
    store.append([record("slump", "BASE", 0, nll=math.inf), record("slump", "auto", 0, error="no")])
    cells = Cells.read(Store(store.path), "convex-potential")
    assert cells.values("slump", "BASE", "nll") == {0: math.inf}
    assert len(cells.records) == 2


def test_a_set_of_the_users_own_has_the_size_of_its_parts():
    cells = cells_of("nll", {("my_table", "BASE"): [1.0], ("slump", "BASE"): [1.0]})
    assert cells.rows("my_table") == 67 + 21 + 15
    assert cells.datasets == ("my_table", "slump")
    failed = Cells.of([record("mine", "BASE", 0, error="no")], "convex-potential")
    assert failed.rows("mine") is None


def test_coverage_is_that_of_the_region_and_an_unknown_measure_is_refused():
    cells = Cells.of(
        records_of("coverage", {("slump", "BASE"): [{"0.5": 0.4, "0.9": 0.88}]}), "convex-potential"
    )
    assert cells.values("slump", "BASE", "coverage") == {0: 0.88}
    assert MEASURES["nll"].of({}) is None
    with pytest.raises(ValueError, match="no measure 'nil'"):
        measure("nil")


def test_a_part_that_could_not_be_completed_keeps_its_figures(tmp_path):
    part = record("slump", "BASE", 0, nll=1.0, sampling_error="no samples were asked for", partial=True)
    store = Store(tmp_path / "records.sqlite")
    store.append([part])
    store.append([record("slump", "BASE", 0, error="RuntimeError: no memory")])
    assert len(store.failures()) == 1
    assert Cells.read(store, "convex-potential").values("slump", "BASE", "nll") == {0: 1.0}
