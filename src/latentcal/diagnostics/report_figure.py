"""A calibration report as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import plots
from .report import CalibrationReport
from .tests import usable_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_MARGINALS = 5


def as_figure(report: CalibrationReport) -> Figure:
    """Panels for all that was measured, before and after in the same axes; at most six."""
    sides = {"after": report.measured} if report.before is not None else {"": report.measured}
    if report.before is not None:
        sides = {"before": report.before, **sides}
    conditional = report.conditional

    def latent(ax: Axes) -> None:
        for label, side in sides.items():
            plots.reliability_diagram(side.u, label=label or None, ax=ax)
        ax.set_title("Latent regions")

    def hdr(ax: Axes) -> None:
        for label, side in sides.items():
            if side.hdr_u is not None:
                plots.reliability_diagram(side.hdr_u, label=label or None, ax=ax)
        ax.set_title("Regions of highest density")

    def marginals(ax: Axes) -> None:
        u = report.measured.marginal_u
        worst = sorted(range(report.dim), key=lambda j: -report.measured.marginals[j].value)
        for j in sorted(worst[:_MOST_MARGINALS]):
            plots.reliability_diagram(u[:, j], label=report.measured.marginals[j].name, ax=ax)
        ax.set_title("Outputs by themselves")

    def feature(ax: Axes) -> None:
        assert conditional.suspect is not None
        assert conditional.suspect_values is not None
        name = conditional.feature_names[conditional.suspect]
        plots.pit_by_feature(conditional.suspect_values, conditional.u, name=name, ax=ax)

    def direction(ax: Axes) -> None:
        assert conditional.mean_direction is not None
        plots.mean_direction(conditional.mean_direction, min(report.n, usable_rows(report.dim)), ax=ax)

    def tests(ax: Axes) -> None:
        names = [finding.name for finding in report.findings]
        adjusted = torch.tensor([finding.adjusted for finding in report.findings], dtype=torch.float64)
        plots.p_value_bars(names, adjusted, level=report.level, ax=ax)

    panels: list[Any] = [latent, marginals, tests]
    if report.measured.hdr_u is not None:
        panels.insert(1, hdr)
    if conditional.suspect is not None:
        panels.insert(-1, feature)
    if conditional.mean_direction is not None:
        panels.insert(-1, direction)
    axes = plots.row_of_axes(len(panels))
    for panel, ax in zip(panels, axes, strict=True):
        panel(ax)
    return axes[0].get_figure(root=True)  # type: ignore[return-value]
