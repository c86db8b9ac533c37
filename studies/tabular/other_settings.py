"""NLL of the study's base flows with one setting changed, to explain differences from the published values.

    LATENTCAL_DATA=... python -m studies.tabular.other_settings rate misspecified
    LATENTCAL_DATA=... python -m studies.tabular.other_settings rate maf flow-matching --datasets house
    LATENTCAL_DATA=... python -m studies.tabular.other_settings patience convex-potential --datasets wage
    LATENTCAL_DATA=... python -m studies.tabular.other_settings last convex-potential --datasets sf2 scpf
    LATENTCAL_DATA=... python -m studies.tabular.other_settings epochs tuned-misspecified --datasets slump enb

The study trains every flow with one size, one learning rate and one patience; the published flows were tuned
on a grid. ``rate`` uses the largest learning rate of that grid, 0.005 instead of 0.001. ``size`` uses its
largest number of layers (convex potential and flow matching: 5) or of transforms (autoregressive: 8).
``patience`` uses 300 epochs instead of 30 or 60. ``last`` uses the weights of the first epoch at which 30
epochs have passed without a new best, as published. ``epochs`` trains the misspecified flow for eight epochs
instead of two. The NLL is that of BASE and of LR-KDE. Each run is
appended to results/other_settings.csv when it is done; runs that are already there are skipped.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from ..benchmarks import resumable
from ..benchmarks.resumable import read, run_all
from .execution import run
from .spec import RunSpec, suite

RESULTS = resumable.RESULTS / "other_settings.csv"
DEPTH = {"convex-potential": {"layers": 5}, "maf": {"flows": 8}, "flow-matching": {"layers": 5}}
SETTINGS = {
    "rate": "rate 0.005",
    "size": "deepest",
    "patience": "patience 300",
    "last": "last weights",
    "epochs": "8 epochs",
}
METHODS = {"BASE": "nll", "LR-KDE": "nll_lr"}  # and their columns


def change(setting: str, spec: RunSpec) -> RunSpec:
    """The same run with one setting changed and only the published methods."""
    fields: dict[str, Any] = {**spec.to_dict(), "recalibrations": list(METHODS)}
    if setting == "last":
        fields["weights"] = "last"
    elif setting == "patience":
        fields["patience"] = 300
    elif setting == "epochs":
        fields["max_epochs"] = 8
    else:
        fields["sizes"] |= {"learning_rate": 5e-3} if setting == "rate" else DEPTH[spec.flow]
    return RunSpec.from_dict(fields)


def run_cell(cell: tuple[str, str, RunSpec]) -> dict[str, object]:
    setting, name, spec = cell
    with tempfile.TemporaryDirectory() as cache:
        records = {record["method"]: record for record in run(spec, samples=False, cache=Path(cache))}
    for record in records.values():
        if "nll" not in record:
            raise RuntimeError(record["traceback"])
    return {
        "setting": setting,
        "suite": name,
        "dataset": spec.dataset,
        "seed": spec.seed,
        **{column: records[method]["nll"] for method, column in METHODS.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--datasets", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.setting == "patience" and any(name.endswith("misspecified") for name in arguments.suites):
        parser.error("patience has no effect on flows that stop after two epochs")
    if arguments.setting == "epochs" and not all(name.endswith("misspecified") for name in arguments.suites):
        parser.error("only the misspecified flow is trained for a fixed number of epochs")
    known = {(row["setting"], row["suite"], row["dataset"], int(row["seed"])) for row in read(RESULTS)}
    cells = [
        (arguments.setting, name, change(arguments.setting, spec))
        for name in arguments.suites
        for spec in suite(name, range(arguments.seeds), datasets=arguments.datasets)
        if (arguments.setting, name, spec.dataset, spec.seed) not in known
    ]
    run_all(run_cell, cells, RESULTS, arguments.processes)


if __name__ == "__main__":
    main()
