"""The paper's study on tables: a spec, a run, a record; its tables and figures beside the published ones."""

from .datasets import DatasetEntry, download, find, list_datasets, load
from .evaluate import evaluate
from .execution import Outcome, record_id, run, run_suite, waiting
from .methods import Calibrated, calibrate
from .spec import METHODS, RunSpec
from .store import Store, StoreWarning
from .suites import SUITES, suite
from .training import TrainedRun, is_trained, trained

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
    "suite",
    "trained",
    "waiting",
]
