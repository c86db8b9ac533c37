"""Reliability diagrams of all data sets of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from latentcal.plots import reliability_diagram

from ..bands import curve_of, rows_of
from ..cells import Cells, short_name
from ..store import DONE, Record
from .canvas import METHOD_COLOURS, figure_of, grid_of_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {"latent_curve": ("BASE", "LR-KDE", "LR-stacked"), "hdr_curve": ("BASE", "LR-KDE", "HDR-R")}
_NAMES = {"latent_curve": "Latent calibration", "hdr_curve": "HDR calibration"}


def reliability_panels(
    cells: Cells, curve: str = "latent_curve", methods: Sequence[str] | None = None, seed: int | None = None
) -> list[Axes]:
    """A reliability diagram for each data set, of one seed, with 90 % consistency bands of its test rows.

    Args:
        cells: records of a suite.
        curve: ``"latent_curve"`` or ``"hdr_curve"``.
        methods: those that are shown.
        seed: whose runs; None for the first of those of each data set that have most of the methods.

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
            # Curves that lie on each other stay visible: the last one is dashed.
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
    """Methods and bands once for all panels; the number of rows, which differs, left out."""
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
