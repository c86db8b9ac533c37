"""Calls of what repairs a flow."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import Independent, Normal

import latentcal as lc
from outcomes import Call
from strategies import Draw, Seed

from .table import FITS, GRID, any_model, bounded, entry, rows, trained


@entry("latent_norms")
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(20)
    x, y = rows(draw, model, n)
    size = draw.whole("batch_size", 1, (1, 7, 100), optional=True)
    return Call(
        lambda x, y, batch_size: lc.latent_norms(model.flow, x, y, batch_size=batch_size),
        {"x": x, "y": y, "batch_size": size},
        (n,),
        answers=n > 0,
    )


@entry("latent_norms of batches")
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.choice((1, 5))
    x, y = rows(draw, model, n)
    x2, y2 = rows(draw, model, n)
    return Call(
        lambda x, y, x2, y2: lc.latent_norms(model.flow, [(x, y), (x2, y2)]),
        {"x": x, "y": y, "x2": x2, "y2": y2},
        (2 * n,),
        answers=True,
    )


def law_at_grid(model: Any, x: Any) -> torch.Tensor:
    """The recalibrated law at the first row of x."""
    return model.base.radius.given(None if x is None else torch.zeros(1, 2).double()).cdf(GRID)


def _recalibrating(name: str, fit: Any, effort: int, fewest: int) -> None:
    @entry(f"recalibrate, {name}", effort)
    def make(draw: Draw) -> Call:
        model = trained()[draw.choice(("two outputs", "heavy tails"))] if draw.chance(80) else bounded()
        n = draw.rows(fewest, 40)
        x, y = rows(draw, model, n)
        weights = None if name == "empirical" else draw.weights(n)
        options = {
            "weights": weights,
            "order": draw.choice((None, None, "time")),
            "discrete": draw.choice(("warn", "ignore", "dequantize")),
        }
        return Call(
            lambda x, y, **options: law_at_grid(lc.recalibrate(model.flow, x, y, fit=fit, **options), x),
            {"x": x, "y": y, **options},
            (len(GRID),),
            answers=n >= fewest and model is not bounded(),
            names=("radii", "norms", "PIT values"),
            repeats=name != "spline",
        )


for _name, _effort, _fewest in (
    ("scaled", 5, 3),
    ("empirical", 3, 2),
    ("gamma_kde", 10, 3),
    ("stacked", 30, 3),
    ("spline", 200, 20),
    ("streaming", 8, 3),
    ("conditional", 100, 30),
):
    _recalibrating(_name, FITS[_name], _effort, _fewest)


@entry("align", 40)
def _(draw: Draw) -> Call:
    model, n = trained()[draw.choice(("two outputs", "no features"))], draw.rows(40, 60)
    x, y = rows(draw, model, n)
    maps = draw.choice(("affine", "affine", "marginals", "features", "shear", ("affine", "marginals")))
    if maps == "shear":
        draw.odd("no such map")

    def align(x: Any, y: Any, weights: Any, maps: Any) -> Any:
        made = lc.align(model.flow, x, y, weights=weights, maps=maps)
        at = None if x is None else torch.zeros(2, 2).double()
        return made(at).log_prob(torch.zeros(2, model.dim).double())

    return Call(
        align,
        {"x": x, "y": y, "weights": draw.weights(n), "maps": maps},
        (2,),
        answers=n >= 40 and not (maps == "features" and x is None),
        infinite=True,
        names=("rows", "features"),
    )


@entry("autocalibrate", 2000)
def _(draw: Draw) -> Call:
    model, n = trained()[draw.choice(("two outputs", "one output, L1"))], draw.rows(30, 40)
    x, y = rows(draw, model, n)
    folds = draw.whole("folds", 2, (2, 3))

    def autocalibrate(x: Any, y: Any, weights: Any, folds: Any) -> Any:
        made = lc.autocalibrate(model.flow, x, y, weights=weights, folds=folds)
        return made(torch.zeros(1, model.features).double()).log_prob(torch.zeros(1, model.dim).double())

    return Call(
        autocalibrate,
        {"x": x, "y": y, "weights": draw.weights(n), "folds": folds},
        (1,),
        answers=n >= 30,
        infinite=True,
        names=("rows", "norms"),
    )


@entry("cross_calibrate", 100)
def _(draw: Draw) -> Call:
    n = draw.rows(30)
    model = trained()["two outputs"]
    x, y = rows(draw, model, n, ("flat", "deep", "longer", "number"))
    folds = draw.whole("folds", 2, (2, 3))

    def cross(x: Any, y: Any, weights: Any, folds: Any) -> Any:
        made = lc.cross_calibrate(
            lc.flows.LinearGaussianFlow.fit, x, y, weights=weights, folds=folds, fit=lc.ScaledRadius.fit
        )
        return law_at_grid(made, x)

    return Call(
        cross,
        {"x": x, "y": y, "weights": draw.weights(n), "folds": folds},
        (len(GRID),),
        answers=n >= 30,
        names=("points", "residuals", "norms", "radii"),
    )


@entry("rolling_pit", 40)
def _(draw: Draw) -> Call:
    model, n = trained()["two outputs"], draw.rows(30)
    x, y = rows(draw, model, n)
    options = {
        "first": draw.whole("first", 1, (20, 25)),
        "step": draw.whole("step", 1, (5,)),
        "window": draw.whole("window", 1, (10, 40), optional=True),
    }
    return Call(
        lambda x, y, **options: lc.rolling_pit(model.flow, x, y, fit=lc.ScaledRadius.fit, **options),
        {"x": x, "y": y, **options},
        None,
        answers=n == 30,
        names=("norms", "radii"),
    )


def narrow(x: torch.Tensor) -> Independent:
    """A model without a latent."""
    x = x.double()
    return Independent(
        Normal(x[..., :1].expand(*x.shape[:-1], 2), 1.0, validate_args=False), 1, validate_args=False
    )


@entry("recalibrate_prerank", 40)
def _(draw: Draw) -> Call:
    n = draw.rows(25)
    numbers = draw.noise(n, 2)
    x = draw.matrix("x", n, 2, numbers, ("flat", "deep", "longer", "number"))
    y = draw.matrix("y", n, 2, numbers[:, :1] + draw.noise(n, 2))
    options = {
        "samples": draw.whole("samples", 1, (20, 50)),
        "bins": draw.whole("bins", 1, (5, 20)),
        "batch_size": draw.whole("batch_size", 1, (7, 100), optional=True),
    }

    def recalibrate(x: Any, y: Any, source: Any, **options: Any) -> Any:
        made = lc.recalibrate_prerank(narrow, x, y, generator=source, density_samples=50, **options)
        return made(torch.zeros(3, 2)).log_prob(torch.zeros(3, 2))

    return Call(
        recalibrate, {"x": x, "y": y, "source": Seed(), **options}, (3,), answers=n > 1, infinite=True
    )
