"""Noise: Gaussian (fast or float-safe), Laplace, Gumbel, binary-tree noise for prefix sums; a noise filter."""

from veil.noise.ahead import NoiseAhead
from veil.noise.filters import DiskFilter
from veil.noise.gaussian import GaussianNoise
from veil.noise.gumbel import GumbelNoise
from veil.noise.laplace import LaplaceNoise
from veil.noise.tree import TreeNoise

__all__ = ["DiskFilter", "GaussianNoise", "GumbelNoise", "LaplaceNoise", "NoiseAhead", "TreeNoise"]
