"""`--require`: parsed before anything runs, checked at the end, reported in the exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from veil.cli.console import stdout


@dataclass(frozen=True)
class Checks:
    """What was required and what was measured; nothing required is met."""

    subject: str
    requirements: tuple[Mapping[str, Any], ...] = ()

    @property
    def met(self) -> bool:
        """Whether all of it holds."""
        return all(check["met"] for check in self.requirements)

    def as_json(self) -> dict[str, Any]:
        """Keys for `--json`; nothing where nothing was required."""
        keys = ("metric", "op", "threshold", "value", "met", "not_measured")
        found = [{key: check[key] for key in keys} for check in self.requirements]
        return {"requirements": found, "met": self.met, "judged": self.subject} if found else {}


def checked_requirements(texts: Sequence[str] | None) -> list[dict[str, Any]]:
    """Parse each `--require`; raises `InputError` for an invalid one."""
    from veil.report.requirements import parse_requirements

    return [requirement.as_json() for requirement in parse_requirements(texts or [])]


def judge(records: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> Checks:
    """The verdict of the report, without the page."""
    from veil.report import judge_requirements

    subject, checks = judge_requirements(records, wanted)
    return Checks(subject, tuple(checks))


def print_verdict(checks: Checks) -> None:
    """One line for each requirement."""
    for check in checks.requirements:
        mark = "[bold green]✓ met:[/]" if check["met"] else "[bold red]✕ not met:[/]"
        apart = ": " if check["metric"] == "useful" else " "
        words = escape(f"{check['name']}{apart}{check['shown']} ({checks.subject})")
        stdout.print(f"\n{mark} {words}", soft_wrap=True, highlight=False)
