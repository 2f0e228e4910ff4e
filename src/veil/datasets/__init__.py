"""Data sets: loaders that check what they read, and generated data. UCI Adult ships with the package.

>>> load("adult").train.public.group_sizes
(10771, 21790)
"""

from veil.datasets.adult import load_adult, load_adult_split
from veil.datasets.cifar10 import load_cifar10
from veil.datasets.cifar100 import load_cifar100
from veil.datasets.ctg import load_ctg
from veil.datasets.dutch import load_dutch
from veil.datasets.generated import GroupSpec, generate
from veil.datasets.mnist import load_mnist, load_unbalanced_mnist
from veil.datasets.registry import DATASETS, Dataset, dataset, load
from veil.datasets.split import Split
from veil.datasets.surnames import load_surnames

__all__ = [
    "DATASETS",
    "Dataset",
    "GroupSpec",
    "Split",
    "dataset",
    "generate",
    "load",
    "load_adult",
    "load_adult_split",
    "load_cifar10",
    "load_cifar100",
    "load_ctg",
    "load_dutch",
    "load_mnist",
    "load_surnames",
    "load_unbalanced_mnist",
]
