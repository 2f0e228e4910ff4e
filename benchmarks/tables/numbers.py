"""Tables with a number to predict: columns of the published tables, with public bounds and two definitions of groups.

Columns that nearly repeat the target are left out, and a column that only makes groups is no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import pandas as pd

from benchmarks.tables import splits
from benchmarks.tables.data import TABLES, Grouping, Table, TableSpec, checked, labels_of, read
from veil.errors import require

GROUPINGS: tuple[Grouping, ...] = ("protected", "crossed")


def _spec(
    table: str, target: str, bounds: tuple[float, float], without: tuple[str, ...] = (), **groups: tuple[str, ...]
) -> TableSpec:
    """A table of the classifiers with another target."""
    spec = TABLES[table]
    named: Mapping[Grouping, tuple[str, ...]] = {name: groups.get(name, spec.groups[name]) for name in GROUPINGS}
    used = {column for columns in named.values() for column in columns}
    return TableSpec(
        _without(spec.read, (*without, *(name for name in spec.groups_only if name not in used))),
        target,
        named,
        {name: own for name, own in spec.bounds.items() if name not in (target, *without)},
        tuple(name for name in spec.groups_only if name in used),
        bounds,
    )


def _without(rows: Callable[[], pd.DataFrame], columns: tuple[str, ...]) -> Callable[[], pd.DataFrame]:
    return lambda: rows().drop(columns=list(columns))


NUMBERS: Mapping[str, TableSpec] = {
    "law_school_grades": _spec("law_school", "zfygpa", (-4.0, 4.0), ("zgpa", "decile1b", "decile3", "pass_bar")),
    "credit_limit": _spec("credit_default", "LIMIT_BAL", (0.0, 1_000_000.0)),
    "adult_hours": _spec("adult", "hours-per-week", (1.0, 99.0)),
    "bank_age": _spec("bank_marketing", "age", (18.0, 100.0), crossed=("marital", "education")),
    "bank_balance": _spec("bank_marketing", "balance", (-10_000.0, 110_000.0)),
    "ctg_variability": _spec("ctg", "ASTV", (12.0, 87.0)),
}


@lru_cache(maxsize=2)
def load(name: str) -> Table:
    """One table by its name, checked against `splits.json`."""
    require(name in NUMBERS, f'table is "{name}": known are {", ".join(NUMBERS)}')
    return checked(name, NUMBERS[name])


def main() -> None:
    """Write the splits of every table that is here."""
    splits.write({name: splits.fixed(name, labels_of(read(name, spec))) for name, spec in NUMBERS.items()})


if __name__ == "__main__":
    main()
