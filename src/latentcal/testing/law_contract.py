"""Checks of laws of a latent norm, as functions that raise AssertionError, for any test runner."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..files import load, save
from ..metrics import uniformity_test
from ..model_classes import is_known
from ..radius.law import RadiusLaw
from .law_case import LAW_CHECKS, TAIL, LawCase, difference_quotient, differentiate, law_check

_EPS = torch.finfo(torch.float64).eps
_FAILURE_RATE = 1e-6
_DRAWS = 20_000
_ONE_LAW = (
    "Make log_prob, log_cdf and log_sf describe one law, and pass radii at which the density jumps as kinks=."
)
_TAILS = "Compute log_cdf and log_sf by separate formulas in log space: 1 - cdf loses the upper tail."
_QUANTILES = (
    "Leave icdf, icdf_log_cdf and icdf_log_sf to RadiusLaw, or invert log_cdf and log_sf to rounding."
)
_FLOAT64 = "Convert radii by .double() first, compute element by element and keep tensors as buffers."


def check_law_contract(law: RadiusLaw, *, kinks: Any = (), generator: torch.Generator | None = None) -> None:
    r"""Run every check of :func:`law_checks` on a law with a density.

    Density, distribution function, tails, quantiles, derivatives, samples and files must describe one law in
    float64, from quantiles of 1e-12 to 1 - 1e-12, including the ends of the support and without NaN. For a
    law that depends on x, check ``law.given(x)`` at one x of shape (p,). A law without a density (a step
    function) fails.

    Args:
        law: the law.
        kinks: radii at which the density or its slope jumps: derivatives are not compared there.
        generator: source of randomness for samples; seeded with a fixed seed if None. The one statistical
            check fails for one correct law in a million.

    Raises:
        AssertionError: if checks fail; lists each with what was expected, what came and what to do.

    Examples:
        >>> from latentcal.radius import Chi
        >>> check_law_contract(Chi(dim=3))
    """
    case, failed = LawCase(law, kinks, generator), []
    for check in LAW_CHECKS:
        try:
            check(case)
        except AssertionError as error:
            failed.append(str(error))
    if failed:
        raise AssertionError("\n".join([f"{len(failed)} of {len(LAW_CHECKS)} checks failed.", *failed]))


def law_checks() -> list[Callable[..., None]]:
    """The checks of laws, each a function ``check(law, *, kinks=(), generator=None)`` with a name.

    For a test of each: ``@pytest.mark.parametrize("check", latentcal.testing.law_checks())``.

    Examples:
        >>> law_checks()[0].__name__
        'check_density_integrates_to_one'
    """
    return list(LAW_CHECKS)


@law_check
def check_density_integrates_to_one(case: LawCase) -> None:
    """The density integrates to 1, within 1e-6."""
    parts = torch.linspace(0, 1, 5, dtype=torch.float64)[:-1]
    edges = (case.radii[:-1, None] + case.radii.diff()[:, None] * parts).reshape(-1)
    edges = torch.sort(torch.cat([edges, case.kinks.clamp(edges[0], edges[-1])])).values
    low, width = edges[:-1, None], edges.diff()[:, None]
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(16))
    density = torch.exp(case.law.log_prob(low + width * (nodes + 1) / 2))
    total = float((density * weights * width / 2).sum())
    holds = abs(total - 1) <= 1e-6
    case.require(holds, "exp(log_prob) to integrate to 1", f"the integral is {total:.9g}", _ONE_LAW)


@law_check
def check_density_is_slope_of_cdf(case: LawCase) -> None:
    """The density is the slope of the distribution function, in both tails."""
    law, r, log_tail = case.law, case.radii, case.log_tail
    h = 3e-5 * torch.exp(log_tail - law.log_prob(r))
    smooth = ((r[:, None] - case.kinks).abs() > 2 * h[:, None]).all(1)
    inner = (r < law.upper) & smooth  # the last quantiles may round to the end of the support
    case.require(
        inner.sum() > 150,
        "at least 150 of 199 quantiles inside the support",
        f"{int(inner.sum())} are",
        "Give fewer kinks, or check that quantiles spread over the support.",
    )
    r, log_tail, h = r[inner], log_tail[inner], h[inner]
    lower_half = law.log_cdf(r) < law.log_sf(r)

    def smaller_tail(point: Tensor) -> Tensor:
        lower, upper = (torch.exp(tail(point) - log_tail) for tail in (law.log_cdf, law.log_sf))
        return torch.where(lower_half, lower, -upper)

    ratio = difference_quotient(smaller_tail, r, h) * torch.exp(log_tail - law.log_prob(r))
    expected = "slope of the cdf over exp(log_prob) to be 1"
    case.require_close(ratio, torch.ones_like(r), 1e-6 + 4 * _EPS * r / h, expected, r, _ONE_LAW)


@law_check
def check_quantiles_invert_tails(case: LawCase) -> None:
    """Quantiles invert log_cdf, log_sf and cdf."""
    law, (lower, upper) = case.law, case.quantiles
    pairs = ((law.icdf_log_cdf, law.log_cdf, lower), (law.icdf_log_sf, law.log_sf, upper))
    for quantile, tail, r in pairs:
        name, inverse, log_tail = tail.__name__, quantile.__name__, tail(r)
        rounding = 4 * _EPS * torch.exp(law.log_prob(r) - TAIL) * r  # error from rounding r
        expected = f"exp({name}({inverse}(v)) - v) to be 1"
        ratio = torch.exp(log_tail - TAIL)
        case.require_close(ratio, torch.ones_like(r), 1e-10 + rounding, expected, TAIL, _QUANTILES)
        expected = f"{inverse}({name}(r)) to be r"
        case.require_close(quantile(log_tail), r, 1e-10 * r, expected, r, _QUANTILES)
    u, near = TAIL.exp(), upper[60:]
    case.require_close(law.icdf(u), lower, 1e-10 * lower, "icdf(u) to be icdf_log_cdf(log u)", u, _QUANTILES)
    expected = "icdf(1 - u) to be icdf_log_sf(log u)"
    case.require_close(law.icdf(1 - u[60:]), near, 1e-10 * near, expected, u[60:], _QUANTILES)


@law_check
def check_both_tails_at_once(case: LawCase) -> None:
    """log_tails and icdf_log_tails agree with the tails taken one by one, without a graph."""
    law, r = case.law, case.radii
    log_cdf, log_sf = law.log_tails(r)
    for value, single in ((log_cdf, law.log_cdf), (log_sf, law.log_sf)):
        wanted, expected = single(r), f"log_tails to agree with {single.__name__}"
        case.require_close(value, wanted, 1e-10 * wanted.abs(), expected, r, _TAILS)
    back = law.icdf_log_tails(log_cdf, log_sf)
    case.require_close(back, r, 1e-10 * r, "icdf_log_tails(*log_tails(r)) to be r", r, _QUANTILES)
    graph = law.log_tails(r.detach().clone().requires_grad_())[0].requires_grad
    case.require(not graph, "log_tails without a graph", "it has one", "Decorate it with torch.no_grad().")


@law_check
def check_tails_add_up_to_one(case: LawCase) -> None:
    """Quantiles rise; the two tails add up to 1, and cdf is exp(log_cdf)."""
    law, r = case.law, case.radii
    rising = (r[1:] > r[:-1]).sum() >= 0.9 * r.numel()  # neighbours may round to one number at an upper end
    rising = rising and (r[1:] >= r[:-1] * (1 - 4 * _EPS)).all()
    case.require(rising, "quantiles that rise with their level", "some fall or repeat", _QUANTILES)
    log_cdf, log_sf = law.log_cdf(r), law.log_sf(r)
    total, one = log_cdf.exp() + log_sf.exp(), torch.ones_like(r)
    case.require_close(total, one, 1e-12, "exp(log_cdf) + exp(log_sf) to be 1", r, _TAILS)
    wanted = log_cdf.exp()
    case.require_close(law.cdf(r), wanted, 1e-12 * wanted, "cdf to be exp(log_cdf)", r, _TAILS)


@law_check
def check_support(case: LawCase) -> None:
    """The ends of [0, upper] are the quantiles at 0 and 1, and nothing lies outside."""
    law, inf = case.law, math.inf
    beyond = inf if math.isinf(law.upper) else 1.5 * law.upper
    zero_one, logs, ends, outside = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in ([0.0, 1.0], [-inf, 0.0], [0.0, law.upper], [-inf, -3.0, -1e-300, beyond])
    )
    nothing = torch.full_like(outside, -inf)
    values: list[tuple[str, Tensor, Tensor, Tensor]] = [
        ("icdf at 0 and 1 to be 0 and upper", law.icdf(zero_one), ends, zero_one),
        ("icdf_log_cdf at -inf and 0 to be 0 and upper", law.icdf_log_cdf(logs), ends, logs),
        ("icdf_log_sf at -inf and 0 to be upper and 0", law.icdf_log_sf(logs), ends.flip(0), logs),
        ("log_prob to be -inf outside of the support", law.log_prob(outside), nothing, outside),
    ]
    for r in (ends, outside):
        above = (r >= law.upper).double()
        values += [
            ("cdf to be 0 below and 1 above the support", law.cdf(r), above, r),
            ("log_cdf to be -inf below and 0 above the support", law.log_cdf(r), above.log(), r),
            ("log_sf to be 0 below and -inf above the support", law.log_sf(r), (1 - above).log(), r),
        ]
    for expected, value, wanted, at in values:
        case.require_close(value, wanted, 1e-300, expected, at, "Set the values there by torch.where.")


@law_check
def check_no_nan(case: LawCase) -> None:
    """No radius from 0 to 1e300 and no log-probability gives NaN; log_cdf never falls."""
    law = case.law
    powers = torch.cat([torch.linspace(-300, 300, 121), torch.linspace(-12, 6, 73)]).double().sort().values
    r = torch.cat([torch.zeros(1, dtype=torch.float64), 10**powers])
    methods = {name: getattr(law, name)(r) for name in ("log_prob", "log_cdf", "log_sf", "cdf")}
    methods |= {f"log_radial_density for dim={d}": law.log_radial_density(r, d) for d in (1, 2, 1000)}
    for name, values in methods.items():
        nan = r[values.isnan()]
        came = f"{nan.numel()} of {r.numel()} are NaN, the first at {float(nan[0]):g}" if nan.numel() else ""
        remedy = (
            "Treat r = 0 and overflow on purpose (torch.where, torch.xlogy): inf - inf and 0 * inf are NaN."
        )
        case.require(not came, f"{name} at 0 and from 1e-300 to 1e300", came, remedy)
    log_cdf = methods["log_cdf"]
    rising = (log_cdf.diff() >= 0).sum() + log_cdf.isneginf().sum() >= r.numel() - 1
    case.require(rising, "log_cdf that never falls", "it falls", _TAILS)
    v = torch.tensor([-1e-300, -1e-15, -0.1, -50.0, -5000.0, -3e5], dtype=torch.float64)
    for quantile in (law.icdf_log_cdf, law.icdf_log_sf):
        far = quantile(v)
        inside = ((far >= 0) & (far <= law.upper)).all()
        expected = f"{quantile.__name__} in [0, {law.upper:g}] for v from -3e5 to -1e-300"
        case.require(inside, expected, f"it is {far.tolist()}", _QUANTILES)


@law_check
def check_radial_density(case: LawCase) -> None:
    """log_radial_density(r, dim) is log_prob(r) - (dim - 1) log r."""
    r = case.central()
    for dim in (1, 2, 30, getattr(case.law, "dim", 5)):
        wanted = case.law.log_prob(r) - (dim - 1) * torch.log(r)
        expected = f"log_radial_density(r, {dim}) to be log_prob(r) - {dim - 1} log r"
        allowed = 1e-9 + 1e-12 * wanted.abs()
        remedy = "Leave it to RadiusLaw unless its limit at r = 0 is known."
        case.require_close(case.law.log_radial_density(r, dim), wanted, allowed, expected, r, remedy)


@law_check
def check_derivatives(case: LawCase) -> None:
    """First and second derivatives by autograd agree with finite differences, for every method."""
    law, u = case.law, case.smooth_levels(6)
    r = law.icdf(u)
    scale = torch.exp(torch.minimum(law.log_cdf(r), law.log_sf(r)) - law.log_prob(r)).detach()
    cases = {name: (getattr(law, name), r, scale) for name in ("log_prob", "log_cdf", "log_sf", "cdf")}
    cases["log_radial_density"] = (partial(law.log_radial_density, dim=5), r, scale)
    cases["icdf"] = (law.icdf, u, u * (1 - u))
    cases["icdf_log_cdf"] = (law.icdf_log_cdf, u.log(), 1 - u)
    cases["icdf_log_sf"] = (law.icdf_log_sf, torch.log1p(-u), u)
    for name, (function, point, size) in cases.items():
        for order, differentiated in ((1, function), (2, partial(differentiate, function))):
            value = differentiate(differentiated, point)
            wanted = difference_quotient(differentiated, point, 1e-3 * size)
            allowed = 1e-5 * wanted.abs() + 1e-7 * differentiated(point).detach().abs() / size
            expected = f"derivative {order} of {name} by autograd to be that by finite differences"
            remedy = "Use differentiable operations and no .detach(); pass radii of jumps as kinks=."
            case.require_close(value, wanted, allowed, expected, point, remedy)


@law_check
def check_samples_follow_cdf(case: LawCase) -> None:
    """20,000 samples follow the cdf (Kolmogorov-Smirnov); one correct law in a million fails."""
    u = case.law.cdf(case.law.sample((_DRAWS,), case.generator))
    found = uniformity_test(u)
    expected = f"cdf(sample) to be uniform (p-value of at least {_FAILURE_RATE:g})"
    came = f"the p-value is {found.p_value:.1e} at a distance of {found.statistic:.3f}"
    case.require(found.p_value >= _FAILURE_RATE, expected, came, "Leave sample to RadiusLaw, or correct it.")


@law_check
def check_sample_shape_and_seed(case: LawCase) -> None:
    """Samples have the shape asked for, are float64 and come from the generator alone."""
    law, state = case.law, torch.get_rng_state()
    first, again, other = (law.sample((3, 4), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    shapes = first.shape == (3, 4) and law.sample((), case.generator).shape == ()
    came = f"they are {tuple(first.shape)} {first.dtype}"
    remedy = "Draw shape radii at once, in float64."
    case.require(shapes and first.dtype == torch.float64, "samples (3, 4) in float64", came, remedy)
    seeded = torch.equal(first, again) and not torch.equal(first, other)
    seeded = seeded and torch.equal(torch.get_rng_state(), state)
    remedy = "Pass generator= to every function of torch that draws."
    case.require(
        seeded, "samples that the generator alone determines", "they depend on more, or less", remedy
    )


@law_check
def check_shapes_and_float64(case: LawCase) -> None:
    """Radii of any shape and floating dtype are answered in float64."""
    law, r = case.law, case.central(6).float()
    methods = {name: getattr(law, name) for name in ("log_prob", "log_cdf", "log_sf", "cdf")}
    methods["log_radial_density"] = partial(law.log_radial_density, dim=3)
    for name, method in methods.items():
        values = method(r)
        case.require(values.dtype == torch.float64, f"{name} in float64", f"it is {values.dtype}", _FLOAT64)
        for form in (r.double(), r.reshape(2, 1, 3), r[:1], r[0], r[:0]):
            value, wanted = method(form), values[: form.numel()].reshape(form.shape)
            shapes = value.shape == form.shape
            case.require(shapes, f"{name} of shape {tuple(form.shape)}", f"{tuple(value.shape)}", _FLOAT64)
            expected = f"the same {name} for every shape and dtype of r"
            case.require_close(value, wanted, 1e-13 * (1 + wanted.abs()), expected, form, _FLOAT64)
    for u in (torch.full((2, 3), 0.25), torch.zeros(0), torch.tensor(0.25)):
        value = law.icdf(u)
        holds = value.shape == u.shape and value.dtype == torch.float64
        came = f"it is {tuple(value.shape)} {value.dtype}"
        case.require(holds, f"icdf {tuple(u.shape)} in float64", came, _FLOAT64)


@law_check
def check_casting_does_not_round(case: LawCase) -> None:
    """Casting the model around a law leaves its numbers in float64."""
    law, r = case.law, case.central()
    cast = nn.ModuleDict({"law": copy.deepcopy(law)}).half().float()["law"]
    remedy = "Keep tensors as buffers of a RadiusLaw, which does not let them be cast."
    for name, buffer in law.named_buffers():
        same = torch.equal(buffer, dict(cast.named_buffers())[name])
        case.require(same, f"the same buffer {name} after .half().float()", "it was rounded", remedy)
    for name in ("log_prob", "log_cdf"):
        value, wanted = getattr(cast, name)(r), getattr(law, name)(r)
        expected = f"the same {name} after .half().float()"
        case.require_close(value, wanted, 1e-9 * (1 + wanted.abs()), expected, r, remedy)


@law_check
def check_wrong_probabilities_are_refused(case: LawCase) -> None:
    """Quantiles of invalid probabilities raise a ValueError."""
    wrong = {name: ([0.1], [math.nan, -1.0]) for name in ("icdf_log_cdf", "icdf_log_sf")}
    for name, values in {"icdf": ([-0.1], [1.0 + 1e-9], [0.5, math.nan]), **wrong}.items():
        for value in values:
            try:
                came = f"{getattr(case.law, name)(torch.tensor(value, dtype=torch.float64)).tolist()}"
            except ValueError:
                continue
            remedy = "Call the method of RadiusLaw, which checks its argument, or check it."
            case.require(False, f"{name}({value}) to raise a ValueError", f"it returned {came}", remedy)


@law_check
def check_save_and_load(case: LawCase) -> None:
    """A saved law comes back from its constructor arguments."""
    kinds = {type(part) for part in case.law.modules() if isinstance(part, RadiusLaw)}
    with tempfile.TemporaryDirectory() as folder:
        save(case.law, Path(folder) / "law")
        again = load(Path(folder) / "law", classes=[kind for kind in kinds if not is_known(kind)])
    r = case.central()
    for name in ("log_prob", "log_cdf", "log_sf"):
        value, wanted = getattr(again, name)(r), getattr(case.law, name)(r)
        remedy = "Keep every constructor argument as an attribute of the same name, tensors as buffers."
        expected = f"the same {name} after save and load"
        case.require_close(value, wanted, 1e-12 * (1 + wanted.abs()), expected, r, remedy)
