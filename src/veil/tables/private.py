"""Private preprocessing: bounds, categories and group sizes from at most two noisy releases, charged with the training.

1. Octaves of numbers and dates, and group sizes, which get a quarter of the release at least.
2. Numbers and dates in 64 equal steps between the octaves found, which tightens the bounds; and hash values of
   categories, if the number of rows lets values stand out of their noise.

Bounds reach from the first to the last bin whose noisy count stands out. Categories are the hash values whose noisy
count does; all other values are pooled by their hash, so that a column of categories is learned at any ε, at no cost
where nothing stands out. Names of groups are public, so columns of groups need no release.

Both releases have the same noise multiplier κ, so they are equal events; which categories are counted in the second is
chosen from the first, which is sound because its cost does not depend on the choice. The training that follows is
planned for what is left of ε (`WithPreprocessing`).

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
from veil.noise import GaussianNoise
from veil.plans import Earlier, Plan, Settings
from veil.problem import Cell, PublicFacts
from veil.releases import Allowance
from veil.tables.encoding import Column, Date, Encoding, HashedCategory, days, hashed_words
from veil.tables.histograms import Floats, HistogramRelease, filled_range, octave_bins, octave_edges, step_bins
from veil.tables.schema import Schema, SchemaColumn

PURPOSE = "preprocessing"
HASH_VALUES = 1024
STEPS = 64
KINDS_PUBLIC = (
    "Which columns the table has, the kind of each (number, date, category, text) and how it is read (whether dates "
    "begin with the day, the sign of fractions, units), the classes of the target and the names of the groups are "
    "public knowledge and stay as they are."
)


@dataclass(frozen=True)
class Preprocessing:
    """What the releases gave: how columns become numbers, the noisy group sizes, and the event that each cost.

    `stands_out` is how many rows must share something for a release to show it.
    """

    encoding: Encoding
    group_sizes: Mapping[str, int] | None
    event: Event
    share: float
    releases: int
    stands_out: float

    def tokens(self) -> tuple[Repeated, ...]:
        """The cost to every cell."""
        return (Repeated(self.event, self.releases),)


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


@dataclass(frozen=True)
class _Asked:
    """What is to be found: columns with bounds, columns of categories, and group sizes or not."""

    ranged: tuple[SchemaColumn, ...]
    listed: tuple[SchemaColumn, ...]
    sizes: bool

    @classmethod
    def by(cls, schema: Schema, sizes: bool) -> _Asked:
        """What a schema leaves open."""
        left = [facts for facts in schema.columns if facts.open]
        ranged = tuple(facts for facts in left if facts.kind in ("numeric", "date"))
        return cls(ranged, tuple(facts for facts in left if facts not in ranged), sizes)

    @property
    def releases(self) -> int:
        """How many releases it takes: public, whatever the rows say."""
        return int(bool(self.ranged) or self.sizes) + int(bool(self.ranged or self.listed))

    def first(self, kappa: float, relation: Relation) -> HistogramRelease:
        """Octaves and sizes; the sizes have a quarter of the squared distance at least."""
        others = len(self.ranged)
        weights = {_GROUP_KEY: max(1.0, math.sqrt(others / 3))} if self.sizes else {}
        return HistogramRelease(PURPOSE, 0, max(others + self.sizes, 1), kappa, relation, weights)

    def second(self, kappa: float, relation: Relation, listed: bool) -> HistogramRelease:
        """Steps, and hash values where categories are counted."""
        columns = len(self.ranged) + listed * len(self.listed)
        return HistogramRelease(PURPOSE, 1, columns, kappa, relation)


def find_encoding(
    table: pd.DataFrame,
    schema: Schema,
    allowance: Allowance,
    share: float,
    groups: Sequence[str],
    group_of: Sequence[str] | None,
    rows: int | None = None,
) -> Preprocessing:
    """Fill in what the schema leaves open, by releases that together cost `share` of the allowance.

    `group_of` names each row's group; where it is given, the group sizes are released too. Else `rows` is how many
    there are, as everybody may know. Values that are not of their column's kind count as missing.
    """
    require(0 < share < 1, f"the share of private preprocessing is {share}: it must be between 0 and 1")
    asked, relation, noise = _Asked.by(schema, group_of is not None), allowance.relation, allowance.noise
    require(
        asked.releases > 0,
        "the schema already states everything: omit --private-preprocessing to use all ε for training",
    )
    kappa = noise_multiplier(
        lambda k: [Repeated(Gaussian(k, relation, one_sided=True), asked.releases)],
        share * allowance.epsilon,
        allowance.delta,
        allowance.accountant,
    )
    first, octaves = asked.first(kappa, relation), octave_edges()
    limit = first.threshold(max(len(asked.ranged), 1) * len(octaves))
    if asked.ranged and group_of is None and rows is not None:
        _require_enough(limit, rows, share, allowance.epsilon, len(asked.ranged))
    event = Gaussian(kappa, relation, one_sided=True)
    ledger = _ledger(groups, allowance, event, asked.releases)
    ledger.reserve(PURPOSE, 0, asked.releases, dict.fromkeys(range(len(groups)), event))
    values = {facts.name: _values(table, facts) for facts in asked.ranged}
    bins = {name: octave_bins(found) for name, found in values.items()}
    if group_of is not None:
        bins[_GROUP_KEY] = (pd.Index(list(groups)).get_indexer(pd.Index(list(group_of))).astype(np.int64), len(groups))
    counts = first.make(bins, noise) if bins else {}
    most = math.inf
    if group_of is not None:  # so many rows there are at most, as far as the noise of their number lets one see
        most = float(counts[_GROUP_KEY].sum()) + 2 * first.noise_of(_GROUP_KEY) * math.sqrt(len(groups))
    sizes = None if group_of is None else _sizes(counts.pop(_GROUP_KEY), groups)
    known = rows if sizes is None else sum(sizes.values())
    coarse = {name: _octaves(count, limit, octaves) for name, count in counts.items()}
    if asked.ranged and (not any(coarse.values()) or most < _NEARLY * limit):
        _require_enough(limit, 0 if known is None else known, share, allowance.epsilon, len(asked.ranged), spent=True)
    spans = {name: span for name, span in coarse.items() if span is not None}
    wide = {name: float(count[count > limit].sum()) for name, count in counts.items()}
    second = asked.second(kappa, relation, _worth_counting(asked, kappa, relation, known))
    found = _second_look(
        table, asked, second, {name: (values[name], span) for name, span in spans.items()}, wide, noise
    )
    return Preprocessing(_encoding(schema, found), sizes, event, share, asked.releases, limit)


def _second_look(
    table: pd.DataFrame,
    asked: _Asked,
    release: HistogramRelease,
    spans: Mapping[str, tuple[Floats, tuple[float, float]]],
    wide: Mapping[str, float],
    noise: GaussianNoise,
) -> dict[str, Column]:
    """Bounds within the octaves found, and the categories that stand out, from the second release."""
    count_listed = release.columns > len(asked.ranged)
    bins = {name: step_bins(values, *span, STEPS) for name, (values, span) in spans.items()}
    for facts in asked.listed if count_listed else ():
        bins[facts.name] = hashed_words(table[facts.name], facts.name, HASH_VALUES), HASH_VALUES
    fine = release.make(bins, noise) if bins else {}
    narrow = release.threshold(STEPS * max(len(asked.ranged), 1))
    stands = release.threshold(HASH_VALUES * max(len(asked.listed), 1))
    found: dict[str, Column] = {}
    for facts in asked.ranged:
        if facts.name in spans:
            span = spans[facts.name][1]
            found[facts.name] = _ranged(facts, *_narrowed(fine[facts.name], narrow, span, wide[facts.name]))
    for facts in asked.listed:
        kept = np.flatnonzero(fine[facts.name] > stands).tolist() if count_listed else []
        found[facts.name] = HashedCategory(facts.name, HASH_VALUES, tuple(kept), FEW_POOLS if kept else POOLS)
    return found


# Of a column of categories, the pools for values that do not stand out; and where no value does.
FEW_POOLS, POOLS = 4, 8
# Categories are counted if one that this share of the rows has would stand out.
_WORTH_COUNTING = 0.2


def _worth_counting(asked: _Asked, kappa: float, relation: Relation, rows: int | None) -> bool:
    """Whether values of categories would stand out; else the noise of the second release is kept for numbers."""
    if not asked.listed or rows is None:
        return bool(asked.listed)
    stands = asked.second(kappa, relation, True).threshold(HASH_VALUES * len(asked.listed))
    return stands <= _WORTH_COUNTING * rows


def _require_enough(
    limit: float, rows: int, share: float, epsilon: float, columns: int, *, spent: bool = False
) -> None:
    """Refuse where no number can be found: what all rows share would not stand out of the noise."""
    if not spent and limit < rows:
        return
    needed = share * 2 * limit / max(rows, 1)
    advice = f"raise it to about {needed:.1g}, or " if needed <= 0.5 else ""
    raise InputError(
        f"--private-preprocessing {share:g} of ε = {epsilon:g} cannot find the bounds of {columns} columns: a value "
        f"must be in about {limit:,.0f} rows to stand out of the noise, and there are about {rows:,}: {advice}state "
        f"bounds in --schema{' (this attempt was charged)' if spent else ''}"
    )


def _octaves(counts: Floats, limit: float, edges: Floats) -> tuple[float, float] | None:
    """The octaves that stand out; else the one that nearly does; None where there is none."""
    found = filled_range(counts, limit, edges)
    return found if found is not None else filled_range(counts, max(_NEARLY * limit, counts.max() - 1e-9), edges)


def _narrowed(fine: Floats, limit: float, span: tuple[float, float], wide: float) -> tuple[float, float]:
    """The steps that stand out, if they hold most rows; else the octaves."""
    edges = np.linspace(*span, STEPS + 1)
    pairs = np.column_stack([edges[:-1], edges[1:]])
    bounds = filled_range(fine, limit, pairs)
    return bounds if bounds is not None and _holds_most(fine, pairs, bounds, wide) else span


_NEARLY = 0.7
_GROUP_KEY = "\0groups"
# Narrow bounds must hold this share of the rows that the wide ones hold, as far as noise lets one see.
_MOST = 0.8


def _holds_most(fine: Floats, pairs: Floats, bounds: tuple[float, float], wide: float) -> bool:
    """Whether narrow bounds hold most rows: a few bins that stand out of the noise are not yet a range."""
    inside = (pairs[:, 0] >= bounds[0]) & (pairs[:, 1] <= bounds[1])
    return float(fine[inside].sum()) >= _MOST * max(float(fine.sum()), wide)


def _values(table: pd.DataFrame, facts: SchemaColumn) -> np.ndarray[Any, np.dtype[np.float64]]:
    column = table[facts.name]
    if facts.kind == "date":
        return days(column, facts.name, lenient=True, day_first=facts.day_first)
    return facts.numeric(0.0, 1.0, lenient=True).read(column)


def _ranged(facts: SchemaColumn, low: float, high: float) -> Column:
    if facts.kind == "date":
        return Date(facts.name, low, high, facts.missing, lenient=True, day_first=facts.day_first)
    return facts.numeric(low, high, lenient=True)


def _sizes(counts: np.ndarray[Any, np.dtype[np.float64]], groups: Sequence[str]) -> dict[str, int]:
    """Noisy sizes; a group that the noise hides counts as one row."""
    return {name: max(1, round(float(count))) for name, count in zip(groups, counts, strict=True)}


def _encoding(schema: Schema, found: Mapping[str, Column]) -> Encoding:
    columns = [found.get(facts.name) or facts.column() for facts in schema.columns]
    kept = tuple(column for column in columns if column is not None and column.width() > 0)
    require(len(kept) > 0, "private preprocessing found no column above the noise: give it a larger share")
    return Encoding(kept, schema.from_rows)


def _ledger(groups: Sequence[str], allowance: Allowance, event: Event, releases: int) -> Ledger:
    rule = TokenBucket((Repeated(event, releases),))
    accounts = tuple(Account(name, "everybody", allowance.epsilon, rule) for name in groups)
    details = {"method": PURPOSE, "steps": releases}
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
