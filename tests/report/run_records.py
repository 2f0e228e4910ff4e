"""Generated records for report tests: several methods and seeds, groups, owners, histories with controller state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from veil.plans.plan import SEED_GIVEN

SEX_INCOME = ("Female × <=50K", "Female × >50K", "Male × <=50K", "Male × >50K")
LEVELS = {"erm": 0.72, "dp-sgd": 0.36, "dp-is-sgd": 0.52, "asc": 0.61}


def make_run(
    method: str = "asc",
    seed: int = 0,
    *,
    groups: tuple[str, ...] = SEX_INCOME,
    owners: dict[str, float] | None = None,
    steps: int = 400,
    epsilon: float = 1.0,
    extras: bool = False,
    evaluated: bool = True,
    effects: tuple[str, ...] = (),
) -> dict[str, Any]:
    """One run's record, as `Run.as_json()` gives them; `effects` are the classes of an additive model."""
    rng = np.random.default_rng([seed, *map(ord, method)])
    private = method != "erm"
    sizes = [int(x) for x in np.geomspace(9592, 1179, len(groups))]
    budgets = owners or {"everybody": epsilon}
    worst = LEVELS.get(method, 0.5) + 0.02 * rng.standard_normal()
    level = np.linspace(0.97, worst, len(groups))
    rows = max(1, sum(sizes))
    return {
        "run": f"runs/{method}-{seed}",
        "method": method,
        "seconds": round(3.0 + rng.random(), 3),
        "stopped": None,
        "metrics": _metrics(groups, sizes, level, rng, extras) if evaluated else None,
        "privacy": _privacy(groups, budgets, rows, private),
        "about": {
            "name": method,
            "family": "private and fair" if private else "not private",
            "private": private,
            "relation": "add-remove" if private else None,
            "summary": "sample the groups with low accuracy more often, within every row's budget",
        },
        "task": "classification",
        "classes": list(effects) or ["<=50K", ">50K"],
        "groups": [{"name": name, "rows": size} for name, size in zip(groups, sizes, strict=True)],
        "owners": [{"name": name, "rows": rows // len(budgets)} for name in budgets],
        "certificate": _certificate(method, groups, budgets, rows, private),
        "history": _history(method, groups, level, steps, epsilon if private else None, rng, evaluated),
        "settings": {"epsilon": epsilon, "delta": None, "epochs": 20.0, "batch_size": 512, "learning_rate": 0.5},
        "seed_given": True,
        "steps": steps,
        "details": {"noise_multiplier": 1.2345, "clip": 1.0, "sampling": "poisson", "batch": 512} if private else {},
        "findings": {"EarlyStopping": {"best_step": 311, "patience": 5}} if extras else {},
        "effects": make_effects(effects) if effects else None,
        "config": {
            "command": f"veil train adult.csv --target income --group sex,income --method {method}",
            "data": "UCI Adult",
            "target": "income",
            "group": ["sex", "income"],
            "model": "mlp",
            "seed": seed,
        },
        "parameters": 12345,
        "versions": {"veil": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "a key that no report knows": {"nested": [1, 2, 3]},
    }


def make_runs(methods: tuple[str, ...] = tuple(LEVELS), seeds: int = 3, **options: Any) -> list[dict[str, Any]]:
    """Methods × seeds."""
    return [make_run(method, seed, **options) for method in methods for seed in range(seeds)]


def make_effects(classes: tuple[str, ...], values: tuple[str, ...] = ("Exec", "Sales", "Other")) -> dict[str, Any]:
    """What an additive model learned: 13 columns of every kind, and 6 pairs."""
    rng = np.random.default_rng(7)
    curves = list(classes[1:]) if len(classes) == 2 else list(classes)
    drawn = lambda *shape: rng.standard_normal((len(curves), *shape)).tolist()  # noqa: E731
    many = [f"a rather long name of value {index}" for index in range(24)]
    at = {
        "number": [17.0, 37.54321, 52.0, 1234.5678, 90000.0],
        "date": [16000.0, 17123.4, 18000.0, 19000.0],
        "category": list(values),
        "hashed category": ["hash 3", "hash 17"],
        "text": [f"hash {index}" for index in range(6)],
    }
    kinds = ["number", "category", "date", "number", "many", "hashed category", "text", *["number"] * 6]
    columns = [
        {
            "column": f"column {index}: {kind}",
            "kind": "category" if kind == "many" else kind,
            "at": at.get(kind, many),
            "effects": drawn(len(at.get(kind, many))),
            "missing": rng.standard_normal(len(curves)).tolist() if kind in ("number", "date") else None,
            "unknown": rng.standard_normal(len(curves)).tolist() if kind in ("category", "many") else None,
            "spread": 2.0 - 0.123 * index,
            "levels": None,
        }
        for index, kind in enumerate(kinds)
    ]
    levels = [[*values, "other values", "unknown value"], ["near 17", "near 37.5", "near 52", "near 90000"]]
    pairs = [
        {
            "columns": [f"column {index}: category", "column 0: number"],
            "levels": levels,
            "effects": drawn(len(levels[0]), len(levels[1])),
            "spread": 0.5 - 0.0123 * index,
        }
        for index in range(6)
    ]
    unit = {0: "target", 2: "log-odds"}.get(len(classes), "scores")
    found = {"format": "veil-effects/1", "unit": unit, "curves": curves, "from_rows": len(classes) == 2}
    return {**found, "constant": [0.1] * len(curves), "columns": columns, "pairs": pairs}


def make_audit(groups: tuple[str, ...] = SEX_INCOME) -> dict[str, Any]:
    """An audit with bounds for all rows and for each group."""
    by_group = {name: {"epsilon_lower": 0.3 + 0.1 * index, "epsilon": 1.0} for index, name in enumerate(groups)}
    return {"attack": "canary", "epsilon_lower": 0.73, "epsilon": 1.0, "confidence": 0.95, "by_group": by_group}


def _metrics(groups: Any, sizes: Any, level: Any, rng: Any, extras: bool) -> dict[str, Any]:
    by_group: dict[str, Any] = {}
    for name, size, accuracy in zip(groups, sizes, level, strict=True):
        n = size // 2
        by_group[name] = {"n": n, "accuracy": float(round(accuracy * n) / n)}
        if extras:
            by_group[name] |= _extras(n, float(accuracy))
    values = [score["accuracy"] for score in by_group.values()]
    total = sum(score["n"] for score in by_group.values())
    metrics = {
        "worst_group_accuracy": min(values),
        "average_group_accuracy": sum(values) / len(values),
        "accuracy": sum(s["accuracy"] * s["n"] for s in by_group.values()) / total,
        "disparity": max(values) - min(values),
        "worst_group": min(by_group, key=lambda name: by_group[name]["accuracy"]),
        "by_group": by_group,
    }
    if extras:
        metrics["balanced_accuracy"] = 0.7125
        metrics["parity"] = {"demographic_parity": 0.18, "equal_opportunity": 0.09, "equalised_odds": 0.12}
    return metrics


def _extras(n: int, accuracy: float) -> dict[str, Any]:
    grid = np.linspace(0.0, 1.0, 9)
    right, wrong = round(n * accuracy / 2), n // 2 - round(n * accuracy / 2)
    return {
        "auroc": 0.5 + accuracy / 2,
        "ece": 0.04,
        "confusion": [[right, wrong], [wrong, right]],
        "roc": {"fpr": grid.tolist(), "tpr": (grid ** (1 - accuracy + 0.05)).tolist()},
        "calibration": {"confidence": (0.5 + grid / 2).tolist(), "accuracy": (0.48 + accuracy * grid / 2).tolist()},
    }


def _privacy(groups: Any, budgets: dict[str, float], rows: int, private: bool) -> dict[str, Any]:
    if not private:
        nothing = {"epsilon": None, "delta": None, "relation": None, "accountant": None}
        return {**nothing, "by_group": {}, "by_owner": {}}
    largest = 0.998 * max(budgets.values())
    return {
        "epsilon": largest,
        "delta": 1 / (2 * rows),
        "relation": "add-remove",
        "accountant": "pld",
        "by_group": dict.fromkeys(groups, largest),
        "by_owner": {name: 0.998 * budget for name, budget in budgets.items()},
        "unit": "one row",
        "by_rows": {"2": 2.2 * largest, "5": 6.5 * largest},
    }


def _certificate(method: str, groups: Any, budgets: dict[str, float], rows: int, private: bool) -> dict[str, Any]:
    privacy = _privacy(groups, budgets, rows, private)
    epsilon = privacy["epsilon"]
    if not private:
        statement = f"The method {method} is not private: the model may reveal any row it was trained on."
        missing = ["everything: there is no privacy guarantee"]
        return {**privacy, "budgets": {}, "statement": statement, "assumptions": [], "not_covered": missing}
    return {
        **privacy,
        "method": method,
        "private": True,
        "budgets": dict(budgets),
        "spent_by_group": dict.fromkeys(groups, 0.9 * epsilon),
        "statement": (
            "Seeing the model, nobody can tell whether any one row was in the data or its place was empty by more than "
            f"a factor of {math.exp(epsilon):.2f} (ε = {epsilon:.3g}) in the odds, except with a probability of at "
            f"most δ = {privacy['delta']:.2g}."
        ),
        "assumptions": [
            "Group sizes were counted in the rows and are treated as public; they were not released with noise.",
            SEED_GIVEN,
        ],
        "not_covered": [
            "The choice of method, model and settings, if it was based on these rows.",
            "Figures on evaluation rows: those rows were declared public.",
        ],
        "facts": {"method": method},
        "ledger_check": "9f2c",
    }


def _history(
    method: str, groups: Any, level: Any, steps: int, epsilon: float | None, rng: Any, evaluated: bool
) -> dict[str, Any]:
    every = max(1, steps // 20)
    history: dict[str, Any] = {"step": list(range(steps))}
    spent = [None if epsilon is None else 0.9 * epsilon * math.sqrt((s // 20 + 1) * 20 / steps) for s in range(steps)]
    history["epsilon"] = spent
    curves: list[Any] = [None] * steps
    for step in range(every - 1, steps, every):
        grown = 1 - math.exp(-5 * (step + 1) / steps)
        curves[step] = np.clip(level * grown + 0.015 * rng.standard_normal(len(groups)), 0, 1).tolist()
    if evaluated:
        history["group_accuracy"] = curves
        history["worst_group_accuracy"] = [None if c is None else min(c) for c in curves]
        history["average_group_accuracy"] = [None if c is None else sum(c) / len(c) for c in curves]
        history["accuracy"] = [None if c is None else sum(c) / len(c) + 0.05 for c in curves]
    if method == "asc":
        drift = (
            np.cumsum(rng.standard_normal((steps, len(groups))) * 0.02, axis=0) - np.linspace(0, 1, len(groups)) * -1
        )
        weights = np.exp(drift) / np.exp(drift).sum(axis=1, keepdims=True)
        history["weights"] = weights.tolist()
        history["rates"] = (weights * 0.02).tolist()
        history["clips"] = (0.3 / (weights + 0.1)).tolist()
        history["threshold"] = [[1.0 + 0.001 * step] for step in range(steps)]
    return history
