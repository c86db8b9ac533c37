"""Base flows: models with a latent space, in closed form or trained."""

from .linear_gaussian import LinearGaussianFlow

__all__ = ["LinearGaussianFlow"]
