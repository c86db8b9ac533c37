"""The table of calls: how each public function may be called, well and badly, and what must come of it.

``TABLE[name](draw)`` makes one call by the choices of a draw; ``EFFORT[name]`` is its cost in milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import latentcal as lc
from outcomes import Call
from strategies import ROW_SHAPES, Draw, Given

TABLE: dict[str, Callable[[Draw], Call]] = {}
EFFORT: dict[str, int] = {}

FITS = {
    "scaled": lc.ScaledRadius.fit,
    "empirical": lc.EmpiricalRadius.fit,
    "gamma_kde": lc.GammaKDE.fit,
    "stacked": lc.StackedRadius.fit,
    "spline": lc.SplineRadius.fit,
    "streaming": lc.StreamingRadius.fit,
    "conditional": lc.ConditionalRadius.fit,
}
GRID = torch.tensor([0.0, 1e-3, 0.3, 1.0, 2.5, 40.0, 1e30], dtype=torch.float64)


def entry(name: str, effort: int = 1) -> Callable[[Callable[[Draw], Call]], Callable[[Draw], Call]]:
    def add(make: Callable[[Draw], Call]) -> Callable[[Draw], Call]:
        TABLE[name], EFFORT[name] = make, effort
        return make

    return add


class Model(NamedTuple):
    flow: Any
    weight: np.ndarray | None
    """(d, p) of the mean, by which y is made."""
    dim: int

    @property
    def features(self) -> int:
        return 0 if self.weight is None else self.weight.shape[1]


def _linear(features: int, dim: int, dtype: torch.dtype, base: Any = None, scale: float = 1.0) -> Model:
    weight = np.linspace(-1, 1.5, dim * features).reshape(dim, features) if features else None
    flow = lc.flows.LinearGaussianFlow(
        None if weight is None else torch.tensor(weight, dtype=dtype),
        torch.zeros(dim, dtype=dtype),
        scale * torch.eye(dim, dtype=dtype),
        base,
    )
    return Model(flow, weight, dim)


@functools.cache
def trained() -> dict[str, Model]:
    """Flows as they were trained."""
    return {
        "two outputs": _linear(2, 2, torch.float64),
        "one output, float32": _linear(1, 1, torch.float32),
        "no features": _linear(0, 3, torch.float64),
        "heavy tails": _linear(2, 2, torch.float64, lc.base.student_t(2, 3.0)),
        "one output, L1": _linear(3, 1, torch.float64, lc.base.laplace(1)),
        "small": _linear(1, 1, torch.float64, None, 1e-30),
    }


@functools.cache
def bounded() -> Model:
    return _linear(2, 2, torch.float64, lc.base.uniform_ball(2), 8.0)


@functools.cache
def repaired() -> dict[str, Model]:
    """Flows as they come out of the library."""
    source = np.random.default_rng(7)
    made = {}
    for name, fit in FITS.items():
        model = trained()["two outputs"]
        x = source.standard_normal((80, 2))
        y = x @ model.weight.T + 1.5 * source.standard_normal((80, 2))
        if name != "empirical":  # has no density
            made[name] = Model(lc.recalibrate(model.flow, x, y, fit=fit), model.weight, 2)
    made["aligned"] = Model(lc.align(model.flow, x, y), model.weight, 2)
    single = trained()["one output, float32"]
    y1 = x[:, :1] @ single.weight.T + source.standard_normal((80, 1))
    made["one output, stacked"] = Model(lc.recalibrate(single.flow, x[:, :1], y1), single.weight, 1)
    made["bounded"] = bounded()
    return made


def any_model(draw: Draw) -> Model:
    found = {**trained(), **repaired()}
    return found[draw.choice(list(found))]


def outputs(draw: Draw, model: Model, x: np.ndarray | None, n: int) -> np.ndarray:
    scale = float(model.flow.scale_tril[0, 0]) if hasattr(model.flow, "scale_tril") else 1.0
    noise = min(scale, 1.0) * draw.noise(n, model.dim)
    return noise if x is None else x @ model.weight.T + noise


def rows(draw: Draw, model: Model, n: int, wrong: Sequence[str] = ROW_SHAPES) -> tuple[Any, Given]:
    """x (n, p) or None and y (n, d)."""
    if model.weight is None:
        fitting = [how for how in wrong if how != "longer"]
        return None, draw.matrix("y", n, model.dim, outputs(draw, model, None, n), fitting)
    numbers = draw.noise(n, model.features)
    x = draw.matrix("x", n, model.features, numbers, wrong)
    if "x is longer" in draw.refused:  # both alike would be right
        wrong = [how for how in wrong if how != "longer"]
    return x, draw.matrix("y", n, model.dim, outputs(draw, model, numbers, n), wrong)


def features(draw: Draw, model: Model, n: int) -> Given | None:
    """x (n, p) of a flow with features."""
    return None if model.weight is None else draw.matrix("x", n, model.features, None, LAST_DIM)


LAST_DIM = ("wider", "number")  # wrong where leading dims broadcast


@functools.cache
def calibration() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(60, 2, generator=source, dtype=torch.float64)
    weight = torch.tensor(trained()["two outputs"].weight)
    return x, x @ weight.T + torch.randn(60, 2, generator=source, dtype=torch.float64)
