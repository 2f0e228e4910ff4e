"""The registry: methods by their command-line names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform

from veil.accounting import Pld, Relation, TokenBucket
from veil.errors import InputError, require
from veil.plans import Plan, Settings
from veil.problem import Problem, PublicFacts


class Method(Protocol):
    """A frozen dataclass whose fields are the method's own options.

    One with `whole = True` solves its problem as a whole and sets its own length and step sizes. One with
    `sums_rows = True` needs nothing but sums over all rows, which may lie in partitions.
    """

    name: ClassVar[str]
    family: ClassVar[str]
    private: ClassVar[bool]
    relation: ClassVar[str | None]
    summary: ClassVar[str]

    def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
        """Every public constant of the run, from public facts alone.

        Args:
            facts: What is public about the rows: groups, sizes, classes, budgets.
            settings: ε, δ, steps, batch size and the rest.

        Returns:
            The plan that a run follows.
        """
        ...


_METHODS: dict[str, type[Any]] = {}
M = TypeVar("M", bound=type[Any])


def register(method: M) -> M:
    """Class decorator: make a method known by its name."""
    _METHODS[method.name] = method
    return method


@dataclass_transform(frozen_default=True)
def known_as(name: str, summary: str) -> Callable[[M], M]:
    """Class decorator: a frozen dataclass that is a method, with its name and its line in `veil methods`."""

    def named(method: M) -> M:
        method.name, method.summary = name, summary
        dataclass(frozen=True)(method)
        return register(method)

    return named


def names() -> list[str]:
    """All names, in the order of the families.

    Returns:
        What `--method` takes.

    >>> "dp-sgd" in names()
    True
    """
    return list(_METHODS)


def create(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """A method with its options; unknown names and options raise `InputError` with the nearest known one.

    Args:
        name: One of `names()`.
        options: Fields of the method, by name.

    Returns:
        The method, with defaults where no option is given.

    Raises:
        InputError: The name or an option is unknown, or an option has an impossible value.

    >>> create("dp-sdg")
    Traceback (most recent call last):
        ...
    veil.errors.InputError: unknown method "dp-sdg": did you mean "dp-sgd"?
    """
    if name not in _METHODS:
        raise InputError(f'unknown method "{name}": {_nearest(name, names())}')
    known = {field.name for field in fields(_METHODS[name])}
    for option in options or {}:
        if option not in known:
            raise InputError(f'method "{name}" has no option "{option}": {_nearest(option, sorted(known))}')
    try:
        method: Method = _METHODS[name](**(options or {}))
    except TypeError as error:
        raise InputError(f'method "{name}": {error}') from error
    return method


def method(name: str, /, **options: Any) -> Method:
    """A method with its options, for `veil.fit` and every function that takes a method.

    Args:
        name: One of `veil methods`.
        options: Fields of the method; its page in docs/methods lists them.

    Returns:
        The method, checked.

    Raises:
        InputError: The name or an option is unknown; the nearest known one is suggested.

    >>> method("asc", step_size=0.5).step_size
    0.5
    """
    return create(name, options)


def plan(problem: Problem | PublicFacts, method: str | Method, **settings: Any) -> Plan:
    """Plan a method for a problem: every public constant of the run, before a row is read.

    `settings` are the fields of `veil.plans.Settings`.

    Args:
        problem: The rows, or their public facts: nothing else is used.
        method: A name, or a method with options.
        settings: Fields of `veil.plans.Settings`.

    Returns:
        The plan: steps, rates, bounds, noise, and the rule that each cell's spending obeys.

    Raises:
        InputError: A setting is unknown or impossible for these facts.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 100),), (1,), classes=("0", "1"))
    >>> plan(facts, "dp-sgd", epsilon=1.0, steps=2, batch_size=10).options["clip"]
    1.0
    """
    facts = problem.public if isinstance(problem, Problem) else problem
    return planned(create(method) if isinstance(method, str) else method, facts, Settings.checked(**settings))


def relation_asked(method: Method) -> Relation | None:
    """The relation that the method's plan will have, from its options alone; None where it is not private.

    Args:
        method: A method with its options.

    Returns:
        The neighbouring relation.

    >>> relation_asked(create("dp-sgd", {"sampling": "wor"}))
    <Relation.REPLACE_ONE: 'replace-one'>
    """
    without = Relation.REPLACE_ONE.value if getattr(method, "sampling", None) == "wor" else None
    asked = getattr(method, "neighbours", None) or without or method.relation
    # What is no relation is refused by the plan, in words of the method's own.
    return next((relation for relation in Relation if relation.value == asked), None)


def planned(method: Method, facts: PublicFacts, settings: Settings) -> Plan:
    """The method's plan, with the method's options in it.

    Args:
        method: A method with its options.
        facts: What is public about the rows.
        settings: Length, batch size, budget and the like.

    Returns:
        The plan.

    Raises:
        InputError: A setting is impossible for these facts.

    >>> from veil.problem import Cell
    >>> facts = PublicFacts(("all",), ("all",), (Cell(0, 0, 100),), (1,), classes=("0", "1"))
    >>> planned(create("dp-sgd"), facts, Settings.checked(epsilon=1.0, steps=2, batch_size=10)).steps
    2
    """
    return replace(_counted(method.plan(facts, settings)), options=options_of(method))


def _counted(plan: Plan) -> Plan:
    """Reject a plan whose releases are not accounted for all rows of a person together, where these are the unit."""
    rows = plan.facts.rows_together
    if rows > 1 and plan.rules is not None:
        judge = Pld(rows=rows)
        fixed = all(isinstance(rule, TokenBucket) for rule in plan.rules)
        tokens = {token.event for rule in plan.rules if isinstance(rule, TokenBucket) for token in rule.tokens}
        require(
            fixed and all(map(judge.supports, tokens)),
            f"the releases of {plan.method} are accounted for one row of a person alone: use person_rows mean, which "
            "every method takes, or another method",
        )
    return plan


def options_of(method: Method) -> dict[str, Any]:
    """The method's options by name, as JSON can hold them.

    Args:
        method: A method.

    Returns:
        Every option with its value, defaults included.

    >>> options_of(create("dp-sgd"))["clip"]
    1.0
    """
    found = _plain(method)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    """A value as JSON; for values that JSON cannot hold, their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_plain(part) for part in value]
    kept = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else None
    if kept is None and hasattr(value, "plan"):
        kept = vars(value)
    return type(value).__qualname__ if kept is None else _plain(kept)


def table() -> list[dict[str, Any]]:
    """What `veil methods` prints.

    Returns:
        One record per method: name, family, private, relation, summary.

    >>> [row["private"] for row in table() if row["name"] == "dp-sgd"]
    [True]
    """
    keys = ("name", "family", "private", "relation", "summary")
    return [{key: getattr(method, key) for key in keys} for method in _METHODS.values()]


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known are {', '.join(known)}" if known else "there are none"
