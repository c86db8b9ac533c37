"""Train a flow, recalibrate it on rows that were set aside, and compare it before and after.

python examples/recalibrate_a_flow.py
"""

import torch

import latentcal as lc


def main() -> None:
    """Print coverage and likelihood on new rows, before and after."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    toy = lc.toy.heteroscedastic_arc()
    (x, y), validation, calibration, (x_new, y_new) = (
        toy.sample(n, generator) for n in (100, 200, 1000, 2000)
    )

    # With few rows and no early stopping, the flow overfits.
    flow = lc.flows.ConvexPotentialFlow(dim=2, features=x.shape[1])
    lc.flows.train_flow(
        flow,
        x,
        y,
        validation=validation,
        learning_rate=1e-2,
        max_epochs=80,
        patience=80,
        restore_best=False,
    )
    model = lc.recalibrate(flow, *calibration)

    for name, each in (("before", flow), ("after", model)):
        with torch.no_grad():
            nll = -each(x_new).log_prob(y_new).mean()
        u = lc.latent_pit(each(x_new), y_new)
        half, most = lc.metrics.empirical_coverage(u, [0.5, 0.9])
        print(f"{name:<7} NLL {nll:6.2f}   regions of 50 % and 90 % cover {half:.0%} and {most:.0%}")


if __name__ == "__main__":
    main()
