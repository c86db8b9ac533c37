"""A flow above a location and a scale from other models."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.validate import check_features
from ..flow import ConditionalFlow, tensor_options
from .stages import Stage
from .standardized import finite_vector
from .triangular import MovedTriangle


class LocationScale(ConditionalFlow):
    r"""A flow on standardised residuals, above a location m(x) and a scale s(x) of each output.

    .. math:: \mathrm{encode}(y; x) = \mathrm{inner}\left(\frac{y - m(x)}{s(x)};
              \frac{[x, m(x), \log s(x)] - c}{h}\right), \qquad
              \log|\det| = \log|\det|_{inner} - \sum_j \log s_j(x)

    With ``residuals=False`` the flow models y itself, and location and scale are only features. Use this for
    outputs with repeated values, such as counts, which residuals would blur.

    The stage below is fitted by trees, a Gaussian process or ridge regression: see :func:`fit_stage`, which
    also returns the out-of-fold residuals to train the flow on. Location and scale are computed in float64;
    residuals and features are cast to the dtype of the flow. A law of the radius that depends on x depends
    only on x, not on m and s.

    Args:
        flow: flow with p + 2 d features, 2 d (only m and log s) or none; its base is kept.
        stage: location and scale, for p features and d outputs.
        feature_mean: c, (p + 2 d,); 0 if None.
        feature_scale: h, (p + 2 d,), positive; 1 if None.
        residuals: whether the flow models residuals, or y.
    """

    flow: ConditionalFlow
    stage: Stage
    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(
        self,
        flow: ConditionalFlow,
        stage: Stage,
        feature_mean: Tensor | None = None,
        feature_scale: Tensor | None = None,
        residuals: bool = True,
    ) -> None:
        super().__init__(flow.base)
        if stage.outputs != flow.base.dim:
            raise ValueError(
                f"The stage has {stage.outputs} outputs but the flow's latent has {flow.base.dim} dimensions."
            )
        width = stage.features + 2 * stage.outputs
        if (own := getattr(flow, "features", 0)) not in (0, 2 * stage.outputs, width):
            raise ValueError(
                f"The flow has {own} features; above a stage of {stage.features} features and "
                f"{stage.outputs} outputs it must have p + 2 d = {width}, 2 d, or none."
            )
        self.flow, self.stage, self.residuals = flow, stage, residuals
        mean = torch.zeros(width, dtype=torch.float64) if feature_mean is None else feature_mean
        scale = torch.ones(width, dtype=torch.float64) if feature_scale is None else feature_scale
        self.register_buffer("feature_mean", finite_vector(mean, "feature_mean", width))
        self.register_buffer("feature_scale", finite_vector(scale, "feature_scale", width, positive=True))

    @property
    def features(self) -> int:
        """Number of features p."""
        return self.stage.features

    def encode(self, y: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        inner_x, location, scale = self.below(x)
        z, log_abs_det = self.flow.encode(self._cast((y - location) / scale), inner_x)
        return z, log_abs_det.to(self.feature_scale.dtype) - torch.log(scale).sum(-1)

    def latent(self, y: Tensor, x: Tensor | None = None) -> Tensor:
        inner_x, location, scale = self.below(x)
        return self.flow.latent(self._cast((y - location) / scale), inner_x)

    def decode(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        inner_x, location, scale = self.below(x)
        return self.flow.decode(self._cast(z), inner_x) * scale + location

    def triangle(self, x: Tensor | None) -> MovedTriangle:
        """The map at features x, (..., p), as a triangular one, if the flow is triangular."""
        inner_x, location, scale = self.below(x)
        return MovedTriangle(self.flow.triangle(inner_x), location, scale)  # type: ignore[operator]

    def below(self, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Features (..., p + 2 d) of the inner flow, and location and scale to standardise y with."""
        x = check_features(x, self.stage.features)
        location, scale = (part.to(self.feature_mean.dtype) for part in self.stage(x))
        joined = join_features(x.to(location), location, scale)
        inner_x = self._cast((joined - self.feature_mean) / self.feature_scale)
        if getattr(self.flow, "features", 0) == 2 * self.stage.outputs:
            inner_x = inner_x[..., self.stage.features :]
        if self.residuals:
            return inner_x, location, scale
        return inner_x, torch.zeros_like(location), torch.ones_like(scale)

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(dtype=tensor_options(self.flow)[0])


def join_features(x: Tensor, location: Tensor, scale: Tensor) -> Tensor:
    """[x, m, log s] for a flow above a stage, (..., p), (..., d), (..., d) -> (..., p + 2 d)."""
    return torch.cat([x, location, torch.log(scale)], -1)
