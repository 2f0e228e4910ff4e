"""Verification: recompute a certificate from its ledger with an independent accountant (dp-accounting).

The two never share code: events are translated into dp-accounting's own, remembering that under replace-one its RDP
accountant reads noise relative to 2C and its PLD accountant relative to C.

Two kinds of event it cannot compose as tightly as Veil does: subsets without replacement (it has a Rényi bound only)
and envelopes. Where Veil claims a PLD for those, the check is a *lower* bound on the true ε: the ε of one pair
of tables that can occur, and of single rungs repeated throughout. A claim below it would be false.

Where the ledger is for all rows of a person together, each release is the mixture of Gaussians that as many rows of
one direction make: j of them are drawn with the binomial or hypergeometric chance.

For the best of a random number of runs (a `Selection`) dp-accounting has a Rényi bound only, which is far above ours.
So δ(ε) of one run is dp-accounting's, and the step from one run to the best of many is worked out here once more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dp_accounting
from dp_accounting import pld as peer_pld
from dp_accounting import rdp as peer_rdp
from scipy import stats

from veil.accounting import events as kinds
from veil.accounting.certificate import (
    ADDED,
    UNIT,
    Certificate,
    accountant_of,
    certify,
    check_budgets,
    guarantees_by_account,
    rows_together,
)
from veil.accounting.events import AccountingError, Event, Relation, Repeated
from veil.accounting.ledger import Account, Ledger, LedgerDamaged, Terms
from veil.accounting.model_digest import NO_HASH, faults_of_model, hashes_in
from veil.accounting.spending_rules import RenyiFilter, TokenBucket

TOLERANCE = 0.01
GRID = 1e-4
# Mixtures of many Gaussians take ten times as long as one; on this grid they are right to a part in a thousand.
GRID_OF_ROWS = 1e-3
ACCOUNTANTS = ("pld", "rdp")
# What follows from the ledger alone; δ, relation and the ledger's state are compared apart.
REMADE = (
    "method",
    "epsilon",
    "accountant",
    "by_group",
    "by_owner",
    "budgets",
    "spent_by_group",
    "statement",
    "facts",
    "unit",
    "by_rows",
    "held_out",
    "generalisation",
    "generalisation_statement",
)
# Ledgers of rows that take no part in training.
AFTER = ("evaluation.jsonl", "selection.jsonl")
# What certificates said in place of `held_out` before they had it.
OF_TRAINED = "ε by group and by owner is that of what was trained on."
# What no ledger holds: the run's own record (run.json) has a copy of it.
IN_WORDS = ("assumptions", "not_covered")


@dataclass(frozen=True, slots=True)
class Opinion:
    """One account: the ε that the certificate claims and the ε that the second accountant finds.

    Args:
        group: Group of the rows.
        owner: Owner of the rows.
        claimed: ε of the certificate.
        second: ε of the second accountant, or None where it has no answer.
        agrees: Whether the second one does not contradict the first.
        remark: What the second ε is: a bound from above or from below.

    >>> Opinion("large", "everybody", 1.0, 0.98, True, "").agrees
    True
    """

    group: str
    owner: str
    claimed: float
    second: float | None
    agrees: bool
    remark: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`: every opinion, what else does not fit, and what is worth knowing.

    Args:
        opinions: One for each account of the ledger.
        faults: What does not fit, one sentence each.
        unit: What every ε is for: one row or one person.
        remarks: What is worth knowing, one sentence each.

    >>> Verdict((Opinion("large", "everybody", 1.0, 0.98, True, ""),), faults=()).holds
    True
    """

    opinions: tuple[Opinion, ...]
    faults: tuple[str, ...]
    unit: str = UNIT
    remarks: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing contradicts the certificate."""
        return not self.faults and all(opinion.agrees for opinion in self.opinions)


def verify(certificate_path: Path, ledger_path: Path | None = None) -> Verdict:
    """Check a certificate against the ledgers beside it.

    Looks at: whether the run is finished and its seed destroyed; the ledgers' checksums; that the certificate was
    made from this ledger, field by field; that what was spent stays within each rule, also where preprocessing,
    evaluation and the choice among models have ledgers of their own; that the model beside it is the certified one;
    and each rule's ε by dp-accounting, which may exceed ours by its own error of 1 %.

    Args:
        certificate_path: The file `certificate.json` of a run.
        ledger_path: Its ledger; by default `ledger.jsonl` beside it.

    Returns:
        The opinion on each account, and what does not fit; `holds` says whether anything contradicts the certificate.

    Raises:
        AccountingError: The method is not private, or a file cannot be read.

    >>> import tempfile, torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 900), GroupSpec("small", 100)])
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=5, out=f"{place}/run")
    ...     verdict = verify(Path(place) / "run" / "certificate.json")
    >>> verdict.holds, [opinion.group for opinion in verdict.opinions]
    (True, ['large', 'small'])
    """
    certificate = Certificate.load(certificate_path)
    if not certificate.private:
        raise AccountingError(f"{certificate.method} is not private: there is no guarantee to verify")
    ledger = _opened(ledger_path or certificate_path.with_name("ledger.jsonl"))
    faults = [
        *_faults_of_folder(certificate_path.parent),
        *faults_of_model(certificate.model, hashes_in(certificate_path.parent) or certificate.model),
        *(fault for name in AFTER for fault in _faults_after(certificate, certificate_path.with_name(name))),
        *_faults_of_held_out(certificate, certificate_path.parent),
        *_faults(certificate, ledger, _of_held_out(certificate, certificate_path.parent)),
        *_faults_of_words(certificate, ledger, certificate_path.with_name("run.json")),
        *_faults_before(ledger, certificate_path.with_name("preprocessing.jsonl")),
    ]
    opinions = []
    known: dict[Any, tuple[float | None, str]] = {}
    ledger = ledger.standing()
    for account in ledger.terms.accounts:
        if account.rule not in known:
            known[account.rule] = _second_epsilon(account, ledger)
        second, remark = known[account.rule]
        # A cell's ε is at most that of its group and that of its owner: the certificate claims both.
        claimed = min(
            certificate.by_group.get(account.group, math.nan), certificate.by_owner.get(account.owner, math.inf)
        )
        agrees = second is None or second <= claimed * (1 + TOLERANCE) + 1e-3
        opinions.append(Opinion(account.group, account.owner, claimed, second, agrees, remark))
    return Verdict(tuple(opinions), tuple(faults), certificate.unit, () if certificate.model else (NO_HASH,))


def _opened(path: Path) -> Ledger:
    """Read a ledger without repairing it: an incomplete last line is an error here."""
    if not path.exists():
        raise AccountingError(f"there is no {path.name} in {path.parent}")
    content = path.read_bytes()  # once: a run that is still going on may write the next line at any moment
    if not content.endswith(b"\n"):
        raise LedgerDamaged(f"{path.name} ends in the middle of a line")
    try:
        return Ledger.read(content)
    except LedgerDamaged as error:
        raise LedgerDamaged(f"{path.name}: {error}") from error


def _faults_of_folder(folder: Path) -> Iterable[str]:
    """The seed file of an unfinished run: with it anybody can subtract the noise."""
    if (folder / "seed.key").exists():
        yield "seed.key still exists, so the run is not finished and must not be published: resume it first"


def _of_held_out(certificate: Certificate, folder: Path) -> dict[str, Ledger]:
    """The ledgers of held-out rows that the certificate counts; one that is damaged is reported apart."""
    found = {}
    for name in set(AFTER) & set(certificate.held_out):
        with suppress(AccountingError):
            found[name] = _opened(folder / name)
    return found


def _faults_of_held_out(certificate: Certificate, folder: Path) -> Iterable[str]:
    """Certificates of earlier versions do not count held-out rows: then these may not cost more than it says."""
    for name in AFTER:
        there, counted = (folder / name).exists(), name in certificate.held_out
        if counted and not there:
            yield f"{name} is missing: the certificate counts what it records"
        elif there and not counted and not any(said.startswith(OF_TRAINED) for said in certificate.assumptions):
            with suppress(AccountingError):
                ledger = _opened(folder / name)
                found = max(guarantees_by_account(ledger, accountant_of(ledger.terms)), default=0.0)
                if min(certificate.by_group.values(), default=0.0) < found * (1 - TOLERANCE):
                    yield f"{name}: held-out rows have ε = {found:.3g}, which is more than the certificate says"


def _faults(certificate: Certificate, ledger: Ledger, held_out: Mapping[str, Ledger]) -> Iterable[str]:
    terms = ledger.terms
    if certificate.ledger_check != ledger.check:
        yield "the ledger has changed since the certificate was made"
    if certificate.delta != terms.delta or certificate.relation != terms.relation.value:
        yield "δ or relation differ between certificate and ledger"
    if not {account.group for account in terms.accounts} <= set(certificate.by_group):
        yield "groups differ between certificate and ledger"
    if certificate.epsilon != max(certificate.by_group.values(), default=None):
        yield "the certificate's ε is not the largest of its groups' ε"
    yield from _overspent(ledger)
    if terms.accountant not in ACCOUNTANTS:
        yield f"the ledger's accountant is {terms.accountant!r}, which certifies nothing"
        return
    found, remade = certificate.as_json(), certify(ledger, accountant_of(terms), held_out=held_out).as_json()
    for name in REMADE:
        if name.startswith(ADDED) and not found[name]:
            continue  # certificates of earlier versions have none
        if not _same(found[name], remade[name]):
            yield f"{name} does not follow from the ledger: {_short(found[name])} instead of {_short(remade[name])}"


def _faults_of_words(certificate: Certificate, ledger: Ledger, record_path: Path) -> Iterable[str]:
    """Ledgers do not contain assumptions and exclusions: check them against the run's record."""
    found = certificate.as_json()
    planned = "steps" in ledger.terms.facts
    kept = _certificate_in(record_path)
    for name in IN_WORDS:
        if planned and not found[name]:
            yield f"{name} is empty, but every guarantee has some"
        elif kept is not None and list(kept.get(name) or ()) != list(found[name]):
            yield f"{name} is not what {record_path.name} says"
    for name in ("columns", "model"):
        if kept is not None and dict(kept.get(name) or {}) != dict(found[name]):
            yield f"{name} is not what {record_path.name} says"


def _certificate_in(path: Path) -> Mapping[str, Any] | None:
    """The copy of the certificate in a run's record; none where there is no such record."""
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))["certificate"]
        return record if isinstance(record, Mapping) else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _faults_before(ledger: Ledger, path: Path) -> Iterable[str]:
    """Private preprocessing has its own ledger; the run's ledger must include the same cost in every cell."""
    if not path.exists():
        return
    try:
        before = _opened(path)
    except LedgerDamaged as error:
        yield str(error)
        return
    yield from (f"{path.name}: {fault}" for fault in _overspent(before))
    paid = [{item.event: item.times for item in ledger.spent(cell)} for cell in range(len(ledger.terms.accounts))]
    for cell, early in enumerate(before.terms.accounts):
        own = [
            spent for spent, account in zip(paid, ledger.terms.accounts, strict=True) if account.group == early.group
        ]
        if any(spent.get(item.event, 0) < item.times for item in before.spent(cell) for spent in own):
            yield f'{path.name}: the ledger of the run does not include what group "{early.group}" was charged before'


def _faults_after(certificate: Certificate, path: Path) -> Iterable[str]:
    """Figures on held-out rows have their own ledger, at the run's δ and at most its smallest ε."""
    if not path.exists():
        return
    try:
        after = _opened(path)
        terms = after.terms
        check_budgets(after, accountant_of(terms))
    except AccountingError as error:
        yield str(error) if isinstance(error, LedgerDamaged) else f"{path.name}: {error}"
        return
    yield from (f"{path.name}: {fault}" for fault in _overspent(after))
    if terms.delta != certificate.delta or terms.relation.value != certificate.relation:
        yield f"{path.name}: its δ or relation differs from the certificate's"
    if max((a.budget for a in terms.accounts), default=0.0) > min(certificate.budgets.values(), default=math.inf):
        yield f"{path.name}: held-out rows were charged more than the smallest budget"


def _overspent(ledger: Ledger) -> Iterable[str]:
    for cell, account in enumerate(ledger.terms.accounts):
        for item in ledger.spent(cell):
            others = {other.event: other.times for other in ledger.spent(cell) if other.event != item.event}
            if account.rule.refusal(others, item) is not None:
                yield f'group "{account.group}", owner "{account.owner}" was charged more than its spending rule allows'
                break


def _same(found: Any, remade: Any) -> bool:
    """Whether two JSON values are equal, numbers up to what another machine may compute."""
    if isinstance(found, Mapping) and isinstance(remade, Mapping):
        return found.keys() == remade.keys() and all(_same(found[name], remade[name]) for name in found)
    if isinstance(found, float | int) and isinstance(remade, float | int):
        return math.isclose(found, remade, rel_tol=1e-4, abs_tol=1e-9)
    if isinstance(found, list | tuple) and isinstance(remade, list | tuple):
        return len(found) == len(remade) and all(map(_same, found, remade))
    return bool(found == remade)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else text[:200] + " …"


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
        return None, f"no independent check: dp-accounting does not support {error}"
    return None, "no independent check: dp-accounting does not support this kind of rule"


def _by_tokens(tokens: tuple[Repeated, ...], terms: Terms) -> tuple[float, str]:
    """ε of all tokens; of an envelope, the largest of its lowest, middle and highest rung in every token's place."""
    if any(isinstance(token.event, kinds.Selection) for token in tokens):
        return _of_selection(tokens, terms)
    if any(isinstance(token.event, kinds.Choice) for token in tokens):
        return _of_choices(tokens, terms)
    rungs = max((len(t.event.events) for t in tokens if isinstance(t.event, kinds.Envelope)), default=1)
    values = []
    for rung in sorted({0, rungs // 2, rungs - 1}):
        items = [
            Repeated(t.event.events[min(rung, len(t.event.events) - 1)], t.times)
            if isinstance(t.event, kinds.Envelope)
            else t
            for t in tokens
        ]
        value, how = _compose(items, terms)
        values.append(value)
    return max(values), how + (", of single rungs: a lower bound" if rungs > 1 else "")


def _of_choices(tokens: Sequence[Repeated], terms: Terms) -> tuple[float, str]:
    """The largest ε of single runs in the place of every choice: exact where all of them are Gaussian."""
    most = max(len(token.event.runs) for token in tokens if isinstance(token.event, kinds.Choice))
    values = []
    for number in range(most):
        items = []
        for token in tokens:
            runs = token.event.runs if isinstance(token.event, kinds.Choice) else ((Repeated(token.event),),)
            run = runs[min(number, len(runs) - 1)]
            items += [Repeated(item.event, item.times * token.times) for item in run]
        value, how = _compose(items, terms)
        values.append(value)
    return max(values), how + ", of single runs: a lower bound"


def _of_selection(tokens: Sequence[Repeated], terms: Terms) -> tuple[float, str]:
    """ε = ε₁ + (1+η)·s with δ_Q(ε₁) = δ/E[K] and e^s − 1 = (1−γ)/γ·δ_Q(s), where δ_Q is dp-accounting's."""
    selection = tokens[0].event
    if len(tokens) > 1 or tokens[0].times != 1 or not isinstance(selection, kinds.Selection):
        raise _NoTranslationError("a Selection composed with other events")
    first = selection.events[0].event
    runs = first.runs if isinstance(first, kinds.Choice) and len(selection.events) == 1 else (selection.events,)
    rows, peers = rows_together(terms), []
    translate = partial(_several_rows, rows=rows) if rows > 1 else partial(_translate, rdp=False)
    relation, grid = (Relation.ADD_REMOVE, GRID_OF_ROWS) if rows > 1 else (terms.relation, GRID)
    for run in runs:
        peer = peer_pld.PLDAccountant(_relation(relation), value_discretization_interval=grid)
        for item in run:
            peer.compose(translate(item.event), item.times)
        peers.append(peer)

    def profile(epsilon: float) -> float:
        return max(float(peer.get_delta(epsilon)) for peer in peers)

    if math.isinf(selection.shape):
        mean = selection.mean or 0.0
        raised = mean * profile(0.0)
    else:
        shape, gamma = selection.shape, selection.gamma or 0.0
        mean = _mean_of_series(shape, gamma)
        odds = (1.0 - gamma) / gamma
        low, high = 0.0, 1.0
        while math.expm1(high) < odds * profile(high):
            high *= 2
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if math.expm1(middle) < odds * profile(middle) else (low, middle)
        raised = (1.0 + shape) * high
    one = max(float(peer.get_epsilon(terms.delta / mean)) for peer in peers)
    return one + raised, f"selection over the privacy profile of one run, by PLD on a grid of {grid:g}"


def _mean_of_series(shape: float, gamma: float) -> float:
    """The mean number of runs, summed up: P[K = k] is proportional to (1−γ)^k·∏_{j<k} (j+η)/(j+1) for k ≥ 1."""
    weight, total, first = 1.0 - gamma, 0.0, 0.0
    for count in range(1, 10_000_000):
        total, first = total + weight, first + count * weight
        weight *= (1.0 - gamma) * (count + shape) / (count + 1)
        if count * weight < 1e-13 * first * gamma:
            break
    return first / total


def _compose(tokens: Sequence[Repeated], terms: Terms) -> tuple[float, str]:
    translate: Callable[[Event], Any]
    rows = rows_together(terms)
    subsets = any(isinstance(token.event, kinds.SubsetGaussian) for token in tokens)
    if rows > 1:
        peer: Any = peer_pld.PLDAccountant(_relation(Relation.ADD_REMOVE), value_discretization_interval=GRID_OF_ROWS)
        how = f"PLD of {rows} rows of a person" + (", of one pair of tables: a lower bound" if subsets else "")
        translate = partial(_several_rows, rows=rows)
    elif terms.accountant == "rdp" and subsets:
        peer = peer_rdp.RdpAccountant(neighboring_relation=_relation(terms.relation))
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
    if isinstance(event, kinds.SubsetGaussian):
        return _translate(kinds.PoissonGaussian(event.noise_multiplier / event.reach, event.rate), rdp=False)
    if isinstance(event, kinds.Gaussian):
        return dp_accounting.GaussianDpEvent(event.noise_multiplier / event.reach)
    raise _NoTranslationError(type(event).__name__)


def _several_rows(event: Event, rows: int) -> Any:
    """A release when all rows of a person point in one direction, and the others in a subset are like what replaces."""
    if isinstance(event, kinds.Tree):
        return _several_rows(event.as_gaussian(), rows)
    if isinstance(event, kinds.Gaussian | kinds.Laplace):
        kind = dp_accounting.GaussianDpEvent if isinstance(event, kinds.Gaussian) else dp_accounting.LaplaceDpEvent
        return kind(event.noise_multiplier / (event.reach * rows))
    if isinstance(event, kinds.PoissonGaussian) and event.relation is Relation.ADD_REMOVE:
        if event.rate == 1:
            return dp_accounting.GaussianDpEvent(event.noise_multiplier / rows)
        noise, chances = event.noise_multiplier, stats.binom(rows, event.rate).pmf(range(rows + 1))
    elif isinstance(event, kinds.SubsetGaussian):
        noise = event.noise_multiplier / event.reach
        chances = stats.hypergeom(event.size, min(rows, event.size), event.batch).pmf(range(rows + 1))
    else:
        raise _NoTranslationError(f"several rows of a {type(event).__name__}")
    return dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise, list(range(rows + 1)), (chances / chances.sum()).tolist()
    )


class _NoTranslationError(Exception):
    pass


def _translate(event: Event, rdp: bool) -> Any:
    """dp-accounting's event; see the module's first lines for the factor 2."""
    if isinstance(event, kinds.Tree):
        return _translate(event.as_gaussian(), rdp)
    if isinstance(event, kinds.PoissonGaussian):
        reach = 2 if rdp and event.relation is Relation.REPLACE_ONE else 1
        return dp_accounting.PoissonSampledDpEvent(
            event.rate, dp_accounting.GaussianDpEvent(event.noise_multiplier / reach)
        )
    if isinstance(event, kinds.SubsetGaussian):
        noise = dp_accounting.GaussianDpEvent(event.noise_multiplier / event.reach)
        return dp_accounting.SampledWithoutReplacementDpEvent(event.size, event.batch, noise)
    if isinstance(event, kinds.Gaussian | kinds.Laplace):
        two_bounds = not rdp and event.relation is Relation.REPLACE_ONE
        noise = event.noise_multiplier / event.reach * (2 if two_bounds else 1)
        kind = dp_accounting.GaussianDpEvent if isinstance(event, kinds.Gaussian) else dp_accounting.LaplaceDpEvent
        return kind(noise)
    raise _NoTranslationError(type(event).__name__)


def _relation(relation: Relation) -> Any:
    peers = dp_accounting.NeighboringRelation
    return peers.ADD_OR_REMOVE_ONE if relation is Relation.ADD_REMOVE else peers.REPLACE_ONE
