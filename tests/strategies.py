"""Arguments as callers give them: numbers of every size in every container, and what they mean.

A :class:`Draw` makes all choices by one ``random.Random``. The property tests take one from hypothesis, which
can make a failing case smaller; ``tools/fuzz_api.py`` takes a seeded one, so that a case has a number.
"""

from __future__ import annotations

import importlib.util
import math
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

HAS_POLARS = importlib.util.find_spec("polars") is not None


@dataclass(frozen=True, eq=False)
class Given:
    """An argument, and the numbers that it stands for."""

    value: Any
    numbers: np.ndarray | None
    """Float64; None where there are no such numbers, so that the argument must be refused."""
    kind: str
    """How the numbers are given."""

    @property
    def plain(self) -> Any:
        """The same numbers in a float64 tensor."""
        return self.value if self.numbers is None else torch.from_numpy(self.numbers.copy())

    def __repr__(self) -> str:
        numbers = np.array2string(self.numbers, threshold=20) if self.numbers is not None else self.value
        return f"<{self.kind} {getattr(self.numbers, 'shape', '')} {numbers}>"


@dataclass(frozen=True)
class Seed:
    """A generator that starts anew in every run of a call."""

    number: int = 0

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.number)


def _strided(v: np.ndarray) -> np.ndarray:
    return np.repeat(v, 2, axis=-1)[..., ::2] if v.ndim else v


def _tensor(v: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(v))


def _nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a prototype, says torch
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


# Each holds the numbers to the last bit.
EXACT: dict[str, Callable[[np.ndarray], Any]] = {
    "tensor": _tensor,
    "numpy": lambda v: v.copy(),
    "lists": lambda v: v.tolist() if v.size or v.ndim < 2 else v,  # [] has no columns
    "tuples": lambda v: tuple(v.tolist()) if v.ndim and v.size else v,
    "columns first": lambda v: np.array(v, order="F"),
    "every other": _strided,
    "backwards": lambda v: np.flip(np.flip(v).copy()),
    "read-only": lambda v: np.broadcast_to(v, v.shape),
    "big-endian": lambda v: v.astype(">f8"),
    "long double": lambda v: v.astype(np.longdouble),
    "objects": lambda v: v.astype(object),
    "masked array": np.ma.masked_array,
    "transposed tensor": lambda v: _tensor(v.T.copy()).T if v.ndim == 2 else _tensor(v),
    "expanded tensor": lambda v: torch.stack([_tensor(v), _tensor(v)], -1)[..., 1],
    "negative bit": lambda v: torch._neg_view(_tensor(-v)),
    "with a graph": lambda v: _tensor(v).requires_grad_() * 1,
    "parameter": lambda v: torch.nn.Parameter(_tensor(v)),
    "pandas": lambda v: (
        pd.DataFrame(v, columns=[f"c{i}" for i in range(v.shape[1])])
        if v.ndim == 2
        else pd.Series(v, index=np.arange(len(v))[::-1])
        if v.ndim == 1
        else v
    ),
}
if HAS_POLARS:
    import polars as pl

    EXACT["polars"] = lambda v: pl.DataFrame(v) if v.ndim == 2 and v.size else v

# Each rounds the numbers; what the argument stands for is what is left.
ROUNDED: dict[str, Callable[[np.ndarray], Any]] = {
    "float32": lambda v: _tensor(v).float(),
    "float32 array": lambda v: np.asarray(v, dtype=np.float32),
    "float16": lambda v: _tensor(v).half(),
    "float16 array": lambda v: v.astype(np.float16),
    "bfloat16": lambda v: _tensor(v).bfloat16(),
    "int64": lambda v: _tensor(np.clip(np.rint(v), -1e6, 1e6)).long(),
    "int32 array": lambda v: np.clip(np.rint(v), -1e6, 1e6).astype(np.int32),
    "uint8": lambda v: _tensor(np.clip(np.rint(v), 0, 255)).to(torch.uint8),
    "uint16 array": lambda v: np.clip(np.rint(v), 0, 6e4).astype(np.uint16),
    "uint64 array": lambda v: np.clip(np.rint(v), 0, 1e6).astype(np.uint64),
    "bool": lambda v: _tensor(v) > 0,
    "bool array": lambda v: v > 0,
}
COARSE = ("float16", "float16 array", "bfloat16")

# None of these is a number a place.
REFUSED: dict[str, Callable[[np.ndarray], Any]] = {
    "complex array": lambda v: v + 1j,
    "complex tensor": lambda v: _tensor(v) + 1j,
    "conjugate": lambda v: torch.conj(_tensor(v) + 1j),
    "text": lambda v: np.full(v.shape, "a"),
    "string": lambda v: "numbers",
    "bytes": lambda v: b"12",
    "dates": lambda v: np.full(v.shape, "2020-01-01", dtype="M8[D]"),
    "time spans": lambda v: np.full(v.shape, 5, dtype="m8[s]"),
    "objects with text": lambda v: np.full(v.shape, "a", dtype=object),
    "sparse": lambda v: _tensor(v).to_sparse(),
    "eight bits": lambda v: _tensor(v).to(torch.float8_e4m3fn),
    "meta": lambda v: torch.empty(v.shape, device="meta"),
    "unequal rows": lambda v: [[1.0, 2.0], [3.0]],
    "nested tensor": lambda v: _nested(),
    "dict": lambda v: {"a": 1.0},
    "set": lambda v: {1.0, 2.0},
    "function": lambda v: _strided,
    "structured array": lambda v: np.zeros(v.shape, dtype=[("a", float)]),
    "text table": lambda v: pd.DataFrame({"a": ["b"] * 3, "c": [1.0] * 3}),
    "categories": lambda v: pd.Series(["u", "v"], dtype="category"),
}

ROW_SHAPES = ("flat", "deep", "wider", "longer", "number")  # other than (n, k)
SIZES = {"ordinary": 1.0, "huge": 1e30, "tiny": 1e-30, "largest": 1e300, "smallest": 1e-310}


class Draw:
    """The choices behind one call, and what they ask of its outcome."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.ordinary = True
        """Whether all is as the documentation wants it, so that an answer must come."""
        self.refused: list[str] = []
        """Why the call must raise."""
        self.exact = True
        """Whether the plain numbers must give the same answer."""

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.source.randrange(len(options))]

    def chance(self, percent: int) -> bool:
        return self.source.randrange(100) < percent

    def noise(self, *shape: int) -> np.ndarray:
        return np.random.default_rng(self.source.randrange(1 << 30)).standard_normal(shape)

    def rows(self, *usual: int) -> int:
        """A number of rows; few are always possible."""
        return self.choice((0, 1, 2, 3)) if self.chance(20) else self.choice(usual)

    def odd(self, why: str) -> None:
        """From here on the call must raise."""
        self.ordinary = False
        self.refused.append(why)

    def wrap(self, numbers: np.ndarray, name: str, *, whole: bool = True, infinite: bool = False) -> Given:
        """The numbers in a container, now and then with NaN among them or as no numbers at all."""
        numbers = np.array(numbers, dtype=np.float64)
        if numbers.size and self.chance(8):
            bad = self.choice((math.nan, math.inf, -math.inf))
            numbers.flat[self.source.randrange(numbers.size)] = bad
            if math.isnan(bad) or not infinite:
                self.odd(f"{name} has {bad}")
            self.ordinary = False
        if numbers.size and self.chance(4):
            kind = self.choice(list(REFUSED))
            self.odd(f"{name} is {kind}")
            return Given(REFUSED[kind](numbers), None, kind)
        kind = self.choice(list(EXACT)) if self.chance(75) or not np.isfinite(numbers).all() else None
        if kind is not None:
            return Given(EXACT[kind](numbers), numbers, kind)
        kind = self.choice([kind for kind in ROUNDED if whole or kind.startswith(("float", "bfloat"))])
        with np.errstate(over="ignore"):
            value = ROUNDED[kind](numbers)
        seen = np.asarray(value.double() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
        if not np.isfinite(seen).all() and np.isfinite(numbers).all():
            self.odd(f"{name} overflows {kind}") if not infinite else None
        self.ordinary, self.exact = False, False
        return Given(value, seen, kind)

    def sized(self, numbers: np.ndarray) -> np.ndarray:
        """The numbers, now and then of another size, tied or constant."""
        if self.chance(70):
            return numbers
        self.ordinary = False
        how = self.choice((*SIZES, "tied", "constant", "zeros", "far", "one far"))
        if how in SIZES:
            return numbers * SIZES[how]
        if how == "one far":
            numbers = numbers.copy()
            if numbers.size:
                numbers.flat[0] = self.choice((1e10, -1e30, 1e308))
            return numbers
        return {
            "tied": np.rint(numbers),
            "constant": np.full_like(numbers, 0.7),
            "zeros": np.zeros_like(numbers),
            "far": numbers + 1e8,
        }[how]

    def matrix(
        self,
        name: str,
        rows: int,
        columns: int,
        values: np.ndarray | None = None,
        wrong: Sequence[str] = ROW_SHAPES,
        **allowed: bool,
    ) -> Given:
        """(rows, columns) numbers, now and then of another shape, which must be refused."""
        numbers = self.sized(self.noise(rows, columns) if values is None else values)
        if rows and self.chance(6):  # without rows no model is asked
            how = self.choice(wrong)
            self.odd(f"{name} is {how}")
            numbers = {
                "flat": self.noise(max(rows, 1)),
                "deep": self.noise(rows, columns, 2),
                "wider": self.noise(rows, columns + 1),
                "longer": self.noise(rows + 2, columns),
                "number": self.noise(),
            }[how]
        return self.wrap(numbers, name, **allowed)

    def weights(self, rows: int) -> Given | None:
        """Weights of rows, or None; negative ones, none positive and another number must be refused."""
        if self.chance(60):
            return None
        how = self.choice(("positive", "zeros", "tiny", "huge", "uneven", "negative", "all zero", "longer"))
        positive = np.abs(self.noise(rows)) + 0.1
        numbers = {
            "positive": positive,
            "zeros": positive * (np.arange(rows) % 3 != 0),
            "tiny": positive * 1e-206,
            "huge": positive * 1e200,
            "uneven": positive**30,
            "negative": -positive,
            "all zero": 0 * positive,
            "longer": np.abs(self.noise(rows + 1)),
        }[how]
        if how != "positive":
            self.ordinary = False
        if rows and how in ("negative", "all zero", "longer"):
            self.odd(f"weights are {how}")
        given = self.wrap(numbers, "weights")
        if given.numbers is not None and rows and not (given.numbers > 0).any():
            self.odd("no weight is positive")
        return given

    def whole(self, name: str, least: int, usual: Sequence[int], *, optional: bool = False) -> Any:
        """A whole number of at least ``least``, seldom something else."""
        if optional and self.chance(40):
            return None
        if self.chance(92):
            number = self.choice(usual)
            return self.choice((number, number, np.int64(number)))
        wrong = self.choice((least - 1, -3, 2.5, math.nan, "3", [2], math.inf))
        self.odd(f"{name} = {wrong!r}")
        return wrong

    def share(self, name: str, usual: Sequence[float]) -> Any:
        """A number strictly between 0 and 1, seldom something else."""
        if self.chance(92):
            return self.choice(usual)
        wrong = self.choice((0.0, 1.0, -0.1, 1.5, math.nan, "a", math.inf))
        self.odd(f"{name} = {wrong!r}")
        return wrong

    def shape(self) -> Any:
        """A shape of draws, seldom none."""
        if self.chance(85):
            return self.choice(((), (1,), (3,), (2, 2), (0,), [4], torch.Size([2]), (np.int64(3),)))
        wrong = self.choice((5, (-1,), (2.0,), "ab", ("a",), None))
        self.odd(f"shape {wrong!r}")
        return wrong
