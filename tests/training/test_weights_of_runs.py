"""A certificate speaks of the weights that its own run made: others that were put in, or come out, are noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import veil
from veil.errors import InputError
from veil.plans.plan import ROW_BY_ROW, SEED_GIVEN, START, TRAINED
from veil.training import Callback, StepReport


@pytest.fixture
def problem() -> veil.Problem:
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    return veil.Problem.from_arrays(rows, (rows[:, 0] > 0).long(), ["a", "b"] * 100)


def fit(model: nn.Module, problem: veil.Problem, method: str = "dp-sgd", **more: object) -> veil.Run:
    return veil.fit(model, problem, method=method, epsilon=1.0, steps=3, batch_size=40, **more)


class Interrupted(Callback):
    def on_step(self, report: StepReport) -> None:
        if report.step == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("first", ["dp-sgd", "erm"])
def test_a_certificate_says_that_its_model_was_trained_before(problem: veil.Problem, first: str) -> None:
    model = nn.Linear(3, 2)
    assert START in fit(nn.Linear(3, 2), problem).certificate.assumptions
    assert TRAINED not in fit(model, problem, first).certificate.not_covered
    copied = nn.Linear(3, 2)
    copied.load_state_dict(model.state_dict())
    assert TRAINED in fit(copied, problem).certificate.not_covered
    assert TRAINED in fit(model, problem).certificate.not_covered


def test_a_certificate_says_that_its_model_comes_from_an_interrupted_training(problem: veil.Problem) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(KeyboardInterrupt):
        fit(model, problem, callbacks=[Interrupted()])
    assert TRAINED in fit(model, problem).certificate.not_covered


def test_a_run_that_is_resumed_was_not_trained_before(problem: veil.Problem, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(KeyboardInterrupt):
        fit(model, problem, callbacks=[Interrupted()], out=tmp_path / "run")
    assert TRAINED not in fit(model, problem, out=tmp_path / "run", resume=True).certificate.not_covered


def test_a_model_that_was_changed_after_its_run_is_not_saved_under_its_certificate(
    problem: veil.Problem, tmp_path: Path
) -> None:
    model = nn.Linear(3, 2)
    run = fit(model, problem)
    run.save(tmp_path / "as it was")
    with torch.no_grad():
        model.weight += 1.0
    with pytest.raises(InputError, match="changed after the run"):
        run.save(tmp_path / "changed")
    assert not (tmp_path / "changed").exists()


def test_a_certificate_says_that_two_runs_with_one_seed_show_what_differs(problem: veil.Problem) -> None:
    weights = {}
    for without in (None, 0):
        model = nn.Linear(3, 2, bias=False)
        nn.init.zeros_(model.weight)
        rows = problem if without is None else problem.without(without)
        run = veil.fit(model, rows, epsilon=1.0, steps=1, batch_size=200, learning_rate=1.0, seed=1)
        weights[without] = model.weight.detach().clone()
        assert SEED_GIVEN in run.certificate.assumptions
    # Noise is gone from the difference: it is what one row gave, no more than its bound over the batch.
    assert 0 < (weights[None] - weights[0]).norm() <= 1.0 / 200 + 1e-6
    assert "two runs with the same seed" in SEED_GIVEN


def test_a_certificate_says_that_scaling_by_all_rows_is_not_covered(problem: veil.Problem) -> None:
    assert ROW_BY_ROW in fit(nn.Linear(3, 2), problem).certificate.assumptions
