"""Allowance: the budget, noise and ledger of releases outside training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veil.accounting import Ledger, Relation, Terms
from veil.accounting.accountant import Accountant
from veil.noise import GaussianNoise


@dataclass(frozen=True)
class Allowance:
    """(ε, δ) under a relation, by an accountant; `open_ledger` opens the ledger that records the cost first."""

    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    noise: GaussianNoise
    open_ledger: Callable[[Terms], Ledger] = Ledger
