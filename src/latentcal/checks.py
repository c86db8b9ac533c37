"""Does a flow keep its promises? Shapes, round trips, determinants, base law: measured, not believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ._internal.numerics import to_tensor
from ._internal.validate import as_whole
from .flow import ConditionalFlow, evaluation_mode

__all__ = ["Check", "FlowCheck", "check_flow"]
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_COARSE = 0.05  # for half precision
_LARGEST_JACOBIAN = 64
_LARGEST_SCALE_ERROR = 1.0


@dataclass(frozen=True)
class Check:
    """One promise: its name, whether it is kept (None: not tried), the error measured and the one allowed."""

    name: str
    passed: bool | None
    error: float | None
    tolerance: float | None
    detail: str = ""


@dataclass(frozen=True)
class FlowCheck:
    """The checks that a flow went through; ``print`` shows a table, ``require`` raises where one failed."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self._failures()

    def require(self) -> FlowCheck:
        """This report, or a ValueError with the checks that failed."""
        if self._failures():
            raise ValueError("The flow does not keep its promises:\n" + _table(self._failures()))
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
    points: int = 8,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> FlowCheck:
    r"""Report on whether a flow's maps, determinant and base law fit together on the given data.

    Errors of latents and log-determinants are relative to :math:`1 + |\cdot|`, those of y to the largest size
    of each output. Everything runs in evaluation mode, and on clones: a transform that returns its cached
    input would hide any error of its inverse.

    Args:
        flow: the flow.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        points: rows at which the log-determinant is compared with that of autograd's Jacobian (d <= 64).
        tolerance: allowed error; 1e-6 in float64, 1e-3 in float32 if None.
        generator: picks those rows and draws latents; a fixed one if None.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> check_flow(flow, None, torch.randn(20, 2)).passed
        True
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    points = as_whole(points, "points")
    with evaluation_mode(flow):
        pred = flow(x)
        y = pred.accept(to_tensor(y, "y"))
        if y.dim() != 2:
            raise ValueError(f"check_flow takes y of shape (n, d), got {tuple(y.shape)}.")
        allowed = _TOLERANCE.get(y.dtype, _COARSE) if tolerance is None else tolerance
        run = _Run(flow, pred.context, y.clone(), pred.base, points, generator, allowed)
        return FlowCheck(tuple(run.checks()))


class _Run:
    """The checks of one flow on one data set, in the order in which one failure explains the next."""

    def __init__(
        self,
        flow: ConditionalFlow,
        x: Tensor | None,
        y: Tensor,
        base: Any,
        points: int,
        generator: torch.Generator,
        tolerance: float,
    ) -> None:
        self.flow, self.x, self.y, self.base = flow, x, y, base
        self.points, self.generator, self.tolerance = points, generator, tolerance
        self.z = self.log_abs_det = torch.empty(0)

    def checks(self) -> list[Check]:
        first = self._attempt("shapes", self.shapes)
        rest: list[tuple[str, Callable[[], Check]]] = [
            ("finite", self.finite),
            ("extra sample dims", self.sample_dims),
            ("one y for all x", self.one_y),
            ("round trip of y", self.round_trip),
            ("round trip of base draws", self.base_round_trip),
            ("log|det| against autograd", self.log_det),
            ("base law", self.base_law),
            ("repeats itself", self.determinism),
            ("batch independence", self.batch_independence),
        ]
        if not first.passed:
            return [first] + [Check(name, None, None, None, "needs encode to work") for name, _ in rest]
        return [first] + [self._attempt(name, check) for name, check in rest]

    def _attempt(self, name: str, check: Callable[[], Check]) -> Check:
        try:
            with torch.no_grad():
                return check()
        except Exception as error:
            return Check(name, False, None, None, f"{type(error).__name__}: {error}")

    def _compare(self, name: str, *errors: Tensor) -> Check:
        worst = max((float(error.max()) for error in errors if error.numel()), default=0.0)
        worst = math.inf if any(bool(torch.isnan(error).any()) for error in errors) else worst
        return Check(name, worst <= self.tolerance, worst, self.tolerance)

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.flow.encode(y.clone(), None if x is None else x.clone())

    def _rows(self, count: int) -> Tensor:
        order = torch.randperm(len(self.y), generator=self.generator, device=self.generator.device)
        return order[:count].to(self.y.device)

    def _x_at(self, rows: Tensor) -> Tensor | None:
        return None if self.x is None else self.x.expand(len(self.y), -1)[rows]

    def shapes(self) -> Check:
        z, log_abs_det = self._encode(self.y, self.x)
        wrong = []
        if z.shape != self.y.shape:
            wrong.append(f"z is {tuple(z.shape)}, expected {tuple(self.y.shape)}")
        if log_abs_det.shape != self.y.shape[:-1]:
            wrong.append(f"log|det| is {tuple(log_abs_det.shape)}, expected {tuple(self.y.shape[:-1])}")
        self.z, self.log_abs_det = z, log_abs_det
        return Check("shapes", not wrong, None, None, "; ".join(wrong))

    def finite(self) -> Check:
        bad = ~(torch.isfinite(self.z).all(-1) & torch.isfinite(self.log_abs_det))
        count = int(bad.sum())
        detail = f"z or log|det| of {count} of {len(bad)} points is NaN or infinite" if count else ""
        return Check("finite", count == 0, float(count), 0.0, detail)

    def sample_dims(self) -> Check:
        stacked = torch.stack([self.y, self.y.flip(0), self.y])
        z, log_abs_det = self._encode(stacked, self.x)
        errors = [z[0] - self.z, z[2] - self.z, log_abs_det[2] - self.log_abs_det]
        if self.flow.decode(z.clone(), self.x).shape != stacked.shape:
            return Check("extra sample dims", False, None, None, "decode gives y of another shape")
        return self._compare("extra sample dims", *(_relative(error, 0.0) for error in errors))

    def one_y(self) -> Check:
        y = self.y[:1]
        z, _ = self._encode(y, self.x)
        expected, _ = self._encode(y.expand_as(self.y), self.x)
        return self._compare("one y for all x", _relative(z, expected))

    def round_trip(self) -> Check:
        back = self.flow.decode(self.z.clone(), self.x)
        size = self.y.abs().amax(0).clamp(min=torch.finfo(self.y.dtype).tiny)
        return self._compare("round trip of y", (back - self.y).abs() / size)

    def base_round_trip(self) -> Check:
        z = self.base.sample((len(self.y),), self.generator, self.z.dtype).to(self.z.device)
        y = self.flow.decode(z.clone(), self.x)
        if not bool(torch.isfinite(y).all()):
            count = int((~torch.isfinite(y).all(-1)).sum())
            detail = f"decode of {count} of {len(y)} base draws is NaN or infinite"
            return Check("round trip of base draws", False, None, None, detail)
        return self._compare("round trip of base draws", _relative(self._encode(y, self.x)[0], z))

    def log_det(self) -> Check:
        name, dim = "log|det| against autograd", self.y.shape[-1]
        if dim > _LARGEST_JACOBIAN:
            return Check(name, None, None, None, f"d = {dim} is above {_LARGEST_JACOBIAN}")
        rows = self._rows(self.points)
        x, errors = self._x_at(rows), []
        for i, row in enumerate(rows):
            x_row = None if x is None else x[i : i + 1]
            with torch.enable_grad():
                y = self.y[row][None].clone().requires_grad_()
                z, log_abs_det = self._encode(y, x_row)
                if not z.requires_grad:
                    return Check(name, None, None, None, "encode has no gradient")
                gradients = [torch.autograd.grad(z[0, j], y, retain_graph=True)[0][0] for j in range(dim)]
            expected = torch.linalg.slogdet(torch.stack(gradients).to(torch.float64)).logabsdet
            errors.append(_relative(log_abs_det.detach()[0], expected)[None])
        return self._compare(name, *errors)

    def base_law(self) -> Check:
        """Latents inside the support, and of the size that the base expects within a factor of ten."""
        norms = self.base.norm_of(self.z)
        outside = int(((norms < 0) | (norms > self.base.radius.upper)).sum())
        if outside:
            detail = f"{outside} of {len(norms)} latent norms lie outside [0, {self.base.radius.upper:g}]"
            return Check("base law", False, float(outside), 0.0, detail)
        expected = self.base.radius.icdf(torch.full_like(norms, 0.5)).median()
        error = abs(math.log10(max(float(norms.median()), 1e-300) / float(expected)))
        detail = f"median latent norm {float(norms.median()):.3g}, under the base {float(expected):.3g}"
        return Check("base law", error <= _LARGEST_SCALE_ERROR, error, _LARGEST_SCALE_ERROR, detail)

    def determinism(self) -> Check:
        z, log_abs_det = self._encode(self.y, self.x)
        latent = self.flow.latent(self.y.clone(), self.x)
        return self._compare(
            "repeats itself",
            _relative(z, self.z),
            _relative(latent, self.z),
            _relative(log_abs_det, self.log_abs_det),
        )

    def batch_independence(self) -> Check:
        rows = self._rows(max(1, len(self.y) // 3))
        z, log_abs_det = self._encode(self.y[rows], self._x_at(rows))
        return self._compare(
            "batch independence",
            _relative(z, self.z[rows]),
            _relative(log_abs_det, self.log_abs_det[rows]),
        )


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
