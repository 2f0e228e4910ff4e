"""The model card: what people should know before they use a model, from the record that the report shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from veil.foundation.files import FOR_ALL, write_whole
from veil.report.cleaning import Record
from veil.report.page import environment
from veil.report.twin import build

NAME = "MODEL_CARD.md"


def render_card(run: Record, *, requirements: Sequence[Record] = (), audits: Sequence[Record] = ()) -> str:
    """The card of one run as Markdown.

    Args:
        run: The record of a run (`run.as_json()`).
        requirements: What must hold, as `{"metric", "op", "threshold"}`.
        audits: Attacks to show; by default none.

    Returns:
        Markdown.

    Raises:
        InputError: The record is not one of a run.
    """
    twin, tables = build([run], requirements, audits)
    filling = environment(escaped=False)
    filling.filters["md"] = plain_markdown
    text: str = filling.get_template("model_card.md.j2").render(
        twin=twin, verdict=twin["verdict"], run=twin["runs"][0], learned=twin["learned"]["0"], tables=tables
    )
    return text.strip() + "\n"


def write_card(run: Record, folder: Path, audits: Sequence[Record] = ()) -> Path:
    """Write `MODEL_CARD.md` into the run's folder.

    Args:
        run: The record of a run (`run.as_json()`).
        folder: The run's folder.
        audits: Attacks to show; by default none.

    Returns:
        The path of the card.

    Raises:
        InputError: The record is not one of a run.
    """
    path = folder / NAME
    write_whole(path, render_card(run, audits=audits).encode(), FOR_ALL)
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
