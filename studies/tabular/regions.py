"""Coverage and volume of conformal regions of 90 %, for every score, beside quantile regression by output.

    LATENTCAL_DATA=... python -m studies.tabular.regions                # resumes where it was stopped
    LATENTCAL_DATA=... python -m studies.tabular.regions maf --datasets slump enb --seeds 5
    python -m studies.tabular.regions --show

The base flows are those of the study. Regions are calibrated on its validation rows, which have also stopped
the training, and measured on at most 500 test rows; outputs are standardised, and the volume is the median
over at most 200 of these rows. ``cqr`` needs no flow: gradient boosting learns the 5 and 95 % quantiles of
each output on the training rows, and conformal calibration widens all of them by one number. Each region is a
line of results/regions.csv.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from latentcal import ConditionalFlow, conformal_region
from latentcal.splits import Split, split

from ..benchmarks import resumable
from ..benchmarks.resumable import append, read
from .comparisons import Ranks, compare_ranks, rank_values
from .datasets import find, load
from .sampling import sampler
from .spec import FLOWS, SMALL_SETS, RunSpec, study_sets, suite
from .study_cells import short_name
from .trainings import Load, one_thread, train_or_load

RESULTS = resumable.RESULTS / "regions.csv"
SCORES = ("latent", "density", "hpd", "pcp")
CQR = "cqr"
COVERAGE = 0.9
TESTED, MEASURED = 500, 200  # rows at most: for the coverage, and for the volume
POINTS = 1000  # of the estimate of a volume


def of_flow(spec: RunSpec, score: str, *, load: Load = load, cache: Path | None = None) -> dict[str, float]:
    """Coverage on test rows, and median log volume, of the region of a trained flow."""
    run = train_or_load(spec, load=load, cache=cache)
    flow = sampler(run.flow)
    with one_thread(), torch.no_grad():
        try:
            return _measure(flow, run.split, score, spec.seed)
        except RuntimeError:  # latents that cannot be decoded in float32
            return _measure(copy.deepcopy(flow).double(), run.split, score, spec.seed)


def _measure(flow: ConditionalFlow, parts: Split, score: str, seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    start = time.process_time()
    region = conformal_region(flow, *parts.validation, coverage=COVERAGE, score=score, generator=generator)
    calibrated = time.process_time() - start
    x, y = (rows[:TESTED] for rows in parts.test)
    inside = region.contains(y, x)
    volume = region.volume(x[:MEASURED], samples=POINTS, generator=generator)
    return {
        "coverage": float(inside.double().mean()),
        "log_volume": float(volume.log_value.median()),
        "outputs": y.shape[1],
        "cpu_seconds": calibrated,
    }


def of_quantiles(parts: Split, seed: int) -> dict[str, float]:
    r"""The same of boxes from quantile regression, :math:`s(x, y) = \max_j \max(l_j - y_j, y_j - u_j)`."""
    start = time.process_time()
    ends = []
    for level in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2):
        columns = []
        for target in parts.train.y.T:
            trees = HistGradientBoostingRegressor(
                loss="quantile", quantile=level, early_stopping=False, random_state=seed
            )
            trees.fit(parts.train.x.numpy(), target.numpy())
            columns.append([trees.predict(x.numpy()) for x in (parts.validation.x, parts.test.x[:TESTED])])
        ends.append([torch.from_numpy(np.stack(column, 1)) for column in zip(*columns, strict=True)])
    (low, low_test), (high, high_test) = ends
    scores, test = (
        torch.maximum(a - y, y - b).amax(1)
        for a, b, y in (
            (low, high, parts.validation.y),
            (low_test, high_test, parts.test.y[:TESTED]),
        )
    )
    rank = math.ceil(COVERAGE * (len(scores) + 1))
    margin = float(scores.sort().values[rank - 1]) if rank <= len(scores) else math.inf
    widths = (high_test - low_test + 2 * margin).clamp(min=0)[:MEASURED]
    return {
        "coverage": float((test <= margin).double().mean()),
        "log_volume": float(widths.log().sum(1).median()),
        "outputs": parts.test.y.shape[1],
        "cpu_seconds": time.process_time() - start,
    }


def table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Lines in Markdown: of each suite and score, coverage and volume per output beside the latent score."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        place = row["suite"], row["dataset"], row["score"]
        found.setdefault(place, []).append(
            (float(row["coverage"]), float(row["log_volume"]) / int(row["outputs"]))
        )
    means = {
        place: tuple(statistics.fmean(column) for column in zip(*values, strict=True))
        for place, values in found.items()
    }
    names = list(dict.fromkeys(name for name, _, _ in means if name != CQR))
    by_case: dict[tuple[str, str], dict[str, float]] = {}
    lines = [
        "| suite | data sets | score | coverage, mean | lowest "
        "| log volume per output, median | minus latent |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        datasets = list(dict.fromkeys(dataset for suite_, dataset, _ in means if suite_ == name))
        for score in (*SCORES, CQR):
            places = {dataset: (CQR if score == CQR else name, dataset, score) for dataset in datasets}
            known = {dataset: means[place] for dataset, place in places.items() if place in means}
            if not known:
                continue
            against = [
                volume - means[name, dataset, "latent"][1]
                for dataset, (_, volume) in known.items()
                if (name, dataset, "latent") in means
            ]
            coverages, volumes = zip(*known.values(), strict=True)
            figures = [
                f"{statistics.fmean(coverages):.3f}",
                f"{min(coverages):.3f}",
                f"{statistics.median(volumes):.3f}",
                f"{statistics.median(against):+.3f}" if against else "–",
            ]
            lines.append(f"| {name} | {len(known)} | {score} | {' | '.join(figures)} |")
            for dataset, (_, volume) in known.items():
                by_case.setdefault((name, dataset), {})[score] = volume
    whole = {case: volumes for case, volumes in by_case.items() if len(volumes) == len(SCORES) + 1}
    return [*lines, "", *_ranked(Ranks({case: rank_values(volumes) for case, volumes in whole.items()}, {}))]


def _ranked(ranked: Ranks) -> Iterable[str]:
    """Mean ranks of the volume, and which of them differ."""
    if len({dataset for _, dataset in ranked.by_case}) < 2:
        return
    tests = compare_ranks(ranked)
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in ranked.mean.items())
    alike = " and ".join(f"({', '.join(group)})" for group in tests.alike()) or "none"
    yield f"Mean rank of the volume over {len(ranked.by_case)} cells (1 is the smallest): {means}."
    yield f"Groups without a significant difference over {tests.datasets} data sets, at 5 %: {alike}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="of the study; all four by default")
    parser.add_argument("--datasets", nargs="+", help="full names; the twelve smallest by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--show", action="store_true", help="print what is known")
    arguments = parser.parse_args()
    if arguments.show:
        print("\n".join(table(read(RESULTS))))
        return
    datasets = arguments.datasets or list(study_sets()[:SMALL_SETS])
    known = {(row["suite"], row["dataset"], row["seed"], row["score"]) for row in read(RESULTS)}
    cells = [
        (name, spec, score)
        for name in arguments.suites or [*FLOWS, "misspecified"]
        for spec in suite(name, range(arguments.seeds), datasets=datasets)
        for score in SCORES
    ]
    boxes = [
        (CQR, RunSpec(find(name).name, "maf", seed), CQR)
        for name in datasets
        for seed in range(arguments.seeds)
    ]
    for name, spec, score in [*boxes, *cells]:
        place = name, spec.dataset, str(spec.seed), score
        if place in known:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if score == CQR:
                figures = of_quantiles(split(load(spec.dataset), spec.seed, spec.split), spec.seed)
            else:
                figures = of_flow(spec, score)
        append(RESULTS, dict(zip(("suite", "dataset", "seed", "score"), place, strict=True)) | figures)
        print(short_name(spec.dataset), *place, figures, flush=True)


if __name__ == "__main__":
    main()
