"""Certificate: the (ε, δ) that a run guarantees to each group and owner, made from its ledger and nothing else."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from veil.accounting.accountant import Accountant
from veil.accounting.events import AccountingError, Relation, Selection
from veil.accounting.generalisation import gap_bounds, gap_sentence
from veil.accounting.ledger import Account, Ledger, Terms
from veil.accounting.people import epsilons_shown
from veil.accounting.pld import Pld
from veil.accounting.rdp import Rdp
from veil.accounting.spending_rules import TokenBucket
from veil.foundation.files import FOR_ALL, write_whole

GROUP_SIZES = "group_sizes"
UNIT_FACT = "unit"
ROWS_FACT = "rows_of_person"
"""How many rows of a person are accounted for together, where each counts by itself."""
UNIT, PERSON = "one row", "one person"
ADDED = ("by_rows", "generalisation", "held_out")
"""What certificates of earlier versions do not have."""
_NAMES = "the names of groups, owners and classes"
# What cannot be told, and what stays fixed between neighbours, by relation and by where the group sizes come from.
_REMOVED = {
    "counted": (
        "whether any one row was in the data or its place was empty",
        f"Public, and the same when a row is removed: {_NAMES}, and the group sizes, which were counted in the rows.",
    ),
    "declared": (
        "whether any one row was in the data",
        f"Public, and the same when a row is removed: {_NAMES}, and the group sizes, which were declared.",
    ),
    "released": (
        "whether any one row was in the data",
        f"Public, and the same when a row is removed: {_NAMES}. Group sizes are noisy: this ε pays for them.",
    ),
}
_REPLACED = (
    "what any one row says, as against any other row of the same group and owner",
    f"Public, and the same when a row is replaced: {_NAMES}, and how many rows each has.",
)
# The same for people: all rows of a person are there or not, or are others. Sizes count people or, where each row
# counts by itself, rows.
_PEOPLE_REMOVED = {
    "counted": (
        "whether any one person was in the data or their place was empty",
        f"Public, and the same when a person is removed: {_NAMES}, and how many {{counted}} each group has, which was "
        "counted in the rows.",
    ),
    "declared": (
        "whether any one person was in the data",
        f"Public, and the same when a person is removed: {_NAMES}, and how many {{counted}} each group has, which was "
        "declared.",
    ),
    "released": (
        "whether any one person was in the data",
        f"Public, and the same when a person is removed: {_NAMES}. How many {{counted}} each group has is noisy: this "
        "ε pays for it.",
    ),
}
_PEOPLE_REPLACED = (
    "what the rows of any one person say, as against any others of the same group and owner under that name",
    f"Public, and the same when a person is replaced: {_NAMES}, and how many people each has.",
)
_ROWS_OF_PERSON_REPLACED = (
    "what the rows of any one person say, as against as many others of the same group and owner under that name",
    f"Public, and the same when a person is replaced: {_NAMES}, and how many rows each of them has, and each person.",
)


@dataclass(frozen=True)
class Certificate:
    """What is promised, to whom, and under which assumptions. `epsilon` is None where nothing is promised.

    `unit` is what every ε is for: one row, or one person with all their rows. Where it is a row, `by_rows` has the ε of
    a person with that many rows, trained on or held out, and `generalisation` bounds, by group, how far figures on
    training rows are from those on new rows (`gap_bounds`). `columns` says of each column of a table how it was
    learned, or why it was left out. `held_out` has the ε of rows that took no part in training, by the ledger of what
    was measured on them: in `by_group` and `by_owner` every row counts by the larger of the two. `model` has the
    hashes of the trained model (`model_digest.py`).

    Args:
        method: Name of the method.
        private: Whether anything is promised.
        epsilon: The largest ε of any row.
        delta: δ of the statement.
        relation: "add-remove" or "replace-one".
        accountant: Which accountant computed ε: "pld" or "rdp".
        by_group: ε of one row of each group.
        by_owner: ε of one row of each owner.
        budgets: ε that each owner allowed.
        spent_by_group: ε of what was really released, by group: a reading, not the guarantee.
        statement: The promise in words.
        assumptions: What it relies on, one sentence each.
        not_covered: What it leaves out, one sentence each.
        facts: Public constants of the run.
        ledger_check: Checksum of the ledger that it belongs to.
        unit: What every ε is for.
        by_rows: ε of a person with so many rows.
        held_out: ε of rows that took no part in training.
        generalisation: Bounds on the gap between training rows and new rows, by group.
        generalisation_statement: The same in words.
        columns: How each column was learned.
        model: Hashes of the trained model.

    >>> from veil.accounting import Account, Gaussian, Pld, Relation, Repeated, Terms, TokenBucket
    >>> account = Account("all", "everybody", 2.0, TokenBucket((Repeated(Gaussian(10.0), 5),)))
    >>> ledger = Ledger(Terms(Relation.ADD_REMOVE, delta=1e-5, accountant="pld", accounts=(account,)))
    >>> certificate = certify(ledger, Pld(), assumptions=("Seeds are secret.",))
    >>> certificate.by_group == {"all": certificate.epsilon}, certificate.unit
    (True, 'one row')
    """

    method: str
    private: bool
    epsilon: float | None
    delta: float | None
    relation: str | None
    accountant: str | None
    by_group: Mapping[str, float]
    by_owner: Mapping[str, float]
    budgets: Mapping[str, float]
    spent_by_group: Mapping[str, float]
    statement: str
    assumptions: tuple[str, ...]
    not_covered: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    ledger_check: str = ""
    unit: str = UNIT
    by_rows: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, float] = field(default_factory=dict)
    generalisation: Mapping[str, float] = field(default_factory=dict)
    generalisation_statement: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values.

        Returns:
            One entry for each field, as written to `certificate.json`.
        """
        return asdict(self)

    def save(self, path: Path) -> None:
        """Write `certificate.json`.

        Args:
            path: The file to write; it is replaced as a whole, never left half written.
        """
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
        write_whole(path, text.encode(), FOR_ALL)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Certificate:
        """The certificate whose `as_json` this is.

        Args:
            record: What `as_json` returned. Values are not checked; `load` checks them.

        Returns:
            The certificate.
        """
        lists = {name: tuple(record[name]) for name in ("assumptions", "not_covered")}
        return cls(**{**record, **lists})

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read `certificate.json`.

        Args:
            path: The file.

        Returns:
            The certificate.

        Raises:
            AccountingError: The file is not a certificate: a key is missing, or a value has the wrong kind.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            _check_kinds(record)
            return cls.from_json(record)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise AccountingError(f"{path.name} is not a certificate: {str(error)[:200]}") from error


def _check_kinds(record: Any) -> None:
    """Check that every value has the type of its field, so that callers can rely on it."""
    if not isinstance(record, dict):
        raise AccountingError("it must be a JSON object")
    for name in ("by_group", "by_owner", "budgets", "spent_by_group", *ADDED):
        values = record.get(name, {}) if name in ADDED else record[name]
        if not isinstance(values, dict) or not all(_is_number(value) for value in values.values()):
            raise AccountingError(f"`{name}` must map names to numbers")
    for name in ("epsilon", "delta"):
        if record[name] is not None and not _is_number(record[name]):
            raise AccountingError(f"`{name}` must be a number")
    for name in ("method", "statement", "ledger_check", "generalisation_statement"):
        if not isinstance(record.get(name, "") if name.startswith("generalisation") else record[name], str):
            raise AccountingError(f"`{name}` must be a string")
    for name in ("relation", "accountant"):
        if record[name] is not None and not isinstance(record[name], str):
            raise AccountingError(f"`{name}` must be a string")
    for name in ("assumptions", "not_covered"):
        if not isinstance(record[name], list) or not all(isinstance(item, str) for item in record[name]):
            raise AccountingError(f"`{name}` must be a list of sentences")
    for name, what in (("columns", "sentences"), ("model", "hashes")):
        words = record.get(name, {})
        if not isinstance(words, dict) or not all(isinstance(said, str) for said in words.values()):
            raise AccountingError(f"`{name}` must map names to {what}")
    if record.get("unit", UNIT) not in (UNIT, PERSON) or not all(map(str.isdecimal, record.get("by_rows", {}))):
        raise AccountingError(f"`unit` must be {UNIT} or {PERSON}, and `by_rows` must map numbers of rows to numbers")
    if not isinstance(record["private"], bool) or not isinstance(record["facts"], dict):
        raise AccountingError("`private` must be true or false, and `facts` an object")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def certify(
    ledger: Ledger,
    accountant: Accountant,
    *,
    assumptions: tuple[str, ...] = (),
    not_covered: tuple[str, ...] = (),
    held_out: Mapping[str, Ledger] | None = None,
) -> Certificate:
    """The certificate of a private run. An approximate accountant is rejected.

    Args:
        ledger: Terms and reservations of a run.
        accountant: What turns events into ε.
        assumptions: Sentences that the guarantee rests on.
        not_covered: Sentences on what it leaves out.
        held_out: Ledgers of rows that took no part in training, by name.

    Returns:
        ε of every group and owner, with statement, assumptions and gaps.

    Raises:
        AccountingError: The accountant is an approximation.

    >>> from veil.accounting import Account, Gaussian, Pld, Relation, Repeated, Terms, TokenBucket
    >>> account = Account("all", "everybody", 2.0, TokenBucket((Repeated(Gaussian(10.0), 5),)))
    >>> ledger = Ledger(Terms(Relation.ADD_REMOVE, delta=1e-5, accountant="pld", accounts=(account,)))
    >>> round(certify(ledger, Pld()).epsilon, 2)
    0.82
    """
    ledger = ledger.standing()
    terms = ledger.terms
    if accountant.approximate:
        raise AccountingError(f"{accountant.name} is an approximation and may underestimate ε: it cannot certify")
    check_together(terms, accountant)
    guarantees = guarantees_by_account(ledger, accountant)
    readings = _readings(ledger, accountant, guarantees)
    apart = {
        name: (other, guarantees_by_account(other, accountant_of(other.terms)))
        for name, other in (held_out or {}).items()
    }
    accounts = [*terms.accounts, *(account for other, _ in apart.values() for account in other.terms.accounts)]
    others = [epsilon for _, found in apart.values() for epsilon in found]
    worst = max([*guarantees, *others], default=0.0)
    if not math.isfinite(worst):
        raise AccountingError("no finite ε holds for this ledger at its δ")
    # Rows are held out whoever owns them, and ledgers of held-out rows need not name owners.
    by_owner = {
        name: max([epsilon, *others]) for name, epsilon in _largest(terms.accounts, guarantees, "owner").items()
    }
    # Of people the bound would speak of figures in which every person counts once.
    gaps = gap_bounds(ledger, accountant) if unit_of(terms) == UNIT else {}
    return Certificate(
        method=str(terms.facts.get("method", "")),
        private=True,
        epsilon=worst,
        delta=terms.delta,
        relation=terms.relation.value,
        accountant=terms.accountant,
        by_group=_largest(accounts, [*guarantees, *others], "group"),
        by_owner=by_owner,
        budgets=_largest(terms.accounts, [account.budget for account in terms.accounts], "owner"),
        spent_by_group=_largest(accounts, [*readings, *others], "group"),
        statement=_statement(worst, terms, by_owner),
        assumptions=assumptions,
        not_covered=not_covered,
        facts=terms.facts,
        ledger_check=ledger.check,
        unit=unit_of(terms),
        by_rows=epsilons_shown(ledger, accountant, [other for other, _ in apart.values()])
        if unit_of(terms) == UNIT and not _selects(terms)
        else {},
        generalisation=gaps,
        generalisation_statement=gap_sentence(gaps) if gaps else "",
        held_out={name: max(found, default=0.0) for name, (_, found) in apart.items()},
    )


def no_certificate(method: str, facts: Mapping[str, Any]) -> Certificate:
    """The certificate of a method that is not private: it guarantees nothing."""
    return Certificate(
        method=method,
        private=False,
        epsilon=None,
        delta=None,
        relation=None,
        accountant=None,
        by_group={},
        by_owner={},
        budgets={},
        spent_by_group={},
        statement=f"The method {method} is not private: the model may reveal any row it was trained on.",
        assumptions=(),
        not_covered=("everything: there is no privacy guarantee",),
        facts=facts,
    )


def guarantees_by_account(ledger: Ledger, accountant: Accountant) -> list[float]:
    """The ε of each account's rule; equal rules are computed once."""
    known: dict[Any, float] = {}
    for account in ledger.terms.accounts:
        if account.rule not in known:
            known[account.rule] = account.rule.guarantee(ledger.terms.delta, accountant)
    return [known[account.rule] for account in ledger.terms.accounts]


def accountant_of(terms: Terms) -> Accountant:
    """The accountant that a ledger names, for as many rows of a person as it says."""
    rows = rows_together(terms)
    return Pld(rows=rows) if terms.accountant == "pld" or rows > 1 else Rdp()


def check_budgets(ledger: Ledger, accountant: Accountant) -> None:
    """Reject terms whose rules would let an account exceed its budget; called before anything is released."""
    check_together(ledger.terms, accountant)
    for account, epsilon in zip(ledger.terms.accounts, guarantees_by_account(ledger, accountant), strict=True):
        if not epsilon <= account.budget * (1 + 1e-6):
            raise AccountingError(
                f'the plan would give group "{account.group}", owner "{account.owner}" an ε of {epsilon:.4g}, '
                f"more than its budget of {account.budget:g}"
            )


def _readings(ledger: Ledger, accountant: Accountant, guarantees: Sequence[float]) -> list[float]:
    known: dict[Any, float] = {}
    readings = []
    for cell, account in enumerate(ledger.terms.accounts):
        spent = ledger.spent(cell)
        key = (account.rule, frozenset(spent))
        if key not in known:
            # A bucket without a token left has spent its guarantee.
            whole = isinstance(account.rule, TokenBucket) and frozenset(account.rule.tokens) == key[1]
            known[key] = guarantees[cell] if whole else account.rule.reading(spent, ledger.terms.delta, accountant)
        readings.append(known[key])
    return readings


def _largest(accounts: Sequence[Account], values: Sequence[float], attribute: str) -> dict[str, float]:
    """The largest value of each group or owner."""
    largest: dict[str, float] = {}
    for account, value in zip(accounts, values, strict=True):
        name = getattr(account, attribute)
        largest[name] = max(largest.get(name, 0.0), value)
    return largest


def unit_of(terms: Terms) -> str:
    """What is protected as a whole."""
    return PERSON if terms.facts.get(UNIT_FACT) == PERSON else UNIT


def rows_together(terms: Terms) -> int:
    """How many rows of a person the ledger's events are accounted for together; 1 where an entry is the unit.

    Raises:
        AccountingError: What the ledger has there is no number of rows of a person.
    """
    found = terms.facts.get(ROWS_FACT, 1)
    whole = isinstance(found, int) and not isinstance(found, bool) and found >= 1
    if not whole or (found > 1 and unit_of(terms) == UNIT):
        raise AccountingError(f"the ledger has {found!r} as {ROWS_FACT}: it must be a number of rows of one person")
    return int(found)


def check_together(terms: Terms, accountant: Accountant) -> None:
    """Reject an accountant, or a spending rule, that does not count all rows of a person where these are the unit."""
    rows = rows_together(terms)
    counted = getattr(accountant, "rows", 1)
    if counted != rows:
        raise AccountingError(f"{accountant.name} counts {counted} rows of a person and the ledger is for {rows}")
    tokens = (account.rule for account in terms.accounts)
    if rows > 1 and not all(isinstance(rule, TokenBucket) for rule in tokens):
        raise AccountingError("only releases that are fixed beforehand are accounted for several rows of a person")


def _selects(terms: Terms) -> bool:
    """Whether the run is the best of several, which rows of one person may also choose and measure."""
    rules = (account.rule for account in terms.accounts)
    tokens = (token for rule in rules if isinstance(rule, TokenBucket) for token in rule.tokens)
    return any(isinstance(token.event, Selection) for token in tokens)


def _neighbours_in_words(terms: Terms) -> tuple[str, str]:
    """What nobody can tell, and what is public and stays fixed. Sizes of unknown origin count as counted."""
    unit, together = unit_of(terms), rows_together(terms)
    if terms.relation is Relation.REPLACE_ONE:
        people = _PEOPLE_REPLACED if together == 1 else _ROWS_OF_PERSON_REPLACED
        return _REPLACED if unit == UNIT else people
    removed = _REMOVED if unit == UNIT else _PEOPLE_REMOVED
    hidden, fixed = removed.get(str(terms.facts.get(GROUP_SIZES)), removed["counted"])
    return hidden, fixed.format(counted="people" if together == 1 else "rows")


def _statement(epsilon: float, terms: Terms, by_owner: Mapping[str, float]) -> str:
    odds = math.exp(min(epsilon, 700.0))
    factor = f"by more than a factor of {odds:.2f}" if odds < 1000 else "by more than a very large factor"
    unit = unit_of(terms)
    hidden, fixed = _neighbours_in_words(terms)
    text = (
        f"Seeing the model, nobody can tell {hidden} {factor} (ε = {epsilon:.3g}) in the odds, except with a "
        f"probability of at most δ = {terms.delta:.2g}. {fixed}"
    )
    if len(by_owner) > 1:
        strongest = min(by_owner, key=lambda name: by_owner[name])
        each, all_of = ("single row", "rows") if unit == UNIT else ("person", "people")
        its = "its" if unit == UNIT else "their"
        text += (
            f' Each {each} has the ε of {its} owner, from {by_owner[strongest]:.3g} ("{strongest}") to '
            f"{epsilon:.3g}: all {all_of} of one owner together have no such ε."
        )
    return text
