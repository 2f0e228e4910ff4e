"""Allowance: what releases beside training may cost, with which noise they are made, and where they are noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from veil.accounting import Ledger, Relation, Terms
from veil.accounting.accountant import Accountant
from veil.noise import GaussianNoise


@dataclass(frozen=True)
class Allowance:
    """(ε, δ) under a relation, by an accountant; `open_ledger` begins the ledger that notes the cost first."""

    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    noise: GaussianNoise
    open_ledger: Callable[[Terms], Ledger] = Ledger
