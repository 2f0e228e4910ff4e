"""Accounting: what releases cost. Usable alone, without torch.

>>> from veil.accounting import PoissonGaussian, Repeated, Rdp
>>> round(Rdp().epsilon([Repeated(PoissonGaussian(noise_multiplier=1.0, rate=0.005), 10_000)], delta=1e-5), 2)
3.06
"""

from veil.accounting.accountant import Accountant
from veil.accounting.certificate import Certificate, certify
from veil.accounting.events import (
    AccountingError,
    Envelope,
    Event,
    Gaussian,
    Laplace,
    Mixture,
    NoisyMax,
    PoissonGaussian,
    Relation,
    Repeated,
    Selection,
    SubsetGaussian,
    Tree,
    joint_noise_multiplier,
    relation_of,
    repeated,
)
from veil.accounting.gdp import Gdp
from veil.accounting.ledger import Account, BudgetExceeded, Ledger, LedgerDamaged, Terms
from veil.accounting.people import epsilon_of_person, epsilon_of_rows
from veil.accounting.pld import Pld
from veil.accounting.rdp import Rdp
from veil.accounting.spending_rules import RenyiFilter, SpendingRule, TokenBucket

__all__ = [
    "Account",
    "Accountant",
    "AccountingError",
    "BudgetExceeded",
    "Certificate",
    "Envelope",
    "Event",
    "Gaussian",
    "Gdp",
    "Laplace",
    "Ledger",
    "LedgerDamaged",
    "Mixture",
    "NoisyMax",
    "Pld",
    "PoissonGaussian",
    "Rdp",
    "Relation",
    "RenyiFilter",
    "Repeated",
    "Selection",
    "SpendingRule",
    "SubsetGaussian",
    "Terms",
    "TokenBucket",
    "Tree",
    "certify",
    "epsilon_of_person",
    "epsilon_of_rows",
    "joint_noise_multiplier",
    "relation_of",
    "repeated",
]
