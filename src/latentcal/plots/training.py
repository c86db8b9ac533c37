"""Losses of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .style import COLOURS, LINE, legend, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    ax = new_axes(ax)
    for values, label, colour in ((train, "training", LINE), (validation, "validation", COLOURS[1])):
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
    tidy(ax)
    legend(ax)
    return ax
