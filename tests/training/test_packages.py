"""Real architectures with tiny random weights: exact like a one-row-at-a-time loop, and trained end to end.

They are those of `python -m benchmarks architectures`. Veil does not need the packages: where they are missing
these tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import veil
from benchmarks._zoo import ARCHITECTURES, TINY, build, rows
from benchmarks.gradients import per_row_loss
from tests.gradients.conftest import loop
from veil.gradients import GradientEngine
from veil.problem import Problem

for package in ("transformers", "peft", "efficientnet_lite_pytorch"):
    pytest.importorskip(package, reason=f"{package} is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 24
GROUPS = ["a" if row % 3 else "b" for row in range(ROWS)]
SETTINGS: dict[str, Any] = {
    "method": "dp-sgd",
    "epsilon": 2.0,
    "steps": 2,
    "batch_size": 8,
    "seed": 3,
    "accountant": "rdp",
}
# One of each kind; `make long` trains all of them.
SHORTLY = ("BERT", "GPT-2, language model", "ViT", "EfficientNet-Lite, fixed BatchNorm", "LoRA", "DoRA", "LSTM tagger")
# How far the gradient of a parameter may be from the loop's, over the largest of the model.
ERROR = {torch.float32: 1e-5, torch.float64: 1e-9}


def problem_of(name: str) -> Problem:
    inputs, targets = rows(name, TINY, ROWS)
    classes = range(TINY.words) if ARCHITECTURES[name][1] == "words" else None
    return Problem.from_arrays(inputs, targets, GROUPS, classes=classes)


@pytest.mark.parametrize("kind", ERROR, ids=str)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_of_a_real_architecture_are_those_of_a_loop_over_rows(name: str, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    model, (inputs, targets) = build(name, TINY).to(kind), rows(name, TINY, 4)
    batch = (inputs.to(kind) if inputs.is_floating_point() else inputs, targets)
    wanted, found = loop(model, per_row_loss, batch), GradientEngine(model, per_row_loss).gradients(batch)
    size = max(float(values.abs().max()) for values in wanted.values())
    assert size > 1e-3, "gradients that vanish would prove nothing"
    for part, values in found.items():
        assert float((values - wanted[part]).abs().max()) <= ERROR[kind] * size, part


def _shortly(name: str) -> Any:
    return name if name in SHORTLY else pytest.param(name, marks=pytest.mark.long)


@pytest.mark.parametrize("name", [_shortly(name) for name in ARCHITECTURES])
def test_a_real_architecture_trains_by_fit_and_by_a_loop_of_ones_own(name: str) -> None:
    problem = problem_of(name)
    torch.manual_seed(0)
    model = build(name, TINY)
    run = veil.fit(model, problem, loss=F.cross_entropy, **SETTINGS)
    assert not any("could not be tried" in sentence for sentence in run.certificate.not_covered)
    torch.manual_seed(0)
    own = build(name, TINY)
    session = veil.session(own, problem, loss=F.cross_entropy, **SETTINGS)
    for inputs, targets in session:
        session.step(per_row_loss(own, (inputs, targets)) if len(targets) else torch.zeros(0))
    assert session.finish().certificate.epsilon == run.certificate.epsilon
    for (part, one), other in zip(model.named_parameters(), own.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5), f"fit and a session differ in {part}"


def bert() -> Any:
    return build("BERT", TINY).network


TOKENS, CLASSES = rows("BERT", TINY, ROWS)


def text() -> Problem:
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    return Problem.from_arrays(inputs, CLASSES, GROUPS)


def test_a_model_output_is_evaluated_and_read_by_a_loss() -> None:
    run = veil.fit(bert(), text(), loss=F.cross_entropy, evaluation=text(), **SETTINGS)
    assert run.metrics is not None


def test_a_table_of_datasets_trains() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    sentences = [TOKENS[row, : 2 + row % 5].tolist() for row in range(ROWS)]
    columns = {"input_ids": sentences, "label": CLASSES.tolist(), "sex": GROUPS, "text": ["words"] * ROWS}
    table = datasets.Dataset(datasets.table.InMemoryTable.from_pydict(columns), fingerprint="test")
    problem = Problem.from_dataset(table, "sex", inputs=["input_ids"], pad=True)
    assert veil.fit(bert(), problem, evaluation=problem, **SETTINGS).metrics is not None


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing_but_memory(reentrant: bool) -> None:
    def trained(checkpointing: bool) -> Any:
        torch.manual_seed(0)
        model = bert()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        veil.fit(model, text(), **SETTINGS)
        return model

    for one, other in zip(trained(True).parameters(), trained(False).parameters(), strict=True):
        assert torch.equal(one, other)
