"""Augmentation: several random views of each row, whose losses are averaged before the row is bounded.

A row is still one row: the mean of its views' gradients is bounded once, so more views cost no ε. The transform is
given one row at a time, with random numbers that follow from seed, step, row and view: micro-batches, processes and
resumed runs have the same views, and no row changes those of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from veil.errors import require
from veil.foundation.nested import Nested, joined, mapped, tensors
from veil.foundation.row_draws import drawn_by_row, fingerprints
from veil.plans import LossFunction


@dataclass(frozen=True)
class Augmented:
    """A loss over random views of the rows.

    Args:
        loss: Any loss that `fit` takes.
        transform: Makes a view of a batch of one row; the first dimension stays. It may draw random numbers of torch,
            numpy (`np.random`) and Python (`random`): these start again for each row and view. One with a generator
            of its own is rejected.
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
        inputs, targets = batch
        losses = loss(model, (self._seen(inputs), mapped(targets, lambda part: part.repeat_interleave(self.views, 0))))
        return losses.view(-1, self.views).mean(1)

    def _seen(self, inputs: Nested) -> Nested:
        """All views of all rows, those of a row side by side."""
        device, seen = next(tensors(inputs)).device, []
        with drawn_by_row(device) as begin:
            for row, known in enumerate(fingerprints(inputs)):
                for view in range(self.views):
                    begin(known, view)
                    # A copy: a transform that works in place would write into the rows themselves.
                    seen.append(self.transform(mapped(inputs, partial(_copied, row=row))))
        views = joined(seen)
        count = len(next(tensors(views)))
        require(count == len(seen), f"the transform makes {count} rows of {len(seen)}: it must keep their number")
        return views


def _copied(part: Tensor, row: int) -> Tensor:
    return part[row : row + 1].clone()
