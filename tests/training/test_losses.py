"""Losses in every form that people give them: each becomes one value per row, or is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.training.small_models import WORDS, Encoder, Output
from veil.errors import InputError
from veil.gradients import GradientError
from veil.problem import Problem
from veil.training.losses import as_row_losses, row_losses

ROWS = 40
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 3, "batch_size": 10, "seed": 3}
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 5, generator=GENERATOR)
Y = torch.randint(0, 3, (ROWS,), generator=GENERATOR)
TOKENS = torch.randint(1, WORDS, (ROWS, 6), generator=GENERATOR)
TAGS = torch.where(torch.rand(ROWS, 6, generator=GENERATOR) < 0.3, -100, TOKENS % 3)
CLASSES = Problem.from_arrays(X, Y)
NUMBERS = Problem.from_arrays(X, X[:, 0], task="regression")
LABELS = Problem.from_arrays(X, X[:, :3] > 0, task="multi-label")
PLACES = Problem.from_arrays({"input_ids": TOKENS}, TAGS)


class Wrapped(nn.Linear):
    """Gives its scores as models of other packages do."""

    def __init__(self, kind: str = "logits") -> None:
        super().__init__(5, 3)
        self.kind = kind

    def forward(self, input: Tensor) -> Any:
        scores = super().forward(input)
        if self.kind == "dict":
            return {"loss": None, "logits": scores}
        return (scores, None) if self.kind == "tuple" else Output(scores)


def mean_of_own(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(outputs.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)).mean()


def per_row(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])
MODEL = "a function of model and batch"
FORMS: dict[str, tuple[Any, Problem, Callable[[], nn.Module], Any]] = {
    "F.cross_entropy": (F.cross_entropy, CLASSES, lambda: nn.Linear(5, 3), per_row),
    "nn.CrossEntropyLoss": (nn.CrossEntropyLoss(), CLASSES, lambda: nn.Linear(5, 3), per_row),
    "a mean of one's own": (mean_of_own, CLASSES, lambda: nn.Linear(5, 3), per_row),
    "a lambda that means": (lambda o, t: F.cross_entropy(o, t), CLASSES, lambda: nn.Linear(5, 3), per_row),
    "one value per row": (per_row, CLASSES, lambda: nn.Linear(5, 3), per_row),
    "of what a model wraps": (F.cross_entropy, CLASSES, Wrapped, per_row),
    "of a dict": (F.cross_entropy, CLASSES, lambda: Wrapped("dict"), per_row),
    "of a tuple": (F.cross_entropy, CLASSES, lambda: Wrapped("tuple"), per_row),
    "of the whole output": (lambda output, t: per_row(output.logits, t), CLASSES, Wrapped, per_row),
    "weighted classes": (
        nn.CrossEntropyLoss(weight=WEIGHTS),
        CLASSES,
        lambda: nn.Linear(5, 3),
        lambda o, t: F.cross_entropy(o, t, WEIGHTS, reduction="none"),
    ),
    "smoothed": (
        partial(F.cross_entropy, label_smoothing=0.1),
        CLASSES,
        lambda: nn.Linear(5, 3),
        lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1, reduction="none"),
    ),
    "F.mse_loss": (
        lambda o, t: F.mse_loss(o.squeeze(-1), t),
        NUMBERS,
        lambda: nn.Linear(5, 1),
        lambda o, t: (o.squeeze(-1) - t) ** 2,
    ),
    "labels": (
        F.binary_cross_entropy_with_logits,
        LABELS,
        lambda: nn.Linear(5, 3),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").mean(1),
    ),
    "places": (
        F.cross_entropy,
        PLACES,
        lambda: Encoder(3, places=True),
        lambda o, t: torch.stack([F.cross_entropy(one, other) for one, other in zip(o, t, strict=True)]),
    ),
}


class TwoHeads(nn.Module):
    """One score for each of three colours, one for each of four shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.colour, self.shape = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, values: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(values))
        return {"colour": self.colour(hidden), "shape": self.shape(hidden)}


def of_both(output: dict[str, Tensor], targets: Tensor) -> Tensor:
    return per_row(output["colour"], targets[:, 0]) + per_row(output["shape"], targets[:, 1])


@pytest.mark.parametrize("loss", [of_both, lambda model, batch: of_both(model(batch[0]), batch[1])])
def test_several_targets_with_different_classes_train(loss: Any) -> None:
    targets = torch.stack([torch.arange(ROWS) % 3, torch.arange(ROWS) % 4], 1)
    run = veil.fit(TwoHeads(), Problem.from_arrays(X, targets), loss=loss, **SETTINGS)
    assert not any("could not be tried" in sentence for sentence in run.certificate.not_covered)


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_of_outputs_and_targets_is_the_loss_of_each_row_alone(form: str) -> None:
    given, problem, build, wanted = FORMS[form]
    model = build()
    loss, batch = as_row_losses(given, model, problem), problem.batch(torch.arange(7).numpy())
    output = model(**batch[0]) if isinstance(batch[0], dict) else model(batch[0])
    scores = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple) else None
    scores = scores if scores is not None else output["logits"] if isinstance(output, dict) else output.logits
    found = loss(model, batch)
    assert torch.allclose(found, wanted(scores, batch[1]), atol=1e-6)
    assert found.shape == (7,)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_loss_trains_and_is_measured_without_the_fallback(form: str) -> None:
    given, problem, build, _ = FORMS[form]
    run = veil.fit(build(), problem, loss=given, evaluation=problem, **SETTINGS)
    assert run.metrics is not None
    assert not any("could not be tried" in sentence for sentence in run.certificate.not_covered)


def test_cross_entropy_by_name_is_the_usual_loss_bit_by_bit() -> None:
    weights = []
    for loss in (row_losses, F.cross_entropy):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        veil.fit(model, CLASSES, loss=loss, **SETTINGS)
        weights.append(model.weight.detach())
    assert torch.equal(*weights)


def test_a_session_takes_a_loss_of_outputs_and_targets() -> None:
    model = nn.Linear(5, 3)
    session = veil.session(model, CLASSES, **SETTINGS)
    for _ in session:
        session.step(F.cross_entropy)  # type: ignore[arg-type]
    assert session.finish().certificate.epsilon <= 2.0


def mixing(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = per_row(outputs, targets)
    return losses / losses.max()


def not_by_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum() if outputs.sum().item() > 0 else -outputs.sum()


class Own(nn.Module):
    """Has a loss of its own, of each row or of all."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(5, 3), mean

    def forward(self, values: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.layer(values)
        losses = None if labels is None else per_row(logits, labels)
        return Output(logits, losses if losses is None or not self.mean else losses.mean())


def linear() -> nn.Module:
    return nn.Linear(5, 3)


WRONG: dict[str, tuple[Any, Callable[[], nn.Module], Problem, str]] = {
    "a mean over the batch": (
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        linear,
        CLASSES,
        "the loss gives one number for the whole batch .a mean or a sum.: return one value per row",
    ),
    "a loss that joins rows": (not_by_rows, linear, CLASSES, "cannot be called row by row: return one value per row"),
    "a loss that mixes rows": (mixing, linear, CLASSES, "cannot be trained row by row"),
    "a mean of the whole output": (
        lambda output, t: per_row(output.logits, t).mean(),
        Wrapped,
        CLASSES,
        "one number for a whole batch: return one value per row",
    ),
    "the model's own mean": ("model", lambda: Own(mean=True), CLASSES, "own loss is one number for a whole batch"),
    "no loss in the model": ("model", lambda: Encoder(2), PLACES, "do not take these rows with targets of shape"),
    "a word": ("crossentropy", linear, CLASSES, "loss is 'crossentropy': give a function"),
    "numbers for classes": (F.cross_entropy, linear, NUMBERS, r'do not take.*\(task="regression"\)'),
    "classes for numbers": (F.binary_cross_entropy_with_logits, linear, CLASSES, r'do not take.*\(task="classif'),
    "scores of another shape": (row_losses, lambda: nn.Linear(5, 2), CLASSES, "it must give 3 numbers per row"),
    "an unknown key of the output": (
        lambda output, t: per_row(output["scores"], t),
        lambda: Wrapped("dict"),
        CLASSES,
        "the loss takes neither outputs and targets .*'scores'",
    ),
    "a loss that no gradient goes through": (
        lambda output, t: per_row(output, t).detach(),
        linear,
        CLASSES,
        "no gradient reaches the model's trained weights",
    ),
    "a function of something else": (lambda: 1.0, linear, CLASSES, "the loss takes neither outputs and targets"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_loss_is_refused_in_one_sentence_before_anything_is_spent(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, build, problem, sentence = WRONG[case]
    monkeypatch.setattr(Problem, "batch", lambda self, rows: pytest.fail("a row was read"))
    with pytest.raises((InputError, GradientError), match=sentence) as caught:
        veil.fit(build(), problem, loss=loss, out=tmp_path / "run", **SETTINGS)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_models_own_loss_of_each_row_trains() -> None:
    assert veil.fit(Own(mean=False), CLASSES, loss="model", **SETTINGS).certificate.epsilon <= 2.0  # type: ignore[arg-type]


def test_what_evaluation_needs_is_tried_before_the_first_step_with_a_loss_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            return {"score": super().forward(input)}

    monkeypatch.setattr(Problem, "batch", lambda self, rows: pytest.fail("a row was read"))
    with pytest.raises(InputError, match=r"the model gives dict.*omit evaluation"):
        veil.fit(Odd(5, 3), CLASSES, loss=lambda m, b: per_row(m(b[0])["score"], b[1]), evaluation=CLASSES, **SETTINGS)
