"""Side effects: whatever forward passes over private rows write into a model is undone, as no noise covers it.

Buffers and attributes are put back; a pass that changes a weight is rejected. What passes change by themselves (a power
iteration) is updated by passes over synthetic rows, so it depends on no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from veil.gradients import GradientError
from veil.gradients.model_state import ModelState
from veil.plans import LossFunction
from veil.problem import Problem
from veil.training.trials import carried


class SideEffects:
    """What the passes of one run write into its model; a run that is not `private` keeps it."""

    def __init__(self, model: nn.Module, problem: Problem, loss: LossFunction, *, private: bool) -> None:
        self._model, self._loss = model, loss
        self._held = ModelState(model) if private else None
        self._weights: dict[str, Tensor] = {}
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
            written = self.undo_weights()
        refuse_written(written)

    def note(self) -> None:
        """Remember what the model holds."""
        if self._held is not None:
            self._held = self._held.renew()
            trained = dict(self._trained())
            if _alike(self._weights, trained):
                with torch.no_grad():
                    torch._foreach_copy_(list(self._weights.values()), list(trained.values()))
            else:
                self._weights = {name: parameter.detach().clone() for name, parameter in trained.items()}

    def undo(self, numbers: bool = True) -> None:
        """Put back what was noted; without `numbers`, attributes that were set to plain numbers stay."""
        if self._held is not None:
            self._held.put_back(numbers=numbers)

    def undo_weights(self) -> list[str]:
        """Put back the weights that passes changed since they were noted; returns their names."""
        written = [] if self._held is None else [n for n, p in self._trained() if not _same(p, self._weights.get(n))]
        with torch.no_grad():
            for name in written:
                self._parameters[name].copy_(self._weights[name])
        return written

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

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, parameter) for name, parameter in self._parameters.items() if parameter.requires_grad]


def refuse_written(weights: Sequence[str]) -> None:
    """Reject results of passes that changed weights: they would leak rows without noise."""
    if weights:
        raise GradientError(
            f"the forward pass changes the parameter {weights[0]}, so it would hold private rows without noise: use a "
            "modified copy in forward"
        )


def _alike(noted: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> bool:
    """Whether tensors that were noted have room for those of now: the same names, shapes, kinds and devices."""
    return noted.keys() == now.keys() and all(
        noted[name].shape == value.shape and noted[name].dtype == value.dtype and noted[name].device == value.device
        for name, value in now.items()
    )


def _same(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors hold the same values; NaN is the same as NaN."""
    if other is None or torch.equal(one, other):
        return True
    return bool(torch.isclose(one, other, 0.0, 0.0, equal_nan=True).all())
