"""A program that uses Veil with types: `make type` checks it as a user's type checker would. It is never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from torch import nn

import veil
from veil.accounting import Certificate, Pld, PoissonGaussian, Repeated
from veil.metrics import GroupMetrics


def train(inputs: list[list[float]], targets: list[int], sex: list[str]) -> float:
    problem = veil.Problem.from_arrays(inputs, targets, sex)
    assert_type(problem, veil.Problem)
    run = veil.fit(nn.Linear(2, 2), problem, method="asc", epsilon=1.0, evaluation=problem)
    assert_type(run, veil.Run)
    assert_type(run.certificate, Certificate)
    assert_type(run.certificate.epsilon, float | None)
    assert_type(run.metrics, GroupMetrics | None)
    assert_type(run.report("report.html"), Path)
    return float("inf") if run.certificate.epsilon is None else run.certificate.epsilon


def account() -> float:
    cost = Pld().epsilon([Repeated(PoissonGaussian(noise_multiplier=1.0, rate=0.01), 100)], delta=1e-5)
    assert_type(cost, float)
    return cost
