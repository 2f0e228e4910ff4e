"""Training rows against new rows: what the guarantee bounds for each group, beside what was measured."""

from __future__ import annotations

from typing import Any

from veil.report.cleaning import Record
from veil.report.figures import Cell, Table
from veil.report.wording import percent, points

SAYS_NOTHING = "says nothing"
_MEASURED = (
    "The measured gap is that of one model on few rows; the bound is on the mean over many draws of the rows and many "
    "runs. Accuracies on training rows are exact: the certificate does not cover them."
)
_NOT_MEASURED = "Gaps are measured only with exact figures on the training rows (--show-private)."


def generalisation(run: Record) -> dict[str, Any] | None:
    """The bound of each group, the accuracies it is about where both were measured, and how to read them.

    `says` is false where the bound tells nothing: at 1, or where no accuracy is that far from the one on new rows.
    """
    certificate = run.get("certificate") or {}
    bounds = certificate.get("generalisation") or {}
    if not bounds:
        return None
    seen = (run.get("findings") or {}).get("Training rows") or {}
    new = (run.get("metrics") or {}).get("by_group") or {}
    groups = [_of_group(name, bound, seen, new) for name, bound in bounds.items()]
    measured = any(group["gap"] is not None for group in groups)
    note = _MEASURED if measured else _NOT_MEASURED
    return {"sentence": certificate.get("generalisation_statement") or "", "note": note, "groups": groups}


def _of_group(name: str, bound: float, seen: Record, new: Record) -> dict[str, Any]:
    train, test = seen.get(f"accuracy of {name}"), (new.get(name) or {}).get("accuracy")
    farthest = 1.0 if test is None else max(test, 1.0 - test)
    gap = None if train is None or test is None else train - test
    return {"name": name, "bound": bound, "says": bound < farthest, "train": train, "test": test, "gap": gap}


def generalisation_table(run: Record) -> Table | None:
    """A row for each group; None where the certificate has no such bounds."""
    found = generalisation(run)
    if found is None:
        return None
    heads = ("Group", "Bound on the gap, in points", "On training rows", "On new rows", "Measured gap, in points")
    rows = tuple(
        (
            Cell(own["name"], own["name"]),
            Cell(f"{100 * own['bound']:.1f}" if own["says"] else SAYS_NOTHING, own["bound"]),
            Cell(percent(own["train"]), own["train"]),
            Cell(percent(own["test"]), own["test"]),
            Cell(points(own["gap"]), own["gap"]),
        )
        for own in found["groups"]
    )
    return Table("Accuracy on training rows and on new rows", heads, rows)
