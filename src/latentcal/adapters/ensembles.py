"""Ensembles and samplers as flows: members are whitened by their own mean and covariance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._internal.numerics import as_tensor, to_tensor
from .._internal.paired import mean_and_error
from .._internal.validate import as_number, as_rows, as_seed, as_whole, check_features
from ..base import RadialBase, base_or_normal, student_t
from ..flow import ConditionalFlow
from ..toy import draw_from
from .quantiles import join_summary, name_summary

MEMBER_NAMES = ("member", "members", "number", "realization", "ensemble", "sample", "draw")
"""Names by which the dimension of members is found in an xarray."""
_SMALLEST = 1e-3  # spread of an output, in units of its usual spread
_SHRINKAGES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_FREEDOMS = (2.5, 4.0, 6.0, 10.0, 20.0, 50.0, 200.0)
_FOLDS = 5
_FEWEST = 30  # rows to choose a shrinkage by
_ROWS = 1000  # that a sampler is asked for at a time


class SampleFlow(ConditionalFlow):
    r"""Outputs whitened by mean and shrunk covariance of an ensemble; see :func:`from_samples`.

    .. math:: z = \frac1c\, \tilde R^{-1/2} D^{-1} (y - \bar y - b), \qquad
              \tilde R = (1 - a) R + a I

    with the standard deviations D and correlations R of the members and a bias b. Unshrunk, with m > d
    members, :math:`c^2 = (m^2 - 1) / (m (m - d))`; else :math:`c^2 = s^2 (m + 1) / m`. Where a = 0 but an
    ensemble has m <= d members, its R is singular and is shrunk by :math:`d / (m - 1 + d)`. x holds the mean
    of each ensemble, the lower triangle of its covariance, the number of members, then further features.

    Args:
        shrinkage: a, from 0 to 1.
        scale: s.
        floor: (d,) smallest standard deviations.
        bias: (d,) b; 0 if None.
        extra: number of further features.
        base: law of z; N(0, I) if None.
    """

    floor: Tensor
    bias: Tensor

    def __init__(
        self,
        shrinkage: float,
        scale: float,
        floor: Tensor,
        bias: Tensor | None = None,
        extra: int = 0,
        base: RadialBase | None = None,
    ) -> None:
        super().__init__(base_or_normal(base, len(floor), "the ensemble"))
        if not 0 <= as_number(shrinkage, "shrinkage") <= 1 or not 0 < as_number(scale, "scale") < np.inf:
            raise ValueError(f"shrinkage must be from 0 to 1 and scale positive, got {shrinkage}, {scale}.")
        if floor.dim() != 1 or not bool((floor > 0).all()):
            raise ValueError("floor must be (d,) and positive.")
        self.shrinkage, self.scale, self.extra = float(shrinkage), float(scale), as_whole(extra, "extra", 0)
        bias = torch.zeros_like(floor) if bias is None else bias
        if bias.shape != floor.shape:
            raise ValueError(f"bias must be (d,) like floor, got {tuple(bias.shape)}.")
        self.register_buffer("floor", floor)
        self.register_buffer("bias", bias)

    @property
    def hint(self) -> str:  # type: ignore[override]
        """What a law of the radius cannot repair; empty for one output."""
        if self.base.dim == 1:
            return ""
        return (
            "The covariance of the members need not be that of the outputs, and a law of the radius only "
            "makes it wider or narrower. autocalibrate(flow, x, y) also learns shifts and directions."
        )

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, inverse, _, log_abs_det = self._whitening(x)
        z = _multiply(inverse, y - mean - self.bias)
        return z, log_abs_det.expand(z.shape[:-1])

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        mean, _, root, _ = self._whitening(x)
        return _multiply(root, z) + mean + self.bias

    def read_features(self, x: Any) -> Tensor:
        """Mean, covariance and size of each ensemble, and further features, as one tensor (n, p).

        Args:
            x: (..., m, d) members, of which those with ``nan`` are missing; an xarray whose dimension of
                members has one of the usual names (``member``, ``number``, ``realization``, ``sample``, ...)
                and whose last other dimension holds the outputs; or, where there are further features, a pair
                of members and features. The tensor that this gives is taken as it is.
        """
        features = None
        if isinstance(x, tuple):
            x, features = x
        x, dim = to_tensor(_order_dims(x), "x"), self.base.dim
        width = dim + dim * (dim + 1) // 2 + 1 + self.extra
        if x.dim() >= 2 and x.shape[-1] == dim:
            x = describe_members(x)
            if features is not None:
                x = torch.cat([x, to_tensor(features, "features").to(x)], -1)
        if x.dim() == 0 or x.shape[-1] != width:
            further = f", with {self.extra} further features beside them in a pair" if self.extra else ""
            raise ValueError(
                f"x must be the members of each ensemble, (n, m, {dim}){further}; got {tuple(x.shape)}."
            )
        return x

    def summarize(self, x: Tensor | None) -> Tensor | None:  # type: ignore[override]
        """Mean and log standard deviation of each output (of more than four, their means), then features."""
        if x is None:
            return None
        mean, covariance, _ = self._parts(x)
        spread = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().maximum(self.floor)
        return join_summary(mean, spread, x[..., x.shape[-1] - self.extra :])

    def name_summary(self) -> list[str]:
        return name_summary(self.base.dim, self.extra)

    @torch.no_grad()
    def adjust(self, ensemble: Any, model: ConditionalFlow | None = None) -> Tensor:
        """The members moved to where the recalibrated law has its mass, (n, m, d) -> (n, m, d).

        Each member keeps its direction from the centre of its ensemble, in whitened units; its distance
        becomes the quantile of the law of the radius that belongs to its rank. So members and paths keep
        their identity, and their dependence in the way that the model corrects it.

        Args:
            ensemble: (n, m, d) members; missing ones stay missing. With further features, a pair.
            model: what this flow was recalibrated to; the flow itself if None.
        """
        model = self if model is None else model
        pred = model(ensemble)
        members = to_tensor(_order_dims(ensemble[0] if isinstance(ensemble, tuple) else ensemble), "x")
        y = members.movedim(-2, 0).to(self.floor)
        missing = torch.isnan(y).any(-1)
        z = self.latent(torch.where(missing[..., None], 0.0, y + self.bias), pred.context)
        norms = self.base.norm_of(z)
        ranks = norms.masked_fill(missing, np.inf).argsort(0).argsort(0)
        levels = ((ranks + 0.5) / (~missing).sum(0)).clamp(max=1 - 1e-9)
        ratio = pred.base.radius.icdf(levels.to(torch.float64)) / norms.clamp(min=1e-100)
        moved = pred.decode(z * ratio[..., None])
        moved = moved.masked_fill(missing[..., None], np.nan).movedim(0, -2)
        return moved.to(members.dtype) if members.is_floating_point() else moved

    def _parts(self, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (..., d), covariance (..., d, d) and number of members (...,) of ensembles."""
        dim = self.base.dim
        below = dim * (dim + 1) // 2
        x = check_features(x, dim + below + 1 + self.extra)
        covariance = x.new_zeros(*x.shape[:-1], dim, dim)
        j, k = torch.tril_indices(dim, dim)
        covariance[..., j, k] = x[..., dim : dim + below]
        covariance[..., k, j] = x[..., dim : dim + below]
        return x[..., :dim], covariance, x[..., dim + below]

    def _whitening(self, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean (..., d), the map to z and its inverse (..., d, d), and the log-determinant of the first."""
        mean, covariance, count = self._parts(x)
        dim = self.base.dim
        spread = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        spread = torch.maximum(spread, torch.maximum(self.floor, 1e-12 * mean.abs()))
        singular = (count <= dim) & (self.shrinkage == 0)
        shrinkage = torch.where(singular, default_shrinkage(count, dim), self.shrinkage)[..., None, None]
        correlation = (1 - shrinkage) * covariance / (spread[..., None] * spread[..., None, :])
        variances, axes = torch.linalg.eigh(
            correlation.diagonal_scatter(torch.ones_like(mean), dim1=-2, dim2=-1)
        )
        variances = variances.clamp(min=1e-8)
        exact = (count > dim) if self.shrinkage == 0 else torch.zeros_like(count, dtype=torch.bool)
        factor = torch.where(
            exact,
            (count**2 - 1) / (count * (count - dim).clamp(min=1)),
            self.scale**2 * (count + 1) / count,
        ).sqrt()
        units, roots = factor[..., None] * spread, variances.sqrt()[..., None, :]
        inverse = (axes / roots) @ axes.mT / units[..., None, :]
        root = units[..., None] * ((axes * roots) @ axes.mT)
        log_abs_det = -0.5 * variances.log().sum(-1) - spread.log().sum(-1) - dim * factor.log()
        return mean, inverse, root, log_abs_det


def default_shrinkage(size: Any, dim: int) -> Any:
    """Shrinkage of the correlations of d outputs by m members where no rows tell a better one."""
    return dim / (size - 1 + dim)


def _multiply(matrix: Tensor, points: Tensor) -> Tensor:
    """(..., d, d), (s, ..., d) -> (s, ..., d); unlike ``@``, without a copy of the matrix for each s."""
    return torch.einsum("...jk,...k->...j", matrix, points)


def describe_members(members: Tensor) -> Tensor:
    """Mean, lower triangle of the covariance and number of members, (..., m, d) -> (..., p), in float64."""
    members = members.to(torch.float64)
    if bool(torch.isinf(members).any()):
        raise ValueError(
            "Members of ensembles must be finite, or nan where they are missing; some are infinite."
        )
    present = ~torch.isnan(members).any(-1, keepdim=True)
    count = present.sum(-2)
    if bool((count < 2).any()):
        raise ValueError(
            f"{int((count < 2).sum())} of {count.numel()} ensembles have fewer than 2 members that are "
            "complete; a spread takes two. Drop these rows."
        )
    zeroed = torch.where(present, members, 0.0)
    mean = zeroed.sum(-2) / count
    centred = torch.where(present, members - mean[..., None, :], 0.0)
    covariance = centred.mT @ centred / (count - 1)[..., None]
    j, k = torch.tril_indices(members.shape[-1], members.shape[-1])
    return torch.cat([mean, covariance[..., j, k], count.to(mean)], -1)


def _order_dims(x: Any) -> Any:
    """An xarray with members and outputs last; anything else as it is."""
    dims = getattr(x, "dims", None)
    if dims is None or not hasattr(x, "transpose") or isinstance(x, Tensor):
        return x
    found = [name for name in dims if str(name).lower() in MEMBER_NAMES]
    if len(found) != 1:
        raise ValueError(
            f"One dimension must hold the members, under one of the names {list(MEMBER_NAMES)}; there are "
            f"{list(dims)}. Rename it: x.rename({{...: 'member'}})."
        )
    others = [name for name in dims if name != found[0]]
    return x.transpose(*others[:-1], found[0], others[-1]).to_numpy()


def from_samples(
    x: Any,
    y: Any = None,
    *,
    features: int = 0,
    shrinkage: float | Literal["auto"] = "auto",
) -> SampleFlow:
    r"""A flow whose condition is an ensemble of m members or draws, (n, m, d).

    The outputs are whitened by mean and covariance of their ensemble. Where that is not shrunk and m > d, the
    radius of an observation that is exchangeable with normal members is exactly

    .. math:: |z|^2 \sim d\, F(d, m - d) \qquad \text{for } z = R^{-1/2} D^{-1} (y - \bar y) / c, \quad
              c^2 = \frac{m^2 - 1}{m (m - d)},

    and the base is the multivariate t law with m - d degrees of freedom. Shrunk, or with m <= d, no exact law
    is known: a t law with a scale is fitted to rows. With y, a constant bias of the members is taken out
    where that raises the held-out likelihood. The order of members does not matter. Laws and maps that
    depend on x see the mean and the log standard deviation of each output, of more than four outputs the
    means of both, and the further features. Constant members have a thousandth of the usual spread.

    ``flow.adjust(ensemble)``, also of a recalibrated one, moves the members themselves.

    Args:
        x: (n, m, d) ensembles, as in :meth:`SampleFlow.read_features`; they tell usual size and spread.
        y: (n, d) what came, by which bias, shrinkage and law are chosen.
        features: number of further features that are given beside the ensemble, x = (ensemble, features).
        shrinkage: of the correlations towards 0. ``"auto"`` chooses by held-out likelihood of y; without y
            it is 0 where m > d + 2, and d / (m - 1 + d) else.

    Examples:
        >>> ensembles = torch.randn(100, 20, 2, generator=torch.Generator().manual_seed(0))
        >>> flow = from_samples(ensembles)
        >>> flow.base.radius
        StudentRadius()
        >>> flow(ensembles).sample((5,)).shape
        torch.Size([5, 100, 2])
    """
    pair = x if isinstance(x, tuple) else (x,)
    members = as_tensor(_order_dims(pair[0]), "x")
    if members.dim() != 3 or min(members.shape[0], members.shape[2]) < 1 or members.shape[1] < 2:
        raise ValueError(
            f"x must be (n, m, d): n ensembles of m members with d outputs, m at least 2; got "
            f"{tuple(members.shape)}."
        )
    if (len(pair) == 2) != (features > 0):
        raise ValueError("Further features are given as x = (ensemble, features), with features=p.")
    dim = members.shape[2]
    described = describe_members(members)
    size = int(described[:, -1].median())  # of members that are not missing
    spread = described[:, [dim + (j + 1) * (j + 2) // 2 - 1 for j in range(dim)]].sqrt()
    usual = spread.median(0).values
    usual = torch.where(usual > 0, usual, spread.mean(0))
    usual = torch.where(usual > 0, usual, members.double().nan_to_num().abs().amax((0, 1)).clamp(min=1e-3))
    floor = _SMALLEST * usual
    chosen = shrinkage if shrinkage != "auto" else 0.0 if size > dim + 2 else default_shrinkage(size, dim)
    if chosen == 0 and size <= dim:
        raise ValueError(
            f"Correlations of {dim} outputs by {size} members are singular: shrinkage must be above 0."
        )
    if chosen == 0:
        flow = SampleFlow(0.0, 1.0, floor, None, features, student_t(dim, size - dim))
    else:
        flow = SampleFlow(chosen, 1.0, floor, None, features, student_t(dim, size - 1))
    return flow if y is None else _fit_law(flow, x, y, size, fixed=shrinkage != "auto")


def _fit_law(flow: SampleFlow, x: Any, y: Any, size: int, *, fixed: bool) -> SampleFlow:
    """The flow with the shrinkage, and for shrunk covariances the t law, that rows like best."""
    dim = flow.base.dim
    x, y = as_rows(flow.read_features(x), y, outputs=dim)
    x, y = x.to(torch.float64), y.to(torch.float64)
    if len(y) < _FEWEST:
        return flow
    fold = torch.arange(len(y)) % _FOLDS
    centred = y - x[:, :dim]
    outside = torch.stack([centred[fold != number].mean(0) for number in range(_FOLDS)])[fold]

    def hold_out(shrinkage: float, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Log-likelihood of rows (n,), by a t law from the other folds, and squared latent norms."""
        z, log_abs_det = SampleFlow(shrinkage, 1.0, flow.floor, extra=flow.extra).encode(y - bias, x)
        square, held_out = (z**2).sum(-1), log_abs_det.clone()
        for number in range(_FOLDS):
            law = _fit_student(square[fold != number], dim)
            held_out[fold == number] += _student_log_density(square[fold == number], dim, *law)
        return held_out, square

    def is_ahead(one: Tensor, other: Tensor) -> bool:
        weights = torch.ones(len(y), dtype=torch.float64)
        gain, error = mean_and_error(one - other, weights, contiguous=False, folds=_FOLDS)
        return gain > error

    first, none = flow.shrinkage, torch.zeros_like(y)
    biased = is_ahead(hold_out(first, outside)[0], hold_out(first, none)[0])
    bias, removed = (centred.mean(0), outside) if biased else (none[0], none)
    shrinkages = [a for a in _SHRINKAGES if a > 0 or size > dim]
    tried = {a: hold_out(a, removed) for a in ([first] if fixed else shrinkages)}
    best = max(tried, key=lambda a: float(tried[a][0].mean()))
    if 0 in tried and not is_ahead(tried[best][0], tried[0.0][0]):
        best = 0.0
    if best == 0:
        return SampleFlow(0.0, 1.0, flow.floor, bias, flow.extra, student_t(dim, size - dim))
    scale, freedom = _fit_student(hold_out(best, removed)[1], dim)
    return SampleFlow(best, scale, flow.floor, bias, flow.extra, student_t(dim, freedom))


def _fit_student(square: Tensor, dim: int) -> tuple[float, float]:
    """Scale and degrees of freedom of a t law of vectors with these squared norms (n,)."""
    fits = []
    for freedom in _FREEDOMS:
        variance = square.mean() / dim
        for _ in range(30):  # of the EM algorithm
            weights = (freedom + dim) / (freedom + square / variance)
            variance = (weights * square).mean() / dim
        law = (float(variance.clamp(min=1e-12).sqrt()), freedom)
        fits.append((float(_student_log_density(square, dim, *law).mean()), law))
    return max(fits)[1]


def _student_log_density(square: Tensor, dim: int, scale: float, freedom: float) -> Tensor:
    law = student_t(dim, freedom)
    return law.log_prob_at_norm(square.sqrt() / scale) - dim * np.log(scale)


class SamplerFlow(ConditionalFlow):
    """A flow around a sampler, whitened by draws that are kept for each x; see :func:`from_sampler`.

    Args:
        draw: x (n, p) -> draws (s, n, d).
        flow: that takes the draws of an x as its ensemble.
        members: draws of each x.
        dtype: of x, as the sampler takes it.
        seed: of torch's generators while draws are made.
    """

    def __init__(
        self, draw: Callable[[Tensor], Any], flow: SampleFlow, members: int, dtype: torch.dtype, seed: int
    ) -> None:
        super().__init__(flow.base)
        self.flow, self.members, self.dtype, self.seed = flow, members, dtype, seed
        self._draw = (draw,)  # not as a part of this module, whose dtype it would set
        self._kept: dict[bytes, Tensor] = {}

    @property
    def hint(self) -> str:  # type: ignore[override]
        """What a law of the radius cannot repair; empty for one output."""
        return self.flow.hint

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.flow.encode(y, self.describe(x))

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self.flow.decode(z, self.describe(x))

    @torch.no_grad()
    def describe(self, x: Tensor | None) -> Tensor:
        """Mean, covariance and number of the draws at x, (..., p) -> (..., q); of one x always the same."""
        if x is None:
            raise ValueError("A sampler is asked at x, which is None.")
        rows = x.detach().reshape(-1, x.shape[-1]).to("cpu", torch.float64)
        keys = [row.tobytes() for row in rows.numpy()]
        new = {key: i for i, key in enumerate(keys) if key not in self._kept}
        for part in torch.tensor(list(new.values()), dtype=torch.long).split(_ROWS) if new else ():
            drawn = draw_members(self._draw[0], rows[part].to(self.dtype), self.members, self.seed)
            for i, description in zip(part.tolist(), describe_members(drawn), strict=True):
                self._kept[keys[i]] = description
        kept = torch.stack([self._kept[key] for key in keys]) if keys else rows.new_empty(0, self._width)
        return kept.reshape(*x.shape[:-1], self._width).to(self.flow.floor)

    @property
    def _width(self) -> int:
        dim = self.base.dim
        return dim + dim * (dim + 1) // 2 + 1


def draw_members(draw: Callable[[Tensor], Any], x: Tensor, members: int, seed: int) -> Tensor:
    """Draws at x (n, p) as members, (n, m, d)."""
    parts: list[Tensor] = []
    with draw_from(torch.Generator().manual_seed(seed)):
        while sum(map(len, parts)) < members:
            draws = as_tensor(draw(x), "draws")
            draws = draws[None] if draws.dim() == 2 else draws
            if draws.dim() != 3 or draws.shape[1] != len(x) or not len(draws):
                raise ValueError(
                    f"draw(x) must give (s, n, d), draws in front, for n = {len(x)} rows; got "
                    f"{tuple(draws.shape)}."
                )
            parts.append(draws.cpu())
    return torch.cat(parts)[:members].movedim(0, 1)


def from_sampler(
    draw: Callable[[Tensor], Any], x: Any, y: Any = None, *, members: int = 200, seed: int = 0
) -> SamplerFlow:
    """A flow from a function x -> draws: a diffusion model, a VAE, a Bayesian model, any sampler.

    The draws at an x are made once and kept; see :func:`from_samples` for what they become. Laws and maps
    that depend on x see x itself.

    Args:
        draw: x (n, p) -> (s, n, d), or (n, d) for one draw; called until there are enough.
        x: (n, p) features of some rows.
        y: (n, d) what came there, by which shrinkage and law are chosen.
        members: draws of each x.
        seed: of torch's generators while draws are made.

    Examples:
        >>> draw = lambda x: x[:, :1] + torch.randn(50, len(x), 2)
        >>> x = torch.zeros(40, 1)
        >>> flow = from_sampler(draw, x, members=100)
        >>> flow(x).log_prob(torch.zeros(40, 2)).shape
        torch.Size([40])
    """
    if not callable(draw):
        raise TypeError(f"draw must be a function x -> draws (s, n, d), got {type(draw).__name__}.")
    members, seed = as_whole(members, "members", 2), as_seed(seed)
    x = as_tensor(x, "x")
    if x.dim() != 2 or not len(x):
        raise ValueError(f"x must be (n, p), some rows at which to draw, got {tuple(x.shape)}.")
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    with torch.no_grad():
        drawn = draw_members(draw, x.to(dtype), members, seed)
    flow = SamplerFlow(draw, from_samples(drawn, y), members, dtype, seed)
    keys = (row.tobytes() for row in x.to(dtype).to(torch.float64).cpu().numpy())
    flow._kept.update(zip(keys, describe_members(drawn), strict=True))
    return flow
