"""from_sampler: a flow from a sampler, by an ensemble of its draws at each x."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from .._internal.chunks import rows_at_a_time
from .._internal.numerics import as_tensor
from .._internal.validate import as_seed, as_whole
from ..flow import ConditionalFlow
from ..toy import draw_from
from .ensemble_fitting import from_samples
from .ensembles import SampleFlow, describe_members

_ROWS = 1000  # most rows for one call of a sampler


class SamplerFlow(ConditionalFlow):
    """A flow around a sampler, whitened with cached draws for each x; see :func:`from_sampler`.

    Args:
        draw: x (n, p) -> draws (s, n, d).
        flow: flow that takes the draws at an x as its ensemble.
        members: number of draws at each x.
        dtype: dtype of x for the sampler.
        seed: seed of torch's generators while draws are made.
    """

    def __init__(
        self, draw: Callable[[Tensor], Any], flow: SampleFlow, members: int, dtype: torch.dtype, seed: int
    ) -> None:
        super().__init__(flow.base)
        self.flow, self.members, self.dtype, self.seed = flow, members, dtype, seed
        self._draw = (draw,)  # not registered as a submodule, which would set the dtype of this module
        self._kept: dict[bytes, Tensor] = {}

    @property
    def hint(self) -> str:  # type: ignore[override]
        """Sentence on what no law of the radius can repair; empty for one output."""
        return self.flow.hint

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.flow.encode(y, self.describe(x))

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self.flow.decode(z, self.describe(x))

    @torch.no_grad()
    def describe(self, x: Tensor | None) -> Tensor:
        """Mean, covariance and number of the draws at x, (..., p) -> (..., q).

        They are cached up to 32 MB; beyond that, the oldest are dropped.
        """
        if x is None:
            raise ValueError("A sampler needs x, got None.")
        rows = x.detach().reshape(-1, x.shape[-1]).to("cpu", torch.float64)
        keys = [row.tobytes() for row in rows.numpy()]
        new = {key: i for i, key in enumerate(keys) if key not in self._kept}
        for part in torch.tensor(list(new.values()), dtype=torch.long).split(_ROWS) if new else ():
            drawn = draw_members(self._draw[0], rows[part].to(self.dtype), self.members, self.seed)
            self._keep((keys[i] for i in part.tolist()), drawn)
        kept = torch.stack([self._kept[key] for key in keys]) if keys else rows.new_empty(0, self._width)
        for key in list(self._kept)[: max(0, len(self._kept) - rows_at_a_time(self._width))]:
            del self._kept[key]  # the oldest
        return kept.reshape(*x.shape[:-1], self._width).to(self.flow.floor)

    def _keep(self, keys: Iterable[bytes], drawn: Tensor) -> None:
        self._kept.update(zip(keys, describe_members(drawn), strict=True))

    @property
    def _width(self) -> int:
        dim = self.base.dim
        return dim + dim * (dim + 1) // 2 + 1


class SamplerDraws(Distribution):
    """The distribution of a sampler at x (n, p), without a density.

    Args:
        draw: x (n, p) -> draws (s, n, d).
        x: (n, p).
        outputs: number d of outputs.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, draw: Callable[[Tensor], Any], x: Tensor, outputs: int) -> None:
        super().__init__(torch.Size([len(x)]), torch.Size([outputs]), validate_args=False)
        self._draw, self._x = draw, x

    @torch.no_grad()
    def sample(self, sample_shape: Any = (), generator: torch.Generator | None = None) -> Tensor:
        shape = torch.Size(sample_shape)
        seed = int(torch.randint(1 << 31, (), generator=generator))
        drawn = draw_members(self._draw, self._x, max(1, shape.numel()), seed).movedim(1, 0)
        return drawn[: shape.numel()].reshape(*shape, *drawn.shape[1:])


def draw_members(draw: Callable[[Tensor], Any], x: Tensor, members: int, seed: int) -> Tensor:
    """Draws at x (n, p) as members, (n, m, d)."""
    parts: list[Tensor] = []
    with draw_from(torch.Generator().manual_seed(seed)):
        while sum(map(len, parts)) < members:
            draws = as_tensor(draw(x), "draws")
            draws = draws[None] if draws.dim() == 2 else draws
            if draws.dim() != 3 or draws.shape[1] != len(x) or not len(draws):
                raise ValueError(
                    f"draw(x) must return (s, n, d), samples first, for n = {len(x)} rows; got "
                    f"{tuple(draws.shape)}."
                )
            parts.append(draws.cpu())
    return torch.cat(parts)[:members].movedim(0, 1)


def from_sampler(
    draw: Callable[[Tensor], Any], x: Any, y: Any = None, *, members: int = 200, seed: int = 0
) -> SamplerFlow:
    """A flow from a function x -> draws, such as a diffusion model, a VAE or a Bayesian model.

    The draws at an x are made once, and their mean and covariance are cached (up to 32 MB);
    :func:`from_samples` describes how they are used. Laws and maps that depend on x use x itself.

    Args:
        draw: function x (n, p) -> (s, n, d), or (n, d) for one draw; called until there are enough draws.
        x: (n, p) features of some rows.
        y: (n, d) observations there, to choose shrinkage and law.
        members: number of draws at each x.
        seed: seed of torch's generators while draws are made.

    Examples:
        >>> draw = lambda x: x[:, :1] + torch.randn(50, len(x), 2)
        >>> x = torch.zeros(40, 1)
        >>> flow = from_sampler(draw, x, members=100)
        >>> flow(x).log_prob(torch.zeros(40, 2)).shape
        torch.Size([40])
    """
    if not callable(draw):
        raise TypeError(f"draw must be a function x -> draws (s, n, d), got {type(draw).__name__}.")
    members, seed = as_whole(members, "members", 2), as_seed(seed)
    x = as_tensor(x, "x")
    if x.dim() != 2 or not len(x):
        raise ValueError(f"x must be (n, p), rows to draw at, got {tuple(x.shape)}.")
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    with torch.no_grad():
        drawn = draw_members(draw, x.to(dtype), members, seed)
    flow = SamplerFlow(draw, from_samples(drawn, y), members, dtype, seed)
    keys = (row.tobytes() for row in x.to(dtype).to(torch.float64).cpu().numpy())
    flow._keep(keys, drawn)
    return flow
