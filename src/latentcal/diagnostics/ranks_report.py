"""prerank_report: tests of calibration for models that can only be sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.validate import as_rows, as_share, as_whole
from ..adapters.samplers import SamplerDraws
from ..flow import read_features
from ..metrics import energy_score, uniformity_test
from ..pit import draw, marginal_pit, prerank_pit
from ..preranks import NAMED, exceedance
from .findings import format_p, holm

FEWEST_ROWS = 20
_MEANINGS = {  # meaning of high and of low ranks of observations
    "multivariate_rank": ("draws are too low", "draws are too high"),
    "average_rank": ("draws are too low", "draws are too high"),
    "band_depth": ("draws are too wide", "draws are too narrow, or in the wrong place"),
    "mean": ("draws are too low on average", "draws are too high on average"),
    "variance": ("outputs of a draw differ too little", "outputs of a draw differ too much"),
    "energy": ("draws are too narrow, or in the wrong place", "draws are too wide"),
    "dependence": ("neighbouring outputs are too different", "neighbouring outputs are too similar"),
    "outputs": ("draws are too low", "draws are too high"),
}
_EXCEEDED = ("draws exceed it too rarely", "draws exceed it too often")


@dataclass(frozen=True, eq=False)
class PrerankReport:
    """Tests of ranks of observations among draws; print it for a table.

    Args:
        n: number of rows.
        level: probability of any finding for a correct model.
        u: PIT values (n,) of each pre-rank; for ``"outputs"``, those of all outputs (n, d).
        p_values: p-values of the hypothesis that these are uniform.
        adjusted: p-values after Holm's adjustment.
        energy: mean energy score.
    """

    n: int
    level: float
    u: Mapping[str, Tensor]
    p_values: Mapping[str, float]
    adjusted: Mapping[str, float]
    energy: float

    @property
    def found(self) -> list[str]:
        """Names of the pre-ranks whose ranks are not uniform."""
        return [name for name, p in self.adjusted.items() if p <= self.level]

    def __str__(self) -> str:
        width = max(map(len, self.u))
        lines = [
            f"Ranks among draws, {self.n:,} rows ({len(self.u)} tests, false-alarm rate "
            f"{100 * self.level:g} % together); energy score {self.energy:.4g}",
            f"  {'pre-rank':<{width}}  {'p':>8}  {'adjusted':>8}",
        ]
        for name, p in self.p_values.items():
            found = f"  <- {self._describe(name)}" if name in self.found else ""
            lines.append(f"  {name:<{width}}  {format_p(p):>8}  {format_p(self.adjusted[name]):>8}{found}")
        return "\n".join(lines)

    def _describe(self, name: str) -> str:
        u = self.u[name].double()
        level, edges = float(u.mean()) - 0.5, float(((u - 0.5).abs() > 0.25).double().mean()) - 0.5
        if abs(level) > abs(edges) / 2:
            return _MEANINGS.get(name, _EXCEEDED)[0 if level > 0 else 1]
        return "observations are extreme too often" if edges > 0 else "observations are extreme too rarely"


def prerank_report(
    model: Callable[..., Any],
    x: Any,
    y: Any,
    *,
    thresholds: tuple[float, ...] = (),
    samples: int = 100,
    level: float = 0.03,
    generator: torch.Generator | None = None,
) -> PrerankReport:
    """Report on the calibration of a model that can be sampled, with or without a density or a latent.

    The observation is ranked among draws by each of the named pre-ranks (:mod:`latentcal.preranks`) and by
    each output. The ranks are exactly uniform if the model is correct. The p-values of Kolmogorov-Smirnov
    tests are adjusted by Holm's method for all tests together (first by Bonferroni over outputs). For a flow,
    :func:`diagnose` reports more and gives advice; ``from_sampler`` turns a sampler into a flow.

    Args:
        model: x (n, p) -> distribution with batch shape (n,) and event shape (d,), or a sampler, x -> draws
            (s, n, d).
        x: (n, p) features, or None.
        y: (n, d) outputs, at least 20 rows.
        thresholds: values whose fraction of exceedances is also tested.
        samples: number of draws of each prediction.
        level: probability of any finding for a correct model.
        generator: source of randomness; seeded with a fixed seed if None.
    """
    x, y = as_rows(read_features(model, x), y, fewest=FEWEST_ROWS)
    samples, level = as_whole(samples, "samples", 2), as_share(level, "level")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    with torch.no_grad():
        pred = model(x)
        if not isinstance(pred, Distribution):
            pred = SamplerDraws(model, x, y.shape[1])
        if tuple(pred.batch_shape) != (len(y),):
            pred = pred.expand(torch.Size([len(y)]))
        asked: dict[str, Any] = {**NAMED, **{f"above {limit:g}": exceedance(limit) for limit in thresholds}}
        if y.shape[1] == 1:  # for one output, all the others are equivalent or uninformative
            asked = {name: asked[name] for name in asked if name in ("energy",) or name.startswith("above")}
        u = {
            name: prerank_pit(pred, y, prerank, x=x, samples=samples, generator=generator)
            for name, prerank in asked.items()
        }
        u["outputs"] = marginal_pit(pred, y, samples=samples, generator=generator)
        energy = float(energy_score(draw(pred, (samples,), generator), y.to(torch.float64)).mean())
    p_values = {
        name: float(uniformity_test(values).p_value) for name, values in u.items() if name != "outputs"
    }
    marginal = [float(uniformity_test(column).p_value) for column in u["outputs"].T]
    p_values["outputs"] = min(1.0, len(marginal) * min(marginal))
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return PrerankReport(len(y), level, u, p_values, adjusted, energy)
