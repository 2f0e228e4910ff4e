"""The search for the Rényi order that proves the most.

For an exact Rényi curve the numerator of ε(λ) = [K(λ) + λ·log λ − (λ+1)·log(λ+1) − log δ]/λ, with λ = α−1 and K the
log-moment, is convex, so ε falls and then rises: a search by bracketing finds its minimum. For an upper bound on the
curve the search may stop at a local minimum; every value it returns is a proved one all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from veil.accounting.rdp.quadrature import Floats

_RISING = (
    (2.0, 4.0, 8.0, 16.0),
    (32.0, 64.0),
    (128.0, 256.0, 512.0, 1024.0),
    (2048.0, 4096.0, 8192.0, 16384.0),
)
_FALLING = tuple(1 + 2.0**-power for power in range(1, 11))
_ROUNDS = 10  # of orders that are tried between those of the first rounds, while …
_ENOUGH = 1e-3  # … they promise to lower ε, or δ, by more than this share
_SHARP = 0.02  # a larger promise than this is not believed
_NARROW = 1.001  # a bracket of λ not worth dividing


@dataclass(frozen=True, slots=True)
class Best:
    """The smallest value found and the order where it was found."""

    value: float
    order: float


class _Table:
    """The orders tried so far, ascending, with their values."""

    def __init__(self, objective: Callable[[Floats], Floats]) -> None:
        self._objective = objective
        self.orders: list[float] = []
        self.values: list[float] = []
        self.index = 0

    def fresh(self, orders: Sequence[float], whole: float) -> list[float]:
        """Those orders next to the best one that were not tried yet, rounded above `whole`."""
        left, right = self.neighbours()
        rounded = {float(round(order)) if left >= whole else order for order in orders}
        return sorted(order for order in rounded if left < order < right and order != self.best.order)

    def add(self, orders: Sequence[float]) -> None:
        """Try new orders and remember which is the best of all."""
        if orders:
            values: list[float] = self._objective(np.array(orders)).tolist()
            both = sorted(zip([*self.orders, *orders], [*self.values, *values], strict=True))
            self.orders, self.values = [order for order, _ in both], [value for _, value in both]
            self.index = min(range(len(both)), key=self.values.__getitem__)

    @property
    def best(self) -> Best:
        """The best value so far and its order."""
        return Best(self.values[self.index], self.orders[self.index])

    def neighbours(self) -> tuple[float, float]:
        """The orders on either side of the best one."""
        return self.orders[max(self.index - 1, 0)], self.orders[min(self.index + 1, len(self.orders) - 1)]


def _between(left: float, right: float, count: int) -> list[float]:
    """Orders inside an interval, evenly spaced in log(α−1); whole ones where the interval holds enough of them."""
    ratio = ((right - 1) / (left - 1)) ** (1 / (count + 1))
    points = [1 + (left - 1) * ratio**step for step in range(1, count + 1)]
    if left >= 2 and right - left >= 4:
        points = sorted({float(round(point)) for point in points})
    return [point for point in points if left < point < right]


def _smooth_guess(table: _Table, scaled: bool) -> float:
    """Where the cubic through the four orders around the best one is smallest."""
    first = min(max(table.index - 1, 0), len(table.orders) - 4)
    left, right = table.neighbours()
    if 2 <= table.index < len(table.orders) - 1 and table.best.order - left <= right - table.best.order:
        first = table.index - 2
    gap = np.array(table.orders[first : first + 4]) - 1
    centre, width = gap[1], gap[3] - gap[0]
    values = np.array(table.values[first : first + 4])
    coefficients = np.linalg.solve(np.vander((gap - centre) / width), values * gap if scaled else values)
    candidates = np.linspace(left - 1, right - 1, 102)[1:-1]
    fitted = np.polyval(coefficients, (candidates - centre) / width)
    return float(1 + candidates[int((fitted / candidates if scaled else fitted).argmin())])


def _corner(table: _Table, scaled: bool, side: int) -> Best:
    """How low a convex numerator can lie between the best order and its neighbour on one side, and where.

    Between two points a convex function lies above the chords before and after them, prolonged; these meet in the
    lowest point it can have. Where a chord is missing nothing is known: the value is −∞.
    """
    first = table.index - 2 if side < 0 else table.index - 1
    if first < 0 or first + 3 >= len(table.orders):
        return Best(-math.inf, table.best.order)
    x = [order - 1 for order in table.orders[first : first + 4]]
    y = [value * (gap if scaled else 1.0) for value, gap in zip(table.values[first : first + 4], x, strict=True)]
    before, after = (y[1] - y[0]) / (x[1] - x[0]), (y[3] - y[2]) / (x[3] - x[2])
    if not after > before:  # straight, up to rounding
        return table.best
    meet = (y[1] - y[2] + after * x[2] - before * x[1]) / (after - before)
    meet = min(max(meet, x[1]), x[2])
    low = y[1] + before * (meet - x[1])
    return Best(low / meet if scaled else low, 1 + meet)


def _polish(table: _Table, scaled: bool, whole: float) -> bool:
    """Try orders between the best one and its neighbours; False when they promise nothing any more."""
    left, right = table.neighbours()
    best = table.best
    if (right - 1) < _NARROW * (left - 1) or (scaled and best.value <= 0) or not math.isfinite(best.value):
        return False
    enough = _ENOUGH * (best.value if scaled else 1.0)
    ends = [(_corner(table, scaled, side), end) for side, end in ((-1, left), (1, right)) if end != best.order]
    worth = [(corner, end) for corner, end in ends if best.value - corner.value > enough]
    if not worth:
        return False
    orders = []
    if all(best.value - corner.value < _SHARP / _ENOUGH * enough for corner, _ in worth):
        orders.append(_smooth_guess(table, scaled))
        for corner, end in worth:  # the middle keeps the bracket shrinking where the corner creeps
            orders += [corner.order, (best.order + end) / 2]
    fresh = table.fresh(orders, whole)
    if not fresh:  # the curve turns sharply, or little is known: narrow the bracket evenly
        fresh = table.fresh(_between(left, right, 6), whole)
    table.add(fresh)
    return bool(fresh)


def search(objective: Callable[[Floats], Floats], scaled: bool, whole: float) -> Best:
    """Minimise over the orders above 1.

    `scaled` says that (α−1)·objective, not objective, is the convex one. Above `whole` only whole orders are tried:
    they are close enough to one another, and some costs are only known there.
    """
    table = _Table(objective)
    for orders in _RISING:
        table.add(orders)
        if table.index < len(table.orders) - 1:
            break
    for order in _FALLING:
        if table.index > 0:
            break
        table.add([order])
    if not (scaled and table.best.value <= 0):  # ε = 0 cannot be improved
        table.add(table.fresh(_between(*table.neighbours(), 8), whole))
    for _ in range(_ROUNDS):
        if not _polish(table, scaled, whole):
            break
    return table.best
