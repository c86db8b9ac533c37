"""Cross-calibration for few rows: train on folds, calibrate on the rows that each fold leaves out.

python examples/little_data.py
"""

import torch

import latentcal as lc


def make_flow(x: torch.Tensor, y: torch.Tensor) -> lc.ConditionalFlow:
    """The model, trained on some of the rows."""
    return lc.flows.LinearGaussianFlow.fit(x, y)


def main() -> None:
    """Compare half of 120 rows for training and half for calibration with all rows for both."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(4120, generator)
    few, new = (x[:120], y[:120]), (x[120:], y[120:])
    half = lc.recalibrate(make_flow(x[:60], y[:60]), x[60:120], y[60:120])
    crossed = lc.cross_calibrate(make_flow, *few, folds=5, fit=lc.StackedRadius.fit)
    by_x = lc.cross_calibrate(make_flow, *few, folds=5, fit=lc.ConditionalRadius.fit)
    models = {
        "all to train": make_flow(*few),
        "half and half": half,
        "crossed": crossed,
        "crossed, by x": by_x,
    }
    for name, each in models.items():
        u = lc.latent_pit(each(new[0]), new[1])
        nll = -each(new[0]).log_prob(new[1]).mean()
        print(f"{name:<14} NLL {nll:.3f}   L-ECE {lc.metrics.calibration_error(u):.3f}")
    print(f"points needed for the coverage of a 90 % region to within 5 %: {lc.points_needed(0.05)}")


if __name__ == "__main__":
    main()
