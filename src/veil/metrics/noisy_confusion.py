"""Noisy confusion counts: accuracy per group on held-out private rows, as one release.

A held-out row is in exactly one count (its group, its class, its prediction), so the vector of counts moves by 1 when
a row comes or goes and by √2 when it is replaced. Held-out rows are chosen by a coin that does not depend on other rows
(`veil.tables.splitting`) and are never trained on: every row is either in the training releases or in this one, and
pays for that one alone.

With more than two classes the counts are of right and wrong answers, by group and, with a small share of the budget, by
class: what they say of the classes shows whether predictions follow the truth at all. A row is then in one count of
each kind. The kinds are scaled by √(1 − s) and √s before noise is added, so that the whole vector moves by 1 as before.
In the same way the counts of two classes can be released together with counts by probability (`ScoredRelease`), from
which thresholds are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Account, Gaussian, Relation, Repeated, Terms, TokenBucket
from veil.accounting.calibration import noise_multiplier
from veil.errors import require
from veil.metrics.bootstrap import intervals
from veil.metrics.definitions import BY_COUNTS, LEAST_ROWS, all_across, or_none, parity_apart
from veil.metrics.groups import GroupMetrics, GroupScore
from veil.metrics.score_counts import RELEASED_BINS, pieces_of, released_scores
from veil.models.applying import scored
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance

PURPOSE = "evaluation"
# Of the budget, for right and wrong answers by class: noise in those by group grows by an eighth.
CLASS_SHARE = 0.2
# Of the budget, for counts by probability where they are asked for: noise in all other figures grows by two fifths.
SCORE_SHARE = 0.5
# Figures about the rows of one class; that class must be measured.
OF_A_CLASS = frozenset({"balanced_accuracy", "tpr", "fpr", "equal_opportunity", "equalised_odds"})
# The chance that any of the totals that are looked at passes for measured where it has next to no rows.
MISTAKEN = 0.01
# Stored runs are recognised by these sentences: they cannot change.
_PAYS = (
    "and took no part in training; their confusion counts are a release of their own at the same (ε, δ), so every row "
    "pays for one of the two."
)
DISJOINT = {
    Relation.ADD_REMOVE: "Held-out rows were chosen by a coin on what each row says (and, of equal rows, on its number "
    f"among them) {_PAYS} When a row is removed, all others stay in their part.",
    Relation.REPLACE_ONE: f"Held-out rows were chosen by a coin on each row's place {_PAYS} A row that replaces "
    "another takes its place, and so its part.",
}
# The same for numbers to predict.
DISJOINT_ERRORS = {
    relation: said.replace("their confusion counts", "counts of their errors and targets")
    for relation, said in DISJOINT.items()
}
# The same for people, by either relation.
DISJOINT_PEOPLE = (
    "Held-out people were chosen by a coin on each person's name and took no part in training; one row of each is "
    "measured by a release of its own at the same (ε, δ), so every person pays for one of the two. All rows of a "
    "person, and of anybody who takes their place, are in the same part."
)
MEASURED = frozenset((*DISJOINT.values(), *DISJOINT_ERRORS.values(), DISJOINT_PEOPLE))
"""Sentences of a run whose held-out rows have paid."""


@dataclass(frozen=True)
class NoisyGroupMetrics(GroupMetrics):
    """Group figures from noisy counts; `sigma` is the noise of one count. They are covered by the guarantee.

    `accuracy_sigma` is the noise of the overall accuracy: the noise of all groups' counts adds up in it.

    `counts` are the noisy confusion counts `[group, class, prediction]` of two classes: what follows from them is free.
    `by_class` has, of more classes, the noisy counts of wrong and right answers in all groups together. `scores` are
    counts by probability, as `veil.metrics.score_counts` takes them, where they were released.
    """

    sigma: float = 0.0
    counts: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    by_class: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    class_sigma: float = 0.0
    accuracy_sigma: float = field(default=0.0, repr=False, compare=False)
    scores: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """The usual keys and what else the counts say, marked as released with noise."""
        plain = {**GroupMetrics.as_json(self), "released": True, "noise": self.sigma}
        plain["accuracy_noise"] = None if math.isnan(self.accuracy) else self.accuracy_sigma
        if self.by_class:
            counts = {name: [round(max(value, 0.0)) for value in pair] for name, pair in self.by_class.items()}
            balanced = _balanced(list(self.by_class.values()), self.class_sigma)
            plain |= {"by_class": counts, "class_noise": self.class_sigma, "balanced_accuracy": or_none(balanced)}
        if self.counts is None or not self.by_group:
            return plain
        further = _from_counts(self.counts, list(self.by_group.items()), plain["by_group"], self.sigma)
        # Accuracies are worked out before counts are cut off at 0, which is more exact: they stay.
        return {**further, **plain, "by_group": further["by_group"]}


@dataclass(frozen=True, slots=True)
class CountsRelease:
    """Counts of rows plus Gaussian noise; a row is in one of them."""

    sigma: float
    relation: Relation

    @property
    def distance(self) -> float:
        """How far a neighbour moves the vector of counts."""
        return 1.0 if self.relation is Relation.ADD_REMOVE else math.sqrt(2.0)

    def event(self) -> Gaussian:
        """The cost of the release, the same for every cell."""
        return Gaussian(self.sigma / self.distance, self.relation, one_sided=True)


@dataclass(frozen=True, slots=True)
class ConfusionRelease(CountsRelease):
    """Counts per group of (class, prediction) or, with `full=False`, of right and wrong, by group and by class."""

    full: bool = True

    def make(self, model: nn.Module, problem: Problem, noise: GaussianNoise) -> NDArray[np.float64]:
        """Touch the rows: [group, class, prediction], or scaled [group or class, wrong and right] (`apart`).

        The event was reserved before.
        """
        predicted, truth = predictions(model, problem), problem.targets.numpy()
        groups, classes = len(problem.public.groups), len(problem.public.classes)
        counts = np.zeros((groups, classes, classes) if self.full else (groups + classes, 2))
        right = (predicted == truth) * 1
        kinds = (
            [(problem.group_of, truth, predicted)]
            if self.full
            else [(problem.group_of, right), (groups + truth, right)]
        )
        for where in kinds:
            np.add.at(counts, tuple(part[problem.present] for part in where), 1.0)
        if not self.full:
            counts *= _scales(groups, classes)
        noisy = noise.add(0, {"counts": torch.from_numpy(counts)}, self.sigma, PURPOSE)["counts"]
        return noisy.to(torch.float64).numpy()

    def apart(self, released: NDArray[np.float64], groups: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What was released, as counts [group, wrong and right] and [class, wrong and right]."""
        counts = released / _scales(groups, len(released) - groups)
        return counts[:groups], counts[groups:]


@dataclass(frozen=True, slots=True)
class ScoredRelease(CountsRelease):
    """Counts per group and class of two classes: by prediction and, beside them, by the second one's probability."""

    def make(self, model: nn.Module, problem: Problem, noise: GaussianNoise) -> NDArray[np.float64]:
        """Touch the rows: scaled [group, class, two predictions and the pieces of probability] (`apart`).

        The event was reserved before.
        """
        chances = torch.softmax(scored(model, problem).to(torch.float64), dim=-1).numpy()
        groups, truth, present = problem.group_of, problem.targets.numpy(), problem.present
        counts = np.zeros((len(problem.public.groups), 2, 2 + RELEASED_BINS))
        for place in (chances.argmax(axis=1), 2 + pieces_of(chances[:, 1], RELEASED_BINS)):
            np.add.at(counts, (groups[present], truth[present], place[present]), 1.0)
        noisy = noise.add(0, {"counts": torch.from_numpy(counts * _SCORE_SCALES)}, self.sigma, PURPOSE)["counts"]
        return noisy.to(torch.float64).numpy()

    def apart(self, released: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What was released, as counts [group, class, prediction] and [group, class, piece]."""
        counts = released / _SCORE_SCALES
        return counts[..., :2], counts[..., 2:]


_SCORE_SCALES = np.sqrt(np.repeat([1 - SCORE_SHARE, SCORE_SHARE], [2, RELEASED_BINS]))


def _scales(groups: int, classes: int) -> NDArray[np.float64]:
    """√(1 − s) for the counts of groups and √s for those of classes."""
    return np.repeat([math.sqrt(1 - CLASS_SHARE), math.sqrt(CLASS_SHARE)], [groups, classes])[:, None]


def predictions(model: nn.Module, problem: Problem) -> NDArray[np.int64]:
    """The class that the model gives each row."""
    return scored(model, problem).argmax(dim=-1).numpy()


def noisy_metrics(
    model: nn.Module,
    problem: Problem,
    allowance: Allowance,
    groups: Sequence[str] = (),
    *,
    scores: bool = False,
    expected: Mapping[str, float] | None = None,
) -> NoisyGroupMetrics:
    """Reserve the cost in a ledger of its own, release the counts, and work out the figures.

    ε is the smallest budget of any owner. Two classes give the whole confusion table and, with `scores`, counts by
    probability in the same release; with more classes the counts are of right and wrong answers only, by group and by
    class, because noise adds up over the counts that make a figure. `expected` is how many rows of each group public
    facts let expect here: a group of too few has no figure, whatever noise makes of its counts.
    """
    if scores:
        return _with_scores(model, problem, allowance, groups, expected)
    full = len(problem.public.classes) == 2
    sigma = reserve_counts(problem, allowance, ConfusionRelease(1.0, allowance.relation, full), "confusion counts")
    release = ConfusionRelease(sigma, allowance.relation, full)
    released, names = release.make(model, problem, allowance.noise), problem.public.groups
    if full:
        return figures(released, names, groups, sigma, expected)
    of_groups, of_classes = release.apart(released, len(names))
    found = figures(of_groups, names, groups, sigma / math.sqrt(1 - CLASS_SHARE), expected)
    by_class = {
        name: (float(wrong), float(right))
        for name, (wrong, right) in zip(problem.public.classes, of_classes, strict=True)
    }
    return replace(found, by_class=by_class, class_sigma=sigma / math.sqrt(CLASS_SHARE))


def _with_scores(
    model: nn.Module,
    problem: Problem,
    allowance: Allowance,
    groups: Sequence[str],
    expected: Mapping[str, float] | None,
) -> NoisyGroupMetrics:
    names = problem.public.groups
    require(len(problem.public.classes) == 2, "counts by probability are released of two classes alone")
    release = ScoredRelease(1.0, allowance.relation)
    release = replace(release, sigma=reserve_counts(problem, allowance, release, "confusion counts"))
    confusion, by_piece = release.apart(release.make(model, problem, allowance.noise))
    found = figures(confusion, names, groups, release.sigma / math.sqrt(1 - SCORE_SHARE), expected)
    noise = release.sigma / math.sqrt(SCORE_SHARE)
    return replace(found, scores=released_scores(dict(zip(names, by_piece, strict=True)), noise))


def reserve_counts(problem: Problem, allowance: Allowance, release: CountsRelease, name: str) -> float:
    """The noise that a release of counts needs, with its cost reserved in a ledger of its own."""
    relation, delta, accountant = allowance.relation, allowance.delta, allowance.accountant
    budget = min((allowance.epsilon, *(problem.public.budgets or ())))
    kappa = noise_multiplier(lambda k: [Gaussian(k, relation, one_sided=True)], budget, delta, accountant)
    release = replace(release, sigma=kappa * release.distance)
    event = release.event()
    accounts = tuple(
        Account(
            problem.public.groups[cell.group],
            problem.public.owners[cell.owner],
            problem.public.budget_of(index, allowance.epsilon),
            TokenBucket((Repeated(event, 1),)),
        )
        for index, cell in enumerate(problem.public.cells)
    )
    terms = Terms(relation, delta, accountant.name, accounts, {"method": name, "steps": 1})
    ledger = allowance.open_ledger(terms)
    ledger.reserve(PURPOSE, 0, 1, dict.fromkeys(range(len(accounts)), event))
    return release.sigma


def _from_counts(
    counts: NDArray[np.float64], scores: Sequence[tuple[str, GroupScore]], shown: Mapping[str, Any], sigma: float
) -> dict[str, Any]:
    """Figures of the table that follow from noisy counts; their intervals allow for the noise as well."""
    known = np.array([not math.isnan(score.accuracy) for _, score in scores])
    # A class of which noise could be all that was counted is left out of the figures about it, and only of those.
    looked_at = int(known.sum()) * counts.shape[1]
    there = counts.sum(axis=2) >= fewest_rows(sigma, counts.shape[2], looked_at)
    whole = np.where(known[:, None, None], np.maximum(counts, 0.0), 0.0)
    used = np.where(there[:, :, None], whole, 0.0)
    # A group of whose rows a class was left out: what the others say is not the whole of it.
    partly = (~there & (whole.sum(axis=2) > LEAST_ROWS)).any(axis=1)
    values = {figure.name: figure.of(used if figure.name in OF_A_CLASS else whole) for figure in BY_COUNTS}
    values["balanced_accuracy"] = np.where(partly, np.nan, values["balanced_accuracy"])
    spans = intervals(whole, sigma)
    across = {
        **spans.across,
        **{name: span for name, span in intervals(used, sigma).across.items() if name in OF_A_CLASS},
    }
    found, parity = parity_apart({name: or_none(float(value)) for name, value in all_across(values).items()})
    by_group = {
        name: {
            **shown[name],
            **{key: or_none(float(value[i])) for key, value in values.items() if key != "accuracy"},
            "accuracy_interval": spans.by_group[i],
            "confusion": np.rint(used[i]).astype(np.int64).tolist(),
            "partly": bool(partly[i]),
        }
        if known[i]
        else shown[name]
        for i, (name, _) in enumerate(scores)
    }
    return {**found, **_overall(counts, sigma), "parity": parity, "intervals": across, "by_group": by_group}


def _overall(counts: NDArray[np.float64], sigma: float) -> dict[str, Any]:
    """Figures over all groups; nothing is cut off at 0 before the sum, which would let noise count as rows."""
    total, noise = counts.sum(axis=0), sigma * math.sqrt(len(counts))
    if (total.sum(axis=1) < fewest_rows(noise, counts.shape[2], counts.shape[1])).any():
        return {figure.name: None for figure in BY_COUNTS if figure.overall}
    total = np.maximum(total, 0.0)
    found: dict[str, Any] = {f.name: or_none(float(f.of(total))) for f in BY_COUNTS if f.overall}
    return {**found, "confusion": np.rint(total).astype(np.int64).tolist(), "confusion_noise": noise}


def _balanced(counts: Sequence[tuple[float, float]], sigma: float) -> float:
    """The mean share of right answers over classes; NaN where a class has too few rows to tell."""
    if min(sum(pair) for pair in counts) < fewest_rows(sigma, 2, len(counts)):
        return math.nan
    return float(np.mean([min(max(right / (wrong + right), 0.0), 1.0) for wrong, right in counts]))


def fewest_rows(sigma: float, counts: int, looked_at: int = 1) -> float:
    """The smallest noisy total of some counts for which a figure is given.

    Where so many totals are looked at and none has a few rows, one of them reaches it with a chance of at most 1 %.

    >>> fewest_rows(0.0, 4), round(fewest_rows(4.0, 4), 1), round(fewest_rows(4.0, 4, looked_at=50), 1)
    (5.0, 23.6, 33.3)
    """
    return LEAST_ROWS + sigma * math.sqrt(counts) * NormalDist().inv_cdf(1 - MISTAKEN / max(looked_at, 1))


def worth_looking(expected: Mapping[str, float] | None, names: Sequence[str]) -> int:
    """How many of the groups have enough expected rows to be looked at."""
    return len(names) if expected is None else sum(expected.get(name, 0.0) >= LEAST_ROWS for name in names)


def figures(
    counts: NDArray[np.float64],
    names: Sequence[str],
    listed: Sequence[str],
    sigma: float,
    expected: Mapping[str, float] | None = None,
) -> NoisyGroupMetrics:
    """Figures from noisy counts: sums are taken before anything is rounded, so that noise cancels as far as it can.

    For a group whose count is within the noise, only the (noisy) number of rows is given. So it is where fewer rows
    than that were `expected`: among many groups noise makes rows somewhere.

    >>> counts = np.array([[3.2, 7.1], [0.4, -0.9]])
    >>> figures(counts, ["a", "b"], [], 1.0).by_group
    {'a': GroupScore(n=10, accuracy=0.7), 'b': GroupScore(n=0, accuracy=nan)}
    """
    if counts.ndim == 3:
        right = np.trace(counts, axis1=1, axis2=2)
        wrong = counts.sum(axis=(1, 2)) - right
    else:
        wrong, right = counts[:, 0], counts[:, 1]
    scores = {name: GroupScore(0, math.nan) for name in listed}
    least = fewest_rows(sigma, counts[0].size, worth_looking(expected, names))
    for name, bad, good in zip(names, wrong, right, strict=True):
        hits, misses = max(0, round(float(good))), max(0, round(float(bad)))
        if hits + misses > 0 and good + bad < 1:  # rounding alone must not make rows out of noise
            hits = misses = 0
        enough = good + bad >= least and (expected is None or expected.get(name, 0.0) >= least)
        scores[name] = GroupScore(hits + misses, hits / (hits + misses) if enough else math.nan)
    # Over all groups, nothing is cut off at 0 before the sum: that would let noise count as rows.
    rows = float(right.sum() + wrong.sum())
    measured = rows >= fewest_rows(sigma, counts.size)
    overall = min(max(float(right.sum()) / rows, 0.0), 1.0) if measured else math.nan
    # Half of the counts are of right answers; a wrong one moves the share by its value, a right one by the rest.
    spread = sigma * math.sqrt(counts.size / 2 * (overall**2 + (1 - overall) ** 2)) / rows if measured else 0.0
    table = None
    if counts.ndim == 3:
        position = {name: index for index, name in enumerate(names)}
        nothing = np.zeros(counts.shape[1:])
        table = np.stack([counts[position[name]] if name in position else nothing for name in scores])
    return NoisyGroupMetrics(scores, overall, sigma=sigma, counts=table, accuracy_sigma=spread)
