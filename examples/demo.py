"""Fit a linear-Gaussian model to data it cannot describe, see that its probabilities are wrong, repair it."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

import latentcal as lc
from latentcal import plots

# The noise of y grows eightfold with x, with heavy tails; the model believes in one normal noise for all x.
# More points to calibrate than to test: many test points would resolve the error of a map fitted on few.
generator = torch.Generator().manual_seed(0)
toy = lc.data.toy.heteroscedastic_linear(contrast=8.0, degrees_of_freedom=5.0)
(x_train, y_train), (x_cal, y_cal), (x_test, y_test) = (toy.sample(n, generator) for n in (2000, 4000, 1000))

flow = lc.flows.LinearGaussianFlow.fit(x_train, y_train)
model = lc.recalibrate(flow, x_cal, y_cal)

levels = [0.5, 0.8, 0.9, 0.95]
columns, pits = {}, {}
for name, predictor in {"before": flow, "after": model}.items():
    pred = predictor(x_test)
    pits[name] = lc.latent_pit(pred, y_test)
    test = lc.metrics.uniformity_test(pits[name])
    coverage = lc.metrics.empirical_coverage(pits[name], levels)
    samples = pred.sample((100,), generator=generator)
    columns[name] = {
        "negative log-likelihood": f"{-pred.log_prob(y_test).mean():.3f}",
        "L-ECE": f"{lc.metrics.calibration_error(pits[name]):.4f}",
        "p-value (Kolmogorov-Smirnov)": f"{test.p_value:.3g}",
        **{f"coverage of the {q:.0%} region": f"{c:.1%}" for q, c in zip(levels, coverage, strict=True)},
        "energy score": f"{lc.metrics.energy_score(samples, y_test).mean():.4f}",
    }

print(f"{'1,000 test points':<32}{'before':>10}{'after':>10}")
for row in columns["before"]:
    print(f"{row:<32}{columns['before'][row]:>10}{columns['after'][row]:>10}")
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.6), layout="constrained")
for name, u in pits.items():
    plots.reliability_diagram(u, label=f"{name} (L-ECE {columns[name]['L-ECE']})", ax=left)
    plots.pit_histogram(u, label=name, ax=right)
path = Path("demo/reliability.png")
path.parent.mkdir(exist_ok=True)
figure.savefig(path, dpi=150)

print(f"\nWrote {path}. Left, reliability: a calibrated model stays in the grey band in 95 % of cases.")
for name, u in pits.items():
    inside = lc.metrics.uniformity_test(u).p_value >= 0.05
    print(f"  {name}: {'stays inside' if inside else 'leaves the band'}")
print("Right, PIT histogram: flat is calibrated; high at both ends means too many small and large norms.")
truth = -toy.conditional(x_test).log_prob(y_test).mean()
print(f"The repair holds on average over x; the true law, whose noise follows x, has an NLL of {truth:.3f}.")
