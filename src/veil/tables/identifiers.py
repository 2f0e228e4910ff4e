"""Identifiers: numbers that name rows or people, not quantities. Whoever learns them learns rows by heart.

Names of columns help, but a name alone decides nothing. Values are read without noise, as all guesses do. Where it is
not sure that a column is an identifier, it is learned, with a remark.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.tables.repeated_people import name_tokens, named_like_person, people_repeat, word_set

COUNTS: Final = "counts the rows"
IDENTIFIER: Final = "an identifier"
# Words at the end of a name that say "identifier", and words that may also count something: employee_number.
_IDENTIFIES = word_set("id ids uid uuid guid ssn mrn pid key userid patientid customerid")
_NUMBERS = word_set("no nr num number acct account")
QUANTITIES = word_set(
    "age count amount size years days hours score rate price income salary wage balance cost value sum total revenue "
    "sales turnover budget limit loan debt weight height distance duration length area population votes year time "
    "timestamp date ts epoch latitude longitude fnlwgt"
)
_FEWEST = 20
_MOST, _NEARLY_ALL = 0.9, 0.99
# A number of so many digits that is different in nearly every row names something; of fewer, it may be a quantity.
_SURE, _LIKELY = 7, 5


def why_identifier(present: pd.Series, name: str) -> str | None:
    """Why the present values of a column are surely an identifier, in a few words; None where they may be learned.

    >>> why_identifier(pd.Series(np.random.default_rng(0).integers(10**7, 10**8, 500)), "acct")
    'an identifier'
    >>> why_identifier(pd.Series(np.random.default_rng(0).lognormal(10, 1, 500).round()), "acct") is None
    True
    """
    if len(present) < _FEWEST or pd.api.types.is_bool_dtype(present):
        return None
    words = name_tokens(name)
    last = words[-1] if words else ""
    # A person with several rows: patient_id, not a number of patients.
    if last in _IDENTIFIES and named_like_person(name) and people_repeat(present, name):
        return IDENTIFIER
    values = whole_numbers(present)
    if values is None:
        return None
    distinct = np.unique(values)
    share, span = len(distinct) / len(values), float(distinct[-1] - distinct[0])
    sorted_rows = pd.api.types.is_integer_dtype(present) and bool((np.diff(values) > 0).all())
    if sorted_rows or _counts_rows(share, span, len(distinct)):
        return COUNTS
    if share < _MOST:
        return None
    if last in _IDENTIFIES:
        return IDENTIFIER
    if QUANTITIES & set(words):
        return None
    if last in _NUMBERS and len(words) > 1 and _same_width(distinct):
        return IDENTIFIER
    return IDENTIFIER if share >= _NEARLY_ALL and _like_numbers_given_out(distinct, _SURE) else None


def may_be_identifier(present: pd.Series, name: str) -> bool:
    """Whether numbers that are learned as a quantity are as different and as even as identifiers are."""
    values = whole_numbers(present) if len(present) >= _FEWEST and not QUANTITIES & set(name_tokens(name)) else None
    if values is None:
        return False
    distinct = np.unique(values)
    return len(distinct) >= _NEARLY_ALL * len(values) and _like_numbers_given_out(distinct, _LIKELY)


def look_like_codes(present: pd.Series, most: int) -> bool:
    """Whether few whole numbers of one width lie far apart, each in many rows, as codes do: 1010, 4021, 8010.

    Quantities that people choose have steps (100, 200, 500) or different widths.
    """
    values = whole_numbers(present) if len(present) >= _FEWEST else None
    if values is None or not _same_width(values[:100]):
        return False
    distinct, rows = np.unique(values, return_counts=True)
    if not 3 <= len(distinct) <= most or distinct[0] < 100 or not _same_width(distinct) or np.median(rows) < 5:
        return False
    steps = np.diff(distinct).astype(np.int64)
    return bool(steps.sum() / np.gcd.reduce(steps) > 5 * len(distinct))


def whole_numbers(present: pd.Series) -> NDArray[np.float64] | None:
    """The values, where all of them are whole numbers; a column of texts has none."""
    if not pd.api.types.is_numeric_dtype(present) or pd.api.types.is_complex_dtype(present) or len(present) == 0:
        return None
    values = present.to_numpy(dtype=np.float64)
    # Most columns of fractions are known by their first values.
    whole = all(bool((part == np.floor(part)).all()) for part in (values[:100], values))
    return values if whole and bool(np.isfinite(values).all()) else None


def _counts_rows(share: float, span: float, distinct: int) -> bool:
    """Whether whole numbers count the rows, some of which may be set apart, shuffled or copied."""
    if share < 1:  # of quantities with so few copies, two thirds of the span would have no row
        return share >= 0.8 and span < 1.2 * distinct
    # All different where so many quantities would repeat: of n draws from a span, n² / (2 · span) pairs are equal.
    return span < max(2 * distinct, distinct**2 / 20)


def _same_width(distinct: NDArray[np.float64]) -> bool:
    """Whether all numbers have as many digits."""
    widths = np.floor(np.log10(np.maximum(np.abs(distinct), 1.0)))
    return bool(distinct.min() >= 0 and (widths == widths[0]).all())


def _like_numbers_given_out(distinct: NDArray[np.float64], digits: int) -> bool:
    """Whether numbers are long, as long as each other, not rounded, no dates, and evenly spread over what they span.

    Incomes and amounts crowd at their lower end and are rounded.
    """
    if distinct[0] < 10 ** (digits - 1) or not _same_width(distinct) or _are_days(distinct):
        return False
    rounded = float(np.mean(np.mod(distinct, 100) == 0))
    even = (distinct - distinct[0]) / max(float(distinct[-1] - distinct[0]), 1.0)
    return rounded < 0.05 and float(np.abs(even - np.linspace(0, 1, len(even))).max()) < 0.2


def _are_days(distinct: NDArray[np.float64]) -> bool:
    """Whether numbers are days written as 20201231."""
    year, month, day = distinct // 10_000, distinct // 100 % 100, distinct % 100
    return bool(((year >= 1800) & (year < 2200) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all())
