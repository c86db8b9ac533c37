"""Data: a user's own table, splits of rows, and toys whose law is known."""

from . import toy
from .dataset import Dataset
from .preprocessing import Encoded, Preprocessing
from .splits import Part, Split, group_split, rolling_origin, split, time_folds, time_split
from .user_table import TableDataset, load_csv

__all__ = [
    "Dataset",
    "Encoded",
    "Part",
    "Preprocessing",
    "Split",
    "TableDataset",
    "group_split",
    "load_csv",
    "rolling_origin",
    "split",
    "time_folds",
    "time_split",
    "toy",
]
