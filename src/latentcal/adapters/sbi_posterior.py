"""A recalibrated model as an estimator of sbi; imported only by ``to_sbi``, because it imports sbi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from ..base import standard_normal
from ..flow import FlowDistribution
from ..norms import Euclidean
from ..transport import radial_transport
from .frame import networks_in

try:
    from sbi.inference.posteriors import DirectPosterior
    from sbi.neural_nets.estimators import ConditionalDensityEstimator
except ImportError as error:
    raise ImportError("to_sbi needs sbi, which is not installed: pip install sbi.") from error


class RecalibratedEstimator(ConditionalDensityEstimator):
    """A conditional distribution with the interface of sbi: input theta (s, n, d), condition x (n, *shape).

    Args:
        model: function x (..., p) -> distribution of theta, such as a recalibrated flow.
        dim: number of parameters d.
        shape: shape of one observation.
    """

    def __init__(self, model: Callable[[Tensor], Distribution], dim: int, shape: tuple[int, ...]) -> None:
        super().__init__(model, torch.Size([dim]), torch.Size(shape))
        # Lets sbi find the device and set the mode of networks inside a function.
        self.networks = nn.ModuleList([] if isinstance(model, nn.Module) else networks_in(model))

    @property
    def embedding_net(self) -> nn.Module:
        """The identity, because the model embeds x itself."""
        return nn.Identity()

    def log_prob(self, input: Tensor, condition: Tensor, **kwargs: Any) -> Tensor:
        """Log density, (s, n, d), (n, *shape) -> (s, n)."""
        # The distribution repeats x if needed; repeating it here would embed every row again.
        input, _, _ = self._broadcast_and_align(input, condition)
        log_density: Tensor = self._at(condition).log_prob(input)
        return log_density

    def loss(self, input: Tensor, condition: Tensor, **kwargs: Any) -> Tensor:
        """Negative log density, (n, d), (n, *shape) -> (n,)."""
        return -self.log_prob(input.unsqueeze(0), condition)[0]

    def sample(self, sample_shape: Any, condition: Tensor, **kwargs: Any) -> Tensor:
        """Draws, (*sample_shape, n, d)."""
        draws: Tensor = self._at(condition).sample(torch.Size(sample_shape))
        return draws

    def inverse_transform(self, input: Tensor, condition: Tensor) -> Tensor:
        """Latents that are N(0, I) if the model is correct, (..., d), (..., *shape) -> (..., d)."""
        prediction = self._at(condition)
        if not isinstance(prediction, FlowDistribution) or not isinstance(prediction.base.norm, Euclidean):
            raise NotImplementedError(
                "Only flows with a base that is radial in the Euclidean norm have such latents."
            )
        transport = radial_transport(prediction.base, standard_normal(prediction.base.dim))
        return transport(prediction.latent(input)).to(input.dtype)

    def _at(self, condition: Tensor) -> Distribution:
        events = len(self.condition_shape)
        distribution: Distribution = self.net(
            condition.reshape(*condition.shape[: condition.dim() - events], -1)
        )
        return distribution


def direct_posterior(estimator: RecalibratedEstimator, prior: Any) -> DirectPosterior:
    """The posterior that rejects samples outside the prior."""
    return DirectPosterior(posterior_estimator=estimator, prior=prior)
