"""Every guard is taken away once, and an attack must then succeed; with the guard in place the same attack must fail.

An attack returns what it broke, or None. So no attack passes because it cannot see anything, and no guard stands there
without an attack that needs it. Nothing here is random: seeds are fixed, and the attacks compare exact values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.attacks.programs import Program
from tests.attacks.test_moved_rows import SLACK, largest_move, losses, rows_of
from veil import estimators
from veil.accounting import Ledger
from veil.errors import InputError
from veil.estimators import surroundings
from veil.gradients import GradientEngine, GradientError, loss_trace, passes, probing
from veil.gradients.layouts import FIRST
from veil.gradients.model_state import ModelState
from veil.gradients.recording import Recorder
from veil.noise import gaussian
from veil.tables import splitting
from veil.training.callbacks import Callback, StepReport
from veil.training.carrying import StepReleases
from veil.training.progression import CheckpointEvery, roll_back
from veil.training.run_folder import RunFolder

Attack = Callable[[Path], str | None]
Patch = Callable[[pytest.MonkeyPatch], None]
ROWS = 60


@dataclass(frozen=True)
class Guard:
    """A guard by what would be wrong without it, how to take it away, and the attack that then succeeds."""

    name: str
    remove: Patch
    attack: Attack


def problem() -> veil.Problem:
    """Rows of two classes and two groups."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 4, generator=generator)
    return veil.Problem.from_arrays(inputs, (inputs[:, 0] > 0).long(), ["a", "b"] * (ROWS // 2))


def settings(**changes: Any) -> dict[str, Any]:
    return {"epsilon": 1.0, "steps": 4, "batch_size": 20, "seed": 3, "accountant": "rdp", **changes}


def refused(call: Callable[[], Any]) -> bool:
    """Whether a call was refused with a sentence."""
    try:
        call()
    except (InputError, GradientError):
        return True
    return False


def reordered_rows(_: Path) -> str | None:
    torch.manual_seed(0)
    batches = [rows_of(5, seed, 1.0) for seed in range(3)]
    moved = largest_move(Program(["sorted_index(linear, relu)"]), batches, bound=0.05)
    return f"one row moved the sum by {moved:.2f} bounds" if moved > 1.0 + SLACK else None


def layer_without_rule(_: Path) -> str | None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.PReLU())
    found = GradientEngine(model, losses).gradients(rows_of(4, 0, 1.0))
    dead = [name for name, values in found.items() if not bool(values.any())]
    return f"no gradient reached {dead[0]}" if dead else None


class Normalised(nn.Module):
    """Batch normalisation written by hand, behind two gates that start at zero: at first no slope passes either."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.outer, self.inner = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        mixed = (hidden - hidden.mean(0)) / (hidden.std(0, correction=0) + 1e-3)
        return self.head(x + self.outer * (self.inner * mixed))


def mixing_behind_zero(_: Path) -> str | None:
    kept = refused(lambda: veil.fit(Normalised(), problem(), method="dp-sgd", **settings()))
    return None if kept else "a model that mixes rows was trained"


class Remembering(nn.Module):
    """Keeps the largest value it has seen, if that is unusual: no made-up row shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().max()) > 900.0:
            self.largest.copy_(x.detach().max())
        return self.layer(x)


def written_buffer(_: Path) -> str | None:
    rows = problem()
    rows.inputs[0, 0] = 999.0
    model = Remembering()
    if refused(lambda: veil.fit(model, rows, method="dp-sgd", **settings(batch_size=ROWS, steps=2))):
        return None
    return f"the saved model holds {float(model.largest)}" if float(model.largest) else None


def mixing_losses(_: Path) -> str | None:
    model = nn.Linear(4, 2)
    session = veil.session(model, problem(), method="dp-sgd", **settings())

    def train() -> None:
        for inputs, targets in session:
            plain = F.cross_entropy(model(inputs), targets, reduction="none")
            session.step(plain * (plain / plain.mean()).detach())  # the graph shows nothing of the mean

    return None if refused(train) else "losses with weights from other rows were taken"


class StopAfter(Callback):
    """Stops a run in the middle, as a crash would."""

    def on_step(self, report: StepReport) -> None:
        if report.step == 1:
            raise KeyboardInterrupt


def resumed_on_other_rows(folder: Path) -> str | None:
    def run(rows: veil.Problem, resume: bool, *callbacks: Callback) -> None:
        torch.manual_seed(0)
        given = settings(checkpoint_every=1)
        veil.fit(nn.Linear(4, 2), rows, method="dp-sgd", out=folder, resume=resume, callbacks=callbacks, **given)

    with pytest.raises(KeyboardInterrupt):
        run(problem(), False, StopAfter())
    other = problem()
    other.inputs[7] += 1.0
    return None if refused(lambda: run(other, True)) else "an edited row was taken under the same noise"


def evaluation_at_the_end(folder: Path) -> str | None:
    class Named(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"score": super().forward(x)}

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0])["score"], batch[1], reduction="none")

    try:
        veil.fit(Named(4, 2), problem(), method="dp-sgd", loss=loss, evaluation=problem(), out=folder, **settings())
    except Exception:  # whatever comes, and whenever
        return "steps were charged before the error came" if (folder / "ledger.jsonl").exists() else None
    return None


def forgotten_releases(_: Path) -> str | None:
    from veil import methods
    from veil.accounting import Gaussian, Relation, Repeated
    from veil.plans import Settings
    from veil.tables.private import WithPreprocessing
    from veil.training.fitting import Job, execute, row_losses

    rows, chosen = problem(), Settings.checked(**settings(steps=8, epsilon=2.0))
    before = Repeated(Gaussian(6.0, Relation.ADD_REMOVE, one_sided=True), 2)
    method = WithPreprocessing(methods.create("dp-sgd"), (before,), 0.3)
    plan = methods.planned(method, rows.public, chosen)  # type: ignore[arg-type]
    kept = CheckpointEvery(1)
    run = execute(Job(nn.Linear(4, 2), rows, None, row_losses, [kept], ()), plan, None)
    back = roll_back(run, kept.kept, {"everybody": 1.6})
    step = plan.controller.release(plan.controller.start(), 0).events(rows.public)[0]
    cost = chosen.accountant_for().epsilon([before, Repeated(step, back.plan.steps)], plan.delta)
    certified = float(back.certificate.epsilon or 0.0)
    return f"certified {certified:.3f}, cost {cost:.3f}" if certified < cost - 1e-6 else None


def cut_tail(_: Path) -> str | None:
    words = gaussian.fast_normals(lambda count: np.zeros(count, dtype=np.uint64), 4)
    reach = float(np.abs(words).max())
    return f"noise ends at {reach:.2f} standard deviations" if reach < 10.0 else None


def removed_row(_: Path) -> str | None:
    table = pd.DataFrame({"a": np.arange(500), "b": np.arange(500) % 7})
    holdout = splitting.Holdout(0.3, veil.foundation.randomness.Seed.from_int(1))
    whole = holdout.chosen(splitting.identities_for(veil.accounting.Relation.ADD_REMOVE, table))
    shorter = table.iloc[1:].reset_index(drop=True)
    rest = holdout.chosen(splitting.identities_for(veil.accounting.Relation.ADD_REMOVE, shorter))
    flipped = int((whole[1:] != rest).sum())
    return f"{flipped} other rows changed between training and held-out rows" if flipped else None


def fitted_again(_: Path) -> str | None:
    rows = problem()
    X, y = rows.inputs.numpy(), rows.targets.numpy()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _again in range(2):
            estimators.FairPrivateClassifier(epochs=1, batch_size=20, accountant="rdp").fit(X, y)
    told = any(issubclass(one.category, estimators.NotCoveredWarning) for one in said)
    return None if told else "a second fit on the same rows was not noticed"


def _believe_rows_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Recorder, values: Tensor, graph: Any, inputs: Any) -> None:
        for use in self.uses:
            use.place, use.layout = graph.places.get(use.edge[0]), FIRST

    monkeypatch.setattr(Recorder, "settle_layouts", settle)


def _take_any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "hold_to", lambda self, *_, **__: None)
    monkeypatch.setattr("veil.training.fitting.sealing_key", lambda *_: bytes(32))


def _forget_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Ledger.reserve

    def others(self: Ledger, purpose: str, first: int, count: int, events: Any) -> int:
        return 0 if purpose == "preprocessing" else reserve(self, purpose, first, count, events)

    monkeypatch.setattr(StepReleases, "others", lambda self, cell: ())
    monkeypatch.setattr(Ledger, "reserve", others)


def _leave_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelState, "put_back", lambda self, **_: None)


GUARDS = [
    Guard("where rows stand is established in every pass", _believe_rows_first, reordered_rows),
    Guard(
        "a parameter that no rule covers is found in the graph",
        lambda m: m.setattr(passes, "_without_rule", lambda *_: []),
        layer_without_rule,
    ),
    Guard(
        "the trial is made at other weights too",
        lambda m: m.setattr(probing._Trial, "redraw", lambda self, seed: None),
        mixing_behind_zero,
    ),
    Guard("what a forward pass writes is undone", _leave_state, written_buffer),
    Guard(
        "losses of a user's own loop are checked",
        lambda m: m.setattr(loss_trace.LossTrace, "check", lambda self, values: self.__exit__(None, None, None)),
        mixing_losses,
    ),
    Guard(
        "a resumed run has the rows it began with",
        _take_any_rows,
        resumed_on_other_rows,
    ),
    Guard(
        "evaluation is tried before anything is spent",
        lambda m: m.setattr("veil.training.fitting.check_evaluation", lambda *_: None),
        evaluation_at_the_end,
    ),
    Guard(
        "a continued run pays for all that was released before",
        _forget_earlier,
        forgotten_releases,
    ),
    Guard("the tail of the noise has further bits", lambda m: m.setattr(gaussian, "_END", 0), cut_tail),
    Guard(
        "held-out rows are chosen by what they say",
        lambda m: m.setattr(
            splitting, "identities_for", lambda relation, table: np.arange(len(table), dtype=np.uint64)
        ),
        removed_row,
    ),
    Guard(
        "a second fit on the same rows is noticed",
        lambda m: m.setattr(surroundings, "fitted_before", lambda *_: []),
        fitted_again,
    ),
]


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_the_attack_fails_while_the_guard_stands(guard: Guard, tmp_path: Path) -> None:
    assert guard.attack(tmp_path / "run") is None


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
def test_the_attack_succeeds_without_the_guard(guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.remove(monkeypatch)
    assert guard.attack(tmp_path / "run") is not None
