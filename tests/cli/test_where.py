"""Conditions become sets of outputs, and whatever else is written is refused with the place."""

import math

import pytest

pytest.importorskip("click")

import torch
from hypothesis import given
from hypothesis import strategies as st

import same
from latentcal.cli.where import WhereError, parse_where
from latentcal.events import Box, HalfSpace

POINTS = 2 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a > 1 and b < 2", lambda a, b: (a > 1) & (b < 2)),
        ("a>1 & b<2 | a<-1", lambda a, b: ((a > 1) & (b < 2)) | (a < -1)),
        ("a < 0 or b < 0 and a < 1", lambda a, b: (a < 0) | ((b < 0) & (a < 1))),
        ("(a < 0 or b < 0) and a < 1", lambda a, b: ((a < 0) | (b < 0)) & (a < 1)),
        ("not a < 0 and b < 0", lambda a, b: (a >= 0) & (b < 0)),
        ("not (a < 0 and b < 0)", lambda a, b: (a >= 0) | (b >= 0)),
        ("a + 2*b < 3", lambda a, b: a + 2 * b < 3),
        ("a - b >= 2*(a + 1)/4 - .5e0", lambda a, b: a - b >= (a + 1) / 2 - 0.5),
        ("-a < b*-1", lambda a, b: -a < -b),
        ("0 < a <= 1 < b", lambda a, b: (a > 0) & (a <= 1) & (b > 1)),
        ("1 > a - b > -1", lambda a, b: (a - b < 1) & (a - b > -1)),
        ("((a)) > ((1))", lambda a, b: a > 1),
        ("a < 1 and a > 2", lambda a, b: (a < 1) & (a > 2)),
        ("NOT `b` > 0 OR a > 2", lambda a, b: (b <= 0) | (a > 2)),
    ],
)
def test_a_condition_is_what_it_says(text, rule):
    a, b = POINTS.unbind(1)
    assert same.decided(parse_where(text, ["a", "b"]).contains(POINTS), rule(a, b))


def test_a_box_is_recognised_so_that_it_can_be_integrated():
    box = parse_where("2*a < 4 and a > -1 and 0 < b and b < 1", ["a", "b"])
    assert isinstance(box, Box)
    assert (box.lower.tolist(), box.upper.tolist()) == ([-1, 0], [2, 1])
    side = parse_where("b < 1", ["a", "b"])
    assert isinstance(side, Box)
    assert side.lower.tolist() == [-math.inf, -math.inf]
    assert isinstance(parse_where("a < b", ["a", "b"]), HalfSpace)


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_names_with_other_characters_stand_in_quotes(quote):
    text = f"{quote}net rent (m²){quote} > 1 and heating.cost_2 < 0"
    inside = parse_where(text, ["net rent (m²)", "heating.cost_2"])
    assert inside.contains(torch.tensor([[2.0, -1.0], [2.0, 1.0]])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "The condition is empty"),
        ("a", "expected a comparison such as a > 1 (character 1)"),
        ("a > ", "the end was not expected"),
        ("a > 1 b < 2", "'b' was not expected (character 7)"),
        ("a > 1 and", "the end was not expected"),
        ("(a > 1", "'(' is not closed (character 1)"),
        ("a > 1)", "')' was not expected (character 6)"),
        ("c > 1", "'c' in 'c > 1' is not a target; use one of a, b"),
        ("a == 1", "a single value has probability 0 under a density"),
        ("a = 1", "a single value has probability 0 under a density"),
        ("a != 1", "probability 0"),
        ("a * b > 1", "is not linear"),
        ("1 / a > 1", "is not linear"),
        ("a ** 2 > 1", "expected a number, a target, or a sum of multiples of them (character 1)"),
        ("a / 0 > 1", "divides by 0"),
        ("1 > 2", "without any target"),
        ("a - a > 2", "without any target"),
        ("(a > 1) + 2 < 3", "expected a number, a target"),
        ("a and b", "expected a comparison"),
        ("a > 1e999", "too large"),
        ("a > 1" + "0" * 400, "too large"),
        ("a > 1j", "expected a number"),
        ("a > $", "'$' was not expected (character 5)"),
        ("'a > 1", "is not closed (character 1)"),
        ("__import__('os').system('ls') > 1", "'__import__' in"),
        ("a(1) > 1", "expected a number"),
        ("a.__class__ > 1", "is not a target"),
        ("(" * 300 + "a" + ")" * 300 + "> 1", "was not expected"),
        ("a > " + "-" * 5000 + "1", "too deeply nested"),
    ],
)
def test_what_is_no_condition_is_refused(text, says):
    with pytest.raises(WhereError) as refused:
        parse_where(text, ["a", "b"])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def test_names_that_need_quotes_are_told_with_them():
    with pytest.raises(WhereError, match=r"""use one of 'net rent', "l'eau", 'and', rent_2"""):
        parse_where("net rent > 1", ["net rent", "l'eau", "and", "rent_2"])
    with pytest.raises(WhereError, match=r"for example 'net rent' > 1"):
        parse_where(" ", ["net rent"])


@given(st.text(alphabet="ab()<>=+-*/ 1.e`notadr&|$\n", max_size=30))
def test_any_text_is_a_set_or_refused(text):
    try:
        region = parse_where(text, ["a", "b"])
    except WhereError:
        return
    assert region.contains(POINTS).shape == (len(POINTS),)
