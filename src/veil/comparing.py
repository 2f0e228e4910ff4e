"""Compare: methods × seeds × budgets on one problem, in parallel, as the papers print it.

Every run has its own folder, so a comparison that was stopped goes on where it was, and a run that fails leaves its
sentence behind and does not stop the others. Comparing is tuning: each certificate says that it is not covered.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import torch
from scipy import stats
from torch import nn

from veil import methods as registry
from veil.errors import InputError, require
from veil.problem import Problem
from veil.randomness import Seed
from veil.training import fit
from veil.training.run import load

FIGURES = ("worst_group_accuracy", "average_group_accuracy", "accuracy")


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    method: str
    epsilon: float
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of its folder."""
        return f"{self.method}-eps{self.epsilon:g}-seed{self.seed}"


@dataclass(frozen=True)
class Comparison:
    """All runs: `rows` as `veil train` prints them, `failures` by label, `facts` for the report."""

    rows: list[dict[str, Any]]
    failures: dict[str, str]
    facts: list[dict[str, Any]] = field(repr=False)

    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds for each method and budget, best worst-group accuracy marked.

        `within_one_std` marks what lies within one standard deviation of the best. `p_value` is that of a paired t-test
        against the best over the seeds both have (two or more), on worst-group accuracy.
        """
        by_arm: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
        for row in self.rows:
            by_arm.setdefault((row["method"], row["budget"]), {})[row["seed"]] = row
        records = [_record(method, runs) for (method, _), runs in by_arm.items()]
        if not records:
            return []
        best = max(range(len(records)), key=lambda i: records[i]["worst_group_accuracy"]["mean"])
        top = records[best]["worst_group_accuracy"]
        arms = list(by_arm.values())
        for index, record in enumerate(records):
            record["best"] = index == best
            record["within_one_std"] = record["worst_group_accuracy"]["mean"] >= top["mean"] - (top["std"] or 0.0)
            record["p_value"] = None if index == best else _paired(arms[best], arms[index])
        return records

    def as_json(self) -> dict[str, Any]:
        """What `veil compare --json` prints."""
        return {"rows": self.rows, "summary": self.summary(), "failures": self.failures}


def compare(
    problem: Problem,
    evaluation: Problem,
    *,
    methods: Sequence[str],
    out: Path | str,
    model: Callable[[Problem, Seed], nn.Module],
    seeds: int = 3,
    epsilons: Sequence[float] = (1.0,),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    jobs: int = 1,
    backend: str = "loky",
    config: Mapping[str, Any] | None = None,
    finished: Callable[[str], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with seeds 1 … `seeds` at every budget; methods that are not private run at one budget only.

    `model` builds a fresh model from the problem and a seed, so that a seed gives every method the same start.
    """
    require(len(methods) > 0, "name at least one method to compare")
    require(seeds >= 1, f"seeds is {seeds}: it must be at least 1")
    chosen = options or {}
    for name in methods:
        registry.create(name, chosen.get(name, {}))
    private = {row["name"]: row["private"] for row in registry.table()}
    trials = [
        Trial(name, float(epsilon), seed, chosen.get(name, {}))
        for name in dict.fromkeys(methods)
        for epsilon in (epsilons if private[name] else epsilons[:1])
        for seed in range(1, seeds + 1)
    ]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    call = joblib.delayed(run_trial)
    work = (call(t, problem, evaluation, model, folder, dict(settings), dict(config or {})) for t in trials)
    rows, failures, facts = [], dict[str, str](), []
    runner = joblib.Parallel(n_jobs=jobs, backend=backend, return_as="generator")
    for trial, failure in zip(trials, runner(work), strict=True):
        if failure is not None:
            failures[trial.label] = failure
        else:
            found = load(folder / trial.label).facts
            facts.append(dict(found))
            keys = ("run", "method", "metrics", "privacy", "seconds", "stopped")
            rows.append({**{k: found[k] for k in keys}, "seed": trial.seed, "budget": trial.epsilon})
        if finished is not None:
            finished(trial.label if failure is None else f"{trial.label} failed: {failure}")
    comparison = Comparison(rows, failures, facts)
    text = json.dumps(comparison.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "comparison.json").write_text(text + "\n", encoding="utf-8")
    return comparison


def run_trial(
    trial: Trial,
    problem: Problem,
    evaluation: Problem,
    model: Callable[[Problem, Seed], nn.Module],
    folder: Path,
    settings: dict[str, Any],
    config: dict[str, Any],
) -> str | None:
    """One run into its folder, unless it is there already; returns the sentence of what went wrong, if it did."""
    target = folder / trial.label
    if (target / "certificate.json").exists():
        return None
    if (target / "ledger.jsonl").exists():
        # A run that was cut short. Its record of costs is set aside, never deleted.
        earlier = len(list(target.glob("ledger.interrupted-*.jsonl")))
        (target / "ledger.jsonl").rename(target / f"ledger.interrupted-{earlier + 1}.jsonl")
    torch.set_num_threads(1)
    try:
        fit(
            model(problem, Seed.from_int(trial.seed)),
            problem,
            method=trial.method,
            options=trial.options,
            evaluation=evaluation,
            out=target,
            config={**config, "seed": trial.seed},
            **{**settings, "epsilon": trial.epsilon, "seed": trial.seed},
        )
    except (InputError, ValueError, RuntimeError, OSError) as error:
        return str(error).splitlines()[0]
    return None


def _record(method: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {"method": method, "seeds": len(runs)}
    for figure in FIGURES:
        values = [run["metrics"][figure] for run in runs.values() if run["metrics"][figure] is not None]
        record[figure] = {
            "mean": statistics.mean(values) if values else None,
            "std": statistics.stdev(values) if len(values) > 1 else None,
        }
    record["epsilon"] = next(iter(runs.values()))["privacy"]["epsilon"]
    return record


def _paired(best: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]) -> float | None:
    shared = sorted(set(best) & set(other))
    if len(shared) < 2:
        return None
    figures = [[arm[seed]["metrics"]["worst_group_accuracy"] for seed in shared] for arm in (best, other)]
    if all(a == b for a, b in zip(*figures, strict=True)):
        return 1.0
    value = float(stats.ttest_rel(figures[0], figures[1]).pvalue)
    return value if math.isfinite(value) else None
