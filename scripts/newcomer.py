"""A newcomer's way: every command of README.md, in its order, in a fresh clone.

python scripts/newcomer.py [--environment FOLDER] [--tests] [--only WORD]

Prints each command with its exit code and seconds; ends with code 1 if one failed. `make demo` installs Veil in the
clone. With --environment an installed environment takes its place, and commands of make are left out. `make test`
runs with --tests alone, as it takes as long as all the others. The table people.csv is a part of the bundled UCI Adult.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAYS = ("veil ui",)  # commands that run until Ctrl-C
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
    """The lines of code blocks that name no language, without their comments.

    >>> commands("```\\nveil demo   # first\\n```\\n```python\\nx = 1\\n```\\n")
    ['veil demo']
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [bare for line in lines if (bare := re.sub(r"\s+#.*", "", line).strip())]


def run(command: str, folder: Path, path: str) -> Done:
    """The command as it would be pasted into a shell."""
    began = time.monotonic()
    about = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": str(folder / "src")}
    if command.startswith(STAYS):
        code, said = look_at(command, folder, about)
    else:
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=about, capture_output=True, text=True)
        code, said = done.returncode, done.stdout + done.stderr
    return Done(command, code, time.monotonic() - began, said[-2000:])


def look_at(command: str, folder: Path, about: dict[str, str]) -> tuple[int, str]:
    """Start a page, open the address that it prints, and end it as Ctrl-C would: exit code and what was said."""
    with subprocess.Popen(
        shlex.split(command), cwd=folder, env=about, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def follow(environment: Path | None, tests: bool, only: str) -> list[Done]:
    """Clone, then every command in turn."""
    with tempfile.TemporaryDirectory() as place:
        clone = Path(place) / "veil"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        path = str(environment / "bin") if environment else str(clone / ".venv" / "bin")
        found: list[Done] = []
        for command in commands((clone / "README.md").read_text(encoding="utf-8")):
            made = command.startswith("make ")
            if (made and (environment or (command == "make test" and not tests))) or only not in command:
                print(f"left out  {command}", flush=True)
                continue
            if not made and not (clone / "people.csv").exists():
                run(f"python -c '{TABLES}'", clone, path)
            found.append(run(command, clone, path))
            print(f"{found[-1].code:4d} {found[-1].seconds:6.1f} s  {command}", flush=True)
            if found[-1].code:
                print(found[-1].said, flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path)
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--only", default="", help="commands that contain this")
    asked = parser.parse_args()
    followed = follow(asked.environment, asked.tests, asked.only)
    failed = [one for one in followed if one.code]
    total = sum(one.seconds for one in followed)
    print(f"{len(followed)} commands, {len(failed)} failed, {total:.0f} s")
    sys.exit(1 if failed else 0)
