"""Importance sampling and weighting, not private: every group counts the same in expectation.

    is-sgd: rows of group g are drawn with p_g ∝ 1/n_g, g̃ = (Σ_{i ∈ B} gᵢ)/b
    iw-sgd: rows are drawn alike and weighted by w_g = n/(m·n_g), g̃ = (Σ_{i ∈ B} w_{g(i)}·gᵢ)/b

With `gradient_noise` s (the papers' "-n") noise N(0, s²·I) is added to g̃: a regulariser that narrows the gap between
training and test (Kulynych et al. 2022), with no privacy guarantee.

Where a small group cannot fill its share of a batch, is-sgd draws all of it and weights it up for the rest.
"""

from __future__ import annotations

from veil.bounding import Bound, Weighted
from veil.errors import require
from veil.methods.calibrating import balanced_rates, batch_of
from veil.methods.families import NotPrivate
from veil.methods.registry import known_as
from veil.plans import Plan, Settings
from veil.plans.controllers import Constant
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Draw, Poisson, Shuffled


def plain_plan(
    name: str, facts: PublicFacts, settings: Settings, draw: Draw, bound: Bound, gradient_noise: float
) -> Plan:
    """A plan without privacy: a draw, weights, and maybe gradient noise."""
    require(gradient_noise >= 0, f"gradient_noise is {gradient_noise}: it must be at least 0")
    batch = batch_of(facts, settings)
    release = GradientRelease(draw, bound, gradient_noise * batch, float(batch), None)
    details = {"batch": batch, "gradient_noise": gradient_noise}
    return Plan(name, facts, settings, settings.steps_for(facts), Constant(release), details=details)


@known_as("erm", "ordinary training on shuffled batches: the accuracy without privacy")
class Erm(NotPrivate):
    """Ordinary training: the accuracy without privacy."""

    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Shuffled batches, every row counts the same."""
        ones = Weighted((1.0,) * len(facts.cells))
        return plain_plan(self.name, facts, settings, Shuffled(batch_of(facts, settings)), ones, self.gradient_noise)


@known_as("is-sgd", "ordinary training on batches with the same number of rows from every group")
class IsSgd(NotPrivate):
    """Importance sampling: every group is drawn equally often."""

    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Poisson draws with balanced rates."""
        wanted = balanced_rates(facts, float(batch_of(facts, settings)))
        rates = tuple(min(rate, 1.0) for rate in wanted)
        bound = Weighted(tuple(want / rate for want, rate in zip(wanted, rates, strict=True)))
        return plain_plan(self.name, facts, settings, Poisson(rates), bound, self.gradient_noise)


@known_as("iw-sgd", "ordinary training with rows weighted so that every group counts the same")
class IwSgd(NotPrivate):
    """Importance weighting: every group weighs the same."""

    gradient_noise: float = 0.0

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Shuffled batches with weights n/(m·n_g)."""
        sizes = facts.group_sizes
        weights = tuple(facts.rows / (len(sizes) * sizes[cell.group]) for cell in facts.cells)
        draw = Shuffled(batch_of(facts, settings))
        return plain_plan(self.name, facts, settings, draw, Weighted(weights), self.gradient_noise)
