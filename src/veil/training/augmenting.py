"""Augmentation: several random views of each row, whose losses are averaged before the row is bounded.

A row is still one row: the mean of its views' gradients is bounded once, so more views cost no ε. The transform is
given one row at a time, with random numbers that follow from seed, step, row and view: micro-batches, processes and
resumed runs have the same views, and no row changes those of another. Of rows that Veil pads it is given the row
without its padding, so it cannot see how long the other rows of a batch are, however rarely it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from veil.errors import require
from veil.foundation.nested import Nested, joined, mapped, row_of, tensors
from veil.foundation.row_draws import drawn_by_row, fingerprints
from veil.plans import LossFunction
from veil.problem.rows import Collate

# How the rows under way are padded: a loss of the user's may call `Augmented` inside, which is told nothing.
_PADDING: ContextVar[Collate | None] = ContextVar("veil_padding", default=None)


def begin_padding(padding: Collate | None) -> Callable[[], None]:
    """Let transforms inside losses of the user's see rows without this padding, until what is returned is called."""
    before = _PADDING.get()
    _PADDING.set(padding)

    def end() -> None:
        if _PADDING.get() is padding:  # and no other session is in between
            _PADDING.set(before)

    return end


class PaddedBy:
    """The same for a block; a class, as every step enters it twice."""

    def __init__(self, padding: Collate | None) -> None:
        self._padding = padding

    def __enter__(self) -> None:
        self._token = _PADDING.set(self._padding)

    def __exit__(self, *_: object) -> None:
        _PADDING.reset(self._token)


@dataclass(frozen=True)
class Augmented:
    """A loss over random views of the rows.

    Args:
        loss: Any loss that `fit` takes.
        transform: Makes a view of a batch of one row; the first dimension stays. It may draw random numbers of torch,
            numpy (`np.random`) and Python (`random`): these start again for each row and view. One with a generator
            of its own is rejected. Of sequences that Veil pads (`pad=True`, ragged lists) it is given a row at the
            row's own length, and its views are padded again afterwards; it may change the length, with the mask. Rows
            that a `collate` of yours pads are given as they come: the certificate says that it is not covered.
        views: How many views of each row are taken in a step.
        padding: How the rows of a problem are padded; `fit` and `session` set it.

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
    padding: Collate | None = field(default=None, kw_only=True, repr=False, compare=False)

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
        device, seen, known = next(tensors(inputs)).device, [], fingerprints(inputs)
        if not known:
            return inputs
        padding = self.padding or _PADDING.get()
        require(
            padding is None or padding.fits(inputs),
            "a transform inside a loss of your own gets only a part of the inputs, so it would see how far the batch "
            "is padded: give it all of them, or loss=Augmented(…)",
        )
        rows = [row_of(inputs, row) for row in range(len(known))] if padding is None else padding.alone(inputs)
        with drawn_by_row(device) as begin:
            for row, number in zip(rows, known, strict=True):
                for view in range(self.views):
                    begin(number, view)
                    # A copy: a transform that works in place would write into the rows themselves.
                    seen.append(self.transform(mapped(row, Tensor.clone)))
        views = joined(seen) if padding is None else padding.together(seen, inputs)
        count = len(next(tensors(views)))
        require(count == len(seen), f"the transform makes {count} rows of {len(seen)}: it must keep their number")
        return views
