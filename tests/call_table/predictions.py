"""Calls of predictive distributions, PIT values and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import latentcal as lc
from outcomes import Call
from strategies import Draw, Seed

from .table import GRID, LAST_DIM, any_model, calibration, entry, features, repaired, rows, trained


def _predictive(name: str, function: Callable[..., Any], *, event: bool = False, **expected: Any) -> None:
    @entry(name, expected.pop("effort", 1))
    def make(draw: Draw) -> Call:
        model, n = any_model(draw), draw.rows(5)
        x, y = rows(draw, model, n, LAST_DIM)
        shape = (n, model.dim) if event else (n,)
        return Call(
            lambda x, y: function(model.flow, x, y), {"x": x, "y": y}, shape, answers=True, **expected
        )


_predictive("FlowDistribution.log_prob", lambda flow, x, y: flow(x).log_prob(y), infinite=True)
_predictive("FlowDistribution.latent", lambda flow, x, y: flow(x).latent(y), event=True, infinite=True)
_predictive("FlowDistribution.latent_norm", lambda flow, x, y: flow(x).latent_norm(y), infinite=True)
_predictive("latent_pit", lambda flow, x, y: lc.latent_pit(flow(x), y))
_predictive("negative_log_density", lambda flow, x, y: lc.pit.negative_log_density(flow(x), y), infinite=True)
_predictive("nll_decomposition", lambda flow, x, y: lc.nll_decomposition(flow, x, y), infinite=True, effort=3)


def _drawing(name: str, function: Callable[..., Any], *, event: bool = False) -> None:
    @entry(name, 4)
    def make(draw: Draw) -> Call:
        model, n = any_model(draw), draw.rows(4)
        samples = draw.whole("samples", 1, (1, 2, 20))
        if model.weight is None:  # the prediction has no batch: y is one point
            x, y = None, draw.wrap(draw.sized(draw.noise(model.dim)), "y")
        else:
            x, y = rows(draw, model, n)
        shape = (() if x is None else (n,)) + ((model.dim,) if event else ())
        return Call(
            lambda x, y, samples, source: function(model.flow(x), y, samples=samples, generator=source),
            {"x": x, "y": y, "samples": samples, "source": Seed()},
            shape,
            answers=True,
        )


_drawing("hdr_pit", lc.hdr_pit)
_drawing("marginal_pit", lc.marginal_pit, event=True)
_drawing(
    "prerank_pit",
    lambda pred, y, **options: lc.prerank_pit(pred, y, lambda pred, y, x: y.double().sum(-1), **options),
)


@entry("FlowDistribution.sample", 2)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(4)
    x = features(draw, model, n)
    draw_of = draw.choice((lc.FlowDistribution.sample, lc.FlowDistribution.rsample))
    shape = draw.shape()
    expected = (*shape, *(() if x is None else (n,)), model.dim) if not draw.refused else None
    return Call(
        lambda x, shape, source: draw_of(model.flow(x), shape, source),
        {"x": x, "shape": shape, "source": Seed()},
        expected,
        answers=True,
        names=("y",),
    )


@entry("FlowDistribution.moments", 3)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(4)
    x = features(draw, model, n)
    samples = draw.whole("samples", 2, (2, 50))
    return Call(
        lambda x, samples, source: model.flow(x).moments(samples, source),
        {"x": x, "samples": samples, "source": Seed()},
        (*(() if x is None else (n,)), model.dim),
        answers=True,
        infinite=True,
        names=("y",),
    )


@entry("FlowDistribution.expand")
def _(draw: Draw) -> Call:
    model = any_model(draw)
    shape = draw.choice(((3,), (2, 3), (1, 3), (4,), (-1,), "a", 3))
    x = None if model.weight is None else draw.matrix("x", 1, model.features, None, LAST_DIM)
    if shape in ((-1,), "a", 3):
        draw.odd(f"shape {shape}")
    return Call(
        lambda x, batch_shape: model.flow(x).expand(batch_shape).sample(generator=torch.Generator()),
        {"x": x, "batch_shape": shape},
        (*shape, model.dim) if isinstance(shape, tuple) else None,
        answers=True,
        repeats=False,
    )


@entry("ConditionalFlow.update", 3)
def _(draw: Draw) -> Call:
    model, n = repaired()["streaming"], draw.rows(5)
    x, y = rows(draw, model, n, ("wider", "number", "longer"))

    def update(x: Any, y: Any) -> Any:
        flow = lc.recalibrate(trained()["two outputs"].flow, *calibration(), fit=lc.StreamingRadius.fit)
        flow.update(x, y)
        return flow.base.radius.cdf(GRID)

    return Call(update, {"x": x, "y": y}, (len(GRID),), answers=True, names=("radii",))


@entry("check_flow", 5)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(6, 20)
    x = features(draw, model, n)
    draw.refused[:] = [why for why in draw.refused if why != "x is wider"]  # that is what the report says
    y = draw.matrix("y", n, model.dim, None, ("deep", "wider", "number"))
    return Call(
        lambda x, y, points: len(lc.check_flow(model.flow, x, y, points=points).checks),
        {"x": x, "y": y, "points": draw.whole("points", 1, (1, 3))},
        answers=n > 1,
    )


@entry("Standardized")
def _(draw: Draw) -> Call:
    model = trained()["two outputs"]
    mean = draw.wrap(draw.noise(2), "y_mean")
    scale = draw.wrap(np.abs(draw.noise(2)) + (0.6 if draw.chance(80) else 0.0), "y_scale", whole=False)
    x, y = torch.zeros(1, 2), torch.zeros(1, 2)
    if scale.numbers is not None and not (scale.numbers > 0).all():
        draw.odd("scale is not positive")
    return Call(
        lambda y_mean, y_scale: lc.flows.Standardized(model.flow, y_mean, y_scale)(x).log_prob(y),
        {"y_mean": mean, "y_scale": scale},
        (1,),
        answers=True,
        infinite=True,
    )
