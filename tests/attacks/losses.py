"""A family of losses: a score of each row, and ways around it that move, pack, gate or rewrite rows, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Score = Callable[[Tensor, Tensor], Tensor]
Way = Callable[[Score, Tensor, Tensor], Tensor]


class Doubled(torch.autograd.Function):
    """A user's own function whose backward pass halves what its forward pass doubled."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor) -> Tensor:
        return 2.0 * losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2.0 * gradients[0]


SCORES: dict[str, Score] = {
    "cross entropy": lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
    "squares": lambda outputs, targets: (outputs - F.one_hot(targets, outputs.shape[1])).square().mean(1),
    "hinge": lambda outputs, targets: F.multi_margin_loss(outputs, targets, reduction="none"),
    "gathered": lambda outputs, targets: -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).squeeze(1),
    "every class": lambda outputs, targets: F.binary_cross_entropy_with_logits(
        outputs, F.one_hot(targets, outputs.shape[1]).float(), reduction="none"
    ).sum(1),
    "inner product": lambda outputs, targets: torch.einsum(
        "rc,rc->r", outputs, F.one_hot(targets, outputs.shape[1]).float()
    ),
    "gate at zero": lambda outputs, targets: F.relu(outputs.gather(1, targets.unsqueeze(1)).squeeze(1)),
}


def _flipped(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    return score(outputs.flip(0), targets.flip(0)).flip(0)


def _sorted(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    order = outputs.detach()[:, 0].argsort(descending=True)
    return score(outputs[order], targets[order])[order.argsort()]


def _in_pieces(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    pieces = zip(outputs.split(2), targets.split(2), strict=True)
    return torch.cat([score(some, of) for some, of in pieces])


def _one_by_one(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack([score(outputs[row : row + 1], targets[row : row + 1])[0] for row in range(len(targets))])


def _by_class(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    losses = outputs.new_zeros(len(targets))
    for label in range(outputs.shape[1]):
        chosen = (targets == label).nonzero().squeeze(1)
        losses = losses.index_add(0, chosen, score(outputs[chosen], targets[chosen]))
    return losses


def _masked(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    losses = score(outputs, targets)
    return torch.where(targets == 0, 0.5 * losses, losses)


def _in_place(score: Score, outputs: Tensor, targets: Tensor) -> Tensor:
    losses = score(outputs, targets).clone()
    losses.mul_(0.5).add_(outputs.square().mean(1))
    return losses


WAYS: dict[str, Way] = {
    "as it is": lambda score, outputs, targets: score(outputs, targets),
    "flipped and back": _flipped,
    "sorted and back": _sorted,
    "in pieces": _in_pieces,
    "one by one": _one_by_one,
    "class by class": _by_class,
    "masked": _masked,
    "changed in place": _in_place,
    "through a view": lambda score, outputs, targets: score(outputs.t().contiguous().t(), targets).view(-1, 1)[:, 0],
    "by a function of its own": lambda score, outputs, targets: Doubled.apply(score(outputs, targets)),
    "with a penalty": lambda score, outputs, targets: score(outputs, targets) + 0.1 * outputs.abs().amax(1),
}


@dataclass(frozen=True)
class Loss:
    """Losses of rows by one of the scores, in up to three of the ways."""

    score: str
    ways: tuple[str, ...] = ()

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        score = SCORES[self.score]
        for name in self.ways:
            score = _around(WAYS[name], score)
        return score(model(batch[0]), batch[1])


def _around(way: Way, score: Score) -> Score:
    return lambda outputs, targets: way(score, outputs, targets)


def made_losses() -> st.SearchStrategy[Loss]:
    """A score with none to three ways around it."""
    ways = st.lists(st.sampled_from(sorted(WAYS)), max_size=3).map(tuple)
    return st.builds(Loss, st.sampled_from(sorted(SCORES)), ways)
