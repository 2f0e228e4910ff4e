"""Claims: whether an ordering that a paper claims holds in the stored runs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from experiments.runner.causes import cause
from experiments.runner.columns import column
from experiments.runner.results import Results
from experiments.runner.spec import Claim, X


@dataclass(frozen=True)
class Compared:
    """Two arms at one value: their means over the seeds that both have, and the difference of each seed.

    `above` and the differences are of so many times the arm above as the claim says.
    """

    x: X | None
    above: float
    below: float
    differences: tuple[float, ...]

    @property
    def difference(self) -> float:
        """By how much `above` exceeds `below`."""
        return self.above - self.below


@dataclass(frozen=True)
class Verdict:
    """A claim beside what came out; it holds if it holds at every value. None: it has not been run.

    `measured` is what the runs themselves say of why it fails; it is said in place of the claim's `why`.
    """

    claim: Claim
    compared: tuple[Compared, ...]
    measured: str = ""

    def holds_at(self, one: Compared) -> bool:
        """Whether the difference exceeds the margin."""
        return column(self.claim.figure).scaled(one.difference) > self.claim.margin

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds wherever it was measured."""
        return all(map(self.holds_at, self.compared)) if self.compared else None

    def clear_at(self, one: Compared) -> bool:
        """Whether the verdict stands two standard errors away from the other one; with one seed nobody can tell."""
        if len(one.differences) < 2:
            return False
        error = statistics.stdev(one.differences) / len(one.differences) ** 0.5
        away = column(self.claim.figure).scaled(one.difference) - self.claim.margin
        return abs(away) > 2 * column(self.claim.figure).scaled(error)

    def line(self) -> str:
        """The claim, the verdict and the numbers in one line of Markdown."""
        if self.holds is None:
            return f"- **Not run:** {self.claim.text}."
        kept = sum(map(self.holds_at, self.compared))
        share = "" if len(self.compared) == 1 else f" (at {kept} of {len(self.compared)} values)"
        word = "Holds" if self.holds else "Fails"
        doubt = "" if all(map(self.clear_at, self.compared)) else ", within two standard errors of the seeds"
        if all(len(one.differences) == 1 for one in self.compared):
            doubt = ", with one seed"
        numbers = "; ".join(map(self._numbers, self.compared))
        return f"- **{word}{share}{doubt}:** {self.claim.text}. {numbers}.{'' if self.holds else self._failure()}"

    def _failure(self) -> str:
        above, below, margin = f"{self._times}{self.claim.above}", self.claim.below, self.claim.margin
        said = f"{above} is not above {below}{f' by more than {margin:g}' if margin else ''}"
        if margin < 0:
            said = f"{above} falls short of {below} by {-margin:g} or more"
        measured = f" Why: {self.measured}." if self.measured else ""
        why = measured or (f" Why: {self.claim.why}" if self.claim.why else "")
        return f" Here {said}{'' if len(self.compared) == 1 else ' at some values'}.{why}"

    @property
    def _times(self) -> str:
        return "" if self.claim.times == 1 else f"{self.claim.times:.3g} × "

    def _numbers(self, one: Compared) -> str:
        shown = column(self.claim.figure)
        at = "" if one.x is None else f"at {one.x}: "
        spread = ""
        if len(one.differences) > 1:
            spread = f" ± {shown.shown(statistics.stdev(one.differences))}"
        seeds = f"{len(one.differences)} seed{'s' if len(one.differences) > 1 else ''}"
        change = f"{shown.shown(one.difference, '+')}{spread}{shown.unit}"
        heading = shown.heading[0].upper() + shown.heading[1:] if one.x is None else shown.heading
        above = f"{self._times}{shown.shown(one.above / self.claim.times)}"
        return f"{at}{heading} {above} against {shown.shown(one.below)}, {change}, {seeds}"


def judge(results: Results) -> list[Verdict]:
    """Every claim of the experiment: those that fail first, then those that hold, then those that were not run."""
    verdicts = [_explained(results, Verdict(claim, _compared(results, claim))) for claim in results.spec.claims]
    order = {False: 0, True: 1, None: 2}
    return sorted(verdicts, key=lambda verdict: order[verdict.holds])


def _explained(results: Results, verdict: Verdict) -> Verdict:
    failing = [one.x for one in verdict.compared if not verdict.holds_at(one)]
    return replace(verdict, measured=cause(results, verdict.claim, failing)) if failing else verdict


def _compared(results: Results, claim: Claim) -> tuple[Compared, ...]:
    found = []
    for x in results.values(claim.above, claim.below):
        if claim.at and x not in claim.at:
            continue
        above, below = results.figure(claim.above, x, claim.figure), results.figure(claim.below, x, claim.figure)
        seeds = sorted(set(above) & set(below))
        if seeds:
            pairs = [(claim.times * above[seed], below[seed]) for seed in seeds]
            high, low = (statistics.mean(pair[side] for pair in pairs) for side in (0, 1))
            found.append(Compared(x, high, low, tuple(one - other for one, other in pairs)))
    return tuple(found)
