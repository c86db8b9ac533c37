"""Pictures of calibration: each function draws arrays on axes and returns the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .metrics import ReliabilityCurve, pit_density, reliability_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_BAND, _INNER, _LINE = "#D4D4D4", "#EDEDED", "#7A7A7A"


def reliability_diagram(
    curve_or_u: ReliabilityCurve | Tensor, *, label: str | None = None, ax: Axes | None = None
) -> Axes:
    """Observed frequency against nominal level, with the bands in which a calibrated model lies.

    Grey is the simultaneous band, its light core the pointwise one. Call it again with the same axes to
    compare models: each gets the next colour, and bands that are there already are not drawn twice.

    Args:
        curve_or_u: a curve from :func:`latentcal.metrics.reliability_curve`, or PIT values.
        label: name of the model in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    curve = curve_or_u if isinstance(curve_or_u, ReliabilityCurve) else reliability_curve(curve_or_u)
    ax = _axes(ax)
    levels = curve.levels.cpu().numpy()
    band = f"band-{curve.n}-{curve.confidence}"
    if not _has(ax, band):
        percent = f"{100 * curve.confidence:g} %"
        for lower, upper, colour, name, order in (
            (curve.simultaneous_lower, curve.simultaneous_upper, _BAND, "simultaneous", 0.5),
            (curve.pointwise_lower, curve.pointwise_upper, _INNER, "pointwise", 0.6),
        ):
            ax.fill_between(
                levels,
                lower.cpu().numpy(),
                upper.cpu().numpy(),
                color=colour,
                linewidth=0,
                zorder=order,
                label=f"{percent} {name} (n = {curve.n:,})",
                gid=band,
            )
    if not _has(ax, "diagonal"):
        ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="Nominal probability", ylabel="Observed frequency")
        ax.set_aspect("equal")
        _tidy(ax)
    ax.plot(
        levels, curve.frequency.cpu().numpy(), color=_next_colour(ax), linewidth=2, label=label, gid="model"
    )
    _legend(ax, loc="upper left")
    return ax


def pit_histogram(u: Tensor, *, bins: int = 20, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Histogram of PIT values as a density, with the band that holds all bins of a calibrated model (95 %).

    Call it again with the same axes to compare models.

    Args:
        u: PIT values in [0, 1].
        bins: number of bins.
        label: name of the model in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    histogram = pit_density(u, bins)
    ax = _axes(ax)
    band = f"band-{histogram.n}-{bins}"
    if not _has(ax, band):
        ax.axhspan(
            histogram.lower,
            histogram.upper,
            color=_BAND,
            linewidth=0,
            zorder=0.5,
            label=f"{100 * histogram.confidence:g} % of calibrated (n = {histogram.n:,})",
            gid=band,
        )
    if not _has(ax, "diagonal"):
        ax.axhline(1, color=_LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), xlabel="PIT value", ylabel="Density")
        _tidy(ax)
    colour = _next_colour(ax)
    edges, density = histogram.edges.cpu().numpy(), histogram.density.cpu().numpy()
    ax.stairs(density, edges, baseline=None, color=colour, linewidth=2, label=label, zorder=3, gid="model")
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.25 * max(float(density.max()), histogram.upper)))
    _legend(ax, loc="upper center")
    return ax


def training_curves(
    train: Sequence[float], validation: Sequence[float], best: int = -1, *, ax: Axes | None = None
) -> Axes:
    """Loss in training and in validation against the epoch, with the best epoch marked.

    Args:
        train: mean training loss of each epoch.
        validation: validation loss after each epoch.
        best: index of the best epoch; -1 for none.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    for values, label, colour in ((train, "training", _LINE), (validation, "validation", COLOURS[1])):
        ax.plot(range(1, len(values) + 1), values, color=colour, linewidth=2, label=label, gid="model")
    if best >= 0:
        ax.plot(
            [best + 1],
            [validation[best]],
            "o",
            color=COLOURS[0],
            label=f"best: {validation[best]:.3f}",
            gid="model",
        )
    ax.set(xlabel="Epoch", ylabel="Loss")
    _tidy(ax)
    _legend(ax)
    return ax


def density_map(
    first: Tensor,
    second: Tensor,
    density: Tensor,
    *,
    pit: Tensor | None = None,
    levels: Sequence[float] = (0.01, 0.1, 0.5, 0.9),
    label_levels: bool = True,
    points: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A density of two outputs as a map, with the level sets of a PIT and points.

    Args:
        first: (a,) grid of the first output.
        second: (b,) grid of the second output.
        density: (a, b) values on the grid.
        pit: (a, b) PIT values on the grid, whose level sets are drawn.
        levels: of the PIT: each level set holds this probability.
        label_levels: whether each line says its level.
        points: (n, 2) drawn as dots.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    grid = first.cpu().numpy(), second.cpu().numpy()
    ax.pcolormesh(
        *grid, density.T.cpu().numpy(), cmap="Oranges", vmin=0, shading="gouraud", rasterized=True, gid="map"
    )
    if points is not None:
        ax.plot(*points.T.cpu().numpy(), ".", color=COLOURS[1], markersize=2, alpha=0.5, gid="points")
    if pit is not None:
        lines = ax.contour(*grid, pit.T.cpu().numpy(), list(levels), colors="black", linewidths=0.9)
        labels = ax.clabel(lines, fmt=lambda level: f"{level:g}", fontsize=7) if label_levels else []
        for text in labels:
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.4})
    ax.set(xlim=(grid[0].min(), grid[0].max()), ylim=(grid[1].min(), grid[1].max()), box_aspect=1)
    _tidy(ax)
    return ax


def region_outlines(
    outlines: Sequence[Sequence[Tensor]],
    levels: Sequence[float],
    *,
    label: str = "",
    points: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Prediction regions of two outputs, one a level, each of some closed polygons.

    Call it again with the same axes to compare regions: each set gets the next colour.

    Args:
        outlines: for each level its polygons (m, 2), where those that run the other way round are holes; none
            for a region that is everything.
        levels: coverage of each.
        label: name of the set in the legend.
        points: (n, 2) drawn as dots.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    drawn = {gid for artist in ax.get_children() if (gid := artist.get_gid() or "").startswith("region")}
    colour, name = COLOURS[1:][len(drawn) % len(COLOURS[1:])], f"region-{len(drawn)}"
    outermost_first = sorted(zip(levels, outlines, strict=True), key=lambda pair: -pair[0])
    styles = ["solid", "dashed", "dotted", "dashdot"]
    for i, (level, polygons) in enumerate(outermost_first):
        text = f"{label} {100 * level:g} %".strip()
        if not polygons:
            ax.plot([], [], " ", label=f"{text}: everything", gid=name)
            continue
        path = Path.make_compound_path(*(Path(line.cpu().numpy(), closed=True) for line in polygons))
        if not _has(ax, "map"):  # whose colours a fill would change
            ax.add_patch(PathPatch(path, facecolor=colour, alpha=0.12, linewidth=0, gid=name))
        edge = {"edgecolor": colour, "linestyle": styles[i % 4], "linewidth": 1.6}
        ax.add_patch(PathPatch(path, fill=False, label=text, gid=name, **edge))
    if points is not None:
        ax.plot(*points.T.cpu().numpy(), ".", color=COLOURS[-1], markersize=2.5, alpha=0.6, gid="points")
    ax.autoscale_view()
    _tidy(ax)
    _legend(ax)
    return ax


def calibration_map(
    levels: Tensor,
    share: Tensor,
    *,
    smooth: tuple[Tensor, Tensor] | None = None,
    label: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The law of PIT values on calibration data: the share of points with a PIT of at most u, against u.

    Args:
        levels: (k,) values u.
        share: (k,) share of the calibration points at or below them.
        smooth: a fitted distribution function as (u, F(u)), drawn over the steps.
        label: name in the legend.
        ax: where to draw; new axes by default.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    if not _has(ax, "diagonal"):
        ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 3)), zorder=1, gid="diagonal")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="PIT value u", ylabel="Share of points at or below u")
        ax.set_aspect("equal")
        _tidy(ax)
    colour = _next_colour(ax)
    ax.step(*(v.cpu().numpy() for v in (levels, share)), where="post", color=colour, label=label, gid="model")
    if smooth is not None:
        values = (v.detach().cpu().numpy() for v in smooth)
        ax.plot(*values, color="black", linewidth=1, linestyle=":", label="smooth law", gid="smooth")
    _legend(ax, loc="upper left")
    return ax


def _axes(ax: Axes | None) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'latentcal[plots]'.") from error
    return plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1] if ax is None else ax


def _has(ax: Axes, gid: str) -> bool:
    return any(artist.get_gid() == gid for artist in ax.get_children())


def _next_colour(ax: Axes) -> str:
    drawn = sum(artist.get_gid() == "model" for artist in ax.get_children())
    return COLOURS[drawn % len(COLOURS)]


def _tidy(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=3)


def _legend(ax: Axes, **options: Any) -> None:
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        models_first = sorted(range(len(handles)), key=lambda i: handles[i].get_gid() != "model")
        ax.legend(
            [handles[i] for i in models_first],
            [labels[i] for i in models_first],
            frameon=False,
            fontsize="small",
            handlelength=1.6,
            **options,
        )
