"""Data to try models on."""

from . import toy
from .folds import rolling_origin, time_folds
from .image_folder import ImageFolder, read_image
from .images import (
    Compose,
    GaussianNoise,
    ImageSet,
    RandomFlip,
    UniformDequantization,
    load_images,
    scale_pixels,
)
from .preprocessing import Encoded, Preprocessing
from .registry import DatasetEntry, download, list_datasets
from .splits import Part, Split, group_split, split, time_split
from .tabular import Dataset, load
from .user_table import TableDataset, load_csv

list = list_datasets  # data.list() reads well; nothing in this file needs the builtin

__all__ = [
    "Compose",
    "Dataset",
    "DatasetEntry",
    "Encoded",
    "GaussianNoise",
    "ImageFolder",
    "ImageSet",
    "Part",
    "Preprocessing",
    "RandomFlip",
    "Split",
    "TableDataset",
    "UniformDequantization",
    "download",
    "group_split",
    "list",
    "list_datasets",
    "load",
    "load_csv",
    "load_images",
    "read_image",
    "rolling_origin",
    "scale_pixels",
    "split",
    "time_folds",
    "time_split",
    "toy",
]
