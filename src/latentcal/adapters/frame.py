"""Base class of adapters, which handles evaluation mode, dtype, device and flattening to rows."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from .._internal.numerics import broadcast_leading, to_tensor
from ..base import RadialBase
from ..flow import ConditionalFlow, evaluation_mode, tensor_options


class AdaptedFlow(ConditionalFlow):
    """A flow around a model of another library.

    The model's networks are in evaluation mode during each call, because dropout or batch statistics would
    make the latent random; their modes are restored afterwards. A subclass implements ``_encode`` and
    ``_decode``, for points that already have the leading dims of x, and ``_latent`` if the determinant is
    expensive.

    Args:
        base: law of the standardised latent.
        networks: modules that the model uses; they move and train with the flow.
        conditional: whether the model needs features.
        like: a tensor with the dtype and device for data, if the networks have no tensors.
    """

    def __init__(
        self,
        base: RadialBase,
        networks: Iterable[nn.Module] = (),
        *,
        conditional: bool = False,
        like: Tensor | None = None,
    ) -> None:
        super().__init__(base)
        self.conditional = conditional
        self.networks = nn.ModuleList(networks)
        if like is not None and tensor_options(self)[0] is None:
            self.register_buffer("_like", like.detach().new_empty(0), persistent=False)

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        with evaluation_mode(self):
            return self._encode(_expand(y, x), x)

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        with evaluation_mode(self):
            return self._latent(_expand(y, x), x)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        with evaluation_mode(self):
            return self._decode(_expand(z, x), x)

    def features_for(self, x: Tensor | None) -> Tensor | None:
        """The features for the model: x, or None if it is unconditional."""
        if self.conditional and x is None:
            raise ValueError("This flow is conditional: x must be (..., p), got None.")
        return x if self.conditional else None

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _latent(self, y: Tensor, x: Tensor | None) -> Tensor:
        return self._encode(y, x)[0]


def _expand(points: Tensor, x: Tensor | None) -> Tensor:
    return points if x is None else broadcast_leading(x, points)[1]


def flatten_rows(points: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Points (n, d) and features (n, p) with all leading dims flattened, for functions of rows."""
    if x is not None:
        x, points = broadcast_leading(x, points)
        x = x.reshape(-1, x.shape[-1])
    return points.reshape(-1, points.shape[-1]), x


def call_with(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result for the arguments, without the last one, x, if that is None."""
    return function(*(arguments[:-1] if arguments[-1] is None else arguments))


def networks_in(*things: Any) -> list[nn.Module]:
    """Modules among the given objects, and modules that functions among them use, as far as detectable.

    For a function, the search includes its closure, its defaults, functions of the same file, the function
    inside a partial one, and the attributes of the object of a method. (A module in a global variable may be
    counted as used if an attribute in the function has its name; ``networks=`` avoids the search.)
    """
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    pending = deque(things)
    while pending:
        thing = pending.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            found[id(thing)] = thing
        elif isinstance(thing, functools.partial):
            pending += [thing.func, *thing.args, *thing.keywords.values()]
        elif inspect.ismethod(thing):
            owner = thing.__self__
            pending += [owner, thing.__func__]
            pending += () if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {}).values()
        elif inspect.isfunction(thing):
            pending += _contents_of(thing)
        elif isinstance(thing, (list, tuple)):
            pending += thing
        elif isinstance(thing, dict):
            pending += thing.values()
        elif callable(thing) and not isinstance(thing, type) and hasattr(thing, "__dict__"):
            pending += vars(thing).values()
    return list(found.values())


def _contents_of(function: Any) -> Iterator[Any]:
    """Objects that a function holds, and modules and functions of its own file that it names."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    with suppress(ValueError):
        for value in inspect.getclosurevars(function).globals.values():
            same_file = inspect.isfunction(value) and value.__globals__ is function.__globals__
            if same_file or isinstance(value, nn.Module):
                yield value


def check_networks(networks: Any) -> list[nn.Module]:
    """The modules that a user named; raises if they are not modules."""
    networks = [networks] if isinstance(networks, nn.Module) else list(networks)
    for network in networks:
        if not isinstance(network, nn.Module):
            raise TypeError(f"networks must be torch modules, got {type(network).__name__}.")
    return networks


def features_of(x: Any, networks: list[nn.Module]) -> Tensor | None:
    """Example features as a tensor of the networks' dtype and device; integers may be labels."""
    if x is None:
        return None
    x = to_tensor(x, "x")
    dtype, device = tensor_options(nn.ModuleList(networks))
    return x.to(dtype=dtype if x.is_floating_point() else None, device=device)


def missing_features(adapter: str, what: str) -> TypeError:
    """The error for a model whose base law cannot be read without x."""
    return TypeError(f"{what} depends on x. Pass some features: {adapter}(flow, x).")


def vector_length(shape: Any) -> int:
    """The number d of an event shape (d,); raises for other shapes."""
    if len(shape) != 1:
        raise ValueError(f"The model's events have shape {tuple(shape)}, not (d,). Flatten the outputs.")
    return int(shape[0])


def not_of(adapter: str, what: str, thing: Any) -> str:
    """The error message for a model that an adapter does not accept."""
    kind = type(thing).__name__
    if isinstance(thing, ConditionalFlow):
        return f"{kind} is already a latentcal flow and needs no adapter."
    return (
        f"{adapter} needs {what}, got {kind}. For other models use another adapter, or from_functions, "
        "which takes any two functions y -> z and z -> y."
    )
