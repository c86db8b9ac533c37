"""The paper's study on tables: specs, runs, records, and tables and figures with the published values."""

from .datasets import DatasetEntry, download, find, list_datasets, load
from .evaluate import evaluate
from .execution import Outcome, record_id, run, run_suite, runs_left
from .methods import Calibrated, calibrate
from .spec import METHODS, SUITES, RunSpec, suite
from .store import Store, StoreWarning
from .trainings import TrainedRun, is_trained, train_or_load

__all__ = [
    "METHODS",
    "SUITES",
    "Calibrated",
    "DatasetEntry",
    "Outcome",
    "RunSpec",
    "Store",
    "StoreWarning",
    "TrainedRun",
    "calibrate",
    "download",
    "evaluate",
    "find",
    "is_trained",
    "list_datasets",
    "load",
    "record_id",
    "run",
    "run_suite",
    "runs_left",
    "suite",
    "train_or_load",
]
