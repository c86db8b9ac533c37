r"""Conditions on targets, ``a > 1 and b + 2*c <= 3``, as sets of outputs; parsed here, never evaluated.

.. code-block:: text

    condition   = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | comparison
    comparison  = sum [("<" | "<=" | ">" | ">=") sum ...]
    sum         = product {("+" | "-") product}
    product     = sign {("*" | "/") sign}
    sign        = "-" sign | number | name | "(" condition ")"

Sums must be linear in the targets. A name that is no plain word stands in quotes (', " or `).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..data.names import join_some, quote
from ..regions import Box, HalfSpace, Membership

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<quote>['\"`])(?P<quoted>(?:(?!(?P=quote)).)+)(?P=quote)"
    r"|(?P<name>[^\W\d][\w.]*)|(?P<mark><=|>=|==|!=|[-+*/()<>=&|]))"
)
_DEPTH = 50  # parentheses, minus signs and nots within each other
_WORDS = {"and", "or", "not"}
_QUOTES = "'\"`"


class WhereError(ValueError):
    """A condition that cannot be understood, with the place where."""


def parse_where(text: str, targets: Sequence[str]) -> Membership:
    """The set of outputs (d,) that fulfil a condition.

    Args:
        text: the condition.
        targets: names of the outputs.

    Raises:
        WhereError: says what was expected, and where.

    Examples:
        >>> parse_where("1 < a <= 2 and b >= 0", ["a", "b"])
        Box([1.0, 0.0], [2.0, inf])
        >>> parse_where("a + 2*b < 3", ["a", "b"])
        HalfSpace([1.0, 2.0], 3.0)
        >>> parse_where("a < 0 or not b < 1", ["a", "b"]).contains(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        tensor([ True, False])
    """
    return _Parser(text, targets).whole()


@dataclass(frozen=True)
class _Linear:
    """The number c + sum of w_j y_j."""

    weights: tuple[float, ...]
    constant: float

    def combined(self, other: _Linear, sign: float) -> _Linear:
        weights = (w + sign * v for w, v in zip(self.weights, other.weights, strict=True))
        return _Linear(tuple(weights), self.constant + sign * other.constant)

    def scaled(self, factor: float) -> _Linear:
        return _Linear(tuple(factor * w for w in self.weights), factor * self.constant)

    @property
    def is_constant(self) -> bool:
        return not any(self.weights)


class _Parser:
    def __init__(self, text: str, targets: Sequence[str]) -> None:
        self._text, self._targets = text, list(targets)
        self._tokens = [*self._split(text)]
        self._next, self._depth = 0, 0

    def whole(self) -> Membership:
        if len(self._tokens) == 1:
            raise WhereError("The condition is empty; write for example " + self._example())
        found = self._set(self._either())
        if self._kind != "end":
            raise self._error("the end, `and` or `or`")
        return found

    def _split(self, text: str) -> list[tuple[str, str, int]]:
        """Tokens (kind, text, place)."""
        tokens, place = [], 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                place += len(text[place:]) - len(text[place:].lstrip())
                what = "is not closed" if text[place] in _QUOTES else "means nothing"
                raise WhereError(f"{text!r} has {text[place]!r} at character {place + 1}, which {what}.")
            kind = str(match.lastgroup)
            word = match[kind]
            if kind == "name" and word.lower() in _WORDS:
                kind, word = "mark", word.lower()
            tokens.append(("name" if kind == "quoted" else kind, word, match.start(match.lastgroup or 0)))
            place = match.end()
        return [*tokens, ("end", "", len(text))]

    @property
    def _kind(self) -> str:
        return self._tokens[self._next][0]

    @property
    def _word(self) -> str:
        """The next mark; "" for anything else."""
        kind, word, _ = self._tokens[self._next]
        return word if kind == "mark" else ""

    def _take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _either(self) -> Any:
        left = self._both()
        while self._word in ("or", "|"):
            self._take()
            left = self._set(left) | self._set(self._both())
        return left

    def _both(self) -> Any:
        left = self._negation()
        while self._word in ("and", "&"):
            self._take()
            left = _intersection(self._set(left), self._set(self._negation()))
        return left

    def _negation(self) -> Any:
        if self._word == "not":
            self._take()
            return ~self._set(self._deeper(self._negation))
        return self._comparison()

    def _comparison(self) -> Any:
        left, found = self._sum(), None
        while self._word in ("<", "<=", ">", ">=", "=", "==", "!="):
            if self._word not in ("<", "<=", ">", ">="):
                raise self._error("<, <=, > or >= (a single value has probability 0 under a density)")
            smaller_first = self._take().startswith("<")
            right = self._number(self._sum())
            pair = (self._number(left), right) if smaller_first else (right, self._number(left))
            part = self._at_most(pair[0].combined(pair[1], -1))
            found = part if found is None else _intersection(found, part)
            left = right
        return left if found is None else found

    def _sum(self) -> Any:
        left = self._product()
        while self._word in ("+", "-"):
            sign = 1.0 if self._take() == "+" else -1.0
            left = self._number(left).combined(self._number(self._product()), sign)
        return left

    def _product(self) -> Any:
        left = self._sign()
        while self._word in ("*", "/"):
            divide = self._take() == "/"
            left, right = self._number(left), self._number(self._sign())
            if divide and right == _Linear((0.0,) * len(self._targets), 0.0):
                raise WhereError(f"{self._text!r} divides by 0.")
            if right.is_constant:
                left = left.scaled(1 / right.constant if divide else right.constant)
            elif left.is_constant and not divide:
                left = right.scaled(left.constant)
            else:
                raise WhereError(
                    f"{self._text!r} is not linear in the targets: only one factor of a product may hold any."
                )
        return left

    def _sign(self) -> Any:
        kind, word, _ = self._tokens[self._next]
        zeros = (0.0,) * len(self._targets)
        if self._word == "-":
            self._take()
            return self._number(self._deeper(self._sign)).scaled(-1.0)
        if self._word == "(":
            self._take()
            inside = self._deeper(self._either)
            if self._word != ")":
                raise self._error("`)`")
            self._take()
            return inside
        if kind == "number":
            return _Linear(zeros, float(self._take()))
        if kind != "name":
            raise self._error("a target, a number or `(`")
        if word not in self._targets:
            names = join_some(map(_written, self._targets), len(self._targets), ", ")
            raise WhereError(f"{quote(word)} in {self._text!r} is no target; write one of {names}.")
        place = self._targets.index(self._take())
        return _Linear(tuple(float(i == place) for i in range(len(self._targets))), 0.0)

    def _deeper(self, part: Any) -> Any:
        self._depth += 1
        if self._depth > _DEPTH:
            raise WhereError(f"The condition is nested more than {_DEPTH} times.")
        inside = part()
        self._depth -= 1
        return inside

    def _at_most(self, number: _Linear) -> Membership:
        """The set where the number is at most 0; a box where one target decides."""
        own = [place for place, weight in enumerate(number.weights) if weight]
        if not math.isfinite(number.constant) or not all(map(math.isfinite, number.weights)):
            raise WhereError(f"{self._text!r} has a number that is too large.")
        if not own:
            raise WhereError(f"{self._text!r} compares numbers that no target has a part in.")
        if len(own) > 1:
            return HalfSpace(number.weights, -number.constant)
        place, bound = own[0], -number.constant / number.weights[own[0]]
        lower, upper = [-math.inf] * len(self._targets), [math.inf] * len(self._targets)
        (upper if number.weights[place] > 0 else lower)[place] = bound
        return Box(lower, upper)

    def _set(self, value: Any) -> Membership:
        if isinstance(value, Membership):
            return value
        raise self._error("a comparison such as " + self._example(), of="a number")

    def _number(self, value: Any) -> _Linear:
        if isinstance(value, _Linear):
            return value
        raise self._error("a number", of="a condition")

    def _error(self, expected: str, of: str = "") -> WhereError:
        kind, word, place = self._tokens[self._next]
        there = "the end" if kind == "end" else repr(word)
        came = f"there is {of} before {there}" if of else f"there is {there}"
        return WhereError(f"{self._text!r}: expected {expected}; {came} (character {place + 1}).")

    def _example(self) -> str:
        return f"{_written(self._targets[0])} > 1"


def _written(name: str) -> str:
    """A target as a condition names it: in quotes where it is no plain word."""
    if re.fullmatch(r"[^\W\d][\w.]*", name) and name.lower() not in _WORDS:
        return name
    quote = next((mark for mark in _QUOTES if mark not in name), "'")
    return f"{quote}{name}{quote}"


def _intersection(a: Membership, b: Membership) -> Membership:
    """Both; a box where both are, so that it can be integrated on a grid."""
    if not (isinstance(a, Box) and isinstance(b, Box)):
        return operator.and_(a, b)
    lower, upper = torch.maximum(a.lower, b.lower), torch.minimum(a.upper, b.upper)
    if bool((lower > upper).any()):
        return Membership(lambda y, x: torch.zeros(y.shape[:-1], dtype=torch.bool))
    return Box(lower, upper)
