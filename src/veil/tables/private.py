"""Private preprocessing: bounds, categories and group sizes from two noisy releases, charged with the training.

1. One release over all columns: octaves of numbers and dates, hash values of categories, group sizes.
2. One release over numbers and dates: 64 equal steps between the octaves found, which tightens the bounds.

Bounds reach from the first to the last bin whose noisy count stands out of the noise; categories are the hash values
whose noisy count does. Both releases have the same noise multiplier κ, so they are two equal events; the training that
follows is planned for what is left of ε (`WithPreprocessing`).

Where group sizes are released, the rates and the noise of training depend on a released value. Composing such a choice
by PLD is not proved, so every cell then has a Rényi filter at one order that follows from (ε, δ) alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from veil.accounting import (
    Account,
    AccountingError,
    Event,
    Gaussian,
    Ledger,
    Relation,
    RenyiFilter,
    Repeated,
    Terms,
    TokenBucket,
)
from veil.accounting.accountant import Accountant
from veil.accounting.calibration import noise_multiplier
from veil.accounting.conversion import epsilon_at_order
from veil.accounting.rdp import rdp
from veil.accounting.spending_rules import SpendingRule
from veil.errors import InputError, require
from veil.methods import Method
from veil.plans import Earlier, Plan, Settings
from veil.problem import Cell, PublicFacts
from veil.releases import Allowance
from veil.tables.encoding import Column, Date, Encoding, HashedCategory, Numeric, days, hashed_words, numbers
from veil.tables.histograms import HistogramRelease, filled_range, octave_bins, octave_edges, step_bins
from veil.tables.schema import Schema, SchemaColumn

PURPOSE = "preprocessing"
RELEASES = 2
HASH_VALUES = 1024
STEPS = 64
GROUPS = "groups"
KINDS_PUBLIC = (
    "Which columns the table has, the kind of each (number, date, category, text) and how it is read (whether dates "
    "begin with the day), the classes of the target and the names of the groups are public knowledge and stay as they "
    "are."
)


@dataclass(frozen=True)
class Preprocessing:
    """What the releases gave: how columns become numbers, the noisy group sizes, and the event that each cost."""

    encoding: Encoding
    group_sizes: Mapping[str, int] | None
    event: Event
    share: float

    def tokens(self) -> tuple[Repeated, ...]:
        """The cost to every cell."""
        return (Repeated(self.event, RELEASES),)


def relation_of(method: Method, groups: Sequence[str]) -> tuple[Relation, bool]:
    """Relation under which a method is private, and whether its plan fixes all events; found with synthetic facts."""
    names = tuple(groups) or ("everybody",)
    facts = PublicFacts(
        names, ("everybody",), tuple(Cell(g, 0, 10_000) for g in range(len(names))), (1,), classes=("a", "b")
    )
    settings = Settings.checked(epsilon=8.0, delta=1e-5, epochs=1.0, batch_size=500, accountant="rdp")
    plan = method.plan(facts, settings)
    require(plan.relation is not None, f'method "{plan.method}" is not private: omit private preprocessing')
    fixed = all(isinstance(rule, TokenBucket) for rule in plan.rules or ())
    return Relation(str(plan.relation)), fixed


def find_encoding(
    table: pd.DataFrame,
    schema: Schema,
    allowance: Allowance,
    share: float,
    groups: Sequence[str],
    group_of: Sequence[str] | None,
) -> Preprocessing:
    """Fill in what the schema leaves open, by two releases that together cost `share` of the allowance.

    `group_of` names each row's group; where it is given, the group sizes are released too. Values that are not of
    their column's kind count as missing.
    """
    require(0 < share < 1, f"the share of private preprocessing is {share}: it must be between 0 and 1")
    relation, noise = allowance.relation, allowance.noise
    kappa = noise_multiplier(
        lambda k: [Repeated(Gaussian(k, relation, one_sided=True), RELEASES)],
        share * allowance.epsilon,
        allowance.delta,
        allowance.accountant,
    )
    ranged = [facts for facts in schema.columns if facts.open and facts.kind in ("numeric", "date")]
    listed = [facts for facts in schema.columns if facts.open and facts.kind in ("category", "group")]
    columns = len(ranged) + len(listed) + (group_of is not None)
    require(columns > 0, "the schema already states everything: omit --private-preprocessing to use all ε for training")
    first = HistogramRelease(PURPOSE, 0, columns, kappa, relation)
    second = HistogramRelease(PURPOSE, 1, max(len(ranged), 1), kappa, relation)
    event = Gaussian(kappa, relation, one_sided=True)
    ledger = _ledger(groups, allowance, event)
    ledger.reserve(PURPOSE, 0, RELEASES, dict.fromkeys(range(len(groups)), event))
    values = {facts.name: _values(table, facts) for facts in ranged}
    bins = {name: octave_bins(found) for name, found in values.items()}
    bins |= {facts.name: (hashed_words(table[facts.name], facts.name, HASH_VALUES), HASH_VALUES) for facts in listed}
    if group_of is not None:
        bins[_GROUP_KEY] = (pd.Index(list(groups)).get_indexer(pd.Index(list(group_of))).astype(np.int64), len(groups))
    counts = first.make(bins, noise)
    limit = first.threshold(sum(total for _, total in bins.values()))
    found: dict[str, Column] = {
        facts.name: HashedCategory(facts.name, HASH_VALUES, tuple(np.flatnonzero(counts[facts.name] > limit).tolist()))
        for facts in listed
    }
    coarse = {facts.name: filled_range(counts[facts.name], limit, octave_edges()) or (0.0, 1.0) for facts in ranged}
    fine = second.make({name: step_bins(values[name], *coarse[name], STEPS) for name in coarse}, noise)
    narrow = second.threshold(STEPS * max(len(ranged), 1))
    for facts in ranged:
        low, high = coarse[facts.name]
        edges = np.linspace(low, high, STEPS + 1)
        pairs = np.column_stack([edges[:-1], edges[1:]])
        bounds = filled_range(fine[facts.name], narrow, pairs)
        if bounds is None or not _holds_most(fine[facts.name], pairs, bounds, counts[facts.name], limit):
            bounds = low, high
        found[facts.name] = _ranged(facts, *bounds)
    sizes = None if group_of is None else _sizes(counts[_GROUP_KEY], groups)
    return Preprocessing(_encoding(schema, found), sizes, event, share)


_GROUP_KEY = "\0groups"
# Narrow bounds must hold this share of the rows that the wide ones hold, as far as noise lets one see.
_MOST = 0.8


def _holds_most(
    fine: np.ndarray[Any, np.dtype[np.float64]],
    pairs: np.ndarray[Any, np.dtype[np.float64]],
    bounds: tuple[float, float],
    coarse: np.ndarray[Any, np.dtype[np.float64]],
    limit: float,
) -> bool:
    """Whether narrow bounds hold most rows: a few bins that stand out of the noise are not yet a range."""
    inside = (pairs[:, 0] >= bounds[0]) & (pairs[:, 1] <= bounds[1])
    rows = max(float(fine.sum()), float(coarse[coarse > limit].sum()))
    return float(fine[inside].sum()) >= _MOST * rows


def _values(table: pd.DataFrame, facts: SchemaColumn) -> np.ndarray[Any, np.dtype[np.float64]]:
    column = table[facts.name]
    if facts.kind == "date":
        return days(column, facts.name, lenient=True, day_first=facts.day_first)
    return numbers(column, facts.name, facts.missing_words, lenient=True)


def _ranged(facts: SchemaColumn, low: float, high: float) -> Column:
    if facts.kind == "date":
        return Date(facts.name, low, high, facts.missing, lenient=True, day_first=facts.day_first)
    return Numeric(facts.name, low, high, facts.missing, facts.missing_words, lenient=True)


def _sizes(counts: np.ndarray[Any, np.dtype[np.float64]], groups: Sequence[str]) -> dict[str, int]:
    """Noisy sizes; a group that the noise hides counts as one row."""
    return {name: max(1, round(float(count))) for name, count in zip(groups, counts, strict=True)}


def _encoding(schema: Schema, found: Mapping[str, Column]) -> Encoding:
    columns = [found.get(facts.name) or facts.column() for facts in schema.columns]
    kept = tuple(column for column in columns if column is not None and column.width() > 0)
    require(len(kept) > 0, "private preprocessing found no column above the noise: give it a larger share")
    return Encoding(kept, schema.from_rows)


def _ledger(groups: Sequence[str], allowance: Allowance, event: Event) -> Ledger:
    rule = TokenBucket((Repeated(event, RELEASES),))
    accounts = tuple(Account(name, "everybody", allowance.epsilon, rule) for name in groups)
    details = {"method": PURPOSE, "steps": RELEASES}
    return allowance.open_ledger(
        Terms(allowance.relation, allowance.delta, allowance.accountant.name, accounts, details)
    )


@dataclass(frozen=True)
class WithPreprocessing:
    """A method whose plan also pays for releases that were made before: it spends what they leave of every budget."""

    method: Method
    tokens: tuple[Repeated, ...]
    share: float
    sizes_released: bool = False

    name: ClassVar[str] = PURPOSE
    family: ClassVar[str] = PURPOSE
    private: ClassVar[bool] = True
    relation: ClassVar[str | None] = None
    summary: ClassVar[str] = "a method whose plan also pays for private preprocessing"

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """The largest training budget with which everything together stays within every cell's ε.

        A training budget is tried, its rules are joined with the earlier releases, and the accountant is asked.
        """
        good: Plan | None = None
        low, high, scale = 0.0, 1.0, math.sqrt(1 - self.share**2)
        for _ in range(8):
            plan = self._tried(facts, settings, scale)
            if plan is not None:
                good, low = plan, scale
            else:
                high = scale
            if good is not None and high - low < 0.005:
                break
            scale = (low + high) / 2 if low > 0 else 0.9 * scale
        if good is None:
            raise InputError("the share of private preprocessing leaves too little for training: lower it")
        return good

    def _tried(self, facts: PublicFacts, settings: Settings, scale: float) -> Plan | None:
        """The plan whose training has `scale` of every budget; None if everything together costs too much."""
        lesser = None if facts.budgets is None else tuple(scale * budget for budget in facts.budgets)
        plan = self.method.plan(
            replace(facts, budgets=lesser), settings.model_copy(update={"epsilon": scale * settings.epsilon})
        )
        if plan.rules is None:
            raise InputError(f'method "{plan.method}" is not private: omit private preprocessing')
        joined: dict[tuple[SpendingRule, float], SpendingRule | None] = {}
        for cell, rule in enumerate(plan.rules):
            budget = facts.budget_of(cell, settings.epsilon)
            if (rule, budget) not in joined:
                joined[rule, budget] = self._joined(rule, budget, plan.delta, settings.accountant_for(facts))
        rules = [joined[rule, facts.budget_of(cell, settings.epsilon)] for cell, rule in enumerate(plan.rules)]
        kept = tuple(rule for rule in rules if rule is not None)
        if len(kept) < len(rules):
            return None
        return replace(
            plan,
            facts=facts,
            settings=settings,
            rules=kept,
            assumptions=(*plan.assumptions, KINDS_PUBLIC),
            details={**plan.details, "preprocessing_share": self.share},
            earlier=tuple(
                Earlier(PURPOSE, 0, token.times, dict.fromkeys(range(len(facts.cells)), token.event))
                for token in self.tokens
            ),
        )

    def _joined(self, rule: SpendingRule, budget: float, delta: float, by: Accountant) -> SpendingRule | None:
        """The rule that also admits the earlier releases, if it stays within the budget."""
        if self.sizes_released:
            if not isinstance(rule, TokenBucket):
                raise AccountingError("a plan that spends adaptively cannot depend on released group sizes")
            whole = filter_for(budget, delta)
            first, *others = (*self.tokens, *rule.tokens)
            return whole if whole.refusal({item.event: item.times for item in others}, first) is None else None
        both: SpendingRule
        if isinstance(rule, TokenBucket):
            both = TokenBucket((*rule.tokens, *self.tokens))
        elif isinstance(rule, RenyiFilter):
            both = RenyiFilter(rule.order, rule.rho + sum(_cost(token, rule.order) for token in self.tokens))
        else:
            raise AccountingError(f"private preprocessing cannot be charged to a {type(rule).__name__}")
        return both if both.guarantee(delta, by) <= budget else None


def filter_for(epsilon: float, delta: float) -> RenyiFilter:
    """The Rényi filter that guarantees (ε, δ) at the order which suits a Gaussian release of that cost.

    >>> from veil.accounting import Rdp
    >>> 0.999 < filter_for(1.0, 1e-5).guarantee(1e-5, Rdp()) <= 1.0
    True
    """
    tail = math.log(1 / delta)
    root = math.sqrt(tail + epsilon) - math.sqrt(tail)
    order = 1 + math.sqrt(tail) / root
    low, high = 0.0, 2 * epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(epsilon_at_order(middle, order, delta)) <= epsilon else (low, middle)
    return RenyiFilter(order, low)


def _cost(token: Repeated, order: float) -> float:
    return token.times * float(rdp(token.event, np.array([order]))[0])
