"""A law of the radius for each group of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .conditional import ConditionalRadius, given_features
from .law import RadiusLaw, as_float64
from .stacked import StackedRadius

_FEWEST = 10  # radii of a group that get a law of their own


class GroupedRadius(ConditionalRadius):
    """A law for each group of features (Mondrian), and one for everybody else.

    A group's law is a stack around the law of all: with few radii of its own it is near that one.

    Args:
        whole: law for groups that are not known.
        laws: law of each group.
        labels: (g,) their labels, ascending.
        groups: column of x that holds the label, or a function of x that gives it (not saved to files).
    """

    labels: Tensor
    laws: Sequence[RadiusLaw]

    def __init__(
        self,
        whole: RadiusLaw,
        laws: Sequence[RadiusLaw],
        labels: Tensor,
        groups: int | Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.whole, self.groups, self.upper = whole, groups, whole.upper
        self.laws = nn.ModuleList(laws)  # type: ignore[assignment]
        self.register_buffer("labels", as_float64(labels))

    @classmethod
    def of(
        cls,
        radii: Tensor,
        x: Tensor,
        reference: RadiusLaw,
        weights: Tensor,
        groups: int | Callable[[Tensor], Tensor],
        nodes: int,
    ) -> GroupedRadius:
        """The laws for radii (n,) at features (n, p)."""
        label = _label(x, groups)
        whole = StackedRadius.fit(radii, reference=reference, weights=weights, nodes=nodes)
        labels, member, counts = torch.unique(label, return_inverse=True, return_counts=True)
        if len(labels) > max(10, len(radii) // 2):
            raise ValueError(
                f"{len(radii)} rows fall into {len(labels)} groups: that is no grouping. Give the column of "
                "a label, or a function with few values."
            )
        known = (counts >= _FEWEST).nonzero().reshape(-1).tolist()
        laws = [
            StackedRadius.fit(radii[member == g], reference=whole, weights=weights[member == g], nodes=nodes)
            for g in known
        ]
        return cls(whole, laws, labels[known], groups)

    def refitted(
        self, radii: Tensor, x: Tensor | None, whole: RadiusLaw, fit: Callable[[Tensor, RadiusLaw], RadiusLaw]
    ) -> GroupedRadius:
        """The same groups with laws ``fit(radii, whole)`` of other radii, ``whole`` for few of them."""
        label = _label(given_features(x), self.groups)
        known = [value for value in self.labels.tolist() if int((label == value).sum()) >= _FEWEST]
        laws = [fit(radii[label == value], whole) for value in known]
        return GroupedRadius(whole, laws, self.labels.new_tensor(known), self.groups)

    def given(self, x: Tensor | None) -> RadiusLaw:
        match = _label(given_features(x), self.groups)[..., None] == self.labels
        group = torch.where(match.any(-1), match.to(torch.int8).argmax(-1) if len(self.labels) else 0, -1)
        return ChosenRadius([*self.laws, self.whole], group % (len(self.laws) + 1))


class ChosenRadius(RadiusLaw):
    """One of several laws for each radius.

    Args:
        laws: the laws.
        choice: (...) their numbers, of the shape of the radii.
    """

    choice: Tensor

    def __init__(self, laws: Sequence[RadiusLaw], choice: Tensor) -> None:
        super().__init__()
        self.laws = nn.ModuleList(laws)
        self.upper = laws[0].upper
        self.register_buffer("choice", choice)

    def log_prob(self, r: Tensor) -> Tensor:
        return self._chosen(lambda law, r: law.log_prob(r), r)

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        return self._chosen(lambda law, r: law.log_prob_untabulated(r), r)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self._chosen(lambda law, r: law.log_cdf(r), r)

    def log_sf(self, r: Tensor) -> Tensor:
        return self._chosen(lambda law, r: law.log_sf(r), r)

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        return self._chosen(lambda law, r: law.log_radial_density(r, dim), r)

    @torch.no_grad()
    def icdf_log_tails(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self._chosen(lambda law, *tails: law.icdf_log_tails(*tails), log_cdf, log_sf)

    def _chosen(self, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        choice, *parts = torch.broadcast_tensors(self.choice, *(as_float64(v) for v in values))
        answer = torch.empty_like(parts[0])
        for number in torch.unique(choice).tolist():
            mine = choice == number
            answer = answer.masked_scatter(mine, function(self.laws[number], *(part[mine] for part in parts)))
        return answer


def _label(x: Tensor, groups: Any) -> Tensor:
    if callable(groups):
        label = torch.as_tensor(groups(x))
        if label.shape != x.shape[:-1]:
            raise ValueError(
                f"groups must give one label a row, (..., p) -> (...); it gave {tuple(label.shape)} for "
                f"{tuple(x.shape)}."
            )
        return as_float64(label)
    if not -x.shape[-1] <= groups < x.shape[-1]:
        raise ValueError(f"groups is column {groups}, x has {x.shape[-1]}.")
    return as_float64(x[..., groups])
