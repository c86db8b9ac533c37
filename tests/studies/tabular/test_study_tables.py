"""Tables of records, against numbers made by hand."""

import math

import pytest
from study_records import cells_of, full_record, record, records_of

from studies.tabular import METHODS
from studies.tabular.study_cells import Cells
from studies.tabular.study_tables import (
    decomposition_table,
    metric_table,
    paired_table,
    rank_table,
    times_table,
)

# Of the published NLL on slump: BASE 2.61 with 0.19, LR 2.29 with 0.14.
BASE = [2.0, 2.5, 3.0]  # mean 2.5, standard error 0.5 / sqrt(3)
KDE = [2.1, 2.2, 2.3]


def words(table) -> str:
    return " ".join(table.notes)


def test_a_cell_holds_mean_and_standard_error():
    table = metric_table(cells_of("nll", {("slump", "BASE"): BASE, ("slump", "LR-KDE"): KDE}), "nll")
    (cell,) = table.column("BASE", "here")
    assert cell.value == pytest.approx(2.5)
    assert cell.error == pytest.approx(0.5 / math.sqrt(3))
    (cell,) = table.column("LR-KDE", "here")
    assert (cell.value, cell.error) == (pytest.approx(2.2), pytest.approx(0.1 / math.sqrt(3)))
    assert table.rows[0][0].text == "SLU slump"
    assert "3 seeds" in table.title
    assert "best weights" in table.title


def test_a_published_figure_is_followed_by_the_difference_in_joint_errors():
    table = metric_table(cells_of("nll", {("slump", "BASE"): BASE, ("slump", "LR-KDE"): KDE}), "nll")
    group = "published [here minus published]"
    (base,), (latent,) = table.column("BASE", group), table.column("LR", group)
    assert (base.value, base.error, base.bold) == (2.61, 0.19, True)
    assert base.difference == pytest.approx((2.5 - 2.61) / math.hypot(0.5 / math.sqrt(3), 0.19))
    assert latent.difference == pytest.approx((2.2 - 2.29) / math.hypot(0.1 / math.sqrt(3), 0.14))


def test_bold_is_what_a_z_test_does_not_tell_from_the_best():
    # Standard errors of 0.1 each: the limit is 1.645 * 0.1414 = 0.2326 above the best.
    spread = 0.1 * math.sqrt(3)
    values = {
        ("slump", "BASE"): [1.3 - spread, 1.3, 1.3 + spread],
        ("slump", "LR-KDE"): [1.0 - spread, 1.0, 1.0 + spread],
        ("slump", "LR-stacked"): [1.2 - spread, 1.2, 1.2 + spread],
    }
    table = metric_table(cells_of("nll", values), "nll")
    bold = {name for name in ("BASE", "LR-KDE", "LR-stacked") if table.column(name, "here")[0].bold}
    assert bold == {"LR-KDE", "LR-stacked"}
    # A control: coverage has no best, and nothing is bold.
    coverage = {key: [{"0.9": value} for value in found] for key, found in values.items()}
    table = metric_table(cells_of("coverage", coverage), "coverage")
    assert not any(cell.bold for row in table.rows for cell in row)


def test_one_seed_has_neither_error_nor_bold_nor_difference():
    table = metric_table(cells_of("nll", {("slump", "BASE"): [2.5], ("slump", "LR-KDE"): [2.2]}), "nll")
    (cell,) = table.column("BASE", "here")
    assert (cell.value, cell.error, cell.bold) == (2.5, None, False)
    assert table.column("LR")[0].difference is None
    assert "one seed" in words(table)


def test_missing_failed_and_infinite_figures_are_shown_and_explained():
    known = [
        *records_of("nll", {("slump", "BASE"): BASE, ("edm", "BASE"): BASE, ("slump", "auto"): [1.0]}),
        *(record("slump", "LR-KDE", seed, error="RuntimeError: too steep") for seed in range(3)),
        *records_of("nll", {("slump", "LR-stacked"): [1.0, math.inf, 2.0]}),
    ]
    table = metric_table(Cells.of(known, "convex-potential"), "nll")
    assert table.column("LR-KDE", "here")[0].text == "failed"
    assert table.column("LR-KDE", "here")[0].value is None
    stacked = table.column("LR-stacked")[0]
    assert (stacked.value, stacked.error, stacked.bold) == (math.inf, None, False)
    assert stacked.text == "1 of 3 infinite"
    assert table.column("auto")[0].text == "1 seed"
    assert table.column("LR-KDE", "here")[1].text == "not run"
    assert "Failed: LR-KDE on SLU." in words(table)
    assert "RuntimeError: too steep (SLU LR-KDE seed 0; SLU LR-KDE seed 1" in words(table)
    assert "LR-KDE, LR-stacked, auto on EDM" in words(table)
    assert "auto with seeds 1, 2 on SLU" in words(table)
    assert "No records in convex-potential: AT2, SF1" in words(table)


def test_what_is_missing_alike_is_said_once():
    values = {(name, "BASE"): [1.0] * 5 for name in ("slump", "edm", "jura")}
    values |= {("slump", "auto"): [1.0] * 5, ("edm", "auto"): [1.0, 1.0], ("jura", "auto"): [1.0, 1.0]}
    assert "Not run: auto with seeds 2 to 4 on EDM, JUR." in words(
        metric_table(cells_of("nll", values), "nll")
    )


def test_a_complete_study_has_nothing_to_explain():
    known = [full_record("slump", method, seed) for method in METHODS for seed in range(3)]
    cells = Cells.of(known, "convex-potential", datasets=["slump"])
    for metric in ("nll", "energy_score", "l_ece", "hdr_ece"):
        notes = words(metric_table(cells, metric))
        assert not any(word in notes for word in ("Not run", "Failed", "Not defined", "Without"))
    assert all(column.name != "HDR-R" for column in metric_table(cells, "l_ece").columns)
    assert any(column.name == "HDR-R" for column in metric_table(cells, "nll").columns)


def test_weights_are_named_where_they_differ_from_the_published_ones():
    best = metric_table(cells_of("nll", {("slump", "BASE"): BASE}), "nll")
    last = metric_table(cells_of("nll", {("slump", "BASE"): BASE}, weights="last"), "nll")
    assert "here: weights of the best epoch of a training with patience 60." in words(best)
    assert "as here" in words(last)
    as_patient = records_of("nll", {("slump", "BASE"): BASE}, suite_name="maf")
    assert "here: weights of the best epoch." in words(metric_table(Cells.of(as_patient, "maf"), "nll"))
    two_epochs = records_of("nll", {("slump", "BASE"): BASE}, suite_name="misspecified")
    poor = metric_table(Cells.of(two_epochs, "misspecified"), "nll")
    assert "weights of the second epoch, which is the last; here: weights of the best epoch" in words(poor)
    assert "last weights" in last.title


def test_sets_with_other_rows_than_the_published_are_named():
    values = {("slump", "BASE"): BASE, ("taxi", "BASE"): BASE, ("calcofi", "BASE"): BASE}
    assert "Rows differ from the published ones: CAL, TAX." in words(
        metric_table(cells_of("nll", values), "nll")
    )
    assert "Other rows" not in words(metric_table(cells_of("nll", {("slump", "BASE"): BASE}), "nll"))


def test_the_terms_of_the_decomposition_stand_beside_the_published_ones():
    known = [full_record("slump", "BASE", 0), full_record("slump", "LR-KDE", 0, 0.5, nll_radial=0.3)]
    table = decomposition_table(Cells.of(known, "convex-potential"))
    assert table.column("-log f_Z(z)", "BASE")[0].value == 3.0
    assert table.column("-log f_Z(z)", "LR-KDE")[0].value == 2.5
    assert table.column("log|det R|", "LR-KDE")[0].value == 0.3
    assert table.column("log|det R|", "published LR")[0].value == 1.04
    assert table.column("NLL", "published BASE")[0].value == 3.09
    other = [full_record("slump", name, 0, suite_name="maf") for name in ("BASE", "LR-KDE")]
    assert not any("published" in c.group for c in decomposition_table(Cells.of(other, "maf")).columns)


def test_times_have_the_ratio_of_the_means():
    known = [
        *records_of("calibrate_seconds", {("bio", "LR-KDE"): [0.1, 0.3], ("bio", "HDR-R"): [9.0, 11.0]}),
        *records_of("calibrate_seconds", {("slump", "LR-KDE"): [0.1], ("slump", "HDR-R"): [0.2]}),
    ]
    table = times_table(Cells.of(known, "convex-potential"))
    here, there = table.column("ratio", "seconds here"), table.column("ratio", "published seconds")
    assert here[1].value == pytest.approx(10.0 / 0.2)
    assert there[1].value == pytest.approx(37.70 / 0.290)
    assert there[0].text == "–"
    assert len(times_table(Cells.of(known, "convex-potential"), at_least=7000).rows) == 1


def test_paired_differences_are_bold_where_lower_by_two_errors():
    values = {
        ("slump", "BASE"): [10.0, 20.0, 30.0],
        ("slump", "LR-stacked"): [9.0, 18.0, 27.0],  # 1, 2, 3 lower: 2 with an error of 0.577
        ("slump", "LR-KDE"): [9.5, 18.0, 26.5],  # 0.5 higher, equal, 0.5 lower
    }
    table = paired_table(cells_of("nll", values))
    base, kde = table.column("minus BASE")[0], table.column("minus LR-KDE")[0]
    assert (base.value, base.error, base.bold) == (-2.0, pytest.approx(1 / math.sqrt(3)), True)
    assert (kde.value, kde.bold) == (0.0, False)


def test_ranks_are_those_of_the_means_and_ties_share_theirs():
    values = {
        ("slump", "BASE"): [3.0, 3.0],
        ("slump", "LR-KDE"): [1.0, 1.0],
        ("slump", "auto"): [1.0, 1.0],
        ("edm", "BASE"): [3.0, 1.0],
        ("edm", "LR-KDE"): [2.0, 5.0],
        ("edm", "auto"): [1.0, 1.0],
    }
    table = rank_table([cells_of("nll", values)])
    assert [(row[0].text, row[1].value) for row in table.rows] == [
        ("auto", 1.25),
        ("LR-KDE", 2.25),
        ("BASE", 2.5),
    ]
    # auto minus LR-KDE: 0 on slump, -2.5 on edm.
    assert table.rows[1][2].value == pytest.approx(-1.25)


def test_a_data_set_that_is_not_ranked_is_named():
    values = {("slump", "BASE"): [1.0], ("slump", "auto"): [1.0], ("edm", "BASE"): [1.0]}
    assert "convex-potential EDM (no common seed; incomplete: auto)" in words(
        rank_table([cells_of("nll", values)])
    )
