"""Calls of fits, diagnoses, weights, atoms and of the scikit-learn face."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import latentcal as lc
from outcomes import Call
from strategies import Draw, Seed

from .table import any_model, entry, rows, trained


@entry("LinearGaussianFlow.fit", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(8, 30)
    model = trained()[draw.choice(("two outputs", "no features"))]
    x, y = rows(draw, model, n, ("flat", "deep", "longer", "number"))
    return Call(
        lambda x, y: [
            lc.flows.LinearGaussianFlow.fit(x, y).bias,
            lc.flows.LinearGaussianFlow.fit(x, y).scale_tril,
        ],
        {"x": x, "y": y},
        (model.dim,),
        answers=n >= 8,
        names=("residuals", "points"),
    )


@entry("LinearGaussianFlow")
def _(draw: Draw) -> Call:
    weight = draw.wrap(draw.noise(2, 2), "weight")
    bias = draw.wrap(draw.noise(2), "bias")
    diagonal = np.eye(2) if draw.chance(90) else draw.choice((np.zeros((2, 2)), np.ones((2, 2)), np.eye(3)))
    if not np.array_equiv(diagonal, np.eye(2)) or diagonal.shape != (2, 2):
        draw.odd("no lower triangle")
    scale = draw.wrap(diagonal, "scale_tril")
    return Call(
        lambda weight, bias, scale_tril: lc.flows.LinearGaussianFlow(weight, bias, scale_tril)(
            torch.zeros(3, 2)
        ).log_prob(torch.zeros(3, 2)),
        {"weight": weight, "bias": bias, "scale_tril": scale},
        (3,),
        answers=True,
        infinite=True,
    )


@entry("train_flow", 60)
def _(draw: Draw) -> Call:
    n, m = draw.rows(20), draw.rows(10)
    model = trained()["two outputs"]
    x, y = rows(draw, model, n)
    x_val, y_val = rows(draw, model, m)

    def train(x: Any, y: Any, x_val: Any, y_val: Any, batch_size: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            flow = lc.flows.ConvexPotentialFlow(2, 2, hidden=4, layers=1)
        lc.flows.train_flow(flow, x, y, validation=(x_val, y_val), max_epochs=1, batch_size=batch_size)
        return [parameter.detach() for parameter in flow.parameters()]

    return Call(
        train,
        {"x": x, "y": y, "x_val": x_val, "y_val": y_val, "batch_size": draw.whole("batch_size", 1, (16,))},
        answers=min(n, m) > 0,
    )


@entry("diagnose", 3000)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(25, 50)
    x, y = rows(draw, model, n)
    samples = draw.whole("samples", 2, (5, 10))
    return Call(
        lambda x, y, samples: [
            (report := lc.diagnose(model.flow, x, y, samples=samples, permutations=399)).n,
            [finding.p_value for finding in report.findings if finding.p_value is not None],
        ],
        {"x": x, "y": y, "samples": samples},
        answers=n >= 25,
        infinite=True,
        names=("rows",),
        repeats=False,
    )


@entry("conditional_calibration", 800)
def _(draw: Draw) -> Call:
    model, n = any_model(draw), draw.rows(25, 50)
    x, y = rows(draw, model, n)
    options = {
        "coverage": draw.share("coverage", (0.5, 0.9)),
        "permutations": draw.whole("permutations", 199, (199, 250)),
    }
    return Call(
        lambda x, y, **options: [
            (report := lc.conditional_calibration(model.flow, x, y, **options)).l_ece,
            [finding.p_value for finding in report.findings],
        ],
        {"x": x, "y": y, **options},
        answers=n >= 25,
        names=("rows",),
        repeats=False,
    )


@entry("density_ratio", 200)
def _(draw: Draw) -> Call:
    n, m = draw.rows(20, 30), draw.rows(20)
    calibration = draw.matrix("x_calibration", n, 2, None, ("flat", "deep", "wider", "number"))
    target = draw.matrix("x_target", m, 2, draw.noise(m, 2) + 0.5, ("flat", "deep", "wider", "number"))
    folds = draw.whole("folds", 2, (2, 3))
    if sum("wider" in why for why in draw.refused) == 2:  # both alike
        draw.refused[:] = [why for why in draw.refused if "wider" not in why]
    return Call(
        lc.density_ratio,
        {"x_calibration": calibration, "x_target": target, "folds": folds},
        (n,) if not draw.refused else None,
        answers=min(n, m) >= 20,
    )


@entry("atoms", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(10, 30)
    values = draw.noise(n, 2) if draw.chance(50) else np.rint(draw.noise(n, 2))
    y = draw.matrix("y", n, 2, values, ("flat", "deep", "number"))
    share = draw.choice((0.0, 0.05, 0.5)) if draw.chance(90) else draw.choice((1.0, -0.1, float("nan"), "a"))
    if share not in (0.0, 0.05, 0.5):
        draw.odd(f"share = {share}")
    return Call(
        lambda y, share: [lc.recalibration.atoms(y, share).share, lc.recalibration.atoms(y, share).n],
        {"y": y, "share": share},
        answers=n > 0,
    )


@entry("Dequantizer", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(10, 30)
    values = draw.noise(n, 2) if draw.chance(50) else np.rint(draw.noise(n, 2))
    y = draw.matrix("y", n, 2, values, ("flat", "deep", "number"))
    new = draw.matrix("new", 3, 2, None, ("wider", "number"))
    return Call(
        lambda y, new, source: lc.recalibration.Dequantizer.fit(y).jitter(new, source),
        {"y": y, "new": new, "source": Seed()},
        (3, 2),
        answers=n > 0,
        infinite=True,  # noise of the size of y may be beyond the floats of the new rows
        names=("y",),
    )


@entry("FlowRegressor.fit", 60)
def _(draw: Draw) -> Call:
    n = draw.rows(60)
    x, y = rows(draw, trained()["two outputs"], n, ("deep", "longer", "number"))

    def fit(x: Any, y: Any) -> Any:
        shares = {"calibration_fraction": 0.4, "random_state": 0}
        model = lc.FlowRegressor("linear_gaussian", recalibration="scaled", **shares).fit(x, y)
        return model.predict(np.zeros((2, 2)))

    return Call(fit, {"x": x, "y": y}, (2, 2), answers=n == 60, names=("column", "penalties"))


@functools.cache
def estimator() -> Any:
    source = np.random.default_rng(5)
    x = source.standard_normal((120, 2))
    y = x @ trained()["two outputs"].weight.T + source.standard_normal((120, 2))
    shares = {"calibration_fraction": 0.25, "draws": 32}
    return lc.FlowRegressor("linear_gaussian", recalibration="scaled", random_state=0, **shares).fit(x, y)


def _of_estimator(name: str, method: Callable[..., Any], effort: int, *, y: bool = False) -> None:
    @entry(f"FlowRegressor.{name}", effort)
    def make(draw: Draw) -> Call:
        n = draw.rows(4)
        arguments = {"x": draw.matrix("x", n, 2, None, ("deep", "wider", "number"))}
        if y:
            arguments["y"] = draw.matrix("y", n, 2, None, ("deep", "wider", "number"))
        return Call(
            lambda **given: method(estimator(), *given.values()),
            arguments,
            answers=n > 0,
            infinite=True,
        )


_of_estimator("predict", lambda model, x: model.predict(x), 4)
_of_estimator("predict_quantile", lambda model, x: model.predict_quantile(x, [0.1, 0.5]), 4)
_of_estimator("sample", lambda model, x: model.sample(x, 3), 3)
_of_estimator("log_prob", lambda model, x, y: model.log_prob(x, y), 3, y=True)
_of_estimator("score", lambda model, x, y: model.score(x, y), 3, y=True)
_of_estimator("anomaly_pvalue", lambda model, x, y: model.anomaly_pvalue(x, y), 3, y=True)
_of_estimator("probability", lambda model, x: model.probability(x, ([-1, -1], [1, 1]), samples=64), 15)
_of_estimator("region.contains", lambda model, x, y: model.predict_region(x, 0.8).contains(y), 4, y=True)
_of_estimator("region.volume", lambda model, x: model.predict_region(x, 0.8).volume(64), 15)
_of_estimator("region.bounds", lambda model, x: model.predict_region(x, 0.8).bounds(), 40)
