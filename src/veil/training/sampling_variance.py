"""Sampling variance of a group-weighted update (Theorem 2 of the ASC paper): the variance caused by batches alone.

Not private: the estimator looks at exact gradients of private rows, and a run that uses it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from veil.gradients import GradientEngine
from veil.plans import LossFunction, Plan
from veil.problem import Problem
from veil.training.callbacks import Callback, StepReport

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SamplingVariances:
    """E‖U − U_DRO‖² of three ways to draw a batch of the same size with the same group weights."""

    asc: float
    azb: float
    azb_prop: float


def sampling_variances(
    means: Floats, within: Floats, weights: Floats, sizes: Floats, batch: float
) -> SamplingVariances:
    """Equations 9 to 11 from each group's mean gradient (G, p) and within-group variance (G).

    ASC:      1/M · Σ λ_g·(n_g − m_g)/(n_g − 1)·Var_g,                    m_g = M·λ_g
    aZB:      1/M · Σ λ_g·(n_g − M)/(n_g − 1)·Var_g + Σ λ_g·‖U_g − U‖²
    aZB-prop: Σ λ_g/m_g·(n_g − m_g)/(n_g − 1)·Var_g + Σ λ_g·‖U_g − U‖²,   m_g = M·n_g/n

    The paper writes m_g for both; for aZB-prop it is the fixed batch of group g, in proportion to its size.
    """
    target = weights @ means
    between = float(weights @ np.square(means - target).sum(axis=1))

    def spread(rows: Floats) -> Floats:
        """Var_g of a mean of `rows` rows drawn without replacement, times the rows."""
        return np.asarray(np.maximum(sizes - rows, 0.0) / np.maximum(sizes - 1, 1.0) * within)

    rows = batch * weights
    fixed = batch * sizes / sizes.sum()
    return SamplingVariances(
        asc=float(weights @ spread(rows)) / batch,
        azb=float(weights @ spread(np.full(len(sizes), batch))) / batch + between,
        azb_prop=float(weights @ (spread(fixed) / fixed)) + between,
    )


class SamplingVariance(Callback):
    """Every `every` steps, estimate the three variances from fresh rows of each group. Not private."""

    private = True

    def __init__(self, problem: Problem, loss: LossFunction, every: int = 10, rows: int = 100, seed: int = 0) -> None:
        self._problem, self._loss, self._every, self._rows = problem, loss, every, rows
        self._generator = np.random.default_rng(seed)
        self._batch = 1.0
        self.records: list[dict[str, float]] = []

    def on_start(self, plan: Plan) -> None:
        """Remember the expected batch."""
        self._batch = float(plan.details.get("batch", plan.settings.batch_size))

    def on_step(self, report: StepReport) -> None:
        """Estimate, at the group weights that the run has now."""
        if report.step % self._every:
            return
        groups = len(report.plan.facts.groups)
        weights = np.asarray(report.state.get("weights", np.full(groups, 1.0 / groups)), dtype=np.float64)
        means, within = self._moments(GradientEngine(report.model, self._loss), groups)
        sizes = np.array(report.plan.facts.group_sizes, dtype=np.float64)
        found = sampling_variances(means, within, weights, sizes, self._batch)
        self.records.append({"step": report.step, "asc": found.asc, "azb": found.azb, "azb_prop": found.azb_prop})

    def findings(self) -> Mapping[str, Any]:
        """The records, marked as not covered."""
        return {"private": True, "records": self.records}

    def _moments(self, engine: GradientEngine, groups: int) -> tuple[Floats, Floats]:
        means, within = [], []
        for group in range(groups):
            members = np.flatnonzero((self._problem.group_of == group) & self._problem.present)
            chosen = self._generator.choice(members, size=min(self._rows, len(members)), replace=False)
            rows = engine.gradients(self._problem.batch(np.sort(chosen)))
            matrix = torch.cat([value.flatten(1) for value in rows.values()], dim=1).double().numpy()
            means.append(matrix.mean(axis=0))
            within.append(float(matrix.var(axis=0, ddof=1).sum()) if len(matrix) > 1 else 0.0)
        return np.array(means), np.array(within)
