"""Measuring: figures of a run's model on held-out rows, by a noisy release; or exactly, if requested."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pandas as pd
from torch import nn

from veil.accounting import AccountingError, Ledger, Relation, Terms
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.metrics import evaluate
from veil.metrics.errors import noisy_errors
from veil.metrics.noisy_confusion import DISJOINT, DISJOINT_ERRORS, DISJOINT_PEOPLE, MEASURED, noisy_metrics
from veil.noise import GaussianNoise
from veil.plans import Plan
from veil.problem import Problem, PublicFacts
from veil.releases import Allowance
from veil.tables.encoding import Encoding
from veil.tables.identity import measured_identity
from veil.tables.splitting import FEW_ROWS
from veil.tables.table import Columns, table_problem
from veil.training.fitting import Measured
from veil.training.run_folder import EVALUATION, RunFolder


def held_out_problem(
    held: pd.DataFrame, table: pd.DataFrame, encoding: Encoding, columns: Columns, problem: Problem
) -> Problem | None:
    """Held-out rows; None where there are none and everybody may know that."""
    facts = problem.public
    if facts.sizes == "counted" or (facts.sizes == "declared" and facts.rows < FEW_ROWS):
        return None if held.empty else table_problem(held, encoding, columns, facts)
    # Which groups are among these rows, and whether there are any, is not public: all groups get noisy counts.
    sizes = dict(zip(facts.groups, facts.group_sizes, strict=True))
    if held.empty:
        return table_problem(table.iloc[:1], encoding, columns, facts, group_sizes=sizes).without(0)
    return table_problem(held, encoding, columns, facts, group_sizes=sizes)


def expected_rows(facts: PublicFacts, measured: float, held_out: float) -> dict[str, float]:
    """How many rows of each group are measured in expectation, by the sizes that are public or were released.

    `measured` and `held_out` are shares of all rows: those that are measured, and all that are not trained on.
    """
    # Declared sizes are of the whole table, all others of the rows to train on.
    share = measured if facts.sizes == "declared" else measured / (1 - held_out)
    return {
        name: size * share / facts.rows_together for name, size in zip(facts.groups, facts.group_sizes, strict=True)
    }


LARGER = (
    "ε by group and by owner is the larger of two: that of what was trained on, and that of what was held out and "
    "measured, which is {:.3g} whatever its group."
)


@dataclass(frozen=True)
class HeldOutFigures:
    """Figures on held-out rows, by a noisy release: also where the method itself is not private.

    The rows were held out for `relation`; `allowed` is the smallest ε that one of them allows. With `scores` the
    release has counts by probability too. `expected` is what `expected_rows` says of each group.
    """

    rows: Problem
    seed: Seed
    relation: Relation | None
    folder: RunFolder | None = None
    allowed: float = math.inf
    scores: bool = False
    expected: Mapping[str, float] | None = None

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """Measure the model of a plan that has been carried out."""
        if plan.private and plan.relation is not self.relation:
            raise AccountingError(f"rows were held out for {self.relation}, but {plan.method} has {plan.relation}")
        require(
            not MEASURED & set(plan.assumptions),
            "Cannot measure: the held-out rows were already measured, for this run or the one it continues, and their "
            "budget is spent.",
        )
        folder = self.folder
        if folder is not None:
            folder.hold_to("measured", measured_identity(model, self.seed), before=EVALUATION)
        opened = _Opened(Ledger if folder is None else partial(folder.ledger, name=EVALUATION))
        allowance = Allowance(
            epsilon=min((self.allowed, plan.settings.epsilon, *(plan.facts.budgets or ()))),
            delta=plan.delta,
            relation=plan.relation or Relation.ADD_REMOVE,
            # of each held-out person one row is measured, however many count in training
            accountant=plan.settings.accountant_for(self.rows.public),
            noise=GaussianNoise(self.seed, secure=plan.settings.secure_noise),
            open_ledger=opened.open,
        )
        numbers = self.rows.targets.is_floating_point()
        said = DISJOINT_ERRORS if numbers else DISJOINT
        release = noisy_errors if numbers else partial(noisy_metrics, scores=self.scores)
        metrics = release(model, self.rows, allowance, plan.facts.groups, expected=self.expected)
        if plan.relation is None:
            return Measured(metrics)
        people = plan.facts.unit == "person"
        found = [DISJOINT_PEOPLE if people else said[Relation(plan.relation)]]
        if len(set(plan.rules or ())) > 1:
            found.append(LARGER.format(allowance.epsilon))
        return Measured(metrics, assumptions=tuple(found), held_out={EVALUATION: opened.ledgers[0]})


@dataclass(frozen=True)
class _Opened:
    """Remembers the ledger that a release opens."""

    make: Callable[[Terms], Ledger]
    ledgers: list[Ledger] = field(default_factory=list)

    def open(self, terms: Terms) -> Ledger:
        self.ledgers.append(self.make(terms))
        return self.ledgers[-1]


SHOWN = "Exact figures on the training rows, requested with --show-private. Do not publish this folder."


@dataclass(frozen=True)
class ExactFigures:
    """Exact figures on the training rows, on request and marked as not covered."""

    rows: Problem

    def __call__(self, model: nn.Module, plan: Plan) -> Measured:
        """Measure the model on rows that it was trained on."""
        shown = evaluate(model, self.rows, plan.facts.groups).as_json()
        numbers = self.rows.targets.is_floating_point()
        of_classes = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "loss")
        of_numbers = ("worst_group_error", "average_group_error", "root_mean_squared_error", "r2")
        found = {"private": True, **{name: shown.get(name) for name in (of_numbers if numbers else of_classes)}}
        figure, word = ("root_mean_squared_error", "error") if numbers else ("accuracy", "accuracy")
        found |= {f"{word} of {name}": score[figure] for name, score in shown["by_group"].items()}
        return Measured(findings={"Training rows": found}, not_covered=(SHOWN,))
