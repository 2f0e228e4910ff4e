"""The Gaussian-privacy accountant: a central-limit approximation, for comparison with papers that report it.

It under-reports: at rate 0.001, noise multiplier 0.6, 1000 steps and δ = 1e-5 it says ε = 0.43 where the exact privacy
loss says 1.43. It must never reach a certificate; `approximate` is True so that nothing takes it for a proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from veil.accounting import events as kinds
from veil.accounting.conversion import check_delta, check_epsilon, gaussian_delta, gaussian_epsilon
from veil.accounting.events import AccountingError, Event, Relation, Repeated, composable


def _squared_mu(event: Event) -> float:
    """μ² of one event: exact for Gaussians, the variance of the privacy loss in the limit for sampled ones."""
    match event:
        case kinds.Gaussian():
            return (event.reach / event.noise_multiplier) ** 2
        case kinds.Tree():
            return _squared_mu(event.as_gaussian())
        case kinds.PoissonGaussian(noise_multiplier=noise, rate=rate, relation=relation):
            if rate in (0.0, 1.0):
                return rate * _squared_mu(kinds.Gaussian(noise, relation))
            inverse = noise**-2
            if inverse > 700:
                return math.inf
            if relation is Relation.ADD_REMOVE:
                return rate**2 * math.expm1(inverse)
            return 4 * rate**2 * math.sinh(inverse)
        case _:
            raise AccountingError(f"the Gaussian-privacy accountant does not support {event!r}")


class Gdp:
    """Adds up μ² and reads (ε, δ) off the Gaussian curve. An approximation that can be far too low.

    A Poisson-sampled Gaussian over T steps gets μ = q·√(T·(e^(1/κ²) − 1)), the limit for many steps with q·√T fixed
    (Dong, Roth and Su 2022; Bu et al. 2020); under replace-one μ = 2q·√(T·sinh(1/κ²)) by the same limit.

    >>> round(Gdp().epsilon([Repeated(kinds.PoissonGaussian(0.6, 0.001), 1000)], 1e-5), 2)
    0.43
    """

    name: str = "gdp"
    approximate: bool = True

    def supports(self, event: Event) -> bool:
        """Gaussians, trees of them, and Poisson-sampled ones.

        Args:
            event: One release.

        Returns:
            True if the event has a μ.
        """
        return isinstance(event, kinds.Gaussian | kinds.PoissonGaussian | kinds.Tree)

    def mu(self, events: Iterable[Event | Repeated]) -> float:
        """The μ of all events together.

        Args:
            events: What was released, all under one neighbouring relation.

        Returns:
            μ ≥ 0; 0 for no events.

        Raises:
            AccountingError: An event is not supported, or the events have different relations.
        """
        return math.sqrt(math.fsum(item.times * _squared_mu(item.event) for item in composable(events)))

    def epsilon(self, events: Iterable[Event | Repeated], delta: float) -> float:
        """ε at δ of the limiting Gaussian: not a proof.

        Args:
            events: What was released, all under one neighbouring relation.
            delta: δ of the statement, strictly between 0 and 1.

        Returns:
            An approximation of ε, which may be below the true one.

        Raises:
            AccountingError: δ is out of range, or an event is not supported.
        """
        check_delta(delta)
        return gaussian_epsilon(self.mu(events), delta)

    def delta(self, events: Iterable[Event | Repeated], epsilon: float) -> float:
        """δ at ε of the limiting Gaussian: not a proof.

        Args:
            events: What was released, all under one neighbouring relation.
            epsilon: ε of the statement, at least 0.

        Returns:
            An approximation of δ, which may be below the true one.

        Raises:
            AccountingError: ε is negative, or an event is not supported.
        """
        check_epsilon(epsilon)
        return gaussian_delta(self.mu(events), epsilon)
