"""The average of autoregressive flows as maps: an ensemble that has a latent."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._internal.numerics import broadcast_leading
from ..flow import ConditionalFlow
from .autoregressive import AutoregressiveFlow

_STEPS = 120  # of the root search, at most; a handful is enough where the maps are smooth


class AveragedFlow(ConditionalFlow):
    r"""The mean of k autoregressive maps, which is such a map again.

    .. math:: z_i = \frac1k \sum_m \tau_m\big(y_i;\, y_{<i}, x\big), \qquad
              \log|\det| = \sum_i \log \frac1k \sum_m \frac{\partial \tau_m}{\partial y_i}

    Each :math:`\tau_m` increases in :math:`y_i`, so the mean does, and it is a bijection. Flows that were
    trained on different parts of the rows err in different directions, and their mean errs less, as in any
    ensemble; unlike the mixture of their densities (:class:`~latentcal.recalibration.FlowEnsemble`) it keeps
    a latent, so all that needs one still works.

    Decoding goes through the coordinates one after the other; each is found between the smallest and the
    largest answer of the k maps.

    Args:
        flows: at least one flow of a single transform (``flows=1``), all with the same outputs, features and
            law of z.
    """

    flows: Sequence[AutoregressiveFlow]

    def __init__(self, flows: Sequence[AutoregressiveFlow]) -> None:
        members = list(flows)
        if not members or any(not isinstance(flow, AutoregressiveFlow) for flow in members):
            kinds = sorted({type(flow).__name__ for flow in members})
            raise TypeError(f"Maps of AutoregressiveFlow are averaged, got {', '.join(kinds) or 'none'}.")
        if stacked := [flow.flows for flow in members if flow.flows > 1]:
            raise ValueError(
                f"A mean of maps is a bijection where each is a single transform; got flows={stacked[0]}. "
                "Make them with flows=1."
            )
        first, base = members[0], members[0].base
        for flow in members[1:]:
            if (flow.dim, flow.features) != (first.dim, first.features):
                raise ValueError(
                    "All flows must have the same outputs and features; got "
                    f"({first.dim}, {first.features}) and ({flow.dim}, {flow.features})."
                )
            laws = [(type(each.norm), type(each.radius)) for each in (flow.base, base)]
            if laws[0] != laws[1]:
                raise ValueError("All flows must have the same law of z.")
        super().__init__(base)
        self.flows = nn.ModuleList(members)  # type: ignore[assignment]

    @property
    def features(self) -> int:
        """Number of features p."""
        return self.flows[0].features

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        maps, y = self._maps(y, x)
        z, log_slope = _mean_map(_join(maps, y.shape[:-1], range(self.base.dim)), y)
        return z, log_slope.sum(-1)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        if x is not None and self.features:
            z = broadcast_leading(x, z)[1]
        y = torch.zeros_like(z)
        for i in range(self.base.dim):  # whose map depends on those before it
            maps, goal = self._maps(y, x)[0], z[..., i : i + 1]
            map = _join(maps, y.shape[:-1], range(i, i + 1))
            with torch.no_grad():
                value = _solve(map, goal)
            if torch.is_grad_enabled():
                # A Newton step from the solution: its value is 0, its derivative that of the implicit
                # function.
                reached, log_slope = _mean_map(map, value)
                value = value - (reached - goal) * torch.exp(-log_slope.detach())
            y = torch.cat([y[..., :i], value, y[..., i + 1 :]], -1)
        return y

    def _maps(self, points: Tensor, x: Tensor | None) -> tuple[list[Any], Tensor]:
        """The members' maps of each coordinate, given those before it at the points; the points at x."""
        maps = [flow.coordinate_map(points, x) for flow in self.flows]
        return [map for map, _ in maps], maps[0][1]


class _Joint(NamedTuple):
    """The maps of k members as one transform of values (k, ..., c)."""

    map: Any
    members: int

    def spread(self, values: Tensor) -> Tensor:
        """The same values for all members, (..., c) -> (k, ..., c)."""
        return values.expand(self.members, *values.shape)


def _join(maps: Sequence[Any], leading: torch.Size, coordinates: range) -> _Joint:
    """The maps of some coordinates of points (*leading, d), of transforms that act on each by itself."""
    joint, axis = copy.copy(maps[0]), -2 if hasattr(maps[0], "horizontal") else -1  # knots come behind it
    joint._inv = None  # a copy would undo the whole map
    for name, value in vars(maps[0]).items():
        if isinstance(value, Tensor):
            parts = [getattr(map, name).narrow(axis, coordinates[0], len(coordinates)) for map in maps]
            setattr(joint, name, torch.stack([part.expand(*leading, *part.shape[axis:]) for part in parts]))
    return _Joint(joint, len(maps))


def _mean_map(joint: _Joint, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of maps of each coordinate, (..., c) -> (..., c), and the log of its slope."""
    z, log_slope = joint.map.call_and_ladj(joint.spread(y))
    return z.mean(0), torch.logsumexp(log_slope, 0) - math.log(joint.members)


def _solve(joint: _Joint, z: Tensor) -> Tensor:
    """y at which the mean of increasing maps is z: Newton steps, and halves where these do not help."""
    answers = joint.map.inv(joint.spread(z))
    low, high = answers.amin(0), answers.amax(0)
    y = answers.mean(0)
    tolerance = 4 * torch.finfo(z.dtype).eps * (1 + z.abs())
    before = torch.full_like(z, math.inf)
    for _ in range(_STEPS if joint.members > 1 else 0):
        reached, log_slope = _mean_map(joint, y)
        residual = reached - z
        if bool((residual.abs() <= tolerance).all()):
            break
        low, high = torch.where(residual < 0, y, low), torch.where(residual > 0, y, high)
        step = y - residual * torch.exp(-log_slope)
        is_good = (step > low) & (step < high) & (residual.abs() < before / 2)
        y, before = torch.where(is_good, step, (low + high) / 2), residual.abs()
    return y
