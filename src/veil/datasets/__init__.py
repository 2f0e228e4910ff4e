"""Data sets: loaders that check what they read, and generated data. UCI Adult ships with the package."""

from veil.datasets.adult import load_adult
from veil.datasets.generated import GroupSpec, generate

__all__ = ["GroupSpec", "generate", "load_adult"]
