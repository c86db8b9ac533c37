"""A flow from your own model by two functions: y to z with the log-determinant, and back.

python examples/own_model.py
"""

import torch

import latentcal as lc

network = torch.nn.Linear(3, 4)  # in place of your trained model


def encode(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents (n, d) of outputs (n, d) at features (n, p), and log|det dz/dy|, (n,)."""
    mean, log_scale = network(x).chunk(2, -1)
    return (y - mean) * torch.exp(-log_scale), -log_scale.sum(-1)


def decode(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Outputs (n, d) of latents (n, d) at features (n, p)."""
    mean, log_scale = network(x).chunk(2, -1)
    return mean + torch.exp(log_scale) * z


def main() -> None:
    """Check the functions, then recalibrate."""
    torch.set_num_threads(1)  # more threads do not help with tensors this small
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        network.weight.copy_(0.3 * torch.randn(4, 3, generator=generator))
        network.bias.copy_(torch.tensor([0.0, 0.0, -1.0, -1.0]))  # scales that are far too small
    network.requires_grad_(False)
    x = torch.randn(3000, 3, generator=generator)
    y = x @ network.weight[:2].T + torch.randn(3000, 2, generator=generator)

    flow = lc.from_functions(encode, decode, dim=2)
    print(lc.check_flow(flow, x[:200], y[:200]))
    model = lc.recalibrate(flow, x[:1000], y[:1000])
    for name, each in (("before", flow), ("after", model)):
        u = lc.latent_pit(each(x[1000:]), y[1000:])
        print(f"{name:<7} L-ECE {lc.metrics.calibration_error(u):.3f}")


if __name__ == "__main__":
    main()
