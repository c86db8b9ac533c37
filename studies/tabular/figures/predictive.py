"""Predictive densities of two outputs, before and after recalibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, avg_pool2d

from latentcal import ConditionalFlow, latent_pit
from latentcal.plots import COLOURS, density_map

from ..cells import short_name
from ..methods import attached, calibrate
from ..sampling import sampler
from ..training import TrainedRun
from .canvas import figure_of, grid_of_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID, _FINER = 100, 2
_SAMPLES = 2000
_COVERED = 0.96  # of the samples of either model, in each direction


def predictive_panels(
    runs: Mapping[str, TrainedRun], method: str = "LR-stacked", examples: int = 2
) -> list[Axes]:
    """Densities of random test rows under BASE and after recalibration, one data set a row.

    Lines are level sets of the PIT of the latent norm at 0.01, 0.1, 0.5 and 0.9; the dot is what was
    observed, the number its negative log-likelihood. Outputs are standardised.

    Args:
        runs: trained flows of two outputs, by data set.
        method: a recalibration with a density.
        examples: test rows of each data set, chosen by the seed of the run.

    Returns:
        The axes, row by row: BASE and the recalibrated model of each example.
    """
    wrong = [name for name, run in runs.items() if run.split.test.y.shape[1] != 2]
    if wrong:
        raise ValueError(f"Maps are of two outputs; {', '.join(wrong)} have others.")
    axes = grid_of_axes(len(runs) * examples * 2, examples * 2, 2.3, 2.4)
    places = iter(axes)
    for dataset, run in runs.items():
        before = sampler(run.flow)
        after = attached(calibrate(method, run).model, before)
        generator = torch.Generator().manual_seed(run.spec.seed)
        rows = torch.randperm(len(run.split.test.y), generator=generator)[:examples]
        for i, row in enumerate(rows.tolist()):
            x, y = run.split.test.x[row], run.split.test.y[row]
            grid = _window((before, after), x, y, generator)
            for name, model in (("BASE", before), (method, after)):
                ax = next(places)
                _draw(ax, model, x, y, grid)
                ax.set_title(f"{short_name(dataset)} {i + 1}: {name}", fontsize=8)
    figure = figure_of(axes)
    figure.supxlabel("first output", fontsize=9)
    figure.supylabel("second output", fontsize=9)
    return axes


@torch.no_grad()
def _draw(ax: Axes, model: ConditionalFlow, x: Tensor, y: Tensor, grid: tuple[Tensor, Tensor]) -> None:
    points = torch.stack(torch.meshgrid(*grid, indexing="ij"), dim=-1)
    pred = model(x.expand(*points.shape[:2], -1))
    # Means over blocks of the grid: what is narrower than a pixel is blurred, not left out.
    maps = pred.log_prob(points).double().exp(), latent_pit(pred, points)
    density, u = (avg_pool2d(values[None], _FINER)[0] for values in maps)
    first, second = (avg_pool1d(values[None], _FINER)[0] for values in grid)
    # A spike would leave the rest of the map blank.
    density = density.clamp(max=float(density.flatten().quantile(0.999)))
    density_map(first, second, density, pit=u, label_levels=False, ax=ax)
    ax.plot(*y.tolist(), "o", color=COLOURS[1], markersize=5, markeredgecolor="white", gid="observed")
    nll = -float(model(x).log_prob(y))
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    ax.text(0.97, 0.03, f"NLL {nll:.2f}", transform=ax.transAxes, ha="right", fontsize=8, bbox=box)
    ax.locator_params(nbins=4)
    ax.tick_params(labelsize=6)


@torch.no_grad()
def _window(
    models: tuple[ConditionalFlow, ...], x: Tensor, y: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Grids that hold nearly all samples of the models, and the observation."""
    samples = [model(x).sample((_SAMPLES,), generator=generator) for model in models]
    tails = torch.tensor([(1 - _COVERED) / 2, (1 + _COVERED) / 2], dtype=y.dtype)
    ends = torch.stack([s.quantile(tails, dim=0) for s in samples])
    low, high = torch.minimum(ends[:, 0].amin(0), y), torch.maximum(ends[:, 1].amax(0), y)
    margin = 0.12 * (high - low).clamp(min=1e-3)
    low, high = low - margin, high + margin
    first, second = (
        torch.linspace(float(a), float(b), _GRID * _FINER, dtype=y.dtype)
        for a, b in zip(low, high, strict=True)
    )
    return first, second
