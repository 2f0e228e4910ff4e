"""A run that ends early by public facts is charged for the steps it made; any other keeps the ε of its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import veil
from veil.accounting import Account, Pld, Terms, TokenBucket
from veil.accounting.events import PoissonGaussian, Relation, Repeated
from veil.accounting.ledger import STEPS_PUBLIC, Ledger
from veil.accounting.verify import verify
from veil.errors import InputError
from veil.plans.plan import PUBLIC_STEPS
from veil.problem import Problem
from veil.training.callbacks import Callback, EarlyStopping, StepReport, StopTraining
from veil.training.run import Run

PLANNED, MADE = 30, 4
SETTINGS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "steps": PLANNED, "batch_size": 10, "seed": 3}


def ended(made: int, out: Path | None = None, method: str = "dp-sgd", **settings: Any) -> Run:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(100, 3, generator=generator), torch.randint(0, 2, (100,), generator=generator)
    model = nn.Linear(3, 2)
    problem = Problem.from_arrays(x, y, ["a", "b"] * 50)
    session = veil.session(model, problem, method=method, out=out, **{**SETTINGS, **settings})
    for number, (inputs, targets) in enumerate(session, start=1):
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        if number == made:
            break
    return session.finish()


def test_so_many_steps_cost_what_a_run_of_so_many_steps_costs() -> None:
    run = ended(MADE, public_steps=True)
    noise = run.plan.details["noise_multiplier"]
    steps = Repeated(PoissonGaussian(noise, 0.1, Relation.ADD_REMOVE), MADE)
    assert run.certificate.epsilon == pytest.approx(Pld().epsilon([steps], 1e-5), rel=1e-6)
    assert run.certificate.epsilon < 1.0 < ended(PLANNED, public_steps=True).certificate.epsilon
    assert PUBLIC_STEPS in run.certificate.assumptions


def test_a_run_whose_end_may_have_looked_at_releases_keeps_the_epsilon_of_its_plan() -> None:
    run = ended(MADE)
    assert run.certificate.epsilon == pytest.approx(2.0, rel=0.01)
    assert PUBLIC_STEPS not in run.certificate.assumptions


def test_the_certificate_is_verified_and_no_other_ledger_gives_it(tmp_path: Path) -> None:
    run = ended(MADE, tmp_path / "public", public_steps=True)
    assert verify(tmp_path / "public" / "certificate.json").holds
    ledger = Ledger.open(tmp_path / "public" / "ledger.jsonl")
    assert [entry["count"] for entry in ledger.entries] == [1] * MADE, "a step is reserved when it is made"
    ended(MADE, tmp_path / "plain")
    forged = (tmp_path / "plain" / "certificate.json").read_text(encoding="utf-8")
    whole = max(run.certificate.by_group.values())
    kept = ended(MADE).certificate.epsilon
    (tmp_path / "plain" / "certificate.json").write_text(forged.replace(str(kept), str(whole)), encoding="utf-8")
    assert not verify(tmp_path / "plain" / "certificate.json").holds


def test_a_method_that_chooses_what_its_steps_cost_is_refused() -> None:
    with pytest.raises(InputError, match="steps all cost the same"):
        ended(MADE, method="asc", public_steps=True)


def test_a_run_that_callbacks_may_end_has_no_public_number_of_steps() -> None:
    problem = Problem.from_arrays(torch.randn(60, 3), [0, 1] * 30, ["a", "b"] * 30)
    settings = {**SETTINGS, "public_steps": True}
    with pytest.raises(InputError, match="loop of your own"):
        veil.fit(nn.Linear(3, 2), problem, method="dp-sgd", **settings)
    with pytest.raises(InputError, match="a callback steers it"):
        veil.session(
            nn.Linear(3, 2), problem, method="dp-sgd", callbacks=[EarlyStopping()], evaluation=problem, **settings
        )


class SilentStop(Callback):
    def on_step(self, report: StepReport) -> None:
        raise StopTraining("it looks good")


def test_a_callback_that_does_not_say_that_it_steers_cannot_end_such_a_run() -> None:
    problem, model = Problem.from_arrays(torch.randn(60, 3), [0, 1] * 30, ["a", "b"] * 30), nn.Linear(3, 2)
    session = veil.session(
        model, problem, method="dp-sgd", callbacks=[SilentStop()], **{**SETTINGS, "public_steps": True}
    )
    with pytest.raises(InputError, match="omit public_steps"):
        for inputs, targets in session:
            session.step(F.cross_entropy(model(inputs), targets, reduction="none"))


def test_a_cell_that_sat_steps_out_is_charged_for_as_many_as_the_others() -> None:
    """Who takes part in a step may follow from releases: that somebody took part in fewer is no public number."""
    event = PoissonGaussian(2.0, 0.1, Relation.ADD_REMOVE)
    rule = TokenBucket((Repeated(event, PLANNED),))
    short = TokenBucket((Repeated(event, 3),))
    accounts = (Account("a", "all", 9.0, rule), Account("b", "all", 9.0, rule), Account("c", "all", 9.0, short))
    ledger = Ledger(Terms(Relation.ADD_REMOVE, 1e-5, "pld", accounts, {STEPS_PUBLIC: True}))
    assert all(account.rule == TokenBucket(()) for account in ledger.standing().terms.accounts)
    ledger.reserve("gradient", 0, 2, {0: event, 1: event})
    ledger.reserve("gradient", 2, 3, {0: event})
    found = [account.rule for account in ledger.standing().terms.accounts]
    assert found == [TokenBucket((Repeated(event, times),)) for times in (5, 5, 3)]
