"""Tail activity: how much INO-SGD's order still changes, measured on rows that were declared public.

Rows in the tail weigh less. If the model has learnt them so well that their gradients have vanished, there is nothing
to take away, and INO-SGD is IDP-SGD. The figures are exact: use public rows, or treat them as private.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.bounding import Ordered
from veil.bounding.ordered import importance
from veil.errors import InputError, require
from veil.gradients import GradientEngine
from veil.gradients.records import LossFn
from veil.metrics.owners import OwnerPull
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.problem import Problem
from veil.releases import GradientRelease
from veil.sampling.draws import Poisson

_IDLE = 0.9


@dataclass(frozen=True)
class TailActivity:
    """What the tail does to a batch that is drawn from public rows at the plan's rates, on average.

    `removed` is the share of the clipped gradients' total length that the tail takes away, `removed_by_owner` the same
    within each owner; `clipped` is the share of drawn rows whose bounded gradient is as long as its threshold (to 1 %);
    `idle` is the share of the tail that no gradients fill, because they are shorter than their thresholds (1 without a
    tail); `pull_by_owner` is each owner's share of the length that is left when the tail has taken its part; `length`
    is the tail's, as a share of the line.
    """

    removed: float
    removed_by_owner: Mapping[str, float]
    clipped: float
    idle: float
    pull_by_owner: Mapping[str, float] = field(default_factory=dict)
    length: float = 0.0

    @property
    def sentence(self) -> str:
        """The finding in one sentence.

        >>> TailActivity(0.01, {}, 0.1, 0.97).sentence
        'INO is doing nothing here: 97 % of the tail has no gradient left.'
        """
        if self.idle >= _IDLE:
            return f"INO is doing nothing here: {100 * self.idle:.0f} % of the tail has no gradient left."
        most = max(self.removed_by_owner, key=lambda owner: self.removed_by_owner[owner], default=None)
        owner = (
            "" if most is None else f', and {100 * self.removed_by_owner[most]:.0f} % of "{most}", the most affected'
        )
        return f"INO removes {100 * self.removed:.0f} % of the clipped gradients{owner}."


def tail_activity(
    model: nn.Module, public: Problem, loss: LossFn, plan: Plan, release: GradientRelease | None = None
) -> TailActivity:
    """Measure on public rows what the bound and the tail of `idp-sgd` or `ino-sgd` do, at the model as it is.

    The public rows of an owner stand for all of its rows, in equal parts: each takes its part of the owner's q·C·rows
    of the line, however many public rows an owner has. The line is as long as the plan expects. Owners are matched by
    name.

    Args:
        model: The model whose gradients are taken.
        public: Rows that were declared public, with owners that the plan has too.
        loss: The loss of each row, as in training.
        plan: A plan with rates by owner.
        release: The release of the present step where the bound moves; the plan's first one otherwise.

    Raises:
        InputError: The plan has no rates by owner, or the rows have an owner that the plan does not have.
    """
    release = first_release(plan.controller) if release is None else release
    by_cell, limits = np.asarray(_rates(release, plan)), np.asarray(release.bound.limits, dtype=np.float64)
    rows = np.flatnonzero(public.present)
    cells, owner = _cells_of(public, plan)[rows], public.owner_of[rows]
    drawn = by_cell[cells] * _stands_for(public, plan, owner)
    per_row = GradientEngine(model, loss).norms_and_losses(public.batch(rows))
    norms, losses = (values.detach().cpu().double().numpy() for values in (per_row.norms, per_row.losses))
    bound = release.bound
    inner = bound.inner if isinstance(bound, Ordered) else bound
    weights = inner.weights(per_row, torch.from_numpy(cells)).detach().cpu().double().numpy()
    filled = np.minimum(norms * weights, limits[cells])
    stretch = drawn * limits[cells]
    kept, length_of_tail = np.ones(len(rows)), 0.0
    if isinstance(bound, Ordered):
        expected = float(np.array([cell.rows for cell in plan.facts.cells]) @ (by_cell * limits))
        scale, length_of_tail = expected / float(stretch.sum()), bound.tail.length / expected
        kept = importance(stretch * scale, bound.line(losses, norms, cells), bound.tail)
    length = drawn * filled
    lost, room = length * (1.0 - kept), float(stretch @ (1.0 - kept))
    of_owner = {name: owner == index for index, name in enumerate(public.public.owners)}
    left = length - lost
    return TailActivity(
        removed=_share(float(lost.sum()), float(length.sum())),
        removed_by_owner={
            name: _share(float(lost[own].sum()), float(length[own].sum())) for name, own in of_owner.items()
        },
        pull_by_owner={name: _share(float(left[own].sum()), float(left.sum())) for name, own in of_owner.items()},
        clipped=_share(float(drawn @ (filled >= 0.99 * limits[cells])), float(drawn.sum())),
        idle=1.0 - _share(float(lost.sum()), room),
        length=length_of_tail,
    )


def owner_pulls(plan: Plan, release: GradientRelease | None = None) -> dict[str, OwnerPull]:
    """Rate, rows and threshold of every owner of a plan with rates by owner: what Cond. (2) weighs."""
    release = first_release(plan.controller) if release is None else release
    found: dict[str, OwnerPull] = {}
    for cell, rate, limit in zip(plan.facts.cells, _rates(release, plan), release.bound.limits, strict=True):
        name = plan.facts.owners[cell.owner]
        found[name] = OwnerPull(rate, cell.rows + (found[name].rows if name in found else 0), limit)
    return found


def _rates(release: GradientRelease, plan: Plan) -> tuple[float, ...]:
    if not isinstance(release.draw, Poisson):
        raise InputError(f"{plan.method} has no rates by owner: use idp-sgd or ino-sgd")
    return release.draw.rates


def _cells_of(public: Problem, plan: Plan) -> NDArray[np.int64]:
    """For every public row a cell of the plan that has its owner: rate and threshold are those of the owner."""
    cell_of = {plan.facts.owners[cell.owner]: index for index, cell in reversed(list(enumerate(plan.facts.cells)))}
    unknown = [name for name in public.public.owners if name not in cell_of]
    require(not unknown, f"the plan has no owner {', '.join(unknown)}: use public rows of the plan's owners")
    return np.array([cell_of[name] for name in public.public.owners], dtype=np.int64)[public.owner_of]


def _stands_for(public: Problem, plan: Plan, owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many rows of the plan each public row stands for: owners need not have their shares of the public rows."""
    sizes = dict(zip(plan.facts.owners, plan.facts.owner_sizes, strict=True))
    counts = np.bincount(owner, minlength=len(public.public.owners))
    planned = np.array([sizes[name] for name in public.public.owners], dtype=np.float64)
    return np.asarray((planned / np.maximum(counts, 1))[owner])


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
