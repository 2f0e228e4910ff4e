"""Samplers: which rows take part in a step, as a pure function of (seed, step) and public constants."""

from veil.sampling.ahead import RowsAhead
from veil.sampling.one_group import OneGroupSampler
from veil.sampling.poisson import PoissonSampler
from veil.sampling.sampler import Sampler
from veil.sampling.shuffled import ShuffledSampler
from veil.sampling.subset import SubsetSampler

__all__ = ["OneGroupSampler", "PoissonSampler", "RowsAhead", "Sampler", "ShuffledSampler", "SubsetSampler"]
