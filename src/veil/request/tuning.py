"""The request of `veil tune`: a table, the candidates to choose among, and how the choice is paid for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
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


class TuneRequest(TableRequest):
    """The request of `veil tune`."""

    without: ClassVar[tuple[str, ...]] = ("epochs", "batch_size", "learning_rate", "noise_filter")

    candidate: list[str] = Field(
        [],
        description='A method with options, settings, model and weight: "auto cap=8 weight=2". Repeatable. '
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
        found = [candidate(text) for text in self.candidate or CANDIDATES]
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
        }
        return Request.checked(**same | own)
