r"""Choice of the rung, cost and remaining faults of autocalibrate on simulated truths.

    python -m studies.benchmarks.simulated_truths
    python -m studies.benchmarks.simulated_truths --group-rows 400 --truths skewness "scale by x" groups \
        --out studies/benchmarks/results/simulated_truths_small_groups.csv

The model states that y in four dimensions is N(0, I) at every x; the truth differs from it in one respect. x
has two Gaussian columns and a label 0, 1 or 2. A run is one calibration set and a row of
results/simulated_truths.csv; runs that are already there are skipped. The columns are

- the chosen rung, and whether it is the right one;
- ``cost``: NLL of autocalibrate minus that of the unchanged model on 5,000 new points;
- ``energy``: p-value of an energy test (199 permutations) of 500 new latents against 500 draws of N(0, I).
  The latents are transported by the model's own law of the radius to N(0, I), the law of the latents of a
  true model. A correct model whose parameters are estimated from n rows has the noise of these estimates:
  ``energy_reference`` is the test of N(0, I) latents standardised by the mean and covariance of n others. At
  n = 1,000, it rejects in 10 % of runs, not in 5 %;
- ``by_x``: p-value of the test of ``conditional_calibration`` for dependence of the PIT of these 500 points
  on x. The latents alone show little of it: a mixture over x of scaled normals is close to a normal law;
- ``group``: L-ECE of 2,000 new points in the worst of the three groups, as a share of the limit that all
  groups satisfy simultaneously with probability 0.95 (Bonferroni); values up to 1 are inside. ``test`` is the
  limit for a law that is known exactly, so that all noise is that of the m test points. A law fitted to n
  norms adds their noise: F_n - F and F_m - F are independent Brownian bridges with variances 1/n and 1/m, so
  the limit is larger by the factor sqrt(1 + m/n), with n all calibration rows (``all``) or those of the
  group (``own``);
- ``slab``: distance from 0.9 of the coverage of a 90 % region in the slab of lowest coverage (``high_slab``:
  of highest coverage), on 5,000 new points, half of which are used to choose the slab.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import latentcal as lc
from latentcal.diagnostics import group_calibration
from latentcal.flows import LinearGaussianFlow

from .resumable import read, run_all

RESULTS = Path(__file__).parent / "results" / "simulated_truths.csv"
# The right rungs for a truth: the simplest one that can represent it, then others that contain it.
RIGHT = {
    "calibrated": ("unchanged",),
    "shift": ("aligned, radial",),
    "anisotropy": ("aligned, radial",),
    "correlation": ("aligned, radial",),
    "skewness": ("aligned, marginals, radial",),
    "scale by x": ("radial by x", "aligned, radial by x"),
    "groups": ("radial by group", "aligned, radial by group", "radial by x"),
}
DEPENDS_ON_X = ("scale by x", "groups")
SMALL = (200, 500)  # further sizes for the calibrated truth
LIMITS = ("test", "all", "own")
METHODS = ("unchanged", "plain", "auto")
DIM, N, TEST, ENERGY, GROUPED, PERMUTATIONS = 4, 1000, 5000, 500, 2000, 199
LABEL = 2  # column of x
SIZES = [*((truth, N) for truth in RIGHT), *(("calibrated", n) for n in SMALL)]
# Rejection rates of the energy test where the model is known, and where a mean and a covariance in four
# dimensions were estimated from 1,000 rows (0.103 in 1,500 simulations; with normal scores of each coordinate
# by its empirical law 0.111). The test of the PIT and x is held to the same.
NULLS = {"of a known model": 0.05, "with estimated parameters": 0.10}
# More rejections than these rates give with this probability are too many: 6 of 40, 9 of 40.
CHANCE = 0.02


def draw(
    truth: str, n: int, generator: torch.Generator, dim: int = DIM, features: int = LABEL
) -> tuple[Tensor, Tensor]:
    """x (n, features + 1), the last column a label, and y (n, dim)."""
    gaussian = torch.randn(n, features, generator=generator, dtype=torch.float64)
    label = torch.randint(3, (n,), generator=generator)
    z = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    if truth == "shift":
        z[:, 0] += 0.3
    elif truth == "anisotropy":
        z[:, 0] *= 1.5
    elif truth == "correlation":
        z[:, 1] = 0.5 * z[:, 0] + math.sqrt(0.75) * z[:, 1]
    elif truth == "skewness":
        # The sum of four exponentials: skewness 1.
        waits = torch.empty(4, n, dim, dtype=torch.float64).exponential_(generator=generator)
        z = (waits.sum(0) - 4) / 2
    elif truth == "scale by x":
        z = torch.exp(0.4 * gaussian[:, :1]) * z
    elif truth == "groups":
        z = torch.tensor([0.7, 1.0, 1.5], dtype=torch.float64)[label, None] * z
    elif truth != "calibrated":
        raise ValueError(f"truth must be among {list(RIGHT)}, got {truth!r}.")
    return torch.cat([gaussian, label[:, None].double()], 1), z


def identity(dim: int = DIM) -> LinearGaussianFlow:
    """The flow whose latent is y itself."""
    return LinearGaussianFlow(None, torch.zeros(dim).double(), torch.eye(dim).double())


@torch.no_grad()
def gaussian_latents(model: lc.ConditionalFlow, x: Tensor, y: Tensor) -> Tensor:
    """Latents (n, d) that are N(0, I) where the model is true."""
    prediction = model(x)
    return lc.radial_transport(prediction.base, lc.base.standard_normal(y.shape[1]))(prediction.latent(y))


def energy_test(a: Tensor, b: Tensor, generator: torch.Generator) -> float:
    r"""p-value of the hypothesis that two sets of draws (n, d) have the same law.

    .. math:: T = 2 \overline{|a_i - b_j|} - \overline{|a_i - a_j|} - \overline{|b_i - b_j|}
    """
    n = len(a)
    pooled = torch.cat([a, b])
    distances = torch.cdist(pooled, pooled)
    order = torch.stack([torch.randperm(2 * n, generator=generator) for _ in range(PERMUTATIONS)])
    signs = torch.ones(PERMUTATIONS + 1, 2 * n, dtype=torch.float64)
    signs[0, n:] = -1
    signs[1:].scatter_(1, order[:, n:], -1.0)
    statistic = -((signs @ distances) * signs).sum(1)
    return float((statistic >= statistic[0] - 1e-9 * statistic[0].abs()).double().mean())


def estimated_reference(n: int, generator: torch.Generator) -> Tensor:
    """N(0, I) latents standardised by mean and covariance of n others: a correct, fitted model."""
    rows = torch.randn(n + ENERGY, DIM, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(torch.cov(rows[:n].T))
    return torch.linalg.solve_triangular(root, (rows[n:] - rows[:n].mean(0)).T, upper=False).T


def group_ratios(u: Tensor, label: Tensor, calibration_label: Tensor) -> dict[str, float]:
    """L-ECE of the worst group, and the largest L-ECE as a share of each of the three limits."""
    groups = group_calibration(u, label)
    assert min(group.n for group in groups) >= 100
    own = [int((calibration_label == group.label).sum()) for group in groups]
    ratio = [group.l_ece / group.limit for group in groups]
    widened = {
        "test": ratio,
        "all": [r / math.sqrt(1 + g.n / len(calibration_label)) for r, g in zip(ratio, groups, strict=True)],
        "own": [r / math.sqrt(1 + g.n / n) for r, g, n in zip(ratio, groups, own, strict=True)],
    }
    return {"l_ece": max(group.l_ece for group in groups)} | {key: max(r) for key, r in widened.items()}


def run(cell: tuple[str, int, int, int]) -> dict[str, object]:
    truth, n, seed, grouped = cell
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1_000_003 * list(RIGHT).index(truth) + 7919 * n + seed)
    x, y = draw(truth, n, generator)
    x_test, y_test = draw(truth, TEST, generator)
    noise = torch.randn(ENERGY, DIM, generator=generator, dtype=torch.float64)
    flow = identity()
    started = time.perf_counter()
    auto = lc.autocalibrate(flow, x, y, groups=LABEL if truth == "groups" else None)
    seconds = time.perf_counter() - started
    models = dict(zip(METHODS, (flow, lc.recalibrate(flow, x, y), auto), strict=True))
    ladder = auto.recalibration.ladder
    rung = ladder.names[ladder.chosen]
    row: dict[str, object] = {
        "truth": truth,
        "n": n,
        "seed": seed,
        "rung": rung,
        "right": rung == RIGHT[truth][0],
        "right_or_richer": rung in RIGHT[truth],
    }
    log_prob = {name: model(x_test).log_prob(y_test) for name, model in models.items()}
    row["cost"] = float((log_prob["unchanged"] - log_prob["auto"]).mean())
    row["plain_cost"] = float((log_prob["unchanged"] - log_prob["plain"]).mean())
    for name, model in models.items():
        z = gaussian_latents(model, x_test[:ENERGY], y_test[:ENERGY])
        row[f"energy_{name}"] = energy_test(z, noise, generator)
        report = lc.conditional_calibration(
            model, x_test[:ENERGY], y_test[:ENERGY], permutations=PERMUTATIONS, generator=generator
        )
        row[f"by_x_{name}"] = report["PIT and x"].p_value
        u = lc.latent_pit(model(x_test), y_test)
        ratios = group_ratios(u[:grouped], x_test[:grouped, LABEL], x[:, LABEL])
        row |= {f"group_{key}_{name}": ratio for key, ratio in ratios.items()}
        slabs = lc.metrics.worst_slab_coverage(
            x_test, u <= 0.9, generator=torch.Generator().manual_seed(seed)
        )
        row[f"slab_{name}"] = abs(slabs.lowest.coverage - 0.9)
        row[f"high_slab_{name}"] = abs(slabs.highest.coverage - 0.9)
    row["energy_reference"] = energy_test(estimated_reference(n, generator), noise, generator)
    return row | {"seconds": round(seconds, 2)}


@dataclass(frozen=True)
class Summary:
    """The runs of one truth and size, with counts and medians by method in the order of METHODS."""

    truth: str
    n: int
    runs: list[dict[str, str]]

    def column(self, key: str) -> list[float]:
        return [float(row[key]) for row in self.runs]

    def at_most(self, key: str, limit: float) -> list[int]:
        """Number of runs in which the value of each method is at most the limit."""
        return [sum(value <= limit for value in self.column(f"{key}_{name}")) for name in METHODS]

    def right(self, key: str) -> int:
        return sum(row[key] == "True" for row in self.runs)

    @property
    def cost(self) -> float:
        return statistics.median(self.column("cost"))

    @property
    def slab(self) -> list[float]:
        return [statistics.median(self.column(f"slab_{name}")) for name in METHODS]

    def line(self) -> str:
        count, bars = len(self.runs), " / ".join
        inside = [self.at_most(f"group_{key}", 1.0)[-1] for key in ("test", "own")]
        reference = sum(value <= 0.05 for value in self.column("energy_reference"))
        cells = [
            self.truth,
            str(self.n),
            f"{self.right('right') / count:.1%}",
            f"{self.cost:+.4f}",
            f"{bars(map(str, self.at_most('energy', 0.05)))} ({reference})",
            bars(map(str, self.at_most("by_x", 0.05))),
            bars(map(str, inside)),
            bars(f"{gap:.3f}" for gap in self.slab),
        ]
        return f"| {' | '.join(cells)} |"

    def failures(self) -> Iterator[str]:
        """Results outside their limits."""
        from scipy.stats import binom

        count, right = len(self.runs), self.right("right")
        if right < (0.9 if self.truth == "calibrated" else 0.95) * count:
            richer = self.right("right_or_richer")
            yield f"the right rung in {right} of {count} runs ({richer} with those that hold it too)"
        if self.truth == "calibrated" and self.cost > 0.005:
            yield f"costs {self.cost:.4f} nats in the median"
        for key, (null, rate) in itertools.product(("energy", "by_x"), NULLS.items()):
            rejected = self.at_most(key, 0.05)[-1]
            if binom.sf(rejected - 1, count, rate) < CHANCE:
                yield f"the {key} test rejects in {rejected} of {count} runs, level {null}: {rate:.0%}"
        for key in LIMITS:
            beyond = count - self.at_most(f"group_{key}", 1.0)[-1]
            if binom.sf(beyond - 1, count, 0.05) < CHANCE:
                yield f"groups beyond their limit ({key}) in {beyond} of {count} runs"
        if self.truth in DEPENDS_ON_X and self.slab[2] > self.slab[1] / 2:
            yield f"slab gap {self.slab[2]:.3f}, more than half of plain recalibration's {self.slab[1]:.3f}"


def table(rows: list[dict[str, str]]) -> str:
    """Table by truth and size, and the results outside their limits, in Markdown."""
    heads = (
        "truth | n | right rung | NLL against unchanged "
        "| energy test rejects: unchanged, radial, auto (fitted reference) | dependence on x rejects "
        "| worst groups inside: test band / with calibration noise | slab gap: unchanged, radial, auto"
    )
    lines, failures = [f"| {heads} |", "|" + "---|" * len(heads.split("|"))], []
    for truth, n in SIZES:
        if runs := [row for row in rows if (row["truth"], int(row["n"])) == (truth, n)]:
            summary = Summary(truth, n, runs)
            lines.append(summary.line())
            failures += [f"- {truth}, n = {n}: {text}" for text in summary.failures()]
    return "\n".join([*lines, "", "Outside the limits:", *(failures or ["nothing"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--truths", nargs="*", choices=list(RIGHT), default=list(RIGHT))
    parser.add_argument("--group-rows", type=int, default=GROUPED, help="new points in the three groups")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["truth"], int(row["n"]), int(row["seed"])) for row in read(arguments.out)}
    cells = [
        (*size, seed, arguments.group_rows)
        for seed in range(arguments.runs)
        for size in SIZES
        if size[0] in arguments.truths and (*size, seed) not in done
    ]
    run_all(run, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
