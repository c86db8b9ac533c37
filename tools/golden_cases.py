"""Results of the whole library on fixed inputs, to compare two versions of the code on one machine.

    python tools/golden_cases.py write before.json     # with one version on the path
    python tools/golden_cases.py write after.json      # with another
    python tools/golden_cases.py compare before.json after.json

Every case is a few float64 numbers: log densities, draws with a seed, regions, p-values, scores. Public names
are found wherever they are in the package, so that a case does not depend on the module of a name.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import latentcal as lc

CASES: dict[str, Callable[[], Any]] = {}
N, TOLERANCE = 200, 1e-12


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a case under its name."""
    CASES[function.__name__] = function
    return function


def find(name: str) -> Any:
    """A public name of the package, in any module."""
    for place in (
        lc,
        *(
            getattr(lc, space, None)
            for space in ("base", "radius", "conformal", "events", "metrics", "flows")
        ),
    ):
        if hasattr(place, name):
            return getattr(place, name)
    for path in ("data", "splits", "toy", "recalibration"):
        module = getattr(lc, path, None)
        if module is not None and hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"latentcal has no {name}.")


def seeded(seed: int = 0) -> torch.Generator:
    """A separate generator with a seed."""
    return torch.Generator().manual_seed(seed)


def make_rows(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor]:
    """Features (n, 2) and outputs (n, 2) with a scale that depends on x."""
    generator = seeded(seed)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    mixing = torch.tensor([[1.4, 0.0], [0.5, 0.8]], dtype=torch.float64)
    return x, x @ torch.eye(2, dtype=torch.float64) + (noise * torch.exp(0.3 * x[:, :1])) @ mixing.T


def make_flow() -> Any:
    """A linear Gaussian flow that is too narrow for the rows."""
    double = {"dtype": torch.float64}
    return lc.flows.LinearGaussianFlow(
        torch.eye(2, **double), torch.zeros(2, **double), 0.9 * torch.eye(2, **double)
    )


X, Y = make_rows()
X_TEST, Y_TEST = make_rows(1, 40)
RADII = torch.linspace(0.05, 4.0, 60, dtype=torch.float64) ** 1.2
GRID = torch.linspace(0.01, 9.0, 25, dtype=torch.float64)
LEVELS = torch.linspace(0.001, 0.999, 15, dtype=torch.float64)


def describe_law(law: Any) -> list[Tensor]:
    """Values of a law on a grid, and draws."""
    draws = law.sample((5,), generator=seeded())
    return [law.cdf(GRID), law.icdf(LEVELS), draws, law.log_prob(GRID), law.log_sf(GRID)]


def describe_model(model: Any) -> list[Tensor]:
    """Log densities, PIT values and draws of a model."""
    pred = model(X_TEST)
    torch.manual_seed(0)
    return [pred.log_prob(Y_TEST), lc.latent_pit(pred, Y_TEST), pred.sample((2,))[:, :5]]


for _name in ("GammaKDE", "SplineRadius", "ScaledRadius", "StackedRadius"):
    CASES[f"law {_name}"] = lambda name=_name: describe_law(find(name).fit(RADII, reference=find("Chi")(2)))
for _name, _arguments in {
    "Chi": (3,),
    "BallRadius": (2,),
    "GammaRadius": (2,),
    "StudentRadius": (2, 3.0),
}.items():
    CASES[f"law {_name}"] = lambda name=_name, arguments=_arguments: describe_law(find(name)(*arguments))


@case
def law_empirical() -> Any:
    law = find("EmpiricalRadius")(RADII)
    return [law.cdf(GRID), law.icdf(LEVELS)]


@case
def law_streaming() -> Any:
    flow = make_flow().with_base(lc.RadialBase(find("StreamingRadius")(find("Chi")(2), half_life=50.0), 2))
    for start in range(0, N, 50):
        flow.update(X[start : start + 50], Y[start : start + 50])
    return describe_model(flow)


@case
def law_tightened() -> Any:
    law = find("StackedRadius").fit(RADII, reference=find("Chi")(2))
    held = find("tighten")(law, RADII, max_lambda=1.0)
    kept = find("guarantee")(held, RADII)
    return [*describe_law(held), kept.lambda_, kept.epsilon]


@case
def points_needed() -> Any:
    return [find("points_needed")(p) for p in (0.05, 0.02, 0.01)]


for _name, _base in {
    "standard_normal": (3,),
    "student_t": (3, 4.0),
    "laplace": (3,),
    "uniform_ball": (3,),
    "uniform_cube": (3,),
}.items():

    def _base_case(name: str = _name, arguments: tuple[Any, ...] = _base) -> Any:
        base = find(name)(*arguments)
        z = base.sample((6,), generator=seeded())
        return [z, base.log_prob(z.double())]

    CASES[f"base {_name}"] = _base_case


@case
def transport() -> Any:
    model = lc.recalibrate(make_flow(), X, Y)
    moved = find("radial_transport")(make_flow().base, model.base)
    return list(moved(torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(10, 2)))


@case
def recalibrate() -> Any:
    return describe_model(lc.recalibrate(make_flow(), X, Y))


@case
def recalibrate_gamma_kde() -> Any:
    return describe_model(lc.recalibrate(make_flow(), X, Y, fit=find("GammaKDE").fit))


@case
def recalibrate_weighted() -> Any:
    return describe_model(
        lc.recalibrate(make_flow(), X, Y, weights=torch.linspace(0.5, 2, N, dtype=torch.float64))
    )


@case
def recalibrate_time_order() -> Any:
    return describe_model(lc.recalibrate(make_flow(), X, Y, order="time"))


@case
def recalibrate_conditional() -> Any:
    return describe_model(lc.recalibrate(make_flow(), X, Y, fit=find("ConditionalRadius").fit))


@case
def align() -> Any:
    return describe_model(lc.align(make_flow(), X, Y))


@case
def align_marginals() -> Any:
    return describe_model(lc.align(make_flow(), X, Y, maps=("affine", "marginals")))


@case
def autocalibrate() -> Any:
    model = lc.autocalibrate(make_flow(), X, Y)
    return describe_model(model)


@case
def cross_calibrate() -> Any:
    return describe_model(lc.cross_calibrate(lc.flows.LinearGaussianFlow.fit, X, Y))


@case
def recalibrate_prerank() -> Any:
    model = lc.recalibrate_prerank(make_flow(), X, Y, generator=seeded())
    return [model(X_TEST[:5]).log_prob(Y_TEST[:5])]


@case
def nll_decomposition() -> Any:
    return list(lc.nll_decomposition(lc.recalibrate(make_flow(), X, Y), X_TEST, Y_TEST))


@case
def latent_norms() -> Any:
    return lc.latent_norms(make_flow(), X, Y)[:20]


@case
def pit_values() -> Any:
    pred = make_flow()(X_TEST)
    return [
        lc.latent_pit(pred, Y_TEST),
        lc.hdr_pit(pred, Y_TEST, generator=seeded()),
        find("marginal_pit")(pred, Y_TEST, generator=seeded()),
        find("prerank_pit")(pred, Y_TEST, lc.pit.negative_log_density, generator=seeded()),
    ]


for _name in ("latent", "hpd", "density", "pcp"):

    def _region_case(name: str = _name) -> Any:
        region = lc.conformal_region(make_flow(), X, Y, coverage=0.9, score=name, generator=seeded())
        inside = region.contains(Y_TEST, X_TEST)
        return [region.scores.sort().values[::20], inside]

    CASES[f"region {_name}"] = _region_case


@case
def region_of_one_output() -> Any:
    flow = lc.flows.LinearGaussianFlow.fit(X, Y[:, :1])
    region = lc.conformal_region(flow, X, Y[:, :1], score="dcp", generator=seeded())
    return [region.scores.sort().values[::20], region.contains(Y_TEST[:, :1], X_TEST)]


@case
def region_geometry() -> Any:
    region = lc.conformal_region(make_flow(), X, Y, coverage=0.9)
    volume = region.volume(X_TEST[:3], generator=seeded())
    return [volume.value if hasattr(volume, "value") else volume, *region.bounds(X_TEST[:3])]


@case
def anomaly() -> Any:
    return find("anomaly_pvalue")(make_flow(), X_TEST, Y_TEST, calibration=(X, Y))


@case
def events() -> Any:
    box = find("Box")([-1.0, -1.0], [1.0, math.inf])
    side = find("HalfSpace")([1.0, 2.0], 0.5)
    model = lc.recalibrate(make_flow(), X, Y)
    return [
        *(
            lc.probability(model, X_TEST[:4], event, generator=seeded()).value
            for event in (box, side, box & ~side)
        ),
        find("expected_utility")(
            model, X_TEST[:4], {"a": find("Payoff")(box, 2.0, -1.0), "b": 0.1}, generator=seeded()
        ).value,
    ]


@case
def scores() -> Any:
    samples = torch.randn(20, 40, 2, generator=seeded(), dtype=torch.float64)
    return [
        lc.metrics.energy_score(samples, Y_TEST),
        lc.metrics.variogram_score(samples, Y_TEST),
        lc.metrics.bits_per_dim(torch.tensor([3.0, 4.0]), 2),
    ]


@case
def calibration_metrics() -> Any:
    u = torch.rand(300, generator=seeded(), dtype=torch.float64) ** 1.2
    test, serial = lc.metrics.uniformity_test(u), lc.metrics.autocorrelation_test(u)
    curve = lc.metrics.reliability_curve(u)
    return [
        lc.metrics.calibration_error(u),
        test.p_value,
        serial.p_value,
        curve.frequency[::20],
        curve.simultaneous_lower[::20],
        curve.pointwise_upper[::20],
    ]


@case
def diagnosis() -> Any:
    report = lc.diagnose(lc.recalibrate(make_flow(), X, Y), X_TEST, Y_TEST, samples=20, permutations=399)
    return [
        *(finding.p_value for finding in report.findings),
        *(measure.value for measure in report.measured.numbers),
        *(measure.high for measure in report.measured.numbers),
    ]


@case
def conditional_calibration() -> Any:
    found = lc.conditional_calibration(make_flow(), X, Y, permutations=399, generator=seeded())
    return [finding.p_value for finding in found.findings]


@case
def density_ratio() -> Any:
    return find("density_ratio")(X, X[:100] + 0.5, generator=seeded())[::10]


@case
def linear_gaussian_fit() -> Any:
    flow = lc.flows.LinearGaussianFlow.fit(X, Y)
    return [flow(X_TEST).log_prob(Y_TEST)]


@case
def regressor() -> Any:
    estimator = lc.FlowRegressor("linear_gaussian", random_state=0).fit(X.numpy(), Y.numpy())
    test = X_TEST.numpy()
    return [
        torch.as_tensor(part)
        for part in (
            estimator.predict(test),
            estimator.predict_quantile(test, [0.05, 0.95]),
            estimator.log_prob(test, Y_TEST.numpy()),
            estimator.sample(test[:3], 2),
        )
    ]


@case
def saved_and_loaded() -> Any:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        lc.save(lc.recalibrate(make_flow(), X, Y), f"{folder}/model")
        return describe_model(lc.load(f"{folder}/model"))


@case
def convex_potential_flow() -> Any:
    torch.manual_seed(0)
    flow = lc.flows.ConvexPotentialFlow(2, 2).double()
    return [flow(X_TEST[:5]).log_prob(Y_TEST[:5]), *flow.encode(Y_TEST[:5], X_TEST[:5])]


@case
def toy() -> Any:
    place = getattr(lc, "toy", None) or lc.toy
    x, y = place.heteroscedastic_linear().sample(10, generator=seeded())
    return [x, y]


def flatten(value: Any) -> list[float]:
    """All numbers of a case."""
    if isinstance(value, Tensor):
        return [float(number) for number in value.detach().double().reshape(-1)]
    if isinstance(value, list | tuple):
        return [number for part in value for number in flatten(part)]
    return [float(value)]


def compute_all() -> dict[str, list[float] | str]:
    """The numbers of every case, or the text of its error."""
    torch.set_num_threads(1)
    answers: dict[str, list[float] | str] = {}
    for name, function in CASES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            try:
                answers[name] = flatten(function())
            except (
                Exception
            ) as error:  # a case that cannot be computed is a result and does not stop the others
                answers[name] = f"{type(error).__name__}: {error}"
    return answers


def largest_difference(before: list[float], after: list[float]) -> float:
    """Largest |a - b| / max(1, |a|); infinite if only one is finite or the lengths differ."""
    if len(before) != len(after):
        return math.inf
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        worst = max(worst, abs(a - b) / max(1.0, abs(a)) if math.isfinite(a - b) else math.inf)
    return worst


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the cases that differ and return their number."""
    wrong = 0
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name, "absent"), after.get(name, "absent")
        texts = [part for part in (a, b) if isinstance(part, str)]
        difference = math.inf if texts else largest_difference(a, b)
        if difference > TOLERANCE:
            wrong += 1
            print(f"{name:<28} {difference:.1e} {' | '.join(texts)[:150]}")
    print(f"{len(before)} cases, {wrong} differ by more than {TOLERANCE:g}")
    return wrong


def main() -> int:
    """Run a command."""
    match sys.argv[1:]:
        case ["write", path]:
            answers = compute_all()
            Path(path).write_text(json.dumps(answers, indent=0), encoding="utf-8")
            failed = {name: text for name, text in answers.items() if isinstance(text, str)}
            print(f"{len(answers)} cases, {sum(map(len, answers.values()))} numbers, {len(failed)} failed")
            for name, text in failed.items():
                print(f"  {name}: {text[:150]}")
            return len(failed)
        case ["compare", first, second]:
            return compare(*(json.loads(Path(path).read_text(encoding="utf-8")) for path in (first, second)))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
