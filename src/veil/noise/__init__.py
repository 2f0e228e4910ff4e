"""Noise: Gaussian (fast or float-safe), Laplace, Gumbel, and binary-tree noise for prefix sums."""

from veil.noise.gaussian import GaussianNoise
from veil.noise.gumbel import GumbelNoise
from veil.noise.laplace import LaplaceNoise
from veil.noise.tree import TreeNoise

__all__ = ["GaussianNoise", "GumbelNoise", "LaplaceNoise", "TreeNoise"]
