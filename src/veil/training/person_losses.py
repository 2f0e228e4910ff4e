"""The loss of a person: the mean over the person's rows, so that the person is bounded as one row is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from veil.foundation.nested import mapped
from veil.plans import LossFunction
from veil.problem import Problem


@dataclass(frozen=True)
class PersonLoss:
    """A loss of rows as one of people, whose inputs are rows side by side with the share of each."""

    loss: LossFunction

    def __call__(self, model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
        """Each person's mean loss; a place without a share counts nothing."""
        (inputs, shares), targets = batch
        losses = self.loss(model, mapped((inputs, targets), lambda part: part.flatten(0, 1)))
        found: Tensor = (losses.view(shares.shape) * shares).sum(1)
        return found


def by_person(problem: Problem, loss: LossFunction) -> tuple[Problem, LossFunction]:
    """Rows and loss of people, where somebody has several rows; else both as they are."""
    return (problem, loss) if problem.several is None else (problem.together(), PersonLoss(loss))


def transformed(loss: LossFunction, transform: Callable[[LossFunction], LossFunction] | None) -> LossFunction:
    """A loss with a transform of what it does to each row."""
    if transform is None:
        return loss
    return replace(loss, loss=transform(loss.loss)) if isinstance(loss, PersonLoss) else transform(loss)
