"""Audits: canaries, ASC beside aZB-weak, LiRA per owner: the runner of `veil reproduce audit`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from experiments.audit_page import write_page
from experiments.runner import Asked
from experiments.runner.findings import open_findings, read_findings
from veil import methods
from veil.auditing.attacks import canary_audit, lira_audit
from veil.auditing.shadow_models import ShadowTraining
from veil.datasets.mnist import LOW_AND_HIGH, load_mnist
from veil.datasets.split import shuffled
from veil.foundation.files import cache_folder
from veil.foundation.randomness import Seed
from veil.models import build_model
from veil.plans import Plan, Settings
from veil.problem import Cell, Problem, PublicFacts
from veil.request import AuditSettings

Options = Mapping[str, Any]
WANTED = {1.0: 0.7, 2.0: 1.5, 4.0: 3.0, 8.0: 6.0}
GROUPS = {"majority": 15_000, "minority": 1_500}
ATTACKED = {
    "idp-sgd": {"steps": 60, "learning_rate": 2.0, "momentum": 0.0},
    "ino-sgd": {"steps": 60, "learning_rate": 2.0, "momentum": 0.0},
    "erm": {"steps": 400, "learning_rate": 0.05, "momentum": 0.9},
}
OPTIONS: dict[str, dict[str, Any]] = {"ino-sgd": {"tail": 30.0, "alpha": 1.0, "beta": 1.0}}  # as the paper guides


def facts_of(sizes: dict[str, int]) -> PublicFacts:
    """Public facts with these groups and one owner; a canary audit needs nothing else."""
    cells = tuple(Cell(group, 0, rows) for group, rows in enumerate(sizes.values()))
    return PublicFacts(tuple(sizes), ("everybody",), cells, (1,), "classification", ("0", "1"), None, True)


def plan_of(method: str, options: dict[str, Any], facts: PublicFacts, **settings: Any) -> Plan:
    """A plan at δ = 1e-5."""
    return methods.create(method, options).plan(facts, Settings.checked(delta=1e-5, **settings))


def canaries(options: Options) -> list[dict[str, Any]]:
    """DP-SGD with q = .1 and T = 200, 20,000 canaries of which about half are in; every bound, every repeat."""
    found = []
    for epsilon in options["epsilons"]:
        plan = plan_of("dp-sgd", {}, facts_of({"everybody": 20_000}), epsilon=epsilon, steps=200, batch_size=2_000)
        audits = [canary_audit(plan, AuditSettings.checked(seed=seed)) for seed in range(options["repeats"])]
        bounds = {
            name: [audit.overall.bound(name) for audit in audits]
            for name in ("fdp-fit", "gdp-fit", "clopper-pearson", "one-run")
        }
        seconds = float(np.median([audit.seconds for audit in audits]))
        found.append({"epsilon": epsilon, "wanted": WANTED[epsilon], "bounds": bounds, "seconds": seconds})
        print(f"canaries, ε = {epsilon:g}: {min(bounds['fdp-fit']):.3f} … {max(bounds['fdp-fit']):.3f}", flush=True)
    return found


def groups(options: Options) -> list[dict[str, Any]]:
    """ASC and aZB-weak with a majority and a minority a tenth as large, many canaries each."""
    found, many = [], options["canaries"]
    for method, chosen in (("asc", {"loss_rate": 1.0}), ("azb-weak", {"allow_weaker_minority_privacy": True})):
        plan = plan_of(method, chosen, facts_of(GROUPS), epsilon=1.0, steps=200, batch_size=512)
        asked = [AuditSettings.checked(canaries=many, seed=seed) for seed in range(options["repeats"])]
        audits = [canary_audit(plan, one) for one in asked]
        for name in GROUPS:
            found.append(
                {
                    "method": method,
                    "group": name,
                    "rows": GROUPS[name],
                    "epsilon": audits[0].by_group[name].epsilon,
                    "bounds": {
                        bound: [audit.by_group[name].bound(bound) for audit in audits]
                        for bound in ("fdp-fit", "gdp-fit", "one-run")
                    },
                }
            )
            print(f"{method}, {name}: {found[-1]['bounds']['fdp-fit']}", flush=True)
    return found


def some_digits(rows: int) -> Problem:
    """A public random part of MNIST's training rows, with the two owners and their budgets."""
    whole = load_mnist(owners="halves").train
    chosen = np.sort(shuffled(len(whole), 0, "audit")[:rows])
    digits = whole.targets.numpy()[chosen]
    owners = np.where(digits < 5, *LOW_AND_HIGH)
    return Problem.from_arrays(
        whole.inputs[chosen], digits, digits, owners=owners, budgets=LOW_AND_HIGH, classes=list(range(10))
    )


def build(problem: Problem, seed: Seed) -> nn.Module:
    """The tanh network of Papernot et al., its start from the seed."""
    return build_model("papernot-mnist", problem.public, seed)


def lira(options: Options, jobs: int, cache: Path) -> dict[str, Any]:
    """LiRA per owner at the paper's budgets; `erm`, ordinary training, shows that the attack can bite."""
    problem, shadows, found = some_digits(options["rows"]), options["shadows"], dict[str, Any]()
    for method in options["attacked"]:
        settings = ATTACKED[method] | options.get("settings", {})
        plan = plan_of(method, OPTIONS.get(method, {}), problem.public, batch_size=256, **settings)
        training = ShadowTraining(plan, problem, build, cache / method)
        audits = {
            mode: lira_audit(training, AuditSettings.checked(shadows=shadows, mode=mode), jobs)
            for mode in ("online", "offline")
        }
        found[method] = {mode: audit.as_json() for mode, audit in audits.items()} | {"settings": settings}
        for owner, one in audits["online"].by_owner.items():
            assert one.curve is not None
            print(f"lira, {method}, {owner}: AUROC {one.curve.auroc:.4f}", flush=True)
    return found


def settings_of(part: str, options: Options, seeds: int | None = None) -> dict[str, Any]:
    """What the findings of a part depend on; more seeds are more repeats."""
    chosen = dict(options[part])
    return chosen | {"repeats": seeds} if seeds is not None and "repeats" in chosen else chosen


def reproduce(asked: Asked) -> None:
    """Do the parts that are asked for and not in the JSON file yet, and write the page.

    Shadow models are kept in the cache folder at the scale of the paper: they take hours.
    """
    findings = open_findings(asked)
    with tempfile.TemporaryDirectory() as scratch:
        cache = cache_folder() / "audit-shadows" if asked.scale == "paper" else Path(scratch)
        work: dict[str, Callable[[Options], Any]] = {
            "canaries": canaries,
            "groups": groups,
            "lira": lambda options: lira(options, asked.jobs, cache),
        }
        for name in asked.options:
            settings = settings_of(name, asked.options, asked.seeds)
            part = findings.part(name, settings, None)
            if part["found"] is not None:
                continue
            started = time.perf_counter()
            part["found"] = work[name](settings)
            part["seconds"] = round(time.perf_counter() - started, 1)
            findings.keep(asked)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page and its figures from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    write_page(findings.found, findings.made_by(), folder)
