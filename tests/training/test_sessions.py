"""A loop of one's own gives the same model, ledger and certificate as `fit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import veil
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.gradients import GradientError
from veil.plans.plan import OWN_LOOP
from veil.problem import Problem
from veil.training import sessions
from veil.training.callbacks import Callback
from veil.training.fitting import row_losses
from veil.training.run import Run
from veil.training.sessions import Session

GROUPS = [GroupSpec("large", 300), GroupSpec("small", 60, angle=1.0)]
SETTINGS = {"epsilon": 1.0, "steps": 12, "batch_size": 40, "seed": 4}


def small_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("method", ["dp-sgd", "asc", "auto-s", "dp-is-sgd", "adaptive-clip", "ino-sgd"])
def test_a_session_is_the_same_as_fit(method: str, tmp_path: Path) -> None:
    problem, by_fit, by_hand = generate(GROUPS), small_model(), small_model()
    fitted = veil.fit(by_fit, problem, method=method, out=tmp_path / "fit", **SETTINGS)  # type: ignore[arg-type]
    session = veil.session(by_hand, problem, method=method, out=tmp_path / "hand", **SETTINGS)
    for inputs, targets in session:
        losses = nn.functional.cross_entropy(by_hand(inputs), targets, reduction="none")
        session.step(losses)
    run = session.finish()
    assert torch.allclose(weights(by_fit), weights(by_hand), atol=1e-6)
    assert run.certificate.by_group == fitted.certificate.by_group
    ledgers = [(tmp_path / name / "ledger.jsonl").read_bytes() for name in ("fit", "hand")]
    assert ledgers[0] == ledgers[1]


def test_a_session_knows_how_many_batches_are_left() -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    left = []
    for inputs, targets in session:
        left.append(len(session))
        session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    assert left == list(range(12, 0, -1))
    assert len(session) == 0
    assert session
    session.finish()


def test_a_finished_session_is_over_and_gives_its_run_again(tmp_path: Path) -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", out=tmp_path / "run", **SETTINGS)  # type: ignore[arg-type]
    for number, (inputs, targets) in enumerate(session):
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        if number == 4:
            break
    run = session.finish()
    kept, trained = (tmp_path / "run" / "ledger.jsonl").read_bytes(), weights(model)
    assert session.finish() is run
    with pytest.raises(InputError, match="this session is finished"):
        next(iter(session))
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == kept
    assert torch.equal(weights(model), trained)


def test_a_pass_after_the_loop_has_ended_is_named() -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)  # type: ignore[arg-type]
    inputs, targets = next(iter(session))  # nobody holds the iterator, so the loop ends here
    with pytest.raises(GradientError, match="the loop over the batches had ended"):
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))


def test_a_closed_session_does_not_finish_the_run_that_somebody_else_resumes(tmp_path: Path) -> None:
    model, out = small_model(), tmp_path / "run"
    first = veil.session(model, generate(GROUPS), method="dp-sgd", out=out, **SETTINGS)  # type: ignore[arg-type]
    batches = iter(first)
    inputs, targets = next(batches)
    first.step(F.cross_entropy(model(inputs), targets, reduction="none"))
    first.close()
    resumed = small_model()
    second = veil.session(resumed, generate(GROUPS), method="dp-sgd", out=out, resume=True, **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="resume the run from its folder"):
        first.finish()
    assert not (out / "certificate.json").exists()
    for inputs, targets in second:
        second.step(F.cross_entropy(resumed(inputs), targets, reduction="none"))
    assert second.finish().history["step"].tolist() == list(range(12))


def test_a_session_takes_the_losses_of_a_model_with_addmm_as_they_are() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(10, 2)), nn.Parameter(torch.zeros(2))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.addmm(self.bias, rows, self.weight)

    model = Turned()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    for inputs, targets in session:
        session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    assert session.finish().certificate.epsilon <= 1.0


def test_a_loss_given_as_a_function_serves_layers_without_a_rule() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Bilinear(10, 10, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.inner(rows, rows)

    model = Odd()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **(SETTINGS | {"steps": 2}))
    with pytest.raises(GradientError, match="as a function"):
        for inputs, targets in session:
            session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    again = veil.session(model, generate(GROUPS), method="dp-sgd", **(SETTINGS | {"steps": 2}))
    with pytest.warns(UserWarning, match="generic path"):
        for _ in again:
            again.step(lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1], reduction="none"))
    assert again.finish().certificate.epsilon == pytest.approx(1.0, rel=0.01)


def test_a_batch_that_is_not_answered_is_named() -> None:
    session = veil.session(small_model(), generate(GROUPS), method="dp-sgd", **SETTINGS)
    with pytest.raises(InputError, match="Batch 0 has no matching"):
        for _ in session:
            pass
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_step_without_a_batch_is_refused() -> None:
    session = veil.session(small_model(), generate(GROUPS), method="dp-sgd", **SETTINGS)
    with pytest.raises(InputError, match="no batch is waiting"):
        session.step(torch.zeros(3))


def test_leaving_early_keeps_the_guarantee_of_the_plan_and_the_recorder_stops() -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    for count, (inputs, targets) in enumerate(session):
        if count == 3:
            break
        session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
    run = session.finish()
    assert run.stopped == "ended by the user after 3 of 12 steps"
    assert run.certificate.epsilon == pytest.approx(1.0, rel=0.01)


def test_losses_of_the_wrong_shape_are_refused() -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    with pytest.raises(GradientError, match="one value per row"):
        for inputs, targets in session:
            session.step(nn.functional.cross_entropy(model(inputs), targets))


def answered(session: Session, model: nn.Module, batches: int | None = None) -> int:
    """Go through batches of a session, all or so many."""
    count = 0
    for inputs, targets in session:
        session.step(nn.functional.cross_entropy(model(inputs), targets, reduction="none"))
        count += 1
        if count == batches:
            break
    return count


@pytest.mark.parametrize("wrong", ["backward", "detached"])
def test_a_loop_that_trains_past_the_session_is_told_what_to_call(wrong: str) -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    said = "call session.step.* in place of loss.backward" if wrong == "backward" else "no gradient reaches"
    with pytest.raises((GradientError, InputError), match=said):
        for inputs, targets in session:
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            losses.mean().backward() if wrong == "backward" else session.step(losses.detach())


def test_batches_are_handed_out_once() -> None:
    """A second `for` over a session would release the same rows with the same noise, unpaid."""
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    assert answered(session, model) == 12
    with pytest.raises(InputError, match="all 12 batches of this session are used"):
        answered(session, model)


def test_a_loop_that_was_left_goes_on_with_the_next_batch() -> None:
    whole, parts = small_model(), small_model()
    answered(veil.session(whole, generate(GROUPS), method="dp-sgd", **SETTINGS), whole)
    session = veil.session(parts, generate(GROUPS), method="dp-sgd", **SETTINGS)
    assert (answered(session, parts, 5), answered(session, parts)) == (5, 7)
    assert torch.equal(weights(whole), weights(parts))
    assert session.finish().history["step"].tolist() == list(range(12))


def with_losses(change: Callable[[torch.Tensor], torch.Tensor]) -> tuple[nn.Module, Session]:
    """A session that is answered with changed losses until it is refused."""
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    for inputs, targets in session:
        session.step(change(nn.functional.cross_entropy(model(inputs), targets, reduction="none")))
    return model, session


@pytest.mark.parametrize(
    "change",
    [
        lambda losses: losses * losses.detach().softmax(0) * len(losses),
        lambda losses: losses / losses.detach().max(),
        lambda losses: losses / losses.detach().mean(),
        lambda losses: losses / losses.mean(),
    ],
)
def test_losses_that_weigh_a_row_by_the_others_are_refused_at_the_first_step(change: Any) -> None:
    start, model = weights(small_model()), None
    with pytest.raises(GradientError, match=r"the losses mix rows.*from that row alone"):
        model, _ = with_losses(change)
    assert model is None or torch.equal(weights(model), start)
    assert not torch.overrides._get_current_function_mode_stack()


def test_losses_that_begin_to_mix_at_a_later_step_are_refused_at_that_step() -> None:
    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    with pytest.raises(GradientError, match="the losses mix rows"):
        for count, (inputs, targets) in enumerate(session):
            before = weights(model).clone()
            losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            session.step(losses if count < 7 else losses / losses.detach().mean())
    assert count == 7
    assert torch.equal(weights(model), before)


def test_mixup_is_refused_in_a_session() -> None:
    model = small_model()
    start = weights(model).clone()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    with pytest.raises(GradientError, match="no mixup"):
        for inputs, targets in session:
            mixed = 0.7 * inputs + 0.3 * inputs[torch.randperm(len(inputs))]
            session.step(nn.functional.cross_entropy(model(mixed), targets, reduction="none"))
    assert torch.equal(weights(model), start)


def test_a_loss_function_of_a_session_is_tried_before_it_is_used() -> None:
    def of(scale: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
            return losses / scale(losses.detach())

        return loss

    model = small_model()
    session = veil.session(model, generate(GROUPS), method="dp-sgd", **SETTINGS)
    apart, mixing = of(lambda losses: 1 + losses), of(lambda losses: losses.mean())
    with pytest.raises(GradientError, match="of other rows"):
        for count, _ in enumerate(session):
            before = weights(model).clone()
            session.step(apart if count < 3 else mixing)
    assert torch.equal(weights(model), before)


def test_a_loss_function_is_tried_once_and_not_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []
    monkeypatch.setattr(sessions, "check_rows_apart", lambda model, problem, loss: tried.append(loss) or [])
    session = veil.session(small_model(), generate(GROUPS), method="dp-sgd", **SETTINGS)
    for _ in session:
        session.step(lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1], reduction="none"))
    assert len(tried) == 1


def test_the_certificate_says_what_was_not_tried_in_a_loop_of_ones_own() -> None:
    _, session = with_losses(lambda losses: losses)
    assert OWN_LOOP in session.finish().certificate.not_covered
    by_function = veil.session(small_model(), generate(GROUPS), method="dp-sgd", **SETTINGS)
    for _ in by_function:
        by_function.step(row_losses)
    assert OWN_LOOP not in by_function.finish().certificate.not_covered


def own_loop(model: nn.Module, session: Session, after: Any = None) -> Run:
    for inputs, targets in session:
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        if after is not None:
            after()
    return session.finish()


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


OWN: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "steps": 4, "batch_size": 12, "seed": 3, "accountant": "rdp"}


def rows_of_three() -> Problem:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=generator), torch.randint(0, 2, (60,), generator=generator)
    return Problem.from_arrays(x, y, ["a", "b", "b"] * 20)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_an_optimizer_and_a_scheduler_of_ones_own_see_the_released_gradient() -> None:
    problem, model, wanted = rows_of_three(), small_net(), small_net()
    veil.fit(wanted, problem, learning_rate=0.3, momentum=0.9, schedule="linear", **OWN)
    session = veil.session(model, problem, **OWN)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    session.use(optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)
    run = own_loop(model, session, scheduler.step)
    assert same_weights(model, wanted)
    assert run.certificate.epsilon is not None


def test_an_optimizer_that_does_not_fit_is_refused_before_a_batch(tmp_path: Path) -> None:
    problem, model = rows_of_three(), small_net()
    session = veil.session(model, problem, **OWN)
    with pytest.raises(InputError, match="none of the model's trained parameters"):
        session.use(torch.optim.SGD(small_net().parameters(), lr=0.1))
    with pytest.raises(InputError, match="LBFGS computes a gradient several times"):
        session.use(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InputError, match="SparseAdam takes sparse gradients"):
        session.use(torch.optim.SparseAdam(model.parameters()))
    kept = veil.session(small_net(), problem, out=tmp_path / "run", **OWN)
    with pytest.raises(InputError, match="cannot be resumed: omit out"):
        kept.use(torch.optim.SGD(model.parameters(), lr=0.1))
    kept.close()
    for inputs, targets in session:
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        with pytest.raises(InputError, match="call use before the first batch"):
            session.use(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("size", [1, 5, 100])
def test_batches_in_parts_give_one_release_per_batch_and_the_same_weights(size: int) -> None:
    problem, model, wanted = rows_of_three(), small_net(), small_net()
    run = veil.fit(wanted, problem, learning_rate=0.3, **OWN)
    session = veil.session(model, problem, learning_rate=0.3, micro_batch=size, **OWN)
    updates = most = 0
    for inputs, targets in session:
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        updates, most = updates + session.updated, max(most, len(targets))
    assert updates == 4
    assert most <= size
    assert same_weights(model, wanted)
    assert session.finish().certificate.epsilon == run.certificate.epsilon


def test_weights_may_not_be_changed_between_the_parts_of_a_batch() -> None:
    model = small_net()
    session = veil.session(model, rows_of_three(), micro_batch=2, **OWN)
    with pytest.raises(InputError, match="between the parts of a batch"):
        own_loop(model, session, lambda: model[0].weight.data.add_(1.0))  # type: ignore[union-attr, operator]


def test_a_method_that_orders_the_rows_of_a_batch_has_no_parts() -> None:
    model = small_net()
    session = veil.session(model, rows_of_three(), micro_batch=2, **{**OWN, "method": "ino-sgd", "accountant": "pld"})
    with pytest.raises(InputError, match="weighs a row by the others"):
        own_loop(model, session)


def test_a_gradient_left_on_frozen_weights_never_reaches_the_model() -> None:
    """An optimizer of the user's holds all weights: what an earlier `backward` left there was never released."""
    problem = generate([GroupSpec("a", 90), GroupSpec("b", 30)])
    model = nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 2))
    inputs, targets = problem.batch(np.arange(120))
    F.cross_entropy(model(inputs), targets).backward()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    steps = veil.session(model, problem, method="dp-sgd", epsilon=1.0, steps=2, batch_size=20, seed=1)
    steps.use(torch.optim.SGD(model.parameters(), lr=0.5))
    for inputs, targets in steps:
        steps.step(F.cross_entropy(model(inputs), targets, reduction="none"))
    assert torch.equal(steps.finish().model[0].weight, before)


@pytest.mark.parametrize("where", ["noise", "update"])
@pytest.mark.parametrize("kept", [False, True])
def test_a_session_whose_step_was_interrupted_releases_nothing_more(
    where: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is free for another process by then, which would release the same steps again."""
    problem, model = generate(GROUPS), small_model()
    out = {"out": tmp_path / "run"} if kept else {}
    session = veil.session(model, problem, method="dp-sgd", **SETTINGS, **out)  # type: ignore[arg-type]
    answered(session, model, 3)
    released: list[int] = []

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        owner = "veil.noise.ahead.drawn_steps" if where == "noise" else "veil.training.optimizer.Optimizer.update"
        patched.setattr(owner, interrupt)
        with pytest.raises(KeyboardInterrupt):
            for inputs, targets in session:
                session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
    monkeypatch.setattr("veil.noise.GaussianNoise.add", lambda _, step, *__: released.append(step))
    with pytest.raises(InputError, match="this session is closed"):
        answered(session, model)
    with pytest.raises(InputError, match="this session is closed"):
        session.step(torch.zeros(1))
    assert not released
    monkeypatch.undo()
    if kept:
        resumed, again = small_model(), generate(GROUPS)
        session = veil.session(resumed, again, method="dp-sgd", resume=True, **SETTINGS, **out)  # type: ignore[arg-type]
        answered(session, resumed)
        session.finish()
        whole = small_model()
        answered(veil.session(whole, problem, method="dp-sgd", **SETTINGS), whole)
        assert torch.equal(weights(whole), weights(resumed))


def test_a_loop_that_catches_what_a_step_raises_gets_no_further_batch() -> None:
    class Failing(Callback):
        def on_step(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("a callback failed")

    model, seen = small_model(), 0
    session = veil.session(model, generate(GROUPS), method="dp-sgd", callbacks=[Failing()], **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="this session is closed"):
        for inputs, targets in session:
            seen += 1
            with pytest.raises(RuntimeError):
                session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
    assert seen == 1
