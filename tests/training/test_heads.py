"""Several heads: the loss is the sum over heads, each is measured as a model of its own would be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.gradients.conftest import loop
from veil.errors import InputError
from veil.gradients import GradientEngine
from veil.metrics import evaluate
from veil.metrics.errors import ErrorMetrics
from veil.plans.plan import UNTRIED
from veil.problem import Problem
from veil.report.wording import number, percent
from veil.training import Head, Heads

ROWS = 60
GENERATOR = torch.Generator().manual_seed(0)
X, AGES = torch.randn(ROWS, 5, generator=GENERATOR), torch.randn(ROWS, generator=GENERATOR)
KINDS = np.array(["bird", "cat", "dog"])[torch.randint(0, 3, (ROWS,), generator=GENERATOR)]
GROUPS = ["a" if row % 3 else "b" for row in range(ROWS)]
HEADS = Heads({"kind": Head(("dog", "cat", "bird")), "age": Head(weight=0.5)})
PROBLEM = HEADS.problem(X, {"age": AGES, "kind": KINDS}, GROUPS)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind, self.age = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(rows))
        return {"kind": self.kind(hidden), "age": self.age(hidden)}


class Alone(nn.Module):
    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, rows: Tensor) -> Any:
        return self.model(rows)[self.name]


def summed(model: nn.Module, batch: Any) -> Tensor:
    rows, (kinds, ages) = batch[0], batch[1].T
    given = model(rows)
    return F.cross_entropy(given["kind"], kinds.long(), reduction="none") + 0.5 * (given["age"][:, 0] - ages) ** 2


def test_the_gradient_of_a_row_is_that_of_the_sum_over_heads() -> None:
    model, batch = Two(), PROBLEM.batch(np.arange(7))
    found, wanted = GradientEngine(model, HEADS).gradients(batch), loop(model, summed, batch)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


@pytest.mark.parametrize("method", ["dp-sgd", "asc"])
def test_heads_are_trained_privately_and_tried_first(method: str) -> None:
    run = veil.fit(Two(), PROBLEM, loss=HEADS, method=method, epsilon=2.0, steps=4, batch_size=12, seed=1)
    assert run.certificate.private
    assert UNTRIED not in run.certificate.not_covered


def test_each_head_is_measured_as_a_model_of_its_own() -> None:
    model, found = Two(), HEADS.evaluate(Two(), PROBLEM)
    kinds = evaluate(Alone(model, "kind"), Problem.from_arrays(X, KINDS, GROUPS, classes=("dog", "cat", "bird")))
    ages = evaluate(Alone(model, "age"), Problem.from_arrays(X, AGES, GROUPS, task="regression"))
    assert found["kind"].by_group == kinds.by_group
    assert isinstance(found["age"], ErrorMetrics)
    assert isinstance(ages, ErrorMetrics)
    assert math.isclose(
        found["age"].overall.root_mean_squared_error, ages.overall.root_mean_squared_error, rel_tol=1e-6
    )
    assert {name: error.n for name, error in found["age"].errors.items()} == {"a": 40, "b": 20}


def test_a_run_shows_every_head_by_group(tmp_path: Path) -> None:
    settings = {"method": "dp-sgd", "epsilon": 2.0, "steps": 3, "batch_size": 12, "seed": 1}
    run = veil.fit(Two(), PROBLEM, loss=HEADS, evaluation=PROBLEM, out=tmp_path, **settings)
    found = HEADS.evaluate(run.model, PROBLEM)
    assert run.metrics is not None
    # As text: the accuracy of a head of numbers is not a number, which equals nothing.
    shown = {name: str(own.by_group) for name, own in found.items()}
    assert {name: str(own.by_group) for name, own in run.metrics.heads.items()} == shown
    assert run.metrics.by_group == found["kind"].by_group, "the figures of the run are those of the first head"
    stored = json.loads((tmp_path / "metrics.json").read_text())["metrics"]["heads"]
    assert stored == json.loads(json.dumps({name: own.as_json() for name, own in found.items()}))
    assert json.loads((tmp_path / "run.json").read_text())["classes"] == ["dog", "cat", "bird"]
    ages = found["age"]
    assert isinstance(ages, ErrorMetrics)
    card, page = (tmp_path / "MODEL_CARD.md").read_text(), (tmp_path / "report.html").read_text()
    for group in ("a", "b"):
        share = percent(found["kind"].by_group[group].accuracy)
        error = number(ages.errors[group].root_mean_squared_error)
        assert f"| {group} | {' '.join(share.split())} | {error} |" in card
        assert share in page
        assert error in page
    assert "kind: accuracy" in page


def test_rows_of_several_heads_need_their_loss_and_evaluation_rows_their_heads() -> None:
    with pytest.raises(InputError, match="give loss=heads"):
        veil.fit(Two(), PROBLEM, method="dp-sgd", epsilon=1.0, steps=2, batch_size=12)
    other = Heads({"kind": Head(("dog", "cat")), "age": Head()})
    rows = other.problem(X, {"age": AGES, "kind": ["dog", "cat"] * (ROWS // 2)}, GROUPS)
    plain = Problem.from_arrays(X, KINDS, GROUPS)
    assert veil.fit(Two(), rows, loss=other, method="dp-sgd", epsilon=1.0, steps=1, batch_size=12).metrics is None
    with pytest.raises(InputError, match="omit evaluation"):
        veil.fit(Two(), PROBLEM, evaluation=plain, loss=HEADS, method="dp-sgd", epsilon=1.0, steps=2, batch_size=12)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InputError, match='"size" must be among heads and targets'):
        HEADS.problem(X, {"age": AGES, "kind": KINDS, "size": AGES}, GROUPS)
    with pytest.raises(InputError, match='"age" must be among heads and targets'):
        HEADS.problem(X, {"kind": KINDS}, GROUPS)
    with pytest.raises(InputError, match='a target of "kind" is not one of its 3 classes'):
        HEADS.problem(X, {"age": AGES, "kind": ["cow"] * ROWS}, GROUPS)
    with pytest.raises(InputError, match='the targets of "age" are not numbers'):
        HEADS.problem(X, {"age": KINDS, "kind": KINDS}, GROUPS)
    with pytest.raises(InputError, match='no scores for the head "kind"'):
        veil.fit(nn.Linear(5, 3), PROBLEM, loss=HEADS, method="dp-sgd", epsilon=1.0, steps=2, batch_size=12)
    with pytest.raises(InputError, match="at least two heads"):
        Heads({"age": Head()})
