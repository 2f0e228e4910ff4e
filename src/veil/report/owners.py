"""Owners: what training did for every owner with a budget of its own, on rows that were declared public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veil.report.cleaning import Record
from veil.report.figures import Figure, Lines, Series
from veil.report.wording import percent

FINDINGS = "OwnerCurves"
_CONDITION = (
    "1 + Σ cos ∠ · (q·rows·C of the other owner) / (its own), over the other owners. At or below 0, the owner's loss "
    "may rise while the others learn. Thresholds and rates are those of the plan."
)
_PART = "The share of the length of a step's clipped gradients that each owner has, after the tail took its part."
_RECALL = "Every class of an owner counts alike: a frequent class that is learnt early does not hide a rare one."


def owner_figures(run: Record) -> dict[str, Figure]:
    """Accuracy, recall and loss of every owner, their pull and the tail's activity; none without owner curves."""
    found = (run.get("findings") or {}).get(FINDINGS) or {}
    steps, accuracy, loss = found.get("steps") or [], found.get("accuracy") or {}, found.get("loss") or {}
    if len(steps) < 2 or not accuracy:
        return {}
    figures: dict[str, Figure] = {
        "owners-accuracy": Lines(
            title="Accuracy of each owner over the steps",
            x_label="Step",
            y_label="Accuracy on evaluation rows",
            series=_by_owner(steps, accuracy),
            span=(0.0, 1.0),
            note=_drops(found.get("drop") or {}),
        ),
        "owners-loss": Lines(
            title="Loss of each owner over the steps",
            x_label="Step",
            y_label="Cross-entropy on evaluation rows",
            series=_by_owner(steps, loss),
            format="number",
        ),
    }
    recall = found.get("recall") or {}
    if recall:
        figures["owners-recall"] = Lines(
            title="Recall of each owner over the steps",
            x_label="Step",
            y_label="Mean recall of the owner's classes",
            series=_by_owner(steps, recall),
            span=(0.0, 1.0),
            note=_RECALL,
        )
    activity = found.get("activity") or []
    if len(activity) == len(steps):
        figures["owners-pull"] = Lines(
            title="Pull between owners: Condition (2)",
            x_label="Step",
            y_label="Condition (2)",
            series=_by_owner(steps, found.get("condition") or {}),
            format="number",
            references=(("the loss may rise", 0.0),),
            note=_CONDITION,
        )
        lengths, told = _tail(run, activity)
        sentence = " ".join(part for part in (found.get("sentence") or "", told) if part)
        figures["owners-tail"] = _activity(steps, activity, sentence, lengths)
        # Runs of earlier versions do not know their owners' parts.
        parts = [one.get("pull_by_owner") or {} for one in activity]
        if all(parts):
            figures["owners-part"] = Lines(
                title="Each owner's part of a step",
                x_label="Step",
                y_label="Share of the clipped gradients' length",
                series=_by_owner(steps, {owner: [one[owner] for one in parts] for owner in parts[0]}),
                span=(0.0, 1.0),
                note=_PART,
            )
    return figures


def _tail(run: Record, activity: Sequence[Mapping[str, Any]]) -> tuple[list[float], str]:
    """How long the tail was, as a share of a batch's thresholds, and what it did in a sentence."""
    lengths = [one.get("length") or 0.0 for one in activity]
    how = str((run.get("details") or {}).get("tail") or "")
    if not how or not all(lengths):  # runs of earlier versions do not know it
        return [], ""
    first, last = percent(lengths[0], 0), percent(lengths[-1], 0)
    change = first if first == last else f"{first} at first and {last} at the end"
    how = how if how.startswith("follows") else f"is {how}"
    return lengths, f"Its length: {change}, of the thresholds of a batch; it {how}."


def _activity(
    steps: Sequence[int], activity: Sequence[Mapping[str, Any]], sentence: str, lengths: Sequence[float]
) -> Lines:
    """What the bound clips and, where there is a tail, how long it was and what it removes of whom."""
    clipped = Series(
        "Rows as long as their threshold", tuple(steps), tuple(one["clipped"] for one in activity), "summary"
    )
    if not sentence:
        return Lines(
            title="Rows whose gradients fill their thresholds",
            x_label="Step",
            y_label="Share of drawn rows",
            series=(clipped,),
            span=(0.0, 1.0),
        )
    idle = Series("Tail without gradients", tuple(steps), tuple(one["idle"] for one in activity))
    removed = {owner: [one["removed_by_owner"][owner] for one in activity] for owner in activity[0]["removed_by_owner"]}
    named = {f"Removed of {owner}": values for owner, values in removed.items()}
    return Lines(
        title="What the tail removes of each owner",
        x_label="Step",
        y_label="Share",
        series=(*_by_owner(steps, named), clipped, idle, *_by_owner(steps, {"Length of the tail": lengths})),
        span=(0.0, 1.0),
        note=sentence,
    )


def _by_owner(steps: Sequence[int], values: Mapping[str, Sequence[float | None]]) -> tuple[Series, ...]:
    return tuple(Series(owner, tuple(steps), tuple(own)) for owner, own in values.items() if len(own) == len(steps))


def _drops(drops: Mapping[str, Mapping[str, Any]]) -> str:
    """Which owners fell below their own early peak, how far, and until when."""
    said = [
        f"{owner}: {percent(drop['depth'])} below its early peak from step {drop['start']} "
        + ("to the end" if drop["end"] is None else f"to step {drop['end']}")
        for owner, drop in drops.items()
        if drop.get("start") is not None
    ]
    return f"Initial drop. {'; '.join(said)}." if said else "No owner fell below its own early peak."
