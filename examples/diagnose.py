"""Diagnose a model before and after recalibration.

python examples/diagnose.py
"""

import torch

import latentcal as lc


def main() -> None:
    """Diagnose a model whose error depends on x, recalibrate it by x, and diagnose it again."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(3000, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x[:1000], y[:1000])  # one width for all x
    x_new, y_new = x[2000:], y[2000:]
    model = lc.recalibrate(flow, x[1000:2000], y[1000:2000], fit=lc.ConditionalRadius.fit)
    for each in (flow, model):
        source = torch.Generator().manual_seed(1)
        print(lc.diagnose(each, x_new, y_new, samples=50, permutations=399, generator=source), end="\n\n")


if __name__ == "__main__":
    main()
