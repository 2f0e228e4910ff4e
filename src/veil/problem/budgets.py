"""Budgets: reading each owner's ε, and grouping per-row budgets into levels."""

from __future__ import annotations

import csv
import math
import tomllib
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veil.errors import Caution, InputError, require

_OWNER_COLUMNS = ("owner", "name")
_BUDGET_COLUMNS = ("epsilon", "budget", "ε")
_CANDIDATES = 1024
_KEPT = 0.98
_MOST = 512


def read_budgets(source: Mapping[str, Any] | Path | str) -> dict[str, float]:
    """Budgets by owner from a mapping, a CSV file or a TOML file (a table `budgets`).

    A CSV file has a column `epsilon` and a column of owners: named owner, or the only other one.

    Args:
        source: ε by owner, or the path of a file that ends in .csv or .toml.

    Returns:
        ε by owner.

    Raises:
        InputError: The file cannot be read, has no budget or two for one owner, or a budget is not a number above 0.

    >>> read_budgets({"north": 1, "south": 0.5})
    {'north': 1.0, 'south': 0.5}
    """
    if isinstance(source, Mapping):
        pairs, where = [(str(name), value) for name, value in source.items()], "the budgets"
    else:
        path = Path(source)
        where = path.name
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the budgets in {path} cannot be read: {error}") from error
        pairs = _from_toml(text, where) if path.suffix == ".toml" else _from_csv(text, where)
    require(bool(pairs), f"{where}: no budget found")
    budgets: dict[str, float] = {}
    for name, value in pairs:
        require(name not in budgets, f'{where}: owner "{name}" has two budgets: keep one')
        budgets[name] = checked_budget(value, f'{where}: the budget of owner "{name}"')
    return budgets


def checked_budget(value: Any, what: str) -> float:
    """A budget ε as a number above 0; anything else raises `InputError` that begins with `what`."""
    number = _number(value)
    require(math.isfinite(number) and number > 0, f'{what} is "{value}": ε must be a finite number above 0')
    return number


def _number(value: Any) -> float:
    """A value as a number, NaN if it is not one."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


@dataclass(frozen=True)
class Levels:
    """Per-row budgets cut down to few levels: a level's name per row (the row's owner), and the ε of each level.

    `kept` is the share of the rows' own budgets that the levels keep, on average.
    """

    of_row: NDArray[np.str_]
    budgets: Mapping[str, float]
    kept: float


def quantise(row_budgets: ArrayLike, levels: int | None = None, *, names: Sequence[Any] | None = None) -> Levels:
    """Cut per-row budgets into at most `levels` levels, never above a row's own budget.

    Budgets of no more different values stay as they are. Without `levels`, up to 512 different ones do, and more are
    cut into as many levels as keep 98 % of them, 512 at most; where these keep less, a warning says how much. Levels
    are chosen among the budgets themselves such that the summed loss log(ε/level) is smallest. Budgets are public: who
    may read the levels may read the budgets. `names` say what a row is called in errors (its place in a file, where
    only some of its rows are given); else rows are counted from 0.

    Args:
        row_budgets: ε of each row.
        levels: How many levels at most.
        names: What each row is called in errors.

    Returns:
        The level of each row and the budget of each level.

    Raises:
        InputError: A budget is not a finite number above 0.

    >>> found = quantise([0.5, 0.6, 2.0, 2.0, 3.0], levels=2)
    >>> found.of_row.tolist(), dict(found.budgets)
    (['ε = 0.5', 'ε = 0.5', 'ε = 2', 'ε = 2', 'ε = 2'], {'ε = 0.5': 0.5, 'ε = 2': 2.0})
    """
    require(levels is None or levels >= 1, f"levels is {levels}: at least one is needed")
    given = np.asarray(row_budgets)
    require(given.ndim == 1 and given.size > 0, "per-row budgets must be one number for each row")
    own = np.array([_number(value) for value in given.tolist()])
    wrong = np.flatnonzero(~(np.isfinite(own) & (own > 0)))
    if len(wrong):
        row = wrong[0] if names is None else names[wrong[0]]
        raise InputError(f"the budget of row {row} is not a finite number above 0: correct it or remove the row")
    values, counts = np.unique(own, return_counts=True)
    if len(values) <= (_MOST if levels is None else levels):
        return _cut(values, own)
    if len(values) > _CANDIDATES:
        # Quantiles, the smallest always among them: no row may lie below every level.
        chosen = np.unique(np.quantile(own, np.linspace(0.0, 1.0, _CANDIDATES), method="lower"))
        counts = np.bincount(np.searchsorted(chosen, own, side="right") - 1, minlength=len(chosen))
        values = chosen

    most = min(_MOST if levels is None else levels, len(values))
    ways = _best_levels(np.log(values), counts.astype(float), most)
    way = len(ways) - 1
    if levels is None:
        way = min(way, bisect_left(ways, _KEPT, key=lambda places: _kept(values[places], own)))
    found = _cut(values[ways[way]], own)
    if levels is None and found.kept < _KEPT:
        warnings.warn(
            f"The budgets of the rows spread so widely that {len(found.budgets)} levels keep {100 * found.kept:.1f} % "
            f"of them, not {100 * _KEPT:.0f} %: a row is trained with the ε of its level. To keep more, choose more "
            "levels (veil.problem.quantise).",
            Caution,
            stacklevel=2,
        )
    return found


def _cut(edges: NDArray[np.float64], own: NDArray[np.float64]) -> Levels:
    """Every row at the highest of these levels that is not above its own budget."""
    names = _names(edges)
    of_row = np.array(names)[_level_of(edges, own)]
    return Levels(of_row, dict(zip(names, edges.tolist(), strict=True)), _kept(edges, own))


def _level_of(edges: NDArray[np.float64], own: NDArray[np.float64]) -> NDArray[np.intp]:
    """The highest level that is not above a row's budget."""
    return np.searchsorted(edges, own, side="right") - 1


def _kept(edges: NDArray[np.float64], own: NDArray[np.float64]) -> float:
    return float(np.mean(edges[_level_of(edges, own)] / own))


def _from_csv(text: str, where: str) -> list[tuple[str, Any]]:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        records, names = list(reader), reader.fieldnames or ()
    except csv.Error as error:
        raise InputError(f"{where} is not a CSV file: {error}") from error
    columns = {str(name).strip().lower(): name for name in names}
    owner = next((columns[name] for name in _OWNER_COLUMNS if name in columns), None)
    budget = next((columns[name] for name in _BUDGET_COLUMNS if name in columns), None)
    if owner is None and len(columns) == 2:
        # Beside the budgets there is only one column: whatever it is called, it has the owners.
        owner = next(column for column in columns.values() if column != budget)
    if owner is None or budget is None:
        found = ", ".join(columns) or "nothing"
        raise InputError(f"{where}: the first line must name the columns owner and epsilon, it has {found}")
    return [(str(record[owner]).strip(), record[budget]) for record in records]


def _from_toml(text: str, where: str) -> list[tuple[str, Any]]:
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not TOML: {str(error)[:200]}") from error
    table = content.get("budgets", content)
    require(isinstance(table, dict), f"{where}: budgets must be a table of owner = epsilon")
    return list(table.items())


def _best_levels(logs: NDArray[np.float64], counts: NDArray[np.float64], most: int) -> list[list[int]]:
    """For 1 level, 2 levels, … up to `most`: which of the sorted values become levels.

    They are such that Σ counts × (log value − log level below it) is smallest.
    """
    size = len(logs)
    rows = np.concatenate([[0.0], np.cumsum(counts)])
    mass = np.concatenate([[0.0], np.cumsum(counts * logs)])
    start, stop = np.arange(size), np.arange(1, size + 1)[:, None]
    # By the end of a level in rows and its start in columns.
    loss = mass[stop] - mass[start] - (rows[stop] - rows[start]) * logs
    loss[start >= stop] = np.inf
    best, firsts, found = loss[:, 0], [], [[0]]
    for _ in range(most - 1):
        # A last level that starts at `start`, after the best use of the levels before it.
        totals = loss + np.concatenate([[0.0], best[:-1]])
        firsts.append(totals.argmin(axis=1))
        best = np.take_along_axis(totals, firsts[-1][:, None], axis=1)[:, 0]
        found.append(_from_the_end(firsts))
    return found


def _from_the_end(firsts: Sequence[NDArray[np.intp]]) -> list[int]:
    """Where levels start: the last one of all values, the last one of the values before it, and so on."""
    chosen, end = [], len(firsts[0])
    for first in reversed(firsts):
        end = int(first[end - 1])
        chosen.append(end)
        if end == 0:
            break
    return sorted({0, *chosen})


def _names(edges: NDArray[np.float64]) -> list[str]:
    """A name per level, short if that keeps them apart."""
    short = [f"ε = {edge:.4g}" for edge in edges.tolist()]
    return short if len(set(short)) == len(short) else [f"ε = {edge!r}" for edge in edges.tolist()]
