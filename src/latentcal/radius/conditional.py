"""Laws of the radius that depend on features, by group or smoothly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._internal.smoothers import NeighbourSmoother, RidgeSmoother, Smoother
from .calibration_sample import CalibrationSample, fit_to_sample
from .folds import fold_numbers
from .law import RadiusLaw, as_float64
from .scaled import ScaledRadius
from .stacked import StackedRadius

_FOLDS = 5
_SMOOTHERS: dict[str, type[Smoother]] = {"ridge": RidgeSmoother, "neighbours": NeighbourSmoother}
_FEWEST = 10  # fewest radii for a group with its own law
_PRIOR = 500  # weight, in radii, of the law common to all groups


class ConditionalRadius(RadiusLaw):
    """A law that depends on features: ``given(x)`` is the law at x, with density, quantiles and samples.

    ``fit`` returns one of two kinds: :class:`GroupedRadius` or :class:`SmoothRadius`.
    """

    @classmethod
    @fit_to_sample
    def fit(
        cls,
        sample: CalibrationSample,
        *,
        groups: int | Callable[[Tensor], Tensor] | None = None,
        smoother: Literal["ridge", "neighbours"] = "ridge",
        shape: bool = True,
        fold: Tensor | None = None,
        nodes: int = 512,
    ) -> ConditionalRadius:
        """A law for radii (n,) at features (n, p).

        Args:
            sample: the calibration norms, their features and, as reference, the law that the model assumes.
            groups: column of x with group labels, or a function of x (..., p) -> (...) that returns them;
                None for a law that is smooth in x.
            smoother: ``"ridge"`` (additive in the features) or ``"neighbours"`` (any dependence on a few
                features).
            shape: whether the relative spread of the radius may also depend on x, in addition to its scale.
            fold: (n,) fold of each row for cross-fitting; if None, five folds that do not depend on the row
                order.
            nodes: see :meth:`StackedRadius.fit`.
        """
        from .smooth import SmoothRadius

        need = "ConditionalRadius.fit needs the features and the law that the model assumes"
        x, reference = sample.require_features(need), sample.require_reference(need)
        if groups is not None:
            check_groups(x, groups)
            return GroupedRadius.of(sample, groups, nodes)
        if smoother not in _SMOOTHERS:
            raise ValueError(f"smoother must be one of {sorted(_SMOOTHERS)}, got {smoother!r}.")
        if math.isfinite(reference.upper):
            raise ValueError(
                f"A law on [0, {reference.upper:g}] cannot be scaled by a function of x; pass groups."
            )
        if sample.n < 2:
            raise ValueError("A law that is smooth in x needs at least 2 radii of positive weight, got 1.")
        if fold is None:
            known = torch.cat([sample.radii[:, None], x.to(sample.radii)], 1)
            fold = fold_numbers(known, min(_FOLDS, sample.n))
        else:
            fold = fold[sample.kept]
        return SmoothRadius.of(sample, _SMOOTHERS[smoother], shape, fold, nodes)

    def log_prob(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def log_cdf(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def log_sf(self, r: Tensor) -> Tensor:
        raise self._needs_features()

    def _needs_features(self) -> TypeError:
        return TypeError(f"A {type(self).__name__} depends on x; use law.given(x).")


def require_features(x: Tensor | None) -> Tensor:
    """Features for a law; raises if there are none."""
    if x is None:
        raise ValueError("The law of the radius depends on x: pass the features.")
    return x


class GroupedRadius(ConditionalRadius):
    """A law for each group of features (Mondrian), and one for all other points.

    A group of n radii has its own scale, shrunk towards the common one. At that scale, its law is a mixture
    of the law common to all groups, with weight 500 / (n + 500), and its own law. On a bounded support, where
    there are no scales, the group has a stack around the common law.

    Args:
        whole: law for unknown groups.
        laws: law of each group.
        labels: (g,) labels of the groups, ascending.
        groups: column of x that holds the label, or a function of x that returns it (not saved to files).
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
        if labels.shape != (len(laws),):
            raise ValueError(f"{len(laws)} laws need {len(laws)} labels, got {tuple(labels.shape)}.")
        if any(law.upper != whole.upper for law in laws):
            raise ValueError(f"All laws must have the support of the law of all rows, [0, {whole.upper:g}].")
        self.whole, self.groups, self.upper = whole, groups, whole.upper
        self.laws = nn.ModuleList(laws)  # type: ignore[assignment]
        self.register_buffer("labels", as_float64(labels))

    @classmethod
    def of(
        cls, sample: CalibrationSample, groups: int | Callable[[Tensor], Tensor], nodes: int
    ) -> GroupedRadius:
        """Laws for a sample with features and a reference; unknown and small groups get the common law.

        Small groups have fewer than 10 radii. Labels are checked by :func:`check_groups` on all rows, because
        a part of them, such as the training rows of a fold, may have nearly as many groups as rows.
        """
        radii = sample.radii
        label = _label(require_features(sample.x), groups)
        whole = StackedRadius.fit(sample, nodes=nodes)
        labels, member, counts = torch.unique(label, return_inverse=True, return_counts=True)
        known = (counts >= _FEWEST).nonzero().reshape(-1).tolist()
        if math.isfinite(sample.upper):  # no scales: use stacks around the law of all rows
            around = replace(sample, reference=whole)
            stacks = [StackedRadius.fit(around.take(member == g), nodes=nodes) for g in known]
            return cls(whole, stacks, labels[known], groups)
        scales = torch.exp(_shrink_log_scales(radii, sample.weights, member, len(labels)))
        common = StackedRadius.fit(replace(sample, radii=radii / scales[member]), nodes=nodes)
        laws: list[RadiusLaw] = []
        for g in known:
            own = StackedRadius.fit(sample.take(member == g), nodes=nodes)
            borrowed = ScaledRadius(common, float(scales[g]))
            share = float(counts[g]) / (float(counts[g]) + _PRIOR)
            laws.append(
                StackedRadius(
                    [borrowed, own], radii.new_tensor([1 - share, share]), core=own.core, level=own.level
                )
            )
        return cls(whole, laws, labels[known], groups)

    def with_tail(self, tail: RadiusLaw, share: float) -> GroupedRadius:
        """The same groups, with one more component of weight ``share`` in each law."""
        whole, *laws = (law.with_tail(tail, share) for law in (self.whole, *self.laws))  # type: ignore[operator]
        return GroupedRadius(whole, laws, self.labels, self.groups)

    def refit(self, radii: Tensor, x: Tensor | None, fit: Callable[[Tensor], RadiusLaw]) -> GroupedRadius:
        """The same groups with laws fitted to other radii; small groups share a law."""
        label = _label(require_features(x), self.groups)
        known = [value for value in self.labels.tolist() if int((label == value).sum()) >= _FEWEST]
        laws = [fit(radii[label == value]) for value in known]
        rest = ~torch.isin(label, self.labels.new_tensor(known))
        return GroupedRadius(
            fit(radii[rest] if int(rest.sum()) >= _FEWEST else radii),
            laws,
            self.labels.new_tensor(known),
            self.groups,
        )

    def smallest(self, x: Tensor | None) -> int:
        """Size of the smallest group in features (n, p); other rows count as one group, unless few."""
        label = _label(require_features(x), self.groups)
        sizes = [int((label == value).sum()) for value in self.labels.tolist()]
        others = len(label) - sum(sizes)
        return min([*sizes, others] if others >= _FEWEST else sizes, default=len(label))

    def given(self, x: Tensor | None) -> RadiusLaw:
        match = _label(require_features(x), self.groups)[..., None] == self.labels
        group = torch.where(match.any(-1), match.to(torch.int8).argmax(-1) if len(self.labels) else 0, -1)
        return ChosenRadius([*self.laws, self.whole], group % (len(self.laws) + 1))


class ChosenRadius(RadiusLaw):
    """One of several laws for each radius.

    Args:
        laws: the laws.
        choice: (...) index of the law for each radius.
    """

    choice: Tensor

    def __init__(self, laws: Sequence[RadiusLaw], choice: Tensor) -> None:
        super().__init__()
        self.laws = nn.ModuleList(laws)
        self.upper = laws[0].upper
        self.register_buffer("choice", choice)

    def log_prob(self, r: Tensor) -> Tensor:
        return self._choose(lambda law, r: law.log_prob(r), r)

    def log_prob_untabulated(self, r: Tensor) -> Tensor:
        return self._choose(lambda law, r: law.log_prob_untabulated(r), r)

    def cdf_untabulated(self, r: Tensor) -> Tensor:
        return self._choose(lambda law, r: law.cdf_untabulated(r), r)

    def sample_untabulated(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        places = torch.zeros(shape, dtype=torch.float64)
        return self._choose(lambda law, r: law.sample_untabulated(tuple(r.shape), generator), places)

    def log_cdf(self, r: Tensor) -> Tensor:
        return self._choose(lambda law, r: law.log_cdf(r), r)

    def log_sf(self, r: Tensor) -> Tensor:
        return self._choose(lambda law, r: law.log_sf(r), r)

    def log_radial_density(self, r: Tensor, dim: int) -> Tensor:
        return self._choose(lambda law, r: law.log_radial_density(r, dim), r)

    @torch.no_grad()
    def icdf_log_tails(self, log_cdf: Tensor, log_sf: Tensor) -> Tensor:
        return self._choose(lambda law, *tails: law.icdf_log_tails(*tails), log_cdf, log_sf)

    def _choose(self, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        choice, *parts = torch.broadcast_tensors(self.choice, *(as_float64(v) for v in values))
        answer = torch.empty_like(parts[0])
        for number in torch.unique(choice).tolist():
            mine = choice == number
            answer = answer.masked_scatter(mine, function(self.laws[number], *(part[mine] for part in parts)))
        return answer


def _shrink_log_scales(radii: Tensor, weights: Tensor, member: Tensor, groups: int) -> Tensor:
    """Mean log radius of each group relative to all radii, (g,), shrunk to 0 according to its noise."""

    def sums(values: Tensor) -> Tensor:
        return torch.zeros(groups, dtype=radii.dtype, device=radii.device).index_add_(0, member, values)

    log_r = torch.log(torch.where(radii > 0, radii, 1e-3 * radii[radii > 0].min()))
    log_r = log_r - weights @ log_r / weights.sum()
    mass = sums(weights)
    mean = sums(weights * log_r) / mass
    noise = weights @ (log_r - mean[member]) ** 2 / weights.sum() / mass
    between = (mass @ (mean**2 - noise) / mass.sum()).clamp(min=0)
    return mean * between / (between + noise).clamp(min=1e-300)


def check_groups(x: Tensor | None, groups: int | Callable[[Tensor], Tensor]) -> None:
    """Raise if features (n, p) are missing, or have too many groups."""
    label = _label(require_features(x), groups)
    if (count := len(torch.unique(label))) > max(10, len(label) // 2):
        raise ValueError(
            f"{len(label)} rows have {count} groups, which is too many. Give the column of a label, or a "
            "function with few values."
        )


def _label(x: Tensor, groups: Any) -> Tensor:
    if not callable(groups) and not isinstance(groups, int):
        raise TypeError(
            f"groups must be a column of x, such as 0, or a function of x; got {type(groups).__name__}. "
            "Plain labels would be unknown for a new x."
        )
    if callable(groups):
        label = torch.as_tensor(groups(x))
        if label.shape != x.shape[:-1]:
            raise ValueError(
                f"groups must return one label for each row, (..., p) -> (...); got {tuple(label.shape)} "
                f"for {tuple(x.shape)}."
            )
        return as_float64(label)
    if not -x.shape[-1] <= groups < x.shape[-1]:
        raise ValueError(f"groups is column {groups}, but x has {x.shape[-1]} columns, counted from 0.")
    return as_float64(x[..., groups])
