"""Draw the badges of README.md: `python scripts/draw_badges.py` writes docs/figures/badge-*.svg.

What they say is read from pyproject.toml, so that it is true without a service that tells it.
"""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
LEFT, RIGHT = "#374151", "#2563eb"


def facts() -> dict[str, tuple[str, str]]:
    """Label and value of each badge."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    lines = "\n".join(project["classifiers"])
    versions = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", lines, re.MULTILINE)
    strict = "mypy --strict" if settings["tool"]["mypy"]["strict"] else "mypy"
    return {
        "python": ("python", " | ".join(versions)),
        "license": ("license", project["license"]),
        "types": ("types", strict),
    }


def badge(label: str, value: str) -> str:
    """Two fields side by side; a character is about 6.6 wide.

    >>> badge("a", "b").startswith("<svg")
    True
    """
    first, second = (round(6.6 * len(words)) + 14 for words in (label, value))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="20" role="img"'
    style = 'font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    clip = f'<clipPath id="r"><rect width="{first + second}" height="20" rx="3"/></clipPath>'
    fields = f'<rect width="{first}" height="20" fill="{LEFT}"/>'
    fields += f'<rect x="{first}" width="{second}" height="20" fill="{RIGHT}"/>'
    words = f'<text x="{first / 2}" y="14">{escape(label)}</text>'
    words += f'<text x="{first + second / 2}" y="14">{escape(value)}</text>'
    title = f"<title>{escape(label)}: {escape(value)}</title>"
    return f'{head} {style}>{title}{clip}<g clip-path="url(#r)">{fields}</g>{words}</svg>\n'


if __name__ == "__main__":
    for name, (label, value) in facts().items():
        (FIGURES / f"badge-{name}.svg").write_text(badge(label, value), encoding="utf-8")
