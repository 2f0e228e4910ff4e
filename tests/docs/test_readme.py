"""The README says what the measurements say, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ARMS = {
    "**Veil, default (`auto`)**": "Veil `auto`",
    "Veil, DP-SGD": "Veil `dp-sgd`",
    "DP-EBM (interpret)": "DP-EBM",
    "diffprivlib, logistic regression": "diffprivlib logistic",
    "Opacus, MLP with its documented defaults": "opacus MLP",
    "JAX-Privacy, the same MLP with the settings of its example": "JAX-Privacy MLP",
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


def test_the_first_page_of_the_site_repeats_the_first_table() -> None:
    shown = rows_of((ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0])
    first = rows_of((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert {name: first[name] for name in ARMS} == {name: shown[name] for name in ARMS}


def test_what_a_picture_of_the_report_is_said_to_show_is_in_the_table_of_the_demo() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = rows_of(page.split("## What `veil demo` prints")[1].split("\n## ")[0])
    groups = [float(found[name][-1]) for name in found if "×" in name]
    told = [min(groups), float(found["average of groups"][-1]), max(groups) - min(groups)]
    for name in ("README.md", "docs/index.md"):
        (alt,) = re.findall(r"!\[(.*?)\]\(\S*figures/report\.png\)", (ROOT / name).read_text(encoding="utf-8"))
        figures = [float(number) for number in re.findall(r"\d+\.\d", alt)]
        assert figures == pytest.approx(told, abs=0.11), name  # a difference of rounded figures


def test_the_comparison_repeats_the_figures_of_the_first_table() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    first, compared = rows_of(page.split("\n## ")[0]), rows_of(page.split("## Beside other libraries")[1])
    of = {"Veil": "**Veil, default (`auto`)**", "Opacus": "Opacus, MLP with its documented defaults"}
    of |= {"JAX-Privacy": "JAX-Privacy, the same MLP with the settings of its example"}
    of |= {"DP-EBM": "DP-EBM (interpret)", "diffprivlib": "diffprivlib, logistic regression"}
    for place, figure in enumerate(("worst group", "average of groups", "AUC")):
        columns = dict(zip(compared[""], compared[f"{figure} at ε = 1, points lost (1)"], strict=True))
        assert {name: columns[name] for name in of} == {name: first[row][place] for name, row in of.items()}, figure


def test_the_comparison_repeats_the_measured_steps() -> None:
    compared = rows_of((ROOT / "README.md").read_text(encoding="utf-8").split("## Beside other libraries")[1])
    measured = rows_of((ROOT / "docs" / "gradients.md").read_text(encoding="utf-8").split("## What it costs")[1])
    workloads = {"MLP": "MLP 60-256", "LSTM": "char-LSTM", "transformer": "small transformer"}
    for name, start in workloads.items():
        (found,) = [cells for workload, cells in measured.items() if workload.startswith(start)]
        assert compared[f"a private step over a plain one, {name} (2)"][:2] == found[:2], name


def test_badges_say_what_the_package_says() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "draw_badges.py"))
    for name, (label, value) in script["facts"]().items():
        drawn = (ROOT / "docs" / "figures" / f"badge-{name}.svg").read_text(encoding="utf-8")
        assert drawn == script["badge"](label, value), "python scripts/draw_badges.py"
    shown = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ")[0]
    versions = script["facts"]()["python"][1].replace(" | ", ", ")
    assert f"![Python {versions}](docs/figures/badge-python.svg)" in shown


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "examples/README.md"]
)
def test_links_of_pages_outside_the_site_lead_to_files_that_exist(name: str) -> None:
    page = ROOT / name
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


def newcomer() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "newcomer.py"))


def test_commands_in_blocks_and_in_sentences_are_found_and_python_is_not() -> None:
    found = newcomer()["commands"]((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found.index("source .venv/bin/activate") < found.index("veil verify run")
    assert "veil plan people.csv --target income --group sex,race" in found
    assert not [line for line in found if "…" in line or "import" in line]


def test_every_command_of_the_readme_is_one_that_veil_has() -> None:
    import typer

    from veil.cli.app import app

    known = typer.main.get_command(app)
    found = [line.split() for line in newcomer()["commands"]((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert len(found) > 12
    for words in found:
        assert words[0] in ("make", "source", "veil"), words
        command, rest = known, words[1:]
        while words[0] == "veil" and hasattr(command, "commands"):
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
        options = {option for parameter in getattr(command, "params", ()) for option in parameter.opts}
        assert words[0] != "veil" or {word for word in rest if word.startswith("--")} <= options, words


@pytest.mark.long
def test_no_command_of_the_readme_fails_in_a_fresh_clone() -> None:
    """With the environment of this test; `python scripts/newcomer.py` installs one of its own."""
    done = newcomer()["follow"](Path(sys.prefix), False, "")
    assert [(one.command, one.said) for one in done if one.code] == []
