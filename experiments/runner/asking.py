"""Asking: what the user wants of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Asked:
    """The experiment, its scale and where files go; `options` are those of the scale, for studies that run themselves.

    >>> Asked("ino", "small", Path("runs"), seeds=2).command
    'veil reproduce ino --scale small --seeds 2'
    """

    name: str
    scale: str
    folder: Path
    seeds: int | None = None
    jobs: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that does the same again."""
        words = ["veil", "reproduce", self.name]
        words += ["--scale", self.scale] if self.scale != "paper" else []
        words += ["--seeds", str(self.seeds)] if self.seeds is not None else []
        return " ".join(words)
