"""Built-in models for tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from veil.errors import InputError
from veil.problem import PublicFacts
from veil.randomness import Seed


def logistic(facts: PublicFacts) -> nn.Module:
    """Logistic (or linear) regression, starting at zero."""
    layer = nn.Linear(int(np.prod(facts.input_shape)), facts.outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(facts: PublicFacts, width: int = 64, depth: int = 2) -> nn.Module:
    """Fully connected layers with tanh, whose bounded output suits clipped gradients."""
    sizes = [int(np.prod(facts.input_shape)), *([width] * depth)]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], facts.outputs))


MODELS: Mapping[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp}


def build_model(name: str, facts: PublicFacts, seed: Seed, **options: Any) -> nn.Module:
    """A built-in model with starting weights that follow from the seed alone."""
    if name not in MODELS:
        raise InputError(f'unknown model "{name}": known are {", ".join(MODELS)}')
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed.generator("model", 0).integers(2**62)))
        try:
            return MODELS[name](facts, **options)
        except TypeError as error:
            raise InputError(f'model "{name}": {error}') from error
