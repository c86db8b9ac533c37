"""Colours and styles common to all plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._internal.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
BAND, INNER, LINE = "#D4D4D4", "#EDEDED", "#7A7A7A"


def new_axes(ax: Axes | None) -> Axes:
    """The given axes, or new ones; raises with the name of the extra if matplotlib is missing."""
    plt = _pyplot()
    return plt.subplots(figsize=(4.5, 4.5), layout="constrained")[1] if ax is None else ax


def row_of_axes(count: int) -> list[Axes]:
    """New axes side by side in one figure, two or three in a row."""
    columns = 2 if count in (2, 4) else min(count, 3)
    rows = -(-count // columns)
    figure = _pyplot().figure(figsize=(4.6 * columns, 4.2 * rows), layout="constrained")
    return [figure.add_subplot(rows, columns, i + 1) for i in range(count)]


def _pyplot() -> Any:
    return require("matplotlib.pyplot", "plots", "Plots need")


def has(ax: Axes, gid: str) -> bool:
    """Whether an artist with this gid has already been drawn."""
    return any(artist.get_gid() == gid for artist in ax.get_children())


def next_colour(ax: Axes) -> str:
    """The colour of the next model on these axes."""
    drawn = sum(artist.get_gid() == "model" for artist in ax.get_children())
    return COLOURS[drawn % len(COLOURS)]


def tidy(ax: Axes) -> None:
    """Remove the frame on the top and right of the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(length=3)


def legend(ax: Axes, **options: Any) -> None:
    """Add a legend with the models first, if anything has a label."""
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
