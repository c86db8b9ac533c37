"""Streaming law on one thread: time of an update, memory over a million updates, calibration under drift.

    python -m studies.benchmarks.drifting_scale

writes results/streaming.json. Each observation is scored before the update with it. L-ECE is the mean over
streams; "L-ECE, uniform" is that of as many true uniforms, the effect of noise alone. The loss of
log-likelihood relative to the reference is measured on the 500 observations before the drift. "followed"
compares half-lives and the default, which is their mixture. The scale oscillates between 0.5 and 2 with a
period of 600 observations, is constant, or alternately doubles and halves every 1,000 observations. Measured
are the loss of log-likelihood relative to the true law and the coverage of the 90 % region, without the first
500 observations of each stream.

    python -m studies.benchmarks.drifting_scale --only-followed

only measures these and keeps the rest of the file.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import latentcal as lc
from latentcal import StreamingRadius

RESULTS = Path(__file__).parent / "results" / "streaming.json"
MODES: dict[str, dict[str, float]] = {
    "half-life 100": {"half_life": 100},
    "half-life 200": {"half_life": 200},
    "window 250": {"window": 250},
}
DIMENSIONS = (2, 16)
BEFORE, AFTER = 500, 800
FOLLOWED: dict[str, float | tuple[float, ...]] = {
    "10": 10.0,
    "30": 30.0,
    "100": 100.0,
    "300": 300.0,
    "mixture of 30, 100, 300": (30.0, 100.0, 300.0),
    "mixture of 10, 30, 100, 300 (default)": (10.0, 30.0, 100.0, 300.0),
}
FIRST, LENGTH = 500, 2500
PARTS = {"before": (0, 500), "1-100": (500, 600), "101-300": (600, 800), "301-800": (800, 1300)}


def median_microseconds(action: Callable[[Tensor], object], radii: Tensor) -> float:
    times = []
    for radius in radii:
        start = time.perf_counter()
        action(radius)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def speed(settings: dict[str, float]) -> dict[str, float]:
    reference = lc.radius.Chi(2)
    radii = reference.sample((2000,), torch.Generator().manual_seed(0))
    law = StreamingRadius.fit(radii, reference=reference, **settings)

    def score_and_learn(radius: Tensor) -> None:
        law.cdf(radius)
        law.update(radius)

    fixed = median_microseconds(reference.cdf, radii)
    update = median_microseconds(law.update, radii)
    both = median_microseconds(score_and_learn, radii)
    return {
        "update, us": round(update, 1),
        "pit + update, us": round(both, 1),
        "update / pit of the reference": round(update / fixed, 2),
        "pit + update / pit of the reference": round(both / fixed, 2),
    }


def state_bytes(law: StreamingRadius) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in law.state_dict().values())


def resident_bytes() -> int:
    """Memory of this process (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def memory(settings: dict[str, float], updates: int) -> dict[str, float]:
    """Bytes before and after a million updates, 0.1 % of them one at a time."""
    law, generator = StreamingRadius(lc.radius.Chi(2), **settings), torch.Generator().manual_seed(0)
    radii = lc.radius.Chi(2).sample((updates // 100,), generator)
    law.update(radii[:1000])
    law.cdf(radii[0])
    before, blocks = state_bytes(law), 100
    first = resident_bytes()
    start = time.perf_counter()
    for block in range(blocks):
        law.update(radii * 10.0 ** (block % 3))
        for radius in radii[: updates // 1000 // blocks]:
            law.update(radius)
        law.cdf(radii[0])
    seconds = time.perf_counter() - start
    growth = resident_bytes() - first
    return {
        "updates": int(law.totals[0]),
        "state bytes before": before,
        "state bytes after": state_bytes(law),
        "growth of the resident memory, bytes": growth,
        "in batches, us an update": round(1e6 * seconds / updates, 2),
    }


def stream(dim: int, settings: dict[str, float], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """PIT values of the updated law and of the fixed law, and the loss of log-likelihood."""
    reference, generator = lc.radius.Chi(dim), torch.Generator().manual_seed(seed)
    law = StreamingRadius.fit(reference.sample((1000,), generator), reference=reference, **settings)
    fixed, radii = law.snapshot(), reference.sample((BEFORE + AFTER,), generator)
    radii[BEFORE:] *= 2
    u, log_density = torch.empty_like(radii), torch.empty_like(radii)
    for i, radius in enumerate(radii):
        u[i], log_density[i] = law.cdf(radius), law.log_prob(radius)
        law.update(radius)
    return u, fixed.cdf(radii), reference.log_prob(radii) - log_density


def scales(kind: str) -> Tensor:
    t = torch.arange(LENGTH, dtype=torch.float64)
    if kind == "period 600":
        return 2 ** torch.sin(2 * math.pi * t / 600)
    return torch.where((t // 1000 % 2 == 1) & (kind == "jumps"), 2.0, 1.0).to(t)


def follow(kind: str, dim: int, streams: int) -> dict[str, dict[str, float]]:
    """Loss and coverage of each setting on streams whose scale changes."""
    rows: dict[str, dict[str, float]] = {}
    for name, half_life in FOLLOWED.items():
        losses, inside = [], []
        for seed in range(streams):
            reference, generator = lc.radius.Chi(dim), torch.Generator().manual_seed(seed)
            scale = scales(kind)
            radii = scale * reference.sample((LENGTH,), generator)
            truth = reference.log_prob(radii / scale) - scale.log()
            law = StreamingRadius(reference, half_life)
            for i, radius in enumerate(radii):
                if i >= FIRST:
                    losses.append(float(truth[i] - law.log_prob(radius)))
                    inside.append(float(law.cdf(radius) <= 0.9))
                law.update(radius)
        rows[name] = {
            "loss, nats": round(statistics.mean(losses), 4),
            "coverage of 90 %": round(statistics.mean(inside), 4),
        }
        print(kind, dim, name, rows[name], flush=True)
    return rows


def by_part(streams: list[Tensor]) -> dict[str, float]:
    return {
        name: round(statistics.mean(float(lc.metrics.calibration_error(u[low:high])) for u in streams), 4)
        for name, (low, high) in PARTS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--only-followed", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    followed = {
        kind: follow(kind, DIMENSIONS[0], arguments.streams) for kind in ("period 600", "stationary", "jumps")
    }
    if arguments.only_followed:
        kept = json.loads(arguments.out.read_text()) | {"followed": followed}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n")
        return
    noise = [torch.rand(BEFORE + AFTER, generator=torch.Generator().manual_seed(s)) for s in range(100)]
    report: dict[str, object] = {
        "command": "python -m studies.benchmarks.drifting_scale",
        "threads": 1,
        "streams": arguments.streams,
        "L-ECE, uniform": by_part(noise),
        "followed": followed,
    }
    for name, settings in MODES.items():
        row: dict[str, object] = {**speed(settings), **memory(settings, arguments.updates)}
        for dim in DIMENSIONS:
            drifted = [stream(dim, settings, seed) for seed in range(arguments.streams)]
            row[f"L-ECE, d = {dim}, scale doubles"] = by_part([u for u, _, _ in drifted])
            row[f"the same without updates, d = {dim}"] = by_part([u for _, u, _ in drifted])
            losses = torch.cat([loss[:BEFORE] for _, _, loss in drifted])
            row[f"loss on a calibrated stream, d = {dim}, nats"] = round(float(losses.mean()), 4)
            row[f"its standard error, d = {dim}"] = round(float(losses.std()) / losses.numel() ** 0.5, 4)
        report[name] = row
        print(name, json.dumps(row, indent=1), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
