"""Spec: an experiment as a TOML file: data, model, arms, what the paper prints and what it claims."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.runner.columns import TWIN, column
from experiments.runner.problems import source
from veil import methods
from veil.errors import InputError, require
from veil.foundation.toml import read_toml
from veil.models.building import MODELS
from veil.plans import Settings

ScaleName = Literal["small", "paper"]
X = float | int | str
Table = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Arm(_Strict):
    """One line of the table: a method with its options and settings, and what the paper prints, in percent.

    With `varies = false` the arm is run once and not for every value of `vary`. A list in `paper` has one figure for
    every value. `model` is for a method that needs a model of its own; the spec's model options are not for it.
    `data_options` are for an arm that has other features of the same rows.
    """

    label: str
    method: str
    options: Table = Field(default_factory=dict)
    settings: Table = Field(default_factory=dict)
    paper: dict[str, float | list[float]] = Field(default_factory=dict)
    why: str = ""
    varies: bool = True
    model: str | None = None
    data_options: Table = Field(default_factory=dict)


class Vary(_Strict):
    """All arms once for each value; the x axis of the figure."""

    of: Literal["settings", "options", "data_options", "model_options"]
    name: str
    values: list[X] = Field(min_length=1)


class Plot(_Strict):
    """What is drawn: figures over the values, over the steps, or by arm; a list gives one panel each."""

    kind: Literal["vary", "curve", "bars"]
    figure: str | list[str]
    arms: list[str] = Field(default_factory=list)

    @property
    def figures(self) -> list[str]:
        """The figures, one panel each."""
        return [self.figure] if isinstance(self.figure, str) else self.figure


class Claim(_Strict):
    """An ordering that the paper claims: `above` exceeds `below` by more than `margin` (in points where in percent).

    With `times`, so many times `above` does: at 0.667 `below` is at most two thirds. `why` is said where it fails; it
    must rest on figures of the page.
    """

    figure: str
    above: str
    below: str
    text: str
    margin: float = 0.0
    times: float = Field(1.0, gt=0)
    at: list[X] = Field(default_factory=list)
    why: str = ""


class Trend(_Strict):
    """A line through the changes from `below` to `above`, one for each figure, against a number such as a budget."""

    above: str
    below: str
    against: dict[str, float] = Field(min_length=3)
    text: str


class Scale(_Strict):
    """What a scale changes: which seeds, further options and settings, and which arms and values."""

    seeds: int = Field(3, gt=0)
    first_seed: int = Field(1, gt=0)
    data_options: Table = Field(default_factory=dict)
    model_options: Table = Field(default_factory=dict)
    settings: Table = Field(default_factory=dict)
    arms: list[str] | None = None
    values: list[X] | None = None


class Spec(_Strict):
    """An experiment: arms on a data set.

    With `look_at_owners` runs keep what they did for every owner along the way, and failing claims say it.
    """

    name: str
    title: str
    shows: str
    about: str
    data: str
    model: str
    figures: list[str] = Field(min_length=1)
    arms: list[Arm] = Field(min_length=1)
    settings: Table = Field(default_factory=dict)
    data_options: Table = Field(default_factory=dict)
    model_options: Table = Field(default_factory=dict)
    twin: str | None = None
    compared: list[str] = Field(default_factory=list)
    vary: Vary | None = None
    plot: Plot | None = None
    claims: list[Claim] = Field(default_factory=list)
    trends: list[Trend] = Field(default_factory=list)
    claimed_by: str = "the paper"
    look_at_owners: bool = False
    small: Scale
    full: Scale

    def scale(self, name: str) -> Scale:
        """The changes of a scale; `[full]` is the scale "paper"."""
        return self.small if name == "small" else self.full

    def arm(self, label: str) -> Arm:
        """An arm by its label."""
        return next(arm for arm in self.arms if arm.label == label)

    @property
    def on_validation_rows(self) -> bool:
        """Whether figures are on rows that settings are chosen by."""
        return self.data.endswith("-validation") or self.data_options.get("validation", False) is True


class Study(_Strict):
    """An experiment that is more than arms on a data set: a module with `reproduce(asked)` does it all."""

    name: str
    title: str
    shows: str
    about: str
    runner: str
    small: Table
    full: Table


@dataclass(frozen=True)
class Task:
    """One run: an arm at a value with a seed, and everything that makes it what it is."""

    arm: str
    x: X | None
    seed: int
    method: str
    data: str
    model: str
    data_options: Table = field(default_factory=dict)
    model_options: Table = field(default_factory=dict)
    settings: Table = field(default_factory=dict)
    options: Table = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.arm}{'' if self.x is None else f' at {self.x}'}, seed {self.seed}"

    @property
    def fingerprint(self) -> str:
        """The same for runs that differ in nothing but arm label and seed.

        >>> one = Task("a", None, 1, "erm", "adult", "mlp", settings={"epochs": 1})
        >>> one.fingerprint == Task("b", None, 2, "erm", "adult", "mlp", settings={"epochs": 1.0}).fingerprint
        True
        """
        parts = (self.method, self.data, self.model, self.data_options, self.model_options, self.settings, self.options)
        return hashlib.sha256(json.dumps(_plain(parts), sort_keys=True).encode()).hexdigest()[:16]

    def checked_settings(self) -> Settings:
        """The settings of the run, checked."""
        return Settings.checked(**self.settings, seed=self.seed)


def tasks(spec: Spec, scale: str, seeds: int | None = None) -> list[Task]:
    """All runs of a scale, seed by seed, so that data is loaded once for all arms."""
    chosen = spec.scale(scale)
    return [
        _task(spec, chosen, arm, x, seed)
        for seed in range(chosen.first_seed, chosen.first_seed + (seeds or chosen.seeds))
        for x in values(spec, scale)
        for arm in spec.arms
        if chosen.arms is None or arm.label in chosen.arms
        if (arm.varies and spec.vary is not None) == (x is not None)
    ]


def values(spec: Spec, scale: str) -> list[X | None]:
    """The values of x; None stands for arms that do not vary."""
    if spec.vary is None:
        return [None]
    chosen = spec.scale(scale).values
    return [None, *(spec.vary.values if chosen is None else chosen)]


def _task(spec: Spec, scale: Scale, arm: Arm, x: X | None, seed: int) -> Task:
    tables: dict[str, Table] = {
        "data_options": spec.data_options | arm.data_options | scale.data_options,
        "model_options": spec.model_options | scale.model_options,
        "settings": spec.settings | arm.settings | scale.settings,
        "options": dict(arm.options),
    }
    if spec.vary is not None and x is not None:
        tables[spec.vary.of] = tables[spec.vary.of] | {spec.vary.name: x}
    if arm.model is not None:
        tables["model_options"] = {}
    return Task(arm.label, x, seed, arm.method, spec.data, arm.model or spec.model, **tables)


def names(folder: Path) -> list[str]:
    """The experiments of a folder."""
    require(
        folder.is_dir(), f'there is no folder "{folder}": go to a checkout of Veil or name a folder of specs by --specs'
    )
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_spec(name: str, folder: Path) -> Spec | Study:
    """The experiment of this name, checked as far as it can be without data."""
    known = names(folder)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(known) or 'none'}"
        raise InputError(f'there is no experiment "{name}" in {folder}: {hint}')
    path = folder / f"{name}.toml"
    table = read_toml(path)
    kind: type[Spec | Study] = Study if "runner" in table else Spec
    try:
        require("name" not in table, 'unknown key "name": the name of the file is the name of the experiment')
        spec = _parsed(kind, {"small": {}, "full": {}, **table, "name": name})
        if isinstance(spec, Spec):
            _check(spec)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return spec


def _parsed(kind: type[Spec | Study], table: Mapping[str, Any]) -> Spec | Study:
    try:
        return kind(**table)
    except ValidationError as error:
        # A key that nobody knows explains one that is missing.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise InputError(f'unknown key "{place}"') from error
        if first["type"] == "missing":
            raise InputError(f'the key "{place}" is missing') from error
        raise InputError(f"{place}: {first['msg']}") from error


def _check(spec: Spec) -> None:
    source(spec.data)
    known = ", ".join(MODELS)
    for model in (spec.model, *(arm.model for arm in spec.arms if arm.model is not None)):
        require(model in MODELS or ":" in model, f'unknown model "{model}": known are {known}')
    labels = [arm.label for arm in spec.arms]
    require(len(set(labels)) == len(labels), "two arms have the same label")
    for where, label in _named_arms(spec):
        require(label in labels, f'{where} names the arm "{label}": known are {"; ".join(labels)}')
    for where, name in _named_figures(spec):
        column(name)
        needs_twin = name == TWIN and spec.twin is None
        require(not needs_twin, f"{where} has {TWIN}: say by twin = … which arm it is measured against")
    _check_values(spec)
    for scale in ("small", "paper"):
        for task in tasks(spec, scale, seeds=1):
            require("seed" not in task.settings, "settings has a seed: a scale has seeds and first_seed")
            task.checked_settings()
            methods.create(task.method, task.options)


def _named_arms(spec: Spec) -> Iterator[tuple[str, str]]:
    if spec.twin is not None:
        yield "twin", spec.twin
    for number, claim in enumerate(spec.claims, start=1):
        yield f"claim {number}", claim.above
        yield f"claim {number}", claim.below
    for trend in spec.trends:
        yield from (("trends", label) for label in (trend.above, trend.below))
    for where, chosen in (("small.arms", spec.small.arms), ("full.arms", spec.full.arms)):
        yield from ((where, label) for label in chosen or ())
    if spec.plot is not None:
        yield from (("plot.arms", label) for label in spec.plot.arms)


def _named_figures(spec: Spec) -> Iterator[tuple[str, str]]:
    yield from (("figures", name) for name in spec.figures)
    yield from ((f"claim {number}", claim.figure) for number, claim in enumerate(spec.claims, start=1))
    for trend in spec.trends:
        yield from (("trends", name) for name in trend.against)
    if spec.plot is not None:
        yield from (("plot", name) for name in spec.plot.figures)


def _check_values(spec: Spec) -> None:
    known = [] if spec.vary is None else spec.vary.values
    asked = [("small.values", spec.small.values), ("full.values", spec.full.values)]
    asked += [(f"claim {number}", claim.at) for number, claim in enumerate(spec.claims, start=1)]
    for where, chosen in asked:
        strange = [value for value in chosen or () if value not in known]
        require(not strange, f"{where} has the value {strange[:1]}: it must be one of vary.values")
    for arm in spec.arms:
        for name, printed in arm.paper.items():
            require(name in spec.figures, f'arm "{arm.label}": paper has "{name}", which is not one of figures')
            fits = not isinstance(printed, list) or len(printed) == len(known)
            require(fits, f'arm "{arm.label}": paper has not one figure for each of the {len(known)} values')
    plot = spec.plot
    if plot is not None:
        require(plot.kind != "vary" or spec.vary is not None, "plot is of kind vary: there is no vary")
        steps = {"worst_group_accuracy", "average_group_accuracy"}
        fits = plot.kind != "curve" or set(plot.figures) <= steps
        require(fits, f"plot is of kind curve: along the steps there are only {' and '.join(sorted(steps))}")


def _plain(value: Any) -> Any:
    """The same for values that mean the same: 1 and 1.0, a list and a tuple."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
