"""One small model of every kind that can be saved, how it is written and read, and what it answers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone
from torch import Tensor

import latentcal as lc
from latentcal._internal.smoothers import NeighbourSmoother, RidgeSmoother
from latentcal.cli.model import Model, load_model, write_model
from latentcal.flow import tensor_options
from latentcal.flows.gaussian_process import KernelRegression, KernelSpread
from latentcal.flows.stages import SmootherStack
from latentcal.radius import GroupedRadius, SmoothRadius
from latentcal.radius.mixture import MixtureRadius
from latentcal.recalibration.maps import AffineMap, Chain, CoordinateMap, FeatureAffineMap
from latentcal.recalibration.mixing_maps import CorrelationMap, cross_fit_correlation

RADII = torch.tensor([0.3, 0.9, 1.4, 2.2, 3.1], dtype=torch.float64)
X = torch.tensor([[0.1, -0.4, 1.0], [-1.2, 0.6, 0.0], [0.7, 0.2, 2.0]], dtype=torch.float64)
Y = torch.tensor([[0.2, 0.5], [-0.8, 1.1], [1.3, -0.4]], dtype=torch.float64)

Answer = dict[str, Any]
"""Numbers in lists, and text, by name."""


class Kind(NamedTuple):
    """A fitted thing."""

    model: Any
    write: Callable[[Any, Path], None]
    read: Callable[[Path], Any]
    answer: Callable[[Any], Answer]


def model_kinds() -> dict[str, Kind]:
    """Every kind by name; the same numbers in every run, up to rounding."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return {
            **_kinds(_laws(), answer_of_law),
            **_kinds(_flows(), answer_of_flow),
            **_kinds(_predictors(), answer_of_predictor),
            **_kinds(_regions(), answer_of_region),
            **_estimators(),
        }


def other_kinds() -> dict[str, Kind]:
    """What the others do not have: norms and records that are rarely met."""
    x, y = _rows(40)
    flow = _linear()
    one = lc.flows.LinearGaussianFlow(
        None, flow.bias[:1], flow.scale_tril[:1, :1], lc.base.uniform_interval()
    )
    laplace = lc.flows.LinearGaussianFlow(flow.weight, flow.bias, flow.scale_tril, lc.base.laplace(2))
    return {
        **_kinds(
            {"laplace": laplace, "aligned_record": lc.align(flow, x, y), "interval": one}, answer_of_flow
        ),
    }


def read_any(folder: Path) -> Any:
    """What a folder holds: a model, an estimator, or a model of the command line."""
    document = json.loads((folder / "model.json").read_text())
    if "table" in document:
        return load_model(folder)
    return lc.FlowRegressor.load(folder) if "estimator" in document else lc.load(folder)


def answer_of(model: Any) -> Answer:
    """What a model of any kind answers."""
    match model:
        case lc.RadiusLaw():
            return answer_of_law(model)
        case lc.ConditionalFlow():
            return answer_of_flow(model)
        case lc.Region():
            return answer_of_region(model)
        case lc.FlowRegressor():
            return answer_of_regressor(model)
        case Model():
            return answer_of_command_line(model)
        case _:
            return answer_of_predictor(model)


def _kinds(models: dict[str, Any], answer: Callable[[Any], Answer]) -> dict[str, Kind]:
    return {name: Kind(model, lc.save, lc.load, answer) for name, model in models.items()}


def _rows(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    x[:, 2] = torch.arange(n) % 3
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return x, x[:, :2] + (1 + 0.5 * x[:, 2:]) * noise


def _laws() -> dict[str, lc.RadiusLaw]:
    radii = 1.3 * lc.radius.Chi(2).sample((12,), torch.Generator().manual_seed(2))
    x, _ = _rows(60)
    many = 1.3 * lc.radius.Chi(2).sample((60,), torch.Generator().manual_seed(2)) * (1 + 0.3 * x[:, 2])
    kde = lc.GammaKDE.fit(radii)
    window = lc.StreamingRadius.fit(radii, reference=lc.radius.Chi(2), window=8)
    smooth = lc.ConditionalRadius.fit(many, x, reference=lc.radius.Chi(2), nodes=16)
    assert isinstance(smooth, SmoothRadius)
    grouped = GroupedRadius(
        lc.radius.Chi(2), [lc.ScaledRadius(lc.radius.Chi(2), 1.5), lc.radius.Chi(3)], torch.tensor([0, 1]), 2
    )
    return {
        "chi": lc.radius.Chi(2),
        "ball": lc.radius.BallRadius(3),
        "gamma": lc.radius.GammaRadius(2),
        "student": lc.radius.StudentRadius(2, 4.5),
        "scaled": lc.ScaledRadius(lc.radius.Chi(2), 1.5, 0.8),
        "empirical": lc.EmpiricalRadius(radii),
        "gamma_kde": kde,
        "spline": lc.SplineRadius.fit(radii),
        "stacked": lc.StackedRadius.fit(radii, reference=lc.radius.Chi(2), nodes=16),
        "mixture": MixtureRadius(
            [lc.radius.Chi(2), lc.ScaledRadius(lc.radius.Chi(2), 2.0)], torch.tensor([0.25, 0.75])
        ),
        "tightened": lc.tighten(kde, radii, max_lambda=0.5),
        "window": window,
        "grouped": grouped,
        "smooth": smooth.with_law(lc.ScaledRadius(lc.radius.Chi(2), 1.2)),
    }


def _linear() -> lc.flows.LinearGaussianFlow:
    return lc.flows.LinearGaussianFlow.fit(*_rows(20))


def _aligned() -> lc.recalibration.Aligned:
    x, y = _rows(40)
    fold, weights = torch.arange(40) % 4, torch.ones(40, dtype=torch.float64)
    ridge, _ = RidgeSmoother.cross_fit(x, y, fold, weights)
    near, _ = NeighbourSmoother.cross_fit(x[:12], y[:12], fold[:12], weights[:12])
    knots = torch.tensor([[-2.0, 0.0, 2.0], [-1.0, 0.5, 2.5]], dtype=torch.float64)
    maps = [
        AffineMap(torch.tensor([0.1, -0.2]), torch.tensor([[1.1, 0.2], [0.0, 0.9]])),
        FeatureAffineMap(ridge, near),
        CoordinateMap(knots, 1.1 * knots, torch.ones_like(knots)),
    ]
    return lc.recalibration.Aligned(_linear(), Chain(maps))


def _correlated() -> lc.recalibration.Aligned:
    """A flow whose correlation depends on a product of features."""
    x, y = _rows(200)
    y[:, 1] = y[:, 0] * x[:, 0] * x[:, 1] + 0.3 * y[:, 1]
    fold, weights = torch.arange(200) % 4, torch.ones(200, dtype=torch.float64)
    crossed, _ = RidgeSmoother.cross_fit(x, (x[:, :1] * x[:, 1:2]).expand(-1, 2) + 0.1 * y, fold, weights)
    plain = cross_fit_correlation(y, x, fold, weights).map
    return lc.recalibration.Aligned(_linear(), Chain([CorrelationMap(plain.slopes, crossed)]))


def _staged() -> lc.flows.LocationScale:
    """A flow above a stage of everything that a stage is made from."""
    x, y = _rows(24)
    numbers = torch.linspace(0.2, 1.0, 6, dtype=torch.float64)
    nodes = torch.tensor([[0, 2, 0, 0, 0], [1, 3, 2, 3, 4], [2, 4, 2, 3, 4]], dtype=torch.int32)
    trees = lc.flows.TreeEnsemble(
        nodes[0],
        numbers[:5] - 0.4,
        nodes[1],
        nodes[2],
        torch.stack([numbers[:5], -numbers[:5]], 1),
        torch.tensor([0], dtype=torch.int32),
        torch.tensor([0], dtype=torch.int32),
        numbers[:2],
        3,
        True,
    )
    kernel = KernelRegression(
        X.mean(0), X.std(0), x[:4], numbers.reshape(2, 3), numbers[:2], numbers[2:4], y[:4].T, numbers[4:]
    )
    spread = KernelSpread(kernel, 0.01 * torch.eye(4).double().repeat(2, 1, 1), numbers[:2])
    ridge, _ = RidgeSmoother.cross_fit(x, y, torch.arange(24) % 4, torch.ones(24, dtype=torch.float64))
    stage = lc.flows.Stage(
        SmootherStack([ridge, trees, kernel], numbers.reshape(3, 2), numbers[:2]),
        spread,
        *(y.amin(0), y.amax(0), 0.1 * y.std(0), 5 * y.std(0)),
        3,
    )
    residual = lc.flows.LinearGaussianFlow(
        0.1 * torch.ones(2, 7).double(), numbers[:2], torch.diag(numbers[2:4])
    )
    return lc.flows.LocationScale(residual, stage, torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7))


def _flows() -> dict[str, lc.ConditionalFlow]:
    x, y = _rows(24)
    flow, ones = _linear(), torch.ones(2, dtype=torch.float64)
    student = lc.RadialBase(lc.radius.StudentRadius(2, 4.5), 2, lc.norms.MaxNorm())
    return {
        "linear_gaussian": flow,
        "convex_potential": lc.flows.ConvexPotentialFlow(2, 3, hidden=3, layers=1),
        "autoregressive": lc.flows.AutoregressiveFlow(2, 3, flows=1, hidden=4, layers=1, bins=3),
        "averaged": lc.flows.AveragedFlow(
            [lc.flows.AutoregressiveFlow(2, 3, flows=1, hidden=4, layers=1, bins=3) for _ in range(2)]
        ),
        "weighted": lc.flows.WeightedFlow(
            [flow, lc.flows.AutoregressiveFlow(2, 3, flows=1, hidden=4, layers=1, bins=3).double()],
            torch.tensor([0.25, 0.75], dtype=torch.float64),
        ),
        "flow_matching": lc.flows.FlowMatching(2, 3, hidden=3, layers=2, steps=2),
        "tarflow": lc.flows.TarFlow(
            (1, 2, 1), patch_size=1, channels=4, num_blocks=2, layers_per_block=1, head_dim=2
        ),
        "standardized": lc.flows.Standardized(flow, ones, 2 * ones, X.mean(0), X.std(0)),
        "supported": lc.flows.Supported(flow, ["interval(-3, 5)", "rounded(0.5, -1)"]),
        "chain_flow": lc.outputs.ChainFlow(_chain()),
        "location_scale": _staged(),
        "other_base": lc.flows.LinearGaussianFlow(flow.weight, flow.bias, flow.scale_tril, student),
        "aligned": _aligned(),
        "correlated": _correlated(),
        "recalibrated": lc.recalibrate(flow, x, y, fit=lc.ScaledRadius.fit),
        "autocalibrated": lc.autocalibrate(flow, *_rows(60), folds=2),
        "quantiles": _quantiles(),
        "samples": lc.autocalibrate(
            lc.adapters.SampleFlow(0.1, 1.2, ones / 100, ones / 10, base=lc.base.student_t(2, 6.0)),
            _members(60),
            _rows(60)[1],
            folds=2,
            rungs=["aligned, radial by x"],
        ),
    }


def _quantiles() -> lc.ConditionalFlow:
    """A flow of quantile forecasts with all kinds of tails but one, whose dependence was learnt."""
    flow = lc.adapters.QuantileFlow(
        torch.tensor([0.1, 0.5, 0.9, 0.2, 0.7], dtype=torch.float64),
        [3, 2],
        tails=("pareto", "exponential"),
        shapes=(0.2, 0.0),
    )
    return lc.autocalibrate(flow, _forecasts(60, 5), _rows(60)[1], folds=2, rungs=["aligned, radial by x"])


def _members(n: int) -> Tensor:
    """Ensembles (n, 5, 2)."""
    steps = torch.arange(n * 10, dtype=torch.float64).reshape(n, 5, 2)
    return torch.sin(1.7 * steps) + 0.5 * torch.cos(0.3 * steps.flip(1))


def _forecasts(n: int, width: int) -> Tensor:
    """Quantiles (n, width), which ascend."""
    start = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    return start + (1.5 + start**2) * torch.linspace(-1, 1, width, dtype=torch.float64)


def _predictors() -> dict[str, Any]:
    x, y = _rows(24)
    flow = _linear()
    options: dict[str, Any] = {"samples": 20, "generator": torch.Generator().manual_seed(3)}
    return {
        "ensemble": lc.recalibration.FlowEnsemble(
            [flow, lc.recalibrate(flow, x, y, fit=lc.ScaledRadius.fit)]
        ),
        "grid": lc.outputs.GridModel(
            lc.flows.Supported(flow, ["real", "rounded(0.1, -2)"]), ["real", "rounded(0.1, -2)"], 32
        ),
        "chain": _chain(),
        "prerank": lc.recalibrate_prerank(flow, x, y, method="resampling", **options),
        "prerank_importance": lc.recalibrate_prerank(flow, x, y, **options),
        **{
            f"prerank_{name}": lc.recalibrate_prerank(flow, x, y, prerank=name, **options)
            for name in ("mean", "variance", "dependence")
        },
    }


def _chain() -> lc.outputs.ChainModel:
    x, y = _rows(60)
    y[:, 0] = torch.where(y[:, 0] < 0.3, 0.2, y[:, 0])

    def make_flow(features: Tensor | None, line: Tensor) -> lc.flows.LinearGaussianFlow:
        return lc.flows.LinearGaussianFlow.fit(features, line)

    kinds = ["interval(-9, 9) + 0.2", "rounded(0.1)"]
    y[:, 1] = (10 * y[:, 1]).round() / 10
    return lc.outputs.fit_mixed(make_flow, x, y, kinds, calibration=(x, y), calibrate=_scale)


def _scale(flow: lc.ConditionalFlow, x: Any, y: Any) -> lc.ConditionalFlow:
    return lc.recalibrate(flow, x, y, fit=lc.ScaledRadius.fit)


def _regions() -> dict[str, lc.Region]:
    x, y = _rows(24)
    flow, one = _linear(), lc.flows.LinearGaussianFlow.fit(x, y[:, :1])
    regions = {
        score: lc.conformal_region(flow, x, y, coverage=[0.5, 0.9], score=score)
        for score in ("latent", "density", "hpd", "pcp")
    }
    regions["dcp"] = lc.conformal_region(one, x, y[:, :1], coverage=0.8, score="dcp")
    return {f"region_{name}": region for name, region in regions.items()}


def _estimators() -> dict[str, Kind]:
    x, y = _rows(60)
    features, outputs = (
        pd.DataFrame(x.numpy(), columns=list("abc")),
        pd.DataFrame(y.numpy(), columns=["u", "v"]),
    )
    linear = lc.FlowRegressor("linear_gaussian", recalibration="scaled", random_state=0, draws=8)
    deep = lc.FlowRegressor(
        "convex_potential", flow_options={"hidden": 3, "layers": 1}, max_epochs=1, random_state=0, draws=8
    )
    linear.fit(features, outputs)
    counts = pd.DataFrame(
        {"u": y[:, 0].abs().ceil().numpy(), "v": (2 * y[:, 1]).round().clamp(min=0).numpy()}
    )
    kinds = {"u": "count", "v": "rounded(1, 1) + 0"}
    counted = clone(linear).set_params(outputs=kinds).fit(features, counts)
    deep.set_params(recalibration=None).fit(x.numpy(), y.numpy())
    table = {"a": x[:, 0].tolist(), "city": ["Bari", "Lyon", "Bonn"] * 20, **outputs}
    rules = lc.tables.Preprocessing.fit(table, targets=["u", "v"])
    encoded = rules.transform(table, targets=True)
    command_line = Model(clone(linear), rules, {"data": {"rows": 60}, "quality": {"nll": 3.25}})
    command_line.estimator.fit(_features(rules, encoded.x), outputs)
    return {
        "counted_regressor": Kind(counted, lc.FlowRegressor.save, lc.FlowRegressor.load, answer_of_regressor),
        "regressor": Kind(linear, lc.FlowRegressor.save, lc.FlowRegressor.load, answer_of_regressor),
        "deep_regressor": Kind(deep, lc.FlowRegressor.save, lc.FlowRegressor.load, answer_of_regressor),
        "command_line": Kind(command_line, write_model, load_model, answer_of_command_line),
    }


def _features(rules: lc.tables.Preprocessing, x: torch.Tensor) -> pd.DataFrame:
    return pd.DataFrame(x.double().numpy(), columns=list(rules.feature_names))


def _numbers(**values: Any) -> Answer:
    return {name: torch.as_tensor(value).tolist() for name, value in values.items()}


def _made(model: Any) -> Answer:
    """What is printed of how a model was made."""
    return {"made": str(getattr(model, "recalibration", None))}


@torch.no_grad()
def answer_of_law(law: lc.RadiusLaw) -> Answer:
    """Distribution function and density of a law."""
    at_x = law.given(X[:1].expand(len(RADII), -1))
    density = {} if isinstance(law, lc.EmpiricalRadius) else {"log_prob": at_x.log_prob(RADII)}
    return _numbers(cdf=at_x.cdf(RADII), **density) | {"upper": str(law.upper)}


@torch.no_grad()
def answer_of_flow(flow: lc.ConditionalFlow) -> Answer:
    """Log densities, a decoded point, and the latent law before recalibration."""
    x = torch.zeros(3, 1) if isinstance(flow, lc.flows.TarFlow) else X
    if isinstance(part := getattr(flow, "flow", flow), lc.adapters.QuantileFlow):
        x = _forecasts(3, len(part.levels))
    if isinstance(part, lc.adapters.SampleFlow):
        x = part.read_features(_members(3))
    x, y = (values.to(tensor_options(flow)[0]) for values in (x, Y[:, : flow.base.dim]))
    answer = _numbers(log_prob=flow(x).log_prob(y), decoded=flow.decode(y, x))
    if flow.recalibration is not None:
        answer |= _numbers(terms=torch.stack([*lc.nll_decomposition(flow, x, y)]))
    return answer | _made(flow)


@torch.no_grad()
def answer_of_predictor(model: Any) -> Answer:
    """Log densities of an ensemble or a pre-rank model, and a few draws."""
    pred = model(X)
    draws = pred.sample((4,), torch.Generator().manual_seed(4))
    return _numbers(log_prob=pred.log_prob(Y), draws=draws) | _made(model)


@torch.no_grad()
def answer_of_region(region: lc.Region) -> Answer:
    """Thresholds, and which points are inside."""
    y = Y if isinstance(region.score, lc.conformal.DCPScore) is False else Y[:, :1]
    scores = region.score(region.model, X, y)
    return _numbers(threshold=region.threshold, scores=scores, inside=region.contains(y, X)) | {
        "coverage": str(region.coverage),
        "rows": len(region.fingerprint.hashes),
    }


_LATER = {
    "order": None,
    "budget": "balanced",
    "ensemble": None,
    "outputs": "real",
}  # parameters that files of before lack, with what they mean there


def answer_of_regressor(estimator: lc.FlowRegressor) -> Answer:
    """Means, log densities, regions, names and parameters of an estimator."""
    names = getattr(estimator, "feature_names_in_", None)
    x = X.numpy() if names is None else pd.DataFrame(X.numpy(), columns=list(names))
    y = Y if set(estimator.outputs_) == {"real"} else Y.round().clamp(min=0)
    answer = _numbers(
        predict=np.array(estimator.predict(x)),
        log_prob=estimator.log_prob(x, y.numpy()),
        draws=estimator.sample(x, 2),
    )
    if len(estimator._norms):
        answer |= _numbers(pvalue=estimator.anomaly_pvalue(x, y.numpy()))
        answer |= _numbers(before=estimator.base_model_(X).log_prob(y).detach())
    return answer | {
        "parameters": str(
            {k: v for k, v in estimator.get_params().items() if k not in _LATER or v != _LATER[k]}
        ),
        "names": str([names, estimator.output_names_, estimator.n_features_in_, estimator.n_outputs_]),
        "log": str(estimator.training_log_),
        **_made(estimator.model_),
    }


def answer_of_command_line(model: Model) -> Answer:
    """What the estimator says of rows of a table, and the card."""
    x = model.rules.transform({"a": X[:, 0].tolist(), "city": ["Bari", "Bonn", "Lyon"]}).x
    answer = _numbers(log_prob=model.estimator.log_prob(_features(model.rules, x), Y.numpy()), x=x)
    return answer | {
        "facts": str(dict(model.facts)),
        "rules": str(model.rules),
        "targets": str(model.targets),
    }
