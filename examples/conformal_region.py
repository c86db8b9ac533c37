"""Regions that contain a new point with at least the requested probability, and a picture of them.

python examples/conformal_region.py [folder]    # writes conformal_region.png, into demo/ by default
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import latentcal as lc


def main(folder: Path) -> None:
    """Compare scores by coverage and size, and draw one region."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(2500, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x[:500], y[:500])
    calibration, x_new, y_new = (x[500:1500], y[500:1500]), x[1500:], y[1500:]

    for score in ("latent", "hpd", "pcp"):
        region = lc.conformal_region(flow, *calibration, coverage=0.9, score=score, generator=generator)
        inside = region.contains(y_new, x_new).double().mean()
        volume = region.volume(x_new[:50], samples=512, generator=generator).value.mean()
        print(f"{score:<7} {inside:.1%} of new points inside, mean volume {volume:.1f}")
    # With n calibration rows, the coverage of one region lies in an interval.
    low, high = lc.guarantee(lc.EmpiricalRadius(region.scores), region.scores).coverage_interval(0.9)
    print(f"nominal coverage 90 %; 95 % of regions made from 1,000 rows cover {low:.1%} to {high:.1%}")

    region = lc.conformal_region(flow, *calibration, coverage=[0.5, 0.9])
    ax = region.plot(x_new[:1])
    ax.plot(*y_new[:1].T, "k.", label="observed")
    ax.legend(frameon=False)
    ax.set(title="50 % and 90 % at one x", xlabel="$y_1$", ylabel="$y_2$")
    folder.mkdir(parents=True, exist_ok=True)
    ax.figure.savefig(folder / "conformal_region.png", dpi=110)
    plt.close(ax.figure)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
