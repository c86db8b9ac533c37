"""Shift and scale of each latent coordinate as functions of x."""

from __future__ import annotations

import torch
from torch import Tensor

from ..smoothers import RidgeSmoother, log_dispersion
from .cross_fitting import CrossFitted, winsorized
from .maps import FeatureAffineMap


def cross_fit_features(z: Tensor, x: Tensor | None, fold: Tensor, weights: Tensor) -> CrossFitted:
    r"""The map :math:`z'_j = (z_j - m_j(x))\, e^{-s_j(x)}`, with additive ridge models of both.

    They have mean 0 over the rows, so that only what depends on x is changed: infinite penalties, chosen
    where x tells nothing about held-out rows, are the identity.

    Args:
        z: (n, d) latents.
        x: (n, p) features.
        fold: (n,) fold of each row.
        weights: (n,) of the rows.
    """
    if x is None:
        raise ValueError("A map that depends on x needs features.")
    calm = winsorized(z)
    shift, held_out_shift = RidgeSmoother.cross_fit(x, calm, fold, weights, level=False)
    log_scale, held_out_scale = log_dispersion(RidgeSmoother, x, calm - held_out_shift, fold, weights)
    step = FeatureAffineMap(shift, log_scale)
    held_out_scale = held_out_scale.clamp(-step.limit, step.limit)
    return CrossFitted(step, (z - held_out_shift) * torch.exp(-held_out_scale), -held_out_scale.sum(-1))
