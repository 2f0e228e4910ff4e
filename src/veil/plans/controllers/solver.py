"""The solver protocol: trains a linear model instead of the loop; and the placeholder for its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from veil.accounting import Ledger
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.plans.controllers import Constant, State
from veil.problem import Problem

Report = Callable[[int, Mapping[str, NDArray[np.float64]]], None]


class Solver(Protocol):
    """Trains a model as a whole. It reserves its cost before it reads a row, and reports released values only."""

    def check(self, model: nn.Module) -> None:
        """Reject a model that the guarantee does not cover; no row is read."""
        ...

    def solve(self, model: nn.Module, problem: Problem, seed: Seed, ledger: Ledger, report: Report) -> None:
        """Reserve, read rows, and leave the released weights in the model; `report(step, state)` tells of a step."""
        ...


@dataclass(frozen=True)
class Described(Constant):
    """Placeholder in a plan with a solver instead of the loop: its release states the cost and is never made."""

    method: str

    def steady(self, state: State, step: int) -> int:
        """The loop asks this before it reserves: there is no loop here."""
        raise InputError(f"{self.method} does not train in batches: use veil.fit")
