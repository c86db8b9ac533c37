"""Calls of laws, bases, maps between them, guarantees and metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import latentcal as lc
from outcomes import Call
from strategies import Draw, Seed

from .table import FITS, GRID, entry


def radii(draw: Draw, n: int) -> Any:
    """Norms (n,); negative ones and none that is positive must be refused."""
    numbers = np.abs(draw.sized(np.hypot(draw.noise(n), draw.noise(n))))
    if n and draw.chance(4):
        numbers[0] = -1.0
    given = draw.wrap(numbers, "radii")
    if given.numbers is not None and n:
        if (given.numbers < 0).any():
            draw.odd("a radius is negative")
        if not (given.numbers > 0).any():
            draw.odd("no radius is positive")
    return given


def _fitting(name: str, effort: int, fewest: int) -> None:
    @entry(f"{name}.fit", effort)
    def make(draw: Draw) -> Call:
        n = draw.rows(fewest, 40)
        arguments: dict[str, Any] = {"radii": radii(draw, n)}
        if name != "empirical":
            arguments["weights"] = draw.weights(n)
        if name == "conditional":
            arguments["x"] = draw.matrix("x", n, 2)
        reference = draw.choice((lc.radius.Chi(2), lc.radius.StudentRadius(2, 3.0), lc.radius.GammaRadius(3)))

        def fit(radii: Any, **arguments: Any) -> Any:
            law = FITS[name](radii, reference=reference, **arguments)
            law = law.given(torch.zeros(1, 2).double()) if name == "conditional" else law
            levels = torch.tensor([0.01, 0.5, 0.9], dtype=torch.float64)
            return law.cdf(GRID), law.icdf(levels)

        return Call(
            fit,
            arguments,
            (len(GRID),),
            answers=n >= fewest,
            infinite=name == "empirical",
            repeats=name != "spline",
        )


for _name, _effort, _fewest in (
    ("scaled", 5, 3),
    ("empirical", 1, 2),
    ("gamma_kde", 10, 3),
    ("stacked", 30, 3),
    ("spline", 200, 20),
    ("streaming", 8, 3),
    ("conditional", 100, 30),
):
    _fitting(_name, _effort, _fewest)


@functools.cache
def laws() -> dict[str, lc.RadiusLaw]:
    norms = torch.tensor(np.hypot(*np.random.default_rng(3).standard_normal((2, 50))))
    made = {
        name: fit(norms, reference=lc.radius.Chi(2)) for name, fit in FITS.items() if name != "conditional"
    }
    return {
        **made,
        "chi": lc.radius.Chi(2),
        "chi of one": lc.radius.Chi(1),
        "chi of many": lc.radius.Chi(3000),
        "ball": lc.radius.BallRadius(3),
        "gamma": lc.radius.GammaRadius(2),
        "student": lc.radius.StudentRadius(3, 2.5),
        "power": lc.ScaledRadius(lc.radius.Chi(1), 2.0, 1.5),
        "tightened": lc.tighten(made["scaled"], norms, max_lambda=0.5),
    }


def law_of(draw: Draw, *, density: bool) -> lc.RadiusLaw:
    return laws()[draw.choice([name for name in laws() if not density or name != "empirical"])]


def _of_law(name: str, *, infinite: bool, density: bool = False) -> None:
    @entry(f"RadiusLaw.{name}", 2)
    def make(draw: Draw) -> Call:
        law = law_of(draw, density=density)
        numbers = draw.sized(np.abs(draw.noise(*draw.choice(((), (3,), (0,), (2, 3))))))
        r = draw.wrap(numbers, "r", infinite=True)
        return Call(
            lambda r: getattr(law, name)(r),
            {"r": r},
            None if r.numbers is None else r.numbers.shape,
            answers=True,
            infinite=infinite,
        )


_of_law("log_prob", infinite=True, density=True)
_of_law("cdf", infinite=False)
_of_law("log_cdf", infinite=True)
_of_law("log_sf", infinite=True)


@entry("RadiusLaw.log_radial_density", 2)
def _(draw: Draw) -> Call:
    law = law_of(draw, density=True)
    r = draw.wrap(np.abs(draw.sized(draw.noise(3))), "r", infinite=True)
    return Call(
        lambda r: law.log_radial_density(r, 3 if law is laws()["ball"] else 2),
        {"r": r},
        (3,),
        answers=True,
        infinite=True,
    )


@entry("RadiusLaw.icdf", 3)
def _(draw: Draw) -> Call:
    law = law_of(draw, density=False)
    numbers = np.clip(np.abs(draw.noise(*draw.choice(((), (4,), (0,), (2, 2))))), 0, 1)
    if numbers.size and draw.chance(10):
        numbers = numbers + draw.choice((0.6, -1.1))
    u = draw.wrap(numbers, "u")
    if u.numbers is not None and not ((u.numbers >= 0) & (u.numbers <= 1)).all():
        draw.odd("u is no probability")
    shape = None if u.numbers is None else u.numbers.shape
    return Call(lambda u: law.icdf(u), {"u": u}, shape, answers=True, infinite=True, names=("probabilities",))


def _log_quantile(name: str) -> None:
    @entry(f"RadiusLaw.{name}", 3)
    def make(draw: Draw) -> Call:
        law = law_of(draw, density=False)
        numbers = -np.abs(draw.sized(draw.noise(3)))
        if draw.chance(8):
            numbers = np.abs(numbers) + 0.1
        v = draw.wrap(numbers, "v", infinite=True)
        if v.numbers is not None and not (v.numbers <= 0).all():
            draw.odd("v is no log-probability")
        return Call(
            lambda v: getattr(law, name)(v),
            {"v": v},
            (3,),
            answers=True,
            infinite=True,
            names=("log-probabilities", "probabilities"),
        )


_log_quantile("icdf_log_cdf")
_log_quantile("icdf_log_sf")


@entry("RadiusLaw.sample", 3)
def _(draw: Draw) -> Call:
    law, shape = law_of(draw, density=True), draw.shape()
    method = draw.choice(("sample", "rsample"))
    return Call(
        lambda shape, source: getattr(law, method)(shape, source),
        {"shape": shape, "source": Seed()},
        None if draw.refused else tuple(shape),
        answers=True,
    )


@entry("StreamingRadius.update", 4)
def _(draw: Draw) -> Call:
    given = radii(draw, draw.rows(5))

    def update(radii: Any) -> Any:
        law = lc.StreamingRadius.fit(torch.linspace(0.1, 3, 30), reference=lc.radius.Chi(2))
        law.update(radii)
        return law.cdf(GRID)

    draw.refused[:] = [why for why in draw.refused if why != "no radius is positive"]
    return Call(update, {"radii": given}, (len(GRID),), answers=True)


BASES = (
    lc.base.standard_normal(2),
    lc.base.uniform_ball(2),
    lc.base.uniform_cube(2),
    lc.base.laplace(2),
    lc.base.student_t(2, 4.0),
    lc.base.standard_normal(2).with_radius(lc.ScaledRadius(lc.radius.Chi(2), 2.0, 1.2)),
)


@entry("RadialBase.log_prob")
def _(draw: Draw) -> Call:
    base, n = draw.choice(BASES), draw.rows(4)
    z = draw.matrix("z", n, 2, None, ("wider", "number"), infinite=True)
    return Call(base.log_prob, {"z": z}, (n,), answers=True, infinite=True)


@entry("RadialBase.norm_of")
def _(draw: Draw) -> Call:
    base, n = draw.choice(BASES), draw.rows(4)
    z = draw.matrix("z", n, 2, None, ("wider", "number"), infinite=True)
    return Call(base.norm_of, {"z": z}, (n,), answers=True, infinite=True)


@entry("RadialBase.sample", 2)
def _(draw: Draw) -> Call:
    base, shape = draw.choice(BASES), draw.shape()
    method = draw.choice(("sample", "rsample"))
    return Call(
        lambda shape, source: getattr(base, method)(shape, source),
        {"shape": shape, "source": Seed()},
        None if draw.refused else (*shape, 2),
        answers=True,
    )


@entry("radial_transport", 3)
def _(draw: Draw) -> Call:
    normal = lc.base.standard_normal(2)
    other = normal.with_radius(
        draw.choice([laws()[n] for n in ("stacked", "scaled", "gamma_kde", "student")])
    )
    transport = lc.radial_transport(normal, other)
    method = draw.choice(("forward", "inverse", "log_abs_det"))
    n = draw.rows(4)
    z = draw.matrix("z", n, 2, None, ("wider", "number"), infinite=True)
    shape = (n,) if method == "log_abs_det" else (n, 2)
    return Call(lambda z: getattr(transport, method)(z), {"z": z}, shape, answers=True, infinite=True)


@entry("guarantee", 2)
def _(draw: Draw) -> Call:
    law, n = law_of(draw, density=False), draw.rows(10)
    law = lc.radius.Chi(2) if law.upper < 2 else law
    arguments = {"radii": radii(draw, n), "weights": draw.weights(n)}
    return Call(
        lambda radii, weights: (
            found := lc.guarantee(law, radii, weights=weights),
            found.epsilon,
            str(found),
        )[:2],
        arguments,
        answers=n > 1,
    )


@entry("tighten", 10)
def _(draw: Draw) -> Call:
    n = draw.rows(10)
    most = draw.choice((0.5, 1.0, 3.0)) if draw.chance(85) else draw.choice((-1.0, float("nan"), "a"))
    if not isinstance(most, float) or not most >= 0:
        draw.odd(f"max_lambda = {most}")
    return Call(
        lambda radii, max_lambda: lc.tighten(lc.radius.Chi(2), radii, max_lambda=max_lambda).cdf(GRID),
        {"radii": radii(draw, n), "max_lambda": most},
        (len(GRID),),
        answers=n > 1,
    )


@entry("points_needed", 10)
def _(draw: Draw) -> Call:
    arguments = {
        "precision": draw.share("precision", (0.02, 0.1, 0.5)),
        "coverage": draw.share("coverage", (0.5, 0.9, 0.99)),
        "confidence": draw.share("confidence", (0.5, 0.95)),
    }
    return Call(lc.points_needed, arguments, (), answers=True)


# Metrics ------------------------------------------------------------------------------------------------


def pits(draw: Draw, *shape: int) -> Any:
    numbers = np.clip(0.5 + 0.3 * draw.noise(*shape), 0, 1)
    if numbers.size and draw.chance(5):
        numbers = numbers + draw.choice((1.5, -1.5))
    u = draw.wrap(numbers, "u")
    if u.numbers is not None and not ((u.numbers >= 0) & (u.numbers <= 1)).all():
        draw.odd("u is no probability")
    return u


def _of_pits(name: str, function: Callable[..., Any], fewest: int = 1, **options: Any) -> None:
    @entry(f"metrics.{name}", 3)
    def make(draw: Draw) -> Call:
        n = draw.rows(fewest, 30)
        made = {key: draw_option(draw) for key, draw_option in options.items()}
        return Call(
            function,
            {"u": pits(draw, n), **made},
            answers=n >= fewest,
            infinite=True,
            names=("PIT values",),
        )


_of_pits("calibration_error", lc.metrics.calibration_error, p=lambda draw: draw.choice((1, 2, np.inf)))
_of_pits(
    "empirical_coverage",
    lc.metrics.empirical_coverage,
    levels=lambda draw: draw.wrap(np.array([0.1, 0.5]), "levels"),
)
_of_pits(
    "reliability_curve",
    lambda u, levels, confidence: [
        (curve := lc.metrics.reliability_curve(u, levels, confidence)).frequency,
        curve.simultaneous_upper,
        curve.pointwise_lower,
    ],
    levels=lambda draw: draw.wrap(np.array([0.1, 0.5]), "levels"),
    confidence=lambda draw: draw.share("confidence", (0.5, 0.95)),
)
_of_pits(
    "pit_density",
    lc.metrics.pit_density,
    bins=lambda draw: draw.whole("bins", 1, (1, 5, 20)),
    confidence=lambda draw: draw.share("confidence", (0.5, 0.95)),
)
_of_pits(
    "uniformity_test", lc.metrics.uniformity_test, statistic=lambda draw: draw.choice(("ks", "cvm", "ad"))
)


@entry("metrics.autocorrelation_test", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(30, 60)
    lags = draw.whole("lags", 1, (1, 4), optional=True)
    return Call(
        lc.metrics.autocorrelation_test,
        {"u": pits(draw, n), "lags": lags},
        answers=n >= 30,
        names=("PIT values",),
    )


@entry("metrics.drift_test", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(30, 60)
    return Call(lc.metrics.drift_test, {"u": pits(draw, n)}, answers=n >= 30, names=("PIT values",))


@entry("metrics.neighbour_test", 2)
def _(draw: Draw) -> Call:
    n = draw.rows(30, 60)
    u = draw.wrap(draw.sized(draw.noise(n)), "u", infinite=True)
    z = draw.matrix("z", n, 3, wrong=("flat", "deep", "longer", "number"), infinite=True)
    return Call(lc.metrics.neighbour_test, {"u": u, "z": z}, answers=n >= 30)


@entry("metrics.energy_score")
def _(draw: Draw) -> Call:
    n = draw.rows(4)
    samples = draw.wrap(draw.sized(draw.noise(draw.choice((2, 5)), n, 2)), "samples")
    y = draw.matrix("y", n, 2)
    return Call(lc.metrics.energy_score, {"samples": samples, "y": y}, (n,), answers=True)


@entry("metrics.variogram_score")
def _(draw: Draw) -> Call:
    n = draw.rows(4)
    samples = draw.wrap(draw.noise(draw.choice((1, 5)), n, 2), "samples")
    weights = None if draw.chance(50) else draw.wrap(np.abs(draw.noise(2, 2)), "weights")
    order = draw.choice((0.5, 1, 2.0)) if draw.chance(90) else draw.choice((0, -1.0, float("nan"), "a"))
    if order not in (0.5, 1, 2.0):
        draw.odd(f"order = {order}")
    arguments = {"samples": samples, "y": draw.matrix("y", n, 2), "weights": weights, "order": order}
    # Beyond the floats it is infinite.
    return Call(lc.metrics.variogram_score, arguments, (n,), answers=True, infinite=True)


@entry("metrics.worst_slab_coverage", 8)
def _(draw: Draw) -> Call:
    n = draw.rows(60, 100)
    covered = draw.wrap((draw.noise(n) > 0).astype(float), "covered")
    options = {"share": draw.share("share", (0.1, 0.3)), "confidence": draw.share("confidence", (0.9,))}
    return Call(
        lambda x, covered, source, **options: [
            lc.metrics.worst_slab_coverage(x, covered, generator=source, **options).lowest.interval
        ],
        {
            "x": draw.matrix("x", n, 2, None, ("flat", "deep", "longer", "number")),
            "covered": covered,
            "source": Seed(),
            **options,
        },
        answers=n >= 60,
        names=("features", "rows"),
    )


@entry("metrics.binomial_interval")
def _(draw: Draw) -> Call:
    n = draw.whole("n", 0, (0, 5, 40))
    successes = draw.whole("successes", 0, (0, 0, 3, 5))
    confidence = draw.share("confidence", (0.5, 0.95))
    if not draw.refused and successes > n:
        draw.odd("more successes than trials")
    return Call(
        lc.metrics.binomial_interval,
        {"successes": successes, "n": n, "confidence": confidence},
        answers=True,
    )


@entry("metrics.bits_per_dim")
def _(draw: Draw) -> Call:
    nll = draw.wrap(draw.sized(draw.noise(3)), "nll", infinite=True)
    dim = draw.whole("dim", 1, (1, 784))
    return Call(lc.metrics.bits_per_dim, {"nll": nll, "dim": dim}, (3,), answers=True, infinite=True)


@entry("metrics.relative_score")
def _(draw: Draw) -> Call:
    score = draw.wrap(draw.sized(draw.noise(3)), "score", infinite=True)
    base = draw.wrap(np.sign(draw.noise(3)) * (1 + np.abs(draw.noise(3))), "base", whole=False)
    if base.numbers is not None and (base.numbers == 0).any():
        draw.odd("the baseline is 0")
    return Call(lc.metrics.relative_score, {"score": score, "base": base}, (3,), answers=True, infinite=True)
