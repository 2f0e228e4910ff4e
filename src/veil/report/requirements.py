"""Requirements on a run (`worst_group_accuracy>=0.6`), parsed before training and checked after."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from veil.errors import InputError, require
from veil.metrics.definitions import judged_names
from veil.report.usefulness import USEFUL

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}
SIGNS = {">=": "≥", ">": ">", "<=": "≤", "<": "<", "==": "="}
_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z_0-9]*)\s*(>=|<=|==|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure, how it is compared, and with what.

    Args:
        metric: Name of the figure, like "worst_group_accuracy".
        op: ">=", "<=", ">" or "<".
        threshold: The value to compare with.
    """

    metric: str
    op: str
    threshold: float

    def holds(self, value: float | None) -> bool:
        """Whether a measured value meets it; what was not measured does not.

        Args:
            value: The measured value, or None.

        Returns:
            True if it was measured and meets the requirement.

        >>> Requirement("accuracy", ">=", 0.6).holds(0.7), Requirement("accuracy", ">=", 0.6).holds(None)
        (True, False)
        """
        return value is not None and COMPARISONS[self.op](float(value), self.threshold)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values.

        Returns:
            `metric`, `op` and `threshold`.
        """
        return asdict(self)


def parse_requirement(text: str) -> Requirement:
    """Read `METRIC>=VALUE`; a wrong one raises `InputError` with one sentence.

    Args:
        text: `METRIC>=VALUE`, `METRIC<=VALUE`, or `useful`.

    Returns:
        The requirement.

    Raises:
        InputError: It has another form, an unknown metric or no number.

    >>> parse_requirement("worst_group_accuracy>=0.6")
    Requirement(metric='worst_group_accuracy', op='>=', threshold=0.6)
    """
    if text.strip() == USEFUL:
        return Requirement(USEFUL, "==", 1.0)
    found = _FORM.fullmatch(text)
    if found is None:
        raise InputError(f'requirement "{text}" is not of the form METRIC>=VALUE, as in worst_group_accuracy>=0.6')
    metric, op, value = found.groups()
    known = judged_names()
    if metric not in known:
        near = difflib.get_close_matches(metric, known, 1)
        hint = f'did you mean "{near[0]}"' if near else f"known are {', '.join(known)}"
        raise InputError(f'requirement "{text}" has an unknown metric "{metric}": {hint}')
    try:
        threshold = float(value)
    except ValueError as error:
        raise InputError(f'requirement "{text}" compares with "{value}", which is not a number') from error
    require(math.isfinite(threshold), f'requirement "{text}" compares with "{value}": give a finite number')
    return Requirement(metric, op, threshold)


def parse_requirements(texts: Iterable[str]) -> list[Requirement]:
    """Read all of them."""
    return [parse_requirement(text) for text in texts]


def from_mapping(given: Mapping[str, Any]) -> Requirement:
    """A requirement as a report is given it: `metric`, `op` (by default >=), `threshold`."""
    sign = str(given.get("op", ">="))
    require(sign in COMPARISONS, f'a requirement uses "{sign}": it must be one of {", ".join(COMPARISONS)}')
    return Requirement(str(given["metric"]), sign, float(given["threshold"]))


def asked_of(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the configuration of the runs says was required of them, each once."""
    texts = [text for run in runs for text in (run.get("config") or {}).get("require") or []]
    return [parse_requirement(str(text)).as_json() for text in dict.fromkeys(texts)]
