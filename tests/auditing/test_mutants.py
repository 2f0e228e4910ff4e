"""The self-test catches every broken copy of a method's parts and lets the healthy ones pass.

False alarms: a healthy method fails with a probability of at most 1e-4 per run (all checks together).
"""

from __future__ import annotations

import pytest

from tests.auditing.mutants import MUTANTS, SEED, Mutant
from veil import methods
from veil.auditing.self_test import FALSE_ALARMS, self_test, small_plan

HEALTHY = [
    ("dp-sgd", {}),
    ("dp-sgd", {"sampling": "wor"}),
    ("dp-sgd", {"neighbours": "replace-one"}),
    ("adaptive-clip", {}),
    ("dp-is-sgd", {}),
    ("idp-sgd", {"variant": "scale"}),
    ("ino-sgd", {}),
    ("ino-sgd", {"tail": 60}),
    ("auto-s", {}),
    ("global-adapt", {}),
    ("fdpg", {}),
    ("azb", {}),
]
# Methods that solve a linear model as a whole are no SGD loops: they have no steps that canaries could go through.
STEPWISE = [
    row["name"]
    for row in methods.table()
    if row["private"] and "convex" not in row["family"] and row["name"] not in ("group-gd", "auto")
]


@pytest.mark.statistical
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_part_is_caught_by_the_check_that_is_there_for_it(mutant: Mutant) -> None:
    verdict = mutant.test()
    assert any(name.startswith(mutant.caught_by) for name in verdict.failures), verdict.failures


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "options"), HEALTHY, ids=str)
def test_a_healthy_method_passes_every_check(name: str, options: dict[str, object]) -> None:
    verdict = self_test(name, options, seed=SEED)
    assert verdict.false_alarms == FALSE_ALARMS == 1e-4
    assert verdict.passed, verdict.failures


@pytest.mark.statistical
@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_method_passes_with_other_seeds_too(seed: int) -> None:
    assert self_test(small_plan("idp-sgd"), seed=100 + seed).failures == ()


@pytest.mark.slow
@pytest.mark.statistical
def test_p_values_of_a_healthy_method_are_spread_as_they_should_be() -> None:
    # 20 runs: the share below 0.05 is binomial (about 25 values a run); 0.12 is rarer than 1e-4 even if half depend.
    plan = small_plan("dp-sgd", steps=20)
    values = [c.p_value for s in range(20) for c in self_test(plan, seed=s, per_group=500).checks if c.p_value]
    assert sum(value < 0.05 for value in values) / len(values) < 0.12
    assert sum(value < 0.5 for value in values) / len(values) > 0.35


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("name", STEPWISE)
def test_every_private_method_passes_its_self_test(name: str) -> None:
    options = {"allow_weaker_minority_privacy": True} if name == "azb-weak" else {}
    assert self_test(name, options, seed=SEED).failures == ()


def test_there_are_at_least_fifteen_mutants_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
