"""Where INO-SGD gains over IDP-SGD: clip × tail × steps on MNIST, the runner of `veil reproduce ino-regimes`.

Five parts, each resumed from what is stored: `tuning` (both methods on validation rows, with seeds of its own; every
choice with the first of them, the finalists with all), `best` (the best of either on test rows, with fresh seeds),
`map` (test rows, five seeds), `long` (one run of each method over as many steps as the paper's) and `beside` (the
network without privacy, and a constant answer). A length without the grids `idp` and `ino` is only mapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from experiments.ino_regimes_page import CONSTANT, score, write_page
from experiments.runner import Asked
from experiments.runner.findings import Findings, open_findings, read_findings
from experiments.runner.problems import cut_down, load_pair, taken
from experiments.runner.running import constant_answer
from veil import methods
from veil.datasets.owner_scenarios import Owner, disjoint
from veil.datasets.split import set_apart
from veil.foundation.randomness import Seed
from veil.metrics.owners import evaluate_owners
from veil.models import build_model
from veil.plans import Plan, Settings
from veil.problem import Problem, PublicFacts
from veil.training.fitting import Job, execute, row_losses
from veil.training.owner_curves import OwnerCurves, looks

OWNERS = (Owner("0–4", tuple("01234"), 0.1), Owner("5–9", tuple("56789"), 1.0))
VALIDATION_SEEDS = (100, 101, 102)
PARTS = ("tuning", "best", "map", "long", "beside")
# The network without privacy: the best of five settings on the validation rows of ino-default-mnist, seed 101.
WITHOUT_PRIVACY = {"learning_rate": 0.3, "momentum": 0.9}


@dataclass(frozen=True)
class Choice:
    """One setting: steps T, clip C, reach η = learning rate × C, the tail in percent (0 is IDP-SGD) and its shape.

    >>> Choice(60, 1.0, 2.0, 90.0).label
    'steps 60, clip 1, reach 2, tail 90'
    >>> Choice(60, 1.0, 2.0, 60.0, 4.0, 0.5).label
    'steps 60, clip 1, reach 2, tail 60, shape 4 0.5'
    """

    steps: int
    clip: float
    reach: float
    tail: float
    alpha: float = 1.0
    beta: float = 1.0

    @property
    def label(self) -> str:
        """As a key of the stored runs; a straight tail does not name its shape."""
        said = f"steps {self.steps}, clip {self.clip:g}, reach {self.reach:g}, tail {self.tail:g}"
        straight = (self.alpha, self.beta) == (1.0, 1.0)
        return said if straight else f"{said}, shape {self.alpha:g} {self.beta:g}"


@lru_cache(maxsize=1)
def _rows(validation: bool, rows: int | None, test_rows: int | None) -> tuple[Problem, Problem]:
    train, test = load_pair("mnist", {}, 0)
    train, test = disjoint(train, OWNERS), disjoint(test, OWNERS)
    if validation:
        stay, apart = set_apart(len(train), 1 / 12, 0, "ino-regimes/validation")
        train, test = taken(train, stay), taken(train, apart)
    return (
        train if rows is None else cut_down(train, rows),
        test if test_rows is None else cut_down(test, test_rows),
    )


@lru_cache(maxsize=128)
def _plan(choice: Choice, batch: int, facts: PublicFacts) -> Plan:
    settings = Settings.checked(
        seed=0, momentum=0.0, delta=1e-5, steps=choice.steps, batch_size=batch, learning_rate=choice.reach / choice.clip
    )
    shape = {"tail": choice.tail, "alpha": choice.alpha, "beta": choice.beta}
    name, tail = ("ino-sgd", shape) if choice.tail else ("idp-sgd", {})
    return methods.create(name, {"clip": choice.clip, **tail}).plan(facts, settings)


def run_one(choice: Choice, seed: int, rows: Problem, test: Problem, options: Mapping[str, Any]) -> dict[str, Any]:
    """One run: figures of every owner at the end on all rows, and along the run on fewer."""
    plan = _plan(choice, options["batch_size"], rows.public)
    plan = replace(plan, settings=plan.settings.model_copy(update={"seed": seed}))
    model = build_model("papernot-mnist", rows.public, Seed.from_int(seed))
    few = cut_down(test, options["curve_rows"])
    along = looks(choice.steps) if choice.steps >= 1000 else _few_looks(choice.steps)
    curves = OwnerCurves(few, at=along, activity_rows=options["activity_rows"])
    run = execute(Job(model, rows, None, row_losses, (curves,)), plan, None)
    end = evaluate_owners(run.model, test)
    found = {
        "end": {owner: score.accuracy for owner, score in end.by_group.items()} | {"all": end.accuracy},
        "epsilon": dict(run.certificate.by_owner),
        "batch": plan.details["batch"],
        "noise": plan.details["sigma"] / choice.clip,
        "seconds": round(run.seconds, 1),
        **curves.findings(),
    }
    return _rounded(found)


def run_without_privacy(
    steps: int, seed: int, rows: Problem, test: Problem, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The same network, batch and steps without privacy: figures of every owner at the end."""
    settings = Settings.checked(seed=seed, steps=steps, batch_size=options["batch_size"], **WITHOUT_PRIVACY)
    plan = methods.create("erm", {}).plan(rows.public, settings)
    model = build_model("papernot-mnist", rows.public, Seed.from_int(seed))
    end = evaluate_owners(execute(Job(model, rows, None, row_losses, ()), plan, None).model, test)
    return {"end": _rounded({owner: score.accuracy for owner, score in end.by_group.items()} | {"all": end.accuracy})}


def constant_end(rows: Problem, test: Problem) -> dict[str, Any]:
    """What always saying the most frequent digit scores for every owner."""
    found = (constant_answer(rows, test) or {})["figures"]
    end = {owner: found[f"owner:{owner}"] for owner in rows.public.owners}
    return {"end": _rounded(end | {"all": found["accuracy"]})}


def _few_looks(steps: int) -> tuple[int, ...]:
    """Eight places: an eighth of the run each, and its first steps."""
    return tuple(
        sorted({max(1, round(steps * part)) for part in (1 / 30, 1 / 12, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)})
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def tuned_choices(length: Mapping[str, Any], *, ordered: bool) -> list[Choice]:
    """The grid of one method: clip × reach, and for INO-SGD × tails (percent, α, β); then what `more` has around it."""
    grid, steps = length["ino" if ordered else "idp"], length["steps"]
    tails = grid["tails"] if ordered else [[0.0]]
    crossed = [[clip, reach, *tail] for clip in grid["clips"] for reach in grid["reaches"] for tail in tails]
    more = [one if ordered else [*one, 0.0] for one in grid.get("more", [])]
    return [Choice(steps, *numbers) for numbers in (*crossed, *more)]


def reproduce(asked: Asked) -> None:
    """Run what is asked for and not stored yet, one length of run after the other, and write the page."""
    torch.set_num_threads(1)
    findings, options = open_findings(asked), dict(asked.options)
    not_of_runs = ("lengths", "seeds", "finalists", "long_steps")
    shared = {key: value for key, value in options.items() if key not in not_of_runs}
    kept = {part: findings.part(part, shared, {})["found"] for part in PARTS}
    study = _Study(asked, findings, kept, shared)
    sizes = options.get("rows"), options.get("test_rows")
    for length in options["lengths"]:
        bests = []
        if "idp" in length:
            apart = _rows(True, *sizes)
            bests = [study.tune(length, ordered, apart, options["finalists"]) for ordered in (False, True)]
        rows, test = _rows(False, *sizes)
        for seed in range(options["seeds"], 2 * options["seeds"]):
            for choice in bests:
                study.keep("best", choice, seed, (rows, test))
        for seed in range(asked.seeds or options["seeds"]):
            for choice in mapped_choices(length):
                study.keep("map", choice, seed, (rows, test))
        for seed in range(asked.seeds or options["seeds"]):
            study.keep_beside(length["steps"], seed, (rows, test))
        if length is options["lengths"][0]:
            for choice in long_choices(options, rows.public):
                study.keep("long", choice, 0, (rows, test))
    rewrite(asked.name, asked.folder)


def mapped_choices(length: Mapping[str, Any]) -> list[Choice]:
    """The settings of the map: clip × tail at one reach."""
    tails = [[0.0], *length["tails"]]
    return [Choice(length["steps"], clip, length["reach"], *tail) for clip in length["clips"] for tail in tails]


@dataclass(frozen=True)
class _Study:
    """What was asked for, and what is stored of it by part."""

    asked: Asked
    findings: Findings
    kept: Mapping[str, dict[str, Any]]
    options: Mapping[str, Any]

    def tune(self, length: Mapping[str, Any], ordered: bool, rows: tuple[Problem, Problem], finalists: int) -> Choice:
        """The best choice of a method: all with one validation seed, then the best few with all validation seeds."""
        grid, tuning = tuned_choices(length, ordered=ordered), self.kept["tuning"]
        for choice in grid:
            self.keep("tuning", choice, VALIDATION_SEEDS[0], rows)

        def first(choice: Choice) -> float:
            return score({"first": tuning[choice.label][str(VALIDATION_SEEDS[0])]})

        few = sorted(grid, key=first, reverse=True)[:finalists]
        for choice in few:
            for seed in VALIDATION_SEEDS[1:]:
                self.keep("tuning", choice, seed, rows)
        return max(few, key=lambda choice: score(tuning[choice.label]))

    def keep(self, part: str, choice: Choice, seed: int, rows: tuple[Problem, Problem]) -> None:
        """Run one choice with one seed unless it is stored, and store it; tuning does not look at the tail."""
        options = self.options if part in ("map", "long") else {**self.options, "activity_rows": 0}
        self._keep(part, choice.label, seed, lambda: run_one(choice, seed, *rows, options))

    def keep_beside(self, steps: int, seed: int, rows: tuple[Problem, Problem]) -> None:
        """What to compare with: the network without privacy, and a constant answer."""
        self._keep("beside", CONSTANT, 0, lambda: constant_end(*rows))
        self._keep("beside", f"steps {steps}", seed, lambda: run_without_privacy(steps, seed, *rows, self.options))

    def _keep(self, part: str, label: str, seed: int, run: Callable[[], dict[str, Any]]) -> None:
        by_seed = self.kept[part].setdefault(label, {})
        if str(seed) not in by_seed:
            by_seed[str(seed)] = found = run()
            self.findings.keep(self.asked)
            print(f"{part}: {label}, seed {seed}: {found['end']}", flush=True)


def long_choices(options: Mapping[str, Any], facts: PublicFacts) -> list[Choice]:
    """IDP-SGD, the longest straight tail and every steep one at the smallest clip, a run each.

    η is scaled so that the noise moves the weights as far as in the shortest map: the noise of all steps together moves
    every weight by η·κ·√T/b.
    """
    length = options["lengths"][0]
    own = Choice(length["steps"], min(length["clips"]), length["reach"], 0.0)

    def spread(choice: Choice) -> float:
        plan = _plan(choice, options["batch_size"], facts)
        return float(plan.details["sigma"]) / choice.clip * math.sqrt(choice.steps)

    long = replace(own, steps=options["long_steps"])
    reach = float(f"{own.reach * spread(own) / spread(long):.2g}")
    straight = max(tail for tail, *shape in length["tails"] if tuple(shape) in ((), (1.0, 1.0)))
    steep = [tail for tail in length["tails"] if tail[1:] and tuple(tail[1:]) != (1.0, 1.0)]
    return [Choice(long.steps, long.clip, reach, *tail) for tail in ([0.0], [straight], *steep)]


def rewrite(name: str, folder: Path) -> None:
    """The page from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    write_page({part: found["found"] for part, found in findings.found.items()}, findings.made_by(), folder)
