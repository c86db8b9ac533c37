"""One picture of what recalibration does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..diagnostics import CalibrationReport
from ..plots import reliability_diagram

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def before_and_after(report: CalibrationReport) -> Figure:
    """Latent and HDR reliability before and after recalibration, side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.6), layout="constrained")
    sides = {"before": report.before, "after": report.measured}
    for name, side in sides.items():
        if side is None:
            continue
        reliability_diagram(side.u, label=f"{name}, L-ECE {side['L-ECE'].value:.3f}", ax=axes[0])
        if side.hdr_u is not None:
            reliability_diagram(side.hdr_u, label=f"{name}, HDR-ECE {side['HDR-ECE'].value:.3f}", ax=axes[1])
    for ax, title in zip(axes, ("Latent reliability", "HDR reliability"), strict=True):
        ax.set_title(title)
    return figure
