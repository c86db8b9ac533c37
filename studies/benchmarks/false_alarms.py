"""False alarms of diagnose, how often it names a planted fault, and what it costs.

    python -m studies.benchmarks.false_alarms                 # what is missing, then the page; 20 minutes
    python -m studies.benchmarks.false_alarms --page          # the page alone, docs/results/diagnose.md

The page also holds the results of conditional_faults and adviser, which have commands of their own.

Calibrated models are random linear flows with normal, Student and Laplace latents of 1 to 8 dimensions, 500
rows each. The faults are planted in a model of 3 outputs and 2 features, 2,000 rows each; the recalibrated
ones are that model with the fault of scale, repaired on 1,000 other rows. Each run is a line of
results/diagnose.csv, written when it is done; runs that are there already are skipped. A fault counts as
named where it is the first of ``report.faults``, and as named alone where it is the only one.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from latentcal import RadialBase, diagnose, recalibrate
from latentcal.base import laplace, standard_normal, student_t
from latentcal.flows import LinearGaussianFlow

from . import adviser, conditional_faults
from .adviser import share
from .resumable import append, read, run_all

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "diagnose.csv"
SECONDS = RESULTS.with_name("diagnose_seconds.csv")
PAGE = ROOT / "docs" / "results" / "diagnose.md"
FIGURE = ROOT / "docs" / "images" / "estimated_gains.png"
FAULTS = {
    "scale": "latents 1.15 times too long",
    "direction": "latents shifted by 0.2 along one coordinate",
    "x-dependence": "latents exp(0.15 x) times too long, x ~ N(0, 1)",
}
DIMS = (1, 2, 3, 5, 8)
NOISE = "within noise"


def random_model(seed: int, generator: torch.Generator) -> LinearGaussianFlow:
    """A linear flow of random maps; its dimension and base go round with the seed."""
    d = DIMS[seed % len(DIMS)]
    bases: tuple[RadialBase, ...] = (standard_normal(d), student_t(d, 5.0), laplace(d))
    weight = torch.randn(d, 2, generator=generator)
    scale = torch.randn(d, d, generator=generator).tril(-1) / d + torch.eye(d)
    return LinearGaussianFlow(weight, torch.randn(d, generator=generator), scale, bases[seed % 3])


def planted(kind: str, x: Tensor, z: Tensor) -> Tensor:
    """Latents (n, d) with a fault that depends on x (n, p) in the last case."""
    if kind == "calibrated":
        return z
    if kind == "direction":
        return z + 0.2 * torch.eye(z.shape[1])[0]
    return torch.exp(0.15 * x[:, :1]) * z if kind == "x-dependence" else 1.15 * z


def run(cell: tuple[str, int]) -> dict[str, object]:
    """One model and its rows, diagnosed."""
    kind, seed = cell
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1000 * seed + len(kind))
    n = 500 if kind == "calibrated" else 2000
    repaired = 1000 if kind == "recalibrated" else 0
    model = random_model(seed if kind == "calibrated" else 12, generator)
    x = torch.randn(n + repaired, 2, generator=generator)
    z = model.base.sample((n + repaired,), generator).float()
    y = model.decode(planted(kind, x, z), x)
    if repaired:
        model = recalibrate(model, x[n:], y[n:])
    start = time.perf_counter()
    report = diagnose(model, x[:n], y[:n], generator=generator)
    return {
        "kind": kind,
        "seed": seed,
        "n": n,
        "d": model.base.dim,
        "faults": NOISE if report.within_noise else "+".join(report.faults) or "none",
        "found": "+".join(finding.name for finding in report.findings if finding.found) or "none",
        "seconds": time.perf_counter() - start,
    }


def time_large() -> None:
    """Seconds of one core for n = 10,000, d = 16, p = 10 with a flow that costs next to nothing."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    plain = LinearGaussianFlow(torch.zeros(16, 10), torch.zeros(16), torch.eye(16))
    x, y = torch.randn(12_000, 10, generator=generator), torch.randn(12_000, 16, generator=generator)
    models = {"plain": plain, "recalibrated": recalibrate(plain, x[10_000:], 1.2 * y[10_000:])}
    diagnose(plain, x[:100], y[:100])  # loads scipy
    SECONDS.unlink(missing_ok=True)
    for name, model in models.items():
        start = time.process_time()
        report = diagnose(model, x[:10_000], y[:10_000])
        middle = time.process_time()
        report.to_html(PAGE.with_name("unused.html"))
        PAGE.with_name("unused.html").unlink()
        seconds = {"diagnose": middle - start, "to_html": time.process_time() - middle}
        append(SECONDS, {"model": name, "n": 10_000, "d": 16, "p": 10, **seconds})


def faults_of(kind: str) -> list[str]:
    """What was found in each run of a kind."""
    return [row["faults"] for row in read(RESULTS) if row["kind"] == kind]


def fault_lines() -> str:
    """A line of the table for each planted fault."""
    lines = []
    for kind, what in FAULTS.items():
        faults = faults_of(kind)
        first = sum(fault.split("+")[0] == kind for fault in faults)
        lines.append(f"| {kind} | {what} | {first} of {len(faults)} | {faults.count(kind)} |")
    return "\n".join(lines)


def page() -> str:
    """What the runs say, in Markdown."""
    calibrated, repaired = faults_of("calibrated"), faults_of("recalibrated")
    alarms = len(calibrated) - calibrated.count("none")
    passed, noise = repaired.count("none"), repaired.count(NOISE)
    by_x = read(conditional_faults.RESULTS)
    more_alarms, models, by_p = conditional_faults.count_alarms(by_x)
    seconds = [
        f"| {r['model']} | {float(r['diagnose']):.1f} | {float(r['to_html']):.2f} |" for r in read(SECONDS)
    ]
    return f"""# False alarms and findings of the calibration report

`diagnose` promises that of models that are right at most 3 % get any finding, which is the default of
`level`. All figures of this page were made at it. Made by `python -m studies.benchmarks.false_alarms
--page` from the runs of

```sh
python -m studies.benchmarks.false_alarms
python -m studies.benchmarks.conditional_faults
python -m studies.benchmarks.adviser
```

The tables say how many runs there are so far; the commands go on where they stopped.

## False alarms

Calibrated models that are said to have a fault, with a 95 % interval:

| models | said to have a fault |
|---|---|
| A | {share(alarms, len(calibrated))} |
| B | {share(more_alarms, models)}; {by_p} |

A: random linear flows with normal, Student and Laplace latents of 1 to 8 dimensions, 2 features, 500 rows
each. B: normal latents of 1 to 5 dimensions, 0, 1, 2 or 50 features, 300 rows each.

(Holm's adjustment is careful where tests depend on each other, as these do.)

## Faults that depend on x

Two outputs, features uniform on [-2, 2]^2. *HSIC alone* is a plain test of independence of latents and
features at 3 %, without the other tests that `diagnose` pays for. *Named* is a fault that is called
dependence on x.

{conditional_faults.power_table(by_x)}

### Is the estimated gain right?

The gain that the report estimates (the largest of its findings), beside what `autocalibrate` gains on 4,000
fresh rows, in nats a row; runs of all faults above, in five parts by the estimate, and all together.

{conditional_faults.gain_table(by_x)}

![Estimated and realised gains](../images/{FIGURE.name})

### Is the correlation gone after its repair?

The correlation by x1, repaired by `autocalibrate` on n rows and diagnosed on as many fresh ones. An oracle
gains 0.28 nats.

{conditional_faults.repair_table(by_x)}

On more rows than it was repaired with, a model shows the noise of its repair: with 300 rows that noise is
what is left to the oracle, and 2,000 fresh rows can see it.

## Planted faults

Small ones, in a model of 3 outputs and 2 features, 2,000 rows each. A fault is named where it is the first of
`report.faults`.

| fault | planted | named | the only one named |
|---|---|---|---|
{fault_lines()}

## Recalibrated models

They are right only up to the noise of their calibration points. Of {len(repaired)} (the fault of scale,
repaired on 1,000 points, diagnosed on 2,000 other rows) {passed} pass without a finding, of {noise} the
verdict says that calibration noise explains what was found, and {len(repaired) - passed - noise} are called
not calibrated.

## Verdicts, and harm by recalibration

Linear Gaussian flows of 1 to 3 outputs are recalibrated on rows of another spread (*drift*, a quarter of
the runs with autocorrelated rows), on the rows that they were fitted to (*reuse*), on 8 to 60 rows of which
10 to 50 % have one value (*atoms*), and on 4 to 40 rows, 50 times each. They are diagnosed on 100 to 1,000
other rows. *Large* is a true loss, on 20,000 fresh rows, of more than 0.05 nats and 3.6 paired standard
errors of the diagnosed rows. *Said* is a report that recalibration made it worse.

{adviser.harm_table()}

Large losses are few, and no run has autocorrelated rows and no loss. Verdicts on 2,000 rows, of models that
are true or whose 90 % regions hold 85 % (*narrow*: all latents too long; *tails*: only those of the tail),
where outputs are rounded to a tenth or a third of their standard deviation or to whole numbers, at least 15
of them:

{adviser.verdict_table()}

## Time

Seconds of one core for 10,000 rows, 16 outputs and 10 features; the flow is linear and costs next to nothing.

| model | `diagnose` | `to_html` |
|---|---|---|
{chr(10).join(seconds)}
"""


def draw_figure() -> None:
    """Estimated and realised gains as points."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    estimated, realised = conditional_faults.gain_pairs(read(conditional_faults.RESULTS))
    figure, ax = plt.subplots(figsize=(4.2, 4), layout="constrained")
    ends = [0.02, 2.5]
    ax.plot(ends, ends, color="0.7", linewidth=1)
    ax.scatter(estimated.clamp(min=ends[0]), realised.clamp(min=ends[0]), s=12)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    ax.set(xlabel="estimated gain, nats a row", ylabel="gain of autocalibrate on fresh rows")
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calibrated", type=int, default=400)
    parser.add_argument("--faulty", type=int, default=50, help="runs of each fault, and of repaired models")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    if not arguments.page:
        cells = [("calibrated", seed) for seed in range(arguments.calibrated)]
        cells += [(kind, seed) for seed in range(arguments.faulty) for kind in (*FAULTS, "recalibrated")]
        done = {(row["kind"], int(row["seed"])) for row in read(RESULTS)}
        if wanted := [cell for cell in cells if cell not in done]:
            run_all(run, wanted, RESULTS, arguments.processes)
        time_large()
    draw_figure()
    PAGE.write_text(page(), encoding="utf-8")
    print(page())


if __name__ == "__main__":
    main()
