"""Throughput: rows, draws, scores and regions per second, their growth with n and d, and comparisons.

    pip install --target peers --no-deps properscoring scoringrules numba llvmlite
    python -m studies.benchmarks.throughput --peers peers

writes results/throughput.csv and growth.csv and prints both. All runs use one thread; times are medians of
processor time, and the two sides take turns. The other packages are no part of the library: without --peers,
their rows are omitted. Steps and draws of convex potential flows are compared with the plain code of
``studies.benchmarks.flows``.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import latentcal as lc
from latentcal.flows import ConvexPotentialFlow

from . import flows
from .latency import FLOWS, Line, at_most, fitted, medians, within, write

RESULTS = Path(__file__).parent / "results"
MOST_SAMPLES_ERROR = 1e-4


def faster(work: str, beside: str, plain: float, own: float, factor: float, note: bool = True) -> Line:
    """A row whose limit is 1 / ``factor`` of the time of the plain work."""
    return Line(work, f"1/{factor:g}", beside, plain, own, own <= plain / factor and note)


def rates() -> Iterable[Line]:
    """Milliseconds of fitted regressors for 1,000 rows, and of reading a table."""
    rows = np.random.default_rng(1).normal(size=(200, 4))
    for name, limits in (("linear", (30_000, None)), ("convex potential", (1_500, 1_500))):
        estimator = fitted(FLOWS[name])
        region = estimator.predict_region(rows)
        tasks = (
            ("predict", lambda e=estimator: e.predict(rows)),
            ("bounds", lambda r=region: r.bounds(quick=True)),
        )
        for (what, action), limit in zip(tasks, limits, strict=True):
            if limit is not None:
                (own,) = medians(action, turns=5)
                yield within(f"{what} 1,000 rows, {name}, d = 2", 1e6 / limit, 5 * own)
    import pyarrow.csv

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/table.csv"
        names = [*"abcdef", "y"]
        np.savetxt(
            path,
            np.random.default_rng(0).normal(size=(100_000, 7)),
            "%.6g",
            ",",
            header=",".join(names),
            comments="",
        )
        yield at_most(
            "load_csv, 100,000 rows of 7 numbers",
            "pyarrow.csv.read_csv",
            lambda: pyarrow.csv.read_csv(path),
            lambda: lc.tables.load_csv(path, ["y"]),
            2.0,
            turns=3,
        )


def scores_and_sorts(peers: bool) -> Iterable[Line]:
    """Scores of samples, conformal calibration, and draws of an autoregressive flow."""
    generator = torch.Generator().manual_seed(0)
    if peers:
        import properscoring
        import scoringrules

        for s, n in ((100, 10_000), (1000, 1000)):
            samples, y = (torch.randn(*shape, generator=generator).double() for shape in ((s, n, 1), (n, 1)))
            theirs, seen = samples[..., 0].T.contiguous().numpy(), y[:, 0].numpy()
            yield at_most(
                f"CRPS, {s:,} draws of {n:,} rows",
                "properscoring with numba",
                lambda theirs=theirs, seen=seen: properscoring.crps_ensemble(seen, theirs),
                lambda samples=samples, y=y: lc.metrics.energy_score(samples, y),
                2.0,
            )
        samples, y = (
            torch.randn(*shape, generator=generator).double() for shape in ((100, 2000, 4), (2000, 4))
        )
        theirs, seen = samples.transpose(0, 1).contiguous().numpy(), y.numpy()
        plain, own = medians(
            lambda: scoringrules.es_ensemble(seen, theirs),
            lambda: lc.metrics.energy_score(samples, y),
            turns=3,
        )
        yield faster("energy score, 100 draws of 2,000 rows, d = 4", "scoringrules", plain, own, 8)
    flow = lc.flows.LinearGaussianFlow(torch.zeros(2, 3), torch.zeros(2), torch.eye(2))
    x, y = torch.randn(100_000, 3, generator=generator), torch.randn(100_000, 2, generator=generator)
    norms = lc.latent_norms(flow, x, y)
    yield at_most(
        "conformal_region, n = 100,000",
        "torch.sort",
        lambda: torch.sort(norms),
        lambda: lc.conformal_region(flow, x, y),
        5.0,
    )
    yield at_most(
        "conformal_region, n = 100,000", "encode, numpy's sort",
        lambda: np.sort(flow(x).latent_norm(y).numpy()), lambda: lc.conformal_region(flow, x, y), 5.0,
    )  # fmt: skip
    for transform in ("affine", "spline"):
        torch.manual_seed(0)
        maf = lc.flows.AutoregressiveFlow(4, 3, transform=transform).requires_grad_(False)
        law = lc.StackedRadius.fit(
            1.2 * maf.base.radius.sample((1000,), generator), reference=maf.base.radius
        )
        recalibrated = maf.with_base(maf.base.with_radius(law))
        bare = lambda maf=maf: maf.network(x[:1000]).sample((10,))  # noqa: E731
        for name, model in (("", maf), ("recalibrated ", recalibrated)):
            ours = lambda model=model: model(x[:1000]).sample((10,))  # noqa: E731
            yield at_most(
                f"10,000 draws of a {name}MAF, {transform}, d = 4", "zuko", bare, ours, 1.15, turns=9
            )


def convex_potentials() -> Iterable[Line]:
    """Training steps and draws, compared with autograd and L-BFGS on the same weights."""
    for dim, factor in ((2, 3), (16, 8)):
        report = flows.measure(dim, turns=3)
        step, draws = report["training step"], report["1,000 samples, L-BFGS in float64"]
        yield faster(
            f"convex potential step, d = {dim}", "plain autograd", step["plain_ms"], step["ms"], factor
        )
        good = draws["worst_error"] <= MOST_SAMPLES_ERROR
        work = f"convex potential, 1,000 draws, d = {dim} (error {draws['worst_error']:.0e})"
        yield faster(work, "L-BFGS in float64", draws["plain_ms"], draws["ms"], 25, good)
        flow, (x, y) = flows.trained(dim), flows.curved(dim, flows.BATCH, 2)

        def value(flow: ConvexPotentialFlow = flow, x: Tensor = x, y: Tensor = y) -> None:
            flow.potential.value(y, flow.potential.context_of(x)).sum().backward()

        def ours(flow: ConvexPotentialFlow = flow, x: Tensor = x, y: Tensor = y) -> None:
            flow.encode(y, x)[1].sum().backward()

        yield at_most(f"determinant and its slope, d = {dim}", "value and its slope", value, ours, 3.0)


def whole_tasks() -> Iterable[Line]:
    """autocalibrate, diagnose and the bounds of regions."""
    generator = torch.Generator().manual_seed(0)
    for what, n, d, limit in (("autocalibrate", 2000, 6, 2500), ("diagnose", 10_000, 16, 2000)):
        flow = lc.flows.LinearGaussianFlow(torch.zeros(d, 3), torch.zeros(d), torch.eye(d))
        x, y = torch.randn(n, 3, generator=generator), 1.1 * torch.randn(n, d, generator=generator)
        (own,) = medians(lambda x=x, y=y, flow=flow, what=what: getattr(lc, what)(flow, x, y), turns=2)
        yield within(f"{what}, n = {n:,}, d = {d}", limit, own)
    for dim, rows in ((2, 64), (6, 16)):
        flow, (x, y) = flows.trained(dim).requires_grad_(False), flows.curved(dim, 400, 3)
        region, before = (
            lc.conformal_region(flow, x, y),
            512 + 3840 * dim,
        )  # points that a random search decodes
        z = region.threshold * torch.nn.functional.normalize(torch.randn(before // 64, rows, dim), dim=-1)

        def search(flow: ConvexPotentialFlow = flow, x: Tensor = x[:rows], z: Tensor = z) -> None:
            for _ in range(64):
                flow(x).decode(z)

        plain, own = medians(search, lambda region=region, x=x[:rows]: region.bounds(x), turns=1)
        work = f"Region.bounds, {rows} rows, convex potential, d = {dim}"
        yield faster(work, f"decode {before:,} points a row", plain, own, 10)


JOBS = (
    "recalibrate",
    "log_prob",
    "sample",
    "mean of 128 draws",
    "conformal_region",
    "energy_score",
    "bounds",
    "autocalibrate",
    "diagnose",
)


def job(name: str, n: int, d: int) -> Callable[[], object]:
    """One of the jobs, for n rows and d outputs with a linear flow."""
    generator = torch.Generator().manual_seed(0)
    flow = lc.flows.LinearGaussianFlow(torch.zeros(d, 3), torch.zeros(d), torch.eye(d))
    x, y = torch.randn(n, 3, generator=generator), 1.1 * torch.randn(n, d, generator=generator)
    model = flow.with_base(flow.base.with_radius(lc.radius.ScaledRadius(flow.base.radius, 1.1)))
    if name in ("log_prob", "sample", "mean of 128 draws"):
        answers: dict[str, Callable[[], object]] = {
            "log_prob": lambda: model(x).log_prob(y),
            "sample": model(x).sample,
            "mean of 128 draws": lambda: model(x).sample((128,)).mean(0),
        }
        return answers[name]
    if name == "energy_score":
        draws = torch.randn(50, n, d, generator=generator)
        return lambda: lc.metrics.energy_score(draws, y)
    if name == "bounds":
        region = lc.conformal_region(flow, x, y)
        return lambda: region.bounds(x[:100], quick=True)
    return lambda: getattr(lc, name)(flow, x, y)


def growth() -> Iterable[dict[str, object]]:
    """Slopes of log time on log n (with d = 2) or log d (with n = 2,000), and peaks of memory."""
    for by in "nd":
        sizes = ((1000, 2), (10_000, 2), (100_000, 2)) if by == "n" else ((2000, 2), (2000, 8), (2000, 32))
        steps = [size["nd".index(by)] for size in sizes]
        for name in JOBS:
            if (name, by) == ("bounds", "n"):  # a hundred rows for any n
                continue
            times = [medians(job(name, *size), turns=3)[0] for size in sizes]
            slopes = np.diff(np.log(times)) / np.diff(np.log(steps))
            yield {
                "work": f"{name} by {by}",
                "sizes": " ".join(map(str, steps)),
                "ms": " ".join(f"{value:.3g}" for value in times),
                "slopes": " ".join(f"{slope:.2f}" for slope in slopes),
                "peak MB at the largest": round(peak_megabytes(name, *sizes[-1])),
            }


def peak_megabytes(name: str, n: int, d: int) -> float:
    """Growth of the peak of resident memory while a new process does one job (Linux)."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_of, (name, n, d))


def _peak_of(name: str, n: int, d: int) -> float:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    job(name, 100, d)()  # the memory of the code itself is already counted
    act = job(name, n, d)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    act()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, help="folder with properscoring, scoringrules and numba")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only-growth", action="store_true")
    arguments = parser.parse_args()
    if arguments.peers:
        sys.path.append(str(arguments.peers))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")

    def lines() -> Iterable[Line]:
        yield from rates()
        yield from scores_and_sorts(arguments.peers is not None)
        yield from convex_potentials()
        yield from whole_tasks()

    if not arguments.only_growth:
        write(lines(), arguments.out / "throughput.csv")
    with open(arguments.out / "growth.csv", "w", newline="") as file:
        for number, row in enumerate(growth()):
            table = csv.DictWriter(file, list(row), lineterminator="\n")
            if number == 0:
                table.writeheader()
                print("\n| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
            table.writerow(row)
            print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
