"""The table of rounding: seeds and settings are told apart, and what is not complete is left out."""

import statistics

import pytest

from studies.tabular.rounding import METHODS, SETTINGS, cells, spreads, table


def rows(values, dataset="slump"):
    """Rows of a suite, from NLL by seed and setting."""
    return [
        {"suite": "maf", "dataset": dataset, "seed": seed, "setting": setting, "epoch": nll}
        | dict.fromkeys(("nll_base", "nll_lr"), nll)
        for seed, nlls in values.items()
        for setting, nll in zip(SETTINGS, nlls, strict=False)
    ]


def test_the_spread_over_settings_is_not_that_over_seeds():
    values = {"0": ("1.0", "1.1", "1.2"), "1": ("3.0", "3.1", "3.2"), "2": ("9.0",)}
    line, *_ = table(rows(values))[2:]
    figures = [float(cell) for cell in line.split("|")[5:-1]]
    assert line.startswith("| maf | SLU | 2 | BASE |")  # of the third seed two settings are missing
    over_seeds = statistics.stdev([1.0, 3.0]) / 2**0.5
    assert figures == pytest.approx([2.1, over_seeds, 0.1, 0.2], abs=1e-9)


def test_runs_whose_best_epoch_depends_on_the_setting_are_counted():
    values = {"0": ("1", "1", "2"), "1": ("3", "3", "3"), "2": ("4", "5", "6"), "3": ("7", "8")}
    assert {spread.changed for spread in spreads(rows(values))} == {2}


def test_one_seed_has_no_spread_and_small_sets_come_first():
    assert len(table(rows({"0": ("1.0", "1.1", "1.2")}))) == 2
    found = {str(seed): ("1", "1", "1") for seed in range(2)}
    lines = table([*rows(found, "enb"), *rows(found, "slump")])[2:]
    assert [line.split(" | ")[1] for line in lines] == ["SLU", "SLU", "ENB", "ENB"]


def test_all_suites_of_the_smallest_set_come_before_the_next_set():
    found = cells(["maf", "smoothed-maf"], ["slump", "enb"], 2)
    assert [(spec.dataset, spec.seed, name) for name, spec in found[:4]] == [
        ("slump", 0, "maf"),
        ("slump", 0, "smoothed-maf"),
        ("slump", 1, "maf"),
        ("slump", 1, "smoothed-maf"),
    ]
    assert {spec.smooth for name, spec in found if name == "smoothed-maf"} == {10}
    assert {spec.recalibrations for _, spec in found} == {METHODS}
