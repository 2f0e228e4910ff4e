"""Settings: what a user may set for any method; those marked as options are command-line options."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from veil.errors import InputError, require

if TYPE_CHECKING:
    from veil.accounting.accountant import Accountant
    from veil.problem import PublicFacts


SMALLEST_EPSILON, LARGEST_EPSILON = 1e-4, 1e4
LARGEST_DELTA = 0.1


def Option(default: Any, *, unset: str | None = None, **about: Any) -> Any:
    """A field that is a command-line option; `unset` is its text for None."""
    return Field(default, json_schema_extra={"option": True, "unset": unset}, **about)


def Argument(default: Any, **about: Any) -> Any:
    """A field that is a positional argument."""
    return Field(default, json_schema_extra={"argument": True}, **about)


def said(error: ValidationError) -> InputError:
    """The first validation error as one sentence."""
    first = error.errors()[0]
    name, about = first["loc"][-1] if first["loc"] else "", first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        return InputError(f'unknown setting "{name}": remove it, or correct its name')
    if first["type"] == "missing":
        return InputError(
            "no table is named: give a file or a folder" if name == "data" else f"{name} is missing: give it"
        )
    if first["type"] == "literal_error":
        known = about["expected"].replace("'", "")
        return InputError(f'{name} is "{first["input"]}": it must be {known}')
    cause = about.get("error")
    return InputError(str(cause) if isinstance(cause, InputError) else f"{name}: {first['msg']}")


class Asked(BaseModel):
    """Base of requests and settings: validated fields, from which command-line options are made."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Create from names and values; a wrong one raises `InputError`.

        >>> Settings.checked(epsilon=0)
        Traceback (most recent call last):
            ...
        veil.errors.InputError: epsilon is 0.0: it must be above 0 and finite
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise said(error) from error


def _delta(given: Any) -> Any:
    """A δ, or None for auto."""
    if given == "auto":
        return None
    try:
        return None if given is None else float(given)
    except (TypeError, ValueError) as error:
        raise InputError(f'delta is "{given}": give a number between 0 and 1, or auto') from error


def _rate(given: Any) -> Any:
    """A learning rate, or None for auto."""
    if given is None or given == "auto":
        return None
    try:
        return float(given)
    except (TypeError, ValueError) as error:
        raise InputError(f'learning_rate is "{given}": give a number above 0, or auto') from error


Delta = Annotated[float | None, BeforeValidator(_delta)]
Rate = Annotated[float | None, BeforeValidator(_rate)]


class Settings(Asked):
    """Settings of any method. Method-specific options belong to the method.

    >>> Settings(epsilon=2.0, epochs=5).epsilon
    2.0
    >>> Settings.checked(epsilon=-1)
    Traceback (most recent call last):
        ...
    veil.errors.InputError: ...
    """

    epsilon: float = Option(1.0, description="Privacy budget ε of every owner without a budget.")
    delta: Delta = Option(None, description="δ, or auto for 1 / (2 × training rows).", unset="auto")
    epochs: float = Option(20.0, gt=0, description="Expected passes over the rows.")
    steps: int | None = Field(None, gt=0, description="steps; overrides epochs")
    batch_size: int = Option(512, gt=0, description="Expected rows per step.")
    learning_rate: Rate = Option(
        None, description="Step size, or auto: from noise, model size, steps and batch.", unset="auto"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1)
    l2: float = Field(0.0, ge=0, description="weight decay")
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    noise_filter: Literal["none", "disk"] = Option(
        "none", description="none, or disk: a filter after the noise, for any method."
    )
    filter_memory: float = Field(0.5, ge=0, lt=1, description="κ of the noise filter: how much of its average it keeps")
    filter_lookahead: float | None = Field(None, ge=0, description="γ of the noise filter; by default κ / (1 − κ)")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the weights' moving average; 0 keeps the last weights")
    accountant: Literal["pld", "rdp"] = "pld"
    seed: int | None = Option(None, ge=0, description="For tests only; stated on the certificate.")
    secure_noise: bool = Field(False, description="ChaCha20 noise on a fixed grid, safe against floating-point attacks")
    public_steps: bool = Field(
        False,
        description="veil.session: the number of steps is chosen from public facts alone (a clock), so a run that ends "
        "early is charged for the steps it made",
    )
    device: str | None = Field(None, description="where to train: auto, cpu, cuda, …; by default where the model is")
    micro_batch: int | None = Field(None, gt=0, description="rows per forward pass, to limit memory")
    evaluate_every: int = Field(0, ge=0, description="steps between evaluations on public rows; 0: 20 per run")
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints in the run's folder; 0: 20 per run")

    @model_validator(mode="after")
    def _in_range(self) -> Settings:
        require(
            math.isfinite(self.epsilon) and self.epsilon > 0,
            f"epsilon is {self.epsilon}: it must be above 0 and finite",
        )
        require(
            SMALLEST_EPSILON <= self.epsilon <= LARGEST_EPSILON,
            f"epsilon is {self.epsilon:g}: "
            + (
                "the noise would hide everything, so give at least 0.0001"
                if self.epsilon < 1
                else "it would protect nobody, so give at most 10,000, or train without privacy by method erm"
            ),
        )
        require(self.delta is None or 0 < self.delta < 1, f"delta is {self.delta}: it must be between 0 and 1")
        require(
            self.delta is None or self.delta <= LARGEST_DELTA,
            f"delta is {self.delta}: with that probability nothing is promised, so give at most {LARGEST_DELTA:g}, "
            "better below 1 / rows, or auto",
        )
        require(
            self.learning_rate is None or (self.learning_rate > 0 and math.isfinite(self.learning_rate)),
            f"learning_rate is {self.learning_rate}: it must be above 0 and finite",
        )
        return self

    def delta_for(self, facts: PublicFacts) -> float:
        """The given δ, or 1 / (2 × declared rows).

        Args:
            facts: What is public about the rows.

        Returns:
            δ, strictly between 0 and 1.
        """
        return self.delta if self.delta is not None else 1.0 / (2 * facts.rows)

    def steps_for(self, facts: PublicFacts) -> int:
        """The given steps, or enough for `epochs` expected passes.

        Args:
            facts: What is public about the rows.

        Returns:
            The number of steps, at least 1.
        """
        return self.steps or max(1, round(self.epochs * facts.rows / min(self.batch_size, facts.rows)))

    def accountant_for(self, facts: PublicFacts | None = None) -> Accountant:
        """The accountant that calibrates and certifies: of one entry, or of all rows of a person if each counts.

        Args:
            facts: What is public about the rows; without it, a row counts once.

        Returns:
            The accountant.

        Raises:
            InputError: Several rows of a person count and the accountant is not pld.
        """
        return self.accountant_of_rows(1 if facts is None else facts.rows_together)

    def accountant_of_rows(self, together: int) -> Accountant:
        """The same for so many rows of a person.

        Args:
            together: How many rows of a person count.

        Returns:
            The accountant.

        Raises:
            InputError: More than one row counts and the accountant is not pld.
        """
        from veil.accounting import Pld, Rdp

        require(
            together == 1 or self.accountant == "pld",
            "with person_rows each, all rows of a person are accounted for together, by pld alone: use accountant pld",
        )
        return Pld(rows=together) if self.accountant == "pld" else Rdp()
