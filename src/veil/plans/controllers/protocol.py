"""The controller protocol: public state in, the next release out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from veil.accounting import Relation
from veil.releases import GradientRelease, SideRelease
from veil.sampling.draws import Draw

State = Mapping[str, NDArray[np.float64]]


class Controller(Protocol):
    """Decides each step from public constants and released values only.

    `State` holds named arrays of public or released numbers: it goes into the history and the checkpoint as it is.
    """

    def start(self) -> State:
        """The state before the first step."""
        ...

    def release(self, state: State, step: int) -> GradientRelease:
        """What the step will do."""
        ...

    def steady(self, state: State, step: int) -> int:
        """For how many steps from here the cost stays the same (so that they can be reserved in one line)."""
        ...

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """The state after the statistics that came with the step's gradient."""
        ...

    def side_release(self, state: State, step: int) -> SideRelease | None:
        """A further release after this step, or None."""
        ...

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """The state after a side release."""
        ...


def first_release(controller: Controller) -> GradientRelease:
    """What the first step will do."""
    return controller.release(controller.start(), 0)


def loudest_release(controller: Controller) -> GradientRelease:
    """The release whose updates have the most noise, where a controller says in which state that is; else the first."""
    state: State = getattr(controller, "loudest", controller.start)()
    return controller.release(state, 0)


@dataclass(frozen=True)
class Steady:
    """Every step costs the same and there is no side release; subclasses may move the bound on the way."""

    def start(self) -> State:
        """Nothing to remember."""
        return {}

    def steady(self, state: State, step: int) -> int:
        """For ever."""
        return 1 << 30

    def observe(self, state: State, step: int, statistics: Mapping[str, NDArray[np.float64]]) -> State:
        """Unmoved."""
        return state

    def side_release(self, state: State, step: int) -> SideRelease | None:
        """None."""
        return None

    def hear(self, state: State, step: int, values: NDArray[np.float64]) -> State:
        """Unmoved."""
        return state


@dataclass(frozen=True)
class Counting(Steady):
    """A noisy count comes with every gradient, from the same rows, and moves what the next step does."""

    draw: Draw
    kappa: float
    count_sigma: float
    batch: float
    relation: Relation


class Latest:
    """Caches the last release: most steps use the same one again."""

    def __init__(self) -> None:
        self._made: dict[tuple[float, ...], GradientRelease] = {}

    def of(self, key: tuple[float, ...], make: Callable[[], GradientRelease]) -> GradientRelease:
        """The release that belongs to a key."""
        if key not in self._made:
            self._made = {key: make()}
        return self._made[key]


@dataclass(frozen=True)
class Constant(Steady):
    """Every step is the same: nothing is adapted.

    Args:
        gradient: What every step releases.

    >>> Constant("what every step releases").release({}, 7)
    'what every step releases'
    """

    gradient: GradientRelease

    def release(self, state: State, step: int) -> GradientRelease:
        """Always the same."""
        return self.gradient
