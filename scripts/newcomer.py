"""A newcomer's way: every command of README.md, in its order, pasted into a shell in a fresh clone.

python scripts/newcomer.py [--environment FOLDER] [--tests] [--only WORD]

Prints each command with its exit code and seconds, then the time from the clone to the report of one's own table; ends
with code 1 if a command failed. `make demo` installs Veil in the clone. With --environment an installed environment
takes the place of `.venv`, reads the clone's source, and commands of make are left out. `make test` runs with --tests
alone, as it takes as long as all the others. The table people.csv is a part of the bundled UCI Adult.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAYS = ("veil ui",)  # commands that run until Ctrl-C
REPORT = "veil report"  # the command that ends the way to a report of one's own table
TABLES = """
from veil.datasets import load_adult
train, test = load_adult()
train.sample(6000, random_state=0).drop(columns="fnlwgt").to_csv("people.csv", index=False)
test.sample(500, random_state=0).drop(columns=["fnlwgt", "income"]).to_csv("new.csv", index=False)
"""


@dataclass(frozen=True)
class Done:
    """A command that was run."""

    command: str
    code: int
    seconds: float
    said: str


def commands(page: str) -> list[str]:
    """The lines of code blocks that name no language, without their comments, and commands within sentences.

    A command within a sentence is one that has arguments and leaves nothing out:

    >>> commands("```\\nveil demo   # first\\n```\\n```python\\nx = 1\\n```\\n")
    ['veil demo']
    >>> commands("Ask `veil plan a.csv`, then `veil train … --dry-run`.")
    ['veil plan a.csv']
    """
    found: list[str] = []
    parts = re.split(r"^(```.*?^```$)", page, flags=re.DOTALL | re.MULTILINE)
    for part in parts:
        if not part.startswith("```"):
            spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", part)]
            found += [span for span in spans if span.startswith("veil ") and span.count(" ") > 1 and "…" not in span]
        elif part.startswith("```\n"):
            lines = part.replace("\\\n", " ").splitlines()[1:-1]  # a line may go on after a backslash
            found += [" ".join(bare.split()) for line in lines if (bare := re.sub(r"\s+#.*", "", line).strip())]
    return found


@dataclass
class Shell:
    """One terminal in the clone: what a command sources holds for those behind it."""

    folder: Path
    about: dict[str, str]
    sourced: list[str] = field(default_factory=list)

    def run(self, command: str) -> Done:
        """The command as it would be pasted."""
        began = time.monotonic()
        words = ["bash", "-c", "\n".join([*self.sourced, "exec " * command.startswith(STAYS) + command])]
        if command.startswith(STAYS):
            code, said = look_at(words, self.folder, self.about)
        else:
            done = subprocess.run(words, cwd=self.folder, env=self.about, capture_output=True, text=True)
            code, said = done.returncode, done.stdout + done.stderr
        if command.startswith("source "):
            self.sourced.append(command)
        return Done(command, code, time.monotonic() - began, said[-2000:])


def look_at(words: Sequence[str], folder: Path, about: dict[str, str]) -> tuple[int, str]:
    """Start a page, open the address that it prints, and end it as Ctrl-C would: exit code and what was said."""
    with subprocess.Popen(
        words, cwd=folder, env=about, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as page:
        assert page.stdout is not None
        said = page.stdout.readline()
        found = re.search(r"http://\S+", said)
        if found:
            with urllib.request.urlopen(found.group()) as answer:
                said += answer.read().decode()
        page.send_signal(signal.SIGINT)
        said += page.stdout.read()
        code = page.wait(timeout=30)
    return (code if found and "<html" in said else 1), said


def surroundings(clone: Path, environment: Path | None) -> dict[str, str]:
    """The variables of a terminal that was just opened; with an environment, one that finds the clone's source."""
    about = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "VEIL_DATA")
    }
    if environment:
        (clone / ".venv").symlink_to(environment, target_is_directory=True)
        about["PYTHONPATH"] = str(clone / "src")
    return about


def follow(environment: Path | None, tests: bool, only: str) -> list[Done]:
    """Clone, then every command in turn."""
    with tempfile.TemporaryDirectory() as place:
        clone = Path(place) / "veil"
        began = time.monotonic()
        done = subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], capture_output=True, text=True)
        found = [Done("git clone", done.returncode, time.monotonic() - began, done.stderr)]
        shell = Shell(clone, surroundings(clone, environment))
        for command in commands((clone / "README.md").read_text(encoding="utf-8")):
            made, needed = command.startswith("make "), command.startswith("source ")
            if (made and (environment or (command == "make test" and not tests))) or not (needed or only in command):
                print(f"left out  {command}", flush=True)
                continue
            if shell.sourced and not (clone / "people.csv").exists():
                shell.run(f"python -c '{TABLES}'")
            found.append(shell.run(command))
            print(f"{found[-1].code:4d} {found[-1].seconds:6.1f} s  {command}", flush=True)
            if found[-1].code:
                print(found[-1].said, flush=True)
    return found


def minutes(done: Sequence[Done]) -> str:
    """How long commands took, all in all."""
    return f"{sum(one.seconds for one in done) / 60:.1f} minutes"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--only", default="", help="commands that contain this")
    asked = parser.parse_args()
    followed = follow(asked.environment, asked.tests, asked.only)
    failed = [one for one in followed if one.code]
    report = [at for at, one in enumerate(followed) if one.command.startswith(REPORT)]
    if report:
        print(f"from the clone to a report of one's own table: {minutes(followed[: report[0] + 1])}")
    print(f"{len(followed)} commands, {len(failed)} failed, {minutes(followed)}")
    sys.exit(1 if failed else 0)
