"""Comparing: the figures of ticked runs side by side, and which of their settings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veil.report.wording import NOTHING, label, number, percent, show, spelled

MOST = 24
# Different in every run, and no setting.
NAMES = frozenset({"command", "seed", "repetition", "out", "holdout_key"})
FIGURES = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "balanced_accuracy")
ERRORS = ("worst_group_error", "average_group_error", "root_mean_squared_error")


@dataclass(frozen=True)
class Line:
    """One line of the comparison: a figure or a setting, and its value in each run."""

    name: str
    values: tuple[str, ...]


def figure_lines(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    """ε, the figures over groups, and the accuracy (or error) of every group."""
    metrics = [_part(record, "metrics") for record in records]
    privacy = [_part(record, "privacy") for record in records]
    lines = [Line("Method", tuple(str(record.get("method") or NOTHING) for record in records))]
    lines.append(Line("ε", tuple(_shown(number, own.get("epsilon")) if own else NOTHING for own in privacy)))
    for name in (*FIGURES, *ERRORS):
        values = [own.get(name) for own in metrics]
        if any(isinstance(value, int | float) for value in values):
            lines.append(Line(label(name), tuple(_shown(_format(name), value) for value in values)))
    for group in dict.fromkeys(str(name) for own in metrics for name in _part(own, "by_group")):
        scores = [_part(_part(own, "by_group"), group) for own in metrics]
        lines.append(Line(f"Group {group}", tuple(_score(score) for score in scores)))
    return lines


def differing_settings(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The settings that are not the same in all runs."""
    settings = [{**_part(record, "config"), **_part(record, "settings")} for record in records]
    names = dict.fromkeys(name for own in settings for name in own if name not in NAMES)
    lines = [Line(spelled(name), tuple(show(own.get(name)) for own in settings)) for name in names]
    return [line for line in lines if len(set(line.values)) > 1]


def _format(name: str) -> Any:
    return number if name in ERRORS else percent


def _score(score: Mapping[str, Any]) -> str:
    if "root_mean_squared_error" in score:
        return _shown(number, score["root_mean_squared_error"])
    return _shown(percent, score.get("accuracy"))


def _shown(how: Any, value: Any) -> str:
    return str(how(value)) if isinstance(value, int | float) else NOTHING


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}
