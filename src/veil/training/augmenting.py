"""Augmentation: several random views of each row, whose losses are averaged before the row is bounded.

A row is still one row: the mean of its views' gradients is bounded once, so more views cost no ε. Random numbers come
from torch's generator, which every step begins anew as a function of seed and step: a resumed run has the same views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from veil.errors import require
from veil.foundation.nested import Nested, mapped
from veil.plans import LossFunction


@dataclass(frozen=True)
class Augmented:
    """A loss over random views of the rows.

    Args:
        loss: Any loss that `fit` takes.
        transform: Makes views of a batch of inputs; the first dimension stays, and each row must be changed by itself,
            with random numbers of torch alone.
        views: How many views of each row are taken in a step.

    >>> import torch, veil
    >>> problem = veil.Problem.from_arrays(torch.rand(40, 1, 4, 4), [0, 1] * 20)
    >>> def shaken(images):
    ...     return images + 0.1 * torch.randn_like(images)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> loss = Augmented(nn.functional.cross_entropy, shaken, views=4)
    >>> round(veil.fit(model, problem, loss=loss, steps=2, batch_size=10, seed=1).certificate.epsilon, 2)
    1.0
    """

    loss: Any
    transform: Callable[[Nested], Nested]
    views: int = 1

    def __post_init__(self) -> None:
        require(self.views >= 1, f"views is {self.views}: take at least one view of each row")

    def __call__(self, model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
        """The mean loss of each row's views."""
        loss: LossFunction = self.loss
        rows = len(batch[1])
        inputs, targets = mapped(batch, lambda part: part.repeat_interleave(self.views, 0)) if self.views > 1 else batch
        losses = loss(model, (self.transform(inputs), targets))
        return losses.view(rows, self.views).mean(1)
