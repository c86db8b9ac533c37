"""Does autocalibrate find out what is wrong with a model, repair it, and leave a right one alone?

    python benchmarks/simulated_truths.py --runs 40 --processes 2

The model says that y in four dimensions is N(0, I) at every x; the truth differs from it in one respect. x has
two Gaussian columns and a label 0, 1 or 2. A run is one calibration set, and a line of
results/simulated_truths.csv; runs that are there already are skipped. It says

- which rung was chosen, and whether that is the right one;
- ``cost``: NLL of autocalibrate minus that of the unchanged model on 5,000 new points;
- ``energy``: p-value of an energy test (199 permutations) of 500 new latents against 500 draws of N(0, I), and
  ``joint`` the same for latents together with x, since only there a dependence on x shows. The latents are
  transported by the model's own law of the radius to N(0, I), which is what those of a true model follow;
- ``group``: L-ECE of 2,000 new points in the worst of the three groups, as a share of the limit that all groups
  respect at once with probability 0.95 (Bonferroni): up to 1 is inside. ``test`` is the limit of a law that is
  known exactly, so that all noise is that of the test points. A law that was fitted to n norms is wrong by up
  to the noise of n more, and F_n - F and F_m - F are independent Brownian bridges of variances 1/n and 1/m: the
  limit is sqrt(1 + m/n) as large, with n all calibration rows (``all``) or those of the group (``own``);
- ``slab``: distance of the coverage from 0.9 in the slab of lowest coverage of a 90 % region (of the slab of
  highest coverage: ``high_slab``), on 5,000 new points, half of which choose the slab.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
from resumable import read, run_all
from torch import Tensor

import latentcal as lc
from latentcal.diagnostics import group_calibration
from latentcal.flows import LinearGaussianFlow

RESULTS = Path(__file__).parent / "results" / "simulated_truths.csv"
# The rungs that are right for a truth: the simplest one that can say it, then others that hold it too.
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
METHODS = ("unchanged", "plain", "auto")
DIM, N, TEST, ENERGY, GROUPED, PERMUTATIONS = 4, 1000, 5000, 500, 2000, 199
LABEL = 2  # column of x
# A fair test at 5 % rejects more than 5 of 40 with probability 0.014.
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
    return lc.radial_transport(prediction.base, lc.standard_normal(y.shape[1]))(prediction.latent(y))


def energy_test(a: Tensor, b: Tensor, generator: torch.Generator) -> float:
    r"""p-value of the hypothesis that (n, d) and (n, d) draws have one law.

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


def run(cell: tuple[str, int, int]) -> dict[str, object]:
    truth, n, seed = cell
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1_000_003 * list(RIGHT).index(truth) + 7919 * n + seed)
    x, y = draw(truth, n, generator)
    x_test, y_test = draw(truth, TEST, generator)
    others, _ = draw(truth, ENERGY, generator)
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
    spread = x_test.std(0)
    for name, model in models.items():
        z = gaussian_latents(model, x_test[:ENERGY], y_test[:ENERGY])
        row[f"energy_{name}"] = energy_test(z, noise, generator)
        row[f"joint_{name}"] = energy_test(
            torch.cat([z, x_test[:ENERGY] / spread], 1), torch.cat([noise, others / spread], 1), generator
        )
        u = lc.latent_pit(model(x_test), y_test)
        ratios = group_ratios(u[:GROUPED], x_test[:GROUPED, LABEL], x[:, LABEL])
        row |= {f"group_{key}_{name}": ratio for key, ratio in ratios.items()}
        slabs = lc.metrics.worst_slab_coverage(
            x_test, u <= 0.9, generator=torch.Generator().manual_seed(seed)
        )
        row[f"slab_{name}"] = abs(slabs.lowest.coverage - 0.9)
        row[f"high_slab_{name}"] = abs(slabs.highest.coverage - 0.9)
    return row | {"seconds": round(seconds, 2)}


def table(rows: list[dict[str, str]]) -> str:
    """Each truth and size a line, before / plain recalibration / autocalibrate, and what is not as claimed."""
    from scipy.stats import binom

    heads = (
        "truth | n | runs | right rung | or richer | cost | energy rejects | with x | groups inside, test "
        "| all | own | slab gap | rungs"
    )
    lines = [f"| {heads} |", "|" + "---|" * len(heads.split("|"))]
    failures = []
    for truth, n in [*((truth, N) for truth in RIGHT), *(("calibrated", n) for n in SMALL)]:
        group = [row for row in rows if (row["truth"], int(row["n"])) == (truth, n)]
        if not group:
            continue
        count = len(group)

        def column(key: str, group: list[dict[str, str]] = group) -> list[float]:
            return [float(row[key]) for row in group]

        def three(pattern: str, low: float, column=column) -> list[int]:  # type: ignore[no-untyped-def]
            """Runs in which the value of each method is at most ``low``."""
            return [sum(v <= low for v in column(pattern.format(name))) for name in METHODS]

        right, richer = (sum(row[key] == "True" for row in group) for key in ("right", "right_or_richer"))
        cost = statistics.median(column("cost"))
        energy, joint = three("energy_{}", 0.05), three("joint_{}", 0.05)
        inside = {key: three(f"group_{key}_{{}}", 1.0) for key in ("test", "all", "own")}
        slab = [statistics.median(column(f"slab_{name}")) for name in METHODS]
        rungs = "; ".join(
            f"{times}x {name}" for name, times in Counter(row["rung"] for row in group).most_common()
        )
        bars = " / ".join
        lines.append(
            f"| {truth} | {n} | {count} | {right / count:.1%} | {richer / count:.1%} | {cost:+.4f} "
            f"| {bars(map(str, energy))} | {bars(map(str, joint))} "
            f"| {' | '.join(bars(map(str, counts)) for counts in inside.values())} "
            f"| {bars(f'{gap:.3f}' for gap in slab)} | {rungs} |"
        )
        wanted = 0.9 if truth == "calibrated" else 0.95
        if right < wanted * count:
            failures.append(
                f"{truth}, n = {n}: the right rung in {right} of {count} runs ({richer} with richer ones)"
            )
        if truth == "calibrated" and cost > 0.005:
            failures.append(f"{truth}, n = {n}: costs {cost:.4f} nats in the median")
        for name, rejected in (("energy", energy[2]), ("joint energy", joint[2])):
            if binom.sf(rejected - 1, count, 0.05) < CHANCE:
                failures.append(f"{truth}, n = {n}: the {name} test rejects in {rejected} of {count} runs")
        for key, counts in inside.items():
            if binom.sf(count - counts[2] - 1, count, 0.05) < CHANCE:
                failures.append(
                    f"{truth}, n = {n}: groups beyond the limit ({key}) in {count - counts[2]} of {count} runs"
                )
        if truth in DEPENDS_ON_X and slab[2] > slab[1] / 2:
            failures.append(f"{truth}, n = {n}: slab gap {slab[2]:.3f}, of plain LR {slab[1]:.3f}")
    return "\n".join(
        [
            *lines,
            "",
            "Unchanged / plain / auto: runs in which the tests reject at 5 %, runs in which all groups",
            "are inside their limits, median slab gap. Not as wanted:",
            *(failures or ["nothing."]),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["truth"], int(row["n"]), int(row["seed"])) for row in read(arguments.out)}
    sizes = [*((truth, N) for truth in RIGHT), *(("calibrated", n) for n in SMALL)]
    cells = [(*size, seed) for seed in range(arguments.runs) for size in sizes]
    run_all(run, [cell for cell in cells if cell not in done], arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
