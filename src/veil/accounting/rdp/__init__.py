"""The Rényi accountant: the cost of events at every order, added up, then converted at the best order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import get_args

import numpy as np

from veil.accounting import events as kinds
from veil.accounting.conversion import (
    check_delta,
    check_epsilon,
    check_orders,
    epsilon_at_order,
    log_delta_at_order,
    moment_epsilon,
    moment_log_delta,
    total_variation_bound,
)
from veil.accounting.events import AccountingError, Event, Relation, Repeated, composable
from veil.accounting.rdp import closed as rdp_closed
from veil.accounting.rdp.order_search import Best, search
from veil.accounting.rdp.poisson import add_remove, replace_one
from veil.accounting.rdp.quadrature import Floats
from veil.accounting.rdp.subset import replace_one_subset

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + 2.0**-power for power in range(6, 0, -1)),
    *(half / 2 for half in range(4, 24)),
    *(float(order) for order in (*range(12, 65), *range(72, 129, 8), 160, 192, 256, 384, 512, 768, 1024)),
)
_NEXT_TO_ONE = 1 + 2.0**-10
# Whole ones but for the smallest: there the cost of a subset is exact.
_FEW_ORDERS = (1.25, 1.5, *map(float, (*range(2, 9), *range(10, 33, 2), *range(36, 65, 4), 80, 96, 128, 192, 256, 512)))


def _whole(items: Iterable[Repeated]) -> float:
    """The order above which only whole ones are worth trying: the cost of a subset is only known there."""
    return 2.0 if any(isinstance(item.event, kinds.SubsetGaussian) for item in items) else 512.0


def _tells_more_than(items: Sequence[Repeated], delta: float) -> bool:
    """Whether one release alone has a total variation above δ, so that no bound on all of them can lie below."""
    for item in items:
        event = item.event
        if isinstance(event, kinds.Gaussian | kinds.PoissonGaussian | kinds.SubsetGaussian):
            rate = 1.0 if isinstance(event, kinds.Gaussian) else event.rate
            if rate * math.erf(1 / (math.sqrt(8) * event.noise_multiplier)) > delta:
                return True
    return False


def _selection(event: kinds.Selection, orders: Floats) -> Floats:
    grid = np.union1d(orders, DEFAULT_ORDERS)
    cost = _compose(event.events, grid)
    if math.isinf(event.shape):
        assert event.mean is not None
        total = rdp_closed.selection_poisson(event.mean, cost, grid)
    else:
        assert event.gamma is not None
        total = rdp_closed.selection_negative_binomial(event.shape, event.gamma, cost, grid)
    return total[np.searchsorted(grid, orders)]


def _alone(event: Event, orders: Floats) -> Floats:
    """The cost of an event that is not worth batching with others of its kind."""
    match event:
        case kinds.Gaussian():
            return rdp_closed.gaussian(event, orders)
        case kinds.Tree():
            return rdp_closed.gaussian(event.as_gaussian(), orders)
        case kinds.Laplace():
            return rdp_closed.laplace(event, orders)
        case kinds.NoisyMax():
            return rdp_closed.noisy_max(event, orders)
        case kinds.Mixture():
            return rdp_closed.mixture(event.probability, rdp(event.event, orders), orders)
        case kinds.Envelope():
            return np.asarray(np.max([rdp(one, orders) for one in event.events], axis=0))
        case kinds.Choice():
            return np.asarray(np.max([_compose(run, orders) for run in event.runs], axis=0))
        case kinds.Selection():
            return _selection(event, orders)
        case _:
            raise AccountingError(f"the Rényi accountant has no proved cost for {event!r}")


def _sampled(items: Sequence[Repeated], orders: Floats) -> Floats:
    """The summed cost of sampled Gaussians, all events of one kind in one go."""
    alike: dict[Callable[[Floats, Floats, Floats], Floats], list[tuple[float, float, float]]] = {}
    for item in items:
        event = item.event
        if isinstance(event, kinds.SubsetGaussian):
            key = replace_one_subset
            entry = (event.noise_multiplier / event.reach, event.rate, float(item.times))
        else:
            assert isinstance(event, kinds.PoissonGaussian)
            key = add_remove if event.relation is Relation.ADD_REMOVE else replace_one
            entry = (event.noise_multiplier, event.rate, float(item.times))
        alike.setdefault(key, []).append(entry)
    total = np.zeros(orders.shape)
    for cost, entries in alike.items():
        noise, rate, times = np.array(entries).T
        total += times @ cost(noise, rate, orders)
    return total


def _compose(items: Sequence[Repeated], orders: Floats) -> Floats:
    """The summed Rényi cost of all items at each order."""
    sampled = [item for item in items if isinstance(item.event, kinds.PoissonGaussian | kinds.SubsetGaussian)]
    total = _sampled(sampled, orders)
    for item in items:
        if not isinstance(item.event, kinds.PoissonGaussian | kinds.SubsetGaussian):
            total += item.times * _alone(item.event, orders)
    return total


def rdp(event: Event, orders: Sequence[float] | Floats) -> Floats:
    """The Rényi cost of one event at each order.

    >>> rdp(kinds.Gaussian(2.0), [2.0, 4.0]).tolist()
    [0.25, 0.5]
    """
    grid = np.asarray(orders, dtype=np.float64)
    check_orders(grid)
    return _compose([Repeated(event)], grid)


@lru_cache(maxsize=65536)
def cost_at(event: Event, order: float) -> float:
    """The Rényi cost of one event at one order.

    >>> cost_at(kinds.Gaussian(2.0), 4.0)
    0.5
    """
    return float(rdp(event, [order])[0])


@lru_cache(maxsize=16384)
def _remembered(event: Event) -> Floats:
    """The cost of one event at each of a few orders."""
    return rdp(event, _FEW_ORDERS)


def quick_epsilon(events: Iterable[Repeated], delta: float) -> float:
    """An ε that is proved and at most some tens of percent above the smallest: for readings that must cost nothing.

    Costs of an event at a few orders are remembered, so that another reading with the same events takes microseconds.

    >>> steps = [Repeated(kinds.PoissonGaussian(1.0, 0.005), 10_000)]
    >>> round(quick_epsilon(steps, 1e-5), 1)
    3.1
    """
    check_delta(delta)
    items = composable(tuple(events))
    total = sum((item.times * _remembered(item.event) for item in items), np.zeros(len(_FEW_ORDERS)))
    found = epsilon_at_order(total, np.array(_FEW_ORDERS), delta).min() if items else 0.0
    return max(0.0, float(found))


class Rdp:
    """Adds up Rényi costs and converts them at the best order.

    Without `orders` the best order is searched for among all real orders above 1; with them, only these are used.

    >>> steps = [Repeated(kinds.PoissonGaussian(1.0, 0.005), 10_000)]
    >>> round(Rdp().epsilon(steps, 1e-5), 2)
    3.06
    """

    name: str = "rdp"
    approximate: bool = False

    def __init__(self, orders: Sequence[float] | None = None) -> None:
        self._fixed = orders is not None
        self.orders: Floats = np.asarray(DEFAULT_ORDERS if orders is None else orders, dtype=np.float64)
        check_orders(self.orders)

    def supports(self, event: Event) -> bool:
        """Every kind of event has a proved Rényi cost.

        Args:
            event: One release.

        Returns:
            True for every event of this package.
        """
        return isinstance(event, get_args(Event))

    def curve(self, events: Iterable[Event | Repeated]) -> Floats:
        """The Rényi cost of all events together at each of `self.orders`.

        Args:
            events: What was released, all under one neighbouring relation.

        Returns:
            One cost for each order; infinite where an order proves nothing.

        Raises:
            AccountingError: The events have different relations.
        """
        return _compose(self._items(events), self.orders)

    def epsilon(self, events: Iterable[Event | Repeated], delta: float) -> float:
        """The smallest ε ≥ 0 that some order proves at this δ.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, strictly between 0 and 1.

        Returns:
            ε ≥ 0, an upper bound on the true one; 0 for no events.

        Raises:
            AccountingError: δ is out of range, or the events have different relations.
        """
        return self.best(events, delta).value

    def best(self, events: Iterable[Event | Repeated], delta: float) -> Best:
        """The smallest ε at this δ and the order that proves it.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, strictly between 0 and 1.

        Returns:
            ε as `value`, and its `order`.

        Raises:
            AccountingError: δ is out of range, or the events have different relations.
        """
        check_delta(delta)
        items = self._items(events)
        if not items:
            return Best(0.0, float(self.orders[0]))

        if self._fixed:
            return self._best_of_fixed(lambda orders: epsilon_at_order(_compose(items, orders), orders, delta))
        if not _tells_more_than(items, delta) and self._total_variation(items) <= delta:
            return Best(0.0, _NEXT_TO_ONE)
        log_delta = math.log(delta)
        best = search(
            lambda orders: moment_epsilon(_compose(items, orders), orders, log_delta), scaled=True, whole=_whole(items)
        )
        return Best(max(best.value, 0.0), best.order)

    def delta(self, events: Iterable[Event | Repeated], epsilon: float) -> float:
        """The smallest δ that some order proves at this ε.

        Args:
            events: What was released, all under one neighbouring relation.
            epsilon: ε of the statement, at least 0.

        Returns:
            δ between 0 and 1, an upper bound on the true one.

        Raises:
            AccountingError: ε is negative, or the events have different relations.
        """
        check_epsilon(epsilon)
        items = self._items(events)
        if not items:
            return 0.0
        if self._fixed:
            return math.exp(
                self._best_of_fixed(lambda orders: log_delta_at_order(_compose(items, orders), orders, epsilon)).value
            )
        best = search(
            lambda orders: moment_log_delta(_compose(items, orders), orders, epsilon), scaled=False, whole=_whole(items)
        )
        return min(math.exp(min(best.value, 0.0)), self._total_variation(items))

    def _best_of_fixed(self, objective: Callable[[Floats], Floats]) -> Best:
        values = objective(self.orders)
        index = int(np.argmin(values))
        return Best(float(values[index]), float(self.orders[index]))

    def _total_variation(self, items: tuple[Repeated, ...]) -> float:
        """What the cost next to order 1, nearly the KL divergence, says about δ at every ε."""
        return float(total_variation_bound(_compose(items, np.array([_NEXT_TO_ONE])))[0])

    def _items(self, events: Iterable[Event | Repeated]) -> tuple[Repeated, ...]:
        given = tuple(events)
        for item in given:
            event = item.event if isinstance(item, Repeated) else item
            if not self.supports(event):
                raise AccountingError(f"the Rényi accountant has no proved cost for {event!r}")
        return composable(given)
