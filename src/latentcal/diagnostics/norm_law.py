"""The law of the latent norm as the model assumes it, beside the norms that the rows have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..flow import ConditionalFlow, tensor_options

_BINS = 24
_MOST_LAWS = 1000  # rows whose laws are averaged where the law depends on x
_SHOWN = 0.995  # of the norms lie in the bins


@dataclass(frozen=True, eq=False)
class NormLaw:
    """Shares of the rows by latent norm, with a band for those of a calibrated model."""

    edges: Tensor
    """(k + 1,) ends of the bins; up to half a percent of the rows lies beyond the last."""
    observed: Tensor
    """(k,) share of the rows in each bin."""
    assumed: Tensor
    """(k,) its probability under the model."""
    lower: Tensor
    """(k,) lower end of the band that holds all shares of 95 % of calibrated models, at least."""
    upper: Tensor
    """(k,) its upper end."""


def norm_law(model: ConditionalFlow, x: Tensor | None, norms: Tensor) -> NormLaw | None:
    r"""Observed and assumed shares of latent norms in bins of equal width; None where all norms are equal.

    Where the law depends on x, the assumed share of a bin is the mean over the rows. A count is then a sum of
    different Bernoulli variables, whose spread is at most that of the binomial law behind the band:

    .. math:: n\,\text{observed}_j \sim \mathrm{Bin}(n, \text{assumed}_j) \quad\text{(Bonferroni over bins)}.

    Args:
        model: the flow.
        x: (n, p) features or None.
        norms: (n,) latent norms of the rows.
    """
    from scipy.stats import binom

    n = len(norms)
    ordered = norms.sort().values
    low, high = float(ordered[0]), float(ordered[min(n - 1, int(_SHOWN * n))])
    if not high > low:
        return None
    edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64)
    upto = torch.searchsorted(ordered, edges, right=True)
    upto[0] = 0  # the first bin holds both its ends
    with torch.no_grad():
        below = _mean_cdf(model, x, edges.to(tensor_options(model)[1])).cpu()
    assumed = below.diff().clamp(min=0.0)
    tail = 0.05 / (2 * _BINS)
    lower, upper = (torch.as_tensor(side(tail, n, assumed.numpy()) / n) for side in (binom.ppf, binom.isf))
    return NormLaw(edges, upto.diff() / n, assumed, lower, upper)


def _mean_cdf(model: ConditionalFlow, x: Tensor | None, norms: Tensor) -> Tensor:
    """Probability of a norm of at most each of the given, averaged over rows x (n, p), (k,) -> (k,)."""
    if x is None:
        return model.base.radius.cdf(norms)
    rows = torch.linspace(0, len(x) - 1, min(len(x), _MOST_LAWS)).long()
    base = model(x[rows]).base
    if base is model.base:
        return base.radius.cdf(norms)
    return base.radius.cdf(norms[:, None].expand(-1, len(rows))).mean(1)
