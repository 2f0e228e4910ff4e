"""Advice on individual budgets: who takes part how much, and what other budgets would change, in public numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from veil.errors import Caution, InputError, require
from veil.methods.idp_sgd import OwnerShares, Variant, owner_shares
from veil.plans import Plan, Settings
from veil.problem import PublicFacts

LOWERED = 0.4  # the share of the way down to the smallest budget that was measured to help


@dataclass(frozen=True)
class OwnerPart:
    """How much one owner takes part: its budget, its rows, its pull and what share of the whole each of them is.

    `draws` are the rows of this owner that a step is expected to draw, `pull` is draws × threshold over that of all
    owners: the largest share of a step's sum that can be this owner's.
    """

    owner: str
    epsilon: float
    rows: int
    draws: float
    pull: float
    share_of_rows: float


@dataclass(frozen=True)
class BudgetPlan:
    """Owners from the smallest budget to the largest, and the noise of a step relative to the sum of all pulls."""

    owners: tuple[OwnerPart, ...]
    relative_noise: float

    @property
    def most_private(self) -> OwnerPart:
        """The owner with the smallest budget."""
        return self.owners[0]


@dataclass(frozen=True)
class BudgetAdvice:
    """The budgets as they are, with the larger ones lowered, with the smallest one for all; and what follows.

    `sentences` are for a person, one for each finding.
    """

    now: BudgetPlan
    lowered: BudgetPlan
    equal: BudgetPlan
    sentences: tuple[str, ...]


def budget_advice(
    facts: PublicFacts, settings: Settings, *, variant: Variant = "sample", clip: float = 1.0, lower: float = LOWERED
) -> BudgetAdvice:
    """What individual budgets mean for the most private owner, and what lowering the others' would change.

    Nothing is read but public facts: budgets, numbers of rows and settings.

    Args:
        facts: Owners, their numbers of rows and their budgets.
        settings: Steps, batch and accountant, as a run would have them.
        variant: How budgets are spent, as in `idp-sgd`.
        clip: The threshold C.
        lower: How far the larger budgets come down, as a share of the way to the smallest one.

    Returns:
        The plans in numbers, and sentences for a person.

    Raises:
        InputError: There are no budgets by owner, or all are the same.

    >>> from veil.problem import Problem
    >>> rows = Problem.from_arrays(
    ...     [[0.0]] * 4000, [0, 1] * 2000, owners=["a", "b"] * 2000, budgets={"a": 0.5, "b": 2.0}
    ... )
    >>> found = budget_advice(rows.public, Settings(steps=50, batch_size=100, delta=1e-4, accountant="rdp"))
    >>> found.lowered.most_private.pull > found.now.most_private.pull
    True
    """
    budgets = facts.budgets
    if budgets is None or len(set(budgets)) < 2:
        raise InputError("advice on budgets needs owners with different budgets: give --owner and --budgets")
    require(0 < lower < 1, f"lower is {lower}: it must be between 0 and 1")
    smallest = min(budgets)

    def plan_with(share: float) -> BudgetPlan:
        own = tuple(smallest if share == 1 else budget - share * (budget - smallest) for budget in budgets)
        changed = replace(facts, budgets=own)
        return _plan_of(owner_shares(variant, clip, changed, settings), changed, own)

    with warnings.catch_warnings():
        # Owners who hardly take part are what the first sentence is about.
        warnings.simplefilter("ignore", Caution)
        now, lowered, equal = (plan_with(share) for share in (0.0, lower, 1.0))
    return BudgetAdvice(now, lowered, equal, _sentences(now, lowered, equal, lower))


def advice_on(plan: Plan) -> BudgetAdvice | None:
    """The advice on a plan of `idp-sgd` or `ino-sgd` whose owners have different budgets; None for any other plan."""
    facts, details = plan.facts, plan.details
    if "owner_rates" not in details or facts.budgets is None or len(set(facts.budgets)) < 2 or "variant" not in details:
        return None
    return budget_advice(facts, plan.settings, variant=details["variant"], clip=float(plan.options.get("clip", 1.0)))


def _plan_of(shares: OwnerShares, facts: PublicFacts, budgets: Sequence[float]) -> BudgetPlan:
    draws = [rate * rows for rate, rows in zip(shares.rates, facts.owner_sizes, strict=True)]
    pulls = [drawn * own for drawn, own in zip(draws, shares.clips, strict=True)]
    parts = [
        OwnerPart(name, budget, rows, drawn, pull / sum(pulls), rows / facts.rows)
        for name, budget, rows, drawn, pull in zip(facts.owners, budgets, facts.owner_sizes, draws, pulls, strict=True)
    ]
    return BudgetPlan(tuple(sorted(parts, key=lambda part: part.epsilon)), shares.sigma / sum(pulls))


def _sentences(now: BudgetPlan, lowered: BudgetPlan, equal: BudgetPlan, lower: float) -> tuple[str, ...]:
    first, then = now.most_private, lowered.most_private
    weight = first.pull / first.share_of_rows
    found = [
        f'Owner "{first.owner}" (ε = {first.epsilon:g}) has {100 * first.share_of_rows:.0f} % of the rows and '
        f"{100 * first.pull:.0f} % of the pull of a step ({first.draws:.3g} rows): {weight:.2f} times its share."
    ]
    if weight >= 0.9:
        return (
            *found,
            "Its budget hardly limits its part: there is little to gain from other budgets or from ino-sgd.",
        )
    noise = lowered.relative_noise / now.relative_noise
    found.append(
        f"With the larger budgets {100 * lower:.0f} % of the way down to it, it would have {100 * then.pull:.0f} % of "
        f"the pull, at {noise:.2f} times the noise of a step: worth it where this owner's rows differ from the others'."
    )
    same = next(part for part in equal.owners if part.owner == first.owner)
    found.append(
        f"With ε = {first.epsilon:g} for everybody, it would have {100 * same.pull:.0f} % of the pull, at "
        f"{equal.relative_noise / now.relative_noise:.2f} times the noise of a step: in short runs on MNIST "
        "(ino-pareto) that was best for it and overall, and cost the other owner 16 points."
    )
    found.append(
        "Two things cost no privacy, on MNIST (ino-regimes): a larger clip with a learning rate that is smaller by as "
        "much (1 instead of 0.02) took the most private owner from 13.4 to 37.2 %, ino-sgd to 49.9 % at either clip; "
        "with clip and step size tuned for both methods (clip 8), ino-sgd was not clearly ahead."
    )
    return tuple(found)
