r"""Conditions on targets, ``a > 1 and b + 2*c <= 3``, as sets of outputs; parsed as Python, never executed.

Comparisons of expressions that are linear in the targets, joined by ``and``, ``or``, ``not`` (``&``, ``|``)
and parentheses. Put names that are not plain words in quotes (', " or `).
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from .._internal.wording import join_some, quote
from ..events import Box, HalfSpace, Membership
from ..flows import Kind

_PARTS = re.compile(
    r"(?P<quote>['\"`])(?P<quoted>(?:(?!(?P=quote)).)+)(?P=quote)"
    r"|(?<![\w.])(?P<word>[^\W\d][\w.]*)"
    r"|(?P<mark>[&|]|(?<![<>=!])=(?!=))",
    re.DOTALL,
)
_MARKS = {"&": "and", "|": "or", "=": "=="}
_WORDS = {"and", "or", "not"}
_QUOTES = "'\"`"
_UNFINISHED = re.compile(r"(\b(and|or|not)|[-+*/<>=])$")
_SLACK = 1e-6  # tolerance for values of a grid, in steps
_LONGEST = 200  # most characters of a condition in an error message


class WhereError(ValueError):
    """Raised when a condition cannot be parsed; the message gives the position."""


def parse_where(text: str, targets: Sequence[str], kinds: Sequence[str] | None = None) -> Membership:
    """The set of outputs (d,) that satisfy a condition.

    Args:
        text: the condition.
        targets: names of the outputs.
        kinds: kinds of the outputs. If single values have a probability, < and <= differ and = is allowed;
            without kinds, single values have none.

    Raises:
        WhereError: if the text is not a valid condition; the message states what was expected, and where.

    Examples:
        >>> parse_where("1 < a <= 2 and b >= 0", ["a", "b"])
        Box([1.0, 0.0], [2.0, inf])
        >>> parse_where("a + 2*b < 3", ["a", "b"])
        HalfSpace([1.0, 2.0], 3.0)
        >>> parse_where("a < 0 or not b < 1", ["a", "b"]).contains(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        tensor([ True, False])
    """
    return _Reader(text, targets, kinds).read()


class _Reader:
    def __init__(self, text: str, targets: Sequence[str], kinds: Sequence[str] | None) -> None:
        self._text, self._targets = text, list(targets)
        parsed = [Kind.parse(kind) for kind in kinds or ()]
        self._mixed = np.array([kind.is_mixed for kind in parsed] or [False] * len(self._targets))
        self._steps = np.array([kind.step for kind in parsed] or [0.0] * len(self._targets))
        self._shown = repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")
        self._example = f"{_quote(self._targets[0])} > 1"
        self._places: list[int] = []  # position in the text of every character passed to the parser

    def read(self) -> Membership:
        if not self._text.strip():
            raise WhereError(f"The condition is empty; expected for example {self._example}")
        source = self._translate()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # the parser warns about "1or 2"
                return self._condition(ast.parse(source, mode="eval").body)
        except SyntaxError as error:
            raise self._syntax_error(source, error.offset) from None
        except (RecursionError, MemoryError):
            raise WhereError("The condition is too long or too deeply nested.") from None

    def _translate(self) -> str:
        """The condition on one line, with the targets replaced by t0, t1, ..."""
        parts, at = [], 0
        for match in _PARTS.finditer(self._text):
            kind = str(match.lastgroup)
            name = match[kind]
            if kind == "mark":
                new = f" {_MARKS[name]} "
            elif kind == "word" and name.lower() in _WORDS:
                new = f" {name.lower()} "
            elif name in self._targets:
                new = f" t{self._targets.index(name)} "
            else:
                names = join_some(map(_quote, self._targets), len(self._targets), ", ")
                raise WhereError(f"{quote(name)} in {self._shown} is not a target; use one of {names}.")
            parts += [self._text[at : match.start()], new]
            self._places += [*range(at, match.start()), *[match.start()] * len(new)]
            at = match.end()
        parts.append(self._text[at:])
        self._places += range(at, len(self._text) + 1)
        source = re.sub(r"\s|\x00", " ", "".join(parts))
        self._places = self._places[len(source) - len(source.lstrip()) :]
        return source.strip()

    def _condition(self, node: ast.expr) -> Membership:
        match node:
            case ast.BoolOp(ast.And(), values):
                return functools.reduce(_intersect, map(self._condition, values))
            case ast.BoolOp(ast.Or(), values):
                return functools.reduce(operator.or_, map(self._condition, values))
            case ast.UnaryOp(ast.Not(), operand):
                return ~self._condition(operand)
            case ast.Compare(left, operators, others):
                sides = pairwise(self._number(side) for side in (left, *others))
                parts = [self._compare(node, *each) for each in zip(operators, sides, strict=True)]
                return functools.reduce(_intersect, parts)
        raise self._refusal(node, f"a comparison such as {self._example}")

    def _compare(self, node: ast.expr, mark: ast.cmpop, sides: tuple[np.ndarray, np.ndarray]) -> Membership:
        difference = sides[0] - sides[1]
        match mark:
            case ast.Lt() | ast.LtE():
                return self._at_most_zero(difference, strict=isinstance(mark, ast.Lt))
            case ast.Gt() | ast.GtE():
                return self._at_most_zero(-difference, strict=isinstance(mark, ast.Gt))
            case ast.Eq() | ast.NotEq() if self._mixed[difference[:-1].nonzero()[0]].all():
                equal = _intersect(self._at_most_zero(difference), self._at_most_zero(-difference))
                return equal if isinstance(mark, ast.Eq) else ~equal
        raise self._refusal(node, "<, <=, > or >= (a single value has probability 0 under a density)")

    def _number(self, node: ast.expr) -> np.ndarray:
        """Weights of the targets and a constant (d + 1,) of a linear expression."""
        total = np.zeros(len(self._targets) + 1)
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):  # a sum may be long
            sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
            total, node = total + sign * self._number(node.right), node.left
        match node:
            case ast.Constant(value) if type(value) in (int, float):
                total[-1] += self._finite(value)
                return total
            case ast.Name(name):
                total[int(name[1:])] += 1.0
                return total
            case ast.UnaryOp(ast.USub(), operand):
                return total - self._number(operand)
            case ast.UnaryOp(ast.UAdd(), operand):
                return total + self._number(operand)
            case ast.BinOp(left, ast.Mult() | ast.Div() as mark, right):
                return total + self._scale(mark, self._number(left), self._number(right))
        raise self._refusal(node, "a number, a target, or a sum of multiples of them")

    def _scale(self, mark: ast.operator, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            if isinstance(mark, ast.Div):
                if not right.any():
                    raise WhereError(f"{self._shown} divides by 0.")
                if not right[:-1].any():
                    return left / right[-1]
            elif not right[:-1].any():
                return left * right[-1]
            elif not left[:-1].any():
                return right * left[-1]
        raise WhereError(
            f"{self._shown} is not linear in the targets: only one factor of a product may contain targets."
        )

    def _finite(self, value: Any) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise WhereError(f"{self._shown} has a number that is too large.")
        return number

    def _at_most_zero(self, number: np.ndarray, *, strict: bool = False) -> Membership:
        """The set where a linear expression is at most 0; a box if it contains one target only.

        If ``strict``, less than 0: by a small margin where single values have a probability.
        """
        if not np.isfinite(number).all():
            raise WhereError(f"{self._shown} has a number that is too large.")
        weights, constant = number[:-1], float(number[-1])
        (own,) = weights.nonzero()
        if self._mixed[own].any():
            slack = _SLACK * float(np.abs(weights) @ self._steps)
            constant += slack if strict else -slack
            constant = math.nextafter(constant, math.inf) if strict else constant
        if not len(own):
            raise WhereError(f"{self._shown} compares numbers without any target.")
        if len(own) > 1:
            return HalfSpace(weights.tolist(), -constant)
        lower, upper = [-math.inf] * len(weights), [math.inf] * len(weights)
        (upper if weights[own[0]] > 0 else lower)[own[0]] = self._finite(0.0 - constant / weights[own[0]])
        return Box(lower, upper)

    def _refusal(self, node: ast.expr, expected: str) -> WhereError:
        place = self._places[min(node.col_offset, len(self._places) - 1)] + 1
        return WhereError(f"{self._shown}: expected {expected} (character {place}).")

    def _syntax_error(self, source: str, offset: int | None) -> WhereError:
        place = len(self._text)
        if offset is not None and offset <= len(source) and not _UNFINISHED.search(source):
            place = self._places[max(0, offset - 1)]
        there = repr(self._text[place]) if self._text[place:].strip() else "the end"
        unclosed = there in map(repr, _QUOTES) or (
            there == "'('" and self._text.count("(") > self._text.count(")")
        )
        wrong = "is not closed" if unclosed else "was not expected"
        return WhereError(
            f"{self._shown} is not a condition: {there} {wrong} (character {place + 1}). Expected for "
            f"example {self._example}"
        )


def _quote(name: str) -> str:
    """The name of a target in conditions: in quotes if it is not a plain word."""
    if re.fullmatch(r"[^\W\d][\w.]*", name) and name.lower() not in _WORDS:
        return name
    quote = next((mark for mark in _QUOTES if mark not in name), "'")
    return f"{quote}{name}{quote}"


def _intersect(a: Membership, b: Membership) -> Membership:
    """The intersection; a box if both are boxes, so that it can be integrated on a grid."""
    if not (isinstance(a, Box) and isinstance(b, Box)):
        return operator.and_(a, b)
    lower, upper = torch.maximum(a.lower, b.lower), torch.minimum(a.upper, b.upper)
    if bool((lower > upper).any()):
        return Membership(lambda y, x: torch.zeros(y.shape[:-1], dtype=torch.bool))
    return Box(lower, upper)
