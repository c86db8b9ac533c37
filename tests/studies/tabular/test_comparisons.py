"""Claims about a study: each holds, fails and stays open where it should."""

import math

import pytest
from study_records import cells_of, full_record, record

from studies.tabular import METHODS
from studies.tabular.claims import claims, claims_table
from studies.tabular.comparisons import (
    Ranks,
    RankTests,
    Verdict,
    against_published,
    better_than_published,
    compare_ranks,
    curve_of,
    harm_tests,
    leaves_band,
    lower_mean,
    lower_where_base_leaves_band,
    median_differences,
    not_above,
    not_worse,
    ranks,
)
from studies.tabular.evaluate import CURVE
from studies.tabular.study_cells import Cells


def test_a_mean_is_judged_against_the_published_one():
    values = {
        ("slump", "BASE"): [2.5, 2.6, 2.7],  # published 2.61 with 0.19
        ("edm", "BASE"): [-50.0, -49.0, -51.0],  # far below the published one: better
        ("jura", "BASE"): [3.9, 4.0, 4.1],  # published 2.16 with 0.24
        ("enb", "BASE"): [9.0],
        ("my_table", "BASE"): [1.0, 2.0, 3.0],
    }
    verdict = against_published(cells_of("nll", values), "nll", "BASE")
    assert set(verdict.holds) == {"slump", "edm"}
    assert verdict.misses == {"jura": pytest.approx((4.0 - 2.16) / math.hypot(0.1 / math.sqrt(3), 0.24))}
    assert verdict.unjudged == {"enb": "one seed", "my_table": "not published"}
    assert (verdict.held, verdict.judged, verdict.open) == (2, 3, 2)


def test_a_failed_or_infinite_figure_is_no_agreement():
    known = [record("slump", "BASE", seed, error="no") for seed in range(2)]
    known += [record("edm", "BASE", seed, nll=math.inf) for seed in range(2)]
    verdict = against_published(Cells.of(known, "convex-potential"), "nll", "BASE")
    assert verdict == Verdict((), {"edm": math.inf}, {"slump": "failed"})


def test_worse_means_by_the_tolerance_and_by_two_paired_errors():
    base = [1.0, 2.0, 3.0]
    values = {
        ("slump", "BASE"): base,
        ("slump", "LR-stacked"): [1.5, 2.6, 3.4],  # 0.5 with an error of 0.058
        ("edm", "BASE"): base,
        ("edm", "LR-stacked"): [1.005, 2.006, 3.004],  # certain, but less than 0.01
        ("jura", "BASE"): base,
        ("jura", "LR-stacked"): [3.0, 1.5, 3.5],  # 0.67 with an error of 0.73
        ("enb", "BASE"): [1.0],
        ("enb", "LR-stacked"): [1.5],
        ("wq", "BASE"): base,
        ("wq", "LR-stacked"): [1.0, math.inf, 3.0],
        ("sf2", "LR-stacked"): base,
    }
    verdict = not_worse(cells_of("nll", values), "LR-stacked", "BASE")
    assert verdict.misses == {"slump": pytest.approx(0.5), "wq": math.inf}
    assert set(verdict.holds) == {"edm", "jura"}
    assert verdict.unjudged == {"enb": "one seed", "sf2": "no seed that both have"}


def test_an_error_is_above_that_of_base_by_two_joint_errors():
    # Errors of 0.01 each: the limit is 2 * 0.01414.
    spread = 0.01 * math.sqrt(3)
    around = lambda mean: [mean - spread, mean, mean + spread]  # noqa: E731
    values = {
        ("slump", "BASE"): around(0.1),
        ("slump", "LR-KDE"): around(0.127),
        ("edm", "BASE"): around(0.1),
        ("edm", "LR-KDE"): around(0.13),
    }
    verdict = not_above(cells_of("l_ece", values), "l_ece", "LR-KDE", "BASE")
    assert verdict.holds == ("slump",)
    assert verdict.misses == {"edm": pytest.approx(0.03 / math.hypot(0.01, 0.01))}


def test_lower_means_are_counted_below_a_size():
    values = {
        (name, method): [value]
        for name, gain in (("slump", 0.1), ("edm", -0.1), ("households", 0.1))
        for method, value in (("LR-KDE", 1.0), ("LR-stacked", 1.0 - gain))
    }
    cells = cells_of("nll", values)
    assert lower_mean(cells, "LR-stacked", "LR-KDE").holds == ("slump", "households")
    small = lower_mean(cells, "LR-stacked", "LR-KDE", below=1100)
    assert (small.holds, small.judged) == (("slump",), 2)


def test_ranks_and_medians_pool_suites():
    first = cells_of("nll", {("slump", "BASE"): [2.0], ("slump", "auto"): [1.0]})
    known = [
        record("slump", name, 0, nll=value, suite_name="maf")
        for name, value in (("BASE", 1.0), ("auto", 4.0))
    ]
    second = Cells.of(known, "maf")
    assert ranks([first, second]).mean == {"BASE": 1.5, "auto": 1.5}
    assert ranks([first]).mean == {"auto": 1.0, "BASE": 2.0}
    assert median_differences([first, second], "auto") == {"BASE": (1.0, 2)}
    assert median_differences([first], "auto") == {"BASE": (-1.0, 1)}


def test_tests_of_ranks_count_each_data_set_once():
    orders = [("a", "b", "c"), ("b", "a", "c")]
    cases = {("maf", f"table {i}"): orders[i % 2] for i in range(10)}
    both = {(suite, name): order for (_, name), order in cases.items() for suite in ("maf", "flow-matching")}
    one, two = (
        compare_ranks(
            Ranks(
                {case: {name: order.index(name) + 1.0 for name in order} for case, order in found.items()}, {}
            )
        )
        for found in (cases, both)
    )
    assert one == two
    assert one.datasets == 10
    assert one.p_value == pytest.approx(math.exp(-7.5))  # chi-square of 15 with two degrees of freedom
    assert one.pairs["a", "b"] == pytest.approx(1.0)
    assert one.pairs["a", "c"] <= 0.05
    assert one.alike() == [("a", "b")]


def test_groups_of_methods_may_overlap_and_are_the_largest():
    p = {
        ("a", "b"): 0.2,
        ("a", "c"): 0.01,
        ("a", "d"): 0.01,
        ("b", "c"): 0.3,
        ("b", "d"): 0.01,
        ("c", "d"): 0.04,
    }
    assert RankTests(9, 0.001, p).alike() == [("a", "b"), ("b", "c")]
    assert RankTests(9, 0.001, p).alike(level=0.005) == [("a", "b", "c", "d")]
    assert RankTests(9, 0.001, dict.fromkeys(p, 0.001)).alike() == []


def test_methods_that_always_tie_do_not_differ():
    tests = compare_ranks(Ranks({("maf", name): dict.fromkeys("abc", 2.0) for name in ("slump", "edm")}, {}))
    assert tests.p_value == 1.0
    assert tests.alike() == [("a", "b", "c")]


def test_tests_of_ranks_need_three_methods_on_two_data_sets():
    with pytest.raises(ValueError, match="at least three methods on two data sets, got 2 on 1"):
        compare_ranks(Ranks({("maf", "slump"): {"a": 1.0, "b": 2.0}}, {}))


def test_a_curve_leaves_its_band_where_it_is_far_from_the_diagonal():
    straight = record("slump", "BASE", 0, latent_curve=list(CURVE), l_ece=0.0)
    bent = record("slump", "BASE", 0, latent_curve=[level**3 for level in CURVE], l_ece=0.1)
    assert not leaves_band(straight)
    assert leaves_band(bent)  # 0.38 off; 15 rows have a band of 0.30
    few = {**bent, "n_test": 4}  # whose band is as wide as 0.57
    assert not leaves_band(few)
    curve = curve_of(bent)
    assert (curve.n, curve.confidence, curve.p_values) == (15, 0.9, {})
    with pytest.raises(ValueError, match="has no hdr_curve"):
        curve_of(bent, "hdr_curve")


def test_the_band_of_a_curve_of_samples_is_that_of_the_sampled_rows():
    bent = [level**3 for level in CURVE]
    known = record("slump", "BASE", 0, hdr_curve=bent, latent_curve=bent, sampled_rows=4)
    assert (curve_of(known, "hdr_curve").n, curve_of(known).n) == (4, 15)
    assert curve_of({**known, "sampled_rows": None}, "hdr_curve").n == 15  # before the rows were limited


def test_only_runs_that_leave_the_band_must_be_improved():
    bent, straight = [level**3 for level in CURVE], list(CURVE)
    known = [
        record("slump", "BASE", 0, latent_curve=bent, l_ece=0.20),
        record("slump", "LR-KDE", 0, l_ece=0.05),
        record("slump", "BASE", 1, latent_curve=straight, l_ece=0.01),
        record("slump", "LR-KDE", 1, l_ece=0.90),  # does not count: BASE was fine
        record("edm", "BASE", 0, latent_curve=straight, l_ece=0.01),
        record("edm", "LR-KDE", 0, l_ece=0.05),
        record("enb", "BASE", 0, latent_curve=bent, l_ece=0.20),
        record("enb", "LR-KDE", 0, l_ece=0.25),
        record("jura", "BASE", 0, latent_curve=bent, l_ece=0.20),
        record("jura", "LR-KDE", 0, error="no"),
        record("wq", "BASE", 0, error="no"),
    ]
    verdict = lower_where_base_leaves_band(Cells.of(known, "convex-potential"), "LR-KDE")
    assert verdict.holds == ("slump",)
    assert verdict.misses == {"enb": pytest.approx(0.05)}
    assert verdict.unjudged == {"jura": "no seed that both have", "wq": "no curve of BASE"}


def test_sets_with_heavy_atoms_are_left_out_where_asked():
    cells = cells_of("nll", {("edm", "BASE"): [99.0, 99.1], ("enb", "BASE"): [99.0, 99.1]})
    every, without, those = (
        against_published(cells, "nll", "BASE", heavy_atoms=atoms).misses for atoms in (None, False, True)
    )
    assert list(every) == ["edm", "enb"]
    assert list(without) == ["enb"]
    assert list(those) == ["edm"]


def test_a_set_of_the_users_own_has_no_known_atoms():
    cells = cells_of("nll", {("my_table", "BASE"): [1.0, 2.0]})
    assert against_published(cells, "nll", "BASE").unjudged == {"my_table": "not published"}
    for atoms in (False, True):
        assert against_published(cells, "nll", "BASE", heavy_atoms=atoms) == Verdict((), {}, {})
    assert claims_table([cells])


def test_means_clearly_below_the_published_ones_are_counted():
    values = {("slump", "BASE"): [2.5, 2.6, 2.7], ("edm", "BASE"): [-50.0, -49.0, -51.0]}
    values |= {("jura", "BASE"): [9.0, 9.1], ("enb", "BASE"): [-9.0]}
    assert better_than_published(cells_of("nll", values), "nll", "BASE") == 1


def test_the_table_of_claims_counts_and_names_the_exceptions():
    known = [
        full_record("slump", name, seed, 0.3 * (name != "BASE")) for name in METHODS for seed in range(3)
    ]
    known += [
        full_record("edm", name, seed, -0.3 * (name != "BASE")) for name in METHODS for seed in range(3)
    ]
    cells = Cells.of(known, "convex-potential", datasets=["slump", "edm"])
    table = claims_table([cells])
    assert len(table.rows) == len(claims())
    at = next(i for i, row in enumerate(table.rows) if "NLL of LR-stacked not above" in row[0].text)
    assert [cell.text for cell in table.rows[at][1:]] == ["1", "2", "0"]
    assert f"({at + 1}) exceptions: EDM +0.30." in table.notes
    other = Cells.of([full_record("slump", n, 0, suite_name="maf") for n in METHODS], "maf")
    both = claims_table([cells, other])
    assert any(note.startswith(f"({at + 1}) convex-potential exceptions: EDM") for note in both.notes)
    assert any("maf not judged, one seed: SLU." in note for note in both.notes)


def test_claims_do_not_mix_weights():
    best = cells_of("nll", {("slump", "BASE"): [1.0]})
    last = cells_of("nll", {("slump", "BASE"): [1.0]}, weights="last")
    with pytest.raises(ValueError, match="one choice of weights"):
        claims_table([best, last])


def test_harm_is_told_from_noise_in_all_cells_together():
    base = [1.0, 2.0, 3.0, 4.0]
    by = {
        "slump": [0.5, 0.52, 0.48, 0.5],
        "edm": [0.5, -0.6, 0.7, -0.4],
        "jura": [0.005] * 4,
        "wq": [0.0] * 4,
    }
    values = {(name, "BASE"): base for name in by} | {("enb", "BASE"): [1.0], ("enb", "auto"): [9.0]}
    values |= {
        (name, "auto"): [a + b for a, b in zip(base, shift, strict=True)] for name, shift in by.items()
    }
    tests = harm_tests([cells_of("nll", values)], "auto", "BASE")
    assert tests.harmed == {("convex-potential", "slump"): pytest.approx(0.5)}
    assert tests.unjudged == (("convex-potential", "enb"),)
    assert (tests.within, tests.shown) == (2, 2)  # jura and wq; the mean on edm is 0.05, and uncertain
    assert set(tests.p_values) == {("convex-potential", name) for name in by}


def test_one_test_of_many_needs_more_evidence():
    # Student's t is 3.5 with 2 degrees of freedom: p = 0.036 alone, 0.14 among four.
    harmful, harmless = [0.3, 0.5, 0.1], [-0.3, -0.5, -0.1]
    values = {("slump", "BASE"): [0.0] * 3, ("slump", "auto"): [value + 0.11 for value in harmful]}
    assert harm_tests([cells_of("nll", values)], "auto", "BASE").harmed
    others = ("edm", "jura", "wq")
    values |= {(name, "BASE"): [0.0] * 3 for name in others} | {(name, "auto"): harmless for name in others}
    tests = harm_tests([cells_of("nll", values)], "auto", "BASE")
    assert not tests.harmed
    assert tests.p_values["convex-potential", "slump"] == pytest.approx(4 * 0.0364, abs=0.004)


def test_a_difference_without_spread_is_certain():
    values = {("slump", "BASE"): [1.0, 2.0], ("slump", "auto"): [1.5, 2.5]}
    assert harm_tests([cells_of("nll", values)], "auto", "BASE").p_values == {
        ("convex-potential", "slump"): 0.0
    }


def test_an_infinite_mean_is_harm():
    values = {("slump", "BASE"): [1.0, 2.0], ("slump", "auto"): [1.0, math.inf]}
    assert harm_tests([cells_of("nll", values)], "auto", "BASE").harmed
