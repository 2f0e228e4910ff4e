"""`--print-config` writes every option, `--config` reads it back, and the command line wins; completion; exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.people_cases import TRAIN, judged
from tests.program import Program
from veil.cli.app import app
from veil.plans import Settings

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def options_of(command: str) -> set[str]:
    from typer.main import get_command

    return {str(p.name) for p in get_command(app).commands[command].params}  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["train", "compare"])
def test_every_option_and_setting_is_in_the_printed_file(command: str, veil: Program) -> None:
    code, text, _ = veil(command, "--print-config")
    assert code == 0
    tomllib.loads(text)
    named = set(re.findall(r"^(?:# )?([a-z_0-9]+) =", text, flags=re.MULTILINE))
    left_out = {"config", "print_config", "dry_run", "resume", "help"}
    assert (options_of(command) - left_out) | (set(Settings.model_fields) - {"epsilon"}) <= named | {"seed"}
    assert not left_out & named


def test_a_printed_file_gives_the_same_plan_and_the_command_line_wins(
    people: Path, tmp_path: Path, veil: Program
) -> None:
    words = ("train", str(people), *TRAIN, "--epsilon", "2", "--option", "gamma=0.5", "--method", "asc")
    words = tuple(w for w in words if w not in ("--option", "gamma=0.5"))
    file = tmp_path / "run.toml"
    file.write_text(veil(*words, "--print-config")[1])
    direct = json.loads(veil(*words, "--dry-run", "--json")[1])
    read = json.loads(veil("train", "--config", str(file), "--dry-run", "--json")[1])
    assert read == direct
    changed = ("train", "--config", str(file), "--dry-run", "--json", "--epsilon", "0.5")
    smaller = json.loads(veil(*changed)[1])
    assert max(row["epsilon"] for row in smaller["groups"]) < 0.51 < max(row["epsilon"] for row in read["groups"])


def test_the_file_of_a_run_starts_it_again(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", *judged(people), *TRAIN, "--method", "dp-sgd", "--json")
    first = json.loads(veil(*words, "--out", str(tmp_path / "a"), "--require", "ece<=1")[1])
    again = ("train", "--config", str(tmp_path / "a" / "config.toml"), "--out", str(tmp_path / "b"), "--json")
    second = json.loads(veil(*again)[1])
    assert second["metrics"] == first["metrics"]
    assert second["requirements"] == first["requirements"]


@pytest.mark.parametrize(
    "more",
    [
        ("--method", "ino-sgd", "--tail", "12"),
        ("--method", "azb-weak", "--allow-weaker-minority-privacy"),
    ],
)
def test_the_file_of_a_run_keeps_options_that_one_method_has(
    more: tuple[str, ...], people: Path, tmp_path: Path, veil: Program
) -> None:
    words = ("train", *judged(people), *TRAIN, "--model", "logistic", *more)
    code, _, err = veil(*words, "--out", str(tmp_path / "a"), "--quiet")
    assert code == 0, err
    direct = json.loads(veil(*words, "--dry-run", "--json")[1])
    file = str(tmp_path / "a" / "config.toml")
    assert json.loads(veil("train", "--config", file, "--dry-run", "--json")[1]) == direct


def test_a_key_that_nobody_knows_is_refused(tmp_path: Path, veil: Program) -> None:
    (tmp_path / "run.toml").write_text("epsilom = 1\n")
    code, _, err = veil("compare", "--config", str(tmp_path / "run.toml"))
    assert code == 2
    assert '"epsilom" is not an option or setting of veil compare' in err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("train --method dp-is", "dp-is-sgd"),
        ("compare --methods erm,dp-is", "erm,dp-is-sgd"),
        ("train --model log", "logistic"),
        ("report --require worst", "worst_group_accuracy>="),
        ("tra", "train"),
    ],
)
def test_the_shell_is_offered_what_could_come_next(typed: str, offered: str) -> None:
    script = "import sys; sys.argv[0] = 'veil'; from veil.cli import main; main()"
    asked = {"_VEIL_COMPLETE": "complete_bash", "COMP_WORDS": f"veil {typed}", "COMP_CWORD": str(len(typed.split()))}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert offered in done.stdout.split()


def test_quiet_says_nothing_on_the_way(people: Path, tmp_path: Path, veil: Program) -> None:
    words = ("train", str(people), *TRAIN, "--out", str(tmp_path / "run"), "--quiet")
    code, out, err = veil(*words)
    assert code == 0
    assert err == ""
    assert "Report:" in out


def test_every_exit_code_is_in_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE) == ["0", "1", "2", "130", "141", "143"]


def test_every_command_is_on_the_page() -> None:
    from typer.main import get_command

    page = PAGE.read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"`veil {name}" not in page] == []
