"""Allowance: the budget, noise and ledger of releases outside training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veil.accounting import Ledger, Relation, Terms
from veil.accounting.accountant import Accountant
from veil.noise import GaussianNoise


@dataclass(frozen=True)
class Allowance:
    """(ε, δ) under a relation, by an accountant; `open_ledger` opens the ledger that records the cost first.

    Args:
        epsilon: ε that may be spent.
        delta: δ of the statement.
        relation: The neighbouring relation.
        accountant: Computes ε from events.
        noise: Source of the noise.
        open_ledger: Opens the ledger, given its terms.

    >>> from veil.accounting import Pld
    >>> from veil.foundation.randomness import Seed
    >>> noise = GaussianNoise(Seed.from_system())
    >>> Allowance(1.0, 1e-5, Relation.ADD_REMOVE, Pld(), noise).epsilon
    1.0
    """

    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    noise: GaussianNoise
    open_ledger: Callable[[Terms], Ledger] = Ledger
