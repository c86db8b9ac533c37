"""Checks of a flow's shapes, round trips, determinants and base law."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._internal.names import suggest
from ._internal.numerics import to_tensor
from ._internal.validate import as_whole
from .base import RadialBase
from .flow import ConditionalFlow, evaluation_mode
from .radius.reference import BallRadius, Chi
from .radius.scaled import ScaledRadius

__all__ = ["Check", "FlowCheck", "check_flow"]
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = 0.05  # for half precision
_LARGEST_JACOBIAN = 64
_LARGEST_SCALE_ERROR = 1.0

PROMISES = {
    "shapes": "encode must return z with the shape of y and one log|det| per point; sum it over the outputs.",
    "finite": "Look for overflow, division by zero or the log of zero in encode at these rows.",
    "extra sample dims": "encode and decode must take y (s, n, d) with x (n, p): expand x to match y.",
    "one y for all x": "encode must take y (1, d) with x (n, p): expand y to the leading dims of x.",
    "round trip of y": "decode must undo encode at the same x: the same steps in reverse order.",
    "round trip of base draws": "decode must be defined for all latents that the base can draw, and encode "
    "must undo it. Standardise y if the maps are defined only on an interval.",
    "log|det| against autograd": "encode must return log|det dz/dy|. The one of dy/dz has the opposite sign; "
    "a standardisation adds a term.",
    "base law": "The base and the units of y must be the ones that the model was trained with.",
    "repeats itself": "encode must draw no random numbers in evaluation mode; latent must return its z.",
    "batch independence": "The latent of a row must not depend on other rows: no statistics of the batch.",
    "samples": "decode must draw no random numbers and keep the shape and dtype of z.",
    "another base": "with_base must return a new flow that shares the maps; encode must not use the base.",
    "leaves the model alone": "encode and decode must not change arguments, parameters, buffers, modes of "
    "modules (use latentcal.flow.evaluation_mode) and the global random state.",
    "density of the model": "The flow's log_prob must equal the wrapped model's. Look for a base that is not "
    "standardised, a determinant of the opposite sign, or outputs in another order.",
}
"""What to do if a check fails, by the name of the check."""


@dataclass(frozen=True)
class Check:
    """Result of one check: its name, whether it passed (None: not tried), measured and allowed error."""

    name: str
    passed: bool | None
    error: float | None
    tolerance: float | None
    detail: str = ""


@dataclass(frozen=True)
class FlowCheck:
    """Results of all checks of a flow; ``print`` shows a table, ``require`` raises if a check failed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self._failures()

    def require(self) -> FlowCheck:
        """This report; raises a ValueError that lists failed checks and what to do about each."""
        if failed := self._failures():
            remedies = "\n".join(f"{c.name}: {PROMISES[c.name]}" for c in failed)
            raise ValueError(f"The flow fails these checks:\n{_table(failed)}\n{remedies}")
        return self

    def __str__(self) -> str:
        return f"{_table(self.checks)}\n{self._verdict()}"

    def _verdict(self) -> str:
        tried, failed = [c for c in self.checks if c.passed is not None], self._failures()
        if failed:
            return f"{len(failed)} of {len(tried)} checks failed: {', '.join(c.name for c in failed)}."
        left = len(self.checks) - len(tried)
        return f"All {len(tried)} checks passed" + (f", {left} could not be tried." if left else ".")

    def _failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.passed is False)


def check_flow(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    log_prob: Any = None,
    points: int = 8,
    tolerance: float | None = None,
    only: Collection[str] | None = None,
    generator: torch.Generator | None = None,
) -> FlowCheck:
    r"""Report on whether a flow's maps, determinant and base law are consistent on the given data.

    Errors of latents and log-determinants are relative to :math:`1 + |\cdot|`; errors of y are relative to
    the largest absolute value of each output. Everything runs in evaluation mode and on clones, because a
    transform that caches its input would hide errors of its inverse.

    Args:
        flow: the flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        log_prob: (n,) log densities of y under the wrapped model, to compare with the flow's; the error may
            be at most a hundredth of the tolerance.
        points: number of rows where the log-determinant is compared with autograd's Jacobian (d <= 64).
        tolerance: allowed error; 1e-6 in float64, 1e-3 in float32 if None.
        only: names of the checks to run; all if None.
        generator: source of randomness for these rows and for latents; seeded with a fixed seed if None.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> check_flow(flow, None, torch.randn(20, 2)).passed
        True
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    points = as_whole(points, "points")
    if unknown := [name for name in only or () if name not in PROMISES]:
        raise ValueError(f"No check is named {unknown[0]!r}; {suggest(unknown[0], PROMISES)}")
    with evaluation_mode(flow):
        pred = flow(x)
        y = pred.accept(to_tensor(y, "y"))
    if y.dim() != 2:
        raise ValueError(f"check_flow needs y of shape (n, d), got {tuple(y.shape)}.")
    allowed = _TOLERANCE.get(y.dtype, _COARSE) if tolerance is None else tolerance
    theirs = None if log_prob is None else to_tensor(log_prob, "log_prob")
    run = _Run(flow, pred.context, y.clone(), theirs, pred.base, points, generator, allowed)
    return FlowCheck(tuple(run.checks(PROMISES if only is None else only)))


class _Outcome(NamedTuple):
    """Outcome of a check."""

    passed: bool | None
    detail: str = ""
    error: float | None = None
    tolerance: float | None = None


class _Run:
    """Runs the checks of one flow on one data set, ordered so that earlier failures explain later ones."""

    def __init__(
        self,
        flow: ConditionalFlow,
        x: Tensor | None,
        y: Tensor,
        log_prob: Tensor | None,
        base: RadialBase,
        points: int,
        generator: torch.Generator,
        tolerance: float,
    ) -> None:
        self.flow, self.x, self.y, self.log_prob, self.base = flow, x, y, log_prob, base
        self.points, self.generator, self.tolerance = points, generator, tolerance
        self.z = self.log_abs_det = torch.empty(0)

    def checks(self, names: Collection[str]) -> list[Check]:
        first = self.attempt("shapes", self.shapes)
        rest: dict[str, Callable[[], _Outcome]] = {
            "finite": self.finite,
            "extra sample dims": self.sample_dims,
            "one y for all x": self.one_y,
            "round trip of y": self.round_trip,
            "round trip of base draws": self.base_round_trip,
            "log|det| against autograd": self.log_det,
            "base law": self.base_law,
            "repeats itself": self.determinism,
            "batch independence": self.batch_independence,
            "samples": self.samples,
            "another base": self.another_base,
            "leaves the model alone": self.side_effects,
        }
        if self.log_prob is not None:
            rest["density of the model"] = self.density
        wanted = {name: check for name, check in rest.items() if name in names}
        if not first.passed:
            return [first] + [Check(name, None, None, None, "needs encode to work") for name in wanted]
        done = [first] if "shapes" in names else []
        return done + [self.attempt(name, check) for name, check in wanted.items()]

    def attempt(self, name: str, check: Callable[[], _Outcome]) -> Check:
        try:
            # Restoring the modes afterwards would hide side effects on them.
            modes = nullcontext() if check == self.side_effects else evaluation_mode(self.flow)
            with torch.no_grad(), modes:
                found = check()
        except Exception as error:
            found = _Outcome(False, f"{type(error).__name__}: {error}")
        return Check(name, found.passed, found.error, found.tolerance, found.detail)

    def _compare(self, *errors: Tensor, tolerance: float | None = None) -> _Outcome:
        tolerance = self.tolerance if tolerance is None else tolerance
        worst = max((float(error.max()) for error in errors if error.numel()), default=0.0)
        worst = math.inf if any(bool(torch.isnan(error).any()) for error in errors) else worst
        return _Outcome(worst <= tolerance, "", worst, tolerance)

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.flow.encode(y.clone(), None if x is None else x.clone())

    def _rows(self, count: int) -> Tensor:
        order = torch.randperm(len(self.y), generator=self.generator, device=self.generator.device)
        return order[:count].to(self.y.device)

    def _x_at(self, rows: Tensor) -> Tensor | None:
        return None if self.x is None else self.x.expand(len(self.y), -1)[rows]

    def shapes(self) -> _Outcome:
        z, log_abs_det = self._encode(self.y, self.x)
        wrong = []
        if z.shape != self.y.shape:
            wrong.append(f"z is {tuple(z.shape)}, expected {tuple(self.y.shape)}")
        if log_abs_det.shape != self.y.shape[:-1]:
            wrong.append(f"log|det| is {tuple(log_abs_det.shape)}, expected {tuple(self.y.shape[:-1])}")
        self.z, self.log_abs_det = z, log_abs_det
        return _Outcome(not wrong, "; ".join(wrong))

    def finite(self) -> _Outcome:
        bad = ~(torch.isfinite(self.z).all(-1) & torch.isfinite(self.log_abs_det))
        count = int(bad.sum())
        detail = f"z or log|det| of {count} of {len(bad)} points is NaN or infinite" if count else ""
        return _Outcome(count == 0, detail, float(count), 0.0)

    def sample_dims(self) -> _Outcome:
        stacked = torch.stack([self.y, self.y.flip(0), self.y])
        z, log_abs_det = self._encode(stacked, self.x)
        errors = [z[0] - self.z, z[2] - self.z, log_abs_det[2] - self.log_abs_det]
        if self.flow.decode(z.clone(), self.x).shape != stacked.shape:
            return _Outcome(False, "decode gives y of another shape")
        return self._compare(*(_relative(error, 0.0) for error in errors))

    def one_y(self) -> _Outcome:
        y = self.y[:1]
        z, _ = self._encode(y, self.x)
        expected, _ = self._encode(y.expand_as(self.y), self.x)
        return self._compare(_relative(z, expected))

    def round_trip(self) -> _Outcome:
        back = self.flow.decode(self.z.clone(), self.x)
        size = self.y.abs().amax(0).clamp(min=torch.finfo(self.y.dtype).tiny)
        return self._compare((back - self.y).abs() / size)

    def base_round_trip(self) -> _Outcome:
        z = self.base.sample((len(self.y),), self.generator, self.z.dtype).to(self.z.device)
        y = self.flow.decode(z.clone(), self.x)
        if not bool(torch.isfinite(y).all()):
            count = int((~torch.isfinite(y).all(-1)).sum())
            return _Outcome(False, f"decode of {count} of {len(y)} base draws is NaN or infinite")
        return self._compare(_relative(self._encode(y, self.x)[0], z))

    def log_det(self) -> _Outcome:
        dim = self.y.shape[-1]
        if dim > _LARGEST_JACOBIAN:
            return _Outcome(None, f"d = {dim} is above {_LARGEST_JACOBIAN}")
        rows, errors = self._rows(self.points), []
        x = self._x_at(rows)
        for i, row in enumerate(rows):
            x_row = None if x is None else x[i : i + 1]
            with torch.enable_grad():
                y = self.y[row][None].clone().requires_grad_()
                z, log_abs_det = self._encode(y, x_row)
                if not z.requires_grad:
                    return _Outcome(None, "encode has no gradient")
                gradients = [torch.autograd.grad(z[0, j], y, retain_graph=True)[0][0] for j in range(dim)]
            expected = torch.linalg.slogdet(torch.stack(gradients).to(torch.float64)).logabsdet
            errors.append(_relative(log_abs_det.detach()[0], expected)[None])
        return self._compare(*errors)

    def base_law(self) -> _Outcome:
        """Latents lie inside the support, with a median norm within a factor of ten of the base's."""
        norms = self.base.norm_of(self.z)
        outside = int(((norms < 0) | (norms > self.base.radius.upper)).sum())
        if outside:
            detail = f"{outside} of {len(norms)} latent norms lie outside [0, {self.base.radius.upper:g}]"
            return _Outcome(False, detail, float(outside), 0.0)
        expected = self.base.radius.icdf(torch.full_like(norms, 0.5)).median()
        error = abs(math.log10(max(float(norms.median()), 1e-300) / float(expected)))
        detail = f"median latent norm {float(norms.median()):.3g}, under the base {float(expected):.3g}"
        return _Outcome(error <= _LARGEST_SCALE_ERROR, detail, error, _LARGEST_SCALE_ERROR)

    def determinism(self) -> _Outcome:
        z, log_abs_det = self._encode(self.y, self.x)
        latent = self.flow.latent(self.y.clone(), self.x)
        return self._compare(
            _relative(z, self.z), _relative(latent, self.z), _relative(log_abs_det, self.log_abs_det)
        )

    def batch_independence(self) -> _Outcome:
        rows = self._rows(max(1, len(self.y) // 3))
        z, log_abs_det = self._encode(self.y[rows], self._x_at(rows))
        return self._compare(_relative(z, self.z[rows]), _relative(log_abs_det, self.log_abs_det[rows]))

    def samples(self) -> _Outcome:
        pred, shape = self.flow(self.x), (2, *self.y.shape)
        leading = shape[: -1 - len(pred.batch_shape)]
        seed = int(torch.randint(1 << 31, (), generator=self.generator, device=self.generator.device))
        first, again = (pred.sample(leading, torch.Generator().manual_seed(seed)) for _ in range(2))
        if first.shape != shape or first.dtype != self.y.dtype:
            came = f"draws are {tuple(first.shape)} {first.dtype}"
            return _Outcome(False, f"{came}, expected {shape} {self.y.dtype}")
        return self._compare(_relative(again, first))

    def another_base(self) -> _Outcome:
        own, dim = self.flow.base, self.base.dim
        bounded = math.isfinite(self.base.radius.upper)
        law = ScaledRadius(BallRadius(dim), power=1.2) if bounded else ScaledRadius(Chi(dim), scale=1.3)
        base = self.base.with_radius(law)
        other = self.flow.with_base(base)
        if other is self.flow or self.flow.base is not own:
            return _Outcome(False, "with_base changes the flow that it is called on")
        kept = {id(parameter) for parameter in (*other.parameters(), *own.parameters())}
        if not all(id(parameter) in kept for parameter in self.flow.parameters()):
            return _Outcome(False, "with_base copies the parameters of the maps")
        density = other(self.x).log_prob(self.y.clone())
        expected = base.log_prob_at_norm(base.norm_of(self.z)) + self.log_abs_det
        z = other.latent(self.y.clone(), self.x)
        return self._compare(_relative(z, self.z), _relative(density, expected))

    def density(self) -> _Outcome:
        assert self.log_prob is not None
        own = self.flow(self.x).log_prob(self.y.clone())
        log_prob = self.log_prob.to(own)
        if log_prob.shape != own.shape:
            return _Outcome(False, f"log_prob is {tuple(log_prob.shape)}, the flow's {tuple(own.shape)}")
        error = torch.where(own == log_prob, 0.0, _relative(own, log_prob))  # both may be -inf
        return self._compare(error, tolerance=self.tolerance / 100)

    def side_effects(self) -> _Outcome:
        """Call once in training mode and twice in evaluation mode; then restore modes and buffers."""
        y, z = self.y.clone(), self.z.clone()
        x = None if self.x is None else self.x.clone()
        kept: dict[str, list[Tensor]] = {
            "arguments": [y, z] if x is None else [y, z, x],
            "parameters": list(self.flow.parameters()),
            "buffers": list(self.flow.buffers()),
        }
        before = {what: [tensor.clone() for tensor in tensors] for what, tensors in kept.items()}
        random = torch.get_rng_state()
        modules = list(self.flow.modules())
        modes, changed = [module.training for module in modules], []
        try:
            self.flow.train()
            with torch.random.fork_rng(devices=[]):  # dropout draws
                self.flow.encode(y, x)
            if not all(module.training for module in modules):
                changed.append("modes of modules")
            for buffer, value in zip(kept["buffers"], before["buffers"], strict=True):
                if not torch.equal(buffer, value):  # statistics of the batch
                    buffer.copy_(value)
            self.flow.eval()
            self.flow.encode(y, x)
            self.flow.decode(z, x)
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
        for what, tensors in kept.items():
            if any(not torch.equal(*pair) for pair in zip(tensors, before[what], strict=True)):
                changed.append(what)
        if not torch.equal(torch.get_rng_state(), random):
            changed.append("global random state")
        return _Outcome(not changed, f"changed: {', '.join(changed)}" if changed else "")


def _relative(value: Tensor, expected: Tensor | float) -> Tensor:
    expected = torch.as_tensor(expected, device=value.device)
    return (value - expected).abs() / (1 + expected.abs())


def _table(checks: tuple[Check, ...]) -> str:
    marks = {True: "ok", False: "FAILED", None: "-"}
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        error = "" if check.error is None else f"{check.error:.1e}"
        allowed = "" if check.tolerance is None else f"{check.tolerance:.0e}"
        line = f"{check.name:<{width}}  {marks[check.passed]:<6}  {error:>8}  {allowed:>7}  {check.detail}"
        lines.append(line.rstrip())
    return "\n".join([f"{'check':<{width}}  {'':<6}  {'error':>8}  {'allowed':>7}", *lines])
