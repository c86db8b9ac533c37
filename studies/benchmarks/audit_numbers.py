"""Checks of the audit for tests, scores and integrals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from scipy.stats import t as student
from torch import Tensor

import latentcal as lc
from latentcal import metrics
from latentcal.flows import LinearGaussianFlow

from . import false_alarms
from .audit_line import Line, fewest, mean_and_noise, most, seeded

LEVEL = 0.05


def check_tests(scale: float) -> Iterator[Line]:
    """Share of calibrated and of miscalibrated models that each test rejects at 5 %."""
    cases: dict[str, tuple[int, int, Callable[[Tensor], float], Callable[[Tensor], Tensor], str]] = {}
    for statistic, n in itertools.product(("ks", "cvm", "ad"), (20, 200)):
        cases[f"uniformity, {statistic}, n = {n}"] = (
            n,
            1500,
            lambda u, statistic=statistic: metrics.uniformity_test(u, statistic).p_value,
            lambda u, n=n: u ** (1.3 if n == 200 else 2.5),
            f"u^{1.3 if n == 200 else 2.5}",
        )
    for n in (50, 300):
        cases[f"autocorrelation, n = {n}"] = (
            n,
            1000,
            lambda u: metrics.autocorrelation_test(u).p_value,
            lambda u: torch.special.ndtr(_smoothed(torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12)))),
            "mean of three neighbours",
        )
    for name, (n, repetitions, p_value, spoil, told) in cases.items():
        repetitions = round(scale * repetitions)
        u = torch.rand(repetitions, n, dtype=torch.float64, generator=seeded(n))
        alarms = sum(p_value(row) <= LEVEL for row in u) / repetitions
        found = sum(p_value(spoil(row)) <= LEVEL for row in u[: repetitions // 5]) / (repetitions // 5)
        # The p-values of the last are conservative by design; the others are uniform.
        lower = 0.0 if name.startswith("auto") else fewest(repetitions, LEVEL)
        upper = most(repetitions, LEVEL)
        yield Line(
            f"level of {name}",
            "rejects 5 % of right models" + (" at most" if lower == 0 else ""),
            f"{alarms:.1%} of {repetitions}",
            f"{lower:.1%} to {upper:.1%}" if lower else f"<= {upper:.1%}",
            f"{told}: {found:.1%} rejected",
            lower <= alarms <= upper,
            found > 0.5,
        )
    yield _conditional(round(scale * 150))
    yield _diagnose(round(scale * 60), 3)


def _smoothed(values: Tensor) -> Tensor:
    return (values + values.roll(1, -1) + values.roll(2, -1)) / math.sqrt(3)


def _conditional(repetitions: int) -> Line:
    n = 200
    flow = LinearGaussianFlow(torch.zeros(2, 2), torch.zeros(2), torch.eye(2))

    def found(seed: int, spread: float) -> bool:
        generator = seeded(seed)
        x, z = (torch.randn(n, 2, generator=generator) for _ in range(2))
        report = lc.conditional_calibration(flow, x, torch.exp(spread * x[:, :1]) * z, permutations=199)
        return any(finding.found for finding in report.findings)

    alarms = sum(found(seed, 0.0) for seed in range(repetitions)) / repetitions
    control = sum(found(seed, 0.4) for seed in range(20)) / 20
    return Line(
        f"false alarms of conditional_calibration, n = {n}",
        "any finding about a right model in 5 % of cases at most",
        f"{alarms:.1%} of {repetitions}",
        f"<= {most(repetitions, LEVEL):.1%}",
        f"scale exp(0.4 x): found in {control:.0%} of 20",
        alarms <= most(repetitions, LEVEL),
        control > 0.5,
    )


def _diagnose(repetitions: int, faulty: int) -> Line:
    # Seeds that the published page has not used.
    alarms = sum(false_alarms.run(("calibrated", 10_000 + s))["faults"] != "none" for s in range(repetitions))
    kinds = list(false_alarms.FAULTS)
    named = sum(
        str(false_alarms.run((kind, 10_000 + s))["faults"]).split("+")[0] == kind
        for kind in kinds
        for s in range(faulty)
    )
    limit = most(repetitions, LEVEL)
    return Line(
        "false alarms of diagnose, n = 500",
        "any finding about a right model in 5 % of cases at most",
        f"{alarms / repetitions:.1%} of {repetitions}",
        f"<= {limit:.1%}",
        f"{len(kinds)} planted faults: named in {named} of {faulty * len(kinds)}",
        alarms / repetitions <= limit,
        named > 0.5 * faulty * len(kinds),
    )


def check_scores(scale: float) -> Iterator[Line]:
    """Scores of samples against their exact expectations, and whether the true law has the lowest score."""
    rows = round(scale * 100_000)
    for name, dim in (("CRPS", 1), ("energy score", 3)):
        for s in (2, 5):
            yield _unbiased(name, dim, s, rows)
    yield _variogram(4, rows)
    yield from _propriety(round(scale * 50_000))


def _unbiased(name: str, dim: int, s: int, rows: int) -> Line:
    """At y = 0 and N(0, I): E|X| - E|X - X'| / 2 = (1 - 1 / sqrt 2) E|X|."""
    draws = torch.randn(s, rows, dim, dtype=torch.float64, generator=seeded(10 * s + dim))
    y = torch.zeros(rows, dim, dtype=torch.float64)
    mean_norm = math.sqrt(2) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))
    exact = (1 - math.sqrt(0.5)) * mean_norm
    mean, noise = mean_and_noise(metrics.energy_score(draws, y))
    # The other estimate divides by s^2 instead of s (s - 1).
    spread = torch.cdist(draws.transpose(0, 1), draws.transpose(0, 1)).sum((1, 2)) / (2 * s * s)
    biased, noise_of_biased = mean_and_noise(draws.norm(dim=-1).mean(0) - spread)
    return Line(
        f"{name}, d = {dim}, s = {s}",
        "unbiased in the number s of samples",
        f"{mean:.5f} (exact {exact:.5f})",
        f"± {noise:.5f}",
        f"with i = j in the sum: {biased:.5f}",
        abs(mean - exact) <= noise,
        abs(biased - exact) > noise_of_biased,
    )


def _variogram(s: int, rows: int) -> Line:
    """At y = 0, N(0, I), d = 2 and order q: 2 (m^2 + var / s) with m, var of |N(0, 2)|^q."""
    order = 0.5
    moments = [2**q * math.gamma((q + 1) / 2) / math.sqrt(math.pi) for q in (order, 2 * order)]
    limit, exact = 2 * moments[0] ** 2, 2 * (moments[0] ** 2 + (moments[1] - moments[0] ** 2) / s)
    draws = torch.randn(s, rows, 2, dtype=torch.float64, generator=seeded(3))
    mean, noise = mean_and_noise(metrics.variogram_score(draws, torch.zeros(rows, 2, dtype=torch.float64)))
    return Line(
        f"variogram score, s = {s}",
        "its bias in s is the stated variance / s",
        f"{mean:.5f} (exact {exact:.5f})",
        f"± {noise:.5f}",
        f"as if unbiased: {limit:.5f}",
        abs(mean - exact) <= noise,
        abs(mean - limit) > noise,
    )


def _propriety(rows: int) -> Iterator[Line]:
    """Scores of the true law N(0, S) and of laws with another mean, scale or correlation."""
    s, half = 10, math.sqrt(0.75)
    y, *noise = (torch.randn(rows, 2, dtype=torch.float64, generator=seeded(k)) for k in range(s + 1))
    drawn = torch.stack(noise)

    def correlated(z: Tensor) -> Tensor:
        return torch.stack([z[..., 0], 0.5 * z[..., 0] + half * z[..., 1]], -1)

    y, true = correlated(y), correlated(drawn)
    wrong = {
        "shift 0.3": true + 0.3,
        "scale 1.3": 1.3 * true,
        "scale 0.75": 0.75 * true,
        "uncorrelated": drawn,
    }
    blind = {"CRPS": ("uncorrelated",), "energy score": (), "variogram score": ("shift 0.3",)}
    scores: dict[str, Callable[[Tensor], Tensor]] = {
        "CRPS": lambda d: metrics.energy_score(d[..., 1:], y[:, 1:]),
        "energy score": lambda d: metrics.energy_score(d, y),
        "variogram score": lambda d: metrics.variogram_score(d, y),
    }
    # Improper: the distance alone, without the spread, prefers predictions that are too narrow.
    distance = (true - y).norm(dim=-1).mean(0) - (wrong["scale 0.75"] - y).norm(dim=-1).mean(0)
    fooled, fooled_noise = mean_and_noise(-distance)
    for name, score in scores.items():
        gaps = {
            other: mean_and_noise(score(draws) - score(true))
            for other, draws in wrong.items()
            if other not in blind[name]
        }
        yield Line(
            f"{name}: propriety",
            "lower for the true law than for wrong ones",
            ", ".join(f"{other} {gap:+.4f}" for other, (gap, _) in gaps.items()),
            f"> {max(noise for _, noise in gaps.values()):.4f}",
            f"the distance alone: scale 0.75 {fooled:+.4f}",
            all(gap > noise for gap, noise in gaps.values()),
            fooled < -fooled_noise,
        )


def check_integrals(scale: float) -> Iterator[Line]:
    """Share of boxes whose exact probability or utility is within the stated error."""
    boxes, samples = round(scale * 800), 2**11
    for method, dim in (("qmc", 2), ("qmc", 5), ("sampling", 2)):
        yield _standard_errors(
            f"probability by {method}, d = {dim}", method, dim, boxes, samples, utility=False
        )
    for method, dim in (("qmc", 3), ("sampling", 3)):
        yield _standard_errors(
            f"expected_utility by {method}, d = {dim}", method, dim, boxes, samples, utility=True
        )
    yield _quadrature(round(scale * 100))


def _case(dim: int, seed: int) -> tuple[LinearGaussianFlow, Tensor, Tensor, float, float]:
    """Independent outputs of random mean and scale, a random box, its probability, and the first mean."""
    generator = seeded(seed)
    mean, log_scale, middle = torch.randn(3, dim, dtype=torch.float64, generator=generator)
    deviation, width = torch.exp(0.3 * log_scale), 0.5 + 2.5 * torch.rand(dim, generator=generator).double()
    low = mean + deviation * (0.5 * middle - width / 2)
    high = low + deviation * width
    inside = [torch.special.ndtr((end - mean) / deviation) for end in (low, high)]
    flow = LinearGaussianFlow(None, mean, torch.diag(deviation))
    return flow, low, high, float((inside[1] - inside[0]).prod()), float(mean[0])


def _standard_errors(name: str, method: str, dim: int, boxes: int, samples: int, *, utility: bool) -> Line:
    ratios = []
    for seed in range(boxes):
        flow, low, high, exact, mean = _case(dim, 31 * dim + seed)
        options = {"method": method, "samples": samples, "generator": seeded(seed)}
        if utility:  # a payoff of the box, and the first output itself
            pay = lc.events.Payoff(lc.events.Box(low, high), inside=3.0, outside=-1.0)
            found = lc.expected_utility(flow, None, {"box": pay, "first": lambda y, x: y[..., 0]}, **options)
            value, error = found.value.reshape(-1), found.error.reshape(-1)
            truth = torch.tensor([4 * exact - 1, mean], dtype=torch.float64)
        else:
            found = lc.probability(flow, None, lc.events.Box(low, high), **options)
            value, error = found.value.reshape(-1), found.error.reshape(-1)
            truth = torch.tensor([exact], dtype=torch.float64)
        ratios.append((value - truth).abs() / error)
    ratio = torch.cat(ratios)
    quantile = float(student(31).ppf(0.975)) if method == "qmc" else 1.96
    held, halved = (float((ratio <= q).double().mean()) for q in (quantile, quantile / 2))
    limit = fewest(len(ratio), 0.95)
    return Line(
        name,
        f"off by at most {quantile:.2f} errors in 95 % of cases",
        f"{held:.1%} of {len(ratio)}",
        f">= {limit:.1%}",
        f"half the error: {halved:.1%}",
        held >= limit,
        halved < limit,
    )


def _quadrature(boxes: int) -> Line:
    worst, worst_of_control = 0.0, 0.0
    for seed in range(boxes):
        flow, low, high, exact, _ = _case(2, 7919 + seed)
        found = lc.probability(flow, None, lc.events.Box(low, high))
        assert found.method == "quadrature"
        worst = max(worst, abs(float(found.value) - exact) / float(found.error + 1e-12))
        coarse = lc.probability(
            flow, None, lc.events.Box(low, high), method="quadrature", points=3, rule="trapezoid"
        )
        worst_of_control = max(
            worst_of_control, abs(float(coarse.value) - exact) / float(found.error + 1e-12)
        )
    return Line(
        "probability by quadrature, d = 2",
        "off by at most its error in every box",
        f"{worst:.2f} errors at most, {boxes} boxes",
        "1",
        f"three points a side: {worst_of_control:.3g} errors",
        worst <= 1,
        worst_of_control > 1,
    )
