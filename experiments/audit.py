"""Audits: canaries, ASC beside aZB-weak, LiRA per owner; `python -m experiments.audit` writes docs/results/audit.*"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import veil
from experiments.audit_page import write_page
from veil import methods
from veil.auditing.running import canary_audit, lira_audit
from veil.datasets.files import cache_folder
from veil.datasets.mnist import LOW_AND_HIGH, load_mnist
from veil.datasets.split import shuffled
from veil.models.images import papernot_mnist
from veil.plan import Plan, Settings
from veil.problem import Cell, Problem, PublicFacts
from veil.randomness import Seed

TRUE_EPSILONS = (1.0, 2.0, 4.0, 8.0)
WANTED = {1.0: 0.7, 2.0: 1.5, 4.0: 3.0, 8.0: 6.0}
GROUPS = {"majority": 15_000, "minority": 1_500}
ATTACKED = {
    "idp-sgd": {"steps": 60, "learning_rate": 2.0, "momentum": 0.0},
    "ino-sgd": {"steps": 60, "learning_rate": 2.0, "momentum": 0.0},
    "erm": {"steps": 400, "learning_rate": 0.05, "momentum": 0.9},
}


def facts_of(sizes: dict[str, int]) -> PublicFacts:
    """Public facts with these groups and one owner; a canary audit needs nothing else."""
    cells = tuple(Cell(group, 0, rows) for group, rows in enumerate(sizes.values()))
    return PublicFacts(tuple(sizes), ("everybody",), cells, (1,), "classification", ("0", "1"), None, True)


def plan_of(method: str, options: dict[str, Any], facts: PublicFacts, **settings: Any) -> Plan:
    """A plan at δ = 1e-5."""
    return methods.create(method, options).plan(facts, Settings.checked(delta=1e-5, **settings))


def canaries(repeats: int) -> list[dict[str, Any]]:
    """DP-SGD with q = .1 and T = 200, 20,000 canaries of which about half are in; every bound, every repeat."""
    found = []
    for epsilon in TRUE_EPSILONS:
        plan = plan_of("dp-sgd", {}, facts_of({"everybody": 20_000}), epsilon=epsilon, steps=200, batch_size=2_000)
        audits = [canary_audit(plan, seed=Seed.from_int(seed)) for seed in range(repeats)]
        bounds = {
            name: [audit.overall.bound(name) for audit in audits]
            for name in ("fdp-fit", "gdp-fit", "clopper-pearson", "one-run")
        }
        seconds = float(np.median([audit.seconds for audit in audits]))
        found.append({"epsilon": epsilon, "wanted": WANTED[epsilon], "bounds": bounds, "seconds": seconds})
        print(f"canaries, ε = {epsilon:g}: {min(bounds['fdp-fit']):.3f} … {max(bounds['fdp-fit']):.3f}", flush=True)
    return found


def groups(repeats: int) -> list[dict[str, Any]]:
    """ASC and aZB-weak with a majority and a minority a tenth as large, 200,000 canaries each."""
    found = []
    for method, options in (("asc", {}), ("azb-weak", {"allow_weaker_minority_privacy": True})):
        plan = plan_of(method, options, facts_of(GROUPS), epsilon=1.0, steps=200, batch_size=512)
        audits = [canary_audit(plan, per_group=200_000, seed=Seed.from_int(seed)) for seed in range(repeats)]
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed.generator("model", 0).integers(2**62)))
        return papernot_mnist(problem.public)


def lira(attacked: list[str], rows: int, shadows: int, jobs: int, cache: Path) -> dict[str, Any]:
    """LiRA per owner at the paper's budgets; `erm`, ordinary training, shows that the attack can bite."""
    problem, found = some_digits(rows), dict[str, Any]()
    for method in attacked:
        settings = ATTACKED[method]
        plan = plan_of(method, {}, problem.public, batch_size=256, **settings)
        audits = {
            mode: lira_audit(plan, problem, build, shadows, mode, jobs, out=cache / method)  # type: ignore[arg-type]
            for mode in ("online", "offline")
        }
        found[method] = {mode: audit.as_json() for mode, audit in audits.items()} | {"settings": settings}
        for owner, one in audits["online"].by_owner.items():
            assert one.curve is not None
            print(f"lira, {method}, {owner}: AUROC {one.curve.auroc:.4f}", flush=True)
    return found


def main() -> None:
    """Do what is asked for, keep it in the JSON file, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="canaries,groups,lira", help="which parts, separated by commas")
    parser.add_argument("--repeats", type=int, default=20, help="repeats of the canary audits (groups: at most 5)")
    parser.add_argument("--rows", type=int, default=6_000, help="rows of MNIST")
    parser.add_argument("--attacked", default="idp-sgd,ino-sgd", help="for lira; erm is ordinary training")
    parser.add_argument("--shadows", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "audit-shadows", help="keeps shadow models")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    file = given.out / "audit.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    work = {
        "canaries": lambda: canaries(given.repeats),
        "groups": lambda: groups(min(given.repeats, 5)),
        "lira": lambda: lira(given.attacked.split(","), given.rows, given.shadows, given.jobs, given.cache),
    }
    for part in given.parts.split(",") if given.parts else ():
        started = time.perf_counter()
        known[part] = {
            "found": work[part](),
            "seconds": round(time.perf_counter() - started, 1),
            "command": shlex.join(["python", "-m", "experiments.audit", *sys.argv[1:]]),
            "versions": {"veil": veil.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "rows": given.rows,
            "shadows": given.shadows,
        }
        file.write_text(json.dumps(known, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page(known, given.out)


if __name__ == "__main__":
    main()
