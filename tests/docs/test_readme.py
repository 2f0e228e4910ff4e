"""The README says what the measurements say, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARMS = {
    "**Veil, default (`auto`)**": "Veil `auto`",
    "Veil, DP-SGD": "Veil `dp-sgd`",
    "DP-EBM (interpret)": "DP-EBM",
    "diffprivlib, logistic regression": "diffprivlib logistic",
    "Opacus, MLP with its documented defaults": "opacus MLP",
    "LightGBM, no privacy, groups ignored": "LightGBM",
}


def rows_of(text: str) -> dict[str, list[str]]:
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip(" *") for cell in cells[1:]] for cells in lines}


def test_the_first_table_has_the_figures_of_the_results_page() -> None:
    shown = rows_of((ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0])
    page = (ROOT / "docs" / "results" / "tables.md").read_text(encoding="utf-8")
    section = page.split("### ε = 1 (")[1]
    measured = rows_of(section.split("\n### ")[0])
    assert section.startswith("27 tasks)")
    for name, arm in ARMS.items():
        worst, average, _overall, auc = measured[arm]
        assert shown[name] == [worst, average, auc], name


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "examples/README.md"]
)
def test_links_of_pages_outside_the_site_lead_to_files_that_exist(name: str) -> None:
    page = ROOT / name
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []
