"""How numbers are written: the sign of fractions and the unit of a column of texts, taken from its rows.

This reads the rows without noise, like every guess at a column; a schema states both. What is found is the same for all
rows, and each value is then read by itself (`plain_number`).
"""

from __future__ import annotations

import re

import pandas as pd

from veil.tables.text import DecimalSign, plain_number

Form = tuple[DecimalSign, str]
_CURRENCIES = "$ € £ ¥ ₹ CHF EUR USD GBP"
# Units that stand behind a number; letters outside this list may be part of a code.
_UNITS = (
    "% ‰ ° °C °F kg g mg µg lb lbs oz t km m cm mm ft in mi km² m² ha l L ml mL dl mmHg bpm kWh kW MW W Hz h min s ms "
    "d years year yrs y months days hours minutes km/h mph mg/dl mg/dL mmol/l mmol/L kg/m² cm² Jahre Tage Std"
)
_NUMBER = re.compile(
    r"(?:[+-]\s*)?(?P<before>{0})?\s*(?P<digits>[+-]?\d[\d.,'’   ]*)\s*(?P<behind>{0}|{1})?".format(
        *("|".join(sorted(map(re.escape, listed.split()), key=len, reverse=True)) for listed in (_CURRENCIES, _UNITS))
    )
)
# Digits that can only be read with a point, or with a comma, before the fraction; 1,234 can be read with both.
_BY_POINT = re.compile(r"[+-]?(\d+\.(?!\d{3}$)\d*|\d{1,3}(,\d{3})+\.\d*|\d{1,3}(,\d{3}){2,}|0\.\d+)")
_BY_COMMA = re.compile(r"[+-]?(\d+,(?!\d{3}$)\d*|\d{1,3}(\.\d{3})+,\d*|\d{1,3}(\.\d{3}){2,}|0,\d+)")
_HEAD, _SHARE = 200, 0.9


def number_form(texts: pd.Series) -> Form | None:
    """The sign of fractions and the unit of texts, if nearly all of them are numbers that Python does not read as such.

    None where they are plain numbers, no numbers, numbers of several units, or where a comma may separate thousands
    as well as a fraction.

    >>> number_form(pd.Series(["170,5", "1.234,25"])), number_form(pd.Series(["$54,000", "$999"]))
    ((',', ''), ('.', '$'))
    >>> number_form(pd.Series(["1,234", "12,345"])), number_form(pd.Series(["75 kg", "75000 g"]))
    (None, None)
    """
    if not _mostly_numbers(texts.iloc[:_HEAD]):
        return None
    parts = texts.str.extract(_NUMBER)
    before, behind = parts["before"], parts["behind"]
    units = pd.concat([before.dropna(), behind[before.isna()].dropna()])
    unit = str(units.mode().iloc[0]) if len(units) else ""
    if (units != unit).sum() > (1 - _SHARE) * len(texts):
        return None
    sign = _sign(parts["digits"].dropna(), thousands=unit in _CURRENCIES.split())
    if sign is None or (sign, unit) == ("", ""):
        return None
    return sign, unit


def unclear_numbers(texts: pd.Series) -> bool:
    """Whether texts look like numbers and cannot be read as such: several units, or commas that may mean two things.

    >>> unclear_numbers(pd.Series(["1,234", "12,345"])), unclear_numbers(pd.Series(["two", "three"]))
    (True, False)
    """
    plain = pd.to_numeric(texts.iloc[:_HEAD], errors="coerce").notna().mean() >= _SHARE
    return not plain and _mostly_numbers(texts.iloc[:_HEAD]) and number_form(texts) is None


def are_numbers(texts: pd.Series, form: Form) -> pd.Series:
    """Which texts are numbers of a form."""
    plain = texts.map(lambda text: plain_number(text, *form), na_action="ignore")
    return pd.to_numeric(plain, errors="coerce").notna()


def _mostly_numbers(texts: pd.Series) -> bool:
    return len(texts) > 0 and bool(texts.str.fullmatch(_NUMBER).mean() >= _SHARE)


def _sign(digits: pd.Series, thousands: bool) -> DecimalSign | None:
    """The sign of fractions: by what can be read in one way only; None where nothing tells."""
    if not digits.str.contains(r"[^\d.+-]").any() and not digits.str.count(r"\.").gt(1).any():
        return ""
    by_point, by_comma = (int(digits.str.fullmatch(form).sum()) for form in (_BY_POINT, _BY_COMMA))
    if by_point != by_comma:
        return "." if by_point > by_comma else ","
    spaces_alone = not digits.str.contains("[.,]").any()
    return "." if spaces_alone or (thousands and by_point == 0) else None
