"""Calibration that several methods share: draws from settings, and noise for every cell's budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from veil.accounting import AccountingError, Event, Relation, Repeated, TokenBucket
from veil.accounting.calibration import noise_multiplier
from veil.errors import InputError, require
from veil.plans import Settings
from veil.problem import PublicFacts
from veil.releases import GradientRelease
from veil.sampling.draws import Draw, Poisson, UniformSubset

Sampling = Literal["poisson", "wor"]


def batch_of(facts: PublicFacts, settings: Settings) -> int:
    """The expected batch: as set, but never more than there are rows.

    Args:
        facts: Public facts about the rows.
        settings: The settings, with `batch_size`.

    Returns:
        The number of rows that take part in a step, in expectation.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("everybody",), (Cell(0, 0, 100),), (1,))
    >>> batch_of(facts, Settings(batch_size=256))
    100
    """
    return min(settings.batch_size, facts.rows)


def relation_for(sampling: str, neighbours: str | None) -> Relation:
    """The relation asked for, or the one that fits the sampling: subsets are proved for replace-one only."""
    require(sampling in ("poisson", "wor"), f'sampling is "{sampling}": it must be poisson or wor')
    known = [relation.value for relation in Relation]
    require(neighbours is None or neighbours in known, f'neighbours is "{neighbours}": it must be {" or ".join(known)}')
    require(
        not (sampling == "wor" and neighbours == "add-remove"),
        "sampling without replacement is proved for replace-one only: omit neighbours or choose poisson",
    )
    return Relation(neighbours or ("replace-one" if sampling == "wor" else "add-remove"))


def uniform_draw(facts: PublicFacts, settings: Settings, sampling: str) -> Draw:
    """The same draw for all rows: one Poisson rate, or subsets of all rows."""
    batch = batch_of(facts, settings)
    return Poisson((batch / facts.rows,) * len(facts.cells)) if sampling == "poisson" else UniformSubset(batch)


def balanced_rates(facts: PublicFacts, batch: float) -> tuple[float, ...]:
    """Rates at which every group gives the same expected number of rows: p_g = p̄ / (m·q_g), p̄ = batch / n.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("a", "b"), ("everybody",), (Cell(0, 0, 900), Cell(1, 0, 100)), (1,))
    >>> balanced_rates(facts, 20.0)
    (0.011111111111111112, 0.1)
    """
    sizes = facts.group_sizes
    return tuple(batch / (len(sizes) * sizes[cell.group]) for cell in facts.cells)


def calibrate(
    release: Callable[[float], GradientRelease], facts: PublicFacts, settings: Settings, steps: int
) -> tuple[float, tuple[TokenBucket, ...]]:
    """The smallest κ at which `steps` times `release(κ)` stays within every cell's budget, and the rules it makes.

    Args:
        release: The gradient release of a step at a given noise multiplier κ.
        facts: Public facts about the rows: cells and their budgets.
        settings: The settings: ε, δ and the accountant.
        steps: How many such releases there are.

    Returns:
        κ, and one rule for each cell that takes part.

    Raises:
        InputError: No noise is enough for the budget of a group.

    >>> from veil.bounding import Clip
    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("everybody",), (Cell(0, 0, 1000),), (1,))
    >>> draw = uniform_draw(facts, Settings(batch_size=100), "poisson")
    >>> def release(kappa):
    ...     return GradientRelease(draw, Clip((1.0,)), kappa, 100.0, Relation.ADD_REMOVE)
    >>> kappa, rules = calibrate(release, facts, Settings(epsilon=1.0, delta=1e-5), steps=50)
    >>> 2.0 < kappa < 4.0, len(rules)
    (True, 1)
    """
    accountant, delta = settings.accountant_for(facts), settings.delta_for(facts)
    probe = release(1.0).events(facts)
    tightest: dict[Event, tuple[float, int]] = {}
    for cell, event in probe.items():
        budget = facts.budget_of(cell, settings.epsilon)
        if event not in tightest or budget < tightest[event][0]:
            tightest[event] = (budget, cell)

    def tokens_of(cell: int) -> Callable[[float], list[Repeated]]:
        return lambda kappa: [Repeated(release(kappa).events(facts)[cell], steps)]

    kappa = 0.0
    for budget, cell in tightest.values():
        try:
            needed = noise_multiplier(tokens_of(cell), budget, delta, accountant)
        except AccountingError as error:
            raise InputError(f'no noise gives group "{facts.cell_name(cell)}" ε = {budget:g}: {error}') from error
        kappa = max(kappa, needed)
    return kappa, rules_for(release(kappa), facts, steps)


def rules_for(release: GradientRelease, facts: PublicFacts, steps: int) -> tuple[TokenBucket, ...]:
    """One token per step for every cell that takes part."""
    events = release.events(facts)
    return tuple(
        TokenBucket((Repeated(events[cell], steps),) if cell in events else ()) for cell in range(len(facts.cells))
    )
