"""Ensembles as flows: outputs are whitened with the mean and covariance of the members."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import to_tensor
from .._internal.validate import as_number, as_whole, check_features
from ..base import RadialBase, base_or_normal
from ..flow import ConditionalFlow
from .quantiles import join_summary, name_summary

MEMBER_NAMES = ("member", "members", "number", "realization", "ensemble", "sample", "draw")
"""Recognised names for the dimension of members in an xarray."""
SMALLEST = 1e-3
"""Least spread of an output, in units of its usual spread."""
_QUANTILES = 1000  # draws to compute quantiles for members


class SampleFlow(ConditionalFlow):
    r"""Outputs whitened with the mean and shrunk covariance of an ensemble; see :func:`from_samples`.

    .. math:: z = \frac1c\, \tilde R^{-1/2} \tilde D^{-1} (y - \bar y - b), \qquad
              \tilde R = (1 - a) R + a I, \quad \tilde D^2 = (1 - g) D^2 + g U^2

    Here D and R are the standard deviations and correlations of the members, U the usual standard deviations
    of other ensembles, and b a bias. Without shrinkage and with m > d members, :math:`c^2 = s^2 (m^2 - 1) /
    (m (m - d))`; otherwise :math:`c^2 = s^2 (m + 1) / m`. If a = 0 but an ensemble has m <= d members, its R
    is singular and is shrunk by :math:`d / (m - 1 + d)`. x holds the mean of each ensemble, the lower
    triangle of its covariance, the number of members, then further features.

    Args:
        shrinkage: a, from 0 to 1.
        scale: s.
        floor: (d,) smallest standard deviations, a thousandth of U.
        bias: (d,) b; 0 if None.
        extra: number of further features.
        base: law of z; N(0, I) if None.
        pull: g, from 0 to 1.
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
        pull: float = 0.0,
    ) -> None:
        super().__init__(base_or_normal(base, len(floor), "the ensemble"))
        if not all(0 <= as_number(*each) <= 1 for each in ((shrinkage, "shrinkage"), (pull, "pull"))):
            raise ValueError(f"shrinkage and pull must be from 0 to 1, got {shrinkage} and {pull}.")
        if not 0 < as_number(scale, "scale") < np.inf:
            raise ValueError(f"scale must be positive, got {scale}.")
        if floor.dim() != 1 or not bool((floor > 0).all()):
            raise ValueError("floor must be (d,) and positive.")
        self.shrinkage, self.scale, self.pull = float(shrinkage), float(scale), float(pull)
        self.extra = as_whole(extra, "extra", 0)
        bias = torch.zeros_like(floor) if bias is None else bias
        if bias.shape != floor.shape:
            raise ValueError(f"bias must be (d,) like floor, got {tuple(bias.shape)}.")
        self.register_buffer("floor", floor)
        self.register_buffer("bias", bias)

    @property
    def hint(self) -> str:  # type: ignore[override]
        """Sentence on what no law of the radius can repair; empty for one output."""
        if self.base.dim == 1:
            return ""
        return (
            "The covariance of the members may differ from that of the outputs, and a law of the radius can "
            "only widen or narrow it. autocalibrate(flow, x, y) also learns shifts and directions."
        )

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean, inverse, _, log_abs_det = self.whiten(x)
        z = _multiply(inverse, y - mean - self.bias)
        return z, log_abs_det.expand(z.shape[:-1])

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        mean, _, root, _ = self.whiten(x)
        return _multiply(root, z) + mean + self.bias

    def read_features(self, x: Any) -> Tensor:
        """Mean, covariance and size of each ensemble, and further features, as one tensor (n, p).

        Args:
            x: (..., m, d) members, where ``nan`` marks missing ones; an xarray whose dimension of members has
                a usual name (``member``, ``number``, ``realization``, ``sample``, ...) and whose last other
                dimension is that of the outputs; or, with further features, a pair of members and features.
                A tensor returned by this method is accepted unchanged.
        """
        features = None
        if isinstance(x, tuple):
            x, features = x
        x, dim = to_tensor(order_dims(x), "x"), self.base.dim
        width = dim + dim * (dim + 1) // 2 + 1 + self.extra
        if x.dim() >= 2 and x.shape[-1] == dim:
            x = describe_members(x)
            if features is not None:
                x = torch.cat([x, to_tensor(features, "features").to(x)], -1)
        if x.dim() == 0 or x.shape[-1] != width:
            further = f", in a pair with {self.extra} further features" if self.extra else ""
            raise ValueError(
                f"x must be the members of each ensemble, (n, m, {dim}){further}; got {tuple(x.shape)}."
            )
        return x

    def summarize(self, x: Tensor | None) -> Tensor | None:  # type: ignore[override]
        """Mean and log standard deviation of each output (averaged if more than four), then features."""
        if x is None:
            return None
        mean, covariance, _ = self._parts(x)
        spread = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt().maximum(self.floor)
        return join_summary(mean, spread, x[..., x.shape[-1] - self.extra :])

    def name_summary(self) -> list[str]:
        return name_summary(self.base.dim, self.extra)

    @torch.no_grad()
    def adjust(self, ensemble: Any, model: ConditionalFlow | None = None) -> Tensor:
        """The members, moved to follow the recalibrated law, (n, m, d) -> (n, m, d).

        Each member keeps its direction from the centre of its whitened ensemble, and its distance becomes the
        quantile of the law of the radius at its rank. Then, within each output, the members are set to the
        quantiles of the recalibrated law at their ranks, as in ensemble copula coupling. Members and paths
        therefore keep their identity and their order.

        Args:
            ensemble: (n, m, d) members; missing ones stay missing. With further features, a pair.
            model: the recalibrated version of this flow; the flow itself if None.
        """
        model = self if model is None else model
        x = self.read_features(ensemble)
        members = to_tensor(order_dims(ensemble[0] if isinstance(ensemble, tuple) else ensemble), "x")
        y, x = members.reshape(-1, *members.shape[-2:]), x.reshape(-1, x.shape[-1])
        size = rows_at_a_time(_QUANTILES * self.base.dim)
        parts = [self._move(*part, model) for part in zip(y.split(size), x.split(size), strict=True)]
        moved = torch.cat(parts).reshape(members.shape) if parts else y.to(self.floor)
        return moved.to(members.dtype) if members.is_floating_point() else moved

    def _move(self, members: Tensor, x: Tensor, model: ConditionalFlow) -> Tensor:
        """Members (n, m, d) with the description x (n, p), moved."""
        pred = model(x)
        y = members.movedim(1, 0).to(self.floor)
        missing = torch.isnan(y).any(-1)
        z = self.latent(torch.where(missing[..., None], 0.0, y + self.bias), pred.context)
        z = _round(z.masked_fill(missing[..., None], 0.0))
        norms, count = self.base.norm_of(z), (~missing).sum(0)
        levels = (_rank(norms.masked_fill(missing, np.inf)) + 0.5) / count
        ratio = pred.base.radius.icdf(levels.clamp(max=1 - 1e-9).to(torch.float64)) / norms.clamp(min=1e-100)
        moved = pred.decode(z * ratio[..., None]).masked_fill(missing[..., None], np.inf)
        quantiles = pred.sample((_QUANTILES,), torch.Generator().manual_seed(0)).sort(0).values
        levels = (_rank(moved) + 0.5) / count[:, None]
        place = (levels * _QUANTILES).long().clamp(max=_QUANTILES - 1)
        return quantiles.gather(0, place).masked_fill(missing[..., None], np.nan).movedim(0, 1)

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

    def whiten(self, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean (..., d), the map to z and its inverse (..., d, d), and the log-determinant of the first."""
        mean, covariance, count = self._parts(x)
        dim = self.base.dim
        spread = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
        spread = torch.maximum(spread, torch.maximum(self.floor, 1e-12 * mean.abs()))
        singular = (count <= dim) & (self.shrinkage == 0)
        shrinkage = torch.where(singular, default_shrinkage(count, dim), self.shrinkage)[..., None, None]
        correlation = (1 - shrinkage) * covariance / (spread[..., None] * spread[..., None, :])
        spread = ((1 - self.pull) * spread**2 + self.pull * (self.floor / SMALLEST) ** 2).sqrt()
        variances, axes = torch.linalg.eigh(
            correlation.diagonal_scatter(torch.ones_like(mean), dim1=-2, dim2=-1)
        )
        variances = variances.clamp(min=1e-8)
        exact = (count > dim) & (self.shrinkage == 0) & (self.pull == 0)
        widening = torch.where(exact, (count - 1) / (count - dim).clamp(min=1), 1.0)
        factor = self.scale * ((count + 1) / count * widening).sqrt()
        units, roots = factor[..., None] * spread, variances.sqrt()[..., None, :]
        inverse = (axes / roots) @ axes.mT / units[..., None, :]
        root = units[..., None] * ((axes * roots) @ axes.mT)
        log_abs_det = -0.5 * variances.log().sum(-1) - spread.log().sum(-1) - dim * factor.log()
        return mean, inverse, root, log_abs_det


def default_shrinkage(size: Any, dim: int) -> Any:
    """Default shrinkage of the correlations of d outputs from m members."""
    return dim / (size - 1 + dim)


def _multiply(matrix: Tensor, points: Tensor) -> Tensor:
    """Matrix times points, (..., d, d), (s, ..., d) -> (s, ..., d); unlike ``@``, copies no matrix."""
    return torch.einsum("...jk,...k->...j", matrix, points)


def _rank(values: Tensor) -> Tensor:
    """Ranks from 0 along the first dimension."""
    return values.argsort(0).argsort(0)


def _round(z: Tensor) -> Tensor:
    """Clouds (m, ..., d), rescaled to equal variance in every direction in which they vary."""
    variances, axes = torch.linalg.eigh(torch.einsum("m...j,m...k->...jk", z, z))
    varied = variances > 1e-8 * variances[..., -1:]
    stretch = torch.where(varied, variances, 1.0).rsqrt() * varied
    return _multiply((axes * stretch[..., None, :]) @ axes.mT, z)


def describe_members(members: Tensor) -> Tensor:
    """Mean, lower triangle of the covariance and number of members, (..., m, d) -> (..., p), in float64."""
    members = members.to(torch.float64)
    if bool(torch.isinf(members).any()):
        raise ValueError("Members of ensembles must be finite, or nan if missing; some are infinite.")
    present = ~torch.isnan(members).any(-1, keepdim=True)
    count = present.sum(-2)
    if bool((count < 2).any()):
        raise ValueError(
            f"{int((count < 2).sum())} of {count.numel()} ensembles have fewer than 2 complete members, too "
            "few for a spread. Drop these rows."
        )
    zeroed = torch.where(present, members, 0.0)
    mean = zeroed.sum(-2) / count
    centred = torch.where(present, members - mean[..., None, :], 0.0)
    covariance = centred.mT @ centred / (count - 1)[..., None]
    j, k = torch.tril_indices(members.shape[-1], members.shape[-1])
    return torch.cat([mean, covariance[..., j, k], count.to(mean)], -1)


def order_dims(x: Any) -> Any:
    """An xarray with the dimensions of members and outputs moved last; anything else is unchanged."""
    dims = getattr(x, "dims", None)
    if dims is None or not hasattr(x, "transpose") or isinstance(x, Tensor):
        return x
    found = [name for name in dims if str(name).lower() in MEMBER_NAMES]
    if len(found) != 1:
        raise ValueError(
            f"The dimension of the members must have one of the names {list(MEMBER_NAMES)}; got "
            f"{list(dims)}. Rename it: x.rename({{...: 'member'}})."
        )
    others = [name for name in dims if name != found[0]]
    return x.transpose(*others[:-1], found[0], others[-1]).to_numpy()
