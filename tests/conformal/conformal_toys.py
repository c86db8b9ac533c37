"""Models and data for tests of conformal regions."""

import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from latentcal.base import RadialBase, standard_normal
from latentcal.flow import ConditionalFlow


class Skewed(ConditionalFlow):
    """y = sinh(z / 2 + x / 2) exp(x / 3): scale and shape of the law depend on x; d = p."""

    def __init__(self, dim: int, base: RadialBase | None = None) -> None:
        super().__init__(standard_normal(dim) if base is None else base)

    def encode(self, y, x=None):
        w = y * torch.exp(-x / 3)
        return 2 * torch.asinh(w) - x, (0.6931471805599453 - x / 3 - torch.log1p(w**2) / 2).sum(-1)

    def decode(self, z, x=None):
        return torch.sinh((z + x) / 2) * torch.exp(x / 3)


def data(n, dim, generator):
    """Rows that the flow is too sure of."""
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    z = (1 + x.abs()) * torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x, torch.sinh((z + x) / 2) * torch.exp(x / 3)


def mixture(x):
    """Two normals in as many outputs as there are features: a density without latent space."""
    location = torch.stack([x - 1, x + 1], -2)
    weights = torch.ones(location.shape[:-1], dtype=x.dtype)
    return MixtureSameFamily(Categorical(weights), Independent(Normal(location, 0.5), 1))
