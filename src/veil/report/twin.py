"""The JSON twin: the runs, and every figure derived from them that the page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veil.errors import require
from veil.report.cleaning import Record, clean, clean_runs
from veil.report.errors import error_figure, error_table
from veil.report.figures import Figure, Table, as_json
from veil.report.generalisation import generalisation, generalisation_table
from veil.report.intervals import CONFIDENCE
from veil.report.learned import effect_figures, learned, learned_table
from veil.report.owners import owner_figures
from veil.report.panels import (
    forest_figure,
    gap_figure,
    heat_figure,
    interval_name,
    pareto_figure,
    privacy_figures,
    training_figures,
)
from veil.report.quality import audit_figures, further_figures, head_table, quality_figures, score_table
from veil.report.requirements import asked_of
from veil.report.variants import (
    Variant,
    choose_baselines,
    choose_subject,
    epsilon_of,
    find_variants,
    groups_of,
    number_of,
    summary_table,
)
from veil.report.verdict import even_odds, make_verdict
from veil.report.wording import counts_people, is_of_people

FORMAT = "veil-report/1"
DETAILED_RUNS = 12


def build(
    runs: Sequence[Record],
    requirements: Sequence[Mapping[str, Any]],
    audits: Sequence[Mapping[str, Any]],
    together: Record | None = None,
) -> tuple[dict[str, Any], dict[str, Table]]:
    """The twin, and the table of each of its figures."""
    cleaned = clean_runs(_unpacked(runs))
    require(len(cleaned) > 0, "a report needs at least one run")
    asked = list(requirements) or asked_of(cleaned)
    variants = find_variants(cleaned)
    subject = choose_subject(variants)
    baselines = choose_baselines(variants, subject)
    groups = groups_of(cleaned, subject, baselines)
    names = _names(cleaned, variants)
    detailed = _detailed(cleaned, [variant.members for variant in variants], subject.members)
    for index in set(range(len(cleaned))) - set(detailed):
        cleaned[index]["effects"] = None
    figures: dict[str, Figure] = {
        **_shared_figures(variants, subject, baselines, groups),
        **_error_figures(cleaned[subject.members[0]]),
        **audit_figures(clean(audits)),
        **_own_figures(cleaned, detailed),
    }
    tables = {name: figure.table() for name, figure in figures.items()}
    if (errors := error_table(cleaned[subject.members[0]])) is not None:
        tables["groups"] = errors
    makers = {
        "scores": score_table,
        "heads": head_table,
        "learned": learned_table,
        "generalisation": generalisation_table,
    }
    for name, make in makers.items():
        tables.update({f"{name}-run{i}": table for i in detailed if (table := make(cleaned[i])) is not None})
    twin = {
        "format": FORMAT,
        "title": _title(cleaned),
        "kicker": _kicker(cleaned, variants),
        "several": len(cleaned) > 1,
        "interval": {"kind": interval_name(subject), "confidence": CONFIDENCE, "percent": 100 * CONFIDENCE},
        "verdict": clean(make_verdict(cleaned, subject, baselines, asked)),
        "together": clean(together),
        "baselines": [variant.name for variant in baselines],
        "people": is_of_people(cleaned[subject.members[0]]),
        "counts_people": counts_people(cleaned[subject.members[0]]),
        "groups": groups,
        "summary": summary_table(cleaned),
        "names": names,
        "detailed": [{"run": index, "name": names[index]} for index in detailed],
        "even_odds": {str(index): even_odds(epsilon_of(cleaned[index])) for index in detailed},
        "further": {str(index): further_figures(cleaned[index]) for index in detailed},
        "learned": {str(index): learned(cleaned[index]) for index in detailed},
        "generalisation": {str(index): generalisation(cleaned[index]) for index in detailed},
        "sections": clean(_sections(len(cleaned) > 1, bool(audits), detailed[0], tables)),
        "data": _data_card(cleaned[subject.members[0]]),
        "audits": clean(audits),
        "figures": {name: clean(as_json(figure)) for name, figure in figures.items()},
        "runs": cleaned,
    }
    return twin, tables


def judge_requirements(
    runs: Sequence[Record], requirements: Sequence[Mapping[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    """The method that is checked, and every requirement with its measured value and whether it is met.

    Args:
        runs: Records of runs (`run.as_json()`), one or several.
        requirements: What must hold, as `{"metric", "op", "threshold"}`.

    Returns:
        The method's name, and the requirements.

    Raises:
        InputError: There is no run to check.

    >>> judge_requirements([], [])
    Traceback (most recent call last):
        ...
    veil.errors.InputError: there is no run to check
    """
    cleaned = clean_runs(_unpacked(runs))
    require(len(cleaned) > 0, "there is no run to check")
    subject = choose_subject(find_variants(cleaned))
    verdict = make_verdict(cleaned, subject, [], requirements)
    return subject.name, verdict["requirements"]


def _shared_figures(
    variants: Sequence[Variant], subject: Variant, baselines: Sequence[Variant], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Figure]:
    """The figures that appear once on the page."""
    wanted: dict[str, Figure | None] = {
        "pareto": pareto_figure(variants, subject),
        "gap": gap_figure(variants),
        "forest": forest_figure(subject, baselines, [group["name"] for group in groups]),
        "heat": heat_figure(groups),
    }
    return {name: figure for name, figure in wanted.items() if figure is not None}


def _error_figures(run: Record) -> dict[str, Figure]:
    found = error_figure(run)
    return {} if found is None else {"errors": found}


def _own_figures(runs: Sequence[Record], detailed: Sequence[int]) -> dict[str, Figure]:
    """The figures of each detailed run; names end with the run's position."""
    found: dict[str, Figure] = {}
    for index in detailed:
        for make in (privacy_figures, effect_figures, training_figures, owner_figures, quality_figures):
            found.update({f"{name}-run{index}": figure for name, figure in make(runs[index]).items()})
    return found


def _unpacked(runs: Sequence[Record]) -> list[Record]:
    """The records of runs; the JSON twin of an earlier report is replaced by its runs."""
    return [record for run in runs for record in (run["runs"] if run.get("format") == FORMAT else [run])]


def _detailed(runs: Sequence[Record], variants: Sequence[tuple[int, ...]], subject: tuple[int, ...]) -> list[int]:
    """The runs shown one by one, the subject's first: all, or of many the first of each variant."""
    chosen = range(len(runs)) if len(runs) <= DETAILED_RUNS else [members[0] for members in variants]
    return sorted(chosen, key=lambda index: (index != subject[0], index not in subject, index))


def _sections(several: bool, audited: bool, run: int, tables: Mapping[str, Table]) -> list[tuple[str, str]]:
    """What the navigation lists: the sections that the page has."""
    measured = any(name.startswith(("parity", "calibration", "roc", "confusion", "scores")) for name in tables)
    drawn = any(name.startswith("learned-") for name in tables)
    trained = any(name.startswith(("curves", "state-", "owners-")) for name in tables)
    wanted = [
        (several, "comparison", "Comparison"),
        (True, "groups", "Groups"),
        (f"heads-run{run}" in tables, f"heads-{run}", "Heads"),
        (audited, "audit", "Audit"),
        (True, f"privacy-{run}", "Privacy"),
        (drawn, f"learned-{run}", "What it learned"),
        (trained, f"training-{run}", "Training"),
        (measured, f"quality-{run}", "Parity"),
        (True, f"configuration-{run}", "Configuration"),
        (True, "data", "Data"),
    ]
    return [(name, label) for there, name, label in wanted if there]


def _title(runs: Sequence[Record]) -> str:
    config = runs[0].get("config") or {}
    data = config.get("data")
    if len(runs) == 1:
        return f"{runs[0].get('method', 'run')} on {data}" if data else f"Run of {runs[0].get('method', 'a method')}"
    return f"Comparison on {data}" if data else "Comparison of methods"


def _names(runs: Sequence[Record], variants: Sequence[Variant]) -> list[str]:
    """Each run by its variant, with its seed (or its place among the runs) where the variant has several."""
    names = {}
    for variant in variants:
        for index in variant.members:
            number, seed = number_of(runs[index]), (runs[index].get("config") or {}).get("seed")
            which = f", run {number or index + 1}" if seed is None else f", seed {seed}"
            names[index] = variant.name + (which if len(variant.members) > 1 else "")
    return [names[index] for index in range(len(runs))]


def _kicker(runs: Sequence[Record], variants: Sequence[Variant]) -> str:
    if len(runs) == 1:
        return "Training report"
    return f"{len(variants)} method{'s' if len(variants) > 1 else ''}, {len(runs)} runs"


def _data_card(run: Record) -> dict[str, Any]:
    groups = run.get("groups") or []
    total = sum(group.get("rows") or 0 for group in groups)
    owners = run.get("owners") or []
    rows = sum(owner.get("rows") or 0 for owner in owners) or total
    return {
        "rows": rows,
        "groups": [{**group, "share": (group.get("rows") or 0) / rows if rows else None} for group in groups],
        "owners": [{**owner, "share": (owner.get("rows") or 0) / rows if rows else None} for owner in owners],
        "evaluation_rows": sum(s.get("n") or 0 for s in ((run.get("metrics") or {}).get("by_group") or {}).values()),
    }
