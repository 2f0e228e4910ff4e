"""The request of `veil tune`: a table, the candidates to choose among, and how the choice is paid for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar, Literal

from pydantic import Field

from veil.errors import about, require
from veil.foundation.words import as_pairs, named_values
from veil.request.request import STORE, SUITED, Request, TableRequest
from veil.request.settings import Settings

# What a candidate may set beside the options of its method.
_OF_RUN = ("epochs", "steps", "batch_size", "learning_rate", "optimizer", "momentum", "schedule", "noise_filter")
# Two of three trials are the default; the others change what no public fact decides. See docs/tuning.md.
CANDIDATES = ("auto weight=4", "auto whitening=0.5", "auto pace=3 weight=0.5", "group-gd weight=0.5")
# Most of a budget is worth more in training than in further trials.
TRIALS = {"selection": 1.5, "composition": 2}
# Fewer rows than veil train holds out: those that are trained on make up for a trial's smaller ε.
HOLDOUT = 0.15
# A range in a candidate stands for so many values, unless it says how many; a candidate, for at most so many others.
IN_RANGE, MOST = 4, 64
_RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>[^/]+)(?:/(?P<count>\d+))?")


@dataclass(frozen=True)
class Candidate:
    """One way to train that a trial may take: a method with options, a model and settings.

    `weight` is how often it is drawn, against the weights of the others.

    Args:
        method: Name of the method.
        model: Name of the model; "" for the one that suits the method.
        options: Options of the method.
        settings: Settings of the run.
        weight: How often it is drawn.
    """

    method: str
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def label(self) -> str:
        """The candidate as it is typed, without its weight.

        >>> candidate("auto weight=3 cap=8").label
        'auto cap=8'
        """
        model = {"model": self.model} if self.model else {}
        return " ".join([self.method, *as_pairs({**self.options, **model, **self.settings})])


def candidate(text: str) -> Candidate:
    """A candidate as it is typed: a method, then name=value for options, settings, model and weight.

    >>> candidate("dp-sgd clip=0.5 epochs=5 model=logistic").settings
    {'epochs': 5}
    """
    words = shlex.split(text)
    require(bool(words) and "=" not in words[0], f'candidate "{text}" must begin with a method, as in auto cap=8')
    with about(f'candidate "{text}"'):
        values = named_values(words[1:])
        weight = values.pop("weight", 1.0)
        require(
            isinstance(weight, int | float) and 0 < weight < 1e6, f"weight is {weight}: it must be a number above 0"
        )
        model = str(values.pop("model", ""))
        settings = {name: values.pop(name) for name in _OF_RUN if name in values}
        Settings.checked(**settings)
    return Candidate(words[0], model, values, settings, float(weight))


def candidates_of(text: str) -> list[Candidate]:
    """The candidates that a text stands for: one for each value of its ranges and lists, which share its weight.

    `clip=0.1..1` is a range (four values, one a fixed factor above the other), `clip=0.1..1/3` one of three values,
    `model=logistic|mlp` a list. Every value is a candidate of its own: what each costs is known before any is drawn.

    >>> [one.label for one in candidates_of("dp-sgd clip=0.1..1/3 epochs=5|10")][:3]
    ['dp-sgd clip=0.1 epochs=5', 'dp-sgd clip=0.1 epochs=10', 'dp-sgd clip=0.316 epochs=5']
    >>> [one.weight for one in candidates_of("auto cap=4..16 weight=2")]
    [0.5, 0.5, 0.5, 0.5]
    """
    with about(f'candidate "{text}"'):
        words = shlex.split(text)
        choices = [_choices(word) for word in words]
        count = 1
        for values in choices:
            count *= len(values)
        require(
            count <= MOST, f"its ranges and lists make {count} candidates: at most {MOST}, all of which are planned"
        )
    found = [candidate(shlex.join(chosen)) for chosen in product(*choices)]
    return [replace(one, weight=one.weight / len(found)) for one in found]


def _choices(word: str) -> list[str]:
    """name=value for every value that a word allows."""
    name, _, text = word.partition("=")
    if "|" in text:
        values = text.split("|")
        require(all(values), f"{name} is {text}: give values on both sides of |")
    elif ".." in text:
        values = _range(name, text)
    else:
        return [word]
    require(name != "weight", "weight is a number, which all values of a range or list share")
    return [f"{name}={value}" for value in dict.fromkeys(values)]


def _number(name: str, text: str) -> int | float:
    value = named_values([f"{name}={text}"])
    found = next(iter(value.values()))
    require(isinstance(found, int | float) and not isinstance(found, bool), f"{name}: {text} is not a number")
    return found  # type: ignore[no-any-return]


def _range(name: str, text: str) -> list[str]:
    """The values of a range, one a fixed factor above the other; whole numbers where both ends are."""
    match = _RANGE.fullmatch(text)
    require(match is not None, f"{name} is {text}: give a range as 0.1..1, or 0.1..1/3 for three values")
    assert match is not None
    low, high = (_number(name, match[end]) for end in ("low", "high"))
    count = int(match["count"] or IN_RANGE)
    require(0 < low < high, f"{name} is {text}: a range goes from a number above 0 to a larger one; else give a list")
    require(2 <= count <= MOST, f"{name} is {text}: a range has from 2 to {MOST} values")
    values = [low * (high / low) ** (place / (count - 1)) for place in range(count)]
    if isinstance(low, int) and isinstance(high, int):
        return [str(round(value)) for value in values]
    return [f"{value:.3g}" for value in values]


class TuneRequest(TableRequest):
    """The request of `veil tune`."""

    without: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "learning_rate", "noise_filter")

    candidate: list[str] = Field(
        [],
        description='A method with options, settings, model and weight: "auto cap=8 weight=2"; also ranges and lists: '
        '"dp-sgd clip=0.1..1 model=logistic|mlp". Repeatable. '
        "[default: auto and its nearest rivals]",
    )
    trials: float | None = Field(
        None,
        description="Trials: how many in expectation or, with --charge composition, exactly. "
        f"[default: {TRIALS['selection']}, or {TRIALS['composition']} with --charge composition]",
    )
    charge: Literal["selection", "composition"] = Field(
        "selection",
        description="selection: only the best model is seen, by private selection. composition: every trial's score "
        "is shown and paid for.",
    )
    sampler: Literal["random", "optuna"] = Field(
        "random", description="How trials are drawn: random, or optuna by released scores (--charge composition)."
    )
    holdout: float | None = Field(
        None,
        description="Share of rows kept out of training: one half chooses, the other measures the chosen model. "
        f"[default: {HOLDOUT}]",
    )
    dataset: str | None = Field(
        None, description="Charge the search to this data set's budget, or stop if it does not fit; see `veil budget`."
    )
    store: str = Field(
        STORE,
        description="An SQLite file, or the URL of a PostgreSQL database: postgresql://…",
        json_schema_extra={"envvar": "VEIL_BUDGET"},
    )

    show_private: bool = Field(
        False, description="Also measure private rows exactly; the certificate states that it does not cover this."
    )

    @property
    def trials_asked(self) -> float:
        """How many trials were asked for, or the usual number."""
        return TRIALS[self.charge] if self.trials is None else self.trials

    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates asked for, or the usual ones; each once.

        Returns:
            The candidates in their order.

        Raises:
            InputError: A candidate cannot be read, or is given twice.

        >>> [one.method for one in TuneRequest.checked(data="people.csv", candidate=["auto", "group-gd"]).candidates()]
        ['auto', 'group-gd']
        """
        found = [one for text in self.candidate or CANDIDATES for one in candidates_of(text)]
        if self.model:
            require(
                all(one.model in ("", self.model) for one in found),
                "--model and a candidate name different models: omit one of them",
            )
        for index, one in enumerate(found):
            require(
                one.label not in [other.label for other in found[:index]], f'candidate "{one.label}" is given twice'
            )
        return tuple(found)

    def of_run(self, one: Candidate) -> Request:
        """The request of a run of `veil train` that trains the same candidate.

        Args:
            one: The candidate.

        Returns:
            The request.
        """
        same = {name: getattr(self, name) for name in TableRequest.model_fields}
        settings = Settings.checked(**{**self.settings.model_dump(), **one.settings})
        own = {
            "method": one.method,
            "model": one.model or self.model or SUITED.get(one.method, ""),
            "option": dict(one.options),
            "settings": settings,
            "holdout": HOLDOUT if self.holdout is None and self.test is None else self.holdout,
            "dataset": self.dataset,
            "store": self.store,
            "show_private": self.show_private,
        }
        return Request.checked(**same | own)
