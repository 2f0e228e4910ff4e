"""Tables: the data that runs were trained on, each once, as what `veil plan` asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veil.request import RowsRequest
from veil.ui.runs import RunSummary

# A plan reads rows and columns. It takes no model from a folder: a model may be a program of somebody else.
ASKED = frozenset({*(field.alias or name for name, field in RowsRequest.model_fields.items()), "holdout"})
# Those of them that are read.
SOURCES = frozenset({"data", "test", "schema"})


@dataclass(frozen=True)
class PlannedTable:
    """A table with its target and groups, and how many runs were trained on it."""

    id: str
    config: Mapping[str, Any]
    runs: int

    @property
    def words(self) -> str:
        """The command that makes the same plan."""
        options = {name: self.config.get(name) for name in ("target", "group", "person")}
        joined = {name: ",".join(map(str, v)) if isinstance(v, list) else v for name, v in options.items()}
        return " ".join([f"veil plan {self.config['data']}", *(f"--{name} {v}" for name, v in joined.items() if v)])


def tables_of(runs: Sequence[RunSummary]) -> list[PlannedTable]:
    """The tables of some runs, those with most runs first."""
    found: dict[str, tuple[dict[str, Any], int]] = {}
    for run in runs:
        if run.data:
            config = {name: value for name, value in sorted(run.config.items()) if name in ASKED}
            text = json.dumps(config, sort_keys=True, default=str)
            found[text] = (config, found.get(text, (config, 0))[1] + 1)
    made = [
        PlannedTable(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16], config, count)
        for text, (config, count) in found.items()
    ]
    return sorted(made, key=lambda table: (-table.runs, table.words))
