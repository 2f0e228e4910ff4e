"""Heads: a model that answers several questions of each row is measured on each of them as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from veil.errors import InputError
from veil.metrics.groups import GroupMetrics, evaluate
from veil.models.calling import call
from veil.problem import Problem


class OneHead(nn.Module):
    """A model of which one head is asked."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *places: Any, **named: Any) -> Tensor:
        """The scores of the head."""
        inputs = named or (places if len(places) > 1 else places[0])
        return scores_of(call(self.model, inputs), self.name)


def scores_of(outputs: Any, name: str) -> Tensor:
    """The scores of a head in what the model gives."""
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if not isinstance(found, Tensor):
        raise InputError(f'the model gives no scores for the head "{name}": return a dict with one tensor per head')
    return found


def answers(classes: Sequence[Any] | None, column: Tensor) -> Tensor:
    """The targets of a head; synthetic ones are any numbers, so they are brought among the classes."""
    return column if classes is None else column.long().clamp(0, len(classes) - 1)


def apart(model: nn.Module, problem: Problem) -> dict[str, tuple[nn.Module, Problem]]:
    """Each head as a model of its own, with the rows that have its targets alone."""
    found: dict[str, tuple[nn.Module, Problem]] = {}
    for place, (name, classes) in enumerate(problem.public.heads):
        task = "regression" if classes is None else "classification"
        public = replace(problem.public, task=task, classes=classes or (), classes_declared=True, heads=())  # type: ignore[arg-type]
        own = replace(problem, targets=answers(classes, problem.targets[:, place]), public=public)
        found[name] = (OneHead(model, name), own)
    return found


def head_metrics(model: nn.Module, problem: Problem, groups: Sequence[str], least: int) -> GroupMetrics:
    """The figures of the first head, with those of all heads beside them."""
    found = {name: evaluate(head, rows, groups, least) for name, (head, rows) in apart(model, problem).items()}
    return replace(next(iter(found.values())), heads=found)
