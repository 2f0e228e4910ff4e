"""Causes: why a claim between methods with budgets by owner fails, said from what its runs kept of every owner.

Every sentence has a condition on stored figures, so a page names a cause only where its runs show it, and says so where
they show none. Figures are means over the seeds that both arms have, at the moment of the claim.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.runner.columns import GROUP, MOMENT, OWNER, moment_of
from experiments.runner.results import Results
from experiments.runner.spec import Claim, Trend, X
from veil.metrics.ordered_objective import change_against_budget

MOSTLY, HARDLY, HALF = 0.5, 1.25, 0.5
LEAST = 5
SHORTER, SHORT = 0.3, "so updates are that much shorter"
LITTLE, UNCHANGED = 0.05, "so it hardly changes them"
REMOVED = "tail_removed"
NONE = "what was measured of owners and tail names no cause"


@dataclass(frozen=True)
class Seen:
    """An arm at a moment, means over seeds: accuracy by owner, and where rates are by owner what bound and tail do."""

    accuracy: Mapping[str, float]
    part: Mapping[str, float]
    removed: Mapping[str, float]
    condition: Mapping[str, float]
    of_all: Mapping[str, float]
    mistaken: Mapping[str, tuple[str, float]]
    groups: Mapping[str, Sequence[str]]
    seeds: int

    @property
    def mean(self) -> float:
        """The mean accuracy of the owners."""
        return statistics.mean(self.accuracy.values())


def seen(results: Results, arm: str, x: X | None, moment: float, seeds: Sequence[int]) -> Seen | None:
    """What the runs of an arm with these seeds showed; None where they did not look at this moment."""
    runs = results.at(arm, x)
    kept = [runs[seed]["owners"] for seed in seeds if moment in runs[seed].get("owners", {}).get("moments", ())]
    if not kept:
        return None
    place = kept[0]["moments"].index(moment)

    def by_owner(name: str) -> dict[str, float]:
        values = {owner: [one[name][owner][place] for one in kept] for owner in kept[0].get(name, {})}
        known = {owner: [value for value in own if value is not None] for owner, own in values.items()}
        return {owner: statistics.mean(own) for owner, own in known.items() if own}

    shares = ("removed", "idle", "clipped")
    return Seen(
        accuracy=by_owner("accuracy"),
        part=by_owner("pull_by_owner"),
        removed=by_owner("removed_by_owner"),
        condition=by_owner("condition"),
        of_all={name: statistics.mean(one[name][place] for one in kept) for name in shares if name in kept[0]},
        mistaken={name: _most([one["mistaken"][name][place] for one in kept]) for name in kept[0]["mistaken"]},
        groups=kept[0]["groups"],
        seeds=len(kept),
    )


def _most(mistakes: Sequence[Sequence[Any]]) -> tuple[str, float]:
    """The wrong class that most seeds name, with its mean share where they do; 0 elsewhere."""
    names = [name for name, _ in mistakes]
    name = max(sorted(set(names)), key=names.count)
    return name, statistics.mean(share if own == name else 0.0 for own, share in mistakes)


def cause(results: Results, claim: Claim, failing: Sequence[X | None]) -> str:
    """Why the claim fails at these values, a sentence for each; "" where the runs did not look at their owners."""
    moment, said = moment_of(claim.figure), []
    for x in failing:
        seeds = sorted(set(results.at(claim.above, x)) & set(results.at(claim.below, x)))
        above, below = (seen(results, arm, x, moment, seeds) for arm in (claim.above, claim.below))
        if above is None or below is None:
            said += [] if claim.why else _by_figures(results, claim, x, seeds)
            continue
        ordered = [results.spec.arm(arm).method == "ino-sgd" for arm in (claim.above, claim.below)]
        swapped = ordered == [False, True]
        own, other = (below, above) if swapped else (above, below)
        one = _Pair(claim, own, other, claim.above if swapped else claim.below, any(ordered))
        looked = min(above.seeds, below.seeds)
        part = "" if looked == len(seeds) else f" (looked at in {looked} of {len(seeds)} seeds)"
        said.append(f"{'' if x is None else f'at {x}: '}{'; '.join(one.reasons()) or NONE}{part}")
    return ". ".join(one if place == 0 else one[0].upper() + one[1:] for place, one in enumerate(dict.fromkeys(said)))


def _by_figures(results: Results, claim: Claim, x: X | None, seeds: Sequence[int]) -> list[str]:
    """What the tail removed by the page's figures, at the claim's moment or the next that has one."""
    arms = [arm for arm in (claim.above, claim.below) if results.spec.arm(arm).method == "ino-sgd"]
    moments = sorted((moment_of(name), name) for name in results.spec.figures if name.partition(MOMENT)[0] == REMOVED)
    for moment, name in moments if arms else []:
        found = results.figure(arms[0], x, name)
        removed = [found[seed] for seed in seeds if seed in found]
        if moment < moment_of(claim.figure) or not removed:
            continue
        share = statistics.mean(removed)
        what = SHORT if share >= SHORTER else UNCHANGED if share <= LITTLE else ""
        if what:
            when = "at the end" if moment == 1 else f"after {_percent(moment)} of the run"
            at = "" if x is None else f"at {x}: "
            return [f"{at}{when} the tail removes {_percent(share)} of the clipped gradients, {what}"]
    return []


@dataclass(frozen=True)
class _Pair:
    """The two arms of a claim; `own` is the one that INO-SGD trained, or the one above where neither is.

    `beside` is the label of the other one, `ordered` whether INO-SGD trained one of them.
    """

    claim: Claim
    own: Seen
    other: Seen
    beside: str
    ordered: bool

    def reasons(self) -> list[str]:
        """All that is true of them and speaks for the failure."""
        target, _, name = self.claim.figure.partition(MOMENT)[0].partition(":")
        found = self._empty_tail()
        if f"{target}:" == OWNER:
            return [*found, *self._of_owner(name)]
        if f"{target}:" == GROUP:
            owner = next((owner for owner, groups in self.own.groups.items() if name in groups), "")
            return [*found, *self._of_owner(owner), *self._of_class(name, owner)]
        return [*found, *self._of_all()]

    def _empty_tail(self) -> list[str]:
        idle, removed = (self.own.of_all.get(name, 0.0) for name in ("idle", "removed"))
        if not self.ordered or idle < MOSTLY:
            return []
        return [f"{_percent(idle)} of the tail has no gradient left, and it removes {_percent(removed)} of all"]

    def _of_owner(self, owner: str) -> list[str]:
        own, other, found = self.own, self.other, []
        removed, all_removed = own.removed.get(owner, 0.0), own.of_all.get("removed", 0.0)
        if self.ordered and removed >= all_removed > 0:
            found.append(
                f"the tail takes no less from {owner} than from all, {_percent(removed)} and {_percent(all_removed)} "
                "of the clipped gradients"
            )
        part, before = own.part.get(owner), other.part.get(owner)
        if self.ordered and part is not None and before and part / before < HARDLY:
            found.append(f"{owner} has {_percent(part)} of a step's length, {_percent(before)} with {self.beside}")
        condition, without = own.condition.get(owner), other.condition.get(owner)
        if condition is not None and condition <= 0:
            told = "" if without is None else f" ({without:+.1f} with {self.beside})"
            found.append(f"Cond. (2) of {owner} is {condition:+.1f}{told}: its loss may still rise while others learn")
        if other.accuracy[owner] >= other.mean:
            found.append(
                f"{owner} is not behind with {self.beside}, {_percent(other.accuracy[owner], 1)} where all owners have "
                f"{_percent(other.mean, 1)}"
            )
        return found

    def _of_class(self, name: str, owner: str) -> list[str]:
        taken, share = self.own.mistaken.get(name, ("", 0.0))
        if share < HALF:
            return []
        whose = next((one for one, groups in self.own.groups.items() if taken in groups), owner)
        part = self.own.part.get(whose)
        pull = "" if part is None else f", which has {_percent(part)} of a step's length"
        of = f" of {whose}{pull}" if whose != owner else f" of the same owner, {owner}"
        return [f"{_percent(share)} of the rows of {name} are taken for {taken}{of}"]

    def _of_all(self) -> list[str]:
        """The owners that turn the comparison, and how much shorter the updates are."""
        found = []
        removed = self.own.of_all.get("removed", 0.0)
        if self.ordered and removed >= SHORTER:
            found.append(f"the tail removes {_percent(removed)} of the clipped gradients, {SHORT}")
        changes = {owner: value - self.other.accuracy[owner] for owner, value in self.own.accuracy.items()}
        order = sorted(changes, key=lambda owner: changes[owner])
        for word, owners in (
            ("lose", [o for o in order if changes[o] < 0][:2]),
            ("gain", [o for o in order[::-1] if changes[o] > 0][:2]),
        ):
            if owners:
                found.append(f"most {word}: {', '.join(self._changed(owner, changes[owner]) for owner in owners)}")
        return found

    def _changed(self, owner: str, change: float) -> str:
        """An owner's change, and what is behind it: its part of a step in both arms, what the tail removes of it."""
        before, after, removed = self.other.part.get(owner), self.own.part.get(owner), self.own.removed.get(owner)
        told = []
        if before is not None and after is not None:
            told.append(f"{_percent(before)} → {_percent(after)} of a step's length")
        if self.ordered and removed is not None:
            told.append(f"{_percent(removed)} removed")
        return f"{owner} {100 * change:+.1f} points" + (f" ({'; '.join(told)})" if told else "")


def trend_cause(results: Results, trend: Trend) -> str:
    """What the changes of owners go with instead of their budgets; "" where the runs did not look at their owners.

    Accuracy is the mean of both arms: a change always falls with the accuracy that it is measured from.
    """
    points = []
    for name, budget in trend.against.items():
        owner = name.partition(":")[2]
        for seed in sorted(set(results.at(trend.above, None)) & set(results.at(trend.below, None))):
            own, other = (results.at(arm, None)[seed].get("owners") for arm in (trend.above, trend.below))
            if own and other and "removed_by_owner" in own:
                after, before = (one["accuracy"][owner][-1] for one in (own, other))
                removed = own["removed_by_owner"][owner][-1]
                points.append((after - before, (after + before) / 2, removed, budget))
    if len(points) < LEAST:
        return ""
    changes, accuracy, removed, budgets = map(list, zip(*points, strict=True))
    return (
        f" Measured over {len(points)} owners and seeds: the change correlates with ε "
        f"({_correlation(budgets, changes)}), "
        f"with the owner's mean accuracy in both arms ({_correlation(accuracy, changes)}) and with the share of its "
        f"clipped gradients that the tail removes ({_correlation(removed, changes)}); that share correlates with the "
        f"accuracy ({_correlation(accuracy, removed)}) and with ε ({_correlation(budgets, removed)})."
    )


def _correlation(x: Sequence[float], y: Sequence[float]) -> str:
    if min(map(statistics.pstdev, (x, y))) == 0:
        return "one does not vary"
    line = change_against_budget(x, y)
    return f"r = {line.correlation:+.2f}, p = {line.p_value:.2g}"


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"
