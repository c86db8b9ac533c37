"""Any model, by its two maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..base import RadialBase
from ..flow import ConditionalFlow
from .bases import FixedBase
from .frame import AdaptedFlow, as_rows, call_with, check_networks, networks_in


class FunctionFlow(AdaptedFlow):
    r"""A flow whose maps are functions; made by :func:`from_functions`.

    Where only the density is known, its determinant follows from the base that the model was trained with:

    .. math:: \log|\det \partial z / \partial y| = \log f(y \mid x) - \log f_Z(z)
    """

    def __init__(
        self,
        encode: Callable[..., Any],
        decode: Callable[..., Tensor],
        log_prob: Callable[..., Tensor] | None,
        base: FixedBase,
        networks: Iterable[nn.Module],
    ) -> None:
        super().__init__(base.radial, networks)
        self.functions = (encode, decode, log_prob)
        # Recalibration exchanges self.base; the density that the model states is that of this one.
        self.own_base = base

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        encode, _, log_prob = self.functions
        rows, features = as_rows(y, x)
        answer = call_with(encode, rows, features)
        if log_prob is None and not (isinstance(answer, tuple) and len(answer) == 2):
            raise TypeError(
                f"encode must return (z, log_abs_det), got {type(answer).__name__}. Where the determinant is "
                "not known, give the density: from_functions(..., log_prob=...)."
            )
        u = _checked(answer[0] if isinstance(answer, tuple) else answer, rows.shape, "the latent")
        z, log_abs_det = self.own_base.standardize(u)
        if log_prob is None:
            log_abs_det = log_abs_det + _checked(answer[1], rows.shape[:-1], "log_abs_det")
        else:
            log_density = _checked(call_with(log_prob, rows, features), rows.shape[:-1], "log_prob")
            log_latent = self.own_base.radial.log_prob_at_norm(self.own_base.radial.norm_of(z))
            # Outside the support both are -inf, and the determinant does not matter.
            log_abs_det = torch.where(torch.isneginf(log_latent), 0.0, log_density - log_latent)
        return z.reshape(y.shape), log_abs_det.reshape(y.shape[:-1])

    def _latent(self, y: Tensor, x: Tensor | None) -> Tensor:
        rows, features = as_rows(y, x)
        answer = call_with(self.functions[0], rows, features)
        u = _checked(answer[0] if isinstance(answer, tuple) else answer, rows.shape, "the latent")
        return self.own_base.standardize(u)[0].reshape(y.shape)

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        rows, features = as_rows(self.own_base.restore(z), x)
        return _checked(call_with(self.functions[1], rows, features), rows.shape, "y").reshape(z.shape)


def from_functions(
    encode: Callable[..., Any],
    decode: Callable[..., Tensor],
    dim: int,
    *,
    base: RadialBase | Distribution | None = None,
    log_prob: Callable[..., Tensor] | None = None,
    networks: nn.Module | Iterable[nn.Module] | None = None,
) -> ConditionalFlow:
    """A flow from the functions y -> z and z -> y of any model.

    The functions see rows, y (n, d) and x (n, p), whatever the leading dims; without x they are called with
    one argument.

    Args:
        encode: (y, x) -> (z, log_abs_det), (n, d) and (n,); or z alone where ``log_prob`` is given.
        decode: (z, x) -> y, (n, d).
        dim: number of outputs d.
        base: law of z, radial or a torch distribution that :func:`read_base` can standardise; N(0, I) if
            None.
        log_prob: (y, x) -> log f(y | x), (n,), of the model, where its determinant is not known.
        networks: modules that the functions use. Those that they are, are methods of, or name in their code
            are found without.

    Examples:
        >>> flow = from_functions(lambda y: (y / 2, y.new_full(y.shape[:1], -0.6931)), lambda z: 2 * z, dim=1)
        >>> flow().log_prob(torch.zeros(1))  # N(0, 4) at 0
        tensor(-1.6120)
    """
    named = {"encode": encode, "decode": decode, **({} if log_prob is None else {"log_prob": log_prob})}
    for name, function in named.items():
        if not callable(function):
            raise TypeError(f"{name} must be a function, got {type(function).__name__}.")
    found = networks_in(*named.values()) if networks is None else check_networks(networks)
    return FunctionFlow(encode, decode, log_prob, FixedBase.of(base, dim), found)


def _checked(value: Any, shape: torch.Size, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name} must be a tensor of shape {tuple(shape)}, got {got}.")
    return value
