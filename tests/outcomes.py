"""What came of a call: an answer, an error that says what to do, or something that must not happen."""

from __future__ import annotations

import dataclasses
import linecache
import math
import re
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import latentcal as lc
from latentcal.flows.training import TrainingWarning
from strategies import COARSE, Draw, Given, Seed

PACKAGE = str(Path(lc.__file__).parent)
SECONDS = 5.0  # of the processor
GIGABYTE = 1 << 30
GOOD = ("answer", "clear error")
BAD = ("obscure error", "other exception", "silently wrong", "hang", "more than 1 GB")
_OWN_WARNINGS = (
    lc.recalibration.CalibrationReuseWarning,
    lc.recalibration.AutocorrelationWarning,
    lc.radius.DiscreteOutputWarning,
    lc.recalibration.EffectiveSizeWarning,
    lc.conformal.InfiniteRegionWarning,
    TrainingWarning,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A function, its arguments by name, and what its answer must be like."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    shape: tuple[int, ...] | None = None
    """Of the answer, or of its first tensor."""
    answers: bool = False
    """Whether the arguments are such that there must be an answer."""
    infinite: bool = False
    """Whether infinities are answers: log densities, quantiles, norms that overflow."""
    names: tuple[str, ...] = ()
    """What errors may call the arguments, besides their own names."""
    repeats: bool = True
    """Whether equal numbers give equal answers."""

    def run(self) -> Any:
        return self.function(**{name: _as_given(value) for name, value in self.arguments.items()})

    def run_plain(self) -> Any:
        return self.function(**{name: _as_plain(value) for name, value in self.arguments.items()})


def _as_given(value: Any) -> Any:
    return value.value if isinstance(value, Given) else _as_plain(value)


def _as_plain(value: Any) -> Any:
    if isinstance(value, Given):
        return value.plain
    return value.generator() if isinstance(value, Seed) else value


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Its kind, one of ``GOOD`` and ``BAD``, and the details."""

    kind: str
    detail: str = ""


class _TooLong(BaseException):
    pass


def judge(call: Call, draw: Draw) -> Outcome:
    """Make the call and say what came of it."""
    before = _memory()
    try:
        with _limited(SECONDS):
            answer = call.run()
    except _TooLong:
        return Outcome("hang", f"more than {SECONDS:g} s")
    except (ValueError, TypeError) as error:
        if call.answers and draw.ordinary:
            return Outcome("other exception", f"refused what must be answered: {error}")
        return _clarity(error, call)
    except Exception as error:
        return Outcome("other exception", f"{type(error).__name__}: {error} ({_place(error)})")
    if _memory() - before > GIGABYTE:
        return Outcome("more than 1 GB", f"{(_memory() - before) / GIGABYTE:.1f} GB")
    return _correctness(answer, call, draw)


def _clarity(error: Exception, call: Call) -> Outcome:
    """Whether the error is a sentence of the library's own that names an argument."""
    frames = _frames(error)
    file, line = frames[-1]
    message = str(error)
    # The estimator hands its arrays to scikit-learn, whose words its users know and its own tests ask for.
    if "sklearn" in file and any("estimator" in other for other, _ in frames):
        return Outcome("clear error", message)
    if not file.startswith(PACKAGE) or not linecache.getline(file, line).strip().startswith("raise"):
        return Outcome("obscure error", f"{type(error).__name__}: {message} ({_place(error)})")
    names = (*call.arguments, *call.names)
    if not any(re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", message, re.IGNORECASE) for name in names):
        return Outcome("obscure error", f"names no argument: {message} ({_place(error)})")
    return Outcome("clear error", message)


def _correctness(answer: Any, call: Call, draw: Draw) -> Outcome:
    if draw.refused:
        return Outcome("silently wrong", f"answered although {'; '.join(draw.refused)}")
    parts = list(_numbers(answer))
    if any(np.isnan(part).any() for part in parts):
        return Outcome("silently wrong", f"{sum(int(np.isnan(p).sum()) for p in parts)} NaN in the answer")
    if not call.infinite and not all(np.isfinite(part).all() for part in parts):
        return Outcome("silently wrong", "the answer is infinite")
    if call.shape is not None and parts[0].shape != tuple(call.shape):
        return Outcome("silently wrong", f"the answer has shape {parts[0].shape}, not {tuple(call.shape)}")
    givens = [value for value in call.arguments.values() if isinstance(value, Given)]
    if not (call.repeats and draw.exact and any(given.kind not in ("tensor", *COARSE) for given in givens)):
        return Outcome("answer")
    try:
        with _limited(math.inf):
            plain = list(_numbers(call.run_plain()))
    except Exception as error:
        return Outcome("silently wrong", f"answered, but not for a plain tensor: {error}")
    for one, other in zip(parts, plain, strict=True):
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-5, atol=1e-9, equal_nan=True):
            return Outcome("silently wrong", f"another answer than for a plain tensor: {one} {other}"[:300])
    return Outcome("answer")


def _numbers(answer: Any) -> Iterator[np.ndarray]:
    """The arrays of an answer, as float64."""
    if isinstance(answer, torch.Tensor):
        yield answer.detach().cpu().double().numpy()
    elif hasattr(answer, "to_numpy"):
        yield answer.to_numpy().astype(np.float64)
    elif isinstance(answer, (bool, int, float, np.ndarray, np.number)):
        yield np.asarray(answer, dtype=np.float64)
    elif isinstance(answer, dict):
        yield from _numbers(list(answer.values()))
    elif isinstance(answer, (tuple, list)):
        for part in answer:
            yield from _numbers(part)
    elif dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        yield from _numbers([getattr(answer, field.name) for field in dataclasses.fields(answer)])


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Warnings of others are errors, and so is more than this time of the processor."""

    def stop(number: int, frame: Any) -> None:
        raise _TooLong

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 0 if math.isinf(seconds) else seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for kind in _OWN_WARNINGS:
                warnings.simplefilter("ignore", kind)
            # scikit-learn's, for tables
            warnings.filterwarnings("ignore", "X (has|does not have valid) feature names")
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _memory() -> int:
    """The most that the process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _frames(error: BaseException) -> list[tuple[str, int]]:
    found, step = [], error.__traceback__
    while step is not None:
        found.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
        step = step.tb_next
    return found


def _place(error: BaseException) -> str:
    """The innermost line of the library on the way to an error."""
    own = [(file, line) for file, line in _frames(error) if file.startswith(PACKAGE)]
    file, line = own[-1] if own else _frames(error)[-1]
    return f"{file.removeprefix(PACKAGE).lstrip('/')}:{line}"
