"""People with several rows: columns that look like identifiers of people and whose values repeat.

Where kinds and bounds are read off the rows anyway, so is this, and the certificate says so. Where they are stated by a
schema or released with noise, only names of columns decide, which are public: no row changes what is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import pandas as pd


def word_set(listed: str) -> frozenset[str]:
    """Words that are listed with spaces between them."""
    return frozenset(listed.split())


_PEOPLE = word_set(
    "patient person people user customer client subject member employee student pupil participant respondent worker "
    "citizen resident borrower passenger driver individual household family account card device visitor player author "
    "sender donor applicant policyholder acct"
)
_NUMBERED = word_set("id ids no nr num number key uuid guid hash code pseudonym")
_ANYTHING = word_set("id uid uuid guid")
_ALONE = _ANYTHING | word_set("pid ssn mrn email mail userid patientid customerid")
_OTHER = word_set(
    "zip zipcode postcode postal plz date day week month year hour time timestamp age amount count price score rate "
    "product item store shop branch school hospital clinic department city town county state country region"
)
_FEWEST = 50  # distinct values, for a column that is not named like an identifier
_MOST_ROWS_EACH = 200
# Of a table with more columns, the values of the first ones are looked at.
MOST_COLUMNS = 2_000
_OPAQUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w-]{4,}|[^@\s]+@[^@\s]+\.[^@\s]+")


def repeated_people(table: pd.DataFrame, leave_out: Collection[str]) -> list[str]:
    """Columns that look like identifiers of people of whom several rows are in the table.

    >>> visits = pd.DataFrame({"patient_id": [f"P{i // 3:04}" for i in range(300)], "age": range(300)})
    >>> repeated_people(visits, ())
    ['patient_id']
    """
    names = [str(name) for name in table.columns if name not in leave_out]
    looked = {*names[:MOST_COLUMNS], *(name for name in names if named_like_person(name))}
    return [name for name in names if name in looked and people_repeat(table[name], name)]


def named_like_people(table: pd.DataFrame, leave_out: Collection[str]) -> list[str]:
    """Columns that are named like identifiers of people, not just "id", which may count the rows; reads no row."""
    names = [str(name) for name in table.columns if name not in leave_out]
    return [name for name in names if named_like_person(name) and not {*name_tokens(name)} <= _ANYTHING]


def name_tokens(name: str) -> list[str]:
    """The words in the name of a column: patient_id, patientId and "patient id" have two each."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [token for token in re.split(r"[^a-z]+", parted.lower()) if token]


def named_like_person(name: str) -> bool:
    """Whether a name says "identifier of people": patient, userId, customer_number, email; not patient_age."""
    tokens = name_tokens(name)
    if not tokens or _OTHER & set(tokens):
        return False
    if len(tokens) == 1 and tokens[0] in _ALONE:
        return True
    people = [token for token in tokens if token in _PEOPLE or token.removesuffix("s") in _PEOPLE]
    return bool(people) and all(token in people or token in _NUMBERED | _ALONE for token in tokens)


def people_repeat(column: pd.Series, name: str) -> bool:
    """Whether a column names people of whom several rows are in the table, by its name or its values."""
    present = column.dropna()
    if len(present) < 20 or pd.api.types.is_bool_dtype(present) or pd.api.types.is_datetime64_any_dtype(present):
        return False
    counts = present.value_counts().to_numpy()
    shared = counts[counts > 1].sum() / len(present)
    each = len(present) / len(counts)
    if named_like_person(name):
        # a "customer" of few values is a kind of customer
        return bool(shared >= 0.01 and len(counts) >= min(_FEWEST, len(present) / 5) and each <= _MOST_ROWS_EACH)
    if _OTHER & set(name_tokens(name)) or len(counts) < _FEWEST:
        return False
    # Many values, most of them in a few rows each, none in many: towns, jobs and quantities have frequent values.
    even = counts.max() <= max(10.0, 8 * each) and each <= 10 and shared >= 0.5
    return bool(even and _opaque(present))


def _opaque(present: pd.Series) -> bool:
    """Whether values mean nothing by themselves: letters with digits, mail addresses, or numbers without gaps."""
    if pd.api.types.is_numeric_dtype(present):
        values = np.unique(present.to_numpy(dtype=np.float64))
        whole = bool(np.all(values == np.floor(values)))
        # quantities with this many values have gaps where they are rare
        return whole and len(values) >= 10 * _FEWEST and float(values[-1] - values[0]) < 1.2 * len(values)
    head = present.iloc[:500].astype("string").str.strip()
    return bool(head.str.fullmatch(_OPAQUE).mean() > 0.95)
