"""Findings: the JSON file of a study that runs itself, with how it was made; kept whole after every step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.runner.asking import Asked
from experiments.runner.store import code_digest, machine, versions
from veil.errors import InputError, require
from veil.foundation.files import FOR_ALL, write_whole


@dataclass(frozen=True)
class Findings:
    """What a study has found so far (`found`, which it adds to) and how it was made (`made`)."""

    path: Path
    made: Mapping[str, Any]
    found: dict[str, Any]

    def keep(self, asked: Asked, trained: bool = True) -> None:
        """Write it all, as made by this command on this machine; how it was made stays where nothing was trained."""
        if not trained:
            write_whole(self.path, text_of(read_findings(self.path).made, self.found).encode(), FOR_ALL)
            return
        made: dict[str, Any] = {"experiment": asked.name, "scale": asked.scale, "command": asked.command}
        made |= {"version": versions(), "machine": machine(), "code": self.codes(code_digest())}
        write_whole(self.path, text_of(made, self.found).encode(), FOR_ALL)

    def codes(self, latest: str) -> list[str]:
        """The versions of the code that made what is here, the latest one last; files of old do not know theirs."""
        before = self.made.get("code", ["an unknown version"] if self.made else [])
        return [*(code for code in before if code != latest), latest]

    def part(self, name: str, settings: Mapping[str, Any], empty: Any) -> dict[str, Any]:
        """The part of this name, `{"settings": …, "found": …}`; one made with other settings is refused."""
        part: dict[str, Any] = self.found.setdefault(name, {"settings": dict(settings), "found": empty})
        before, now = part["settings"], json.loads(json.dumps(dict(settings)))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed:
            key = changed[0]
            what = f"{name} with {key} = {before.get(key)}, now it is {now.get(key)}"
            raise InputError(f"{self.path} has {what}: move the file away or choose another folder by --out")
        return part

    def made_by(self) -> str:
        """How it was made, in one line of Markdown."""
        numbers = ", ".join(f"{name} {number}" for name, number in self.made["version"].items())
        on = f"{self.made['machine']['cores']} cores, {self.made['machine']['architecture']}"
        said = f"Made by `{self.made['command']}` (scale {self.made['scale']}; {numbers}; {on}, one thread per run)."
        codes = self.made.get("code", [])
        if not codes:
            return (
                f"{said} The version of the code was not recorded: it is an earlier one, and today's may give others."
            )
        if len(codes) < 2:
            return f"{said} All of one version of the code, {codes[0]}."
        return f"{said} Figures of different versions of the code stand side by side: {', '.join(codes)}."


def open_findings(asked: Asked) -> Findings:
    """What is there already, to go on with; findings at another scale are refused."""
    path = asked.folder / f"{asked.name}.json"
    if not path.exists():
        return Findings(path, {}, {})
    stored = read_findings(path)
    said = f"{path} holds findings at scale {stored.made['scale']}: choose another folder by --out"
    require(stored.made["scale"] == asked.scale, said)
    return stored


def read_findings(path: Path) -> Findings:
    """A file of findings."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        made = {key: stored[key] for key in ("experiment", "scale", "command", "version", "machine")}
        made |= {"code": stored["code"]} if "code" in stored else {}
        return Findings(path, made, dict(stored["found"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of findings: move it away or choose another folder by --out") from error


def text_of(made: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The JSON text, one line for each part of what was found."""
    opening = json.dumps(dict(made), ensure_ascii=False, indent=1).removesuffix("\n}")
    lines = (
        f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(p, ensure_ascii=False)}" for name, p in found.items()
    )
    return opening + ',\n "found": {\n' + ",\n".join(lines) + "\n }\n}\n"
