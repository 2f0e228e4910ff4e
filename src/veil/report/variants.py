"""Variants: runs that differ by their seed only, their averages, and who is compared with whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veil.metrics.privacy_cost import Accuracies, accuracies, privacy_cost
from veil.report.cleaning import Record
from veil.report.intervals import Spread, paired_p, pareto, spread, wilson

FIGURES = ("worst_group_accuracy", "average_group_accuracy", "accuracy", "disparity")
BASELINES = ("dp-sgd", "erm")


@dataclass(frozen=True)
class Variant:
    """One method at one ε: the runs that differ by their seed only, as positions in the list of runs."""

    name: str
    method: str
    private: bool
    epsilon: float | None
    members: tuple[int, ...]
    figures: Mapping[str, Spread]
    groups: Mapping[str, Mapping[str, Any]]
    by_seed: Mapping[Any, float]
    model: tuple[Any, ...]
    accuracies: Mapping[Any, Accuracies]

    @property
    def worst(self) -> float | None:
        """Mean worst-group accuracy."""
        return self.figures["worst_group_accuracy"]["mean"]


def is_private(run: Record) -> bool:
    """Whether the run has a privacy guarantee."""
    return epsilon_of(run) is not None


def epsilon_of(run: Record) -> float | None:
    """The certified ε of a run."""
    value = (run.get("privacy") or {}).get("epsilon")
    return None if value is None else float(value)


def find_variants(runs: Sequence[Record]) -> list[Variant]:
    """Runs put together by label; a label carries ε only where the same method ran at several."""
    asked: dict[str, set[Any]] = {}
    for run in runs:
        asked.setdefault(_method(run), set()).add(_asked_epsilon(run))
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(_label(run, len(asked[_method(run)]) > 1), []).append(index)
    return [_variant(name, indices, runs) for name, indices in members.items()]


def _method(run: Record) -> str:
    return str((run.get("config") or {}).get("label") or run.get("method") or "run")


def _asked_epsilon(run: Record) -> Any:
    return (run.get("settings") or {}).get("epsilon") if is_private(run) else None


def _label(run: Record, several: bool) -> str:
    epsilon = _asked_epsilon(run)
    return f"{_method(run)}, ε = {epsilon:g}" if several and epsilon is not None else _method(run)


def _variant(name: str, indices: Sequence[int], runs: Sequence[Record]) -> Variant:
    own = [runs[index] for index in indices]
    metrics = [run.get("metrics") or {} for run in own]
    epsilons = [epsilon for run in own if (epsilon := epsilon_of(run)) is not None]
    private = len(epsilons) == len(own)
    return Variant(
        name=name,
        method=str(own[0].get("method") or "run"),
        private=private,
        epsilon=max(epsilons) if private and epsilons else None,
        members=tuple(indices),
        figures={figure: spread(one.get(figure) for one in metrics) for figure in FIGURES},
        groups=_groups(metrics),
        by_seed=_by_seed(own),
        model=((own[0].get("config") or {}).get("model"), own[0].get("parameters")),
        accuracies=_accuracies(own),
    )


def number_of(run: Record) -> Any:
    """What pairs a run with those of other methods: its number in a comparison, or the seed that a person gave."""
    config = run.get("config") or {}
    return config.get("repetition", config.get("seed"))


def _accuracies(runs: Sequence[Record]) -> dict[Any, Accuracies]:
    """Accuracies by seed; a run whose seed nobody gave shares it with none."""
    found: dict[Any, Accuracies] = {}
    for run in runs:
        seed, scores = number_of(run), (run.get("metrics") or {}).get("by_group")
        if scores:
            found[object() if seed is None else seed] = accuracies(scores)
    return found


def _by_seed(runs: Sequence[Record]) -> dict[Any, float]:
    """Worst-group accuracy by the number that pairs runs."""
    found = {}
    for run in runs:
        seed, worst = number_of(run), (run.get("metrics") or {}).get("worst_group_accuracy")
        if seed is not None and worst is not None:
            found[seed] = float(worst)
    return found


def _groups(metrics: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Mean accuracy of each group over seeds, its std, its rows, and the interval that these rows allow."""
    names = list(dict.fromkeys(name for one in metrics for name in one.get("by_group") or {}))
    found = {}
    for name in names:
        scores = [one["by_group"][name] for one in metrics if name in (one.get("by_group") or {})]
        accuracy = spread(score.get("accuracy") for score in scores)
        n = scores[0].get("n")
        given = scores[0].get("accuracy_interval") if len(scores) == 1 else None
        # A bootstrap of rows that are all right (or all wrong) has no width: Wilson's interval has.
        own = given if given and given[0] < given[1] else None
        interval = tuple(own) if own else wilson(accuracy["mean"], n)
        low, high = interval if interval else (None, None)
        kind = "bootstrap" if own else "wilson"
        found[name] = {
            "n": n,
            "accuracy": accuracy["mean"],
            "std": accuracy["std"],
            "low": low,
            "high": high,
            "interval": kind if interval else None,
        }
    return found


def choose_subject(variants: Sequence[Variant]) -> Variant:
    """The subject of the page: the private variant with the best worst group, else the best of all."""
    candidates = [variant for variant in variants if variant.private] or list(variants)
    return max(candidates, key=lambda variant: -1.0 if variant.worst is None else variant.worst)


def choose_baselines(variants: Sequence[Variant], subject: Variant) -> list[Variant]:
    """DP-SGD and ERM where they are among the runs and are not the subject; DP-SGD at the subject's ε if it can be."""
    found = []
    for method in BASELINES:
        same = [v for v in variants if v.method == method and v.name != subject.name]
        if same and method != subject.method:
            aim = subject.epsilon or 0.0
            found.append(min(same, key=lambda variant: abs((variant.epsilon or 0.0) - aim)))
    return found


def group_table(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per group: rows, accuracy with interval, difference to each baseline, certified ε.

    Args:
        runs: Records of runs, as `clean_runs` gives them.

    Returns:
        The groups of the method that is judged.

    >>> group_table([])
    []
    """
    variants = find_variants(runs)
    if not variants:
        return []
    subject = choose_subject(variants)
    return groups_of(runs, subject, choose_baselines(variants, subject))


def groups_of(runs: Sequence[Record], subject: Variant, baselines: Sequence[Variant]) -> list[dict[str, Any]]:
    """The group table of one variant beside its baselines, in the order of its first run."""
    run = runs[subject.members[0]]
    rows = {group["name"]: group.get("rows") for group in run.get("groups") or []}
    epsilons = (run.get("privacy") or {}).get("by_group") or {}
    table = []
    for name in dict.fromkeys([*rows, *subject.groups]):
        score = subject.groups.get(name, {})
        against = {}
        for baseline in baselines:
            other = baseline.groups.get(name, {}).get("accuracy")
            known = other is not None and score.get("accuracy") is not None
            against[baseline.name] = score["accuracy"] - other if known else None
        table.append(
            {
                "name": name,
                "rows": rows.get(name),
                "n": score.get("n"),
                "accuracy": score.get("accuracy"),
                "std": score.get("std"),
                "low": score.get("low"),
                "high": score.get("high"),
                "against": against,
                "epsilon": epsilons.get(name),
            }
        )
    return table


def summary_table(runs: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per variant: mean and sample std over seeds; best and within one std of it are marked.

    Private variants compete with private ones and the others with each other: others pay no price for privacy.

    Args:
        runs: Records of runs, as `clean_runs` gives them.

    Returns:
        The variants, each with its figures.

    >>> summary_table([])
    []
    """
    variants = find_variants(runs)
    front = front_of(variants)
    best = {True: _best([v for v in variants if v.private]), False: _best([v for v in variants if not v.private])}
    return [
        {
            "name": variant.name,
            "method": variant.method,
            "private": variant.private,
            "seeds": len(variant.members),
            "epsilon": variant.epsilon,
            **{figure: dict(variant.figures[figure]) for figure in FIGURES},
            "front": on_front,
            "mark": _mark(variant, best[variant.private]),
            "p_value": _significance(variant, best[variant.private]),
            "privacy_cost_gap": privacy_cost_gap(variant, variants),
        }
        for variant, on_front in zip(variants, front, strict=True)
    ]


def _significance(variant: Variant, best: Variant | None) -> float | None:
    """Whether the best is better than this one: a paired t-test on the worst group over the seeds that both have."""
    if best is None or variant.name == best.name:
        return None
    shared = [seed for seed in best.by_seed if seed in variant.by_seed]
    return paired_p([best.by_seed[seed] for seed in shared], [variant.by_seed[seed] for seed in shared])


def privacy_cost_gap(variant: Variant, variants: Sequence[Variant]) -> float | None:
    """π against `erm` with the same model, over the groups that were measured in all runs; None without such runs."""
    twin = next((other for other in variants if other.method == "erm" and other.model == variant.model), None)
    if twin is None or not variant.private or not twin.accuracies or not variant.accuracies:
        return None
    runs = [*twin.accuracies.values(), *variant.accuracies.values()]
    names = [name for name in runs[0] if all(not math.isnan(run.get(name, math.nan)) for run in runs)]
    return privacy_cost(twin.accuracies, variant.accuracies, names).gap if len(names) > 1 else None


def front_of(variants: Sequence[Variant]) -> list[bool]:
    """Who is on the Pareto front of worst group and average: among the private variants if there is any."""
    only_private = any(variant.private for variant in variants)
    return pareto([_pair(v) if v.private or not only_private else None for v in variants])


def _pair(variant: Variant) -> tuple[float, float] | None:
    average = variant.figures["average_group_accuracy"]["mean"]
    return None if average is None or variant.worst is None else (average, variant.worst)


def _best(variants: Sequence[Variant]) -> Variant | None:
    known = [variant for variant in variants if variant.worst is not None]
    return max(known, key=lambda variant: variant.worst or 0.0) if len(known) > 1 else None


def _mark(variant: Variant, best: Variant | None) -> str | None:
    if best is None or variant.worst is None or best.worst is None:
        return None
    if variant.name == best.name:
        return "best"
    std = best.figures["worst_group_accuracy"]["std"] or 0.0
    return "within one std of the best" if std > 0 and variant.worst >= best.worst - std else None
