"""Verify: recompute a certificate from its ledger with a second, independent accountant (dp-accounting).

The two never share code: events are translated into dp-accounting's own, remembering that under replace-one its RDP
accountant reads noise relative to 2C and its PLD accountant relative to C.

Two kinds of event it cannot compose as tightly as Veil does: subsets without replacement (it has a Rényi bound only)
and envelopes. Where Veil claims a PLD for those, the second opinion is a *lower* bound on the truth: the ε of one pair
of tables that can occur, and of single rungs repeated throughout. A claim below it would be false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting
from dp_accounting import pld as peer_pld
from dp_accounting import rdp as peer_rdp

from veil.accounting.certificate import Certificate
from veil.accounting.events import (
    AccountingError,
    Envelope,
    Event,
    Gaussian,
    Laplace,
    PoissonGaussian,
    Relation,
    Repeated,
    SubsetGaussian,
    Tree,
)
from veil.accounting.filters import RenyiFilter, TokenBucket
from veil.accounting.ledger import Account, Ledger, Terms

TOLERANCE = 0.01
GRID = 1e-4


@dataclass(frozen=True, slots=True)
class Opinion:
    """One account: the ε that the certificate claims and the ε that the second accountant finds."""

    group: str
    owner: str
    claimed: float
    second: float | None
    agrees: bool
    remark: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`: every opinion, and what else does not fit."""

    opinions: tuple[Opinion, ...]
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the certificate."""
        return not self.faults and all(opinion.agrees for opinion in self.opinions)


def verify(certificate_path: Path, ledger_path: Path | None = None) -> Verdict:
    """Check a certificate against the ledger beside it.

    Looks at four things: the ledger's checksums; that the certificate was made from this ledger; that what was spent
    stays within each rule; and each rule's ε by dp-accounting, which may exceed ours by its own error of 1 %.
    """
    certificate = Certificate.load(certificate_path)
    if not certificate.private:
        raise AccountingError(f"{certificate.method} is not private: there is no guarantee to verify")
    ledger = Ledger.open(ledger_path or certificate_path.with_name("ledger.jsonl"))
    faults = list(_faults(certificate, ledger))
    opinions = []
    known: dict[Any, tuple[float | None, str]] = {}
    for account in ledger.terms.accounts:
        if account.rule not in known:
            known[account.rule] = _second_epsilon(account, ledger)
        second, remark = known[account.rule]
        claimed = certificate.by_group.get(account.group, math.nan)
        agrees = second is None or second <= claimed * (1 + TOLERANCE) + 1e-3
        opinions.append(Opinion(account.group, account.owner, claimed, second, agrees, remark))
    return Verdict(tuple(opinions), tuple(faults))


def _faults(certificate: Certificate, ledger: Ledger) -> Iterable[str]:
    terms = ledger.terms
    if certificate.ledger_check != ledger.check:
        yield "the certificate was made from another state of the ledger"
    if certificate.delta != terms.delta or certificate.relation != terms.relation.value:
        yield "the certificate's δ or relation is not the ledger's"
    if set(certificate.by_group) != {account.group for account in terms.accounts}:
        yield "the certificate's groups are not the ledger's"
    if certificate.epsilon != max(certificate.by_group.values(), default=None):
        yield "the certificate's ε is not the largest of its groups' ε"
    for cell, account in enumerate(terms.accounts):
        for item in ledger.spent(cell):
            others = {other.event: other.times for other in ledger.spent(cell) if other.event != item.event}
            if account.rule.refusal(others, item) is not None:
                yield f'group "{account.group}", owner "{account.owner}" was charged more than its rule admits'
                break


def _second_epsilon(account: Account, ledger: Ledger) -> tuple[float | None, str]:
    rule, terms = account.rule, ledger.terms
    try:
        if isinstance(rule, TokenBucket):
            return _by_tokens(rule.tokens, terms)
        if isinstance(rule, RenyiFilter):
            peer = peer_rdp.RdpAccountant([rule.order], neighboring_relation=_relation(terms.relation))
            for item in ledger.spent(terms.accounts.index(account)):
                peer.compose(_translate(item.event, rdp=True), item.times)
            return float(peer.get_epsilon(terms.delta)), f"RDP at the fixed order {rule.order:g} of what was spent"
    except (_NoTranslationError, dp_accounting.UnsupportedEventError) as error:
        return None, f"no second opinion: dp-accounting has no {error}"
    return None, "no second opinion: this kind of rule is unknown to dp-accounting"


def _by_tokens(tokens: tuple[Repeated, ...], terms: Terms) -> tuple[float, str]:
    """ε of all tokens; of an envelope, the largest of its lowest, middle and highest rung in every token's place."""
    rungs = max((len(t.event.events) for t in tokens if isinstance(t.event, Envelope)), default=1)
    values = []
    for rung in sorted({0, rungs // 2, rungs - 1}):
        items = [
            Repeated(t.event.events[min(rung, len(t.event.events) - 1)], t.times)
            if isinstance(t.event, Envelope)
            else t
            for t in tokens
        ]
        value, how = _compose(items, terms)
        values.append(value)
    return max(values), how + (", of single rungs: a lower bound" if rungs > 1 else "")


def _compose(tokens: Sequence[Repeated], terms: Terms) -> tuple[float, str]:
    translate: Callable[[Event], Any]
    subsets = any(isinstance(token.event, SubsetGaussian) for token in tokens)
    if terms.accountant == "rdp" and subsets:
        peer: Any = peer_rdp.RdpAccountant(neighboring_relation=_relation(terms.relation))
        how, translate = "RDP", partial(_translate, rdp=True)
    elif subsets:
        # All other rows equal the new row: then drawing the old one is all that tells the two tables apart.
        peer = peer_pld.PLDAccountant(_relation(Relation.ADD_REMOVE), value_discretization_interval=GRID)
        how, translate = "PLD of one pair of tables: a lower bound", _as_seen_alone
    else:
        peer = peer_pld.PLDAccountant(_relation(terms.relation), value_discretization_interval=GRID)
        how, translate = f"PLD on a grid of {GRID:g}", partial(_translate, rdp=False)
    for token in tokens:
        peer.compose(translate(token.event), token.times)
    return float(peer.get_epsilon(terms.delta)), how


def _as_seen_alone(event: Event) -> Any:
    """A subset when all other rows are alike: the row takes part with the chance batch / size."""
    if isinstance(event, SubsetGaussian):
        return dp_accounting.PoissonSampledDpEvent(
            event.rate, dp_accounting.GaussianDpEvent(event.noise_multiplier / event.reach)
        )
    if isinstance(event, Gaussian):
        return dp_accounting.GaussianDpEvent(event.noise_multiplier / event.reach)
    raise _NoTranslationError(type(event).__name__)


class _NoTranslationError(Exception):
    pass


def _translate(event: Event, rdp: bool) -> Any:
    """dp-accounting's event; see the module's first lines for the factor 2."""
    if isinstance(event, Tree):
        return _translate(event.as_gaussian(), rdp)
    if isinstance(event, PoissonGaussian):
        reach = 2 if rdp and event.relation is Relation.REPLACE_ONE else 1
        return dp_accounting.PoissonSampledDpEvent(
            event.rate, dp_accounting.GaussianDpEvent(event.noise_multiplier / reach)
        )
    if isinstance(event, SubsetGaussian):
        noise = dp_accounting.GaussianDpEvent(event.noise_multiplier / event.reach)
        return dp_accounting.SampledWithoutReplacementDpEvent(event.size, event.batch, noise)
    if isinstance(event, Gaussian | Laplace):
        two_bounds = not rdp and event.relation is Relation.REPLACE_ONE
        noise = event.noise_multiplier / event.reach * (2 if two_bounds else 1)
        kind = dp_accounting.GaussianDpEvent if isinstance(event, Gaussian) else dp_accounting.LaplaceDpEvent
        return kind(noise)
    raise _NoTranslationError(type(event).__name__)


def _relation(relation: Relation) -> Any:
    kinds = dp_accounting.NeighboringRelation
    return kinds.ADD_OR_REMOVE_ONE if relation is Relation.ADD_REMOVE else kinds.REPLACE_ONE
