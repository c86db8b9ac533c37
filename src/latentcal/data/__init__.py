"""Data to try models on."""

from . import toy
from .folds import rolling_origin, time_folds
from .preprocessing import Encoded, Preprocessing
from .registry import DatasetEntry, download, list_datasets
from .splits import Part, Split, group_split, split, time_split
from .tabular import Dataset, load
from .user_table import TableDataset, load_csv

list = list_datasets  # data.list() reads well; nothing in this file needs the builtin

__all__ = [
    "Dataset",
    "DatasetEntry",
    "Encoded",
    "Part",
    "Preprocessing",
    "Split",
    "TableDataset",
    "download",
    "group_split",
    "list",
    "list_datasets",
    "load",
    "load_csv",
    "rolling_origin",
    "split",
    "time_folds",
    "time_split",
    "toy",
]
