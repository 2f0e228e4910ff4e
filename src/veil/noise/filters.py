"""Noise filters: DiSK smooths noisy gradients by a simplified Kalman filter (Zhang et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


@dataclass
class DiskFilter:
    """m ← κ·m + (1−κ)·g̃, where g̃ is the noisy gradient at the look-ahead point x + γ·(x − x₋₁).

    With γ = κ/(1−κ), the default, the look-ahead makes up for the delay that the average brings: to first order the
    mean of m is the gradient at x, while its noise is smaller by √((1−κ)/(1+κ)). Both g̃ and the weights are released
    already, so the filter is post-processing and costs nothing. It never touches the noise's scale.

    Args:
        memory: κ, at least 0 and below 1.
        lookahead: γ. By default κ/(1−κ).

    >>> disk = DiskFilter(memory=0.5)
    >>> [disk.smooth({"w": torch.tensor([value])})["w"].item() for value in (4.0, 0.0, 0.0)]
    [4.0, 2.0, 1.0]
    """

    memory: float
    lookahead: float | None = None
    _mean: Weights = field(default_factory=dict, repr=False)
    _before: Weights = field(default_factory=dict, repr=False)

    @contextmanager
    def ahead(self, model: nn.Module) -> Iterator[None]:
        """The model at the look-ahead point; its own weights come back afterwards, bit for bit.

        Args:
            model: The model; its weights are moved inside the `with` block only.

        Yields:
            Nothing.
        """
        reach = self.memory / (1.0 - self.memory) if self.lookahead is None else self.lookahead
        own = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in self._before:
                    parameter.add_(parameter - self._before[name], alpha=reach)
        try:
            yield
        finally:
            put_weights(model, own)
            self._before = own

    def smooth(self, gradient: Mapping[str, Tensor]) -> Weights:
        """The average of noisy gradients; the first one starts it.

        Args:
            gradient: Noisy gradients by parameter.

        Returns:
            The averages by parameter.
        """
        for name, value in gradient.items():
            mean = self._mean.get(name)
            self._mean[name] = value.clone() if mean is None else mean * self.memory + value * (1.0 - self.memory)
        return {name: self._mean[name] for name in gradient}

    def state(self) -> tuple[Weights, Weights]:
        """A snapshot for undoing a rejected step.

        Returns:
            A snapshot for `restore`.
        """
        return dict(self._mean), dict(self._before)

    def restore(self, state: tuple[Weights, Weights]) -> None:
        """Restore an earlier state.

        Args:
            state: What `state` returned.
        """
        self._mean, self._before = dict(state[0]), dict(state[1])


def put_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write values into the parameters that have one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
