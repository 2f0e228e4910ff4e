"""Events: what was released, without what it costs.

An event is a frozen record of one release as seen by one row: which noise, relative to that row's bound,
which chance that the row took part, and which neighbouring relation. Accountants turn events into costs.

A noise multiplier is always σ / C: the standard deviation of the noise over the bound on one row,
whatever the relation. How far a neighbour can move the released sum, in units of C, is the event's *reach*:
1 when one row is added or removed, 2 when one row is replaced by another in a ball of radius C, and 1 when it
is replaced but every row's value lies on one side, in [0, C] (a bounded loss, a count).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Union, get_args


class Relation(StrEnum):
    """When two tables are neighbours: one row more, or one row exchanged.

    >>> Relation("replace-one")
    <Relation.REPLACE_ONE: 'replace-one'>
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


class AccountingError(ValueError):
    """A question that has no sound answer: mixed relations, an unsupported event, an infeasible target."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AccountingError(message)


def _check_noise(value: float) -> None:
    _require(math.isfinite(value) and value > 0, f"noise multiplier is {value}: it must be finite and above 0")


def _check_probability(name: str, value: float) -> None:
    _require(0.0 <= value <= 1.0, f"{name} is {value}: it must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class _OverAllRows:
    noise_multiplier: float
    relation: Relation = Relation.ADD_REMOVE
    one_sided: bool = False

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)

    @property
    def reach(self) -> int:
        """How far a neighbour can move the sum, in units of the bound."""
        return 1 if self.one_sided or self.relation is Relation.ADD_REMOVE else 2


@dataclass(frozen=True, slots=True)
class Gaussian(_OverAllRows):
    """A sum over all rows plus Gaussian noise.

    Args:
        noise_multiplier: Standard deviation of the noise over the bound, above 0.
        relation: The neighbouring relation.
        one_sided: Whether values lie between 0 and the bound, so that replacing a row moves the sum by one bound, not
            two.

    >>> Gaussian(2.0).reach, Gaussian(2.0, relation=Relation.REPLACE_ONE).reach
    (1, 2)
    """


@dataclass(frozen=True, slots=True)
class Laplace(_OverAllRows):
    """A scalar sum over all rows plus Laplace noise; `noise_multiplier` is its scale b over the bound (not its σ).

    Args:
        noise_multiplier: Scale of the noise over the bound, above 0.
        relation: The neighbouring relation.
        one_sided: Whether values lie between 0 and the bound, so that replacing a row moves the sum by one bound, not
            two.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(Laplace(2.0))], delta=1e-5), 1)
    0.5
    """


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """A sum over rows that each took part with probability `rate`, independently, plus Gaussian noise.

    Under replace-one the pair that dominates is (1−q)·N(0) + q·N(±C); a one-sided value gains nothing that is
    proved, so there is no `one_sided` here.

    Args:
        noise_multiplier: Standard deviation of the noise over the bound, above 0.
        rate: Probability that a row takes part, above 0 and at most 1.
        relation: The neighbouring relation.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(PoissonGaussian(1.0, rate=0.01))], delta=1e-5), 1)
    0.2
    """

    noise_multiplier: float
    rate: float
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_probability("sampling rate", self.rate)


@dataclass(frozen=True, slots=True)
class SubsetGaussian:
    """A sum over `batch` of `size` rows, drawn uniformly without replacement, plus Gaussian noise (replace-one).

    Args:
        noise_multiplier: Standard deviation of the noise over the bound, above 0.
        size: Number of rows.
        batch: How many of them take part.
        one_sided: Whether values lie between 0 and the bound, so that replacing a row moves the sum by one bound, not
            two.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(SubsetGaussian(1.0, size=1000, batch=10))], delta=1e-5), 1)
    3.0
    """

    noise_multiplier: float
    size: int
    batch: int
    one_sided: bool = False
    relation: Relation = field(default=Relation.REPLACE_ONE, init=False)

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _require(0 <= self.batch <= self.size, f"batch {self.batch} is not between 0 and the {self.size} rows")
        _require(self.size >= 1, "there must be at least one row")

    @property
    def rate(self) -> float:
        """The share of rows in one batch."""
        return self.batch / self.size

    @property
    def reach(self) -> int:
        """How far a neighbour can move the sum, in units of the bound."""
        return 1 if self.one_sided else 2


@dataclass(frozen=True, slots=True)
class NoisyMax:
    """The index of the largest score after Gumbel noise: the exponential mechanism.

    `noise_multiplier` is the Gumbel scale over the bound on what one row adds to any one score. Scores that one
    neighbour moves all in the same direction are `monotone` and cost half the range.

    Args:
        noise_multiplier: Scale of the noise over the bound, above 0.
        relation: The neighbouring relation.
        monotone: Whether a neighbour moves all scores in the same direction.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(NoisyMax(4.0))], delta=1e-5), 1)
    0.5
    """

    noise_multiplier: float
    relation: Relation = Relation.ADD_REMOVE
    monotone: bool = False

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)

    @property
    def range(self) -> float:
        """η: the log-ratio of any two outcomes' probabilities moves by at most this (bounded range)."""
        reach = 1 if self.relation is Relation.ADD_REMOVE else 2
        return (1 if self.monotone and self.relation is Relation.ADD_REMOVE else 2) * reach / self.noise_multiplier


@dataclass(frozen=True, slots=True)
class Tree:
    """All prefix sums of `leaves` values by a binary tree with Gaussian noise at every node.

    A row stands in at most one leaf and so moves at most one node per level. Trees that follow one another
    (restarts) cost no more than the tallest of them, because the row stands in only one.

    Args:
        noise_multiplier: Standard deviation of the noise of a node over the bound, above 0.
        leaves: Number of values, at least 1.
        relation: The neighbouring relation.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(Tree(4.0, leaves=8))], delta=1e-5), 1)
    2.0
    """

    noise_multiplier: float
    leaves: int
    relation: Relation = Relation.ADD_REMOVE

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _require(self.leaves >= 1, f"a tree needs at least one leaf, not {self.leaves}")

    @property
    def levels(self) -> int:
        """Nodes on the way from a leaf to the root."""
        return (self.leaves - 1).bit_length() + 1

    def as_gaussian(self) -> Gaussian:
        """The one Gaussian release that costs the same.

        Returns:
            A Gaussian release whose noise multiplier is that of a node divided by √levels.
        """
        return Gaussian(self.noise_multiplier / math.sqrt(self.levels), self.relation)


@dataclass(frozen=True, slots=True)
class Mixture:
    """With public probability `probability` the event happened to this row's group; otherwise nothing did.

    Whether it happened is itself visible, so the cost is that of the mixture with a release that tells nothing.

    Args:
        probability: Public probability that the event happened, between 0 and 1.
        event: What happened then.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(Mixture(0.1, Gaussian(2.0)))], delta=1e-5), 1)
    1.7
    """

    probability: float
    event: Gaussian | PoissonGaussian | SubsetGaussian | Laplace

    def __post_init__(self) -> None:
        _check_probability("mixture probability", self.probability)

    @property
    def relation(self) -> Relation:
        """The relation of what may have happened."""
        return self.event.relation


@dataclass(frozen=True, slots=True)
class Envelope:
    """Any one of several events, chosen when the release is made, whatever was released before.

    It costs what dominates all of them, so a plan can fix it beforehand although the choice is open.

    Args:
        events: At least one event, all of one relation.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(Envelope((Gaussian(2.0), Gaussian(4.0))))], delta=1e-5), 1)
    2.0
    """

    events: tuple[Gaussian | PoissonGaussian | SubsetGaussian, ...]

    def __post_init__(self) -> None:
        _require(len(self.events) > 0, "an envelope needs at least one event")
        relation_of(self.events)

    @property
    def relation(self) -> Relation:
        """The relation of what may be chosen."""
        return relation_of(self.events)


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one whole run of several, each a composition of events, chosen when it starts, whatever was released before.

    It costs what dominates all of them: like an `Envelope`, but of runs.

    Args:
        runs: At least one run, each a list of events with how often.

    >>> Choice(((Repeated(Gaussian(1.0)),), (Repeated(Gaussian(2.0), 4),))).relation
    <Relation.ADD_REMOVE: 'add-remove'>
    """

    runs: tuple[tuple[Repeated, ...], ...]

    def __post_init__(self) -> None:
        _require(len(self.runs) > 0 and all(len(run) > 0 for run in self.runs), "a choice needs runs with events")
        plain = all(not isinstance(item.event, Choice | Selection) for run in self.runs for item in run)
        _require(plain, "the runs of a choice contain neither choices nor selections")
        relation_of(item for run in self.runs for item in run)

    @property
    def relation(self) -> Relation:
        """The relation of the runs that may be chosen."""
        return relation_of(self.runs[0])


@dataclass(frozen=True, slots=True)
class Selection:
    """The best of a random number of runs, each of which is `events`: nothing of the others is seen, nor how many.

    The number of runs is truncated negative binomial with shape `shape` (0: logarithmic, 1: geometric) and
    parameter `gamma`, or Poisson with mean `mean` (shape = inf), as in Papernot and Steinke (2022). Runs that differ
    are one `Choice`; which of them a run is must be drawn anew for each, from public chances.

    >>> from veil.accounting import Pld
    >>> one = Repeated(Gaussian(4.0))
    >>> whole = Selection((one,), shape=1.0, gamma=0.5)  # two runs in expectation, the best of them seen
    >>> Pld().epsilon([Repeated(whole)], 1e-5) > Pld().epsilon([one], 1e-5)
    True
    """

    events: tuple[Repeated, ...]
    shape: float
    gamma: float | None = None
    mean: float | None = None

    def __post_init__(self) -> None:
        _require(len(self.events) > 0, "a selection needs at least one event")
        if math.isinf(self.shape):
            _require(self.mean is not None and self.mean > 0, "a Poisson number of runs needs a mean above 0")
        else:
            _require(self.shape > -1, f"shape is {self.shape}: it must be above -1")
            _require(self.gamma is not None and 0 < self.gamma < 1, "gamma must be between 0 and 1")
        relation_of(self.events)

    @property
    def relation(self) -> Relation:
        """The relation of the runs that are selected from."""
        return relation_of(self.events)


Event = Union[  # noqa: UP007
    Gaussian, PoissonGaussian, SubsetGaussian, Laplace, NoisyMax, Tree, Mixture, Envelope, Choice, Selection
]


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same event, `times` times over (adaptively composed).

    Args:
        event: The event.
        times: How often, at least 1.

    >>> from veil.accounting import Pld
    >>> round(Pld().epsilon([Repeated(PoissonGaussian(1.0, rate=0.01), 100)], delta=1e-5), 1)
    0.7
    """

    event: Event
    times: int = 1

    def __post_init__(self) -> None:
        _require(self.times >= 0, f"an event cannot happen {self.times} times")


def repeated(events: Iterable[Event | Repeated]) -> tuple[Repeated, ...]:
    """Collect equal events into one `Repeated` each, in order of first appearance; drop those that cost nothing.

    Args:
        events: Events, each alone or with the number of times it happens.

    Returns:
        One `Repeated` for each different event.

    >>> repeated([Gaussian(1.0), Gaussian(2.0), Gaussian(1.0)])[0].times
    2
    """
    counts: dict[Event, int] = {}
    for item in events:
        event, times = (item.event, item.times) if isinstance(item, Repeated) else (item, 1)
        counts[event] = counts.get(event, 0) + times
    return tuple(Repeated(event, times) for event, times in counts.items() if times > 0)


def composable(events: Iterable[Event | Repeated]) -> tuple[Repeated, ...]:
    """`repeated` events, all of one relation: others raise."""
    given = tuple(events)
    if given:
        relation_of(given)
    return repeated(given)


def relation_of(events: Iterable[Event | Repeated]) -> Relation:
    """The one relation that all events share; two kinds do not compose.

    Args:
        events: At least one event.

    Returns:
        The relation of all of them.

    Raises:
        AccountingError: Two events have different relations, or there is none.

    >>> relation_of([Gaussian(1.0), Gaussian(1.0, relation=Relation.REPLACE_ONE)])
    Traceback (most recent call last):
        ...
    veil.accounting.events.AccountingError: events of add-remove and replace-one cannot be composed
    """
    relations = {(item.event if isinstance(item, Repeated) else item).relation for item in events}
    _require(len(relations) > 0, "no event was given, so the relation is unknown")
    _require(len(relations) == 1, f"events of {' and '.join(sorted(relations))} cannot be composed")
    return relations.pop()


def joint_noise_multiplier(*noise_multipliers: float) -> float:
    """σ_eff of several values released from the same sample: one event, never two independent ones.

    Each value has its own bound and noise; stacked and scaled by their noise they are one Gaussian release of a
    vector whose norm is at most (Σ κᵢ⁻²)^½.

    Args:
        noise_multipliers: σ / C of each value.

    Returns:
        The noise multiplier of the one event that all of them are.

    >>> joint_noise_multiplier(1.0, 1.0)
    0.7071067811865475
    """
    for value in noise_multipliers:
        _check_noise(value)
    if len(noise_multipliers) == 1:
        return noise_multipliers[0]
    return 1.0 / math.sqrt(sum(value**-2 for value in noise_multipliers))


def to_json(event: Event) -> dict[str, Any]:
    """An event as plain JSON values, readable back by `from_json`.

    >>> from_json(to_json(PoissonGaussian(1.0, 0.01))) == PoissonGaussian(1.0, 0.01)
    True
    """
    record: dict[str, Any] = {"kind": type(event).__name__}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if isinstance(value, get_args(Event)):
            value = to_json(value)
        elif isinstance(value, tuple):
            value = _list_json(value)
        record[name] = value
    return record


def _list_json(items: tuple[Any, ...]) -> list[Any]:
    """Events, repeated events or whole runs of them as JSON values."""
    return [
        _list_json(item)
        if isinstance(item, tuple)
        else {"event": to_json(item.event), "times": item.times}
        if isinstance(item, Repeated)
        else to_json(item)
        for item in items
    ]


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}


def from_json(record: Any) -> Event:
    """Read back what `to_json` wrote; anything else raises `AccountingError`."""
    if not isinstance(record, dict):
        raise AccountingError("an event must be an object of names and values")
    fields = dict(record)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise AccountingError(f"unknown kind of event: {str(record.get('kind'))[:80]!r}")
    try:
        if "relation" in fields:
            fields["relation"] = Relation(fields["relation"])
        if kind is SubsetGaussian:
            fields.pop("relation", None)
        if kind is Mixture:
            fields["event"] = from_json(fields["event"])
        if kind is Envelope:
            fields["events"] = tuple(from_json(item) for item in fields["events"])
        if kind is Selection:
            fields["events"] = tuple(repeated_from_json(item) for item in fields["events"])
        if kind is Choice:
            fields["runs"] = tuple(tuple(repeated_from_json(item) for item in run) for run in fields["runs"])
        _check_kinds(kind, fields)
        event: Event = kind(**fields)
    except (TypeError, KeyError, ValueError, ArithmeticError, RecursionError) as error:
        raise AccountingError(f"not a valid {kind.__name__} event: {str(error)[:200]}") from error
    return event


def repeated_from_json(record: Any) -> Repeated:
    """Read back `{"event": …, "times": …}`."""
    if not isinstance(record, dict):
        raise AccountingError("a repeated event must be an object with event and times")
    return Repeated(from_json(record["event"]), whole_number(record["times"], "times"))


def whole_number(value: Any, name: str, least: int = 0) -> int:
    """A count from a file; raises `AccountingError` unless it is a whole number in range."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and least <= value < _LARGEST_COUNT, f"{name} is not a whole number of at least {least}")
    return int(value)


_NUMBERS = {"noise_multiplier", "rate", "probability", "shape", "gamma", "mean"}
_COUNTS = {"size", "batch", "leaves"}
_INSIDE = {
    Mixture: (Gaussian, PoissonGaussian, SubsetGaussian, Laplace),
    Envelope: (Gaussian, PoissonGaussian, SubsetGaussian),
}
_LARGEST_COUNT = 2**63


def _check_kinds(kind: type[Any], fields: Mapping[str, Any]) -> None:
    """Check that every value has the type of its field: a bool is not a number, a string is not a list."""
    for name, value in fields.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _NUMBERS:
            optional = value is None and kind is Selection
            _require(optional or (number and abs(value) <= 1e300) or value == math.inf, f"{name} is not a number")
        elif name in _COUNTS:
            whole_number(value, name)
        elif name in ("one_sided", "monotone"):
            _require(isinstance(value, bool), f"{name} is neither true nor false")
    inside = fields.get("events", (fields["event"],) if "event" in fields else ())
    _require(all(isinstance(item, _INSIDE.get(kind, Repeated)) for item in inside), "it contains a wrong kind of event")
