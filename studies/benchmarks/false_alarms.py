"""False alarms of diagnose, detection of planted faults, and computing time.

    python -m studies.benchmarks.false_alarms                 # missing runs, then the page; 20 minutes
    python -m studies.benchmarks.false_alarms --page          # only the page, docs/results/diagnose.md

The page also shows the results of conditional_faults and adviser, which are run by their own commands.

The calibrated models are random linear flows with normal, Student and Laplace latents of 1 to 8 dimensions,
with 500 rows each. The faults are planted in a model of 3 outputs and 2 features, with 2,000 rows each. The
recalibrated models are this model with the fault of scale, recalibrated on 1,000 other rows. Each run is
appended to results/diagnose.csv when it is done; runs that are already there are skipped. A fault is named
if it is the first of ``report.faults``, and named alone if it is the only one.
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
    """A linear flow with random maps; the seed determines its dimension and base."""
    d = DIMS[seed % len(DIMS)]
    bases: tuple[RadialBase, ...] = (standard_normal(d), student_t(d, 5.0), laplace(d))
    weight = torch.randn(d, 2, generator=generator)
    scale = torch.randn(d, d, generator=generator).tril(-1) / d + torch.eye(d)
    return LinearGaussianFlow(weight, torch.randn(d, generator=generator), scale, bases[seed % 3])


def planted(kind: str, x: Tensor, z: Tensor) -> Tensor:
    """Latents (n, d) with a planted fault; only that of x-dependence uses x (n, p)."""
    if kind == "calibrated":
        return z
    if kind == "direction":
        return z + 0.2 * torch.eye(z.shape[1])[0]
    return torch.exp(0.15 * x[:, :1]) * z if kind == "x-dependence" else 1.15 * z


def run(cell: tuple[str, int]) -> dict[str, object]:
    """Record of one model, diagnosed on its rows."""
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
    """Seconds on one core for n = 10,000, d = 16, p = 10, with a flow that takes almost no time."""
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
    """Faults found in each run of a kind."""
    return [row["faults"] for row in read(RESULTS) if row["kind"] == kind]


def fault_lines() -> str:
    """Rows of the table, one for each planted fault."""
    lines = []
    for kind, what in FAULTS.items():
        faults = faults_of(kind)
        first = sum(fault.split("+")[0] == kind for fault in faults)
        lines.append(f"| {kind} | {what} | {first} of {len(faults)} | {faults.count(kind)} |")
    return "\n".join(lines)


def page() -> str:
    """The page, in Markdown."""
    calibrated, repaired = faults_of("calibrated"), faults_of("recalibrated")
    alarms = len(calibrated) - calibrated.count("none")
    passed, noise = repaired.count("none"), repaired.count(NOISE)
    by_x = read(conditional_faults.RESULTS)
    more_alarms, models, by_p = conditional_faults.count_alarms(by_x)
    seconds = [
        f"| {r['model']} | {float(r['diagnose']):.1f} | {float(r['to_html']):.2f} |" for r in read(SECONDS)
    ]
    return f"""# False alarms and findings of the calibration report

`diagnose` is designed to report a finding for at most 3 % of calibrated models, the default of `level`. All
figures on this page use this level. `python -m studies.benchmarks.false_alarms --page` writes the page from
the runs of these commands:

```sh
python -m studies.benchmarks.false_alarms
python -m studies.benchmarks.conditional_faults
python -m studies.benchmarks.adviser
```

The tables show the number of runs. An interrupted command resumes where it stopped.

## False alarms

The table shows the share of calibrated models with a finding, with a 95 % interval.

| models | with a finding |
|---|---|
| A | {share(alarms, len(calibrated))} |
| B | {share(more_alarms, models)}; {by_p} |

- **A:** random linear flows with normal, Student and Laplace latents of 1 to 8 dimensions, 2 features and 500
  rows each.
- **B:** flows with normal latents of 1 to 5 dimensions, 0, 1, 2 or 50 features and 300 rows each.

Holm's adjustment is conservative if tests are dependent, as they are here.

## Faults that depend on x

The models have two outputs, and the features are uniform on [-2, 2]^2. *HSIC alone* is a plain test of
independence of latents and features at 3 %, without the other tests, for which `diagnose` adjusts its level.
*x-dependence named* counts faults that are reported as dependence on x.

{conditional_faults.power_table(by_x)}

### Estimated and realised gain

The table compares the gain that the report estimates (the largest of its findings) with the gain of
`autocalibrate` on 4,000 new rows, in nats per row. The runs of the faults above in which both were computed
are divided into five parts by the estimate. The last row is for all of these runs.

{conditional_faults.gain_table(by_x)}

![Estimated and realised gains](../images/{FIGURE.name})

### Correlation after recalibration

Models with the correlation by x1 are recalibrated by `autocalibrate` on n rows and diagnosed on n new rows.
An oracle gains 0.28 nats.

{conditional_faults.repair_table(by_x)}

A model that is diagnosed on more rows than it was recalibrated on shows the noise of its recalibration. With
300 calibration rows, this noise is the remaining gain of the oracle, and 2,000 new rows can detect it.

## Planted faults

The faults are small. Each model has 3 outputs and 2 features, and 2,000 rows are diagnosed. A fault is
*named* if it is the first of `report.faults`.

| fault | planted | named | the only one named |
|---|---|---|---|
{fault_lines()}

## Recalibrated models

A recalibrated model is calibrated only up to the noise of its calibration points. The {len(repaired)} models
here have the fault of scale, are recalibrated on 1,000 points and diagnosed on 2,000 other rows.

- No finding: {passed} of {len(repaired)}.
- Findings that the verdict attributes to calibration noise: {noise} of {len(repaired)}.
- Reported as not calibrated: {len(repaired) - passed - noise} of {len(repaired)}.

## Verdicts, and harm by recalibration

Linear Gaussian flows of 1 to 3 outputs are recalibrated in four ways, 50 times each, and diagnosed on 100 to
1,000 other rows:

- *drift*: on rows with another spread; in a quarter of these runs, the rows are autocorrelated
- *reuse*: on the rows to which the flow was fitted
- *atoms*: on 8 to 60 rows, of which 10 to 50 % have the same value
- *few rows*: on 4 to 40 rows

A loss is *large* if the true loss on 20,000 new rows is more than 0.05 nats and more than 3.6 paired standard
errors of the diagnosed rows. The table counts the reports which say that recalibration made the model worse.

{adviser.harm_table()}

*none* means that there are no such runs. There are few large losses, and every run with autocorrelated rows
has a loss.

The next table shows verdicts on 2,000 rows. The models are calibrated, or their 90 % regions cover 85 %
(*narrow*: all latents are too long; *tails*: only those of the tail). Outputs are not rounded, or are rounded
to a tenth or a third of their standard deviation or to whole numbers, of which there are at least 15.

{adviser.verdict_table()}

## Time

The table shows the seconds on one core for 10,000 rows, 16 outputs and 10 features. The flow is linear and
takes almost no time.

| model | `diagnose` | `to_html` |
|---|---|---|
{chr(10).join(seconds)}
"""


def draw_figure() -> None:
    """Draw estimated against realised gains."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    estimated, realised = conditional_faults.gain_pairs(read(conditional_faults.RESULTS))
    figure, ax = plt.subplots(figsize=(4.2, 4), layout="constrained")
    ends = [0.02, 2.5]
    ax.plot(ends, ends, color="0.7", linewidth=1)
    ax.scatter(estimated.clamp(min=ends[0]), realised.clamp(min=ends[0]), s=12)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    ax.set(xlabel="estimated gain, nats per row", ylabel="gain of autocalibrate on fresh rows")
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calibrated", type=int, default=400)
    parser.add_argument("--faulty", type=int, default=50, help="runs of each fault, and recalibrated models")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write the page")
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
