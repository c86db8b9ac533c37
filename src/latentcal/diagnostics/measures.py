"""Measures of one model on given rows, each with a band or a p-value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..flow import ConditionalFlow, evaluation_mode, tensor_options
from ..metrics import binomial_interval, calibration_error, energy_score, uniformity_test
from ..outputs import GridModel, close
from ..pit import randomize_ranks
from .latents import Latents, batches
from .limits import error_limit
from .permutation_tests import random_part

_BINS = 24
_MOST_LAWS = 1000  # most rows to average over if the law depends on x
_SHOWN = 0.995  # share of the norms inside the bins
INTERVAL, CALIBRATED = "interval", "calibrated"
ENERGY_IN_UNITS = "energy score / SD"
"""Name of the energy score of outputs divided by their standard deviations."""
_PAIRS = 5e7  # most distances for energy scores, n s^2
_NUMBERS = 2e7  # most numbers drawn in total, n s d
_FEWEST_ROWS = 200


@dataclass(frozen=True, eq=False)
class NormLaw:
    """Shares of the rows by latent norm, with a band for a calibrated model."""

    edges: Tensor
    """(k + 1,) ends of the bins; up to half a percent of the rows lie beyond the last."""
    observed: Tensor
    """(k,) share of the rows in each bin."""
    assumed: Tensor
    """(k,) its probability under the model."""
    lower: Tensor
    """(k,) lower end of the band that contains all shares for at least 95 % of calibrated models."""
    upper: Tensor
    """(k,) its upper end."""


def norm_law(model: ConditionalFlow, x: Tensor | None, norms: Tensor) -> NormLaw | None:
    r"""Observed and assumed shares of latent norms in bins of equal width; None if all norms are equal.

    If the law depends on x, the assumed share of a bin is the mean over the rows. A count is then a sum of
    different Bernoulli variables, with a variance at most that of the binomial law used for the band:

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
    if not low < high < math.inf:
        return None
    edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64)
    upto = torch.searchsorted(ordered, edges, right=True)
    upto[0] = 0  # the first bin includes both ends
    with torch.no_grad():
        below = _mean_cdf(model, x, edges.to(tensor_options(model)[1])).cpu()
    assumed = below.diff().clamp(min=0.0)
    tail = 0.05 / (2 * _BINS)
    lower, upper = (torch.as_tensor(side(tail, n, assumed.numpy()) / n) for side in (binom.ppf, binom.isf))
    return NormLaw(edges, upto.diff() / n, assumed, lower, upper)


def _mean_cdf(model: ConditionalFlow, x: Tensor | None, norms: Tensor) -> Tensor:
    """Distribution function of the norm, averaged over rows x (n, p), at given norms, (k,) -> (k,)."""
    if x is None:
        return model.base.radius.cdf(norms)
    rows = torch.linspace(0, len(x) - 1, min(len(x), _MOST_LAWS)).long()
    base = model(x[rows]).base
    if base is model.base:
        return base.radius.cdf(norms)
    return base.radius.cdf(norms[:, None].expand(-1, len(rows))).mean(1)


@dataclass(frozen=True)
class Measure:
    """A number with its band."""

    name: str
    value: float
    low: float
    high: float
    band: str
    """``"interval"``: 95 % confidence interval; ``"calibrated"``: contains 95 % of calibrated models."""
    p_value: float | None = None
    """p-value of the hypothesis that the model is calibrated, unadjusted for other tests."""
    nominal: float | None = None
    """Its value for a calibrated model, if known."""

    @property
    def is_coverage(self) -> bool:
        """Whether it is a coverage."""
        return self.nominal is not None and self.band == INTERVAL

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values; None for numbers that are not finite."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in vars(self).items()
        }


@dataclass(frozen=True, eq=False)
class Measured:
    """Measures of one model on the rows."""

    numbers: tuple[Measure, ...]
    """NLL, energy score, L-ECE, HDR-ECE and coverages; some are missing without a density."""
    marginals: tuple[Measure, ...]
    """Calibration error of the PIT of each output."""
    rows: int
    """Number of rows with samples, for energy score, HDR-ECE and marginals."""
    u: Tensor = field(repr=False)
    """(n,) latent PIT values."""
    marginal_u: Tensor = field(repr=False)
    """(m, d) PIT values of the outputs."""
    hdr_u: Tensor | None = field(repr=False)
    """(m,) HDR-PIT values; None without a density."""
    nll: Tensor | None = field(repr=False)
    """(n,) negative log densities."""
    energy: Tensor = field(repr=False)
    """(m,) energy scores."""
    energy_in_units: Tensor = field(repr=False)
    """(m,) energy scores of outputs divided by their standard deviations."""
    norms: NormLaw | None = field(repr=False)
    """Latent norms and the law that the model assumes; None if all norms are equal."""

    def __getitem__(self, name: str) -> Measure:
        """The measure with this name."""
        for measure in self.numbers:
            if measure.name == name:
                return measure
        raise KeyError(f"No measure {name!r}; choose from {[measure.name for measure in self.numbers]}.")

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain values."""
        return {
            "numbers": [measure.to_dict() for measure in self.numbers],
            "marginals": [measure.to_dict() for measure in self.marginals],
            "rows": self.rows,
        }


def rows_to_sample(n: int, dim: int, samples: int, generator: torch.Generator) -> Tensor:
    """Rows whose predictions are sampled: all, or a random part to bound the cost."""
    most = int(max(_FEWEST_ROWS, min(_PAIRS / samples**2, _NUMBERS / (samples * dim))))
    return random_part(n, most, generator).sort().values


def measure(
    model: ConditionalFlow,
    x: Tensor | None,
    y: Tensor,
    rows: Latents,
    *,
    names: Sequence[str],
    part: Tensor,
    levels: Sequence[float],
    samples: int,
    seed: int,
    grid: GridModel | None = None,
) -> Measured:
    """Measures of a model at x (n, p) or None and y (n, d).

    Args:
        model: the flow.
        x: features.
        y: outputs to score.
        rows: their latents and PIT values.
        names: (d,) names of the outputs.
        part: (m,) rows whose predictions are sampled.
        levels: nominal coverages.
        samples: number of draws of each of those predictions.
        seed: seed of the draws; use the same seed to compare two models.
        grid: grid model with the probabilities of outputs, if single values have one.
    """
    with torch.no_grad(), evaluation_mode(model):
        nll = _nll(model if grid is None else grid, x, y)
        scores, in_units, marginal_u, hdr_u = _score_samples(
            model,
            None if x is None else x[part],
            y[part],
            rows.y[part],
            _spread(y),
            samples,
            seed,
            density=nll is not None,
            kinds=None if grid is None else grid.kinds,
        )
        norms = norm_law(model, x, rows.norms)
    u = rows.u
    numbers = [] if nll is None else [mean_of("NLL", nll)]
    numbers += [mean_of("energy score", scores), mean_of(ENERGY_IN_UNITS, in_units), error_of("L-ECE", u)]
    numbers += [] if hdr_u is None else [error_of("HDR-ECE", hdr_u)]
    numbers += [_coverage(u, level) for level in levels]
    marginals = tuple(error_of(name, column) for name, column in zip(names, marginal_u.T, strict=True))
    return Measured(tuple(numbers), marginals, len(part), u, marginal_u, hdr_u, nll, scores, in_units, norms)


def mean_of(name: str, values: Tensor) -> Measure:
    """The mean of (n,) values with its normal 95 % interval; no interval if it is infinite."""
    mean = float(values.mean())
    if not math.isfinite(mean):
        return Measure(name, mean, -math.inf, math.inf, INTERVAL)
    error = 1.96 * float(values.std()) / math.sqrt(len(values))
    return Measure(name, mean, mean - error, mean + error, INTERVAL)


def error_of(name: str, u: Tensor) -> Measure:
    """Calibration error of PIT values (n,), with the limit for 95 % of calibrated models."""
    p_value = uniformity_test(u, "cvm").p_value
    return Measure(name, float(calibration_error(u)), 0.0, error_limit(len(u)), CALIBRATED, p_value, 0.0)


def _coverage(u: Tensor, level: float) -> Measure:
    from scipy.stats import binomtest

    inside = int((u <= level).sum())
    low, high = binomial_interval(inside, len(u))
    p_value = float(binomtest(inside, len(u), level).pvalue)
    name = f"coverage {100 * level:g} %"
    return Measure(name, inside / len(u), low, high, INTERVAL, p_value, level)


def _nll(model: ConditionalFlow | GridModel, x: Tensor | None, y: Tensor) -> Tensor | None:
    """(n,) float64 negative log densities in batches; None for a model without a density."""
    try:
        parts = [-model(part.x).log_prob(part.y).cpu().to(torch.float64) for part in batches(x, y)]
    except NotImplementedError:
        return None
    return torch.cat(parts)


def _spread(y: Tensor) -> Tensor:
    """(d,) standard deviations of outputs (n, d); 1 where an output is constant."""
    spread = y.to(torch.float64).std(0)
    return torch.where((spread > 0) & torch.isfinite(spread), spread, 1.0)


def _score_samples(
    model: ConditionalFlow,
    x: Tensor | None,
    y: Tensor,
    inside: Tensor,
    spread: Tensor,
    samples: int,
    seed: int,
    *,
    density: bool,
    kinds: Sequence[str] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Energy scores (m,), raw and in units (d,), marginal PIT (m, d) and HDR-PIT (m,), from the same draws.

    Scores are computed for y, PIT values for ``inside``, in which rounded outputs are points of their cells.
    Draws are mapped to outputs of the given kinds before they are scored.
    """
    generator = torch.Generator().manual_seed(seed)
    scores, in_units, marginals, densities = [], [], [], []
    done = 0
    for part in batches(x, y, samples):
        pred = model(part.x).expand((len(part.y),))
        draws = pred.sample((samples,), generator)
        if not bool(torch.isfinite(draws).all()):
            raise ValueError(
                f"decode gave NaN or infinite samples in {int((~torch.isfinite(draws)).sum())} of "
                f"{draws.numel()} numbers. Run check_flow(model, x, y)."
            )
        here = part.y.to(draws.device)
        units, drawn = spread.to(draws), draws if kinds is None else close(draws, kinds)
        scores.append(energy_score(drawn, here).cpu().to(torch.float64))
        in_units.append(energy_score(drawn / units, here / units).cpu().to(torch.float64))
        here = inside[done : done + len(here)].to(draws.device)
        done += len(here)
        marginals.append(_rank(draws, here, generator).cpu())
        if density:
            densities.append(_rank(-pred.log_prob(draws), -pred.log_prob(here), generator).cpu())
    pit_of_density = torch.cat(densities) if density else None
    return torch.cat(scores), torch.cat(in_units), torch.cat(marginals), pit_of_density


def _rank(draws: Tensor, value: Tensor, generator: torch.Generator) -> Tensor:
    """Randomised rank of each value (...) among its draws (s, ...), exactly uniform if it is one of them."""
    below, equal = ((draws < value).sum(0), (draws == value).sum(0))
    return randomize_ranks(below.to(torch.float64), equal.to(torch.float64), len(draws), generator)
