"""The page: records of runs in, one self-contained HTML file and its JSON twin out. It makes no network requests."""

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

from veil.foundation.files import FOR_ALL, write_whole
from veil.report import wording
from veil.report.cleaning import Record
from veil.report.figures import Table
from veil.report.twin import build

SCRIPTS = ("charts.js", "page.js")


def write_report(
    runs: Sequence[Record],
    path: Path,
    *,
    requirements: Sequence[Record] = (),
    audits: Sequence[Record] | None = None,
    together: Record | None = None,
) -> Path:
    """Write the page, and beside an `.html` file its JSON twin; returns the page's path.

    Args:
        runs: Records of runs (`run.as_json()`), one or several.
        path: Where the page goes.
        requirements: What must hold, as `{"metric", "op", "threshold"}`.
        audits: Attacks to show; by default none.
        together: What all runs cost together, with a `sentence`, if they read the same private rows.

    Returns:
        The path of the page.

    Raises:
        InputError: There is no run, or a record is not one of a run.
    """
    twin, tables = build(runs, requirements, audits or (), together)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, _render(twin, tables).encode(), FOR_ALL)
    if path.suffix == ".html":
        text = json.dumps(twin, indent=1, ensure_ascii=False, allow_nan=False)
        write_whole(path.with_suffix(".json"), f"{text}\n".encode(), FOR_ALL)
    return path


def render_page(
    runs: Sequence[Record], *, requirements: Sequence[Record] = (), audits: Sequence[Record] | None = None
) -> str:
    """The whole page as text.

    Args:
        runs: Records of runs (`run.as_json()`), one or several.
        requirements: What must hold, as `{"metric", "op", "threshold"}`.
        audits: Attacks to show; by default none.

    Returns:
        HTML that needs no other file.

    Raises:
        InputError: There is no run, or a record is not one of a run.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> "<html" in render_page([run.as_json()])
    True
    """
    return _render(*build(runs, requirements, audits or ()))


def build_twin(
    runs: Sequence[Record], *, requirements: Sequence[Record] = (), audits: Sequence[Record] | None = None
) -> dict[str, Any]:
    """The JSON twin: the runs, and every figure derived from them that the page shows.

    Args:
        runs: Records of runs (`run.as_json()`), one or several.
        requirements: What must hold, as `{"metric", "op", "threshold"}`.
        audits: Attacks to show; by default none.

    Returns:
        What `write_report` puts beside the page.

    Raises:
        InputError: There is no run, or a record is not one of a run.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> len(build_twin([run.as_json()])["runs"])
    1
    """
    return build(runs, requirements, audits or ())[0]


def render_summary(run: Record) -> str:
    """A small HTML fragment for notebooks: the verdict of one run, without scripts or outside styles.

    Args:
        run: The record of a run (`run.as_json()`).

    Returns:
        HTML.

    Raises:
        InputError: The record is not one of a run.

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> "large" in render_summary(run.as_json()) or "small" in render_summary(run.as_json())
    True
    """
    twin = build_twin([run])
    html: str = environment(escaped=True).get_template("summary.html.j2").render(twin=twin, run=twin["runs"][0])
    return html


def _render(twin: Mapping[str, Any], tables: Mapping[str, Table]) -> str:
    return filled("report.html.j2", twin, tables, SCRIPTS, verdict=twin["verdict"], runs=twin["runs"])


def filled(
    template: str,
    twin: Mapping[str, Any],
    tables: Mapping[str, Table],
    scripts: Sequence[str],
    styles: str = "",
    **more: Any,
) -> str:
    """A page of this style: `twin` is embedded in it as JSON, and only its own scripts run."""
    script = _script(tuple(scripts))
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    html: str = (
        environment(escaped=True)
        .get_template(template)
        .render(
            twin=twin,
            tables=tables,
            figures=twin["figures"],
            style=Markup(asset("report.css") + styles),
            script=Markup(script),
            script_hash=digest,
            embedded=Markup(_embedded(twin)),
            **more,
        )
    )
    return html


def _embedded(twin: Mapping[str, Any]) -> str:
    """JSON that is safe inside HTML: characters that open or close markup are escaped."""
    text = json.dumps(twin, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def asset(name: str) -> str:
    """The text of one of the page's own files."""
    return files("veil.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _script(names: tuple[str, ...]) -> str:
    return "\n".join(asset(name) for name in names)


@cache
def environment(*, escaped: bool) -> Environment:
    """How templates are filled in; `escaped` for HTML."""
    source = FunctionLoader(asset)
    filling = Environment(
        loader=source, autoescape=escaped, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for word in (wording.percent, wording.points, wording.number, wording.label, wording.spelled, wording.show):
        filling.filters[word.__name__] = word
    filling.globals.update(
        relations=wording.RELATIONS,
        people_relations=wording.PEOPLE_RELATIONS,
        accountants=wording.ACCOUNTANTS,
        samplings=wording.SAMPLINGS,
        people_samplings=wording.PEOPLE_SAMPLINGS,
        sizes=wording.SIZES,
    )
    return filling
