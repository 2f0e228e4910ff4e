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
from veil.accounting.filters import Filter, RenyiFilter, TokenBucket
from veil.accounting.gdp import Gdp
from veil.accounting.ledger import Account, BudgetExceeded, Ledger, LedgerDamaged, Terms
from veil.accounting.pld import Pld
from veil.accounting.rdp import Rdp

__all__ = [
    "Account",
    "Accountant",
    "AccountingError",
    "BudgetExceeded",
    "Certificate",
    "Envelope",
    "Event",
    "Filter",
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
    "SubsetGaussian",
    "Terms",
    "TokenBucket",
    "Tree",
    "certify",
    "joint_noise_multiplier",
    "relation_of",
    "repeated",
]
