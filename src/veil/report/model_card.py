"""The model card: what people should know before they use a model, from the record that the report shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> render_card(run.as_json()).startswith("#")
    True
    """
    twin, tables = build([_without_folders(run)], requirements, audits)
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

    >>> import torch, veil
    >>> from veil.datasets import GroupSpec, generate
    >>> rows = generate([GroupSpec("large", 300), GroupSpec("small", 60)])
    >>> run = veil.fit(torch.nn.Linear(10, 2), rows, method="dp-sgd", steps=3, batch_size=50, evaluation=rows)
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_card(run.as_json(), Path(place)).name
    'MODEL_CARD.md'
    """
    path = folder / NAME
    write_whole(path, render_card(run, audits=audits).encode(), FOR_ALL)
    return path


def _without_folders(run: Record) -> Record:
    """The record with names of files alone: the card travels with the model, and where rows lie stays at home."""
    config = run.get("config")
    if not isinstance(config, Mapping):
        return run
    kept = {"data": _name, "command": _names_alone}
    named = {name: shorter(config[name]) for name, shorter in kept.items() if isinstance(config.get(name), str)}
    return {**run, "config": {**config, **named}}


def _name(path: str) -> str:
    return Path(path).name or path


def _names_alone(command: str) -> str:
    """A command without the folders of its paths.

    >>> _names_alone("veil train /home/ada/people.csv --test='my rows/public.csv' --out ./runs/")
    'veil train people.csv --test=public.csv --out runs'
    """
    try:
        words = [word.partition("=") for word in shlex.split(command)]
    except ValueError:  # a quote that nobody closed
        return ""
    return shlex.join(f"{_name(first)}{sign}{_name(value)}" for first, sign, value in words)


def plain_markdown(value: object) -> str:
    """Text that Markdown shows as it is: no markup, no table cell, no HTML.

    >>> plain_markdown("a|b <i>*c*")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*'
    """
    text = " ".join(str(value).split())
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
