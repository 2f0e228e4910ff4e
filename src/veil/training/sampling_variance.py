"""Sampling variance of a group-weighted update (Theorem 2 of the ASC paper): the variance caused by batches alone.

Beside it what the theorem leaves out: clipping. The expected clipped update is compared with the update of the
objective Σ λ_g·L_g that the group weights stand for.

Not private: the estimator looks at exact gradients of private rows, and a run that uses it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from veil.bounding import Bound
from veil.gradients import GradientEngine, PerRow
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


@dataclass(frozen=True, slots=True)
class GroupMoments:
    """Each group's mean gradient (G, p) and within-group variance (G), from `rows` of each group's rows (G).

    `within` has the divisor n_g, as the formulas have it. `clipped` is the mean of the bounded gradients (G, p).
    """

    means: Floats
    within: Floats
    rows: Floats
    clipped: Floats | None = None


def sampling_variances(moments: GroupMoments, weights: Floats, sizes: Floats, batch: float) -> SamplingVariances:
    """Equations 9 to 11 from each group's mean gradient (G, p) and within-group variance (G).

    ASC:      1/M · Σ λ_g·(n_g − m_g)/(n_g − 1)·Var_g,                    m_g = M·λ_g
    aZB:      1/M · Σ λ_g·(n_g − M)/(n_g − 1)·Var_g + Σ λ_g·‖U_g − U‖²
    aZB-prop: Σ λ_g/m_g·(n_g − m_g)/(n_g − 1)·Var_g + Σ λ_g·‖U_g − U‖²,   m_g = M·n_g/n

    The paper writes m_g for both; for aZB-prop it is the fixed batch of group g, in proportion to its size. Means of
    r_g rows waver by v_g = Var_g/r_g·(n_g − r_g)/(n_g − 1), which makes groups look further apart than they are, by
    Σ λ_g·(1 − λ_g)·v_g: that is taken off.
    """
    means, within, seen = moments.means, moments.within, moments.rows
    target = weights @ means
    wavering = within / seen * np.maximum(sizes - seen, 0.0) / np.maximum(sizes - 1, 1.0)
    between = float(weights @ np.square(means - target).sum(axis=1) - (weights * (1 - weights)) @ wavering)

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


def clipping_bias(moments: GroupMoments, weights: Floats, drawn: Floats) -> tuple[float, float]:
    """The cosine and the ratio of lengths of the clipped update to that of the objective.

    `weights` are those of the objective, `drawn` the shares of the groups in a batch. A cosine far from 1 says that
    clipping made another objective of it: lower the bound of groups that are too loud (`power`) or raise `clip`.
    """
    assert moments.clipped is not None, "moments of bounded gradients are needed"
    meant, made = weights @ moments.means, drawn @ moments.clipped
    lengths = float(np.linalg.norm(meant)), float(np.linalg.norm(made))
    return float(meant @ made) / max(lengths[0] * lengths[1], 1e-300), lengths[1] / max(lengths[0], 1e-300)


class SamplingVariance(Callback):
    """Every `every` steps, estimate the variances of three ways to draw a batch, and the bias of clipping. Not private.

    `problem` has the rows, of which `rows` of each group are drawn anew each time with `seed`; `loss` is that of the
    run. The run's findings have the records, marked as not covered by the certificate.

    >>> from veil.problem import Problem
    >>> from veil.training.losses import row_losses
    >>> SamplingVariance(Problem.from_arrays([[0.0], [1.0]], [0, 1]), row_losses, every=5).records
    []
    """

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
        bound = report.plan.controller.release(report.state, report.step).bound
        moments = self._moments(GradientEngine(report.model, self._loss), groups, bound)
        sizes = np.array(report.plan.facts.group_sizes, dtype=np.float64)
        found = sampling_variances(moments, weights, sizes, self._batch)
        drawn = weights if "weights" in report.state else sizes / sizes.sum()
        if "cell_rows" in report.state:
            group_of = [cell.group for cell in report.plan.facts.cells]
            drawn = np.bincount(group_of, report.state["cell_rows"], groups) / self._batch
        cosine, length = clipping_bias(moments, weights, drawn)
        record = {"asc": found.asc, "azb": found.azb, "azb_prop": found.azb_prop}
        self.records.append({"step": report.step, **record, "clipped_cosine": cosine, "clipped_length": length})

    def findings(self) -> Mapping[str, Any]:
        """The records, marked as not covered."""
        return {"private": True, "records": self.records}

    def _moments(self, engine: GradientEngine, groups: int, bound: Bound) -> GroupMoments:
        means, within, seen, clipped = [], [], [], []
        for group in range(groups):
            members = np.flatnonzero((self._problem.group_of == group) & self._problem.present)
            chosen = np.sort(self._generator.choice(members, size=min(self._rows, len(members)), replace=False))
            rows = engine.gradients(self._problem.batch(chosen))
            matrix = torch.cat([value.flatten(1) for value in rows.values()], dim=1).double()
            norms = torch.linalg.vector_norm(matrix, dim=1)
            per_row = PerRow(torch.zeros_like(norms), norms, torch.isfinite(norms))
            bounded = bound.weights(per_row, torch.from_numpy(self._problem.cell_of[chosen]))[:, None] * matrix
            of_all = (len(members) - 1) / len(members)
            means.append(matrix.mean(dim=0).numpy())
            within.append(float(matrix.var(dim=0).sum()) * of_all if len(matrix) > 1 else 0.0)
            seen.append(float(len(chosen)))
            clipped.append(bounded.mean(dim=0).numpy())
        return GroupMoments(np.array(means), np.array(within), np.array(seen), np.array(clipped))
