"""The page about tuned flows: its counts are those of the records, and it says what is missing."""

import re

from study_records import full_record

from studies.tabular import size_choice
from studies.tabular.pages import seeds_of, with_other_settings
from studies.tabular.size_choice import RESULTS, chosen_sizes
from studies.tabular.study_cells import Cells
from studies.tabular.tuned_pages import table_of_sizes, tuned_page

SETS = ("slump", "jura", "edm")
SHIFTS = {"BASE": 0.0, "LR-KDE": 0.2, "auto": 0.4}


def records(suites=("tuned-maf", "tuned-misspecified"), **changed):
    """Records of three data sets and three seeds; ``changed`` moves the NLL of a method."""
    found = [
        full_record(name, method, seed, shift, suite_name=suite)
        for suite in suites
        for name in SETS
        for seed in range(3)
        for method, shift in SHIFTS.items()
    ]
    for record in found:
        record["nll"] += changed.get(record["method"], 0.0)
    return found


def test_the_page_counts_cells_with_and_without_heavy_atoms():
    # Published: MAF 1.98 (slump), 2.5 (jura), -3 (edm); misspecified 3.86, 4.19, 2.84. Here: 2.1.
    page = tuned_page(records())
    assert "6 have 3 seeds." in page
    (line,) = re.findall(r"^\| misspecified \| .*$", page, re.MULTILINE)[:1]
    assert line.split(" | ")[1:3] == ["2 of 2", "1 of 1"]
    (line,) = re.findall(r"^\| maf \| .*$", page, re.MULTILINE)[:1]
    assert line.split(" | ")[2].startswith("0 of 1 (EDM +")
    assert "is at most 0.01 nats above that of BASE in 6 of 6 cells" in page
    assert "significant at 5 % in no cells" in page
    assert "None of the exceptions was trained with other settings." in page


def test_harm_is_named():
    page = tuned_page(records(auto=3.0))
    assert "is at most 0.01 nats above that of BASE in 0 of 6 cells" in page
    assert "significant at 5 % in 6 cells" in page
    assert "tuned-maf SLU +2.600" in page


def test_sizes_are_those_of_the_searches_and_missing_ones_are_dashes(monkeypatch, tmp_path):
    monkeypatch.delenv("LATENTCAL_DATA", raising=False)  # the page must not depend on the data that are here
    sizes = chosen_sizes("slump", "maf")
    assert table_of_sizes().count("\n| ") == 25  # of which two cannot be downloaded
    shown = f"{sizes['flows']} x {sizes['hidden']}; {sizes['layers']}; {sizes['learning_rate']:g}"
    assert re.search(rf"^\| SLU \| [^|]* \| {shown} \|", table_of_sizes(), re.MULTILINE)
    monkeypatch.setattr(size_choice, "RESULTS", tmp_path)
    assert "SLU" not in table_of_sizes()
    (tmp_path / "maf").mkdir()
    (tmp_path / "maf" / "slump.json").write_text((RESULTS / "flow-matching" / "slump.json").read_text())
    assert re.search(r"^\| SLU \| – \| [^–]+ \| – \| – \|$", table_of_sizes(), re.MULTILINE)


def test_exceptions_are_shown_with_other_settings():
    found = [record | {"nll": record["nll"] + 3} for record in records(("tuned-misspecified",))]
    page = tuned_page(found)
    assert re.search(r"^\| tuned-misspecified \| SLU \| 3.86 ± 0.13 \| 5.10 \| 4", page, re.MULTILINE)


def test_data_sets_without_a_search_count_with_fixed_sizes_and_no_other_ones():
    found = records(("tuned-maf",))
    known = [record | {"nll": 99.0} for record in records(("maf",))]  # of which all data sets are tuned
    other = [full_record("enb", "BASE", seed, 50.0, suite_name="maf") for seed in range(2)]
    assert "The next table also counts" not in tuned_page(found, known)
    page = tuned_page(found, [*known, *other])
    rows = re.findall(r"^\| maf \| .*$", page, re.MULTILINE)[:2]
    assert [row.split(" | ")[1] for row in rows] == ["2 of 2", "3 of 3"]
    assert "In this table, the NLL matches or beats the published value in 3 of 3 cells for BASE" in page


def test_other_settings_are_compared_on_common_seeds():
    ours = [record | {"nll": 9.0} for record in records(("maf",)) if record["seed"] < 2]
    searched = [
        full_record("slump", "BASE", seed, suite_name="tuned-maf") | {"nll": 4.0 + seed} for seed in range(5)
    ]
    cells = {"maf": Cells.of(searched, "tuned-maf")}
    table = with_other_settings([Cells.of(ours, "maf")], "BASE", cells)
    assert "| 4.50 (-4.50; 2) |" in table


def test_numbers_of_seeds_are_listed_most_first():
    few = full_record("enb", "BASE", 0, suite_name="maf")
    cells = Cells.of([*records(("maf",)), few], "maf")
    assert seeds_of([cells]) == "3 have 3 seeds and 1 have 1 seed"
    assert seeds_of([]) == "none has a record"
