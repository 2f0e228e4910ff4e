"""Compare: methods × seeds × budgets on one problem, in parallel, as the papers print it.

Every run has its own folder, so an interrupted comparison can continue, and a run that fails leaves its error message
and does not stop the others. A run that is there already is taken only if it was asked for with equal
settings. Comparing is tuning, and its runs' ε add up: each certificate says that neither is covered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from veil import methods as registry
from veil.errors import InputError, require
from veil.foundation.parallel import WORKER_DIED, Workers, in_order
from veil.foundation.randomness import Seed
from veil.plans import Settings
from veil.problem import Problem
from veil.training.fitting import Job, Measure, execute
from veil.training.identity import flattened
from veil.training.run import load
from veil.training.run_folder import CHECKPOINT, finished_in, reserved_in

Finished = Callable[[str, int, int], None]
BuildModel = Callable[[Problem, Seed], nn.Module]
SEEDS_PUBLIC = "The noise: the seeds 1, 2, … are public, so anybody can subtract it. To publish, train a new run."
OTHER_RUNS = "The other runs of the comparison on the same rows: each has its own ε, and their ε add up."


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    method: registry.Method
    epsilon: float
    seed: int

    @property
    def label(self) -> str:
        """The name of its folder."""
        return f"{self.method.name}-eps{self.epsilon:g}-seed{self.seed}"


@dataclass(frozen=True)
class Comparison:
    """All runs: `rows` as `veil train` prints them, `failures` by label, `records` for the report.

    `together` is what they cost together, where they read the same private rows with secret seeds.
    """

    rows: list[dict[str, Any]]
    failures: dict[str, str]
    records: list[dict[str, Any]] = field(repr=False)
    together: dict[str, Any] | None = None

    def summary(self) -> list[dict[str, Any]]:
        """Mean and sample standard deviation over seeds for each method and budget, as the report has them.

        `best` marks the best worst group among private methods, and among the others; `within_one_std` what lies within
        one standard deviation of it; `front` the Pareto front of worst group against average. `p_value` is that of a
        paired t-test against the best over the seeds both have (two or more), on worst-group accuracy.
        """
        from veil.report import summary_table

        found = []
        for row in summary_table(self.records):
            mark = row.pop("mark")
            found.append({**row, "best": mark == "best", "within_one_std": mark is not None})
        rivals = [row for row in found if row["private"]] or found
        if not any(row["best"] for row in rivals) and rivals:  # one private method alone has nobody to beat
            first = max(rivals, key=lambda row: row["worst_group_accuracy"]["mean"] or 0.0)
            first["best"] = first["within_one_std"] = True
        return found

    def as_json(self) -> dict[str, Any]:
        """What `veil compare --json` prints."""
        found = {"rows": self.rows, "summary": self.summary(), "failures": self.failures}
        return found if self.together is None else {**found, "together": self.together}

    def write(self, folder: Path) -> None:
        """Keep it as `comparison.json`."""
        _write(folder / "comparison.json", self.as_json())


@dataclass(frozen=True)
class Work:
    """What all runs of a comparison share. `model` builds a fresh model: a seed gives every method the same start.

    Methods that need models of their own have one each: `model` is then a mapping by the methods' names.

    `config` is what was asked for, as each folder keeps it; `not_covered` are sentences for every certificate, beside
    those that runs add up and that their seeds are public. `measures` are taken of every trained model.
    """

    problem: Problem = field(repr=False)
    evaluation: Problem = field(repr=False)
    model: BuildModel | Mapping[str, BuildModel]
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    not_covered: Sequence[str] = ()
    measures: Sequence[Measure] = ()

    def build(self, trial: Trial) -> BuildModel:
        """What builds the model of one run."""
        return self.model[trial.method.name] if isinstance(self.model, Mapping) else self.model

    def settings_of(self, trial: Trial) -> Settings:
        """The settings of one run."""
        return Settings.checked(**{**self.settings, "epsilon": trial.epsilon, "seed": trial.seed})

    def record(self, trial: Trial) -> dict[str, Any]:
        """All that makes a run what it is, in public facts: a stored run is taken only where this is equal."""
        facts = self.problem.public
        asked = {name: value for name, value in self.config.items() if name not in ("command", "require")}
        record = {
            "method": trial.method.name,
            "options": registry.options_of(trial.method),
            "settings": self.settings_of(trial).model_dump(),
            "asked": asked,
            "groups": dict(zip(facts.groups, facts.group_sizes, strict=True)),
            "classes": list(facts.classes),
            "inputs": list(facts.input_shape),
            "evaluation_rows": len(self.evaluation.targets),
        }
        plain: dict[str, Any] = json.loads(json.dumps(record, default=str))
        return plain


def compare(
    problem: Problem,
    evaluation: Problem,
    *,
    methods: Sequence[str | registry.Method],
    model: BuildModel | Mapping[str, BuildModel],
    out: Path | str,
    seeds: int = 3,
    epsilons: Sequence[float] = (1.0,),
    workers: int | Workers = 1,
    **settings: Any,
) -> Comparison:
    """Train every method with seeds 1 … `seeds` at every budget; methods that are not private run at one budget only.

    `methods` are names, or methods with options: `veil.method("asc", step_size=0.5)`. `model` builds a fresh model from
    the problem and a seed, so that a seed gives every method the same start. `workers` is how many runs are made at the
    same time, or `veil.Workers` with a backend of joblib. `settings` are the fields of `veil.plans.Settings`.

    Args:
        problem: The rows to train on.
        evaluation: Rows that were declared public, on which every model is measured.
        methods: What to compare, each once.
        model: Builds a fresh model, or one builder per method.
        out: Folder for the runs; runs that are there already are not made again.
        seeds: How many seeds each method gets, at least 1.
        epsilons: Budgets ε of the private methods.
        workers: How many runs at the same time.
        settings: Fields of `veil.plans.Settings` for all runs.

    Returns:
        The finished runs, with `summary()` as mean and standard deviation over seeds.

    Raises:
        InputError: A method is given twice with other options, or a stored run has other settings.
    """
    work = Work(problem, evaluation, model, Path(out), settings)
    return run_trials(trials_of(methods, seeds, epsilons), work, workers)


def trials_of(methods: Sequence[str | registry.Method], seeds: int, epsilons: Sequence[float]) -> list[Trial]:
    """Every method with every seed at every budget. Each method appears once: its name is that of its folders."""
    require(len(methods) > 0, "give at least one method to compare")
    require(seeds >= 1, f"seeds is {seeds}: it must be at least 1")
    chosen = dict[str, registry.Method]()
    for given in methods:
        method = registry.create(given) if isinstance(given, str) else given
        require(chosen.setdefault(method.name, method) == method, f"{method.name} is given twice with other options")
    return [
        Trial(method, float(epsilon), seed)
        for method in chosen.values()
        for epsilon in (dict.fromkeys(epsilons) if method.private else epsilons[:1])
        for seed in range(1, seeds + 1)
    ]


def run_trials(
    trials: Sequence[Trial], work: Work, workers: int | Workers = 1, finished: Finished | None = None
) -> Comparison:
    """All runs that are missing; `finished` is told each label with how many of how many runs are done."""
    for trial in trials:
        _check_stored(trial, work)
    return all_trials(trials, partial(run_trial, work=work), work.folder, workers, finished)


def all_trials(
    trials: Sequence[Trial],
    run: Callable[[Trial], str],
    folder: Path,
    workers: int | Workers = 1,
    finished: Finished | None = None,
) -> Comparison:
    """Every trial by `run`, which leaves its folder behind and returns an error message, or "" if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, failures, records = [], dict[str, str](), []
    outcomes = in_order(run, trials, workers)
    for done, (trial, outcome) in enumerate(outcomes, start=1):
        failure = WORKER_DIED if outcome is None else outcome
        if failure:
            failures[trial.label] = failure
        else:
            found = load(folder / trial.label).record
            records.append(dict(found))
            keys = ("run", "method", "metrics", "privacy", "seconds", "stopped")
            rows.append({**{k: found[k] for k in keys}, "seed": trial.seed, "budget": trial.epsilon})
        if finished is not None:
            finished(trial.label if not failure else f"{trial.label} failed: {failure}", done, len(trials))
    comparison = Comparison(rows, failures, records)
    comparison.write(folder)
    return comparison


def run_trial(trial: Trial, work: Work) -> str:
    """One run into its folder, unless it is there already; returns the error message, "" if there is none."""
    target = work.folder / trial.label
    if finished_in(target):
        return ""
    going_on = (target / CHECKPOINT).exists() and _stored(trial, work) is not None
    if not going_on and reserved_in(target):
        _set_aside(target)
    _write(_record_path(trial, work), work.record(trial))
    torch.set_num_threads(1)
    try:
        job = Job(
            work.build(trial)(work.problem, Seed.from_int(trial.seed)),
            work.problem,
            work.evaluation,
            # Also where there is one run: the same folder may get more of them later.
            not_covered=(OTHER_RUNS, SEEDS_PUBLIC, *work.not_covered),
            config={**work.config, "seed": trial.seed},
            measures=work.measures,
        )
        plan = registry.planned(trial.method, work.problem.public, work.settings_of(trial))
        execute(job, plan, target, going_on)
    except Exception as error:  # whatever it is, it is this run's: it is told at the end, and the others go on
        return error_sentence(error)
    return ""


def error_sentence(error: Exception) -> str:
    """What a run that failed says."""
    sentence = str(error).strip().splitlines()
    known = isinstance(error, InputError) and sentence
    return sentence[0] if known else ": ".join([type(error).__name__, *sentence[:1]])


def _set_aside(target: Path) -> None:
    """An interrupted run that cannot be resumed: its ledger is moved aside, never deleted."""
    for ledger in [path for path in target.glob("*.jsonl") if ".interrupted-" not in path.name]:
        earlier = len(list(target.glob(f"{ledger.stem}.interrupted-*.jsonl")))
        ledger.rename(target / f"{ledger.stem}.interrupted-{earlier + 1}.jsonl")


def _check_stored(trial: Trial, work: Work) -> None:
    """Reject a folder whose run has other settings: neither mix nor overwrite."""
    target = work.folder / trial.label
    if not (target / "certificate.json").exists():
        return
    stored, wanted = _stored(trial, work), work.record(trial)
    if stored == wanted:
        return
    detail = "whose settings are not recorded"
    if stored is not None:
        before, now = flattened(stored), flattened(wanted)
        name = next(key for key in {**before, **now} if before.get(key) != now.get(key))
        detail = f"with other settings ({name} was {before.get(name)}, now {now.get(name)})"
    raise InputError(f"{target} holds a run {detail}: choose another folder with --out")


def _record_path(trial: Trial, work: Work) -> Path:
    return work.folder / f"{trial.label}.json"


def _stored(trial: Trial, work: Work) -> dict[str, Any] | None:
    path = _record_path(trial, work)
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return record


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
