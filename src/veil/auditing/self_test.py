"""The self-test of a method: its own parts, run over canaries and replayed, against what it charges the ledger.

Nothing private is read: the rows are made up. It is for authors of methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veil import methods
from veil.accounting import Ledger
from veil.auditing.canaries import MakeLoop, Scores, make_canaries, play
from veil.auditing.goodness_of_fit import Check, Residuals
from veil.auditing.lower_bounds import fdp_fit
from veil.auditing.replay import fresh_seed_check, ledger_check, random_scene, replay_checks, tied_scene
from veil.errors import require
from veil.foundation.randomness import Seed
from veil.plans import Plan, Settings
from veil.problem import Cell, PublicFacts
from veil.training.loop import Loop

FALSE_ALARMS = 1e-4
CHECKS_AT_MOST = 64


@dataclass(frozen=True)
class SelfTest:
    """The result of every check. A sound method fails one or more with probability at most `false_alarms`.

    Args:
        method: Name of the method.
        checks: The result of each check.
        false_alarms: The probability with which a sound method fails.
    """

    method: str
    checks: tuple[Check, ...]
    false_alarms: float

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def as_json(self) -> dict[str, Any]:
        """What `veil audit --self-test --json` prints.

        Returns:
            Whether the test passed, and the finding of each check.
        """
        return {
            "method": self.method,
            "passed": self.passed,
            "false_alarms": self.false_alarms,
            "checks": [
                {"name": c.name, "passed": c.passed, "finding": c.finding, "p_value": c.p_value} for c in self.checks
            ],
        }


def small_facts() -> PublicFacts:
    """Two groups and two owners with different budgets: 240 rows."""
    sizes = ((0, 0, 60), (0, 1, 120), (1, 0, 20), (1, 1, 40))
    return PublicFacts(
        ("majority", "minority"),
        ("careful", "open"),
        tuple(Cell(*size) for size in sizes),
        (6,),
        "classification",
        ("0", "1"),
        (0.5, 2.0),
        "declared",
    )


def small_plan(method: str | methods.Method, options: Mapping[str, Any] | None = None, **settings: Any) -> Plan:
    """A plan of the method for the small facts: 40 steps of 24 rows."""
    chosen = methods.create(method, options) if isinstance(method, str) else method
    given: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-4, "steps": 40, "batch_size": 24, **settings}
    return chosen.plan(small_facts(), Settings.checked(**given))


def self_test(
    method: str | methods.Method | Plan,
    options: Mapping[str, Any] | None = None,
    *,
    per_group: int = 2_000,
    seed: int | None = None,
    make_loop: MakeLoop = Loop,
    reopen: Callable[[Path], Ledger] = Ledger.open,
    fresh: Callable[[], Seed] = Seed.from_system,
    **settings: Any,
) -> SelfTest:
    """Check a method: noise, bounds, draws, charges, ledger, and whether canaries leak more than ε.

    `make_loop`, `reopen` and `fresh` are parts that tests of this function replace with broken copies.

    Args:
        method: A name, a method, or a plan.
        options: Options of a method that is given by its name.
        per_group: Synthetic rows in each group.
        seed: Fixed in tests; by default secret.
        make_loop: The loop under test.
        reopen: How the ledger is read back.
        fresh: Where secret seeds come from.
        settings: Fields of `veil.plans.Settings`.

    Returns:
        Each check with its outcome; `passed` says whether all hold.

    Raises:
        InputError: The method is not private, or an option or a setting is impossible.

    >>> self_test("dp-sgd", seed=1, steps=10, per_group=500).passed
    True
    """
    plan = method if isinstance(method, Plan) else small_plan(method, options, **settings)
    require(plan.relation is not None, f"{plan.method} is not private: there is no guarantee to test")
    assert plan.relation is not None
    level = FALSE_ALARMS / CHECKS_AT_MOST
    source = Seed.from_system() if seed is None else Seed.from_int(seed)
    canaries = make_canaries(plan, per_group, source, rows=1)
    names = tuple(plan.facts.cell_name(cell) for cell in range(len(plan.facts.cells)))
    residuals = Residuals(canaries, plan.relation, names)
    scores = play(plan, seed=source, make_loop=make_loop, watch=[residuals.watch], canaries=canaries)
    checks = [*residuals.checks(level)]
    for scene in (tied_scene(plan), random_scene(plan)):
        checks += replay_checks(plan, scene)
    checks += [ledger_check(plan, reopen), fresh_seed_check(level, fresh)]
    checks += [_canary_check(plan, scores, cell, level) for cell in range(len(names))]
    require(len(checks) <= CHECKS_AT_MOST, f"{len(checks)} checks: the false-alarm rate is stated for {CHECKS_AT_MOST}")
    return SelfTest(plan.method, tuple(checks), FALSE_ALARMS)


def _canary_check(plan: Plan, scores: Scores, cell: int, level: float) -> Check:
    assert plan.rules is not None
    name = f"canaries give away no more than ε ({plan.facts.cell_name(cell)})"
    own = scores.canaries.cells == cell
    promised = plan.rules[cell].guarantee(plan.delta, plan.settings.accountant_for(plan.facts))
    found = fdp_fit(scores.values[own], scores.canaries.coins[own], scores.charged[cell], plan.delta, 1.0 - level)
    return Check(name, found.epsilon <= promised, f"at least {found.epsilon:.3g} of {promised:.3g}", None)
