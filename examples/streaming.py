"""A law that is updated with every batch: the noise doubles after row 3,000, and the coverage recovers.

python examples/streaming.py
"""

import torch

import latentcal as lc


def main() -> None:
    """Score each batch before the update with it, with and without updates."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(4000, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x[:1000], y[:1000])
    centre = flow.decode(torch.zeros_like(y), x)
    y[3000:] = centre[3000:] + 2 * (y[3000:] - centre[3000:])  # the noise doubles from row 3,000 on

    fixed = lc.recalibrate(flow, x[1000:2000], y[1000:2000])
    stream = lc.recalibrate(flow, x[1000:2000], y[1000:2000], fit=lc.StreamingRadius.fit)
    print("rows          fixed   learning   (share of points inside the 90 % region)")
    for start in range(2000, 4000, 250):
        rows = slice(start, start + 250)
        fixed_share, stream_share = (
            float((lc.latent_pit(each(x[rows]), y[rows]) <= 0.9).double().mean()) for each in (fixed, stream)
        )
        stream.update(x[rows], y[rows])  # after they were scored
        print(f"{start} to {start + 250}  {fixed_share:.1%}   {stream_share:.1%}")


if __name__ == "__main__":
    main()
