"""Conformal regions and p-values from the scores of calibration rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import ascending
from .._internal.validate import as_rows
from ..fingerprint import Fingerprint, warn_of_reuse
from ..flow import read_features
from ..radius import ConditionalRadius
from ..recalibration import Aligned, Recalibration
from .conformity_scores import DCPScore, DensityScore, DrawingScore, FunctionScore, HPDScore, PCPScore, Score
from .evaluation import evaluate, inference, random_seed
from .latent_score import LatentScore
from .region import Region, as_levels

Scorer = str | Score | Callable[[Any, "Tensor | None", Tensor], Tensor]
"""Types accepted as a score: a name, a score, or a function of (model, x, y)."""

_VOID = "The guarantee needs scores that are fixed before these rows are seen, so it does not hold."
_SCORES: dict[str, type[Score]] = {
    "latent": LatentScore,
    "density": DensityScore,
    "hpd": HPDScore,
    "dcp": DCPScore,
    "pcp": PCPScore,
}


class Calibration(NamedTuple):
    """A score, its sorted values (n,) on the calibration rows, and the fingerprint of the rows."""

    score: Score
    scores: Tensor
    fingerprint: Fingerprint


def conformal_region(
    model: Any,
    x: Any,
    y: Any,
    *,
    coverage: float | Sequence[float] | Tensor = 0.9,
    score: Scorer = "latent",
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Region:
    r"""Regions that contain a new y with at least the given probability, even if the model is wrong.

    .. math:: R(x) = \{y : s(x, y) \le t\}, \qquad t = S_{(\lceil c (n + 1) \rceil)},

    Here :math:`S_i = s(x_i, y_i)` are the scores of the calibration rows. If these rows and a new row (x, y)
    are exchangeable, then :math:`c \le P(y \in R(x)) \le c + \frac{1}{n + 1}`, on average over calibration
    sets; the upper bound requires scores without ties (discrete y has ties). The statement holds on average
    over x, not at each x. Training rows of the model are not exchangeable with new rows.

    Args:
        model: flow, or any function of x that returns a distribution.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        coverage: probability c, or several for nested regions from one calibration.
        score: ``"latent"`` (CONTRA, L-CP), ``"hpd"`` (HPD-split), ``"density"`` (DR-CP), ``"pcp"``, ``"dcp"``
            (one output), a score such as ``HPDScore(samples=1000)``, or a function ``s(model, x, y)``,
            (..., n, d) at x (n, p) -> (..., n).
        batch_size: number of points to score at a time; bounded by memory if None.
        generator: source of the seed, if a score named by a string draws samples.

    Returns:
        The region.

    Warns:
        CalibrationReuseWarning: if the model was recalibrated on these rows, except for the latent norm of a
            flow from ``recalibrate`` with one law for all x, which has the same norms as before.
        InfiniteRegionWarning: if n is below c / (1 - c), so that the region contains every y.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> y = 2 * torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> region = conformal_region(flow, None, y, coverage=0.9)
        >>> region.contains(torch.tensor([[0.0, 4.0], [3.0, 4.0]]))
        tensor([ True, False])
    """
    levels = as_levels(coverage)
    made = _calibrate(model, x, y, score, batch_size=batch_size, generator=generator)
    return Region(model, made.score, made.scores, levels, made.fingerprint)


def _calibrate(
    model: Any,
    x: Any,
    y: Any,
    score: Scorer,
    *,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Calibration:
    """Ascending scores of the calibration rows x (n, p), or None, and y (n, d), on the CPU."""
    made = as_score(score, generator)
    x, y = as_rows(read_features(model, x), y)
    with inference(model):
        outputs = getattr(model(None if x is None else x[:1]), "event_shape", y.shape[1:])
    if tuple(outputs) != tuple(y.shape[1:]):
        raise ValueError(
            f"y has {y.shape[1]} outputs, but the model's events have shape {tuple(outputs)}. Arguments are "
            "(model, x, y); were x and y swapped? Turn a distribution of numbers into one of vectors with "
            "Independent(distribution, 1)."
        )
    scores = ascending(evaluate(made, model, x, y, batch_size=batch_size).cpu())
    reused = _harmful_reuse(model, made, x, y)
    warn_of_reuse(reused, _VOID, stacklevel=4)
    return Calibration(made, scores, Fingerprint.of(x, y))


def as_score(score: Scorer, generator: torch.Generator | None = None) -> Score:
    """The score for a name, a score or a function; its seed is drawn from the generator."""
    if isinstance(score, Score):
        return score
    if isinstance(score, str):
        if score not in _SCORES:
            raise ValueError(
                f"score must be one of {', '.join(_SCORES)}, a score or a function; got {score!r}."
            )
        kind = _SCORES[score]
        return kind(seed=random_seed(generator)) if issubclass(kind, DrawingScore) else kind()  # type: ignore[call-arg]
    if isinstance(score, type) or not callable(score):
        name = score.__name__ if isinstance(score, type) else type(score).__name__
        raise TypeError(f"score must be a name, a score such as HPDScore(), or a function; got {name}.")
    return FunctionScore(score)


def _harmful_reuse(model: Any, score: Score, x: Tensor | None, y: Tensor) -> float:
    """Share of the model's recalibration rows that are reused, if that voids the guarantee; otherwise 0."""
    record = getattr(model, "recalibration", None)
    # Recalibration by one law keeps the maps, so the norms and their regions are unchanged.
    harmless = (
        isinstance(record, Recalibration)
        and not isinstance(record.law, ConditionalRadius)
        and not isinstance(model, Aligned)
        and not score.uses_density
    )
    fingerprint = getattr(record, "fingerprint", None)
    return 0.0 if harmless or fingerprint is None else fingerprint.share_of(x, y)


def anomaly_pvalue(
    model: Any,
    x: Any,
    y: Any,
    *,
    calibration: tuple[Any, Any],
    score: Scorer = "latent",
    randomize: bool = False,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Conformal p-value of each y given its x; small for anomalies.

    .. math:: p = \frac{1 + \#\{i : S_i \ge s(x, y)\}}{n + 1}

    Here :math:`S_i` are the scores of the n calibration rows. If (x, y) is exchangeable with them, then
    :math:`P(p \le a) \le a` for every a, even if the model is wrong: flagging :math:`p \le a` has a
    false-alarm rate of at most a, on average over calibration sets. No p is below 1 / (n + 1). P-values from
    one calibration set are dependent, but in a way that Benjamini and Hochberg's procedure allows.

    Args:
        model: flow, or any function of x that gives a distribution.
        x: (..., p) features of the new observations, or None.
        y: (..., d) new observations; leading dims broadcast.
        calibration: pair (x, y) of (n, p), or None, and (n, d) rows without anomalies, not used for training.
        score: as for :func:`conformal_region`: ``"latent"`` finds y far from the centre of the prediction,
            ``"density"`` y of low density.
        randomize: break ties, and fill the steps of 1 / (n + 1), at random; p is then exactly uniform.
        batch_size: number of points to score at a time; bounded by memory if None.
        generator: source of randomness.

    Returns:
        (...) float64 p-values.

    Warns:
        CalibrationReuseWarning: as for :func:`conformal_region`.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> y = torch.randn(199, 2, generator=torch.Generator().manual_seed(0))
        >>> anomaly_pvalue(flow, None, torch.tensor([[0.0, 0.1], [4.0, 4.0]]), calibration=(None, y))
        tensor([0.9950, 0.0050], dtype=torch.float64)
    """
    made = _calibrate(model, *calibration, score, batch_size=batch_size, generator=generator)
    values = evaluate(made.score, model, x, y, batch_size=batch_size)
    scores, n = made.scores.to(values.device), len(made.scores)
    if not randomize:
        return rank_pvalue(scores, values)
    as_strange = n - torch.searchsorted(scores, values).to(torch.float64)  # S_i >= s
    stranger = n - torch.searchsorted(scores, values, right=True).to(torch.float64)  # S_i > s
    device = "cpu" if generator is None else generator.device
    v = torch.rand(values.shape, dtype=torch.float64, generator=generator, device=device).to(values.device)
    return (stranger + v * (1 + as_strange - stranger)) / (n + 1)


def rank_pvalue(scores: Tensor, values: Tensor) -> Tensor:
    """p-values (...) of values: (1 + number of ascending scores (n,) at least as large) / (n + 1)."""
    n = len(scores)
    return (1 + n - torch.searchsorted(scores, values).to(torch.float64)) / (n + 1)
