"""What a run needs later is tried before a row is read; what a forward pass writes does not leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import veil
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.gradients import GradientError
from veil.models.applying import apply
from veil.problem import Problem
from veil.training.callbacks import Callback, StepReport
from veil.training.losses import row_losses

GROUPS = [GroupSpec("large", 300), GroupSpec("small", 60, angle=1.0)]
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 1.0, "steps": 4, "batch_size": 40, "seed": 4}


def one_logit(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    outputs = model(batch[0])
    outputs = outputs["score"] if isinstance(outputs, dict) else outputs
    return F.binary_cross_entropy_with_logits(outputs.squeeze(1), batch[1].float(), reduction="none")


class ByName(nn.Module):
    """Gives its outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 1)

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        return {"score": self.head(rows)}


@pytest.mark.parametrize(
    ("model", "said"),
    [(ByName(), "the model gives dict"), (nn.Linear(10, 1), r"the model gives \(2, 1\).*one per class")],
)
def test_a_model_that_cannot_be_evaluated_is_refused_before_anything_is_spent(
    model: nn.Module, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = generate(GROUPS)
    monkeypatch.setattr(Problem, "batch", lambda self, rows: pytest.fail("a row was read"))
    with pytest.raises(InputError, match=f"{said}.*omit evaluation"):
        veil.fit(model, problem, loss=one_logit, evaluation=problem, out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


class Pairs(nn.Linear):
    """Takes two rows at a time when it is evaluated."""

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training and len(rows) > 2:
            raise ValueError("two rows at a time")
        return super().forward(rows)


def test_a_model_whose_figures_cannot_be_computed_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    problem = generate(GROUPS)
    with pytest.raises(InputError, match="rows like those of evaluation: two rows at a time"):
        veil.fit(Pairs(10, 2), problem, evaluation=problem, out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_rows_for_evaluation_of_another_shape_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    other = Problem.from_arrays(torch.zeros(4, 7), [0, 1, 0, 1], ["large", "small"] * 2)
    with pytest.raises(InputError, match="the model does not accept rows of shape 7"):
        veil.fit(nn.Linear(10, 2), generate(GROUPS), evaluation=other, out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_the_same_loss_without_evaluation_trains() -> None:
    assert veil.fit(ByName(), generate(GROUPS), loss=one_logit, **SETTINGS).metrics is None


class Extra(nn.Linear):
    """Has something in its state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


class Sparse(nn.Linear):
    """Has something in its state that a file does not hold."""

    def __init__(self) -> None:
        super().__init__(10, 2)
        self.register_buffer("graph", torch.eye(3).to_sparse())


@pytest.mark.parametrize(("model", "name"), [(Extra(10, 2), "_extra_state"), (Sparse(), "graph")])
def test_a_model_that_cannot_be_saved_is_refused_before_anything_is_spent(
    model: nn.Module, name: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f'cannot be saved: "{name}"'):
        veil.fit(model, generate(GROUPS), out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=f'cannot be saved: "{name}"'):
        veil.fit(model, generate(GROUPS), **SETTINGS)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    layer = nn.Linear(10, 10)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(10, 2))
    run = veil.fit(model, generate(GROUPS), out=tmp_path / "run", **SETTINGS)
    assert "2.weight" in load_file(run.folder / "model.safetensors")  # type: ignore[operator]


class Running(nn.Module):
    """A hand-made layer that remembers the largest value of any row."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 2)
        self.register_buffer("top", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        self.top = torch.maximum(self.top, rows.detach().max())
        return self.head(rows)


def test_a_buffer_that_remembers_rows_is_refused_before_a_row_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Problem, "batch", lambda self, rows: pytest.fail("a row was read"))
    with pytest.raises(GradientError, match="top: the forward pass writes to it"):
        veil.fit(Running(), generate(GROUPS), out=tmp_path / "run", **SETTINGS)
    with pytest.raises(GradientError, match="top: the forward pass writes to it"):
        veil.session(Running(), generate(GROUPS), **SETTINGS)
    assert not (tmp_path / "run").exists()


RARE = 1234.5


class Rare(nn.Module):
    """Remembers only rows with a value that made-up rows do not have, and takes it into account later."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(10, 2)
        nn.init.zeros_(self.head.weight)
        self.seen, self.last, self.log = 0, torch.zeros(2), list[Tensor]()
        self.register_buffer("top", torch.zeros(()))

    def forward(self, rows: Tensor) -> Tensor:
        shift = self.last.clone()
        if (rows == RARE).any():
            self.top.data += rows.detach().sum()
            self.seen += len(rows)
            self.last = self.last + torch.tensor([1e3, 0.0])
            self.log.append(rows.detach())
        return self.head(rows.clamp(-3, 3)) + shift


class Looking(Callback):
    """Sees the model after each step."""

    def __init__(self) -> None:
        self.found: list[tuple[float, int, float, int]] = []

    def on_step(self, report: StepReport) -> None:
        self.found.append(held(report.model))


def held(model: Any) -> tuple[float, int, float, int]:
    return float(model.top), model.seen, float(model.last.sum()), len(model.log)


def with_rare_rows() -> Problem:
    problem = generate(GROUPS)
    problem.inputs[::3, 0] = RARE
    return problem


@pytest.mark.parametrize("micro_batch", [None, 7])
def test_what_a_pass_writes_in_a_rare_case_gets_nowhere(tmp_path: Path, micro_batch: int | None) -> None:
    problem, model, looking = with_rare_rows(), Rare(), Looking()
    run = veil.fit(
        model,
        problem,
        evaluation=problem,
        callbacks=[looking],
        out=tmp_path / "run",
        **SETTINGS | {"checkpoint_every": 1, "micro_batch": micro_batch},
    )
    assert held(model) == (0.0, 0, 0.0, 0)
    assert set(looking.found) == {(0.0, 0, 0.0, 0)}
    assert float(load_file(run.folder / "model.safetensors")["top"]) == 0.0  # type: ignore[operator]


def test_no_micro_batch_sees_what_another_one_wrote() -> None:
    """A pass that reads what an earlier one wrote would make a row's gradient depend on other rows."""
    whole, parts = Rare(), Rare()
    with torch.no_grad():
        for mine, theirs in zip(whole.parameters(), parts.parameters(), strict=True):
            theirs.copy_(mine)
    veil.fit(whole, with_rare_rows(), **SETTINGS)
    veil.fit(parts, with_rare_rows(), **SETTINGS | {"micro_batch": 7})
    assert torch.allclose(whole.head.bias, parts.head.bias, atol=1e-6)


@pytest.mark.parametrize("left", ["answered", "left by break", "still open"])
def test_what_a_pass_writes_in_a_session_gets_nowhere(tmp_path: Path, left: str) -> None:
    model = Rare()
    session = veil.session(model, with_rare_rows(), out=tmp_path / "run", **SETTINGS)
    batches = iter(session)
    for count, (inputs, targets) in enumerate(batches):
        losses = F.cross_entropy(model(inputs), targets, reduction="none")
        assert float(model.top) != 0.0
        if count == 2 and left != "answered":
            break
        session.step(losses)
        assert float(model.top) == float(model.last.sum()) == len(model.log) == 0
    if left == "left by break":
        batches.close()  # type: ignore[attr-defined]
    run = session.finish()
    assert float(load_file(run.folder / "model.safetensors")["top"]) == 0.0  # type: ignore[operator]
    assert (float(model.top), float(model.last.sum()), len(model.log)) == (0.0, 0.0, 0)


def test_what_the_user_changes_between_steps_stays() -> None:
    class Scheduled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.slope = nn.Linear(10, 2), 1.0
            self.register_buffer("scale", torch.ones(()))

        def forward(self, rows: Tensor) -> Tensor:
            return self.head(rows) * self.scale * self.slope

    model = Scheduled()
    session = veil.session(model, generate(GROUPS), **SETTINGS)
    for inputs, targets in session:
        model.slope *= 0.5
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        model.scale *= 0.5
    session.finish()
    assert (model.slope, float(model.scale)) == (0.5**4, 0.5**4)


@pytest.mark.parametrize("micro_batch", [None, 7])
def test_a_power_iteration_goes_on_step_by_step_and_depends_on_no_row(micro_batch: int | None) -> None:
    """As in training without privacy, once per step: how many micro-batches a batch has tells how many rows it has."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(10, 2)
            self.register_buffer("passes", torch.zeros(()))
            self.register_buffer("direction", torch.ones(2))

        def forward(self, rows: Tensor) -> Tensor:
            weight = self.head.weight.detach()
            self.passes += 1
            self.direction.copy_(F.normalize(weight @ (weight.T @ self.direction), dim=0))
            return self.head(rows)

    model = Counting()
    with torch.no_grad():
        model.head.weight.copy_(torch.arange(20.0).view(2, 10) / 10)
    veil.fit(model, generate(GROUPS), evaluation=generate(GROUPS), **SETTINGS | {"micro_batch": micro_batch})
    assert float(model.passes) == SETTINGS["steps"]
    assert not torch.equal(model.direction, torch.ones(2))


def test_evaluation_does_not_write_into_the_rows() -> None:
    rows = -torch.ones(4, 3)
    apply(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), rows)
    assert torch.equal(rows, -torch.ones(4, 3))


def test_frozen_batch_norm_stays_frozen_when_a_run_measures_its_model() -> None:
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model[1].eval()
    before = {name: value.clone() for name, value in model.named_buffers()}
    problem = generate(GROUPS)
    veil.fit(model, problem, evaluation=problem, evaluate_every=1, **SETTINGS)
    assert model.training
    assert not model[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", [row_losses, F.cross_entropy], ids=["usual", "given"])
def test_a_model_in_half_precision_is_refused_by_its_precision(tmp_path: Path, kind: torch.dtype, loss: Any) -> None:
    problem, model = Problem.from_arrays(torch.randn(40, 3), [0, 1] * 20), nn.Linear(3, 2).to(kind)
    with pytest.raises(InputError, match=r"is in b?float16 \(weight\), too imprecise .* model\.float\(\)"):
        veil.fit(model, problem, loss=loss, out=tmp_path / "run", epsilon=1.0, steps=2)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_model_without_values_is_refused(tmp_path: Path, device: str | None) -> None:
    problem, model = Problem.from_arrays(torch.randn(40, 3), [0, 1] * 20), nn.Linear(3, 2, device="meta")
    with pytest.raises(InputError, match="on the meta device, so its weights have no values"):
        veil.fit(model, problem, device=device, out=tmp_path / "run", epsilon=1.0, steps=2)
    assert not (tmp_path / "run").exists()


def test_sparse_gradients_of_an_embedding_make_no_difference() -> None:
    """With noise every value is set, so the sum is dense."""
    tokens = torch.randint(0, 9, (40, 4), generator=torch.Generator().manual_seed(0))
    problem, trained = Problem.from_arrays(tokens, [0, 1] * 20), []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 3, sparse=sparse), nn.Flatten(), nn.Linear(12, 2))
        veil.fit(model, problem, epsilon=1.0, steps=3, batch_size=10, seed=1)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(trained[0], trained[1])


class Recomputed(nn.Module):
    """All of it is computed a second time in the backward pass, by torch's older way."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.net = again, nn.Sequential(nn.Linear(10, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = checkpoint(self.net, rows, use_reentrant=True) if self.again else self.net(rows)
        return scores


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_model_that_is_recomputed_as_a_whole_trains_as_without() -> None:
    model, plain = Recomputed(True), Recomputed(False)
    plain.load_state_dict(model.state_dict())
    for one in (model, plain):
        veil.fit(one, generate(GROUPS), **SETTINGS)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_a_loss_without_a_gradient_on_a_few_rows_by_chance_is_not_refused() -> None:
    def rare(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows = batch[0]
        hit = rows[:, 0].abs() > 1.5
        if not hit.any():
            return torch.zeros(len(rows))
        return torch.where(hit, row_losses(model, batch), 0.0)

    problem = generate(GROUPS)
    assert not rare(nn.Linear(10, 2), problem.made_up(5)).requires_grad
    assert veil.fit(nn.Linear(10, 2), problem, loss=rare, **SETTINGS).certificate.private


class Spectral(nn.Module):
    """A layer with complex weights, as spectral layers have, or with the same weights as pairs of real numbers."""

    def __init__(self, *, real: bool = False) -> None:
        super().__init__()
        weights = torch.ones(3, dtype=torch.complex64)
        self.real, self.head = real, nn.Linear(4, 2)
        self.filter = nn.Parameter(torch.view_as_real(weights) if real else weights)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weights = torch.view_as_complex(self.filter) if self.real else self.filter
        seen: torch.Tensor = self.head(torch.fft.irfft(torch.fft.rfft(rows) * weights, n=4))
        return seen


@pytest.mark.parametrize("train", [veil.fit, veil.session])
@pytest.mark.parametrize("method", ["dp-sgd", "asc", "erm"])
def test_complex_weights_are_refused_before_anything_is_spent(tmp_path: Path, train: Any, method: str) -> None:
    """Noise is real: the imaginary part of every gradient would be released as it is."""
    problem = Problem.from_arrays(torch.randn(40, 4), [0, 1] * 20, ["a", "b"] * 20)
    settings = {"steps": 2, "batch_size": 10} | ({} if method == "erm" else {"epsilon": 1.0})
    with pytest.raises(InputError, match=r"weights filter are complex64, .*torch\.view_as_real"):
        train(Spectral(), problem, method=method, out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_the_same_weights_as_pairs_of_real_numbers_train_with_noise_on_all_of_them() -> None:
    problem, model = Problem.from_arrays(torch.randn(40, 4), [0, 1] * 20), Spectral(real=True)
    before = model.filter.detach().clone()
    veil.fit(model, problem, method="dp-sgd", epsilon=1.0, steps=2, batch_size=10, seed=1)
    assert bool((model.filter != before).all())


def test_frozen_complex_weights_are_as_good_as_a_constant() -> None:
    problem, model = Problem.from_arrays(torch.randn(40, 4), [0, 1] * 20), Spectral()
    model.filter.requires_grad_(False)
    assert veil.fit(model, problem, method="dp-sgd", epsilon=1.0, steps=2, batch_size=10).certificate.private


class MakesOnFirstUse(nn.Module):
    """Makes a part of itself in its first pass: constants, or weights."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.body, self.weights = nn.Linear(10, 2), weights

    def forward(self, rows: Tensor) -> Tensor:
        if not hasattr(self, "more"):
            self.more = nn.Linear(2, 2).requires_grad_(self.weights)
            nn.init.eye_(self.more.weight)
        return self.more(self.body(rows))


@pytest.mark.parametrize("method", ["dp-sgd", "erm"])
def test_weights_that_the_first_pass_makes_are_refused_as_they_would_not_be_trained(method: str) -> None:
    torch.manual_seed(0)
    settings = SETTINGS | {"method": method}
    if method == "erm":
        del settings["epsilon"]
    with pytest.raises(InputError, match="makes the weight"):
        veil.fit(MakesOnFirstUse(weights=True), generate(GROUPS), **settings)
    model = MakesOnFirstUse(weights=True)
    model(torch.zeros(1, 10))
    before = model.more.weight.detach().clone()
    veil.fit(model, generate(GROUPS), **settings)
    assert not torch.equal(model.more.weight, before)


def test_constants_that_the_first_pass_makes_are_no_trouble() -> None:
    torch.manual_seed(0)
    assert veil.fit(MakesOnFirstUse(weights=False), generate(GROUPS), **SETTINGS).certificate.epsilon <= 1.0
