"""Bounds and distances for statistical tests of uniformity."""

import math

import torch


def uniform_limit(n: int, failure_rate: float = 1e-6) -> float:
    """Kolmogorov distance that n true uniforms exceed with probability <= failure_rate (DKW)."""
    return math.sqrt(math.log(2 / failure_rate) / (2 * n))


def distance_to_uniform(u: torch.Tensor) -> float:
    """Kolmogorov distance between the empirical law of u and the uniform law."""
    u = torch.sort(u.reshape(-1).double()).values
    n = u.numel()
    steps = torch.arange(n, dtype=torch.float64)
    return float(torch.maximum((steps + 1) / n - u, u - steps / n).max())
