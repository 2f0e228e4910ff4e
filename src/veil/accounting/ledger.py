"""Ledger: the append-only record of releases, written before a row is touched.

Each line is one JSON object that ends with a checksum over itself and the line before. A reservation is on disk (fsync)
before `reserve` returns, and noise is drawn only afterwards; so a line that a crash cut short belongs to a release that
was never made, and dropping it loses no cost. A whole line that does not fit its checksum is never dropped: it raises.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from veil.accounting.events import (
    AccountingError,
    Envelope,
    Event,
    Relation,
    Repeated,
    from_json,
    relation_of,
    to_json,
    whole_number,
)
from veil.accounting.spending_rules import SpendingRule, TokenBucket, rule_from_json

FORMAT = 1
# Among the facts of terms: the number of steps was chosen from public facts alone.
STEPS_PUBLIC = "steps_public"
# In place of the last line's checksum while a line is being written: an interrupt may leave it there.
_UNKNOWN = "unknown"


class BudgetExceeded(AccountingError):
    """A reservation that would overrun a budget. Nothing was written and no row was read."""


class LedgerDamaged(AccountingError):
    """A ledger whose lines do not fit their checksums; it is never repaired silently."""


@dataclass(frozen=True, slots=True)
class Account:
    """One cell as the ledger knows it: whose rows, which budget, which rule.

    Args:
        group: Name of the group.
        owner: Name of the owner.
        budget: ε that the owner allows.
        rule: What decides whether a further release is allowed.

    >>> from veil.accounting import Gaussian, Repeated, TokenBucket
    >>> Account("large", "everybody", budget=1.0, rule=TokenBucket((Repeated(Gaussian(10.0), 5),))).group
    'large'
    """

    group: str
    owner: str
    budget: float
    rule: SpendingRule


@dataclass(frozen=True, slots=True)
class Terms:
    """What is fixed before the first release: the ledger's first line.

    Args:
        relation: The neighbouring relation.
        delta: δ of the run.
        accountant: "pld" or "rdp".
        accounts: One for each cell.
        facts: Method, steps and other public constants, as JSON values.

    >>> from veil.accounting import Gaussian, Repeated, TokenBucket
    >>> account = Account("all", "everybody", 1.0, TokenBucket((Repeated(Gaussian(10.0), 5),)))
    >>> Terms(Relation.ADD_REMOVE, delta=1e-5, accountant="pld", accounts=(account,)).as_json()["delta"]
    1e-05
    """

    relation: Relation
    delta: float
    accountant: str
    accounts: tuple[Account, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps_alike(self) -> bool:
        """Whether every account may have one kind of event alone, so that only their number is left to choose."""
        rules = (account.rule for account in self.accounts)
        return all(isinstance(rule, TokenBucket) and len(rule.tokens) <= 1 and not _has_rungs(rule) for rule in rules)

    def as_json(self) -> dict[str, Any]:
        """The first line; equal rules are written once.

        Returns:
            The terms as plain JSON values; `from_json` reads them.
        """
        rules: list[dict[str, Any]] = []
        accounts = []
        for account in self.accounts:
            rule = account.rule.as_json()
            if rule not in rules:
                rules.append(rule)
            accounts.append([account.group, account.owner, account.budget, rules.index(rule)])
        return {
            "format": FORMAT,
            "relation": self.relation.value,
            "delta": self.delta,
            "accountant": self.accountant,
            "rules": rules,
            "accounts": accounts,
            "facts": dict(self.facts),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Terms:
        """Read back the first line.

        Args:
            record: What `as_json` returned.

        Returns:
            The terms.

        Raises:
            LedgerDamaged: A key is missing, a value is not valid, or the format is not the one of this version.
        """
        try:
            if record["format"] != FORMAT:
                raise AccountingError(f"it has format {str(record['format'])[:20]}, this version reads {FORMAT}")
            rules = [rule_from_json(rule) for rule in record["rules"]]
            accounts = tuple(
                Account(str(group), str(owner), float(budget), rules[whole_number(rule, "the number of a rule")])
                for group, owner, budget, rule in record["accounts"]
            )
            relation, delta = Relation(record["relation"]), float(record["delta"])
            if not (0 <= delta < 1 and all(account.budget > 0 for account in accounts)):
                raise AccountingError("δ or a budget is out of range")
            return cls(relation, delta, str(record["accountant"]), accounts, dict(record["facts"]))
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise LedgerDamaged(f"the ledger's first line is not valid: {str(error)[:200]}") from error


def _has_rungs(rule: TokenBucket) -> bool:
    return any(isinstance(token.event, Envelope) for token in rule.tokens)


def _of_steps(rule: SpendingRule, steps: int) -> TokenBucket:
    """The rule of a plan of so many steps, where the one of a longer plan has one kind of event alone."""
    assert isinstance(rule, TokenBucket)
    return TokenBucket(tuple(Repeated(token.event, min(token.times, steps)) for token in rule.tokens if steps))


class Ledger:
    """Reservations per cell under the terms' rules; on disk when it has a path, else in memory only.

    Args:
        terms: What is fixed before the first release.
        path: The file to write, or None for memory alone.

    >>> from veil.accounting import Gaussian, Repeated, TokenBucket
    >>> account = Account("all", "everybody", 1.0, TokenBucket((Repeated(Gaussian(10.0), 5),)))
    >>> ledger = Ledger(Terms(Relation.ADD_REMOVE, delta=1e-5, accountant="pld", accounts=(account,)))
    >>> _ = ledger.reserve("gradient", first=0, count=3, events={0: Gaussian(10.0)})  # before a row is read
    >>> ledger.spent(0)[0].times
    3
    >>> try:
    ...     ledger.reserve("gradient", first=3, count=3, events={0: Gaussian(10.0)})
    ... except BudgetExceeded as error:
    ...     print(str(error).partition(": ")[2])
    the plan allows this release 5 times and 3 are spent
    """

    def __init__(self, terms: Terms, path: Path | None = None) -> None:
        """Start an empty ledger. An existing file is an error: open it instead."""
        self.terms = terms
        self.path = path
        self.recovered = False
        self._spent: list[dict[Event, int]] = [{} for _ in terms.accounts]
        self._entries: list[dict[str, Any]] = []
        self._made: dict[tuple[str, int], dict[str, Any]] = {}
        self._check = ""
        if path is not None:
            if path.exists():
                raise AccountingError(f"{path} already exists: a ledger is never overwritten")
            path.touch(mode=0o644)
        self._append({"terms": terms.as_json()})

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Read a ledger back, dropping only a last line that a crash cut short (no release followed it).

        Args:
            path: The file `ledger.jsonl`. A last line that was cut short is removed from it.

        Returns:
            The ledger, ready for further reservations. `recovered` is True if a line was dropped.

        Raises:
            LedgerDamaged: A line was changed, is missing, or is not valid.
        """
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        ledger = cls.read(whole, path)
        ledger.recovered = len(whole) < len(content)
        if ledger.recovered:
            with path.open("rb+") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        return ledger

    @classmethod
    def read(cls, content: bytes, path: Path | None = None) -> Ledger:
        """The ledger with this content, whose last line is whole. Nothing is written.

        Args:
            content: All lines of a ledger.
            path: Where further reservations are written; None keeps them in memory.

        Returns:
            The ledger.

        Raises:
            LedgerDamaged: A line was changed, is missing, or is not valid.
        """
        records, check = _read_lines(content)
        ledger = cls.__new__(cls)
        ledger.terms = Terms.from_json(records[0].get("terms", {}))
        ledger.path, ledger.recovered, ledger._check = path, False, check
        ledger._spent = [{} for _ in ledger.terms.accounts]
        ledger._entries, ledger._made = [], {}
        for record in records[1:]:
            ledger._apply(record)
        return ledger

    @classmethod
    def continued(cls, terms: Terms, path: Path) -> Ledger:
        """The ledger of a resumed run: the one on disk if it has these terms, a new one if there is none.

        A file whose first line a crash cut short holds no reservation and is replaced.

        Args:
            terms: The terms of the resumed run.
            path: The file `ledger.jsonl`.

        Returns:
            The ledger, ready for further reservations.

        Raises:
            AccountingError: The ledger on disk has other terms.
            LedgerDamaged: A line was changed, is missing, or is not valid.
        """
        if path.exists() and b"\n" not in path.read_bytes():
            path.unlink()
        if not path.exists():
            return cls(terms, path)
        ledger = cls.open(path)
        if json.dumps(ledger.terms.as_json(), sort_keys=True) != json.dumps(terms.as_json(), sort_keys=True):
            raise AccountingError(f"{path} was started with other terms: resume with the original plan or a new folder")
        ledger.terms = terms
        return ledger

    @property
    def check(self) -> str:
        """The checksum of the last line, which covers all lines before it."""
        return self._check

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """The reservations in order."""
        return tuple(self._entries)

    def spent(self, cell: int) -> tuple[Repeated, ...]:
        """What one cell has been charged so far.

        Args:
            cell: Number of the cell in `terms.accounts`.

        Returns:
            Each kind of release with how often it was charged.
        """
        return tuple(Repeated(event, times) for event, times in self._spent[cell].items())

    def standing(self) -> Ledger:
        """The ledger whose rules the guarantee follows from: for certificates, not for spending.

        These are the rules of the plan. Where the number of steps is public and all steps cost the same, the run is one
        of so many steps: nothing about it was chosen by looking at a release. It is as many as were reserved for
        whoever took part in most of them, since who takes part in a step may follow from releases.

        Returns:
            This ledger, or a copy of it with the rules of the steps that were made.
        """
        if self.terms.facts.get(STEPS_PUBLIC) is not True or not self.terms.steps_alike:
            return self
        view = copy(self)
        steps = max((times for spent in self._spent for times in spent.values()), default=0)
        accounts = tuple(replace(account, rule=_of_steps(account.rule, steps)) for account in self.terms.accounts)
        view.terms = replace(self.terms, accounts=accounts)
        return view

    def upto(self, entries: int) -> Ledger:
        """The ledger as it stood after its first `entries` reservations: for readings, not for spending.

        Args:
            entries: How many reservations count.

        Returns:
            This ledger if it has no more; otherwise a copy in memory.
        """
        if entries == len(self._entries):
            return self
        earlier = Ledger(self.terms)
        for record in self._entries[:entries]:
            earlier._apply(record)
        return earlier

    def reserve(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> int:
        """Charge `count` releases, steps `first` onwards, to the cells in `events`; on disk when this returns.

        The same reservation made again (a resumed run that repeats the same releases with the same noise) costs nothing
        more.

        Args:
            purpose: What is released, like "gradient".
            first: The first step, counted from 0.
            count: How many steps, at least 1.
            events: What one step costs each cell that takes part, by number of the cell.

        Returns:
            The number of reservations in the ledger, this one included.

        Raises:
            BudgetExceeded: The rule of a cell does not allow it. Nothing was written.
            AccountingError: The same step was reserved before with another cost.
        """
        record = self._record(purpose, first, count, events)
        earlier = self._made.get((purpose, first))
        if earlier is not None:
            if earlier != record:
                raise AccountingError(f"step {first} was already reserved for {purpose} with a different cost")
            return self._entries.index(earlier) + 1
        for cell, event in events.items():
            reason = self.terms.accounts[cell].rule.refusal(self._spent[cell], Repeated(event, count))
            if reason is not None:
                account = self.terms.accounts[cell]
                raise BudgetExceeded(
                    f'release "{purpose}" at step {first} is refused for group "{account.group}", '
                    f'owner "{account.owner}": {reason}'
                )
        self._append(record)
        self._apply(record)
        return len(self._entries)

    def _record(self, purpose: str, first: int, count: int, events: Mapping[int, Event]) -> dict[str, Any]:
        if count < 1:
            raise AccountingError(f"a reservation covers at least one release, not {count}")
        if events and relation_of(events.values()) is not self.terms.relation:
            raise AccountingError(
                f"a release under {relation_of(events.values())} cannot enter a ledger of {self.terms.relation}"
            )
        by_event: dict[Event, list[int]] = {}
        for cell in sorted(events):
            by_event.setdefault(events[cell], []).append(cell)
        costs = [[to_json(event), cells] for event, cells in by_event.items()]
        return {"purpose": purpose, "first": first, "count": count, "costs": costs}

    def _apply(self, record: dict[str, Any]) -> None:
        try:
            count, first = whole_number(record["count"], "count", 1), whole_number(record["first"], "first")
            for event_json, cells in record["costs"]:
                event = from_json(event_json)
                if event.relation is not self.terms.relation:
                    raise AccountingError(f"an event does not have the ledger's relation {self.terms.relation}")
                for cell in cells:
                    spent = self._spent[whole_number(cell, "the number of a cell")]
                    spent[event] = spent.get(event, 0) + count
            self._made[(str(record["purpose"]), first)] = record
        except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
            raise LedgerDamaged(f"a line of the ledger is not a valid reservation: {str(error)[:200]}") from error
        self._entries.append(record)

    def _append(self, record: dict[str, Any]) -> None:
        if self._check == _UNKNOWN:
            raise AccountingError(
                f"a write to {self.path or 'the ledger'} was interrupted, so nothing more can be reserved here: "
                "resume the run from its folder"
            )
        line, check = _seal(record, self._check)
        self._check = _UNKNOWN
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        self._check = check


def _seal(record: Mapping[str, Any], previous: str) -> tuple[bytes, str]:
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    check = hashlib.blake2b((previous + body).encode(), digest_size=16).hexdigest()
    return f'{{"record":{body},"check":"{check}"}}\n'.encode(), check


def _read_lines(content: bytes) -> tuple[list[dict[str, Any]], str]:
    records: list[dict[str, Any]] = []
    check = ""
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            record = json.loads(line)["record"]
            expected, check = _seal(record, check) if isinstance(record, dict) else (b"", "")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise LedgerDamaged(f"line {number} of the ledger is not readable") from error
        if line != expected:
            raise LedgerDamaged(f"line {number} of the ledger does not match its checksum: it was modified")
        records.append(record)
    if not records:
        raise LedgerDamaged("the ledger is empty: its first line, the terms, is missing")
    return records, check
