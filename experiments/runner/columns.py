"""Columns: the figures that a table of results can have, and how each is read off the record of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veil.errors import InputError

Record = Mapping[str, Any]
TWIN = "privacy_cost_gap"
GROUP, OWNER, MOMENT = "group:", "owner:", "@"


@dataclass(frozen=True)
class Column:
    """A figure: its heading, whether it is a share shown in percent, whether it looks at training rows."""

    name: str
    heading: str
    percent: bool = True
    reads_training_rows: bool = False

    @property
    def unit(self) -> str:
        """What a difference of it is counted in."""
        return " points" if self.percent else ""

    def shown(self, value: float, sign: str = "") -> str:
        """A value as the table prints it.

        >>> column("accuracy").shown(0.5), column("seconds").shown(2.0)
        ('50.0', '2.00')
        """
        return format(self.scaled(value), f"{sign}.1f" if self.percent else f"{sign}.2f")

    def scaled(self, value: float) -> float:
        """In percent where it is a share."""
        return 100 * value if self.percent else value


_FIXED = (
    Column("worst_group_accuracy", "worst group"),
    Column("average_group_accuracy", "average of groups"),
    Column("accuracy", "overall"),
    Column("accuracy_as_trained", "overall, groups in their training shares"),
    Column("disparity", "best − worst group"),
    Column("group_spread", "standard deviation across groups"),
    Column(TWIN, "privacy-cost gap π"),
    Column("train_test_gap", "train − test accuracy", reads_training_rows=True),
    Column("worst_group_gap", "train − test of the worst group", reads_training_rows=True),
    Column("clipped_cosine", "cosine of clipped update and objective's", percent=False, reads_training_rows=True),
    Column("clipped_length", "length of clipped update / objective's", percent=False, reads_training_rows=True),
    Column("demographic_parity", "demographic parity"),
    Column("equal_opportunity", "equal opportunity"),
    Column("equalised_odds", "equalised odds"),
    Column("loss", "loss", percent=False),
    Column("loss_disparity", "loss disparity", percent=False),
    Column("epsilon_worst", "largest ε of a group", percent=False),
    Column("seconds", "seconds", percent=False),
    Column("filled", "rows as long as their threshold"),
    Column("tail_removed", "clipped gradients that the tail removes"),
    Column("tail_idle", "tail without gradients"),
)
COLUMNS = {column.name: column for column in _FIXED}
# What INO-SGD's tail does, measured on test rows during a run: the figure's name, and its name in `TailActivity`.
ACTIVITY = {"filled": "clipped", "tail_removed": "removed", "tail_idle": "idle"}
_ALONG = ("accuracy", "worst_group_accuracy", "group_spread", "disparity", *ACTIVITY)


def column(name: str) -> Column:
    """A column by name; `group:NAME` is one group's accuracy, `owner:NAME` that of one owner's rows.

    `NAME@25%` is the figure after a quarter of the run's steps.

    >>> column("group:8").heading, column("owner:a@25%").heading
    ('group 8', 'owner a at 25 % of the run')
    """
    if name in COLUMNS:
        return COLUMNS[name]
    base, at, share = name.partition(MOMENT)
    if at:
        known = base.startswith((GROUP, OWNER)) or base in _ALONG
        if not (known and 0 < moment_of(name) < 1):
            raise InputError(
                f'unknown figure "{name}": along a run there are group:NAME, owner:NAME, {", ".join(_ALONG)}, as in '
                "owner:NAME@25%"
            )
        return Column(name, f"{column(base).heading} at {share.removesuffix('%')} % of the run")
    if name.startswith((GROUP, OWNER)) and not name.endswith(":"):
        return Column(name, name.replace(":", " ", 1))
    raise InputError(f'unknown figure "{name}": known are {", ".join(COLUMNS)}, group:NAME and owner:NAME')


def moment_of(name: str) -> float:
    """The share of the run at which a figure is taken: 1 is its end, NaN is no share.

    >>> moment_of("accuracy@25%"), moment_of("accuracy")
    (0.25, 1.0)
    """
    _, at, share = name.partition(MOMENT)
    try:
        return float(share.removesuffix("%")) / 100 if at else 1.0
    except ValueError:
        return math.nan


def value_of(record: Record, name: str) -> float | None:
    """The figure of one run; None where it was not measured. π is a figure of several runs: see `Results.figure`."""
    if MOMENT in name:
        return _finite(record["figures"].get(name))
    if name.startswith(GROUP):
        return _finite(record["by_group"].get(name.removeprefix(GROUP), {}).get("accuracy"))
    if name == "epsilon_worst":
        return _finite(max(record.get("epsilon_by_group", {}).values(), default=record.get("epsilon")))
    if name == "seconds":
        return _finite(record.get("seconds"))
    return _finite(record["figures"].get(name))


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
