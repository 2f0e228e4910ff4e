"""Errors: how far a model's numbers are from the true ones, for every group, in the target's own unit.

Exactly, on rows that were declared public; or by a noisy release on held-out rows: a row is in one count of its group
by the size of its error and in one by its true value, so the vector of counts moves by √2 when a row comes or goes and
by 2 when it is replaced. Sums of squares would move by the largest possible error, which is far above a usual one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Relation
from veil.errors import require
from veil.metrics.definitions import LEAST_ROWS, Floats, or_none
from veil.metrics.groups import GroupMetrics, GroupScore, group_columns, membership_table
from veil.metrics.noisy_confusion import PURPOSE, CountsRelease, fewest_rows, reserve_counts, worth_looking
from veil.models.applying import scored
from veil.noise import GaussianNoise
from veil.problem import Problem
from veil.releases import Allowance

# Errors as shares of the target's whole range, two counts for each halving; true values in counts of equal width.
EDGES: Floats = np.concatenate([[0.0], 2.0 ** (np.arange(-14, 1) / 2.0)])
VALUES: Floats = np.linspace(-1.0, 1.0, len(EDGES))
# Of errors that lie evenly within a count: their mean and their mean square, where the target goes from −1 to 1.
MEANS: Floats = EDGES[:-1] + EDGES[1:]
SQUARES: Floats = 4 * (EDGES[:-1] ** 2 + EDGES[:-1] * EDGES[1:] + EDGES[1:] ** 2) / 3
EXACT = 0.05
# How often noise is drawn anew to see what it does.
AGAIN = 40
# Shares of errors up to each edge where they are spread like the size of a normal or of a Laplace number, at 80 scales
# each from the smallest edge to the largest.
_SCALES: Floats = np.geomspace(EDGES[1], 1.0, 80)[:, None]
_NORMAL = torch.erf(torch.from_numpy(EDGES / _SCALES / math.sqrt(2.0))).numpy()
_TAILS: Floats = np.concatenate([_NORMAL, -np.expm1(-EDGES / _SCALES)])
_TAILS[:, -1] = 1.0
# Shares of true values up to each edge where they are spread like a normal number that is cut to the range, or fall off
# from one of its ends.
_MEANS, _SPREADS = (one.reshape(-1, 1) for one in np.meshgrid(np.linspace(-1.0, 1.0, 41), np.geomspace(0.02, 1.0, 40)))
_BELL: Floats = torch.special.ndtr(torch.from_numpy((VALUES - _MEANS) / _SPREADS)).numpy()
_FALL: Floats = -np.expm1(-(VALUES + 1) / np.geomspace(0.02, 2.0, 40)[:, None])
_VALUES: Floats = np.concatenate([_BELL, _FALL, 1 - _FALL[:, ::-1]])
_VALUES[:, 0], _VALUES[:, -1] = 0.0, 1.0
SPREAD = math.sqrt(float((((VALUES[1:] + VALUES[:-1]) / 2) ** 4).sum()))


@dataclass(frozen=True, slots=True)
class Errors:
    """Of some rows: the mean absolute error, the root of the mean square, and that of always answering their mean.

    `r2` is the share of the variance that the model explains, and `r2_noise` the standard deviation that a noisy
    release gives it. NaN where there are too few rows.
    """

    n: int
    mean_absolute_error: float = math.nan
    root_mean_squared_error: float = math.nan
    error_of_the_mean: float = math.nan
    r2_noise: float = 0.0

    @property
    def r2(self) -> float:
        """1 − (error / error of the mean)²."""
        usual = self.error_of_the_mean
        return 1 - (self.root_mean_squared_error / usual) ** 2 if usual > 0 else math.nan

    def scaled(self, unit: float) -> Errors:
        """The same where 1 is this many units of the target."""
        mean, squared = self.mean_absolute_error, self.root_mean_squared_error
        return Errors(self.n, mean * unit, squared * unit, self.error_of_the_mean * unit, self.r2_noise)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; NaN is null."""
        found = {name: value for name, value in asdict(self).items() if name != "n"} | {"r2": self.r2}
        return {"n": self.n, **{name: or_none(value) for name, value in found.items()}}


@dataclass(frozen=True)
class ErrorMetrics(GroupMetrics):
    """Figures for numbers to predict. There is no accuracy; the worst group has the largest root mean squared error."""

    errors: Mapping[str, Errors] = field(default_factory=dict)
    overall: Errors = field(default_factory=lambda: Errors(0))
    sigma: float | None = None

    def _of_groups(self) -> dict[str, float]:
        known = {name: own for name, own in self.errors.items() if not math.isnan(own.mean_absolute_error)}
        return {name: own.root_mean_squared_error for name, own in known.items()}

    @property
    def worst_group(self) -> str | None:
        """The name of the group with the largest root mean squared error."""
        return max(self._of_groups().items(), key=lambda one: one[1], default=(None, math.nan))[0]

    @property
    def worst_group_error(self) -> float:
        """The largest root mean squared error of any group."""
        return max(self._of_groups().values(), default=math.nan)

    @property
    def average_group_error(self) -> float:
        """The mean over groups, each counting the same."""
        known = list(self._of_groups().values())
        return float(np.mean(known)) if known else math.nan

    def as_json(self) -> dict[str, Any]:
        """The keys of all figures; those about classes are null."""
        plain = GroupMetrics.as_json(self)
        groups = {name: {**score, **self.errors[name].as_json()} for name, score in plain["by_group"].items()}
        whole = {name: value for name, value in self.overall.as_json().items() if name != "n"}
        across = {name: or_none(getattr(self, name)) for name in ("worst_group_error", "average_group_error")}
        released = {} if self.sigma is None else {"released": True, "noise": self.sigma}
        return {**plain, **across, **whole, "worst_group": self.worst_group, **released, "by_group": groups}


def error_metrics(
    model: nn.Module, problem: Problem, groups: Sequence[str] = (), least: int = LEAST_ROWS
) -> ErrorMetrics:
    """Exact figures on rows that were declared public; `groups` are listed even if they have no row."""
    names = (*groups, *(name for name in group_columns(problem)[0] if name not in groups))
    members, (predicted, truth) = membership_table(problem, names), _numbers(model, problem)
    unit = _unit(problem)

    def errors(rows: NDArray[np.bool_]) -> Errors:
        away, own = np.abs(predicted - truth)[rows], truth[rows]
        if len(own) < max(least, 1):
            return Errors(len(own))
        found = Errors(len(own), float(away.mean()), math.sqrt(float((away**2).mean())), float(own.std()))
        return found.scaled(unit)

    found = {name: errors(members[:, index]) for index, name in enumerate(names)}
    return _metrics(found, errors(np.ones(len(truth), dtype=bool)))


def noisy_errors(
    model: nn.Module,
    problem: Problem,
    allowance: Allowance,
    groups: Sequence[str] = (),
    *,
    expected: Mapping[str, float] | None = None,
) -> ErrorMetrics:
    """Reserve the cost in a ledger of its own, release the counts, and work out the figures.

    `expected` is how many rows of each group public facts let expect here: a group of too few has no figure.
    """
    sigma = reserve_counts(problem, allowance, ErrorRelease(1.0, allowance.relation), "counts of errors")
    counts = ErrorRelease(sigma, allowance.relation).make(model, problem, allowance.noise)
    unit = _unit(problem)
    each, whole = errors_of_counts(counts, sigma)
    names, found = problem.public.groups, {name: Errors(0) for name in groups}
    # A group's number of rows is half the sum of its counts, which are of two kinds.
    least = fewest_rows(sigma / 2, counts[0].size, worth_looking(expected, names))
    for name, own in zip(names, each, strict=True):
        enough = own.n >= least and (expected is None or expected.get(name, 0.0) >= least)
        found[name] = own.scaled(unit) if enough else Errors(own.n)
    return _metrics(found, whole.scaled(unit), sigma)


@dataclass(frozen=True, slots=True)
class ErrorRelease(CountsRelease):
    """Counts per group of errors by their size and of true values, plus Gaussian noise."""

    @property
    def distance(self) -> float:
        """How far a neighbour moves the counts: a row is in two of them."""
        return math.sqrt(2.0) if self.relation is Relation.ADD_REMOVE else 2.0

    def make(self, model: nn.Module, problem: Problem, noise: GaussianNoise) -> Floats:
        """Touch the rows: [group, errors and values, count]. The event was reserved before."""
        predicted, truth = _numbers(model, problem)
        require(
            truth.ndim == 1, "errors of rows with several numbers cannot be released: give public rows to measure on"
        )
        counts = np.zeros((len(problem.public.groups), 2, len(EDGES) - 1))
        for kind, (values, edges) in enumerate(((np.abs(predicted - truth) / 2, EDGES), (truth, VALUES))):
            place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
            np.add.at(counts[:, kind], (problem.group_of[problem.present], place[problem.present]), 1.0)
        noisy = noise.add(0, {"counts": torch.from_numpy(counts)}, self.sigma, PURPOSE)["counts"]
        return noisy.to(torch.float64).numpy()


def errors_of_counts(counts: Floats, sigma: float) -> tuple[list[Errors], Errors]:
    """Figures of each group, and of all rows, from noisy counts [group, errors and values, count].

    Within a count, values are taken to lie evenly. Where noise would hide a group's own figure, its errors are taken to
    be spread like those of all rows, at the scale that fits its counts best. Targets go from −1 to 1.

    >>> exact = np.zeros((1, 2, 15))
    >>> exact[0, 0, 12], exact[0, 1, 4], exact[0, 1, 10] = 100, 50, 50
    >>> groups, whole = errors_of_counts(exact, 0.0)
    >>> groups == [whole], round(whole.mean_absolute_error, 2), round(whole.error_of_the_mean, 2)
    (True, 0.85, 0.4)
    """
    noise = sigma * math.sqrt(len(counts))
    whole = _direct(counts.sum(axis=0), noise)
    if math.isnan(whole.mean_absolute_error):
        return [Errors(_rows(own)) for own in counts], whole
    shape = np.maximum(_with_tail(counts.sum(axis=0)[0], whole.n, noise), 0.0)
    shares = np.concatenate([[0.0], np.cumsum(shape) / max(float(shape.sum()), 1e-12)])
    return [_of_group(own, sigma, whole, shares) for own in counts], whole


def _of_group(counts: Floats, sigma: float, whole: Errors, shares: Floats) -> Errors:
    """A group's figures: its own where they are exact to a twentieth, else those of all rows at the group's scale."""
    own = _direct(counts, sigma)
    if math.isnan(own.mean_absolute_error):
        return own
    scale = _scale(counts[0], own.n, shares)
    absolute, squared = (scale * value for value in (whole.mean_absolute_error, whole.root_mean_squared_error))
    # The noise of a sum over counts, over the sum: by how much noise alone moves the figure.
    if sigma * math.sqrt(float((MEANS**2).sum())) < EXACT * own.n * absolute:
        absolute = own.mean_absolute_error
    if sigma * math.sqrt(float((SQUARES**2).sum())) < 2 * EXACT * own.n * squared**2:
        squared = own.root_mean_squared_error
    # Against all rows' variance: a group's own would be said just where noise makes it large.
    hidden = sigma * SPREAD / own.n > 0.3 * whole.error_of_the_mean**2
    return Errors(own.n, absolute, squared, math.nan if hidden else own.error_of_the_mean, own.r2_noise)


def _scale(by_size: Floats, rows: int, shares: Floats) -> float:
    """By which factor errors that are spread by `shares` (up to each edge) fit a group's counts best."""
    factors = 2.0 ** np.linspace(-4.0, 4.0, 161)
    up_to = np.interp(EDGES[None, :] / factors[:, None], EDGES, shares)
    up_to[:, -1] = 1.0
    away = by_size[None, :] - rows * np.diff(up_to, axis=1)
    return float(factors[np.argmin((away**2).sum(axis=1))])


def _direct(counts: Floats, sigma: float) -> Errors:
    """Figures from the counts [errors and values, count] of some rows alone; NaN where noise could be all there is."""
    rows = _rows(counts)
    if rows < max(float(LEAST_ROWS), 10 * sigma):
        return Errors(max(0, rows))
    by_size, by_value = _with_tail(counts[0], rows, sigma), _with_ends(counts[1], rows, sigma)
    absolute, squared, variance = _moments(by_size, by_value)
    if variance <= 0:
        return Errors(rows, absolute, math.sqrt(squared), math.nan)
    # How far noise alone moves the share: as if these were the counts, and noise were drawn anew.
    again, found = np.random.default_rng(0), []
    for _ in range(AGAIN if sigma > 0 else 0):
        sizes, values = (own + sigma * again.standard_normal(len(own)) for own in (by_size, by_value))
        _, other, beside = _moments(_with_tail(sizes, rows, sigma), _with_ends(values, rows, sigma))
        found.append(other / beside if beside > 0 else math.nan)
    known = [one for one in found if not math.isnan(one)]
    noise = math.sqrt(float(np.mean((np.array(known) - squared / variance) ** 2))) if known else 0.0
    return Errors(rows, absolute, math.sqrt(squared), math.sqrt(variance), noise)


def _moments(by_size: Floats, by_value: Floats) -> tuple[float, float, float]:
    """The mean size and the mean square of errors, and the variance of true values."""
    whole, total = max(float(by_size.sum()), 1.0), max(float(by_value.sum()), 1.0)
    middle = (VALUES[1:] + VALUES[:-1]) / 2
    away = (middle - float(by_value @ middle) / total) ** 2
    variance = float(by_value @ away) / total - (VALUES[1] - VALUES[0]) ** 2 / 12
    squared = min(max(float(by_size @ SQUARES) / whole, 0.0), 4.0)
    return min(max(float(by_size @ MEANS) / whole, 0.0), 2.0), squared, variance


def _with_tail(by_size: Floats, rows: int, sigma: float) -> Floats:
    """Counts of errors; where noise could be all there is, at the end, as many as the others let expect.

    Without them a model would look the better the fewer rows it is measured on: large errors are the first to be lost.
    """
    return _completed(by_size, _without_noise_at_the_end(by_size, sigma), _TAILS, rows)


def _with_ends(by_value: Floats, rows: int, sigma: float) -> Floats:
    """The same for true values: those at either end of the range weigh most."""
    kept = _without_noise_at_the_end(_without_noise_at_the_end(by_value, sigma)[::-1], sigma)[::-1]
    return _completed(by_value, kept, _VALUES, rows)


def _completed(counts: Floats, kept: Floats, shares: Floats, rows: int) -> Floats:
    """What is kept of the counts, and beside it as many as the spread that fits all counts best lets expect."""
    held = np.flatnonzero(kept)
    if not len(held) or np.array_equal(kept, counts):
        return kept
    expected = rows * np.diff(shares, axis=1)
    found: Floats = expected[np.argmin(((counts - expected) ** 2).sum(axis=1))]
    found[held[0] : held[-1] + 1] = kept[held[0] : held[-1] + 1]
    return found


def _rows(counts: Floats) -> int:
    """The number of rows: both kinds of counts count all of them."""
    return max(0, round(float(counts.sum()) / 2))


def _without_noise_at_the_end(counts: Floats, sigma: float) -> Floats:
    """The counts, with 0 from the largest errors down as long as their sum is what noise alone could be.

    A single count of the largest errors would weigh as much as thousands of small errors.
    """
    above = np.cumsum(counts[::-1])
    real = np.flatnonzero(above > 3 * sigma * np.sqrt(np.arange(1, len(counts) + 1)))
    last = len(counts) - int(real[0]) if len(real) else 1
    return np.where(np.arange(len(counts)) < last, counts, 0.0)


def _numbers(model: nn.Module, problem: Problem) -> tuple[Floats, Floats]:
    """What the model says and what is true, both between −1 and 1 where the target has a known range."""
    targets = problem.targets
    outputs = scored(model, problem).reshape(targets.shape).to(torch.float64).numpy()
    truth = targets.cpu().to(torch.float64).numpy()
    return (outputs if problem.public.target_range is None else np.clip(outputs, -1.0, 1.0)), truth


def _unit(problem: Problem) -> float:
    """How many units of the target one unit of the scaled target is."""
    low, high = problem.public.target_range or (-1.0, 1.0)
    return (high - low) / 2


def _metrics(errors: dict[str, Errors], overall: Errors, sigma: float | None = None) -> ErrorMetrics:
    scores = {name: GroupScore(found.n, math.nan) for name, found in errors.items()}
    return ErrorMetrics(scores, math.nan, errors=errors, overall=overall, sigma=sigma)
