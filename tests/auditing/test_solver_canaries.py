"""Canaries through methods that are solved as a whole: near the promise, and above it where it is broken."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import veil
from veil.accounting import Gaussian, Relation
from veil.auditing.solver_canaries import ForgetfulNoise, play_solver
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.foundation.randomness import Seed
from veil.methods.convex.steered_descent import SteeredDescent
from veil.plans import Plan


def planned(method: str, epsilon: float = 4.0) -> Plan:
    return veil.plan(generate([GroupSpec("a", 900), GroupSpec("b", 100)], features=8), method, epsilon=epsilon)


@pytest.mark.parametrize("method", ["auto", "group-gd"])
def test_an_audit_comes_near_the_promise_and_not_above_it(method: str) -> None:
    found = veil.audit(planned(method), canaries=150, seed=0)
    assert found.holds
    assert found.by_group["b"].bounds[0].epsilon > 1.5


class Quiet(SteeredDescent):
    """Charges what it should, and adds a sixth of the noise to its gradients."""

    def events(self) -> list[tuple[str, int, Gaussian]]:
        honest = replace(self.noises, gradients=6 * self.noises.gradients)
        return SteeredDescent.events(replace(self, noises=honest))


def test_a_solver_with_too_little_noise_is_caught() -> None:
    plan = planned("auto", epsilon=1.0)
    assert isinstance(plan.solver, SteeredDescent)
    parts = {field.name: getattr(plan.solver, field.name) for field in fields(SteeredDescent)}
    parts["noises"] = replace(plan.solver.noises, gradients=plan.solver.noises.gradients / 6)
    # 30 were enough with each of four seeds.
    found = veil.audit(replace(plan, solver=Quiet(**parts)), canaries=40, seed=0)
    assert not found.holds


def test_without_the_canary_every_release_is_noise_alone() -> None:
    noise = ForgetfulNoise(Seed.from_int(3), there=False)
    plain = noise.add(2, {"a": torch.zeros(5)}, 1.5)["a"]
    assert torch.equal(noise.add(2, {"a": torch.ones(5)}, 1.5)["a"], plain)
    assert noise.ratios[0] == 0.0
    assert noise.ratios[1] == pytest.approx(float(plain.double().sum() - 2.5) / 1.5**2)


def test_the_same_seed_gives_the_same_scores() -> None:
    plan = planned("group-gd")
    one, other = (play_solver(plan, 3, Seed.from_int(1)).values for _ in range(2))
    assert np.array_equal(one, other)


def test_a_solver_that_draws_rows_is_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="noisy-sgd-mgr is not audited by canaries: take another attack"):
        veil.audit(planned("noisy-sgd-mgr"), canaries=10)
    plan = planned("auto")
    with pytest.raises(InputError, match="take another attack"):
        play_solver(replace(plan, relation=Relation.REPLACE_ONE), 5, Seed.from_int(0))
