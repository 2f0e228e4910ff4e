"""The page: facts in, one self-contained HTML file and its JSON twin out. No request ever leaves the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from veil.errors import require
from veil.report import wording
from veil.report.cleaning import Facts, clean, clean_runs
from veil.report.figures import Figure, Table, as_json
from veil.report.intervals import CONFIDENCE
from veil.report.panels import forest_figure, gap_figure, heat_figure, pareto_figure, privacy_figures, training_figures
from veil.report.quality import audit_figures, further_figures, quality_figures, score_table
from veil.report.variants import (
    choose_baselines,
    choose_subject,
    epsilon_of,
    find_variants,
    groups_of,
    summary_table,
)
from veil.report.verdict import even_odds, make_verdict

FORMAT = "veil-report/1"
DETAILED_RUNS = 12
SCRIPTS = ("charts.js", "page.js")


def write_report(
    runs: Sequence[Facts],
    path: Path,
    *,
    requirements: Sequence[Mapping[str, Any]] = (),
    audits: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """Write the page, and beside an `.html` file its JSON twin; returns the page's path."""
    twin, tables = _build(runs, requirements, audits or ())
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_render(twin, tables), encoding="utf-8")
    if path.suffix == ".html":
        text = json.dumps(twin, indent=1, ensure_ascii=False, allow_nan=False)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return path


def render_page(
    runs: Sequence[Facts],
    *,
    requirements: Sequence[Mapping[str, Any]] = (),
    audits: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The whole page as text."""
    return _render(*_build(runs, requirements, audits or ()))


def build_facts(
    runs: Sequence[Facts],
    *,
    requirements: Sequence[Mapping[str, Any]] = (),
    audits: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """The JSON twin: the runs, and every figure derived from them that the page shows."""
    return _build(runs, requirements, audits or ())[0]


def render_summary(facts: Facts) -> str:
    """A small HTML fragment for notebooks: the verdict of one run, without scripts or outside styles."""
    twin = build_facts([facts])
    html: str = _environment().get_template("summary.html.j2").render(twin=twin, run=twin["runs"][0])
    return html


def _build(
    runs: Sequence[Facts], requirements: Sequence[Mapping[str, Any]], audits: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Table]]:
    cleaned = clean_runs(_unpacked(runs))
    require(len(cleaned) > 0, "a report needs at least one run")
    variants = find_variants(cleaned)
    subject = choose_subject(variants)
    baselines = choose_baselines(variants, subject)
    groups = groups_of(cleaned, subject, baselines)
    several = len(cleaned) > 1
    shared: dict[str, Figure | None] = {
        "pareto": pareto_figure(variants, subject),
        "gap": gap_figure(variants),
        "forest": forest_figure(subject, baselines, [group["name"] for group in groups]),
        "heat": heat_figure(groups),
        **audit_figures(clean(audits)),
    }
    figures = {name: figure for name, figure in shared.items() if figure is not None}
    detailed = _detailed(cleaned, [variant.members for variant in variants], subject.members)
    for index in detailed:
        for make in (privacy_figures, training_figures, quality_figures):
            figures.update({f"{name}-run{index}": figure for name, figure in make(cleaned[index]).items()})
    twin = {
        "format": FORMAT,
        "title": _title(cleaned),
        "several": several,
        "interval": {"kind": "wilson", "confidence": CONFIDENCE, "percent": 100 * CONFIDENCE},
        "verdict": clean(make_verdict(cleaned, subject, baselines, requirements)),
        "baselines": [variant.name for variant in baselines],
        "groups": groups,
        "summary": summary_table(cleaned),
        "names": [_name(cleaned, index) for index in range(len(cleaned))],
        "detailed": [{"run": index, "name": _name(cleaned, index)} for index in detailed],
        "even_odds": {str(index): even_odds(epsilon_of(cleaned[index])) for index in detailed},
        "sections": clean(_sections(several, bool(audits), detailed[0], figures)),
        "further": {str(index): further_figures(cleaned[index]) for index in detailed},
        "data": _data_card(cleaned[subject.members[0]]),
        "audits": clean(audits),
        "figures": {name: clean(as_json(figure)) for name, figure in figures.items()},
        "runs": cleaned,
    }
    tables = {name: figure.table() for name, figure in figures.items()}
    tables.update({f"scores-run{i}": table for i in detailed if (table := score_table(cleaned[i])) is not None})
    return twin, tables


def _unpacked(runs: Sequence[Facts]) -> list[Facts]:
    """The facts of runs; the JSON twin of an earlier report stands for the runs in it."""
    return [facts for run in runs for facts in (run["runs"] if run.get("format") == FORMAT else [run])]


def _detailed(runs: Sequence[Facts], variants: Sequence[tuple[int, ...]], subject: tuple[int, ...]) -> list[int]:
    """The runs shown one by one, the subject's first: all, or of many the first of each variant."""
    chosen = range(len(runs)) if len(runs) <= DETAILED_RUNS else [members[0] for members in variants]
    return sorted(chosen, key=lambda index: (index != subject[0], index not in subject, index))


def _sections(several: bool, audited: bool, run: int, figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """What the navigation lists: the sections that the page has."""
    measured = any(name.startswith(("parity", "calibration", "roc", "confusion")) for name in figures)
    trained = any(name.startswith(("curves", "state-")) for name in figures)
    wanted = [
        (several, "comparison", "Comparison"),
        (True, "groups", "Groups"),
        (audited, "audit", "Audit"),
        (True, f"privacy-{run}", "Privacy"),
        (trained, f"training-{run}", "Training"),
        (measured, f"quality-{run}", "Parity"),
        (True, f"configuration-{run}", "Configuration"),
        (True, "data", "Data"),
    ]
    return [(name, label) for there, name, label in wanted if there]


def _title(runs: Sequence[Facts]) -> str:
    config = runs[0].get("config") or {}
    data = config.get("data")
    if len(runs) == 1:
        return f"{runs[0].get('method', 'run')} on {data}" if data else f"Run of {runs[0].get('method', 'a method')}"
    return f"Comparison on {data}" if data else "Comparison of methods"


def _name(runs: Sequence[Facts], index: int) -> str:
    """The method with its seed, or with its place among the runs where the seed is not known."""
    run = runs[index]
    config = run.get("config") or {}
    name = str(config.get("label") or run.get("method") or "run")
    if len(runs) == 1:
        return name
    epsilon = (run.get("settings") or {}).get("epsilon") if (run.get("privacy") or {}).get("epsilon") else None
    parts = [name] if epsilon is None else [name, f"ε = {epsilon:g}"]
    seed = config.get("seed")
    return ", ".join([*parts, f"run {index + 1}" if seed is None else f"seed {seed}"])


def _data_card(run: Facts) -> dict[str, Any]:
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


def _render(twin: Mapping[str, Any], tables: Mapping[str, Table]) -> str:
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    html: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            twin=twin,
            tables=tables,
            figures=twin["figures"],
            verdict=twin["verdict"],
            runs=twin["runs"],
            style=Markup(_asset("report.css")),
            script=Markup(script),
            script_hash=digest,
            embedded=Markup(_embedded(twin)),
        )
    )
    return html


def _embedded(twin: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can leave: the characters that end or open markup are written as escapes."""
    text = json.dumps(twin, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _asset(name: str) -> str:
    return files("veil.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    return "\n".join(_asset(name) for name in SCRIPTS)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        percent=wording.percent,
        points=wording.points,
        number=wording.number,
        spelled=wording.spelled,
        show=wording.show,
    )
    environment.globals.update(
        relations=wording.RELATIONS, accountants=wording.ACCOUNTANTS, samplings=wording.SAMPLINGS
    )
    return environment
