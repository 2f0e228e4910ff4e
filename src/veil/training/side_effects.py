"""Side effects: whatever forward passes over private rows write into a model is undone, as no noise covers it.

Buffers and attributes are put back; a pass that changes a weight is rejected. What passes change by themselves (a power
iteration) is updated by passes over synthetic rows, so it depends on no row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from veil.gradients import GradientError
from veil.gradients.model_state import ModelState, same_bits
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.trials import carried


class SideEffects:
    """What the passes of one run write into its model; a run that is not `private` keeps it."""

    def __init__(self, model: nn.Module, problem: Problem, loss: LossFunction, *, private: bool) -> None:
        self._model, self._loss = model, loss
        self._held = ModelState(model) if private else None
        self._weights: dict[str, _Noted] = {}
        self._copies: list[Tensor] = []
        self._seen: list[Tensor] = []
        self._carried = carried(model, problem, loss) if private else None
        self._parameters = dict(model.named_parameters())

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo whatever forward passes write into the model besides its weights; reject those that write there."""
        self.note()
        try:
            yield
        finally:
            self.undo()
            written = [*self.undo_weights(), *self._thaw()]
        refuse_written(written)

    def note(self) -> None:
        """Remember what the model holds."""
        if self._held is not None:
            held = self._held.renew()
            if held is not self._held:  # another model, maybe with other weights
                self._held, self._parameters = held, self._parameters | dict(self._model.named_parameters())
            trained = {name: p for name, p in self._parameters.items() if p.requires_grad}
            if self._weights.keys() == trained.keys() and all(noted.fits() for noted in self._weights.values()):
                torch._foreach_copy_(self._copies, self._seen)
            else:
                self._weights = {name: _Noted(parameter) for name, parameter in trained.items()}
                self._copies = [noted.copy for noted in self._weights.values()]
                self._seen = [noted.seen for noted in self._weights.values()]

    def undo(self, numbers: bool = True) -> None:
        """Put back what was noted; without `numbers`, attributes that were set to plain numbers stay."""
        if self._held is not None:
            self._held.put_back(numbers=numbers)

    def undo_weights(self) -> list[str]:
        """Put back the weights that passes changed since they were noted; returns their names."""
        if self._held is None:
            return []
        written = [name for name, noted in self._weights.items() if noted.changed()]
        for name in written:
            self._weights[name].put_back()
        return written

    def _thaw(self) -> list[str]:
        """Train again the weights that passes froze: without noise, they would tell of a row. Returns their names."""
        frozen = [name for name, noted in self._weights.items() if not noted.parameter.requires_grad]
        for name in frozen:
            self._weights[name].parameter.requires_grad_(True)
        return frozen

    def undone_before(self, loss: LossFunction) -> LossFunction:
        """A loss whose every call begins with what was noted: no micro-batch sees what another one wrote."""

        def afresh(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            self.undo()
            return loss(model, batch)

        return afresh

    def carry_on(self) -> None:
        """Let one pass over synthetic rows change what passes change by themselves: it then depends on no row."""
        if self._carried is not None and self._held is not None:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)  # processes draw apart, and must write the same
                self._loss(self._model, self._carried)
            self._carried = self._carried if self._held.changed() else None


def refuse_written(weights: Sequence[str]) -> None:
    """Reject results of passes that changed weights: they would leak rows without noise."""
    if weights:
        raise GradientError(
            f"the forward pass changes the parameter {weights[0]}, so it would hold private rows without noise: use a "
            "modified copy in forward"
        )


class _Noted:
    """A copy of one weight, which every step makes and compares: by bytes where the weight lies in one piece.

    Gradients push everything else out of the caches, and what compares bytes is far less code than what compares
    numbers. The bytes are read at the address the weight was found at, and only while it lies there: torch moves the
    memory of a storage (`share_memory`, a queue between processes, `resize_`) and keeps the storage.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter, self.seen = parameter, parameter.detach()
        self._bytes: tuple[bytearray, ctypes.Array[ctypes.c_char]] | None = None
        size = self.seen.numel() * self.seen.element_size()
        if type(self.seen) is Tensor and self.seen.is_cpu and self.seen.is_contiguous() and size > 0:
            own = bytearray(size)
            self.copy = torch.frombuffer(own, dtype=self.seen.dtype).view(self.seen.shape)
            self.copy.copy_(self.seen)
            self._storage = self.seen.untyped_storage()
            self._place = self.seen.data_ptr(), self._storage.nbytes()
            # Not by numpy: what numpy has looked at cannot be resized any more.
            self._bytes = own, (ctypes.c_char * size).from_address(self._place[0])
        else:
            self.copy = self.seen.clone()

    def fits(self) -> bool:
        """Whether the weight lies in memory where it lay, and in the same way."""
        if not self.parameter.is_set_to(self.seen):
            return False
        return self._bytes is None or (self.seen.data_ptr(), self._storage.nbytes()) == self._place

    def changed(self) -> bool:
        """Whether the weight holds other bits: the sign of a zero could tell of a row too."""
        if self._bytes is not None and self.fits():
            own, there = self._bytes
            return own != memoryview(there)
        return not same_bits(self.parameter.detach(), self.copy)

    def put_back(self) -> None:
        """Write the copy into the weight."""
        with torch.no_grad():
            self.parameter.copy_(self.copy)
