"""Calibration: the noise, rate or clip that spends a budget. Every root is rounded to the private side.

What is returned satisfies the target under the accountant that was asked. It lies within the stated relative tolerance
of a point that does not; where the accountant's own search leaves ripples in ε (the Rényi one looks for its order to
0.1 %), a slightly better value may exist beyond that: mostly none, at times a few 1e-4 away. What cannot be satisfied
raises `AccountingError` and says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from veil.accounting.accountant import Accountant
from veil.accounting.conversion import check_delta, check_orders
from veil.accounting.events import (
    AccountingError,
    Event,
    PoissonGaussian,
    Relation,
    Repeated,
    SubsetGaussian,
)
from veil.accounting.rdp import Rdp
from veil.accounting.rdp.poisson import add_remove, replace_one
from veil.accounting.rdp.quadrature import Floats
from veil.accounting.rdp.subset import replace_one_subset

Indices = NDArray[np.intp]
Events = Sequence[Event | Repeated]
Build = Callable[[float], Events]

SMALLEST_NOISE = 1e-2
LARGEST_NOISE = 1e8
_TOLERANCE = 1e-4


def _check_target(epsilon: float, delta: float) -> None:
    if not epsilon > 0:
        raise AccountingError(f"the target epsilon is {epsilon}: it must be above 0")
    check_delta(delta)


def _checked(extra: Events, epsilon: float, delta: float, accountant: Accountant | None) -> Accountant:
    """The accountant to use, after checking that the other releases leave some budget."""
    judge = accountant or Rdp()
    _check_target(epsilon, delta)
    cost = judge.epsilon(extra, delta) if extra else 0.0
    if cost >= epsilon:
        raise AccountingError(
            f"the other releases alone cost epsilon {cost:.6g} at delta {delta:g}, so nothing is left of {epsilon:g}"
        )
    return judge


def _private_root(cost: Callable[[float], float], target: float, low: float, high: float, tolerance: float) -> float:
    """The smallest x, up to a relative `tolerance`, with cost(x) ≤ target: cost falls, low fails, high holds."""

    def excess(at: Floats, _: Indices) -> Floats:
        return np.array([_log_ratio(cost(math.exp(at[0])), target)])

    bracket = _Bracket(np.log([low]), np.array([math.inf]), np.log([high]), np.array([-math.inf]))
    return math.exp(bracket.close(excess, tolerance)[0])


def _root_near(cost: Callable[[float], float], target: float, near: float, tolerance: float) -> float | None:
    """`_private_root` from a place close to it; None if it lies beyond all noise that is tried."""

    def excess(at: Floats, _: Indices) -> Floats:
        return np.array([_log_ratio(cost(math.exp(at[0])), target)])

    nowhere, reach = np.zeros(1, dtype=np.intp), 0.02
    last = np.log([near])
    value = excess(last, nowhere)
    while math.log(SMALLEST_NOISE) < last[0] < math.log(LARGEST_NOISE):
        here = last - reach if value[0] <= 0 else last + reach
        found = excess(here, nowhere)
        if (found[0] <= 0) != (value[0] <= 0):
            low, high = ((last, value), (here, found)) if value[0] > 0 else ((here, found), (last, value))
            return math.exp(_Bracket(*low, *high).close(excess, tolerance)[0])
        last, value, reach = here, found, 3 * reach
    return None


def _log_ratio(value: float, target: float) -> float:
    return math.log(value / target) if 0 < value < math.inf else math.copysign(math.inf, value - target)


def _roots_of_one_curve(
    cost: Callable[[float], float], targets: Sequence[float], near: float, smallest: float, largest: float
) -> dict[float, float]:
    """`_private_root` for several targets of one falling cost: a point computed for one target serves all others.

    The search starts at `near`. The root is `smallest` where even that holds, and infinite where `largest` fails.
    """
    known: dict[float, float] = {}

    def at(x: float) -> float:
        if x not in known:
            known[x] = cost(x)
        return known[x]

    def excess(logs: Floats, _: Indices) -> Floats:
        return np.array([_log_ratio(at(math.exp(logs[0])), target)])

    roots: dict[float, float] = {}
    at(min(max(near, smallest), largest))
    for target in sorted(set(targets)):
        while min(known) > smallest and at(min(known)) <= target:
            at(max(min(known) / 4, smallest))
        while max(known) < largest and at(max(known)) > target:
            at(min(max(known) * 4, largest))
        if at(min(known)) <= target or at(max(known)) > target:
            roots[target] = smallest if at(min(known)) <= target else math.inf
            continue
        high = min(x for x, value in known.items() if value <= target)
        low = max(x for x in known if x < high)
        ends = [np.array([_log_ratio(at(x), target)]) for x in (low, high)]
        closed = _Bracket(np.log([low]), ends[0], np.log([high]), ends[1]).close(excess, _TOLERANCE)
        root, slack = math.exp(closed[0]), 1e-15
        while at(root) > target:  # exp(log x) may round to the wrong side
            root, slack = root * (1 + slack), 2 * slack
        roots[target] = root
    return roots


class _Bracket:
    """Roots of falling functions of log x, many at once: `low` fails with an excess above 0, `high` holds."""

    def __init__(self, low: Floats, below: Floats, high: Floats, above: Floats) -> None:
        self.low, self.high = low, high
        self._last, self._before = (high.copy(), above.copy()), (low.copy(), below.copy())

    def close(self, excess: Callable[[Floats, Indices], Floats], tolerance: float) -> Floats:
        """Narrow every bracket to `tolerance` and return the ends that hold.

        Secant steps on log cost. Each probe is pushed by almost half a tolerance towards the farther end, so that
        near the root both ends close in; every fifth probe halves the bracket, so that it always ends.
        """
        for count in range(200):
            active: Indices = np.flatnonzero(self.high - self.low > tolerance)
            if active.size == 0:
                break
            probe = self._probe(active, tolerance, halve=count % 5 == 4)
            value = excess(probe, active)
            for old, new in zip(self._before, self._last, strict=True):
                old[active] = new[active]
            self._last[0][active], self._last[1][active] = probe, value
            holds = value <= 0
            self.high[active[holds]], self.low[active[~holds]] = probe[holds], probe[~holds]
        return self.high

    def _probe(self, active: Indices, tolerance: float, halve: bool) -> Floats:
        low, high = self.low[active], self.high[active]
        middle = (low + high) / 2
        if halve:
            return middle
        (x, fx), (y, fy) = ((at[active], value[active]) for at, value in (self._last, self._before))
        with np.errstate(divide="ignore", invalid="ignore"):
            guess = x - fx * (x - y) / (fx - fy)
        guess = np.where((guess > low) & (guess < high), guess, middle)
        side = np.where(high - guess > guess - low, 0.45, -0.45) * tolerance
        return np.clip(guess + side, low + 0.1 * tolerance, high - 0.1 * tolerance)


def noise_multiplier(
    build: Build,
    target_epsilon: float,
    delta: float,
    accountant: Accountant,
    tolerance: float = _TOLERANCE,
    near: float | None = None,
) -> float:
    """The smallest noise multiplier κ for which the events `build(κ)` cost at most the target.

    The cost must not grow with κ. When even `SMALLEST_NOISE` is enough, that is returned. The search takes half the
    time if it starts `near` the answer.

    >>> from veil.accounting.events import Gaussian
    >>> kappa = noise_multiplier(lambda kappa: [Gaussian(kappa)], 1.0, 1e-5, Rdp())
    >>> Rdp().epsilon([Gaussian(kappa)], 1e-5) <= 1.0
    True
    """
    _check_target(target_epsilon, delta)

    def cost(kappa: float) -> float:
        return accountant.epsilon(build(kappa), delta)

    if near is not None:
        root = _root_near(cost, target_epsilon, near, tolerance)
        if root is not None and cost(root) <= target_epsilon:
            return root
    high = 1.0
    while cost(high) > target_epsilon:
        high *= 4
        if high > LARGEST_NOISE:
            raise AccountingError(
                f"no noise reaches epsilon {target_epsilon:g} at delta {delta:g}: with noise multiplier "
                f"{LARGEST_NOISE:g} the events still cost {cost(LARGEST_NOISE):.6g}"
            )
    low = high / 4
    while cost(low) <= target_epsilon:
        if low <= SMALLEST_NOISE:
            return SMALLEST_NOISE
        low, high = max(low / 4, SMALLEST_NOISE), low
    root = _private_root(cost, target_epsilon, low, high, tolerance)
    slack = 1e-15
    while cost(root) > target_epsilon:  # exp(log x) may round to the wrong side
        root, slack = root * (1 + slack), 2 * slack
    return root


def noise_for(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    relation: Relation = Relation.ADD_REMOVE,
    extra: Events = (),
    accountant: Accountant | None = None,
) -> float:
    """The smallest noise multiplier of `steps` Poisson-sampled releases that, with `extra`, cost at most ε.

    >>> round(noise_for(3.06, 1e-5, 0.005, 10_000), 2)
    1.0
    """
    judge = _checked(extra, epsilon, delta, accountant)

    def build(kappa: float) -> Events:
        return [Repeated(PoissonGaussian(kappa, rate, relation), steps), *extra]

    return noise_multiplier(build, epsilon, delta, judge)


def noise_for_subset(
    epsilon: float,
    delta: float,
    size: int,
    batch: int,
    steps: int,
    extra: Events = (),
    accountant: Accountant | None = None,
) -> float:
    """The smallest noise multiplier of `steps` releases on `batch` of `size` rows without replacement (replace-one)."""
    judge = _checked(extra, epsilon, delta, accountant)

    def build(kappa: float) -> Events:
        return [Repeated(SubsetGaussian(kappa, size, batch), steps), *extra]

    return noise_multiplier(build, epsilon, delta, judge)


def rate_for(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    relation: Relation = Relation.ADD_REMOVE,
    extra: Events = (),
    accountant: Accountant | None = None,
) -> float:
    """The largest sampling rate of `steps` Poisson-sampled releases that, with `extra`, cost at most ε; at most 1.

    >>> round(rate_for(8.0, 1e-5, 4.0, 1000), 4)
    0.1935
    """
    judge = _checked(extra, epsilon, delta, accountant)

    def spent(rate: float) -> float:
        return judge.epsilon([Repeated(PoissonGaussian(noise_multiplier, rate, relation), steps), *extra], delta)

    def cost(inverse: float) -> float:
        return spent(min(1.0, 1.0 / inverse))

    if cost(1.0) <= epsilon:
        return 1.0
    low, high = 1.0, 4.0
    while cost(high) > epsilon:
        low, high = high, high * 4
        if high > 1e15:
            raise AccountingError(
                f"no sampling rate reaches epsilon {epsilon:g} at delta {delta:g} with noise multiplier "
                f"{noise_multiplier:g} and {steps} steps: at rate 1e-15 they still cost {cost(1e15):.6g}"
            )
    root = 1.0 / _private_root(cost, epsilon, low, high, _TOLERANCE)
    slack = 1e-15
    while spent(root) > epsilon:  # the reciprocal may round to the wrong side
        root, slack = root * (1 - slack), 2 * slack
    return root


def rates_for(
    epsilons: Sequence[float],
    delta: float,
    noise_multiplier: float,
    steps: int,
    relation: Relation = Relation.ADD_REMOVE,
    accountant: Accountant | None = None,
    near: float = 0.01,
) -> tuple[float, ...]:
    """`rate_for` for many ε under one noise multiplier, at two or three costs per ε; the search starts at rate `near`.

    >>> [round(rate, 4) for rate in rates_for([8.0, 0.6], 1e-5, 4.0, 1000)]
    [0.1935, 0.0189]
    """
    judge = accountant or Rdp()
    for epsilon in epsilons:
        _check_target(epsilon, delta)

    def cost(inverse: float) -> float:
        return judge.epsilon([Repeated(PoissonGaussian(noise_multiplier, 1.0 / inverse, relation), steps)], delta)

    inverses = _roots_of_one_curve(cost, epsilons, 1.0 / near, 1.0, 1e15)
    if not all(map(math.isfinite, inverses.values())):
        raise AccountingError(
            f"no sampling rate reaches epsilon {min(epsilons):g} at delta {delta:g} with noise multiplier "
            f"{noise_multiplier:g} and {steps} steps: at rate 1e-15 they still cost {cost(1e15):.6g}"
        )
    return tuple(1.0 / inverses[epsilon] for epsilon in epsilons)


def noises_for(
    epsilons: Sequence[float],
    delta: float,
    rate: float,
    steps: int,
    relation: Relation = Relation.ADD_REMOVE,
    accountant: Accountant | None = None,
) -> tuple[float, ...]:
    """`noise_for` for many ε at one rate, at two or three costs per ε.

    >>> [round(noise, 2) for noise in noises_for([3.06, 1.0], 1e-5, 0.005, 10_000)]
    [1.0, 2.16]
    """
    judge = accountant or Rdp()
    for epsilon in epsilons:
        _check_target(epsilon, delta)

    def cost(kappa: float) -> float:
        return judge.epsilon([Repeated(PoissonGaussian(kappa, rate, relation), steps)], delta)

    kappas = _roots_of_one_curve(cost, epsilons, 1.0, SMALLEST_NOISE, LARGEST_NOISE)
    if not all(map(math.isfinite, kappas.values())):
        raise AccountingError(
            f"no noise reaches epsilon {min(epsilons):g} at delta {delta:g}: with noise multiplier "
            f"{LARGEST_NOISE:g} the events still cost {cost(LARGEST_NOISE):.6g}"
        )
    return tuple(kappas[epsilon] for epsilon in epsilons)


def clip_for(
    epsilon: float,
    delta: float,
    rate: float,
    sigma: float,
    steps: int,
    relation: Relation = Relation.ADD_REMOVE,
    extra: Events = (),
    accountant: Accountant | None = None,
) -> float:
    """The largest bound C on one row when the noise has standard deviation σ: C = σ/κ.

    >>> round(clip_for(0.5, 1e-5, 0.05, 4.0, 1000), 3)
    0.328
    """
    if not (math.isfinite(sigma) and sigma > 0):
        raise AccountingError(f"sigma is {sigma}: it must be finite and above 0")
    needed = noise_for(epsilon, delta, rate, steps, relation, extra, accountant)
    clip = sigma / needed
    while sigma / clip < needed:
        clip = math.nextafter(clip, 0.0)
    return clip


def _costs(sampling: str, relation: Relation, reach: int) -> tuple[Callable[[Floats, Floats, Floats], Floats], int]:
    """The cost function of a sampling scheme and the reach that it expects noise to be divided by."""
    if sampling == "poisson":
        return (add_remove, 1) if relation is Relation.ADD_REMOVE else (replace_one, 1)
    if sampling == "wor":
        if relation is not Relation.REPLACE_ONE:
            raise AccountingError("sampling without replacement is accounted for under replace-one only")
        return replace_one_subset, reach
    raise AccountingError(f"sampling is {sampling!r}: it must be 'poisson' or 'wor'")


def kappa(
    order: float,
    rate: ArrayLike,
    rho: ArrayLike,
    sampling: Literal["poisson", "wor"] = "poisson",
    relation: Relation = Relation.REPLACE_ONE,
    one_sided: bool = False,
    tolerance: float = 1e-6,
) -> Floats:
    """κ_α(γ, ε_s): the smallest noise multiplier whose Rényi cost at `order` is at most `rho`, element by element.

    There is a solution for every rate in (0, 1] and every cost above 0, because a sampled release never costs more
    than one on all rows, whose cost vanishes with growing noise. `rate` is batch over size for "wor".

    >>> kappa(16.0, [0.01, 1.0], 0.02).round(3).tolist()
    [1.289, 40.0]
    """
    rates, budgets = np.broadcast_arrays(np.asarray(rate, dtype=np.float64), np.asarray(rho, dtype=np.float64))
    shape, rates, budgets = rates.shape, rates.reshape(-1).copy(), budgets.reshape(-1).copy()
    orders = np.array([order], dtype=np.float64)
    check_orders(orders)
    if not np.all((rates > 0) & (rates <= 1)):
        raise AccountingError(f"rates are {rates.tolist()}: each must be above 0 and at most 1")
    if not np.all(np.isfinite(budgets) & (budgets > 0)):
        raise AccountingError(f"Rényi costs per step are {budgets.tolist()}: each must be finite and above 0")
    cost, divisor = _costs(sampling, relation, 1 if one_sided else 2)
    full = 2 if relation is Relation.REPLACE_ONE and not (one_sided and sampling == "wor") else 1
    goal = np.log(budgets) - 1e-12  # rounding of sums may differ with the shape of the arrays

    def excess(at: Floats, which: Indices) -> Floats:
        found: Floats = np.log(cost(np.exp(at) / divisor, rates[which], orders)[:, 0]) - goal[which]
        return found

    # The plain Gaussian with that cost is private enough at every rate.
    high = np.log(full * np.sqrt(order / (2 * budgets))) + 1e-11
    return np.exp(_private_roots(excess, high, tolerance)).reshape(shape)


def _private_roots(excess: Callable[[Floats, Indices], Floats], high: Floats, tolerance: float) -> Floats:
    """`_private_root` for many roots at once, from upper ends that hold; the lower ends are found by stepping down."""
    everything: Indices = np.arange(high.size, dtype=np.intp)
    high, above = high.copy(), excess(high, everything)
    low, below = high - tolerance, np.empty_like(high)
    open_ends, step = everything, tolerance
    while open_ends.size:
        low[open_ends] = high[open_ends] - step
        below[open_ends] = excess(low[open_ends], open_ends)
        held = open_ends[below[open_ends] <= 0]
        high[held], above[held] = low[held], below[held]
        open_ends, step = held, max(2 * step, 0.5)
    return _Bracket(low, below, high, above).close(excess, tolerance)


def best_order(events: Iterable[Event | Repeated], delta: float) -> float:
    """The order at which these events' ε at δ is smallest: the α* of a plan's Rényi filter.

    >>> round(best_order([Repeated(PoissonGaussian(1.0, 0.005), 10_000)], 1e-5))
    7
    """
    return Rdp().best(events, delta).order
