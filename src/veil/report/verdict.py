"""The verdict: the main figures and the one-sentence summary of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from veil.metrics.definitions import ACROSS, ERRORS_OF_GROUPS, PRIVACY_COST_GAP
from veil.report.cleaning import Record
from veil.report.errors import error_headline, errors_of
from veil.report.intervals import spread
from veil.report.learned import unheard
from veil.report.requirements import SIGNS, from_mapping
from veil.report.usefulness import USEFUL, beside_no_privacy, skewed, usefulness
from veil.report.variants import Variant, find_variants, privacy_cost_gap
from veil.report.wording import label, number, percent, some_of

_SAYS_NOTHING = "it says nothing"
_UNCOMPARED = "Not compared with a model that needs no rows: it may say nothing."
OVER_GROUPS = {*(figure.name for figure in (*ACROSS, PRIVACY_COST_GAP)), *ERRORS_OF_GROUPS}


def make_verdict(
    runs: Sequence[Record], subject: Variant, baselines: Sequence[Variant], requirements: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Worst group with its interval, average, gap, ε, and whether what was required is met."""
    run = runs[subject.members[0]]
    privacy = run.get("privacy") or {}
    worst = _worst_group(subject)
    checks = [_check(requirement, subject, runs) for requirement in requirements]
    return {
        "subject": subject.name,
        "seeds": len(subject.members),
        "worst_group": {"name": worst, **subject.groups[worst]} if worst else None,
        **{name: dict(value) for name, value in subject.figures.items()},
        "epsilon": subject.epsilon,
        "delta": privacy.get("delta") if subject.private else None,
        "even_odds_become": even_odds(subject.epsilon),
        "owners": _owners(privacy.get("by_owner") or {}),
        "errors": errors_of(run),
        "expected_excess_risk": _excess_risk(run),
        "tiny_groups": (run.get("metrics") or {}).get("tiny_groups") or {},
        "unheard": unheard(run),
        "usefulness": usefulness(run.get("metrics") or {}),
        "skewed": skewed(run.get("metrics") or {}),
        "private_rows": any((run.get("metrics") or {}).get("private") is True for run in runs),
        "requirements": checks,
        "met": all(check["met"] for check in checks) if checks else None,
        "headline": _headline(subject, worst, baselines, _rivals(runs, subject), run) + _judged(run),
    }


def _judged(run: Record) -> str:
    """What is added to the headline: for whom the model is useful, and what a model without privacy reaches."""
    found = usefulness(run.get("metrics") or {})
    said = ["" if found is None else found["sentence"], beside_no_privacy(run.get("findings") or {})]
    return "".join(f" {sentence}" for sentence in said if sentence)


def _owners(by_owner: Mapping[str, float]) -> dict[str, Any] | None:
    """How many owners there are and the smallest ε among them; None where one owner holds all rows."""
    return {"count": len(by_owner), "smallest": min(by_owner.values())} if len(by_owner) > 1 else None


def _worst_group(subject: Variant) -> str | None:
    known = {name: s["accuracy"] for name, s in subject.groups.items() if s["accuracy"] is not None}
    return min(known, key=lambda name: known[name]) if known else None


def _check(requirement: Mapping[str, Any], subject: Variant, runs: Sequence[Record]) -> dict[str, Any]:
    """A requirement such as {"metric": "worst_group_accuracy", "op": ">=", "threshold": 0.6}, measured and judged.

    It is not met if a group was not measured, as that could be the worst.
    """
    asked = from_mapping(requirement)
    value, missing = requirement.get("value"), list[str]()
    if value is None:
        value = _measured(asked.metric, subject, runs)
        missing = unmeasured([runs[index] for index in subject.members]) if asked.metric in OVER_GROUPS else []
    lacking = f"; not measured, with too few rows: {some_of(missing)}" if value is not None and missing else ""
    shown = number if asked.metric in ("epsilon", "loss") or not 0 <= asked.threshold <= 1 else percent
    return {
        **asked.as_json(),
        "value": value,
        "met": asked.holds(value) and not missing,
        "not_measured": missing,
        "name": label(asked.metric),
        "shown": f"{shown(value)}, required {SIGNS[asked.op]}\u00a0{shown(asked.threshold)}{lacking}"
        if asked.metric != USEFUL
        else _of_use(subject, runs),
    }


def _of_use(subject: Variant, runs: Sequence[Record]) -> str:
    """What a requirement of usefulness found, in words."""
    found = [usefulness(runs[index].get("metrics") or {}) for index in subject.members]
    said = [str(one["sentence"]) for one in found if one is not None]
    chosen = next((sentence for sentence in said if sentence.startswith("No")), next(iter(said), "Was not measured."))
    chosen = chosen.removeprefix("Useful: ").removesuffix(".")
    return chosen[0].lower() + chosen[1:]


def unmeasured(runs: Sequence[Record]) -> list[str]:
    """The groups of the runs without an accuracy (or error), each once.

    >>> unmeasured([{"metrics": {"by_group": {"a": {"n": 9, "accuracy": 0.5}, "b": {"n": 2, "accuracy": None}}}}])
    ['b']
    """
    scores = [(run.get("metrics") or {}).get("by_group") or {} for run in runs]
    found = (
        name
        for own in scores
        for name, score in own.items()
        if score.get("root_mean_squared_error", score.get("accuracy")) is None
    )
    return list(dict.fromkeys(found))


def _measured(metric: str, subject: Variant, runs: Sequence[Record]) -> float | None:
    """A figure of the subject, its mean over seeds; None where it was not measured."""
    if metric == "epsilon":
        return subject.epsilon
    if metric == USEFUL:
        found = [usefulness(runs[index].get("metrics") or {}) for index in subject.members]
        return None if None in found else float(all(one is not None and one[USEFUL] for one in found))
    if metric == "privacy_cost_gap":
        return privacy_cost_gap(subject, find_variants(runs))
    if metric in subject.figures:
        return subject.figures[metric]["mean"]
    own = [runs[index].get("metrics") or {} for index in subject.members]
    return spread({**one, **(one.get("parity") or {})}.get(metric) for one in own)["mean"]


def _excess_risk(run: Record) -> dict[str, Any] | None:
    """The bound on the excess risk that a method with a utility guarantee states, and its sentence.

    Where the released values of the finished run say more than the plan, it is what they say. `says` is whether it is
    known to lie below what a model has that needs no rows; None where that is not known. `population` is a bound for
    new rows beside one for the training rows, `at_least` what no method with this ε can promise less than.
    """
    planned, (bound, nothing) = _planned_risk(run), _realised_risk(run)
    if bound < (math.inf if planned is None else planned["value"]):
        line = "An upper bound on the training rows from released values; it holds with probability 0.95."
        found = _against_nothing({"value": bound, "sentence": line}, nothing)
    elif planned is None:
        return None
    else:
        found = _against_nothing(planned, nothing)
    more = planned or {"population": None, "at_least": None}
    # What was released is about the training rows: it does not tell what w = 0 loses on new ones.
    new = None if more["population"] is None else _against_nothing(more["population"], math.inf)
    return {**found, "population": new, "at_least": more["at_least"]}


def _planned_risk(run: Record) -> dict[str, Any] | None:
    places = [run.get("details") or {}, *(run.get("findings") or {}).values(), run.get("findings") or {}]
    for place in places:
        found = place.get("expected_excess_risk") if isinstance(place, Mapping) else None
        if isinstance(found, Mapping):
            value, words, more = found.get("value", found.get("number")), found.get("sentence"), found
        else:
            value, words = found, place.get("expected_excess_risk_sentence") if found is not None else None
            more = {}
        if isinstance(value, (int, float)):
            said = {"value": float(value), "sentence": str(words or ""), "uncompared": more.get("uncompared")}
            return {**said, "population": more.get("population"), "at_least": more.get("at_least")}
    return None


def _realised_risk(run: Record) -> tuple[float, float]:
    """The bound that follows from what the finished run released, and what weights of 0 have at least; ∞: not known."""
    told = (run.get("history") or {}).get("realised_excess_risk") or []
    if not told or not isinstance(told[-1], (list, tuple)):
        return math.inf, math.inf
    bound, nothing = (math.inf if value is None else float(value) for value in told[-1])
    return bound, nothing


def _against_nothing(bound: Mapping[str, Any], nothing: float) -> dict[str, Any]:
    """A bound beside what weights of 0 have at least (∞: not known): its value, its sentence and whether it `says`."""
    value, line = bound["value"], bound["sentence"]
    if _SAYS_NOTHING in line:
        return {"value": value, "sentence": line, "says": False}
    if not math.isfinite(nothing):
        words = (line, bound.get("uncompared") or _UNCOMPARED)
        return {"value": value, "sentence": " ".join(word for word in words if word), "says": None}
    if value >= nothing:
        words = (line, f"Weights of 0, which need no rows, may do as well: {_SAYS_NOTHING}.")
    else:
        words = (line, f"Weights of 0, which need no rows, have at least {nothing:.3g}.")
    return {"value": value, "sentence": " ".join(words), "says": value < nothing}


def even_odds(epsilon: float | None) -> float | None:
    """How sure someone can become who had even odds before: e^ε / (1 + e^ε).

    >>> round(even_odds(1.0), 3)
    0.731
    """
    return None if epsilon is None else 1.0 / (1.0 + math.exp(-epsilon))


def _rivals(runs: Sequence[Record], subject: Variant) -> int:
    """How many variants of the subject's kind (private or not) are on the page, itself included."""
    return sum(variant.private == subject.private for variant in find_variants(runs))


def _headline(subject: Variant, worst: str | None, baselines: Sequence[Variant], rivals: int, run: Record) -> str:
    privacy = f"at ε\u00a0=\u00a0{number(subject.epsilon)}" if subject.epsilon is not None else "without privacy"
    if (errors := errors_of(run)) is not None:
        return error_headline(errors, privacy)
    if subject.worst is None or worst is None:
        return f"{subject.name} was trained {privacy}. {_without_groups(run)}"
    others = [f"{percent(b.worst)} with {b.name}{_unprotected(b)}" for b in baselines if b.worst is not None]
    against = f", against {' and '.join(others)}" if others else ""
    if rivals == 1:
        return f"The worst group, {worst}, has an accuracy of {percent(subject.worst)} {privacy}{against}."
    kind = "private methods" if subject.private else "methods"
    return (
        f"Of {rivals} {kind}, {subject.name} has the best worst-group accuracy: "
        f"{percent(subject.worst)} {privacy}{against}."
    )


def _without_groups(run: Record) -> str:
    """Why no group has a figure."""
    if (run.get("metrics") or {}).get("by_group"):
        return "No group has enough evaluation rows to be measured."
    return "No row was declared public for evaluation: no accuracy is shown."


def _unprotected(variant: Variant) -> str:
    return "" if variant.private else " (not private)"
