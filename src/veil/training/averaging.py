"""Averaging: an exponential moving average of the weights; it is post-processing and costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Follows a model's weights; with `decay` 0 there is no average, and the model keeps its own weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay, self._count = model, decay, 0
        self._weights = weights_of(model) if decay > 0 else {}

    def update(self) -> None:
        """Move towards the model's weights by one step."""
        if not self._weights:
            return
        self._count += 1
        # Early on the average follows the weights closely, so that it does not remember the random start.
        decay = min(self._decay, (1 + self._count) / (10 + self._count))
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                self._weights[name].lerp_(parameter, 1.0 - decay)

    def state(self) -> tuple[int, dict[str, Tensor]]:
        """What a checkpoint keeps and a rejected step puts back."""
        return self._count, {name: value.clone() for name, value in self._weights.items()}

    def restore(self, state: tuple[int, Mapping[str, Tensor]]) -> None:
        """Back to an earlier state."""
        self._count, self._weights = state[0], {name: value.clone() for name, value in state[1].items()}

    def install(self) -> None:
        """Give the model the averaged weights, for good."""
        if self._weights:
            write_weights(self._model, self._weights)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The model with the averaged weights; its own come back afterwards."""
        own = weights_of(self._model) if self._weights else {}
        self.install()
        try:
            yield
        finally:
            if own:
                write_weights(self._model, own)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter by its name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def write_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write values into the model's parameters; `weights` has one for each."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
