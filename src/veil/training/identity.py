"""Identity of a run. A resumed run repeats releases with the same noise, so everything must match.

Settings are public: they are compared by value, and an error names both values. Rows, targets, groups, owners, model
and loss are compared by digests under a key that follows from the run's secret seed. Digests are kept in the file of
the seed and destroyed with it (`run_folder.py`); without the seed they say nothing about a row.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from veil.errors import require
from veil.foundation.randomness import Seed
from veil.plans import LossFunction, Plan
from veil.problem import Problem
from veil.problem.people import PersonRows
from veil.training.callbacks import Callback
from veil.training.digests import Digester, rows_at_once
from veil.training.process_group import ProcessGroup

# What a configuration says besides what makes the run: how it was typed, how its figures are judged afterwards, and who
# adds up its sums.
_BESIDES = ("command", "require", "workers")
_PLAN = "plan"
_SINGULAR = ("method", "schema", "model", "loss", _PLAN)
# Who is who is compared within a process: nobody else can tell anything from these digests.
_OF_PROCESS = os.urandom(32)


@dataclass(frozen=True)
class Identity:
    """Settings by name, and digests of what is private or has no short value."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As the file of the seed keeps it."""
        whole = {"settings": self.settings, "digests": self.digests}
        found: dict[str, Any] = json.loads(json.dumps(whole, default=str))
        return found

    def summary(self) -> str:
        """All of it in one text."""
        return json.dumps(self.as_json(), sort_keys=True)


def difference(before: Mapping[str, Any], now: Identity) -> tuple[str, str] | None:
    """What differs from an identity that was noted, in words, and what to use instead; None if nothing does.

    >>> difference(Identity({"ignore": ["age"]}).as_json(), Identity({"ignore": ["race"]}))
    ('`ignore` was age and is now race', 'settings')
    """
    given = now.as_json()
    old, new = before["settings"], given["settings"]
    changed = [name for name in {**old, **new} if json.dumps(old.get(name)) != json.dumps(new.get(name))]
    if changed:
        said = [f"`{name}` was {_shown(old.get(name))} and is now {_shown(new.get(name))}" for name in changed]
        return "; ".join(said), "settings"
    old, new = before["digests"], given["digests"]
    parts = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    # The plan follows from the rest: it is named only where nothing else explains it.
    parts = [name for name in parts if name != _PLAN] or parts
    if not parts:
        return None
    named = " and ".join(filter(None, (", ".join(f"the {name}" for name in parts[:-1]), f"the {parts[-1]}")))
    verb = "differs" if len(parts) == 1 and parts[0] in _SINGULAR else "differ"
    return f"{named} {verb} from the original run", "data, model and code"


def agree(now: Identity, noted: Mapping[str, Any] | None) -> None:
    """Reject an identity that differs from the recorded one or, in a process group, from the first process's.

    All processes of a group fail together: none continues to reserve or to wait for the others.
    """
    processes = ProcessGroup.joined()
    found = None if noted is None else difference(noted, now)
    first = processes.told_json(now.as_json())
    found = found or difference(first, now)
    together = processes.all(found is None)
    if noted is not None:
        require(found is None, _refusal(found))
    require(
        together,
        "The processes of the group do not have the same settings, rows, model and code"
        + (f": in process {processes.rank} {found[0].replace('the original run', 'process 0')}." if found else "."),
    )


def _refusal(found: tuple[str, str] | None) -> str:
    return "" if found is None else f"Cannot resume: {found[0]}. Use the original {found[1]} or a new --out."


def digester(seed: Seed, trained: nn.Module | None = None) -> Digester:
    """Digests that only the holder of the run's seed can compare."""
    return Digester(seed.key("identity", 0), trained)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration asks for, by name."""
    found = flattened({name: value for name, value in config.items() if name not in _BESIDES})
    return {name.removeprefix("settings."): value for name, value in found.items()}


def run_identity(
    plan: Plan,
    model: nn.Module,
    loss: LossFunction,
    problem: Problem,
    evaluation: Problem | None,
    callbacks: Sequence[Callback],
    seed: Seed,
) -> Identity:
    """All that the releases of a training run follow from, apart from the weights, which are in its checkpoint.

    Callbacks count if they keep a state: those steer the run, the others only watch it.
    """
    digest = digester(seed, model)
    steering = [(type(c), {name: v for name, v in vars(c).items() if name[:1] != "_"}) for c in callbacks if c.steers()]
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    chosen = {"method": plan.method, "steps": plan.steps, **plan.settings.model_dump()}
    return Identity(
        {**chosen, **flattened({"options": plan.options}), **versions},
        {
            **rows_identity(problem, digest),
            "evaluation rows": "none" if evaluation is None else whole_identity(evaluation, digest),
            "model": digest.of(model),
            "loss": digest.of(loss),
            "callbacks": digest.of(steering),
            _PLAN: digest.of(plan),
        },
    )


def rows_identity(problem: Problem, digest: Digester) -> dict[str, str]:
    """Rows and what belongs to each, part by part; all rows are read once, in order."""
    facts = problem.public
    if problem.elsewhere is not None:
        return problem.elsewhere.identity(digest.key)
    return {
        "rows": digest.of(_inputs(problem, digest), facts.input_shape, problem.present, problem.weights),
        "targets": digest.of(problem.targets, facts.task, facts.classes, facts.classes_declared, *facts.heads),
        "groups": digest.of(problem.group_of, facts.groups, facts.group_sizes, facts.sizes, problem.memberships),
        "owners": digest.of(problem.owner_of, facts.owners, [cell.rows for cell in facts.cells]),
        "budgets": digest.of(facts.budgets),
        **_people(problem, digest),
    }


def who_is_who(problem: Problem) -> str:
    """One digest of which group, owner and person each row has, for runs of this process.

    Rows in memory count with all that they say. Those of a data set count by their targets: to read them again may take
    as long as training does.
    """
    digest = Digester(_OF_PROCESS)
    if problem.source is None:
        found = rows_identity(replace(problem, device=None), digest)
        return digest.of({name: part for name, part in found.items() if name != "budgets"})
    several = problem.several
    people = None if several is None else (several.first, several.targets)
    facts = replace(problem.public, budgets=None)
    return digest.of(problem.cell_of, problem.present, problem.targets, problem.person_of, people, facts)


def _people(problem: Problem, digest: Digester) -> dict[str, str]:
    """Which rows belong to the same person, with all their inputs and targets; nothing where rows are protected."""
    if problem.public.unit == "row":
        return {}
    if isinstance(problem.source, PersonRows):  # whose inputs are all rows of a person
        return {"people": digest.of(problem.source.several.first, problem.source.several.targets)}
    if problem.person_of is not None:
        return {"people": digest.of(problem.public.unit, problem.public.person_rows, problem.person_of)}
    several = problem.several
    rows = () if several is None else (several.first, several.targets, _inputs(problem.apart()[0], digest))
    return {"people": digest.of(problem.public.unit, *rows)}


def whole_identity(problem: Problem, digest: Digester) -> str:
    """One digest of a whole problem."""
    return digest.of(rows_identity(problem, digest))


def _inputs(problem: Problem, digest: Digester) -> str:
    """The digest of the inputs. A source that makes its rows at random gets the same random numbers each time."""
    size = 4 * problem.values_per_row if problem.source is not None else problem.inputs[:1].nbytes
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        pieces = problem.in_order(rows_at_once(size))
        return digest.of_stream(pieces) if problem.is_one_tensor else digest.of_nested(pieces)


def flattened(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by dotted names.

    >>> flattened({"a": 1, "b": {"c": 2}})
    {'a': 1, 'b.c': 2}
    """
    found: dict[str, Any] = {}
    for name, value in record.items():
        found |= flattened(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + str(name): value}
    return found


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "not set"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
