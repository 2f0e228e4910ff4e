"""The budget of methods whose rates change during training: one order α*, a cost per step, and loss releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from veil.accounting import AccountingError, Event, Rdp, Relation, RenyiFilter, Repeated
from veil.accounting.calibration import best_order, noise_multiplier
from veil.accounting.conversion import rho_for_budget
from veil.accounting.rdp import cost_at
from veil.errors import InputError
from veil.plans import Settings
from veil.problem import PublicFacts
from veil.releases import LossRelease


@dataclass(frozen=True)
class MovingBudget:
    """Constants of the plan. `rho` and `step_rho` are per owner: the Rényi budget at `order`, and one step's part.

    `kappa` is the noise multiplier at the reference rate, `loss_kappa` that of a loss release.
    """

    order: float
    rho: tuple[float, ...]
    step_rho: tuple[float, ...]
    kappa: float
    loss_kappa: float

    def rules(self, facts: PublicFacts) -> tuple[RenyiFilter, ...]:
        """A Rényi filter per cell."""
        return tuple(RenyiFilter(self.order, self.rho[cell.owner]) for cell in facts.cells)


LOSS_SHARE = 0.1


@dataclass(frozen=True)
class SideLosses:
    """Releases of group losses beside the gradients: how many, and of what kind.

    `noise` is the ratio of their noise multiplier to that of the gradients; by default it is the one at which losses
    take `LOSS_SHARE` of the budget. `rate` is the Poisson rate at which rows are drawn for them.
    """

    updates: int
    relation: Relation
    one_sided: bool
    noise: float | None = None
    ceiling: float = 1.0
    rate: float = 1.0

    @property
    def reach(self) -> int:
        """How far one row moves a loss, in units of its bound."""
        return 1 if self.one_sided or self.relation is Relation.ADD_REMOVE else 2

    def events(self, kappa: float) -> Repeated:
        """All of them, at a noise multiplier."""
        return Repeated(self.release(kappa).event(), self.updates)

    def release(self, kappa: float) -> LossRelease:
        """One of them, at a noise multiplier."""
        tau = kappa * self.ceiling
        return LossRelease("group losses", self.ceiling, tau, self.relation, self.rate, self.one_sided)

    def sharing(self, noise: float) -> float:
        """The multiplier at which all together cost about `LOSS_SHARE` of what one release at `noise` costs."""
        return noise * self.reach * self.rate * math.sqrt(max(self.updates, 1) / LOSS_SHARE)


def split_budget(
    step_event: Callable[[float], Event], facts: PublicFacts, settings: Settings, steps: int, losses: SideLosses
) -> MovingBudget:
    """Calibrate κ for `steps` releases `step_event(κ)` and the loss releases beside them.

    κ and α* come from the smallest budget. Owners with a larger one get the same loss releases and spend the rest on
    their gradient: step_rho = (ρ − loss costs) / steps.
    """
    if losses.noise is None:
        budget = split_budget(step_event, facts, settings, steps, replace(losses, updates=0, noise=1.0))
        whole = math.sqrt(budget.order / (2 * min(budget.rho)))
        losses = replace(losses, noise=losses.sharing(whole) / budget.kappa)
    ratio = losses.noise
    assert ratio is not None
    delta = settings.delta_for(facts)
    budgets = facts.budgets or (settings.epsilon,) * len(facts.owners)

    def events(kappa: float) -> list[Repeated]:
        return [Repeated(step_event(kappa), steps), losses.events(kappa * ratio)]

    try:
        rough = noise_multiplier(events, min(budgets), delta, Rdp())
        order = _whole(best_order(events(rough), delta), min(budgets), delta)
        rho = tuple(rho_for_budget(budget, delta, order) for budget in budgets)
    except AccountingError as error:
        raise InputError(f"no noise gives ε = {min(budgets):g}: {error}") from error

    def cost(kappa: float) -> float:
        return sum(item.times * cost_at(item.event, order) for item in events(kappa))

    low, high = rough / 4, rough
    while cost(high) > min(rho):
        high *= 1.1
    while (high - low) > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= min(rho) else (middle, high)
    one_loss = cost_at(losses.events(high * ratio).event, order)
    step_rho = tuple((own - losses.updates * one_loss) / steps for own in rho)
    return MovingBudget(order, rho, step_rho, high, high * ratio)


def _whole(order: float, epsilon: float, delta: float) -> float:
    """The whole order nearest to the best one, or the next at which the conversion to ε leaves something to spend.

    >>> _whole(9.7, 1.0, 1e-5), _whole(2.4, 8.0, 1e-5)
    (10.0, 3.0)
    """
    whole = max(2, round(order))
    try:
        rho_for_budget(epsilon, delta, whole)
    except AccountingError:
        whole += 1
    return float(whole)
