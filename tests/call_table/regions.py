"""Calls of prediction regions, p-values and decisions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import latentcal as lc
from outcomes import Call
from strategies import Draw, Seed

from .table import LAST_DIM, any_model, calibration, entry, features, rows, trained

SCORES = ("latent", "density", "hpd", "pcp")


@entry("conformal_region", 6)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(20)
    x, y = rows(draw, model, n)
    options = {
        "coverage": draw.share("coverage", (0.5, 0.8, 0.9)),
        "score": draw.choice(("latent", *SCORES)),
        "batch_size": draw.whole("batch_size", 1, (3, 50), optional=True),
        "source": Seed(),
    }
    return Call(
        lambda x, y, source, **options: (
            lc.conformal_region(model.flow, x, y, generator=source, **options).threshold
        ),
        {"x": x, "y": y, **options},
        (),
        answers=n > 0,
        infinite=True,
    )


@functools.cache
def regions() -> dict[str, lc.Region]:
    x, y = calibration()
    flow = trained()["two outputs"].flow
    made = {
        name: lc.conformal_region(flow, x, y, coverage=0.8, score=name, generator=Seed().generator())
        for name in SCORES
    }
    made["levels"] = made["latent"].at((0.5, 0.9))
    return made


def _of_region(name: str, method: Callable[..., Any], effort: int, event: bool, **expected: Any) -> None:
    @entry(f"Region.{name}", effort)
    def make(draw: Draw) -> Call:
        which = draw.choice(("latent", "latent", "density", "levels", "pcp"))
        n = draw.rows(3)
        x = draw.matrix("x", n, 2, None, LAST_DIM)
        shape = (*((2,) if which == "levels" else ()), n, *((2,) if event else ()))
        return Call(
            lambda x, source: method(regions()[which], x, generator=source),
            {"x": x, "source": Seed()},
            shape if name != "sample" else None,
            answers=True,
            **expected,
        )


_of_region("bounds", lc.Region.bounds, 40, True)
_of_region("volume", lambda r, x, generator: r.volume(x, samples=64, generator=generator), 20, False)
_of_region("sample", lambda r, x, generator: r.sample(x, 3, generator=generator), 20, True)


@entry("Region.contains", 2)
def _(draw: Draw) -> Call:
    which = draw.choice(("latent", "density", "levels", "hpd"))
    n = draw.rows(4)
    x, y = rows(draw, trained()["two outputs"], n, LAST_DIM)
    coverage = None if draw.chance(50) else draw.share("coverage", (0.5, 0.9))
    levels = which == "levels" and coverage is None
    return Call(
        lambda x, y, coverage: regions()[which].contains(y, x, coverage),
        {"x": x, "y": y, "coverage": coverage},
        (2, n) if levels else (n,),
        answers=True,
    )


@entry("Region.boundary", 30)
def _(draw: Draw) -> Call:
    x = draw.matrix("x", 1, 2, None, LAST_DIM)
    resolution = draw.whole("resolution", 3, (8, 32))
    which = draw.choice(("latent", "latent", "density"))
    return Call(
        lambda x, resolution, source: regions()[which].boundary(x, resolution=resolution, generator=source),
        {"x": x, "resolution": resolution, "source": Seed()},
        answers=True,
    )


@entry("anomaly_pvalue", 4)
def _(draw: Draw) -> Call:
    model, n, m = trained()[draw.choice(("two outputs", "one output, float32"))], draw.rows(5), draw.rows(20)
    x, y = rows(draw, model, n, LAST_DIM)
    x_cal, y_cal = rows(draw, model, m)
    options = {"randomize": draw.chance(50), "score": draw.choice(("latent", "density"))}
    return Call(
        lambda x, y, x_cal, y_cal, source, **options: lc.anomaly_pvalue(
            model.flow, x, y, calibration=(x_cal, y_cal), generator=source, **options
        ),
        {"x": x, "y": y, "x_cal": x_cal, "y_cal": y_cal, "source": Seed(), **options},
        (n,),
        answers=m > 0,
    )


def _event(draw: Draw, dim: int) -> tuple[Any, Any]:
    """Sides of a box."""
    lower = draw.wrap(-np.abs(draw.noise(dim)), "lower", infinite=True)
    upper = draw.wrap(np.abs(draw.noise(dim)), "upper", infinite=True)
    for given in (lower, upper):
        if given.numbers is not None and not np.isfinite(given.numbers).all():
            draw.ordinary = False
    if lower.numbers is not None and upper.numbers is not None and not (lower.numbers <= upper.numbers).all():
        draw.odd("the box is empty")
    return lower, upper


@entry("probability", 12)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(3)
    x = features(draw, model, n)
    lower, upper = _event(draw, model.dim)
    options = {
        "samples": draw.whole("samples", 2, (64, 256)),
        "method": draw.choice((None, "qmc", "sampling")),
    }
    return Call(
        lambda x, lower, upper, source, **options: (
            lc.probability(model.flow, x, lc.events.Box(lower, upper), generator=source, **options).value
        ),
        {"x": x, "lower": lower, "upper": upper, "source": Seed(), **options},
        () if x is None else (n,),
        answers=True,
        names=("box",),
    )


@entry("expected_utility", 12)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(3)
    x = features(draw, model, n)
    lower, upper = _event(draw, model.dim)
    options = {
        "samples": draw.whole("samples", 2, (64, 256)),
        "method": draw.choice((None, "qmc", "sampling")),
    }
    return Call(
        lambda x, lower, upper, source, **options: (
            lc.expected_utility(
                model.flow,
                x,
                {"go": lc.events.Payoff(lc.events.Box(lower, upper), 1.0, -2.0), "wait": 0.0},
                generator=source,
                **options,
            ).value
        ),
        {"x": x, "lower": lower, "upper": upper, "source": Seed(), **options},
        (2,) if x is None else (n, 2),
        answers=True,
        names=("box",),
    )


@entry("best_action", 12)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(3)
    x = features(draw, model, n)
    inside = draw.choice((1.0, -1.0, 5))
    actions = {"go": lc.events.Payoff(lc.events.HalfSpace([1.0] * model.dim, 0.3), inside), "wait": 0.0}
    return Call(
        lambda x, samples, source: [
            ["go", "wait"].index(action)
            for action in lc.best_action(model.flow, x, actions, samples=samples, generator=source)
        ],
        {"x": x, "samples": draw.whole("samples", 2, (64,)), "source": Seed()},
        answers=True,
    )


@entry("Box and HalfSpace")
def _(draw: Draw) -> Call:
    lower, upper = _event(draw, 2)
    normal = draw.wrap(draw.noise(2), "normal")
    y = draw.matrix("y", 4, 2, None, LAST_DIM, infinite=True)
    if normal.numbers is not None and not normal.numbers.any():
        draw.odd("normal is 0")
    return Call(
        lambda lower, upper, normal, y: (
            lc.events.Box(lower, upper) | ~lc.events.HalfSpace(normal, 0.5)
        ).contains(y),
        {"lower": lower, "upper": upper, "normal": normal, "y": y},
        (4,),
        answers=True,
        names=("box",),
    )
