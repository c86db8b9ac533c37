"""Train a flow on an arc, measure its miscalibration, recalibrate it, and draw both models."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

import latentcal as lc
from latentcal import plots

torch.set_num_threads(1)  # more threads do not help with tensors this small
generator = torch.Generator().manual_seed(0)
toy = lc.toy.arc()
(_, y_train), (_, y_validation), (_, y_cal), (_, y_test) = (
    toy.sample(n, generator) for n in (100, 500, 2000, 1000)
)

# With few points and no early stopping, the flow overfits.
torch.manual_seed(0)
flow = lc.flows.ConvexPotentialFlow(dim=2, features=0)
log = lc.flows.train_flow(
    flow,
    None,
    y_train,
    validation=(None, y_validation),
    learning_rate=1e-2,
    max_epochs=1000,
    patience=1000,
    restore_best=False,
    progress=True,
)
print(f"Trained for {log}\n")
model = lc.recalibrate(flow, None, y_cal)

# Coverage and likelihood, before and after.
models = {"before": flow, "after": model}
levels = [0.5, 0.8, 0.9, 0.95]
columns, latent, hdr = {}, {}, {}
for name, predictor in models.items():
    pred = predictor.requires_grad_(False)().expand((len(y_test),))
    latent[name] = lc.latent_pit(pred, y_test)
    hdr[name] = lc.hdr_pit(pred, y_test, samples=100, generator=generator)
    coverage = lc.metrics.empirical_coverage(latent[name], levels)
    columns[name] = {
        "negative log-likelihood": f"{-pred.log_prob(y_test).mean():.3f}",
        "L-ECE": f"{lc.metrics.calibration_error(latent[name]):.4f}",
        "HDR-ECE": f"{lc.metrics.calibration_error(hdr[name]):.4f}",
        "p-value (Kolmogorov-Smirnov)": f"{lc.metrics.uniformity_test(latent[name]).p_value:.3g}",
        **{f"coverage of the {q:.0%} region": f"{c:.1%}" for q, c in zip(levels, coverage, strict=True)},
    }
print(f"{f'{len(y_test):,} test points':<32}{'before':>10}{'after':>10}")
for row in columns["before"]:
    print(f"{row:<32}{columns['before'][row]:>10}{columns['after'][row]:>10}")
truth = -toy.conditional(torch.empty(len(y_test), 0)).log_prob(y_test).mean()
print(f"{'(NLL of the true law)':<32}{truth:>10.3f}\n")

# The figure: latent density, predictive density, latent and HDR reliability.
figure, axes = plt.subplots(2, 4, figsize=(15, 7.2), layout="constrained")
figure.get_layout_engine().set(w_pad=0.1)
shown = y_cal[:400]
z_sides = (torch.linspace(-3.3, 3.3, 300),) * 2
y_sides = torch.linspace(-1.65, 1.65, 400), torch.linspace(-0.95, 0.95, 400)
z, y = (torch.stack(torch.meshgrid(*sides, indexing="ij"), -1) for sides in (z_sides, y_sides))
for row, (name, predictor) in zip(axes, models.items(), strict=True):
    base, pred = predictor.base, predictor()
    latent_density, level = base.log_prob(z).exp(), base.radius.cdf(base.norm_of(z))
    plots.density_map(*z_sides, latent_density, pit=level, points=flow.latent(shown), ax=row[0])
    density, level = pred.log_prob(y).exp(), lc.latent_pit(pred, y)
    plots.density_map(*y_sides, density, pit=level, label_levels=False, points=shown, ax=row[1])
    for ax, pits, error in ((row[2], latent, "L-ECE"), (row[3], hdr, "HDR-ECE")):
        plots.reliability_diagram(pits[name], label=f"{error} {columns[name][error]}", ax=ax)
    row[0].set(xlabel="$z_1$", ylabel=f"{name.capitalize()} recalibration\n\n$z_2$")
    row[1].set(xlabel="$y_1$", ylabel="$y_2$")
titles = ("Latent density", "Predictive density", "Latent reliability", "HDR reliability")
for ax, title in zip(axes[0], titles, strict=True):
    ax.set_title(title)
path = Path("demo/recalibration.png")
path.parent.mkdir(exist_ok=True)
figure.savefig(path, dpi=150)
print(
    f"Wrote {path}: black lines enclose 1, 10, 50 and 90 % of the probability, blue dots are calibration "
    "points."
)
