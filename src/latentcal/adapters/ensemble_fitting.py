"""from_samples: a flow for ensembles, with a choice of shrinkage, bias and law."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.paired import mean_and_error
from .._internal.validate import as_rows
from ..base import student_t
from .ensembles import SMALLEST, SampleFlow, default_shrinkage, describe_members, order_dims
from .student_fit import StudentFit, fit_student

_SHRINKAGES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)  # shrinkages of correlations
_PULLS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)  # shrinkages of spreads
_FOLDS = 5
_FEWEST = 30  # fewest rows to choose a shrinkage


def from_samples(
    x: Any,
    y: Any = None,
    *,
    features: int = 0,
    shrinkage: float | Literal["auto"] = "auto",
) -> SampleFlow:
    r"""A flow whose condition is an ensemble of m members or draws, (n, m, d).

    The outputs are whitened with the mean and covariance of their ensemble. Without shrinkage and with m > d,
    if the observation and the members are exchangeable and normal, its radius follows exactly

    .. math:: |z|^2 \sim d\, F(d, m - d) \qquad \text{for } z = R^{-1/2} D^{-1} (y - \bar y) / c, \quad
              c^2 = \frac{m^2 - 1}{m (m - d)},

    and the base is the multivariate t law with m - d degrees of freedom. With shrinkage, or with m <= d, no
    exact law is known, and a scaled t law is fitted to the rows; this is also done if held-out rows
    contradict the exact law. With y, spreads are shrunk towards their usual size, and a constant bias of the
    members is removed, if that increases the held-out likelihood. The order of members does not matter. Laws
    and maps that depend on x use the mean and the log standard deviation of each output (with more than four
    outputs, their averages), and the further features. Constant members get a thousandth of the usual spread.

    ``flow.adjust(ensemble)``, also for a recalibrated flow, moves the members themselves.

    Args:
        x: (n, m, d) ensembles, as in :meth:`SampleFlow.read_features`, to estimate their usual size and
            spread.
        y: (n, d) observations, to choose bias, shrinkage and law.
        features: number of further features, passed as x = (ensemble, features).
        shrinkage: shrinkage of the correlations towards 0. ``"auto"`` chooses it by held-out likelihood of y;
            without y it is 0 if m > d + 2, and d / (m - 1 + d) otherwise.

    Examples:
        >>> ensembles = torch.randn(100, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> flow = from_samples(ensembles)
        >>> flow.base.radius
        StudentRadius()
        >>> flow(ensembles).sample((5,)).shape
        torch.Size([5, 100, 2])
    """
    pair = x if isinstance(x, tuple) else (x,)
    members = as_tensor(order_dims(pair[0]), "x")
    if members.dim() != 3 or min(members.shape[0], members.shape[2]) < 1 or members.shape[1] < 2:
        raise ValueError(
            f"x must be (n, m, d): n ensembles of m members with d outputs, m at least 2; got "
            f"{tuple(members.shape)}."
        )
    if (len(pair) == 2) != (features > 0):
        raise ValueError("Pass further features as x = (ensemble, features), with features=p.")
    dim = members.shape[2]
    described = describe_members(members)
    size = int(described[:, -1].median())  # number of members that are not missing
    spread = described[:, [dim + (j + 1) * (j + 2) // 2 - 1 for j in range(dim)]].sqrt()
    usual = spread.median(0).values
    usual = torch.where(usual > 0, usual, spread.mean(0))
    usual = torch.where(usual > 0, usual, members.double().nan_to_num().abs().amax((0, 1)).clamp(min=1e-3))
    floor = SMALLEST * usual
    chosen = shrinkage if shrinkage != "auto" else 0.0 if size > dim + 2 else default_shrinkage(size, dim)
    if chosen == 0 and size <= dim:
        raise ValueError(
            f"Correlations of {dim} outputs from {size} members are singular: shrinkage must be above 0."
        )
    if chosen == 0:
        flow = SampleFlow(0.0, 1.0, floor, None, features, student_t(dim, size - dim))
    else:
        flow = SampleFlow(chosen, 1.0, floor, None, features, student_t(dim, size - 1))
    return flow if y is None else _fit_law(flow, x, y, size, fixed=shrinkage != "auto")


def _fit_law(flow: SampleFlow, x: Any, y: Any, size: int, *, fixed: bool) -> SampleFlow:
    """The flow with bias, shrinkage of correlations and spreads, and t law fitted to rows."""
    dim = flow.base.dim
    x, y = as_rows(flow.read_features(x), y, outputs=dim)
    rows = _Rows(flow, x.to(torch.float64), y.to(torch.float64))
    if len(y) < _FEWEST:
        return flow
    first = _Kind(flow.shrinkage, 0.0, biased=False)
    best = simple = rows.prefer(first, first._replace(biased=True))
    if not fixed:
        # Spreads, correlations, and spreads again: both are poorly estimated from few members.
        best = rows.find_pull(best)
        best = max((best._replace(shrinkage=a) for a in _SHRINKAGES if a > 0 or size > dim), key=rows.score)
        best = rows.find_pull(best)
        simple = simple._replace(shrinkage=0.0) if size > dim else simple
        best = rows.prefer(simple, best)
    law = rows.fit(best)
    if best.shrinkage == best.pull == 0:
        exact = StudentFit(1.0, float(size - dim))
        if not rows.is_ahead(rows.hold_out(best), rows.hold_out(best, exact)):
            law = exact._replace(shift=law.shift)
    base = student_t(dim, law.freedom)
    return SampleFlow(best.shrinkage, law.scale, flow.floor, law.shift, flow.extra, base, best.pull)


class _Kind(NamedTuple):
    """Settings that are chosen before a law is fitted."""

    shrinkage: float
    pull: float
    biased: bool


class _Rows:
    """Ensembles and outputs for the comparison of laws by cross-validation."""

    def __init__(self, flow: SampleFlow, x: Tensor, y: Tensor) -> None:
        self.flow, self.x, self.y = flow, x, y
        self.fold = torch.arange(len(y)) % _FOLDS
        self._known: dict[_Kind, Tensor] = {}

    def fit(self, kind: _Kind) -> StudentFit:
        """The t law fitted to all rows."""
        z, design, _ = self._whiten(kind)
        return fit_student(z, design if kind.biased else None)

    def find_pull(self, kind: _Kind) -> _Kind:
        """The kind with the best shrinkage of spreads."""
        return max((kind._replace(pull=g) for g in _PULLS), key=self.score)

    def prefer(self, simple: _Kind, rich: _Kind) -> _Kind:
        """The richer kind if it is clearly ahead on held-out rows, otherwise the simple one."""
        return rich if self.is_ahead(self.hold_out(rich), self.hold_out(simple)) else simple

    def score(self, kind: _Kind) -> float:
        """Mean held-out log-likelihood."""
        return float(self.hold_out(kind).mean())

    def hold_out(self, kind: _Kind, law: StudentFit | None = None) -> Tensor:
        """Log-likelihood of rows (n,) under t laws of the other folds, or under ``law`` with their shifts."""
        if law is None and kind in self._known:
            return self._known[kind]
        z, design, log_abs_det = self._whiten(kind)
        held_out = log_abs_det.clone()
        for number in range(_FOLDS):
            seen, rows = self.fold != number, self.fold == number
            fitted = fit_student(z[seen], design[seen] if kind.biased else None)
            rest = z[rows] if fitted.shift is None else z[rows] - design[rows] @ fitted.shift
            held_out[rows] += (law or fitted).log_density((rest**2).sum(-1), z.shape[1])
        if law is None:
            self._known[kind] = held_out
        return held_out

    def is_ahead(self, one: Tensor, other: Tensor) -> bool:
        """Whether the first is ahead by more than the standard error of the difference."""
        gain, error = mean_and_error(one - other, torch.ones_like(one), contiguous=False, folds=_FOLDS)
        return gain > error

    def _whiten(self, kind: _Kind) -> tuple[Tensor, Tensor, Tensor]:
        """Whitened outputs (n, d), the whitening matrices, and their log-determinants."""
        plain = SampleFlow(kind.shrinkage, 1.0, self.flow.floor, None, self.flow.extra, None, kind.pull)
        mean, design, _, log_abs_det = plain.whiten(self.x)
        return (design @ (self.y - mean)[..., None])[..., 0], design, log_abs_det
