"""Rewrite the pages that are made from code: `make docs`.

The index of methods comes from the registry; the ε table of docs/methods/fdpg.md is computed anew.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from veil import methods

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "methods" / "README.md"
TABLE = ROOT / "src" / "veil" / "methods" / "table.json"
# Methods that share a page with others.
PAGES = dict.fromkeys(("erm", "is-sgd", "iw-sgd", "gdro", "adversarial"), "not-private")
PAGES |= dict.fromkeys(("azb", "azb-prop", "azb-weak"), "azb")


def index() -> str:
    """One line per method, by family."""
    lines = ["# Methods", "", "Made by `make docs`. `veil methods` prints the same.", ""]
    lines += ["| method | family | relation | what it does |", "|---|---|---|---|"]
    for row in methods.table():
        page = PAGES.get(row["name"], row["name"])
        link = f"[`{row['name']}`]({page}.md)"
        lines.append(f"| {link} | {row['family']} | {row['relation'] or '–'} | {row['summary']} |")
    lines += ["", "[Your own method in forty lines](your-own.md).", ""]
    return "\n".join(lines)


def table() -> str:
    """The same as data, for commands that list methods without loading them."""
    return json.dumps(methods.table(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
    TABLE.write_text(table(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "experiments.fdpg_accounting"], check=True, cwd=ROOT)
    print(f"wrote {INDEX.relative_to(ROOT)} and the table of docs/methods/fdpg.md")
