"""The table of calls: how each public function may be called, well and badly, and what must come of it.

``TABLE[name](draw)`` makes one call by the choices of a draw; ``EFFORT[name]`` is its cost in milliseconds.
"""

from . import estimators, laws, predictions, recalibration, regions
from .table import EFFORT, TABLE

__all__ = ["EFFORT", "TABLE", "estimators", "laws", "predictions", "recalibration", "regions"]
