"""The comparison of printed text lets rounding pass and nothing else."""

import pytest

from printed import agree, contains

TEXT = "before  NLL 2.66  p 4e-49  of 1,000 rows\nafter   NLL 2.39"


@pytest.mark.parametrize(
    "other",
    [
        TEXT,
        "before  NLL 2.67  p 5e-49  of 1,000 rows\nafter   NLL 2.38",
        "before NLL 2.65 p 3e-49 of 1,000 rows after NLL 2.39",
    ],
)
def test_rounding_and_white_space_pass(other):
    assert agree(other, TEXT)


@pytest.mark.parametrize(
    "other",
    [
        TEXT.replace("2.66", "2.76"),
        TEXT.replace("4e-49", "4e-48"),
        TEXT.replace("1,000", "1,001"),
        TEXT.replace("rows", "lines"),
        TEXT.replace("p ", "p -"),
        TEXT + " 1",
        "",
    ],
)
def test_other_figures_counts_and_words_do_not(other):
    assert not agree(other, TEXT)


def test_a_part_of_a_text_is_found():
    assert contains(TEXT, "NLL 2.38")
    assert contains(TEXT, "before NLL 2.65")
    assert not contains(TEXT, "after NLL 2.66")
    assert not contains(TEXT, "happened")
