"""Figures of the study, as functions of records or of trained flows; each returns its axes."""

from .bars import error_bars, relative_bars
from .canvas import METHOD_COLOURS, save
from .diagrams import reliability_panels
from .gallery import cached_runs, draw_figures
from .laws import law_comparison, law_panel, law_panels
from .predictive import predictive_panels
from .ranking import rank_plot

__all__ = [
    "METHOD_COLOURS",
    "cached_runs",
    "draw_figures",
    "error_bars",
    "law_comparison",
    "law_panel",
    "law_panels",
    "predictive_panels",
    "rank_plot",
    "relative_bars",
    "reliability_panels",
    "save",
]
