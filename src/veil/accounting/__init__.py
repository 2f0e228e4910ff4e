"""Accounting: what releases cost. Usable alone, without torch.

>>> from veil.accounting import PoissonGaussian, Repeated, Rdp
>>> round(Rdp().epsilon([Repeated(PoissonGaussian(noise_multiplier=1.0, rate=0.005), 10_000)], delta=1e-5), 2)
3.06

Names are imported when they are first used: scipy alone takes longer to load than most commands take.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veil.accounting.accountant import Accountant
    from veil.accounting.certificate import Certificate, certify
    from veil.accounting.events import (
        AccountingError,
        Choice,
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

_HOMES = {
    "Account": "veil.accounting.ledger",
    "Accountant": "veil.accounting.accountant",
    "AccountingError": "veil.accounting.events",
    "BudgetExceeded": "veil.accounting.ledger",
    "Certificate": "veil.accounting.certificate",
    "Choice": "veil.accounting.events",
    "Envelope": "veil.accounting.events",
    "Event": "veil.accounting.events",
    "Gaussian": "veil.accounting.events",
    "Gdp": "veil.accounting.gdp",
    "Laplace": "veil.accounting.events",
    "Ledger": "veil.accounting.ledger",
    "LedgerDamaged": "veil.accounting.ledger",
    "Mixture": "veil.accounting.events",
    "NoisyMax": "veil.accounting.events",
    "Pld": "veil.accounting.pld",
    "PoissonGaussian": "veil.accounting.events",
    "Rdp": "veil.accounting.rdp",
    "Relation": "veil.accounting.events",
    "RenyiFilter": "veil.accounting.spending_rules",
    "Repeated": "veil.accounting.events",
    "Selection": "veil.accounting.events",
    "SpendingRule": "veil.accounting.spending_rules",
    "SubsetGaussian": "veil.accounting.events",
    "Terms": "veil.accounting.ledger",
    "TokenBucket": "veil.accounting.spending_rules",
    "Tree": "veil.accounting.events",
    "certify": "veil.accounting.certificate",
    "epsilon_of_person": "veil.accounting.people",
    "epsilon_of_rows": "veil.accounting.people",
    "joint_noise_multiplier": "veil.accounting.events",
    "relation_of": "veil.accounting.events",
    "repeated": "veil.accounting.events",
}

__all__ = [
    "Account",
    "Accountant",
    "AccountingError",
    "BudgetExceeded",
    "Certificate",
    "Choice",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
