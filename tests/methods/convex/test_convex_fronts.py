"""The convex methods through every door: fit, the command line, the estimator, folders and reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import veil
from tests.methods.convex.convex_cases import NAMES, linear, made_problem
from veil.accounting import Ledger
from veil.accounting.verify import verify
from veil.cli.app import app
from veil.errors import InputError
from veil.estimators import FairPrivateClassifier, FairPrivateRegressor
from veil.problem import Problem

EASY: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4, "seed": 3}


def steps_of(name: str) -> dict[str, Any]:
    return {"steps": 15} if name.startswith("noisy") else {}


def easy_problem(rows: int = 1200) -> Problem:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 3))
    groups = np.where(np.arange(rows) % 3 == 0, "small", "large")
    return Problem.from_arrays(x, (x[:, 0] > 0).astype(int), groups)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", NAMES)
def test_an_easy_problem_is_learned_by_both_groups(name: str) -> None:
    problem = easy_problem(6000)
    settings = {"steps": 60} if name.startswith("noisy") else {}
    run = veil.fit(linear(3), problem, method=name, evaluation=problem, **{**EASY, "epsilon": 8.0}, **settings)
    assert run.metrics is not None
    assert run.metrics.worst_group_accuracy > 0.8
    assert run.certificate.epsilon == pytest.approx(8.0, rel=0.02)
    assert "expected_excess_risk" in run.plan.details
    assert len(run.history) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_is_not_linear_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(InputError, match='linear model: choose the model "logistic"'):
        veil.fit(model, easy_problem(60), method=name, out=tmp_path / "run", **EASY)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_weights_and_another_does_not(name: str) -> None:
    models = [linear() for _ in range(3)]
    for model, seed in zip(models, (3, 3, 4), strict=True):
        veil.fit(model, made_problem(), method=name, **{**EASY, "seed": seed}, **steps_of(name))
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert not torch.equal(weights(models[0]), weights(models[2]))


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_a_folder_whose_certificate_verifies_and_whose_report_shows_the_risk(
    name: str, tmp_path: Path
) -> None:
    run = veil.fit(linear(), made_problem(), method=name, out=tmp_path / "run", **EASY, **steps_of(name))
    assert verify(tmp_path / "run" / "certificate.json").holds
    ledger = Ledger.open(tmp_path / "run" / "ledger.jsonl")
    for cell, rule in enumerate(run.plan.rules or ()):
        assert set(ledger.spent(cell)) == set(rule.tokens)  # type: ignore[attr-defined]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Expected excess risk" in page


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("secure", [False, True])
def test_three_classes_and_secure_noise(name: str, secure: bool) -> None:
    problem = made_problem(classes=3, owners=False)
    model = linear(4, 3)
    veil.fit(model, problem, method=name, secure_noise=secure, **EASY, **steps_of(name))
    assert torch.isfinite(weights(model)).all()
    assert float(weights(model).double().norm()) <= 5.0 * (1 + 1e-5), "the weights left their ball"


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_learned_with_the_squared_loss(name: str) -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (900, 2))
    y = np.clip(x[:, 0] * 0.8, -1, 1)
    problem = Problem.from_arrays(x, y, ["a", "b", "b"] * 300, task="regression")
    model = linear(2, 1)
    run = veil.fit(model, problem, method=veil.method(name, weight_radius=1.0), **EASY, **steps_of(name))
    assert run.plan.details["loss"] == "squared"
    assert torch.isfinite(weights(model)).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_group_is_an_ordinary_convex_problem(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((200, 2))
    problem = Problem.from_arrays(x, (x[:, 0] > 0).astype(int))
    run = veil.fit(linear(2), problem, method=name, **EASY, **steps_of(name))
    assert run.certificate.epsilon == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_the_estimator_takes_the_method_by_name(name: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((400, 3))
    model = FairPrivateClassifier(
        method=name,
        model="logistic",
        epsilon=8.0,
        random_state=0,
        method_options={"batch": 50} if name.startswith("noisy") else None,
    )
    model.fit(X, (X[:, 0] > 0).astype(int), sensitive_features=(X[:, 1] > 0).astype(int))
    assert model.predict(X).shape == (400,)
    assert model.certificate_.relation == "replace-one"


def test_the_regressor_takes_a_convex_method() -> None:
    X = np.random.default_rng(0).standard_normal((300, 2))
    model = FairPrivateRegressor(method="phased-erm", model="logistic", epsilon=8.0, random_state=0)
    assert np.isfinite(model.fit(X, X[:, 0]).predict(X)).all()


@pytest.mark.parametrize("name", ["phased-erm", "dp-oco"])
def test_the_command_line_trains_and_shows_the_plan(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = pd.DataFrame({"a": generator.standard_normal(300), "g": np.where(np.arange(300) % 3, "x", "y")})
    table["t"] = np.where(table["a"] > 0, "yes", "no")
    path = tmp_path / "people.csv"
    table.to_csv(path, index=False)
    asked = ["train", str(path), "--target", "t", "--group", "g", "--method", name, "--model", "logistic"]
    asked += ["--epsilon", "4", "--seed", "1", "--out", str(tmp_path / "run"), "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "certificate.json").exists()
    dry = CliRunner().invoke(app, [*asked[:-3], "--dry-run", "--json"])
    assert dry.exit_code == 0, dry.output
    assert "expected_excess_risk" in dry.output


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_of_ones_own_is_refused(name: str) -> None:
    session = veil.session(linear(), made_problem(), method=name, **EASY, **steps_of(name))
    with pytest.raises(InputError, match=r"use veil\.fit"):
        next(iter(session))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("phased-erm", {"weight_radius": 0.0}, "weight_radius is 0.0"),
        ("phased-erm", {"phases": 1000}, "phases is 1000"),
        ("phased-erm", {"loss": "cubic"}, 'loss is "cubic"'),
        ("phased-erm", {"schedule": "x"}, "bound or paper"),
        ("noisy-sgd-mgr", {"release": "gumbel"}, "gaussian or laplace"),
        ("noisy-sgd-ags", {"sizes": "all"}, "own or n-min"),
        ("noisy-sgd-ags", {"share": 1.5}, "share is 1.5"),
        ("noisy-sgd-mgr", {"neighbours": "x"}, 'neighbours is "x"'),
        ("dp-oco", {"rows_per_round": 500}, "rows_per_round is 500"),
        ("dp-oco", {"trees": 0}, "trees is 0"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        veil.fit(linear(), made_problem(), method=veil.method(name, **options), **EASY)


def test_averages_and_filters_of_the_loop_are_refused() -> None:
    for settings in ({"ema": 0.9}, {"noise_filter": "disk"}):
        with pytest.raises(InputError, match="phased-erm"):
            veil.fit(linear(), made_problem(), method="phased-erm", **EASY, **settings)  # type: ignore[arg-type]
