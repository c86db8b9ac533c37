from .linear_gaussian import LinearGaussianFlow

__all__ = ["LinearGaussianFlow"]
