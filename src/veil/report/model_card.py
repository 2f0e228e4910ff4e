"""The model card: what people should know before they use a model, from the facts that the report shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from veil.foundation.files import FOR_ALL, write_whole
from veil.report import wording
from veil.report.cleaning import Facts
from veil.report.page import asset
from veil.report.twin import build

NAME = "MODEL_CARD.md"


def render_card(
    facts: Facts, *, requirements: Sequence[Mapping[str, Any]] = (), audits: Sequence[Mapping[str, Any]] = ()
) -> str:
    """The card of one run as Markdown."""
    twin, _ = build([facts], requirements, audits)
    environment = Environment(autoescape=False, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        percent=wording.percent,
        number=wording.number,
        label=wording.label,
        spelled=wording.spelled,
        show=wording.show,
        md=plain_markdown,
    )
    environment.globals.update(
        relations=wording.RELATIONS,
        accountants=wording.ACCOUNTANTS,
        samplings=wording.SAMPLINGS,
        sizes=wording.SIZES,
    )
    template = environment.from_string(asset("model_card.md.j2"))
    text: str = template.render(twin=twin, verdict=twin["verdict"], run=twin["runs"][0])
    return text.strip() + "\n"


def write_card(facts: Facts, folder: Path, audits: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write `MODEL_CARD.md` into the run's folder."""
    path = folder / NAME
    write_whole(path, render_card(facts, audits=audits).encode(), FOR_ALL)
    return path


def plain_markdown(value: object) -> str:
    """Text that Markdown shows as it is: no markup, no table cell, no HTML.

    >>> plain_markdown("a|b <i>*c*")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*'
    """
    text = " ".join(str(value).split())
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
