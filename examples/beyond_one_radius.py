"""Limits of one law of the radius: a wrong direction, and an error that depends on x.

python examples/beyond_one_radius.py    # prints the ladder, writes demo/beyond_one_radius.png
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import latentcal as lc


def truth(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two outputs whose noise is shifted, correlated, and grows with x; the model below ignores all three."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    mixed = noise @ torch.tensor([[1.0, 0.7], [0.0, 0.71]], dtype=torch.float64)
    return x, torch.exp(0.7 * x) * (mixed + torch.tensor([0.4, 0.0], dtype=torch.float64))


def main(folder: Path) -> None:
    """Print the ladder and draw both faults."""
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(2).double(), torch.eye(2).double())
    (x, y), (x_test, y_test) = truth(2000, seed=0), truth(20000, seed=1)
    models = {"radial": lc.recalibrate(flow, x, y), "autocalibrate": lc.autocalibrate(flow, x, y)}
    print(models["autocalibrate"].recalibration.ladder)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    middle = x_test[:, 0].abs() < 0.1
    left.scatter(*y_test[middle][:800].T, s=5, color="0.75", label="latents of new points at x = 0")
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    for (name, model), colour in zip(models.items(), lc.plots.COLOURS, strict=False):
        at = model(torch.zeros(len(angle), 1, dtype=torch.float64))
        radius = at.base.radius.icdf(torch.full((len(angle),), 0.9, dtype=torch.float64))
        edge = model.decode(radius[:, None] * circle, at.x)
        left.plot(*edge.T, color=colour, label=f"90 % region, {name}")
        right.plot(*coverage_by_x(model, x_test, y_test), color=colour, label=name)
    left.set(title="Direction: the latents are not round", aspect="equal", ylim=(-3.5, 5.2))
    right.axhline(0.9, color="0.6", linestyle="--", linewidth=1)
    right.set(title="Dependence on x: calibrated on average only", xlabel="x", ylabel="coverage")
    for ax, place in ((left, "upper left"), (right, "lower left")):
        ax.legend(loc=place, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "beyond_one_radius.png", dpi=110)


def coverage_by_x(model: lc.ConditionalFlow, x: torch.Tensor, y: torch.Tensor) -> tuple[list, list]:
    """Centres of 20 slices of x, and the share of their points inside the 90 % region."""
    inside = lc.latent_pit(model(x), y) <= 0.9
    slices = x[:, 0].argsort().chunk(20)
    return [float(x[s].mean()) for s in slices], [float(inside[s].double().mean()) for s in slices]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
