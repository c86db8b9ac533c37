"""The probability of an event, and the best action.

python examples/decide.py
"""

import math

import torch

import latentcal as lc


def main() -> None:
    """Decide by the probabilities of an overconfident model, and by those of the recalibrated model."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x = 1.5 * torch.randn(3000, 2, generator=generator)
    y = x + torch.randn(3000, 2, generator=generator)
    flow = lc.from_functions(  # assumes a standard deviation of 0.5; the true one is 1
        lambda y, x: ((y - x) / 0.5, y.new_full((len(y),), -2 * math.log(0.5))),
        lambda z, x: x + 0.5 * z,
        dim=2,
    )
    model = lc.recalibrate(flow, x[:500], y[:500])
    x, y = x[500:], y[500:]

    overload = ~lc.events.Box([-math.inf, -math.inf], [3.5, 3.5])  # either output above 3.5
    happened = overload.contains(y).double()
    actions = {"reserve": -1.0, "rely": lc.events.Payoff(overload, inside=-10.0, outside=0.0)}
    for name, each in (("before", flow), ("after", model)):
        options = {"samples": 256, "generator": torch.Generator().manual_seed(1)}
        chance = lc.probability(each, x, overload, **options).value
        chosen = lc.best_action(each, x, actions, **options)
        reserved = torch.tensor([action == "reserve" for action in chosen])
        cost = torch.where(reserved, 1.0, 10 * happened).mean()
        print(f"{name:<7} mean chance {chance.mean():.1%} (happened {happened.mean():.1%}), cost {cost:.2f}")


if __name__ == "__main__":
    main()
