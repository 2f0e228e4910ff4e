"""The table of figures: per group and across groups. Everything else reads it.

An entry in `BY_COUNTS`, `BY_ROWS` or `ACROSS` is all that a new figure needs: metrics.json, intervals, what is released
with noise, `--require` and the report follow from it.

A figure of a group is a function of its confusion counts, `[..., true class, predicted class]`, or of its rows' losses
and probabilities. A figure across groups is a function of one value per group. NaN means that it is undefined:
there is no row (or no row of the relevant class). It is never written as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Better = Literal["higher", "lower"]
T = TypeVar("T")
LEAST_ROWS = 5
BINS = 10


@dataclass(frozen=True, slots=True)
class Figure:
    """The description of a figure. Without a `title`, its name is shown as words."""

    name: str
    meaning: str
    title: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class OfOneGroup(Figure):
    """`overall`: also computed over all rows. `two_classes`: class 1 is the positive one."""

    overall: bool = field(default=False, kw_only=True)
    two_classes: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class GroupFigure(OfOneGroup):
    """A figure of one group, from its confusion counts."""

    of: Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class RowFigure(OfOneGroup):
    """A figure of one group, from classes, probabilities of the positive (or chosen) class, and losses of its rows."""

    of: Callable[[NDArray[np.int64], Floats], float]
    reads: Literal["losses", "positive", "confidence"]


@dataclass(frozen=True, slots=True)
class AcrossGroups(Figure):
    """A figure across groups: a function of one value per group (last axis), of each of the figures it `reads`."""

    reads: tuple[str, ...]
    over: Callable[..., Floats]
    better: Better
    parity: bool = False


def share(part: Floats, whole: Floats) -> Floats:
    """part / whole, NaN where there is nothing.

    >>> share(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    there = np.asarray(whole) > 0
    return np.where(there, part / np.where(there, whole, 1.0), np.nan)


def mean_of_known(values: Floats) -> Floats:
    """The mean over the last axis of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    return share(np.where(known, values, 0.0).sum(-1), known.sum(-1).astype(np.float64))


def lowest(values: Floats) -> Floats:
    """The smallest known value over the last axis."""
    return _or_nan(np.where(np.isnan(values), np.inf, values).min(-1))


def highest(values: Floats) -> Floats:
    """The largest known value over the last axis."""
    return _or_nan(np.where(np.isnan(values), -np.inf, values).max(-1))


def difference(values: Floats) -> Floats:
    """Largest minus smallest known value."""
    return highest(values) - lowest(values)


def difference_of_two(values: Floats) -> Floats:
    """Largest minus smallest, where at least two groups can be compared.

    >>> float(difference_of_two(np.array([0.2, np.nan])))
    nan
    """
    comparable = (~np.isnan(values)).sum(-1) >= 2
    return np.where(comparable, difference(values), np.nan)


def largest_difference(*several: Floats) -> Floats:
    """The largest of the differences in several figures."""
    return highest(np.stack([difference_of_two(values) for values in several], axis=-1))


def ratio(values: Floats) -> Floats:
    """Smallest over largest known value: 1 where all groups are equal."""
    return share(lowest(values), highest(values))


def or_none(value: float) -> float | None:
    """A figure as JSON: None where it is undefined."""
    return None if np.isnan(value) else float(value)


def _or_nan(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)


def accuracy(counts: Floats) -> Floats:
    """The share of rows predicted correctly."""
    return share(np.trace(counts, axis1=-2, axis2=-1), counts.sum((-2, -1)))


def balanced_accuracy(counts: Floats) -> Floats:
    """The mean, over the classes that the group has, of the share predicted correctly."""
    return mean_of_known(share(np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(-1)))


def selection_rate(counts: Floats) -> Floats:
    """The share of rows that are given the positive class."""
    return share(counts[..., :, 1].sum(-1), counts.sum((-2, -1)))


def true_positive_rate(counts: Floats) -> Floats:
    """The share of positive rows that are given the positive class."""
    return share(counts[..., 1, 1], counts[..., 1, :].sum(-1))


def false_positive_rate(counts: Floats) -> Floats:
    """The share of negative rows that are given the positive class."""
    return share(counts[..., 0, 1], counts[..., 0, :].sum(-1))


def mean_loss(targets: NDArray[np.int64], losses: Floats) -> float:
    """The mean loss of the rows."""
    return float(losses.mean()) if len(losses) else np.nan


def auroc(targets: NDArray[np.int64], scores: Floats) -> float:
    """The chance that a positive row has a higher score than a negative one; NaN where one of them is absent."""
    from sklearn.metrics import roc_auc_score

    present = 0 < int((targets == 1).sum()) < len(targets)
    return float(roc_auc_score(targets == 1, scores)) if present else np.nan


def ece(right: NDArray[np.int64], confidence: Floats) -> float:
    """How far confidence is from the share that is right, in `BINS` equal bins, weighted by rows.

    >>> ece(np.array([1, 0]), np.array([0.75, 0.75]))
    0.25
    """
    if not len(right):
        return np.nan
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    return float(np.abs(np.bincount(bins, confidence - right, BINS)).sum() / len(right))


BY_COUNTS = (
    GroupFigure("accuracy", "share of rows predicted correctly", accuracy, overall=True),
    GroupFigure("balanced_accuracy", "mean over classes of the correct share", balanced_accuracy, overall=True),
    GroupFigure("selection_rate", "share given the positive class", selection_rate, two_classes=True),
    GroupFigure(
        "tpr",
        "share of positive rows given the positive class",
        true_positive_rate,
        two_classes=True,
        title="True positive rate",
    ),
    GroupFigure(
        "fpr",
        "share of negative rows given the positive class",
        false_positive_rate,
        two_classes=True,
        title="False positive rate",
    ),
)
BY_ROWS = (
    RowFigure("loss", "mean cross-entropy", mean_loss, "losses", overall=True),
    RowFigure("auroc", "area under the ROC curve", auroc, "positive", overall=True, two_classes=True, title="AUROC"),
    RowFigure("ece", "expected calibration error in ten bins", ece, "confidence", overall=True, title="ECE"),
)
ACROSS = (
    AcrossGroups(
        "worst_group_accuracy",
        "accuracy of the worst group",
        ("accuracy",),
        lowest,
        "higher",
        title="Worst-group accuracy",
    ),
    AcrossGroups(
        "average_group_accuracy",
        "mean over groups, equally weighted",
        ("accuracy",),
        mean_of_known,
        "higher",
        title="Average over groups",
    ),
    AcrossGroups(
        "disparity",
        "accuracy of the best group − of the worst",
        ("accuracy",),
        difference,
        "lower",
        title="Gap between best and worst group",
    ),
    AcrossGroups(
        "ratio",
        "accuracy of the worst group / of the best",
        ("accuracy",),
        ratio,
        "higher",
        title="Worst group over best group",
    ),
    AcrossGroups(
        "demographic_parity", "difference in selection rate", ("selection_rate",), difference_of_two, "lower", True
    ),
    AcrossGroups("equal_opportunity", "difference in true positive rate", ("tpr",), difference_of_two, "lower", True),
    AcrossGroups(
        "equalised_odds",
        "larger difference in true or false positive rate",
        ("tpr", "fpr"),
        largest_difference,
        "lower",
        True,
    ),
    AcrossGroups(
        "loss_disparity",
        "mean loss of the group that loses most − of the one that loses least",
        ("loss",),
        difference,
        "lower",
        title="Gap of the mean loss",
    ),
)
PRIVACY_COST_GAP = AcrossGroups(
    "privacy_cost_gap",
    "difference between groups in the accuracy lost against erm",
    ("privacy_cost",),
    difference,
    "lower",
    title="Privacy-cost gap",
)
OVERALL = tuple(figure.name for figure in (*BY_COUNTS, *BY_ROWS) if figure.overall)
TITLES = {figure.name: figure.title for figure in (*BY_COUNTS, *BY_ROWS, *ACROSS, PRIVACY_COST_GAP) if figure.title}


def across(name: str) -> AcrossGroups:
    """A figure across groups by its name.

    >>> float(across("disparity").over(np.array([0.5, 0.75, np.nan])))
    0.25
    """
    return next(figure for figure in (*ACROSS, PRIVACY_COST_GAP) if figure.name == name)


def all_across(values: Mapping[str, Floats]) -> dict[str, Floats]:
    """Every figure across groups that follows from these figures of each group.

    >>> float(all_across({"accuracy": np.array([0.5, 0.75])})["disparity"])
    0.25
    """
    known = [figure for figure in ACROSS if all(name in values for name in figure.reads)]
    return {figure.name: figure.over(*(values[name] for name in figure.reads)) for figure in known}


def parity_apart(found: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Figures across groups by name, those that are parity notions in a dictionary of their own.

    >>> parity_apart({"ratio": 0.5, "equal_opportunity": 0.1})
    ({'ratio': 0.5}, {'equal_opportunity': 0.1})
    """
    notions = {figure.name for figure in ACROSS if figure.parity}
    return {n: v for n, v in found.items() if n not in notions}, {n: v for n, v in found.items() if n in notions}


ERRORS_OF_GROUPS = ("worst_group_error", "average_group_error")
ERRORS = ("root_mean_squared_error", "mean_absolute_error", "r2")


def judged_names() -> tuple[str, ...]:
    """Every figure of a run that a requirement can name; errors are for numbers to predict."""
    of_classes = [*(figure.name for figure in ACROSS), *OVERALL, PRIVACY_COST_GAP.name]
    return tuple(dict.fromkeys([*of_classes, *ERRORS_OF_GROUPS, *ERRORS, "epsilon"]))
