"""The study on real data: a spec, a run, a record."""

from .evaluate import evaluate
from .methods import Calibrated, calibrate
from .run import record_id, run, run_into, run_suite, waiting
from .runner import Outcome, run_all
from .spec import METHODS, RunSpec
from .store import Store, StoreWarning
from .suites import SUITES, suite
from .training import TrainedRun, is_trained, trained

__all__ = [
    "METHODS",
    "SUITES",
    "Calibrated",
    "Outcome",
    "RunSpec",
    "Store",
    "StoreWarning",
    "TrainedRun",
    "calibrate",
    "evaluate",
    "is_trained",
    "record_id",
    "run",
    "run_all",
    "run_into",
    "run_suite",
    "suite",
    "trained",
    "waiting",
]
