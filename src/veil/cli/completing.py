"""Shell completion."""

from __future__ import annotations

SIGNS = (">=", "<=")


def complete_method(incomplete: str) -> list[str]:
    """Methods whose name starts with the text."""
    from veil.cli.methods import read_table

    return [row["name"] for row in read_table() if row["name"].startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """A comma-separated list: the text so far, with each possible completion.

    >>> complete_methods("erm,dp-sg")
    ['erm,dp-sgd']
    """
    before, comma, last = incomplete.rpartition(",")
    chosen = before.split(",")
    return [before + comma + name for name in complete_method(last) if name not in chosen]


def complete_model(incomplete: str) -> list[str]:
    """Built-in models whose name starts with the text."""
    from veil.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


def complete_requirement(incomplete: str) -> list[str]:
    """Figures that can be required."""
    from veil.metrics.definitions import judged_names

    return [name + sign for name in judged_names() for sign in SIGNS if name.startswith(incomplete)]
