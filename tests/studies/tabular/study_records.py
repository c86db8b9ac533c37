"""Records as a run writes them, with the figures that a test wants."""

from typing import Any

from studies.tabular import record_id, suite
from studies.tabular.evaluate import CURVE
from studies.tabular.store import DONE, FAILED, Record
from studies.tabular.study_cells import Cells


def record(
    dataset: str,
    method: str,
    seed: int,
    *,
    suite_name: str = "convex-potential",
    weights: str = "best",
    error: str | None = None,
    **figures: Any,
) -> Record:
    """A record that is done, or failed where it has an error."""
    spec = suite(suite_name, [seed], datasets=[dataset], weights=weights)[0]
    fields = spec.to_dict()
    del fields["recalibrations"]
    head = {"id": record_id(spec, method), "method": method, **fields}
    if error is not None:
        return {**head, "status": FAILED, "stage": "recalibration", "error": error, "traceback": error}
    about = {"n_train": 67, "n_calibration": 21, "n_test": 15, "p": 7, "d": 3, "sampling_error": None}
    return {**head, "status": DONE, **about, **figures}


def records_of(metric: str, values: dict[tuple[str, str], list[float]], **fields: Any) -> list[Record]:
    """Records of one figure: by (data set, method) its values of seeds 0, 1, 2..."""
    return [
        record(dataset, method, seed, **{metric: value}, **fields)
        for (dataset, method), found in values.items()
        for seed, value in enumerate(found)
    ]


def cells_of(metric: str, values: dict[tuple[str, str], list[float]], **fields: Any) -> Cells:
    """Cells of the suite ``convex-potential`` with one figure."""
    return Cells.of(records_of(metric, values, **fields), "convex-potential", fields.get("weights", "best"))


def full_record(dataset: str, method: str, seed: int, shift: float = 0.0, **fields: Any) -> Record:
    """A record with every figure, lower by a shift than those of BASE."""
    latent = None if method == "HDR-R" else 0.1 - shift / 10
    figures = {
        "nll": 2.0 + 0.1 * seed - shift,
        "nll_latent": 3.0 - shift,
        "nll_radial": 0.0,
        "nll_flow": -1.0 + 0.1 * seed,
        "energy_score": 0.8 - shift / 10,
        "l_ece": latent,
        "hdr_ece": 0.1 - shift / 10,
        "latent_curve": None if method == "HDR-R" else [level**1.5 for level in CURVE],
        "hdr_curve": [level**1.2 for level in CURVE],
        "coverage": {"0.5": 0.5, "0.8": 0.8, "0.9": 0.88, "0.95": 0.95},
        "log_volume": 1.0,
        "median_volume": 2.0,
        "train_seconds": 5.0,
        "calibrate_seconds": 2.0 if method == "HDR-R" else 0.1,
        "evaluate_seconds": 1.0,
    }
    return record(dataset, method, seed, **{**figures, **fields})
