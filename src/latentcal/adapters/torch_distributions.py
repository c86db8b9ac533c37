"""Flows from distributions of torch and pyro: a base law and transforms from latent to data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Transform, TransformedDistribution

from ..flow import ConditionalFlow, evaluation_mode
from .bases import AffineBase, BaseKind, no_latent, read_base
from .frame import AdaptedFlow, call_with, check_networks, features_of, networks_in, not_of


class TorchFlow(AdaptedFlow):
    r"""A flow whose maps are the transforms of a torch distribution; made by :func:`from_torch`.

    .. math:: y = (t_k \circ \dots \circ t_1)(u), \quad u = m + S z, \qquad
              \log|\det \partial z / \partial y| = -\log|\det S| - \sum_i \log|\det \partial t_i|
    """

    def __init__(
        self,
        function: Callable[..., Distribution],
        kind: BaseKind,
        networks: Iterable[nn.Module],
        like: Tensor | None,
        conditional: bool,
    ) -> None:
        super().__init__(kind.radial(), networks, conditional=conditional, like=like)
        self.function, self.kind = function, kind

    def _chain(self, x: Tensor | None) -> tuple[list[Transform], AffineBase]:
        transforms, base = unfold(call_with(self.function, self.features_for(x)))
        return transforms, base.require(self.kind)

    def _encode(self, y: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor]:
        transforms, base = self._chain(x)
        # A transform with a cache would return the latent that it decoded y from, hiding errors.
        u, log_abs_det = through_inverses(transforms, y.clone())
        z, of_base = base.standardize(u)
        return z, log_abs_det + of_base

    def _decode(self, z: Tensor, x: Tensor | None) -> Tensor:
        transforms, base = self._chain(x)
        y = base.restore(z)  # a new tensor, so it is in no cache
        for transform in transforms:
            y = _apply(transform, y)
        return y


def from_torch(
    distribution: Distribution | Callable[..., Distribution],
    x: Any = None,
    *,
    networks: nn.Module | Iterable[nn.Module] | None = None,
) -> ConditionalFlow:
    """A flow from a torch distribution, or from a function x -> distribution.

    The distribution is a ``TransformedDistribution`` (or ``Independent``, or nested ones) over vectors of
    length d, with transforms that are one to one, on a base that :func:`read_base` can standardise: normal,
    multivariate t, uniform box, Laplace.

    Args:
        distribution: the distribution; or a function, such as a network, of x (n, p) that returns one with
            batch shape (n,).
        x: (n, p) some features, to read the base of a function; None if it takes none.
        networks: modules that the function uses. If the function is a module, a method of one, or names one
            in its code, the module is found automatically.

    Examples:
        >>> from torch.distributions import AffineTransform, ExpTransform, Independent, Normal
        >>> base = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
        >>> chain = [AffineTransform(1.0, 2.0), ExpTransform()]
        >>> from_torch(TransformedDistribution(base, chain)).latent(torch.ones(1, 2))
        tensor([[-0.5000, -0.5000]])
    """
    found = networks_in(distribution) if networks is None else check_networks(networks)
    if not callable(distribution) and not isinstance(distribution, Distribution):
        raise TypeError(
            "from_torch needs a torch distribution or a function x -> distribution, got "
            f"{type(distribution).__name__}."
        )
    if isinstance(distribution, Distribution):
        function, x = (lambda: distribution), None
    else:
        function, x = distribution, features_of(x, found)
    with torch.no_grad(), evaluation_mode(*found):
        transforms, base = unfold(_try(function, x))
    found += [module for module in networks_in(transforms) if all(module is not other for other in found)]
    # The result of a function may have the dtype of x, so it does not determine the dtype of x.
    return TorchFlow(function, base.kind, found, base.loc if x is None else None, conditional=x is not None)


def from_pyro(distribution: Any, x: Any = None) -> ConditionalFlow:
    """A flow from a distribution of pyro, conditional or not.

    The distribution is a ``ConditionalTransformedDistribution``, or a ``TransformedDistribution`` for a model
    without features. Its modules are not copied: training or moving one of the two also changes the other.

    Args:
        distribution: the distribution, over vectors of length d; its base must be one that :func:`read_base`
            can standardise.
        x: (n, p) some features, to read the shape and base law of a conditional distribution; one row is
            enough.

    Raises:
        TypeError: if it is not a distribution of pyro, or x is missing.
        ValueError: if the base is not radial in any norm.
    """
    library = sys.modules.get("pyro.distributions.conditional")  # a user with one has already imported pyro
    if library is not None and isinstance(distribution, library.ConditionalDistribution):
        if x is None:
            raise TypeError(
                f"{type(distribution).__name__} is conditional. Pass some features, to read its shape and "
                "base law: from_pyro(distribution, x)."
            )
        return from_torch(distribution.condition, x, networks=list(_modules_of(distribution)))
    if library is not None and isinstance(distribution, library.ConditionalTransform):
        raise TypeError(
            f"{type(distribution).__name__} is a transform, which has no base law. Pass "
            "ConditionalTransformedDistribution(base, [transform])."
        )
    if isinstance(distribution, Distribution):
        return from_torch(distribution)
    raise TypeError(not_of("from_pyro", "a (conditional) transformed distribution of pyro", distribution))


def _try(function: Callable[..., Any], x: Tensor | None) -> Any:
    try:
        return call_with(function, x)
    except Exception as error:
        if x is None:
            raise TypeError(
                "The function needs x. Pass some features, to read the base law: from_torch(function, x). "
                f"({type(error).__name__}: {error})"
            ) from error
        raise


def unfold(distribution: Any) -> tuple[list[Transform], AffineBase]:
    """Transforms, latent to data, of nested distributions, and the innermost base."""
    if not isinstance(distribution, Distribution):
        what = type(distribution).__name__
        raise TypeError(
            f"Expected a torch distribution, got {what}. Turn a network into a flow with a function x -> "
            "TransformedDistribution, from_velocity or from_functions."
        )
    if len(distribution.event_shape) != 1:
        raise ValueError(
            f"The distribution has batch shape {tuple(distribution.batch_shape)} and event shape "
            f"{tuple(distribution.event_shape)}; the outputs must be its event, (d,). Use "
            "Independent(distribution, 1)."
        )
    transforms: list[Transform] = []
    inner: Any = distribution
    while isinstance(inner, (TransformedDistribution, Independent)):
        if isinstance(inner, TransformedDistribution):
            transforms = [*inner.transforms, *transforms]
        inner = inner.base_dist
    for transform in transforms:
        if not transform.bijective:
            raise no_latent(transform)
    # Dims that Independent moved from batch to event are coordinates of the base.
    base = read_base(inner if inner.event_shape else Independent(inner, 1, validate_args=False))
    if base.kind.dim != distribution.event_shape[0]:
        raise ValueError(
            f"The distribution has {distribution.event_shape[0]} outputs but {base.kind.dim} latent "
            "dimensions; the transforms must preserve the dimension."
        )
    return transforms, base


def through_inverses(transforms: list[Transform], y: Tensor) -> tuple[Tensor, Tensor]:
    """Latent u of y and log|det du/dy|, (..., d) -> (..., d), (...)."""
    log_abs_det = y.new_zeros(())
    for transform in reversed(transforms):
        u = _apply(transform.inv, y)
        step = transform.log_abs_det_jacobian(u, y)
        # Element-wise transforms return one number per coordinate, the others one per point (StackTransform
        # returns one per coordinate, contrary to its event_dim).
        if transform.domain.event_dim == 0 or step.dim() == y.dim():
            step = step.expand(y.shape).sum(-1)
        log_abs_det, y = log_abs_det - step, u
    return y, log_abs_det.expand(y.shape[:-1])


def _apply(transform: Transform, points: Tensor) -> Tensor:
    try:
        moved: Tensor = transform(points)
    except (KeyError, NotImplementedError) as error:  # raised by pyro and torch if it is missing
        inverted = isinstance(transform, torch.distributions.transforms._InverseTransform)
        own = transform.inv if inverted else transform
        raise NotImplementedError(
            f"{type(own).__name__} implements only one of its two directions. Latents and densities need the "
            f"map from data to latent; samples need the map from latent to data. ({error})"
        ) from error
    return moved


def _modules_of(thing: Any) -> Iterator[nn.Module]:
    """Modules inside a conditional distribution, its base and its transforms."""
    if isinstance(thing, nn.Module):
        yield thing
        return
    for name in ("base_dist", "transform"):
        yield from _modules_of(getattr(thing, name, None)) if hasattr(thing, name) else ()
    for transform in getattr(thing, "transforms", ()):
        yield from _modules_of(transform)
