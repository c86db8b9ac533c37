"""Figures with several panels: reliability, ranks, laws of the latent norm, predictive densities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, avg_pool2d

from latentcal import ConditionalFlow, RadiusLaw, latent_pit
from latentcal.plots import COLOURS, density_map, reliability_diagram

from .bars import LINE, METHOD_COLOURS, figure_of, grid_of_axes, new_axes, tidy
from .comparisons import compare_ranks, curve_of, ranks, rows_of
from .methods import attach, calibrate
from .sampling import sampler
from .store import DONE, Record
from .study_cells import Cells, measure, short_name
from .trainings import TrainedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SHOWN = {"latent_curve": ("BASE", "LR-KDE", "LR-stacked"), "hdr_curve": ("BASE", "LR-KDE", "HDR-R")}
_NAMES = {"latent_curve": "Latent calibration", "hdr_curve": "HDR calibration"}


def reliability_panels(
    cells: Cells, curve: str = "latent_curve", methods: Sequence[str] | None = None, seed: int | None = None
) -> list[Axes]:
    """A reliability diagram for each data set and one seed, with 90 % consistency bands of its test rows.

    Args:
        cells: records of a suite.
        curve: ``"latent_curve"`` or ``"hdr_curve"``.
        methods: those that are shown.
        seed: seed of the runs; None for the first seed with the most methods, by data set.

    Returns:
        The axes, one a data set.
    """
    panels: dict[str, tuple[int, dict[str, Record]]] = {}
    for dataset in cells.datasets:
        for candidate in cells.seeds if seed is None else (seed,):
            found = {name: cells.records.get((dataset, name, candidate)) for name in methods or SHOWN[curve]}
            known = {n: r for n, r in found.items() if r is not None and r["status"] == DONE and r.get(curve)}
            if len(known) > len(panels.get(dataset, (candidate, {}))[1]):
                panels[dataset] = candidate, known
    axes = grid_of_axes(len(panels), 5, 2.3, 2.5)
    for ax, (dataset, (chosen, records)) in zip(axes, panels.items(), strict=True):
        for name, record in records.items():
            reliability_diagram(curve_of(record, curve), label=name, ax=ax)
            # The last curve is dashed, so that curves below it stay visible.
            last = len(records) > 2 and name == list(records)[-1]
            dashes = (0, (3.5, 1.5)) if last else "solid"
            ax.lines[-1].set(color=METHOD_COLOURS[name], linewidth=1.5, linestyle=dashes)
        _compact(ax)
        rows = rows_of(next(iter(records.values())), curve)
        ax.set_title(f"{short_name(dataset)}  (n = {rows:,}, seed {chosen})", fontsize=8)
    _one_legend(axes, _NAMES[curve])
    return axes


def _compact(ax: Axes) -> None:
    if (own := ax.get_legend()) is not None:
        own.remove()
    ax.set(xlabel="", ylabel="", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    ax.tick_params(labelsize=7)


def _one_legend(axes: Sequence[Axes], title: str) -> None:
    """One legend of methods and bands for all panels, without the number of rows, which differs."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label.split(" (n =")[0], handle)
    ordered = [name for name in METHOD_COLOURS if name in handles]
    ordered += [label for label in handles if label not in ordered]
    figure = figure_of(axes)
    options: dict[str, Any] = {"frameon": False, "ncols": len(ordered), "fontsize": "small"}
    figure.legend([handles[label] for label in ordered], ordered, loc="outside upper center", **options)
    figure.supxlabel("Nominal probability", fontsize=9)
    figure.supylabel(f"{title}: observed frequency", fontsize=9)


def rank_plot(studies: Sequence[Cells], metric: str = "nll", *, ax: Axes | None = None) -> Axes:
    """Mean rank of each method, best on top; dots show the number of cases with each rank.

    Bars on the right join methods that do not differ significantly over the data sets
    (:func:`~studies.tabular.comparisons.compare_ranks`, at 5 %).

    Args:
        studies: records of one or more suites.
        metric: one of ``MEASURES``.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ranked = ranks(studies, metric)
    ax = new_axes(ax)
    if not ranked.by_case:
        raise ValueError("No data set has figures of all methods on one seed: there is nothing to rank.")
    names = list(ranked.mean)
    for place, name in enumerate(names):
        counts: dict[float, int] = {}
        for case in ranked.by_case.values():
            counts[case[name]] = counts.get(case[name], 0) + 1
        sizes = [260 * count / len(ranked.by_case) + 6 for count in counts.values()]
        colour = METHOD_COLOURS[name]
        ax.scatter(list(counts), [place] * len(counts), s=sizes, color=colour, alpha=0.35, gid="cases")
        mean = ranked.mean[name]
        ax.plot([mean, mean], [place - 0.32, place + 0.32], color=colour, linewidth=3, gid="model")
        ax.text(len(names) + 0.6, place, f"{mean:.2f}", va="center", fontsize=9, color=LINE)
    title, right = f"{measure(metric).title}, {len(ranked.by_case)} cases", len(names) + 1.7
    datasets = {dataset for _, dataset in ranked.by_case}
    if len(names) > 2 and len(datasets) > 1:
        tests = compare_ranks(ranked)
        for group in tests.alike():
            ends = [names.index(group[0]) - 0.2, names.index(group[-1]) + 0.2]
            ax.plot([right, right], ends, color="black", linewidth=2.5, solid_capstyle="butt", gid="alike")
            right += 0.35
        p = "p < 0.001" if tests.p_value < 1e-3 else f"p = {tests.p_value:.2g}"
        title += f"\nFriedman's test over {tests.datasets} data sets: {p}"
    ax.set_yticks(range(len(names)), names)
    ax.set(xlim=(0.6, right - 0.1), xticks=range(1, len(names) + 1), xlabel="Rank (1 is best)")
    ax.invert_yaxis()
    ax.set_title(title, fontsize=10)
    tidy(ax)
    return ax


_POINTS = 400
_FARTHEST = 3.0  # that is shown, in 90 % quantiles of the norms
_DEPTH = 12.0  # of the log-density, in nats below its highest value at a norm


def law_panel(norms: Tensor, law: RadiusLaw, reference: RadiusLaw, *, ax: Axes | None = None) -> Axes:
    """Empirical and smooth distribution function of latent norms, and the log-density on an axis of its own.

    Args:
        norms: (n,) latent norms of calibration rows.
        law: the fitted law.
        reference: the law of the norm under the model, drawn dashed.
        ax: where to draw; new axes by default.

    Returns:
        The axes of the distribution functions; the other ones are their twin.
    """
    ax = new_axes(ax)
    ordered = norms.double().sort().values
    low = float(ordered[0])
    high = min(float(ordered[-1]), _FARTHEST * float(ordered.quantile(0.9)))
    margin = 0.15 * (high - low) or 0.5
    grid = torch.linspace(max(0.0, low - margin), high + margin, _POINTS, dtype=torch.float64)
    share = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    with torch.no_grad():
        cdf, reference_cdf = law.cdf(grid), reference.cdf(grid)
        log_density, highest = law.log_prob(grid), float(law.log_prob(ordered).max())
    ax.step(ordered, share, where="post", color=LINE, linewidth=2.5, label="empirical CDF", gid="ecdf")
    ax.plot(grid, cdf, color=COLOURS[1], linewidth=1.3, label="smooth CDF", gid="cdf")
    dashed: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1, "linestyle": (0, (4, 3))}
    ax.plot(grid, reference_cdf, label="CDF under the model", gid="reference", **dashed)
    ax.set(xlim=(float(grid[0]), float(grid[-1])), ylim=(0, 1.02))
    tidy(ax)
    twin = ax.twinx()
    shown = log_density.masked_fill(~torch.isfinite(log_density), float("nan"))
    twin.plot(grid, shown, color=COLOURS[2], linewidth=1.1, label="log-density (right)", gid="density")
    twin.set_ylim(highest - _DEPTH, highest + 1)
    twin.spines["top"].set_visible(False)
    twin.tick_params(colors=COLOURS[2], labelsize=7, length=3)
    return ax


def law_panels(runs: Mapping[str, TrainedRun], method: str = "LR-KDE") -> list[Axes]:
    """A panel for each trained flow, from the latents of its calibration rows.

    Args:
        runs: by data set.
        method: whose law of the norm is fitted; one that changes nothing else.

    Returns:
        The axes, one a run.
    """
    axes = grid_of_axes(len(runs), 5, 2.6, 2.2)
    for ax, (dataset, run) in zip(axes, runs.items(), strict=True):
        base = run.flow.base
        norms = base.norm_of(run.latents.calibration_z.double())
        law_panel(norms, calibrate(method, run).model.base.radius, base.radius, ax=ax)
        ax.set_title(f"{short_name(dataset)}  (n = {len(norms):,})", fontsize=8)
        ax.tick_params(labelsize=7)
    _legend(axes, method)
    return axes


def law_comparison(
    run: TrainedRun, methods: tuple[str, ...] = ("LR-KDE", "LR-spline", "LR-stacked")
) -> list[Axes]:
    """One panel per law, for one trained flow."""
    axes = grid_of_axes(len(methods), 3, 3.4, 2.8)
    base = run.flow.base
    norms = base.norm_of(run.latents.calibration_z.double())
    for ax, method in zip(axes, methods, strict=True):
        law_panel(norms, calibrate(method, run).model.base.radius, base.radius, ax=ax)
        ax.set_title(f"{short_name(run.spec.dataset)}, {method}  (n = {len(norms):,})", fontsize=9)
    _legend(axes, "Latent norm")
    return axes


def _legend(axes: list[Axes], title: str) -> None:
    figure = figure_of(axes)
    handles, labels = axes[0].get_legend_handles_labels()
    twin = next(ax for ax in figure.axes if ax not in axes)
    more = twin.get_legend_handles_labels()
    options: dict[str, Any] = {"frameon": False, "ncols": 4, "fontsize": "small"}
    figure.legend(handles + more[0], labels + more[1], loc="outside upper center", **options)
    figure.supxlabel("Latent norm", fontsize=9)
    figure.supylabel(f"{title}: distribution function", fontsize=9)


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
        after = attach(calibrate(method, run).model, before)
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
    # Means over blocks of the grid, so that details narrower than a pixel are blurred, not lost.
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
