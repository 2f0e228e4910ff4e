"""INO-SGD: individualised noisy ordered SGD, which helps owners with small budgets (Tian et al.).

    rates q_o, thresholds C_o and noise σ as IDP-SGD's (`sample`, `scale` or both)
    sort the batch by falling loss, ties by row id;  c_k = Σ of the first k thresholds,  Γ = Σ of all
    f(c) = 1 before the tail,  f_tail(c − (Γ − γ)) in the last γ of the line
    ρ_k = mean of f over [c_{k−1}, c_k];   g̃ = (Σ ρ_k·clip(g_k, C_k) + N(0, σ²·I)) / b

Rows that the model already predicts well weigh less, for every owner. Most of them belong to owners who are drawn more
often, so owners with small budgets have more influence, at the same noise.

Guarantee: adding or removing a row moves the weighted sum by at most that row's own threshold (`veil.bounding.ordered`
has the proof), so every step costs what IDP-SGD's costs: a row of owner o has (ε_o, δ) under add-remove. The order is
computed from the model of the step before, which was paid for already. The tail's length is a public constant.

Defaults: γ starts at 60 % of the expected Σ of thresholds and grows as gradients vanish (`tail="auto"`), α = 4, β = ½,
chosen on validation rows of two data sets. The paper guides to a straight fixed tail of 30 %, α = β = 1. Corrections:
integrals in closed form, because a table lookup inflates the sensitivity; exact accounting instead of 2αq²C²/σ²; no
batch is rejected, and a line shorter than the tail lies wholly in it. A tail that follows the gradients needs a count
from the same sample now and then, and an adaptive clip one at every step: it is charged jointly, and the thresholds
make room for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from veil.accounting import Relation
from veil.bounding import BetaTail, Bound, Clip, Normalise, Ordered, StepTail, tail_from
from veil.bounding.ordered import Order, Tail, UnitClipByCell
from veil.errors import InputError, require, require_above_zero
from veil.methods.calibrating import rules_for
from veil.methods.families import Individualised
from veil.methods.idp_sgd import OwnerShares, Variant, owner_shares
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import AdaptiveClip, Constant, Controller, State, first_release
from veil.plans.controllers.following_tail import LOUDEST, FollowingTail, counted_every, hidden, steps_apart
from veil.problem import PublicFacts
from veil.releases import GradientRelease

SAME_LOSS = (
    "The loss of a row, cut to multiples of 1/4096, does not depend on which other rows are in the batch: the order of "
    "rows rests on it."
)
FIRST_TAIL = 60.0  # percent of the line where `auto` starts, and stays where it cannot follow
COUNT_NOISE = 0.05  # of the batch: the noise on the count that a tail follows, where it costs next to nothing
LEAST_COUNT_NOISE = 5.0  # over the count's bound and the noise multiplier: a count costs 2 % of the thresholds at most
Underneath = Literal["clip", "adaptive-clip", "normalise"]


@dataclass(frozen=True)
class OrderedAdaptiveClip(AdaptiveClip):
    """Adaptive clip whose rows are weighed in order; everything is in units of the moving threshold."""

    limits: tuple[float, ...]
    tail: Tail | None
    order: Order
    ranks: tuple[int, ...]

    def release(self, state: State, step: int) -> GradientRelease:
        """The same release and count, with ordered weights."""
        inner = UnitClipByCell(float(state["clip"][0]), self.limits)
        return replace(super().release(state, step), bound=_ordered(inner, self.tail, self.order, self.ranks))


@known_as("ino-sgd", "individual budgets, and rows with a low loss weigh less: owners with small budgets count more")
class InoSgd(Individualised):
    """IDP-SGD in which rows with a low loss weigh less."""

    variant: Variant = "sample"
    clip: float = 1.0
    tail: float | Literal["auto"] = "auto"
    importance: str | tuple[float, ...] | Callable[[float], float] = "beta"
    alpha: float = 4.0
    beta: float = 0.5
    order: Order = "loss"
    bound: Underneath = "clip"
    gamma: float = 0.01
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 5.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Rates and thresholds as IDP-SGD's, the tail as a share of the thresholds that a batch is expected to have."""
        self._check()
        steps, shares = settings.steps_for(facts), owner_shares(self.variant, self.clip, facts, settings)
        draw = shares.draw(facts)
        batch = draw.expected_batch(facts)
        adaptive = self.bound == "adaptive-clip"
        quietest = max(shares.sigma / clip for clip in shares.clips)
        count_sigma = max(COUNT_NOISE * batch, 0.5 * LEAST_COUNT_NOISE * quietest)
        follows, how = self._following(steps, count_sigma / batch)
        if adaptive:
            count_sigma = 0.5 * self.count_noise * quietest
        if adaptive or follows:
            # The moving threshold is released in units of itself.
            unit = self.clip if adaptive else 1.0
            beside = (_beside_count(shares.sigma, clip, 2.0 * count_sigma) for clip in shares.clips)
            shares = OwnerShares(shares.rates, tuple(clip / unit for clip in beside), shares.sigma / unit)
        limits = shares.limits(facts)
        line = sum(cell.rows * rate * c for cell, rate, c in zip(facts.cells, draw.rates, limits, strict=True))
        percent = FIRST_TAIL if self.tail == "auto" else float(self.tail)
        tail, ranks = self._tail(percent / 100.0 * line), _ranks(facts, settings)
        controller: Controller
        joint = (draw, shares.sigma, count_sigma, batch, Relation.ADD_REMOVE)
        if adaptive:
            moving = (len(facts.cells), self.clip, self.quantile, self.rate, False)
            controller = OrderedAdaptiveClip(*joint, *moving, limits, tail, self.order, ranks)
        else:
            inner = Clip(limits) if self.bound == "clip" else Normalise(limits, self.gamma)
            if follows and tail is not None:
                controller = FollowingTail(*joint, inner, tail, line, self.order, ranks, steps_apart(steps))
            else:
                bound = _ordered(inner, tail, self.order, ranks)
                controller = Constant(GradientRelease(draw, bound, shares.sigma, batch, Relation.ADD_REMOVE))
        release = first_release(controller)
        details: dict[str, Any] = {
            "variant": self.variant,
            **shares.details(facts),
            "tail": how,
            "tail_percent": percent,
            "tail_length": 0.0 if tail is None else tail.length,
            "importance": self._importance_in_words(),
            "order": self.order,
            "bound": self.bound,
        }
        rules = rules_for(release, facts, steps)
        assumed = () if tail is None else (SAME_LOSS,)
        return Plan(self.name, facts, settings, steps, controller, Relation.ADD_REMOVE, rules, assumed, details)

    def _check(self) -> None:
        require_above_zero(self, "clip")
        known = self.tail == "auto" or (isinstance(self.tail, int | float) and 0 <= self.tail <= 1000)
        require(known, f"tail is {self.tail}: it is a percentage, 0 (no tail) to 1000, or auto")
        require(
            self.bound in ("clip", "adaptive-clip", "normalise"),
            f'bound is "{self.bound}": it must be clip, adaptive-clip or normalise',
        )
        require(0 < self.quantile < 1, f"quantile is {self.quantile}: it must be between 0 and 1")
        require(self.count_noise > 1, f"count_noise is {self.count_noise}: it must be above 1")

    def _following(self, steps: int, noise: float) -> tuple[bool, str]:
        """Whether the tail follows, and what it does in words; `noise` is the count's, as a share of the batch."""
        if self.tail != "auto":
            return False, "fixed"
        if self.bound == "adaptive-clip":
            return False, "fixed: under an adaptive clip gradients do not vanish beside their threshold"
        if steps == 1:
            return False, "fixed: there is one step only"
        if noise > LOUDEST:
            return False, hidden(noise)
        return True, counted_every(steps_apart(steps))

    def _tail(self, length: float) -> Tail | None:
        """The tail of this length; None where it is 0."""
        if length == 0:
            return None
        if isinstance(self.importance, str):
            if self.importance == "beta":
                return BetaTail(length, self.alpha, self.beta)
            if self.importance == "steps":
                return StepTail(length)
            raise InputError(f'importance is "{self.importance}": use beta, steps, decreasing levels or a function')
        if callable(self.importance):
            return tail_from(self.importance, length)
        return StepTail(length, tuple(float(level) for level in self.importance))

    def _importance_in_words(self) -> str:
        if isinstance(self.importance, str):
            return f"beta({self.alpha:g}, {self.beta:g})" if self.importance == "beta" else self.importance
        return "a function" if callable(self.importance) else "steps " + ", ".join(f"{v:g}" for v in self.importance)


def _ordered(inner: Bound, tail: Tail | None, order: Order, ranks: tuple[int, ...]) -> Bound:
    return inner if tail is None else Ordered(inner, tail, order, ranks)


def _ranks(facts: PublicFacts, settings: Settings) -> tuple[int, ...]:
    """Cells by their owner's budget, the smallest first."""
    budgets = [facts.budget_of(cell, settings.epsilon) for cell in range(len(facts.cells))]
    levels = sorted(set(budgets))
    return tuple(levels.index(budget) for budget in budgets)


def _beside_count(sigma: float, clip: float, count_multiplier: float) -> float:
    """The threshold at which gradient and count together cost what `clip` alone would: 1/κ² = C'²/σ² + 1/κ_count²."""
    left = (clip / sigma) ** 2 - count_multiplier**-2
    return sigma * math.sqrt(left) * (1.0 - 1e-12)
