"""Several heads: one model that answers several questions of each row, a class beside a number.

The model gives a dict with the scores of each head. A row's loss is the sum over heads, bounded once, so a head more
costs no ε. The targets are columns of one table; each head is measured by itself, by group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from veil.errors import InputError, require
from veil.metrics import GroupMetrics, evaluate
from veil.metrics.heads import answers, scores_of
from veil.models.calling import call
from veil.problem import Problem


@dataclass(frozen=True)
class Head:
    """One question.

    Args:
        classes: The possible answers in the order of the scores; None for a number.
        weight: What its loss counts in the sum, above 0.

    >>> Head(("no", "yes")).classes, Head(weight=0.5).classes
    (('no', 'yes'), None)
    """

    classes: tuple[Any, ...] | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        require(self.weight > 0, f"weight is {self.weight}: it must be above 0")
        require(self.classes is None or len(self.classes) >= 2, "a head has at least two classes; None for a number")


@dataclass(frozen=True)
class Heads:
    """The heads of a model, by the names under which it gives their scores. It is the loss to give to `fit`.

    Args:
        heads: Each head by its name.

    >>> import veil
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.ill, self.age = nn.Linear(4, 2), nn.Linear(4, 1)
    ...     def forward(self, x):
    ...         return {"ill": self.ill(x), "age": self.age(x)}
    >>> heads = Heads({"ill": Head(("no", "yes")), "age": Head()})
    >>> rows = heads.problem(torch.rand(80, 4), {"ill": ["no", "yes"] * 40, "age": torch.rand(80)}, ["a", "b"] * 40)
    >>> run = veil.fit(Net(), rows, loss=heads, method="asc", epsilon=1.0, steps=2, batch_size=20, seed=1)
    >>> list(heads.evaluate(run.model, rows))
    ['ill', 'age']
    """

    heads: Mapping[str, Head]

    def __post_init__(self) -> None:
        require(len(self.heads) > 1, "name at least two heads; with one use Problem.from_arrays and any loss")

    def problem(
        self, inputs: Any, targets: Mapping[str, ArrayLike | Tensor], groups: Any = None, **facts: Any
    ) -> Problem:
        """Rows with a target for each head.

        Args:
            inputs: As for `Problem.from_arrays`.
            targets: By head, one class or number for each row.
            groups: As for `Problem.from_arrays`.
            facts: Other arguments of `Problem.from_arrays`.

        Returns:
            A problem whose targets are one column per head, in the order of the heads.

        Raises:
            InputError: A head has no targets, a name is no head, or a target is none of the classes.
        """
        strange = [name for name in (*targets, *self.heads) if name not in self.heads or name not in targets]
        require(not strange, f'"{next(iter(strange), "")}" must be among heads and targets: it is in one of them alone')
        columns = [_column(name, head, targets[name]) for name, head in self.heads.items()]
        lengths = {len(column) for column in columns}
        require(len(lengths) == 1, f"the targets have {' and '.join(map(str, sorted(lengths)))} rows: they must match")
        problem = Problem.from_arrays(inputs, np.stack(columns, 1), groups, task="regression", **facts)
        return replace(problem, public=replace(problem.public, heads=self._questions()))

    def _questions(self) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
        """Names and classes, as the rows carry them."""
        named = {name: head.classes for name, head in self.heads.items()}
        return tuple((name, None if own is None else tuple(map(str, own))) for name, own in named.items())

    def __call__(self, model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
        """The weighted sum of each row's losses."""
        outputs, targets = call(model, batch[0]), batch[1]
        losses = [
            head.weight * _losses(head, scores_of(outputs, name), targets[:, place])
            for place, (name, head) in enumerate(self.heads.items())
        ]
        return torch.stack(losses).sum(0)

    def evaluate(self, model: nn.Module, problem: Problem, groups: Sequence[str] = ()) -> dict[str, GroupMetrics]:
        """Figures of each head by group, on rows that were declared public; `fit` with evaluation gives the same.

        Args:
            model: The trained model.
            problem: Public rows that `problem` made.
            groups: Names of groups that must appear.

        Returns:
            By head, accuracies for classes and errors for numbers.
        """
        return dict(evaluate(model, problem, groups).heads)


def _losses(head: Head, scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy for classes, squared error for numbers, of each row."""
    if head.classes is None:
        return (scores.squeeze(-1) - targets) ** 2
    return nn.functional.cross_entropy(scores, answers(head.classes, targets), reduction="none")


def _column(name: str, head: Head, given: ArrayLike | Tensor) -> NDArray[np.float64]:
    """The targets of a head as numbers."""
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    require(values.ndim == 1, f'the targets of "{name}" have {values.ndim} dimensions: give one for each row')
    if head.classes is None:
        require(values.dtype.kind in "biuf", f'the targets of "{name}" are not numbers: give its classes')
        return values.astype(np.float64)
    position = {value: index for index, value in enumerate(head.classes)}
    try:
        return np.array([position[value] for value in values.tolist()], dtype=np.float64)
    except KeyError:  # which would repeat the value
        raise InputError(f'a target of "{name}" is not one of its {len(position)} classes') from None
