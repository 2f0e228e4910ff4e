"""Tail activity: how much INO-SGD's order still changes, measured on rows that were declared public.

Rows in the tail weigh less. If the model has learnt them so well that their gradients have vanished, there is nothing
to take away, and INO-SGD is IDP-SGD. The figures are exact: use public rows, or treat them as private.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from veil.bounding import Clip, Ordered
from veil.bounding.ordered import importance
from veil.errors import InputError, require
from veil.gradients import GradientEngine
from veil.gradients.records import LossFn
from veil.plans import Plan
from veil.plans.controllers import first_release
from veil.problem import Problem

_IDLE = 0.9


@dataclass(frozen=True)
class TailActivity:
    """What the tail does to a batch that is drawn from public rows at the plan's rates, on average.

    `removed` is the share of the clipped gradients' total length that the tail takes away, `removed_by_owner` the same
    within each owner; `clipped` is the share of drawn rows whose gradient is longer than its threshold; `idle` is the
    share of the tail that is not filled by gradients, because they are shorter than their thresholds.
    """

    removed: float
    removed_by_owner: Mapping[str, float]
    clipped: float
    idle: float

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


def tail_activity(model: nn.Module, public: Problem, loss: LossFn, plan: Plan) -> TailActivity:
    """Measure the tail of a plan of `ino-sgd` (bound `clip`, order `loss`) on public rows, at the model as it is.

    A public row stands for its owner's rows: it takes q·C of the line, and the line is as long as the plan expects.
    Owners are matched by name; rows of owners that the plan does not have are rejected.
    """
    release = first_release(plan.controller)
    ordered = release.bound
    if not (isinstance(ordered, Ordered) and isinstance(ordered.inner, Clip) and ordered.order == "loss"):
        raise InputError("tail activity needs a plan of ino-sgd with a tail, bound clip and order loss")
    names = public.public.owners
    rate_of, clip_of = plan.details["owner_rates"], plan.details["owner_clips"]
    unknown = [name for name in names if name not in rate_of]
    require(not unknown, f"the plan has no owner {', '.join(unknown)}: use public rows of the plan's owners")
    rows = np.flatnonzero(public.present)
    owner = public.owner_of[rows]
    rates, clips = (np.array([by_name[name] for name in names])[owner] for by_name in (rate_of, clip_of))
    per_row = GradientEngine(model, loss).norms_and_losses(public.batch(rows))
    norms, losses = (values.detach().double().numpy() for values in (per_row.norms, per_row.losses))
    line = sum(
        cell.rows * rate_of[plan.facts.owners[cell.owner]] * clip_of[plan.facts.owners[cell.owner]]
        for cell in plan.facts.cells
    )
    stretch = rates * clips * (line / float(rates @ clips))
    kept = importance(stretch, np.argsort(-losses, kind="stable"), ordered.tail)
    length = rates * np.minimum(norms, clips)
    lost = length * (1.0 - kept)
    tail_room = float((rates * clips) @ (1.0 - kept))
    by_owner = {
        name: _share(float(lost[owner == index].sum()), float(length[owner == index].sum()))
        for index, name in enumerate(names)
    }
    return TailActivity(
        removed=_share(float(lost.sum()), float(length.sum())),
        removed_by_owner=by_owner,
        clipped=_share(float(rates @ (norms > clips)), float(rates.sum())),
        idle=1.0 - _share(float(lost.sum()), tail_room),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
