"""Findings: what an audit found, in the form that `audit.json` and the report have it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veil.auditing.attack_curves import AttackCurve
from veil.auditing.lower_bounds import LowerBound
from veil.errors import InputError

FILE = "audit.json"


@dataclass(frozen=True)
class Finding:
    """What an attack shows about the rows of one group, one owner, or all: bounds on ε, a curve, or both.

    `above` names the bounds that exceed the guarantee even at the confidence corrected for all bounds.

    Args:
        rows: How many rows were attacked.
        epsilon: What the certificate promises them.
        bounds: Lower bounds of ε.
        curve: True against false positives of the attack.
        above: Names of the bounds that exceed the promise.
    """

    rows: int
    epsilon: float
    bounds: tuple[LowerBound, ...] = ()
    curve: AttackCurve | None = None
    above: tuple[str, ...] = ()

    def bound(self, name: str) -> float:
        """The ε of a bound by its name.

        Args:
            name: Name of the bound, like "one-run".

        Returns:
            A lower bound of ε.

        Raises:
            StopIteration: There is no bound of this name.

        >>> Finding(10, 1.0, (LowerBound("one-run", 0.4, 0.95, "…"),)).bound("one-run")
        0.4
        """
        return next(bound.epsilon for bound in self.bounds if bound.name == name)

    def as_json(self, headline: str) -> dict[str, Any]:
        """Plain JSON values.

        Args:
            headline: Name of the bound to show as `epsilon_lower`.

        Returns:
            ε, its lower bounds, and the curve of the attack where there is one.
        """
        record: dict[str, Any] = {
            "rows": self.rows,
            "epsilon": self.epsilon,
            "epsilon_lower": self.bound(headline) if self.bounds else None,
            "bounds": {bound.name: bound.epsilon for bound in self.bounds},
            "above_promise": list(self.above),
        }
        return record | (self.curve.as_json() if self.curve is not None else {})


@dataclass(frozen=True)
class Audit:
    """One attack on one method or run. `headline` names its main bound.

    Each bound has `confidence`; the verdict over all `tests` of them has it too, because there each is tested at its
    share of the risk (Bonferroni).

    Args:
        attack: Name of the attack.
        method: Name of the method.
        delta: δ at which ε is bounded.
        confidence: Of each bound, like 0.95.
        headline: Name of the main bound.
        overall: What was found about all rows.
        by_group: The same by group.
        by_owner: The same by owner.
        seconds: How long it took.
        details: Further values, as JSON.
        tests: How many bounds were tested together.

    >>> found = Finding(10, 1.0, (LowerBound("one-run", 0.4, 0.95, "…"),))
    >>> audit = Audit("canaries", "dp-sgd", 1e-5, 0.95, "one-run", found, {}, {}, seconds=2.0)
    >>> audit.holds, audit.epsilon_lower
    (True, 0.4)
    """

    attack: str
    method: str
    delta: float
    confidence: float
    headline: str
    overall: Finding
    by_group: Mapping[str, Finding]
    by_owner: Mapping[str, Finding]
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)
    tests: int = 1

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all rows, of each group and of each owner."""
        return (self.overall, *self.by_group.values(), *self.by_owner.values())

    @property
    def holds(self) -> bool:
        """Whether no bound exceeds the guarantee; a sound mechanism fails with at most the stated risk."""
        return not any(finding.above for finding in self.findings)

    @property
    def verdict(self) -> str:
        """What follows from all bounds together, in words."""
        if not self.overall.bounds:
            return "This attack gives no bound on ε, so there is no verdict."
        above = sum(len(finding.above) for finding in self.findings)
        alone = sum(bound.epsilon > finding.epsilon for finding in self.findings for bound in finding.bounds)
        found = f"{above} of {self.tests} bounds EXCEED their guarantee" if above else "No bound exceeds its guarantee"
        each = f"{100 * shared_confidence(self.confidence, self.tests):.6g} %"
        text = f"{found}: each was tested at {each}, so that the overall verdict holds at {100 * self.confidence:g} %."
        if alone > above:
            text += f" On their own, at {100 * self.confidence:g} % each, {alone} exceed it."
        return text

    @property
    def epsilon_lower(self) -> float | None:
        """The headline bound for all rows."""
        return self.overall.bound(self.headline) if self.overall.bounds else None

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; the keys that the report reads are at the top level.

        Returns:
            One audit as it stands in `audit.json`.
        """
        assumptions = {bound.name: bound.assumption for bound in self.overall.bounds}
        record = {
            "attack": self.attack,
            "method": self.method,
            "delta": self.delta,
            "confidence": self.confidence,
            "headline": self.headline,
            **self.overall.as_json(self.headline),
            "holds": self.holds,
            "verdict": self.verdict,
            "tests": self.tests,
            "by_group": {name: one.as_json(self.headline) for name, one in self.by_group.items()},
            "by_owner": {name: one.as_json(self.headline) for name, one in self.by_owner.items()},
            "assumptions": assumptions,
            "seconds": round(self.seconds, 2),
            **self.details,
        }
        plain = _plain(record)
        assert isinstance(plain, dict)
        return plain

    def save(self, folder: Path | str) -> Path:
        """Add the audit to `audit.json` of a run folder; an earlier one of the same attack is replaced.

        Args:
            folder: The folder of a run.

        Returns:
            The path of `audit.json`.
        """
        path = Path(folder) / FILE
        others = [one for one in read_audits(folder) if one.get("attack") != self.attack]
        text = json.dumps({"audits": [*others, self.as_json()]}, indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
        return path


def shared_confidence(confidence: float, tests: int) -> float:
    """The confidence of each of several tests that together have this one (Bonferroni).

    >>> shared_confidence(0.95, 50)
    0.999
    """
    return 1.0 - (1.0 - confidence) / tests


def read_audits(folder: Path | str) -> Sequence[dict[str, Any]]:
    """The audits in a run folder, as the report takes them; none where there was no audit.

    Args:
        folder: A run's folder.

    Returns:
        One record per audit, in the order in which they were made.

    Raises:
        InputError: The file of audits is damaged.

    >>> read_audits("a-folder-without-audits")
    []
    """
    path = Path(folder) / FILE
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["audits"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a valid audits file: delete it and run the audit again") from error


def _plain(value: Any) -> Any:
    """Values that are not finite become None, as JSON cannot express them."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
