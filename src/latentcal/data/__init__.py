"""Data to try models on."""

from . import toy
from .folds import rolling_origin, time_folds
from .registry import DatasetEntry, list_datasets
from .splits import Part, Split, group_split, split, time_split
from .tabular import Dataset, load

list = list_datasets  # data.list() reads well; nothing in this file needs the builtin

__all__ = [
    "Dataset",
    "DatasetEntry",
    "Part",
    "Split",
    "group_split",
    "list",
    "list_datasets",
    "load",
    "rolling_origin",
    "split",
    "time_folds",
    "time_split",
    "toy",
]
