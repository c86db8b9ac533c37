"""P-values of new observations, by conformal ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..fingerprint import warn_of_reuse
from .calibration import VOID, Scorer, calibrate
from .evaluation import evaluate


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
    r"""How usual each y is at its x, as a p-value; small for anomalies.

    .. math:: p = \frac{1 + \#\{i : S_i \ge s(x, y)\}}{n + 1}

    with :math:`S_i` the scores of the n calibration rows. If (x, y) is exchangeable with them then
    :math:`P(p \le a) \le a` for every a, whatever the model's errors: flagging :math:`p \le a` raises false
    alarms at a rate of at most a, on average over calibration sets. No p is below 1 / (n + 1). P-values from
    one calibration set depend on each other, in a way that Benjamini and Hochberg's procedure allows.

    Args:
        model: flow, or any function of x that gives a distribution.
        x: (..., p) features of the new observations, or None.
        y: (..., d) new observations; leading dims broadcast.
        calibration: pair (x, y) of (n, p), or None, and (n, d) rows without anomalies, which training did not
            see.
        score: as for :func:`conformal_region`: ``"latent"`` finds y far from the centre of the prediction,
            ``"density"`` y of low density.
        randomize: break ties, and fill the steps of 1 / (n + 1), at random: p is then exactly uniform.
        batch_size: points scored at a time; as many as fit into bounded memory if None.
        generator: source of randomness.

    Returns:
        (...) float64 p-values.

    Warns:
        CalibrationReuseWarning: as :func:`conformal_region`.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
        >>> y = torch.randn(199, 2, generator=torch.Generator().manual_seed(0))
        >>> anomaly_pvalue(flow, None, torch.tensor([[0.0, 0.1], [4.0, 4.0]]), calibration=(None, y))
        tensor([0.9950, 0.0050], dtype=torch.float64)
    """
    made = calibrate(model, *calibration, score, batch_size=batch_size, generator=generator)
    warn_of_reuse(made.reused, VOID)
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
    """(1 + number of ascending scores (n,) that reach a value) / (n + 1), for values (...)."""
    n = len(scores)
    return (1 + n - torch.searchsorted(scores, values).to(torch.float64)) / (n + 1)
