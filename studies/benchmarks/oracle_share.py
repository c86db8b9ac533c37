r"""Gain of autocalibrate as a share of the gain of an oracle.

    python -m studies.benchmarks.oracle_share                     # an hour on one core; resumes
    python -m studies.benchmarks.oracle_share --truths calibrated --repetitions 200 --sizes 30 60 120 200
    python -m studies.benchmarks.oracle_share --table             # the table of the available runs

The model states that y is N(0, I) at every x; the truth differs from it in one respect. Features are uniform
on [-2, 2]^2. An oracle that knows the truth gains, in nats per row on 4,000 new rows,

.. math:: \overline{\log f_\text{true}(y | x) - \log f_\text{model}(y | x)};

a recalibration gains a share of that. The ladder was designed on the truths above the line. Those below
(``FRESH``) were written down afterwards and led to no change. ``all`` is ``autocalibrate(rungs="all")``.
Every run is a row of results/oracle_share.csv.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import latentcal as lc
from latentcal.radius import Chi, StudentRadius

from .resumable import RESULTS, read, run_all

OUT = RESULTS / "oracle_share.csv"
SIZES, REPETITIONS, TEST = (200, 800, 3000), 20, 4000
DOUBLE = {"dtype": torch.float64}


class Truth(NamedTuple):
    """A law of y given x."""

    draw: Callable[[Tensor, torch.Generator], Tensor]
    """Outputs (n, d) at features (n, 2)."""
    log_prob: Callable[[Tensor, Tensor], Tensor]
    """Log density (n,) of outputs (n, d) at features (n, 2)."""


def normal(z: Tensor) -> Tensor:
    """Log density of N(0, I), (n, d) -> (n,)."""
    return -0.5 * (z**2).sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)


def radial(dim: int, radius: Callable[[int, torch.Generator], Tensor], log_density: Callable) -> Truth:
    """Directions of N(0, I) with radii of another law."""

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        z = torch.randn(len(x), dim, generator=source, **DOUBLE)
        return z / z.norm(dim=1, keepdim=True) * radius(len(x), source)[:, None]

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        r = y.norm(dim=1)
        area = math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)
        return log_density(r) - (dim - 1) * torch.log(r) - area

    return Truth(draw, log_prob)


def chi(r: Tensor, dim: int, scale: float = 1.0) -> Tensor:
    """Log density of scale times the norm of N(0, I)."""
    r = r / scale
    constant = (dim / 2 - 1) * math.log(2) + math.lgamma(dim / 2) + math.log(scale)
    return (dim - 1) * torch.log(r) - r**2 / 2 - constant


def draw_chi(n: int, source: torch.Generator, dim: int) -> Tensor:
    return torch.randn(n, dim, generator=source, **DOUBLE).norm(dim=1)


def mixed(dim: int, share: float, scales: tuple[float, float]) -> Truth:
    """A share of the radii with the second scale, the others with the first."""

    def radius(n: int, source: torch.Generator) -> Tensor:
        second = torch.rand(n, generator=source, **DOUBLE) < share
        return draw_chi(n, source, dim) * torch.where(second, scales[1], scales[0])

    def log_density(r: Tensor) -> Tensor:
        logs = [chi(r, dim, scale) for scale in scales]
        return torch.logaddexp(logs[0] + math.log1p(-share), logs[1] + math.log(share))

    return radial(dim, radius, log_density)


def gap(dim: int) -> Truth:
    """No radii between 1 and 1.6 times the median: these are moved outwards."""
    law = Chi(dim)
    low = float(law.icdf(torch.tensor(0.4, **DOUBLE)))

    def radius(n: int, source: torch.Generator) -> Tensor:
        r = draw_chi(n, source, dim)
        return torch.where(r > low, r + 0.6, r)

    def log_density(r: Tensor) -> Tensor:
        inside = (r > low) & (r < low + 0.6)
        return chi(torch.where(r > low, (r - 0.6).clamp(min=1e-9), r), dim).masked_fill(inside, -math.inf)

    return radial(dim, radius, log_density)


def pareto(dim: int) -> Truth:
    """Radii |t| with 2.5 degrees of freedom, in every direction: a power-law tail."""
    law = StudentRadius(dim, 2.5)
    return radial(dim, lambda n, source: law.sample((n,), source), law.log_prob)


def moved(
    shift: Callable[[Tensor], Tensor] | None = None,
    scale: Callable[[Tensor], Tensor] | None = None,
    dim: int = 2,
) -> Truth:
    """N(m(x), s(x)^2), with m and s (n, d) or (n, 1)."""

    def at(x: Tensor) -> tuple[Tensor, Tensor]:
        zero = x.new_zeros(len(x), dim)
        return (zero if shift is None else shift(x) + zero), (zero + 1 if scale is None else scale(x) + zero)

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        m, s = at(x)
        return m + s * torch.randn(len(x), dim, generator=source, **DOUBLE)

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        m, s = at(x)
        return normal((y - m) / s) - torch.log(s).sum(-1)

    return Truth(draw, log_prob)


def correlated(rho: Callable[[Tensor], Tensor], dim: int = 2) -> Truth:
    """The first two outputs have correlation rho(x)."""

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        z, r = torch.randn(len(x), dim, generator=source, **DOUBLE), rho(x)
        z[:, 1] = r * z[:, 0] + torch.sqrt(1 - r**2) * z[:, 1]
        return z

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        r, z = rho(x), y.clone()
        z[:, 1] = (y[:, 1] - r * y[:, 0]) / torch.sqrt(1 - r**2)
        return normal(z) - 0.5 * torch.log1p(-(r**2))

    return Truth(draw, log_prob)


def rotated(rotation: Tensor, draw_axes: Callable, log_axes: Callable) -> Truth:
    """Independent coordinates after a rotation."""
    return Truth(
        lambda x, source: draw_axes((len(x), len(rotation)), source) @ rotation.T,
        lambda x, y: log_axes(y @ rotation).sum(-1),
    )


def exponential(shape: tuple[int, int], source: torch.Generator) -> Tensor:
    return -torch.log(torch.rand(shape, generator=source, **DOUBLE)) - 1


def log_exponential(z: Tensor) -> Tensor:
    return (-(z + 1)).masked_fill(z < -1 - 1e-12, -math.inf)


def laplace(shape: tuple[int, int], source: torch.Generator) -> Tensor:
    signs = torch.where(torch.rand(shape, generator=source, **DOUBLE) < 0.5, -1.0, 1.0)
    return signs * (exponential(shape, source) + 1) / math.sqrt(2)


def log_laplace(z: Tensor) -> Tensor:
    return -math.sqrt(2) * z.abs() - 0.5 * math.log(2)


def turn(*angles: float) -> Tensor:
    """Rotation of two or three coordinates by plane angles."""
    dim = 2 if len(angles) == 1 else 3
    whole = torch.eye(dim, **DOUBLE)
    for k, angle in enumerate(angles):
        i, j = ((0, 1), (1, 2), (0, 2))[k]
        plane = torch.eye(dim, **DOUBLE)
        plane[i, i] = plane[j, j] = math.cos(angle)
        plane[i, j], plane[j, i] = -math.sin(angle), math.sin(angle)
        whole = whole @ plane
    return whole


def modes() -> Truth:
    """Three normal laws of width 0.55 at the corners of a triangle."""
    angle = torch.arange(3, **DOUBLE) * (2 * math.pi / 3)
    centres, width = 1.6 * torch.stack([torch.cos(angle), torch.sin(angle)], 1), 0.55

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        place = torch.randint(3, (len(x),), generator=source)
        return centres[place] + width * torch.randn(len(x), 2, generator=source, **DOUBLE)

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        parts = torch.stack([normal((y - c) / width) - 2 * math.log(width) for c in centres])
        return torch.logsumexp(parts, 0) - math.log(3)

    return Truth(draw, log_prob)


def bent(strength: float = 0.6) -> Truth:
    """The second output follows the square of the first: a banana."""

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        z = torch.randn(len(x), 2, generator=source, **DOUBLE)
        z[:, 1] += strength * (z[:, 0] ** 2 - 1)
        return z

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        return normal(torch.stack([y[:, 0], y[:, 1] - strength * (y[:, 0] ** 2 - 1)], 1))

    return Truth(draw, log_prob)


def tailed() -> Truth:
    """Student's t with 3 degrees of freedom where the first feature is positive, else N(0, I)."""
    heavy, light = StudentRadius(2, 3.0), Chi(2)

    def draw(x: Tensor, source: torch.Generator) -> Tensor:
        z = torch.randn(len(x), 2, generator=source, **DOUBLE)
        radius = torch.where(x[:, 0] > 0, heavy.sample((len(x),), source), light.sample((len(x),), source))
        return z / z.norm(dim=1, keepdim=True) * radius[:, None]

    def log_prob(x: Tensor, y: Tensor) -> Tensor:
        r = y.norm(dim=1)
        log_density = torch.where(x[:, 0] > 0, heavy.log_prob(r), light.log_prob(r))
        return log_density - torch.log(r) - math.log(2 * math.pi)

    return Truth(draw, log_prob)


def one_of(column: Tensor, dim: int) -> Tensor:
    """A column (n,) for the first output and zeros for the others, (n, d)."""
    return torch.cat([column[:, None], column.new_zeros(len(column), dim - 1)], 1)


TRUTHS: dict[str, Truth] = {
    "calibrated": moved(),
    "contaminated, 10 % four times as wide": mixed(3, 0.1, (1.0, 4.0)),
    "bimodal radius": mixed(2, 0.5, (0.3, 2.0)),
    "gap": gap(2),
    "Pareto tail": pareto(3),
    "scale 1.6": moved(scale=lambda x: x.new_full((len(x), 1), 1.6)),
    "scale exp(0.5 x1 x2)": moved(scale=lambda x: torch.exp(0.5 * x[:, :1] * x[:, 1:])),
    "three modes": modes(),
    "mean 0.8 x1 x2": moved(lambda x: one_of(0.8 * x[:, 0] * x[:, 1], 2)),
    "rotated exponentials": rotated(turn(0.6), exponential, log_exponential),
    "correlation 0.85 sin(1.5 x1)": correlated(lambda x: 0.85 * torch.sin(1.5 * x[:, 0])),
    "correlation tanh(x1 x2), d = 3": correlated(lambda x: 0.9 * torch.tanh(x[:, 0] * x[:, 1]), 3),
    "mean sin(2 x1) x2, d = 3": moved(lambda x: one_of(torch.sin(2 * x[:, 0]) * x[:, 1], 3), dim=3),
    "scale exp(|x1| - 1) and mean x2": moved(
        lambda x: 0.7 * x[:, 1:], lambda x: torch.exp(x[:, :1].abs() - 1)
    ),
    "rotated Laplace, d = 3": rotated(turn(0.5, 0.4, -0.7), laplace, log_laplace),
    "banana": bent(),
    "heavy tail where x1 > 0": tailed(),
}
FRESH = list(TRUTHS)[-5:]
RICH = ("three modes", "banana", "rotated Laplace, d = 3")  # that all rungs are tried on


def run(cell: tuple[str, int, int]) -> dict[str, object]:
    """Record of one calibration set."""
    name, n, seed = cell
    torch.set_num_threads(1)
    source = torch.Generator().manual_seed(10_007 * list(TRUTHS).index(name) + 101 * n + seed)
    truth = TRUTHS[name]
    x, x_new = (4 * torch.rand(size, 2, generator=source, **DOUBLE) - 2 for size in (n, TEST))
    y, y_new = truth.draw(x, source), truth.draw(x_new, source)
    dim = y.shape[1]
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(dim, **DOUBLE), torch.eye(dim, **DOUBLE))
    before = flow(x_new).log_prob(y_new)
    row: dict[str, object] = {"truth": name, "n": n, "seed": seed}
    row["oracle"] = float((truth.log_prob(x_new, y_new) - before).mean())
    row["radial"] = float((lc.recalibrate(flow, x, y)(x_new).log_prob(y_new) - before).mean())
    for key, rungs in (("auto", "default"), ("all", "all")):
        if key == "all" and name not in RICH:
            row |= {"all": math.nan, "all_rung": "", "all_seconds": 0.0}
            continue
        started = time.process_time()
        model = lc.autocalibrate(flow, x, y, rungs=rungs)
        row[f"{key}_seconds"] = time.process_time() - started
        ladder = model.recalibration.ladder
        row[key] = float((model(x_new).log_prob(y_new) - before).mean())
        row[f"{key}_rung"] = ladder.names[ladder.chosen]
    return {key: row[key] for key in COLUMNS}


COLUMNS = ("truth", "n", "seed", "oracle", "radial", "auto", "auto_rung", "auto_seconds")
COLUMNS += ("all", "all_rung", "all_seconds")


def table(rows: list[dict[str, str]]) -> str:
    """Table of the gains by truth and size: the oracle's, and the shares of it, in Markdown."""
    lines = ["| truth | n | runs | oracle | radial | auto | auto / oracle | all / oracle | rungs of auto |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name in TRUTHS:
        for n in sorted({int(row["n"]) for row in rows if row["truth"] == name}):
            runs = [row for row in rows if (row["truth"], int(row["n"])) == (name, n)]
            oracle, plain, auto, every = (
                statistics.fmean(float(row[key]) for row in runs)
                for key in ("oracle", "radial", "auto", "all")
            )
            rungs = Counter(row["auto_rung"] for row in runs).most_common(3)
            share = f"{auto / oracle:.0%}" if oracle > 1e-6 else "-"
            if name == "calibrated":
                alone = statistics.fmean(row["auto_rung"] == "unchanged" for row in runs)
                share = f"left alone {alone:.1%}, worst loss {max(-float(row['auto']) for row in runs):.3f}"
            cells = [
                name.replace("|", r"\|") + " *" * (name in FRESH),
                *(n, len(runs), f"{oracle:.4f}", f"{plain:.4f}", f"{auto:.4f}", share),
                "" if math.isnan(every) else f"{every / oracle:.0%}",
                "; ".join(f"{count}x {rung}" for rung, count in rungs),
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", "* not used for the design."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truths", nargs="*", choices=list(TRUTHS), default=list(TRUTHS)[1:])
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    arguments = parser.parse_args()
    done = {(row["truth"], int(row["n"]), int(row["seed"])) for row in read(arguments.out)}
    cells = [
        (name, n, seed)
        for seed in range(arguments.repetitions)
        for n in arguments.sizes
        for name in arguments.truths
        if (name, n, seed) not in done
    ]
    if not arguments.table:
        run_all(run, cells, arguments.out, arguments.processes)
    print(table(read(arguments.out)))


if __name__ == "__main__":
    main()
