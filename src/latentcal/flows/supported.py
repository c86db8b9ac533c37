"""A flow whose outputs stay in their supports, such as positive numbers, intervals and cells of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from ..flow import ConditionalFlow
from .output_kinds import Kind


class Supported(ConditionalFlow):
    r"""A flow on the real line of each output, mapped to the supports of the outputs.

    .. math:: \mathrm{encode}(y; x) = \mathrm{inner}(g(y); x), \qquad
              \log|\det| = \log|\det|_{inner} + \sum_j \log g_j'(y_j)

    Here :math:`g_j` is the map of the j-th kind: a log for positive outputs, a logit for intervals; see
    :class:`Kind`. All draws lie in the support. A y outside it has density 0, an infinite latent norm and
    latent PIT 1. The support of a grid is that of all its cells, so this is the law of the dequantised
    output; ``lc.outputs.GridModel`` gives the probabilities of its values. Atoms are ignored here.

    Args:
        flow: flow of :math:`g(y)`, as computed by :meth:`to_line`; its base is kept.
        kinds: one for each output, such as ``["positive", "unit", "real"]``.

    Examples:
        >>> from latentcal.flows import LinearGaussianFlow
        >>> normal = LinearGaussianFlow(None, torch.zeros(1), torch.eye(1))
        >>> lognormal = Supported(normal, ["positive"])
        >>> lognormal().log_prob(torch.tensor([[1.0], [-1.0]]))  # -log(2 pi) / 2, and outside
        tensor([-0.9189,    -inf])
    """

    flow: ConditionalFlow

    def __init__(self, flow: ConditionalFlow, kinds: Sequence[str]) -> None:
        super().__init__(flow.base)
        if isinstance(kinds, str) or len(kinds) != flow.base.dim:
            raise ValueError(
                f"kinds must be a list of {flow.base.dim} kinds, one for each output of the flow, got "
                f"{kinds!r}."
            )
        self.flow = flow
        self.kinds = [str(kind) if isinstance(kind, Kind) else str(Kind.parse(kind)) for kind in kinds]

    @property
    def features(self) -> int:
        """Number of features p of the inner flow; 0 if it is unconditional or unknown."""
        return int(getattr(self.flow, "features", 0))

    @property
    def support(self) -> constraints.Constraint:
        """The product of the supports of all outputs."""
        if all(kind.link == "identity" for kind in self._parsed()):
            return constraints.real_vector
        return constraints.independent(constraints.stack([k.support for k in self._parsed()], -1), 1)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        line, log_slope, inside = self._to_line(y)
        z, log_abs_det = self.flow.encode(line, x)
        inside = inside.expand(z.shape[:-1])
        return (
            z.masked_fill(~inside[..., None], math.inf),
            (log_abs_det + log_slope.to(log_abs_det)).masked_fill(~inside, 0.0),
        )

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        line, _, inside = self._to_line(y)
        z = self.flow.latent(line, x)
        return z.masked_fill(~inside.expand(z.shape[:-1])[..., None], math.inf)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        return self.from_line(self.flow.decode(z, x))

    def to_line(self, y: Tensor) -> Tensor:
        """Outputs mapped to the real line, (..., d) -> (..., d), to train the inner flow on."""
        line, _, inside = self._to_line(y)
        if not bool(inside.all()):
            wrong = [
                f"{kind} at output {j}, {column[~kind.contains(column)][0].item():g}"
                for j, (kind, column) in enumerate(zip(self._parsed(), y.detach().unbind(-1), strict=True))
                if not bool(kind.contains(column).all())
            ]
            raise ValueError(
                f"{int((~inside).sum())} of {inside.numel()} rows of y lie outside the support "
                f"({'; '.join(wrong)}). Declare another kind, or an atom: 'positive + 0'."
            )
        return line

    def from_line(self, line: Tensor) -> Tensor:
        """Outputs from points of the real line, (..., d) -> (..., d)."""
        return self._by_kind(line, lambda kind, values: (kind.from_line(values),))[0]

    def _to_line(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers on the line (..., d), sum of log slopes (...), and whether y is in the support (...)."""

        def go(kind: Kind, values: Tensor) -> tuple[Tensor, ...]:
            inside = kind.contains(values)
            # Use any inner point for the others, which are masked: no NaN, no gradient.
            anywhere = kind.from_line(torch.zeros_like(values))
            return (*kind.to_line(torch.where(inside, values, anywhere)), inside)

        line, log_slope, inside = self._by_kind(y, go)
        return line, log_slope.sum(-1), inside.all(-1)

    def _by_kind(
        self, values: Tensor, go: Callable[[Kind, Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Results of ``go`` for the columns of each kind, combined in the order of the outputs."""
        groups: dict[str, list[int]] = {}
        for j, kind in enumerate(self.kinds):
            groups.setdefault(kind, []).append(j)
        if len(groups) == 1:
            return go(Kind.parse(self.kinds[0]), values)
        parts = [go(Kind.parse(kind), values[..., columns]) for kind, columns in groups.items()]
        place = torch.tensor([j for columns in groups.values() for j in columns]).argsort()
        return tuple(torch.cat(part, -1)[..., place.to(values.device)] for part in zip(*parts, strict=True))

    def _parsed(self) -> list[Kind]:
        return [Kind.parse(kind) for kind in self.kinds]
