"""The accountant of privacy loss distributions: tight (ε, δ) with every numerical error on the safe side.

Each event is replaced by a law on a grid that dominates it (`grid`), the laws are composed by a tilted Fourier
transform (`compose`), and what was left out or rounded is added to δ. So `epsilon` and `delta` are never below
the truth of the events' dominating pairs (`profiles`). The looseness comes from the step of the grid, chosen so
that ε is raised by about `looseness` (1e-4 of itself; up to 1e-3 where a few rare, large losses decide), and can be
bounded without trusting that choice by `lower_epsilon`.

Assumed of the machine: IEEE doubles, and scipy's erfc, erfcx, ndtr and FFT to a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from veil.accounting.events import AccountingError, Event, NoisyMax, Repeated, Selection
from veil.accounting.pld.compose import Nodes, compose, nodes, wrap
from veil.accounting.pld.plan import POINTS_AT_MOST, Plan, Question, plan
from veil.accounting.pld.profiles import FloatArray, Pair, Part, parts_of, supported
from veil.accounting.pld.selection import mean_runs, runs_of, selection_among, selection_shift
from veil.accounting.pld.several import parts_of_rows, supports_rows
from veil.accounting.rdp import Rdp

_LEAST = 1e-250
"""Below this δ the tails of the profiles underflow and nothing can be proved."""


def _directions(parts: Sequence[Part]) -> tuple[tuple[Part, ...], ...]:
    """The parts as they are, and seen from the other side where that differs."""
    forward = tuple(parts)
    if all(part.pair.symmetric for part in parts):
        return (forward,)
    return forward, tuple(Part(part.pair.reverse(), part.times) for part in parts)


def _is_single(parts: Sequence[Part]) -> bool:
    return len(parts) == 1 and parts[0].times == 1


def _first_below(profile: Callable[[FloatArray], FloatArray], delta: float) -> tuple[float, float]:
    """Neighbours (just above, at or below `delta`) around the ε ≥ 0 where a falling profile passes it."""
    trial = np.concatenate((np.zeros(1), 2.0 ** np.arange(-40, 41, dtype=np.float64)))
    low = 0.0
    for _ in range(12):
        below = np.flatnonzero(profile(trial) <= delta)
        if len(below) == 0:
            return float(trial[-1]), math.inf
        high = float(trial[below[0]])
        if high == 0:
            return 0.0, 0.0
        low = float(trial[below[0] - 1]) if below[0] > 0 else low
        trial = np.linspace(low, high, 33)[1:]
    return low, high


def _single_profile(pair: Pair, epsilons: FloatArray) -> FloatArray:
    """δ(ε) of one pair at any ε, rounded up."""
    size = np.abs(epsilons)
    up, up_error = pair.up(size)
    down, down_error = pair.down(size)
    damp = np.exp(np.minimum(epsilons, 0.0))
    return np.minimum(
        np.where(epsilons >= 0, up + up_error, -np.expm1(-size) + damp * (down + down_error) + 1e-15), 1.0
    )


def _upper_nodes(chosen: Plan, looseness: float, lowest: float) -> Nodes:
    """The profile of the composition from `lowest` on, never below the truth."""
    step = chosen.step(looseness)
    law, infinite = chosen.law(step, upper=True)
    first, size = chosen.window(law, lowest)
    if size > POINTS_AT_MOST:
        law, infinite = chosen.law(step * size / POINTS_AT_MOST, upper=True)
        first, size = chosen.window(law, lowest)
    window = compose(law, chosen.tilt, first, size)
    end = first + len(window.tilted)
    if end <= law.span[1]:
        beyond = law.log_moment(chosen.steeper) - chosen.steeper * end * law.step + law.doubt(chosen.steeper)
        infinite += math.exp(min(beyond, 0.0))
    return nodes(window, lowest, chosen.guess, upper=True, extra=infinite)


def _epsilon(parts: Sequence[Part], delta: float, looseness: float, enough: float = -1.0) -> float:
    """ε at δ in one direction, never too small; `enough` if ε is proved to be no larger than that."""
    if _is_single(parts):
        profile = parts[0].pair.up
        return _first_below(lambda epsilon: sum(profile(epsilon), np.zeros(())), delta)[1]
    chosen = plan(parts, Question(delta))
    if chosen.bound <= enough or (enough > 0 and _search(chosen, delta, 20 * looseness) <= enough):
        return enough
    epsilon = _search(chosen, delta, looseness)
    if not 0 < epsilon < max(chosen.guess - 4 / chosen.tilt, 0.6 * chosen.guess):
        return epsilon
    # Chernoff's bound was far off (rare, large losses): look again from where the answer is, until it stays
    for _ in range(8):
        before, epsilon = epsilon, min(epsilon, _search(plan(parts, Question(delta, epsilon)), delta, looseness))
        if epsilon >= before * (1 - 2 * looseness):
            break
    return epsilon


def _search(chosen: Plan, delta: float, looseness: float) -> float:
    """ε at δ near the plan's guess, looking further down as long as the profile starts below δ."""
    margin = 12.0 / chosen.tilt
    while True:
        lowest = max(chosen.guess - margin, 0.0)
        found = _upper_nodes(chosen, looseness, lowest)
        epsilon = found.epsilon(delta)
        if epsilon <= 0 or epsilon > found.losses[0] or margin * chosen.tilt > 600:
            return max(epsilon, 0.0)
        margin *= 4


def _lower_epsilon(parts: Sequence[Part], delta: float, gap: float) -> float:
    """A bound that ε at δ in one direction is not below.

    A chord's law is the true loss plus a jump Z onto the grid with E[e^−Z | loss] = 1 and a range of one step, so
    E[Z] ≤ step²/8 and, by Hoeffding, T jumps exceed c = T·step²/8 + step·√(T·ln(1/β)/2) with probability at most β.
    Hence δ(ε) ≥ δ_grid(ε + c) − β; the mass that was moved further than a step (both ends of a grid) joins β.
    """
    if _is_single(parts):
        profile = parts[0].pair.up
        return _first_below(lambda epsilon: profile(epsilon)[0] - profile(epsilon)[1], delta)[0]
    chosen = plan(parts, Question(delta, _epsilon(parts, delta, 1e-3)), strict=True)
    times = chosen.times
    spread = math.sqrt(times * math.log(1e3 / delta) / 2)
    step = max(gap * max(chosen.guess, math.sqrt(chosen.variance)) / spread, chosen.step(0.0))
    lowest = max(chosen.guess - 12.0 / chosen.tilt, 0.0)
    for _ in range(2):
        law, infinite = chosen.law(step, upper=False)
        first, size = chosen.window(law, lowest)
        if size <= POINTS_AT_MOST:
            break
        step *= size / POINTS_AT_MOST
    ends = sum(item.times * float(item.mass[0] + item.mass[-1]) for item in law.factors)
    target = delta * 1.001 + infinite + ends * (1 + 1e-9)
    jumps = times * law.step**2 / 8 + law.step * spread
    # A window that too much mass wraps around proves nothing: then a wider one is taken.
    for wider in (1, 2):
        window = compose(law, chosen.tilt, first, wider * size)
        found = nodes(window, lowest, chosen.guess, upper=False, extra=0.0)
        # what wrapped is bounded a little below the answer, hence also at the answer
        near = found.epsilon(target) - 1 / chosen.tilt
        epsilon = found.epsilon(target + wrap(law, window, max(near, lowest), chosen.milder))
        if np.all(np.isfinite(found.delta)) and epsilon > max(near, float(found.losses[0])):
            return max(epsilon * (1 - 1e-12) - jumps, 0.0)
    return 0.0


def _around(parts: Sequence[Part], epsilon: float, looseness: float) -> Nodes:
    """The profile from `epsilon` on, looked at again while Chernoff's bound on δ turns out to be far off."""
    chosen = plan(parts, Question(epsilon=epsilon))
    found = _upper_nodes(chosen, looseness, epsilon)
    for _ in range(6):
        delta = float(found.delta[0])
        if delta > 0.1 * chosen.delta or delta < _LEAST:
            break
        chosen = plan(parts, Question(0.1 * delta, epsilon))
        found = _upper_nodes(chosen, looseness, epsilon)
        if found.delta[0] > 0.999 * delta:
            break
    return found


def _delta(parts: Sequence[Part], epsilons: FloatArray, looseness: float, enough: FloatArray) -> FloatArray:
    """δ in one direction at growing ε, never too small; once it is below all that is `enough` it may stay there."""
    if _is_single(parts):
        return _single_profile(parts[0].pair, epsilons)
    result = np.ones(len(epsilons))
    done = 0
    while done < len(epsilons):
        epsilon = float(epsilons[done])
        found = _around(parts, epsilon, looseness)
        values = found.at(epsilons[done:])
        # one tilt serves as long as δ stays far above what lies beyond its window
        usable = (values >= 1e-4 * values[0]) & (epsilons[done:] <= found.losses[-1])
        usable[0] = True
        count = len(values) if np.all(usable) else int(np.argmin(usable))
        result[done : done + count] = values[:count]
        done += count
        if result[done - 1] <= enough[-1]:
            result[done:] = result[done - 1]
            break
    return np.minimum.accumulate(result)


@dataclass(frozen=True, slots=True)
class Pld:
    """Tight accounting of a schedule that the plan fixes beforehand.

    >>> from veil.accounting.events import PoissonGaussian
    >>> round(Pld().epsilon([Repeated(PoissonGaussian(1.0, 0.005), 10_000)], 1e-5), 3)
    2.801

    `looseness` is the share by which the grid may raise ε: smaller is tighter and slower (time grows with its
    inverse root). Composition keeps dominating pairs dominating even when each release depends on earlier ones, as
    long as every release's event was fixed beforehand (Zhu, Dong, Wang 2022).

    `rows` is how many rows one person has: with 2 or more, ε and δ are those of all these rows together, which stand in
    one cell and take part in the same releases.
    """

    looseness: float = 1e-4
    rows: int = 1

    def __post_init__(self) -> None:
        """Reject a person without rows."""
        if self.rows < 1:
            raise AccountingError(f"rows is {self.rows}: it must be at least 1")

    def _parts(self, events: Iterable[Event | Repeated], realisable: bool = False) -> tuple[Part, ...]:
        return parts_of(events, realisable) if self.rows == 1 else parts_of_rows(events, self.rows)

    @property
    def name(self) -> str:
        """The word on the command line and the certificate."""
        return "pld"

    @property
    def approximate(self) -> bool:
        """Never below the truth."""
        return False

    def supports(self, event: Event) -> bool:
        """Whether the event has a dominating pair here; a `Selection` has a profile, if it is all there is.

        Args:
            event: One release.

        Returns:
            True if `epsilon` and `delta` accept it.
        """
        if isinstance(event, Selection):
            return all(self.supports(item.event) for run in runs_of(event) for item in run)
        return supported(event) if self.rows == 1 else supports_rows(event)

    def epsilon(self, events: Iterable[Event | Repeated], delta: float) -> float:
        """The smallest ε ≥ 0 it can prove at this δ, over both directions; inf when it can prove none.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, between 0 and 1.

        Returns:
            ε ≥ 0, an upper bound on the true one; 0 for no events.

        Raises:
            AccountingError: δ is out of range, an event is not supported, or the events have different relations.
        """
        _check_delta(delta)
        return _composed_epsilon(self, tuple(events), delta)

    def _epsilon_of(self, items: tuple[Event | Repeated, ...], delta: float) -> float:
        if (selection := selection_among(items)) is not None:
            return self._selection_epsilon(selection, delta)
        parts = self._parts(items)
        if not parts or delta >= 1:
            return 0.0
        if delta < _LEAST:
            return math.inf
        largest = -1.0
        for side in _directions(parts):
            largest = max(largest, _epsilon(side, delta, self.looseness, largest))
        if self.rows == 1 and _has_noisy_max(items):
            # Both are proved; for noisy max the worst case over an unknown offset is often milder order by order.
            return min(largest, Rdp().epsilon(items, delta))
        return largest

    def lower_epsilon(self, events: Iterable[Event | Repeated], delta: float, gap: float = 2e-3) -> float:
        """A proved lower bound on the ε of the events' dominating pairs, at most a little more than `gap` below.

        For a batch without replacement the pair itself is an upper bound on what the release costs; for a noisy max a
        pair that can occur is taken, which may lie further below. A selection costs at least what one run does: its
        runs may be told apart by nothing but chance.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, between 0 and 1.
            gap: How far below the true ε the bound may lie.

        Returns:
            ε ≥ 0, a lower bound.

        Raises:
            AccountingError: δ is out of range, an event is not supported, or the events have different relations.
        """
        _check_delta(delta)
        items = tuple(events)
        if (selection := selection_among(items)) is not None:
            return max(self.lower_epsilon(run, delta, gap) for run in runs_of(selection))
        parts = self._parts(items, realisable=True)
        if not parts or delta >= 1 or delta < _LEAST:
            return 0.0
        return max(_lower_epsilon(side, delta, gap) for side in _directions(parts))

    def delta(self, events: Iterable[Event | Repeated], epsilon: float) -> float:
        """The smallest δ in [0, 1] it can prove at this ε ≥ 0.

        Args:
            events: What was released, all under one neighbouring relation.
            epsilon: ε of the statement, at least 0; `math.inf` gives 0.

        Returns:
            δ between 0 and 1, an upper bound on the true one.

        Raises:
            AccountingError: ε is negative, an event is not supported, or the events have different relations.
        """
        if not epsilon >= 0:
            raise AccountingError(f"epsilon is {epsilon}: it must be at least 0")
        if math.isinf(epsilon):
            return 0.0
        items = tuple(events)
        found = float(self.profile(items, [epsilon])[0])
        return min(found, Rdp().delta(items, epsilon)) if self.rows == 1 and _has_noisy_max(items) else found

    def profile(self, events: Iterable[Event | Repeated], epsilons: ArrayLike) -> FloatArray:
        """δ(ε) at each ε, which may be negative: the larger of both directions, never below the truth.

        Args:
            events: What was released, all under one neighbouring relation.
            epsilons: Finite numbers, in any order and shape.

        Returns:
            δ for each ε, in the same shape.

        Raises:
            AccountingError: An ε is not finite, an event is not supported, or the events have different relations.
        """
        asked = np.asarray(epsilons, dtype=np.float64)
        if not np.all(np.isfinite(asked)):
            raise AccountingError("every epsilon must be a finite number")
        flat = asked.ravel()
        items = tuple(events)
        if (selection := selection_among(items)) is not None:
            return self._selection_profile(selection, asked)
        parts = self._parts(items)
        floor = np.maximum(-np.expm1(np.minimum(flat, 0.0)), 0.0)
        if not parts or len(flat) == 0:
            return floor.reshape(asked.shape)
        order = np.argsort(flat)
        worst = np.zeros(len(flat))
        for side in _directions(parts):
            worst[order] = np.maximum(worst[order], _delta(side, flat[order], self.looseness, worst[order]))
        return np.maximum(worst, floor).reshape(asked.shape)

    def _run_profile(self, selection: Selection, epsilons: FloatArray) -> FloatArray:
        """δ(ε) of one run, whichever it is."""
        found: FloatArray = np.max([self.profile(run, epsilons) for run in runs_of(selection)], axis=0)
        return found

    def _selection_epsilon(self, selection: Selection, delta: float) -> float:
        """ε of one run at δ / E[K], and what selection adds."""
        runs = runs_of(selection)
        if delta >= 1:
            return 0.0
        one = max(self.epsilon(run, min(delta / mean_runs(selection), 1.0)) for run in runs)
        return one + selection_shift(selection, partial(self._run_profile, selection))

    def _selection_profile(self, selection: Selection, epsilons: FloatArray) -> FloatArray:
        shift = selection_shift(selection, partial(self._run_profile, selection))
        # Below the shift nothing is proved but the trivial bound.
        run = self._run_profile(selection, np.maximum(epsilons - shift, 0.0))
        return np.where(epsilons >= shift, np.minimum(mean_runs(selection) * run, 1.0), 1.0)

    def total_variation(self, events: Iterable[Event | Repeated]) -> float:
        """δ(0): how well any test on the releases can tell two neighbours apart.

        Args:
            events: What was released, all under one neighbouring relation.

        Returns:
            A number between 0 and 1: the largest advantage of any attacker over guessing.

        Raises:
            AccountingError: An event is not supported, or the events have different relations.

        >>> from veil.accounting.events import Gaussian
        >>> round(Pld().total_variation([Gaussian(1.0)]), 4)
        0.3829
        """
        return self.delta(events, 0.0)

    def tradeoff(self, events: Iterable[Event | Repeated], fprs: ArrayLike) -> FloatArray:
        """The least false negative rate of any test at each false positive rate; never above the truth.

        f(α) = sup over ε of 1 − δ(ε) − e^ε·α; fewer ε only lower it, so a finite set of them is sound.

        Args:
            events: What was released, all under one neighbouring relation.
            fprs: False positive rates between 0 and 1.

        Returns:
            A false negative rate for each, in the same shape.

        Raises:
            AccountingError: A rate is out of range, or an event is not supported.
        """
        rates = np.asarray(fprs, dtype=np.float64)
        if not np.all((rates >= 0) & (rates <= 1)):
            raise AccountingError("every false positive rate must be between 0 and 1")
        items = list(events)
        widest = self.epsilon(items, 1e-9)
        if not math.isfinite(widest):
            return np.zeros_like(rates)
        epsilons = np.linspace(-widest, widest, 401) if widest > 0 else np.zeros(1)
        value = self.profile(items, epsilons)
        with np.errstate(over="ignore"):
            lines = 1 - value - np.multiply.outer(rates, np.exp(epsilons))
        best: FloatArray = np.maximum(lines.max(axis=-1), 0.0)
        return best


# Calibration, a run's progress and the runs of a comparison ask for the same events again and again.
@lru_cache(maxsize=4096)
def _composed_epsilon(accountant: Pld, items: tuple[Event | Repeated, ...], delta: float) -> float:
    return accountant._epsilon_of(items, delta)


def _has_noisy_max(items: Iterable[Event | Repeated]) -> bool:
    return any(isinstance(item.event if isinstance(item, Repeated) else item, NoisyMax) for item in items)


def _check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise AccountingError(f"delta is {delta}: it must be between 0 and 1")
