"""False alarms for calibrated forecasts of three kinds, and detection of planted faults.

    python -m studies.benchmarks.predictive_alarms run --sets 70
    python -m studies.benchmarks.predictive_alarms summary

The forecasts are *quantiles* (of independent outputs), *ensembles* of 20 members that are exchangeable with
the outputs, and a *sampler* (200 draws), with three outputs and 150 rows each. ``diagnose`` and
``prerank_report`` are applied to each at their default level of 3 %. The faults: forecasts that are 0.6 times
too narrow, shifted by 0.5 standard deviations, or lack the dependence of the outputs (correlation 0.7).
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor

import latentcal as lc
from latentcal.diagnostics import prerank_report

from .resumable import RESULTS, read, run_all

PATH = RESULTS / "predictive_alarms.csv"
KINDS = ("quantiles", "ensemble", "sampler")
FAULTS = ("narrow", "shifted", "independent")
LEVELS = torch.tensor([0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95], dtype=torch.float64)
ROWS, OUTPUTS, MEMBERS, DRAWS = 150, 3, 20, 200


def make(kind: str, fault: str, seed: int) -> tuple[Any, Any, Tensor]:
    """A model, its features, and outputs."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    x = normal(ROWS, 2)
    correlation = torch.full((OUTPUTS, OUTPUTS), 0.7).double() + 0.3 * torch.eye(OUTPUTS)
    root = torch.linalg.cholesky(correlation)
    alone = torch.eye(OUTPUTS, dtype=torch.float64)
    # Outputs are independent for quantiles: only then is their joint law correct.
    true_root = alone if kind == "quantiles" and fault != "independent" else root
    model_root = alone if kind == "quantiles" or fault == "independent" else root
    scale, shift = 0.6 if fault == "narrow" else 1.0, 0.5 if fault == "shifted" else 0.0
    spread = x[:, 1:].sigmoid() + 0.5
    y = x[:, :1] + spread * (normal(ROWS, OUTPUTS) @ true_root.T)
    if kind == "quantiles":
        q = (x[:, :1] + shift * spread)[..., None] + scale * spread[..., None] * torch.special.ndtri(LEVELS)
        return lc.from_quantiles(LEVELS.tolist(), outputs=OUTPUTS), q.expand(-1, OUTPUTS, -1), y

    def draw(rows: Tensor, noise: Tensor) -> Tensor:
        wide = rows[:, 1:].sigmoid() + 0.5
        return rows[:, :1] + shift * wide + scale * wide * (noise @ model_root.T)

    if kind == "ensemble":
        members = draw(x, normal(MEMBERS, ROWS, OUTPUTS)).movedim(0, 1)
        return lc.from_samples(members), members, y

    def sampler(rows: Tensor) -> Tensor:
        return draw(rows, torch.randn(DRAWS, len(rows), OUTPUTS, dtype=torch.float64))

    return lc.from_sampler(sampler, x, members=DRAWS), x, y


def run(cell: tuple[str, str, int]) -> dict[str, object]:
    """Record of the findings of both reports."""
    kind, fault, seed = cell
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, x, y = make(kind, fault, seed)
    row: dict[str, object] = {"kind": kind, "fault": fault, "seed": seed}
    report = lc.diagnose(model, x, y)
    row["diagnose"] = "; ".join(finding.name for finding in report.findings if finding.found)
    row["preranks"] = "; ".join(prerank_report(model, x, y).found)
    return row


def summary() -> None:
    """Print the table of findings and of the names given to the faults."""
    rows = read(PATH)
    print("| kind | fault | sets | diagnose finds | prerank_report finds | most named |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        for fault in ("none", *FAULTS):
            own = [row for row in rows if (row["kind"], row["fault"]) == (kind, fault)]
            found = [sum(bool(row[column]) for row in own) for column in ("diagnose", "preranks")]
            names = Counter(
                n for row in own for c in ("diagnose", "preranks") for n in row[c].split("; ") if n
            )
            most = ", ".join(f"{name} ({count})" for name, count in names.most_common(4))
            print(f"| {kind} | {fault} | {len(own)} | {found[0]} | {found[1]} | {most} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "summary"))
    parser.add_argument("--sets", type=int, default=70, help="calibrated sets of each kind")
    parser.add_argument("--faulty", type=int, default=5, help="sets of each kind with each fault")
    options = parser.parse_args()
    if options.what == "summary":
        summary()
        return
    done = {(row["kind"], row["fault"], int(row["seed"])) for row in read(PATH)}
    cells = [(kind, fault, seed) for seed in range(options.faulty) for kind in KINDS for fault in FAULTS]
    cells += [(kind, "none", seed) for seed in range(options.sets) for kind in KINDS]
    run_all(run, [c for c in cells if c not in done], PATH, 1)


if __name__ == "__main__":
    main()
