"""Identity of a run on a table: the request, the table before it is encoded, the held-out rows, the model measured.

Each is compared before the first release that follows from it (`veil.training.identity` has the rest).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from veil.foundation.randomness import Seed
from veil.methods import Method
from veil.problem import Problem
from veil.request import Request
from veil.tables.table import Columns
from veil.training.identity import Identity, digester, settings_of, whole_identity

# The configuration has these as they are used: a schema may have given them.
_ROLES = {"target", "group", "owner", "settings", "preset", "method"}


def request_identity(
    request: Request, columns: Columns | None, method: Method, config: Mapping[str, Any], seed: Seed
) -> Identity:
    """Every field of the request and of the configuration, the method with its options, and what the schema says."""
    names = set(Request.model_fields) - _ROLES
    asked = {Request.model_fields[name].alias or name: _plain(getattr(request, name)) for name in sorted(names)}
    asked["store"] = None if request.dataset is None else _place(request.store)
    digest = digester(seed)
    return Identity(
        settings_of({**config, **asked}),
        {"method": digest.of(method), "schema": digest.of(None if columns is None else columns.schema)},
    )


def table_identity(table: pd.DataFrame, columns: Columns, budgets: Mapping[str, float] | None, seed: Seed) -> Identity:
    """The training rows as they were read: private preprocessing looks at them before there is an encoding."""
    digest = digester(seed)
    owner = [] if columns.owner is None else [columns.owner]
    roles = {"targets": [columns.target], "groups": [*columns.groups], "owners": owner}
    others = [name for name in table.columns if not any(name in listed for listed in roles.values())]
    parts = {"rows": others, **roles}
    found = {name: digest.of(len(table), table[listed]) for name, listed in parts.items()}
    return Identity({}, {**found, "budgets": digest.of(budgets)})


def held_out_identity(held: Problem | None, allowed: float, seed: Seed) -> Identity:
    """The rows that are measured at the end, and the smallest ε among them."""
    digest = digester(seed)
    found = "none" if held is None else digest.of(whole_identity(held, digest), allowed)
    return Identity({}, {"held-out rows": found})


def rows_identity(parts: Mapping[str, Problem | None], seed: Seed) -> Identity:
    """The rows of a search, part by part."""
    digest = digester(seed)
    found = {name: "none" if part is None else digest.of(whole_identity(part, digest)) for name, part in parts.items()}
    return Identity({}, found)


def measured_identity(model: nn.Module, seed: Seed) -> Identity:
    """The weights of the model that is measured."""
    return Identity({}, {"trained weights": digester(seed).of(dict(model.state_dict()))})


def _plain(value: Any) -> Any:
    """A field of a request as JSON holds it; a path does not depend on where the command is typed."""
    if isinstance(value, Path):
        return os.path.abspath(value)
    return sorted(value) if isinstance(value, tuple) else value


def _place(store: str) -> str:
    """Where a budget store is, without its password."""
    from veil.budget_store.connecting import shown, store_url

    place = shown(store_url(store))
    return place if "://" in place else os.path.abspath(place)
