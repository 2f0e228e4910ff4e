"""Numbers and names as people read them: percentages, points, ε, and the words behind short codes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from veil.metrics.definitions import TITLES

NOTHING = "–"
PERSON = "one person"
NARROW = "\u202f"

RELATIONS = {
    "add-remove": "add-remove: any one row is present or absent; the guarantee states what stays the same",
    "replace-one": "replace-one: any one row is replaced with another of the same group and owner",
}
PEOPLE_RELATIONS = {
    "add-remove": "add-remove: any one person is present or absent, with all their rows",
    "replace-one": "replace-one: all rows of any one person are replaced with others of the same group and owner",
}
SIZES = {
    "counted": "counted in the rows and treated as public",
    "declared": "declared as public knowledge",
    "released": "released with noise",
}
ACCOUNTANTS = {
    "pld": "PLD: the privacy loss distribution, composed numerically and rounded upwards",
    "rdp": "RDP: Rényi differential privacy, converted to (ε, δ)",
}
SAMPLINGS = {
    "poisson": "Poisson: each row joins a batch independently, at a public rate",
    "wor": "without replacement: every batch has a fixed, public number of rows",
    "shuffled": "shuffled: one pass after another over all rows",
    "none": "none: every step reads all rows",
}
# The same where a person's rows count as one entry.
PEOPLE_SAMPLINGS = {
    "poisson": "Poisson: each person joins a batch independently, at a public rate",
    "wor": "without replacement: every batch has a fixed, public number of people",
    "shuffled": "shuffled: one pass after another over all people",
    "none": "none: every step reads all people",
}
FIGURE_NAMES = {
    **TITLES,
    "accuracy": "Overall accuracy",
    "epsilon": "ε",
    "r2": "Variance explained (R²)",
    "noise": "Noise in each released count (std)",
    "accuracy_noise": "Noise in the overall accuracy (std)",
    "class_noise": "Noise in each released count of a class (std)",
}
STATE_NAMES = {
    "weights": "Weight of each group",
    "rates": "Sampling rate of each group",
    "clips": "Clip bound of each group",
    "cell_rows": "Rows per step from each group, in expectation",
    "cell_clips": "Clip bound of each group",
    "signal": "Released signal of each group",
    "shares": "Released share of clipped rows in each group",
    "spent": "Budget spent by each group",
    "losses": "Released loss of each group",
    "loss_sums": "Sum of the released losses of each group",
    "clipped_shares": "Share of each group in an update whose rows are all clipped",
    "batch": "Rows per step from each group",
    "thresholds": "Threshold of each group",
    "clipped": "Released share of clipped rows in each group",
    "tail_percent": "Length of the tail, in percent of a batch's thresholds",
    "filled": "Released count of gradients that fill half of their threshold, less half of the drawn rows",
}
STATE_NOTES = {
    "tail_percent": "A public constant of each step. It grows as gradients vanish: a count moves it half of the way."
}


def is_of_people(run: Mapping[str, Any]) -> bool:
    """Whether a run protects people with all their rows."""
    return (run.get("privacy") or {}).get("unit") == PERSON


def counts_people(run: Mapping[str, Any]) -> bool:
    """Whether the sizes of a run are numbers of people: not where rows of a person count each by itself."""
    return is_of_people(run) and (run.get("privacy") or {}).get("rows_together", 1) == 1


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a percentage; None is a dash, never 0.

    >>> percent(0.4123) == f"41.2{NARROW}%", percent(None)
    (True, '–')
    """
    return NOTHING if value is None else f"{100 * value:.{digits}f}{NARROW}%"


def points(value: float | None) -> str:
    """A difference of two shares in percentage points, with its sign.

    >>> points(-0.1), points(0.05), points(0.0001)
    ('−10.0', '+5.0', '0.0')
    """
    if value is None:
        return NOTHING
    text = f"{abs(100 * value):.1f}"
    return text if text == "0.0" else ("−" if value < 0 else "+") + text


def number(value: float | None, digits: int = 3) -> str:
    """A number at a few significant digits, whole numbers with thin thousands separators.

    >>> number(1272), number(1.23456), number(1.5e-5), number(48842) == f"48{NARROW}842"
    ('1272', '1.23', '1.5e-5', True)
    """
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        whole = abs(int(value))
        grouped = f"{whole:,}".replace(",", NARROW) if whole >= 10_000 else str(whole)
        return ("−" if value < 0 else "") + grouped
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", "−", 1) if value < 0 else f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def signed(value: float | None) -> str:
    """A number with its sign, also where it is above 0.

    >>> signed(0.25), signed(-1.5), signed(0.0)
    ('+0.25', '−1.5', '0')
    """
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def value(of: float | None) -> str:
    """A value of a column, at four digits and without powers of ten where it is of a usual size.

    >>> value(1234.56), value(37.0), value(0.0123)
    ('1235', '37', '0.0123')
    """
    return NOTHING if of is None else number(float(f"{of:.4g}"), digits=4)


def date(days: float | None) -> str:
    """A date, from days since 1970-01-01.

    >>> date(18262.5)
    '2020-01-01'
    """
    return NOTHING if days is None else str(np.datetime64(math.floor(days), "D"))


def spelled(value: str) -> str:
    """A key such as `learning_rate` as words.

    >>> spelled("learning_rate")
    'Learning rate'
    """
    text = value.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def label(key: str) -> str:
    """The name of a figure as people write it.

    >>> label("auroc"), label("balanced_accuracy")
    ('AUROC', 'Balanced accuracy')
    """
    return FIGURE_NAMES.get(key) or spelled(key)


def some_of(names: Sequence[str], most: int = 5) -> str:
    """A list of names; of many the first few, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c"], most=1)
    ('a, b', 'a and 2 more')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def show(value: object) -> str:
    """Any JSON value as one line of text.

    >>> show(["sex", "race"]), show(None), show(True), show({"a": 0.5})
    ('sex, race', '–', 'yes', 'a: 0.5')
    """
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value, digits=4)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {show(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(show(part) for part in value)
    return str(value)
