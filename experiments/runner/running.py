"""Running: one task becomes one record; a whole experiment becomes its file, its page and its figure."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.runner.asking import Asked
from experiments.runner.columns import ACTIVITY, COLUMNS, GROUP, MOMENT, OWNER, moment_of
from experiments.runner.owner_looks import OwnerLooks, rows_of_owners, seen_of, step_at
from experiments.runner.page import page_of, svg_of
from experiments.runner.problems import load_pair, source
from experiments.runner.spec import Spec, Study, Task, tasks
from experiments.runner.store import add_run, complete_runs, find, read_store
from veil.errors import InputError, require
from veil.foundation.files import FOR_ALL, write_whole
from veil.foundation.parallel import WORKER_DIED, in_order
from veil.foundation.randomness import Seed
from veil.methods import create
from veil.metrics import GroupMetrics, evaluate
from veil.models import build_model
from veil.problem import Problem
from veil.training import Run, fit
from veil.training.callbacks import Callback
from veil.training.losses import row_losses
from veil.training.sampling_variance import SamplingVariance

Told = Callable[[str], None]
# What compares clipped updates with those of the objective, on average over looks at every so many steps.
CLIPPING = ("clipped_cosine", "clipped_length")
EVERY = 25
AS_TRAINED = "accuracy_as_trained"


def reproduce(spec: Spec, asked: Asked, told: Told = print) -> dict[str, str]:
    """Run what is not stored yet, then write page and figure; returns what went wrong, by run."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"{spec.name}.json"
    wanted, figures = tasks(spec, asked.scale, asked.seeds), measured(spec)
    add_known(spec, path, asked.scale)
    known = read_store(path, spec.name, asked.scale)["runs"]
    moments = looked_at(spec)
    missing = [task for task in wanted if find(known, task, figures, moments) is None]
    told(f"{spec.name}: {len(wanted) - len(missing)} of {len(wanted)} runs are stored")
    work, failures = partial(_run_and_store, asked=asked, figures=figures, moments=moments), dict[str, str]()
    for done, (task, outcome) in enumerate(in_order(work, missing, asked.jobs), start=1):
        failure = WORKER_DIED if outcome is None else outcome
        if failure:
            failures[task.label] = failure
        told(f"{done}/{len(missing)} {task.label}{f' failed: {failure}' if failure else ''}")
        # The page keeps step with the stored runs, so that a stopped experiment leaves both.
        if path.exists():
            write_page(spec, path, asked.scale)
    if path.exists():
        write_page(spec, path, asked.scale)
    return failures


def add_known(spec: Spec, path: Path, scale: str) -> None:
    """Give stored runs what needs no training: the score of a constant answer, accuracy in training shares."""
    planned = {(task.arm, task.x): task for task in tasks(spec, scale, seeds=1)}
    constants, shares = dict[str, Any](), AS_TRAINED in spec.figures

    def missing(run: Mapping[str, Any]) -> Mapping[str, Any]:
        task = planned.get((run["arm"], run["x"]))
        known = "constant" in run and not (shares and AS_TRAINED not in run["figures"])
        if known or task is None or run["fingerprint"] != task.fingerprint:
            return {}
        seed = run["seed"] if source(task.data).by_seed else 0
        train, test = load_pair(task.data, task.data_options, seed)
        rows = json.dumps([task.data_options, seed], sort_keys=True)
        if rows not in constants:
            constants[rows] = constant_answer(train, test)
        of_groups = {name: score["accuracy"] for name, score in run["by_group"].items()}
        figures = {**run["figures"], AS_TRAINED: _as_trained(of_groups, train)}
        return {"constant": constants[rows], "figures": figures}

    if path.exists():
        complete_runs(path, spec.name, scale, missing)


def rewrite_page(spec: Spec | Study, asked: Asked) -> None:
    """The page and its figures from what is stored; nothing is run."""
    path = asked.folder / f"{spec.name}.json"
    require(path.exists(), f"there is no file {path}: run the experiment first")
    if isinstance(spec, Study):
        runner_of(spec).rewrite(spec.name, asked.folder)
    else:
        write_page(spec, path, asked.scale)


def write_page(spec: Spec, path: Path, scale: str) -> None:
    """The page and the figure beside a file of stored runs, from that file alone."""
    stored = read_store(path, spec.name, scale)
    drawn = svg_of(spec, stored)
    if drawn is not None:
        write_whole(path.with_suffix(".svg"), drawn.encode(), FOR_ALL)
    write_whole(path.with_suffix(".md"), page_of(spec, stored).encode(), FOR_ALL)


def run_study(study: Study, asked: Asked) -> None:
    """Hand an experiment over to its own module, which writes its files itself."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runner_of(study).reproduce(asked)


def runner_of(study: Study) -> Any:
    """The module of a study: `reproduce(asked)` runs it, `rewrite(name, folder)` writes its pages anew."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(study.runner)
    except ModuleNotFoundError as error:
        raise InputError(f'runner "{study.runner}" cannot be imported: run this in a checkout of Veil') from error
    for name in ("reproduce", "rewrite"):
        require(hasattr(module, name), f'runner "{study.runner}" has no function "{name}"')
    return module


def measured(spec: Spec) -> list[str]:
    """The figures that must have been measured during a run: on training rows, of owners, and along the run."""
    claimed = [*spec.figures, *(claim.figure for claim in spec.claims)]
    shown = [*claimed, *(spec.plot.figures if spec.plot is not None and spec.plot.kind != "curve" else ())]
    kept = (name for name in dict.fromkeys(shown))
    return [
        name
        for name in kept
        if name.startswith(OWNER) or MOMENT in name or name in ACTIVITY or _reads_training_rows(name)
    ]


def looked_at(spec: Spec) -> list[float]:
    """The moments at which runs are looked at owner by owner: those of the claims, a quarter, half and the end."""
    if not spec.look_at_owners:
        return []
    return sorted({0.25, 0.5, 1.0, *(moment_of(claim.figure) for claim in spec.claims)})


def run_task(task: Task, figures: Sequence[str] = (), moments: Sequence[float] = ()) -> dict[str, Any]:
    """Train once, on one thread, and keep what pages need; at `moments` of the run also what it did for each owner."""
    torch.set_num_threads(1)
    train, test = load_pair(task.data, task.data_options, task.seed)
    model = build_model(task.model, train.public, Seed.from_int(task.seed), **task.model_options)
    watches: list[Callback] = []
    if any(name in CLIPPING for name in figures):
        watches.append(SamplingVariance(train, row_losses, EVERY))
    active, at = [name for name in figures if name.partition(MOMENT)[0] in ACTIVITY], dict[str, int]()
    if active or moments:
        steps = task.checked_settings().steps_for(train.public)
        at = {name: step_at(moment_of(name), steps) for name in active}
        looks = sorted({*at.values(), *(step_at(moment, steps) for moment in moments)})
        watches.append(OwnerLooks(rows_of_owners(test, train), at=looks))
    started = time.perf_counter()
    run = fit(
        model,
        train,
        method=create(task.method, task.options),
        evaluation=test,
        callbacks=watches,
        seed=task.seed,
        **task.settings,
    )
    seconds = time.perf_counter() - started
    assert run.metrics is not None
    found = _figures(run.metrics, train) | _on_training_rows(run, train, figures) | _along(run, train, figures)
    found |= _activity(run, at)
    seen = {"owners": seen_of(run, train, moments)} if moments else {}
    return seen | {
        "arm": task.arm,
        "x": task.x,
        "seed": task.seed,
        "fingerprint": task.fingerprint,
        "settings": task.settings,
        "options": task.options,
        "steps": run.plan.steps,
        "seconds": round(seconds, 1),
        "noise_multiplier": run.plan.details.get("noise_multiplier"),
        "epsilon": run.certificate.epsilon,
        "epsilon_by_group": dict(run.certificate.by_group),
        "figures": found,
        "by_group": {name: score.as_json() for name, score in run.metrics.by_group.items()},
        "curve": _curve(run),
        "constant": constant_answer(train, test),
    }


def constant_answer(train: Problem, test: Problem) -> dict[str, Any] | None:
    """What always saying the most frequent class of the training rows would score; None for numbers."""
    if train.public.task != "classification":
        return None
    counts = torch.bincount(train.targets[torch.from_numpy(train.present)], minlength=len(train.public.classes))
    scored = evaluate(_Constant((counts == counts.max()).double()), test, test.public.groups)
    return {"figures": _figures(scored, train), "by_group": {n: s.as_json() for n, s in scored.by_group.items()}}


class _Constant(torch.nn.Module):
    """The same scores for every row."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """One line of scores per row."""
        return self.scores.expand(len(inputs), -1)


def _run_and_store(task: Task, asked: Asked, figures: Sequence[str], moments: Sequence[float]) -> str:
    """One run into the file; returns the error message, "" if there is none."""
    path = asked.folder / f"{asked.name}.json"
    if find(read_store(path, asked.name, asked.scale)["runs"], task, figures, moments) is not None:
        return ""
    try:
        record = run_task(task, figures, moments)
    except Exception as error:  # whatever it is, it is this run's: it is told at the end, and the others go on
        sentence = str(error).strip().splitlines()
        known = isinstance(error, InputError) and sentence
        return sentence[0] if known else ": ".join([type(error).__name__, *sentence[:1]])
    add_run(path, asked.name, asked.scale, asked.command, record)
    return ""


def _figures(metrics: GroupMetrics, train: Problem) -> dict[str, float | None]:
    """Every figure on test rows that a column can have."""
    said = metrics.as_json()
    found = {name: said[name] for name in COLUMNS if name in said}
    accuracies = [score.accuracy for score in metrics.by_group.values()]
    of_groups = {name: score.accuracy for name, score in metrics.by_group.items()}
    return found | {AS_TRAINED: _as_trained(of_groups, train)} | _of_owners(accuracies, metrics, train)


def _as_trained(accuracies: Mapping[str, float | None], train: Problem) -> float | None:
    """Accuracy with the groups in their shares of the training rows: test rows may have others (balanced digits)."""
    facts = train.public
    sizes = dict(zip(facts.groups, facts.group_sizes, strict=True))
    known = {name: math.nan if own is None else own for name, own in accuracies.items()}
    return _number(sum(sizes[name] * own for name, own in known.items()) / facts.rows)


def _of_owners(accuracies: Sequence[float], metrics: GroupMetrics, train: Problem) -> dict[str, float | None]:
    """The spread of the groups and the accuracy of each owner, from those of the groups and their numbers of rows."""
    facts, sizes = train.public, [score.n for score in metrics.by_group.values()]
    found = {"group_spread": _number(float(np.nanstd(accuracies)))} if accuracies else {}
    owner_of = {facts.groups[cell.group]: facts.owners[cell.owner] for cell in facts.cells}
    if len(facts.owners) > 1 and len(facts.cells) == len(facts.groups):
        for owner in facts.owners:
            own = [owner_of.get(name) == owner for name in metrics.by_group]
            rows = sum(size for size, its in zip(sizes, own, strict=True) if its)
            right = sum(n * a for n, a, its in zip(sizes, accuracies, own, strict=True) if its)
            found[f"{OWNER}{owner}"] = _number(right / rows if rows else math.nan)
    return found


def _along(run: Run, train: Problem, figures: Sequence[str]) -> dict[str, float | None]:
    """Figures at moments of the run: those of the first evaluation at or after each moment."""
    wanted = [name for name in figures if MOMENT in name and name.partition(MOMENT)[0] not in ACTIVITY]
    if not wanted or run.metrics is None:
        return {}
    seen = run.history.dropna(subset=["accuracy"])
    found: dict[str, float | None] = {}
    for name in wanted:
        base, due = name.partition(MOMENT)[0], moment_of(name) * run.plan.steps
        record = seen[seen["step"] + 1 >= due - 1e-9].iloc[0]
        accuracies = record["group_accuracy"]
        known = {"accuracy": _number(record["accuracy"]), "disparity": _number(max(accuracies) - min(accuracies))}
        known["worst_group_accuracy"] = _number(min(accuracies))
        known |= {f"{GROUP}{group}": _number(a) for group, a in zip(run.metrics.by_group, accuracies, strict=True)}
        found[name] = (known | _of_owners(accuracies, run.metrics, train))[base]
    return found


def _activity(run: Run, at: Mapping[str, int]) -> dict[str, float | None]:
    """What the tail did after given steps, by figure; None for a method without rates by owner, or without a tail."""
    watched = run.findings.get("OwnerLooks", {})
    seen = dict(zip(watched.get("steps", ()), watched.get("activity", ()), strict=False))
    tailed = bool(run.plan.details.get("tail_length"))
    found: dict[str, float | None] = {}
    for name, step in at.items():
        base = name.partition(MOMENT)[0]
        known = step in seen and (tailed or base == "filled")
        found[name] = _number(seen[step][ACTIVITY[base]]) if known else None
    return found


def _on_training_rows(run: Run, train: Problem, figures: Sequence[str]) -> dict[str, float | None]:
    """Exact figures on training rows, which no certificate covers; measured only where a column asks for them."""
    if run.metrics is None or not any(map(_reads_training_rows, figures)):
        return {}
    seen = evaluate(run.model, train, train.public.groups)
    watched = run.findings.get("SamplingVariance", {}).get("records", [])
    clipping = {name: _number(sum(one[name] for one in watched) / len(watched)) for name in CLIPPING if watched}
    return {
        "train_test_gap": _number(seen.accuracy - run.metrics.accuracy),
        "worst_group_gap": _number(seen.worst_group_accuracy - run.metrics.worst_group_accuracy),
        **clipping,
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _reads_training_rows(name: str) -> bool:
    return name in COLUMNS and COLUMNS[name].reads_training_rows


def _curve(run: Run) -> list[list[float]]:
    """Worst and average group along the steps, where they were evaluated."""
    columns = ["step", "worst_group_accuracy", "average_group_accuracy"]
    if not set(columns) <= set(run.history.columns):
        return []
    found: list[list[float]] = run.history[columns].dropna().to_numpy(dtype=float).tolist()
    return found
