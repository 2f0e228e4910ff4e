"""Request: everything a user can ask for on a table, as one typed model.

Command-line options, configuration files, comparisons, audits and the identity of a run are made from its fields: a new
option is one field with a description. A field is a command-line option of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from veil.foundation.words import as_pairs, listed, named_values
from veil.request.settings import Argument, Asked, Settings

# Typed with commas between them.
Names = Annotated[tuple[str, ...], BeforeValidator(lambda given: listed(given) if isinstance(given, str) else given)]
# Typed as name=value, as often as needed.
Pairs = Annotated[
    dict[str, Any],
    BeforeValidator(lambda given: given if isinstance(given, Mapping) else named_values(given or ())),
    PlainSerializer(as_pairs),
]


STORE = "veil-budget.sqlite"
# What a method trains where no model is named; the others train a small network.
SUITED = {"auto": "additive", "group-gd": "whitened"}
SUITED |= dict.fromkeys(("noisy-sgd-mgr", "noisy-sgd-ags", "phased-erm", "dp-oco"), "logistic")
NETWORK = "mlp"
# What is compared where no method is named; with public rows, what training without privacy reaches is shown beside.
COMPARED = ("dp-sgd", "dp-is-sgd", "asc", "auto")
# What trains a network where no method is named: asc looks after groups, of which there must be several.
FOR_NETWORKS, WITHOUT_GROUPS = "asc", "dp-sgd"
# Settings of a loop: who gives one wants a model trained in steps.
LOOP_SETTINGS: tuple[str, ...] = (
    "epochs",
    "steps",
    "batch_size",
    "learning_rate",
    "optimizer",
    "momentum",
    "l2",
    "schedule",
    "ema",
)
LOOP_SETTINGS += ("noise_filter", "filter_memory", "filter_lookahead")
LOOP_SETTINGS += ("micro_batch", "evaluate_every", "checkpoint_every")


def default_method(*, linear: bool, given: Collection[str] = (), groups: bool = True) -> str:
    """The method where none is named, for all who ask: command line, estimators, `veil.fit`, `veil.session`.

    Args:
        linear: Whether the model is one linear layer over fixed features, or none is named.
        given: Names of the settings that were given.
        groups: Whether there are several groups.

    Returns:
        `auto` for a linear model without settings of a loop; else `asc`, or `dp-sgd` where there is one group.

    >>> default_method(linear=True), default_method(linear=True, given=["epochs"]), default_method(linear=False)
    ('auto', 'asc', 'asc')
    """
    if linear and not set(given) & set(LOOP_SETTINGS):
        return "auto"
    return FOR_NETWORKS if groups else WITHOUT_GROUPS


class RowsRequest(Asked):
    """Which rows, and what their columns are: the request of `veil data check`. A schema can set the roles instead.

    >>> RowsRequest.checked(data="people.csv", target="income").target
    'income'
    """

    data: Path = Argument(..., description="A CSV, Parquet or Arrow file, or a folder of Parquet files or of images.")
    target: str | None = Field(None, description="Column to predict.")
    task: Literal["classification", "regression"] | None = Field(
        None, description="classification or regression. [default: regression if the target has over 20 numbers]"
    )
    target_bounds: str | None = Field(
        None, description="Regression: smallest and largest possible target, as LOW,HIGH: public knowledge."
    )
    group: Names = Field((), description="Group columns, comma-separated.")
    merge_groups_below: int | None = Field(
        None, description="Merge all groups of fewer rows into one. Free with declared sizes; else it reads the rows."
    )
    missing_group: str | None = Field(
        None, description="Name of the group of rows that have none. [default: such a row is an error]"
    )
    person: str | None = Field(
        None, description="Column that says which person a row is about: protects all rows of a person together."
    )
    rows_per_person: int | None = Field(
        None, description="With --person: rows of a person that count, at most. [default: 10]"
    )
    person_rows: Literal["mean", "each"] | None = Field(
        None,
        description="With --person: mean counts everybody once, by the mean of their rows; each counts every row, and "
        "ε is that of all rows of a person. [default: mean]",
    )
    test: Path | None = Field(None, description="A table of public rows, for evaluation.")
    schema_file: Path | None = Field(
        None, alias="schema", description="Public knowledge about the columns; see `veil data schema`."
    )
    ignore: Names = Field((), description="Columns to leave out, comma-separated.")
    category: Names = Field((), description="Columns of codes to learn as categories, comma-separated.")


class TableRequest(RowsRequest):
    """The fields of every command that trains on a table.

    >>> TableRequest.checked(data="people.csv", target="income", group="sex,race").group
    ('sex', 'race')
    """

    without: ClassVar[tuple[str, ...]] = ()
    """Settings that are not available here."""

    model: str = Field(
        "",
        description="A built-in model, hf:FOLDER, timm:NAME, or my_module:factory. [default: what suits the method]",
        repr=False,
    )
    require: list[str] = Field(
        [],
        description="A requirement, METRIC>=VALUE: worst_group_accuracy>=0.6, or useful. Exit code 1 if it is not "
        "met. Repeatable.",
    )
    settings: Settings = Field(Settings.checked())

    def record(self) -> dict[str, Any]:
        """The request as a configuration file, without the settings; None for unset fields.

        A preset is omitted: method and model already record it.

        Returns:
            Values by the name of the option.
        """
        found = self.model_dump(mode="json", by_alias=True, exclude={"settings", "preset"})
        return {name: None if value == [] or value is False else value for name, value in found.items()}

    @classmethod
    def recorded(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """The request recorded in a run's configuration file.

        Args:
            config: What `config.toml` holds.
            more: Fields to set beside it.

        Returns:
            The request.
        """
        names = {field.alias or name for name, field in cls.model_fields.items()}
        kept = {name: value for name, value in config.items() if name in names and value is not None}
        return cls.checked(**kept | more)


class Request(TableRequest):
    """The request of `veil train`.

    >>> Request.checked(data="people.csv", target="income", group="sex").method
    'auto'
    """

    preset: str | None = Field(None, description="Preset of method and model: best. See docs/methods/group-gd.md.")
    method: str = Field("auto", description="See `veil methods`.")
    aim: Literal["worst-group", "balanced", "overall"] | None = Field(
        None, description="auto: what to optimise: worst-group (the default), balanced or overall."
    )
    option: Pairs = Field({}, description="An option of the method, as name=value. Repeatable.")
    tail: float | None = Field(
        None, description="ino-sgd: fixed length of the tail in percent; it follows the gradients otherwise."
    )
    allow_weaker_minority_privacy: bool = Field(False, description="azb-weak: allow a larger ε for small groups.")
    model_option: Pairs = Field({}, description="An option of the model, as name=value. Repeatable.")
    init: Path | None = Field(None, description="Public weights to start from (safetensors).")
    train_only: Names = Field((), description="Train only these parameters, comma-separated patterns: 2.*")
    holdout: float | None = Field(
        None, description="Without --test: share of rows kept out of training and measured with noise. [default: 0.2]"
    )
    release_scores: bool = Field(
        False,
        description="Two classes, held-out rows: also release noisy counts by probability, so that veil predict "
        "--threshold-for works without --test; the noise of other figures grows by 1.4.",
    )
    private_preprocessing: float | None = Field(
        None, description="Share of ε for finding bounds and categories (and group sizes, if the plan is fixed)."
    )
    owner: str | None = Field(None, description="Column with the owner of each row, who sets its ε.")
    budgets: Path | None = Field(
        None, description="ε for each single row of an owner: a CSV file (owner, epsilon) or a TOML table."
    )
    row_budgets: str | None = Field(
        None, description="Column with each row's ε; over 512 different ones become levels that keep 98 %."
    )
    dataset: str | None = Field(
        None, description="Charge the run to this data set's budget, or stop if it does not fit; see `veil budget`."
    )
    store: str = Field(
        STORE,
        description="An SQLite file, or the URL of a PostgreSQL database: postgresql://…",
        json_schema_extra={"envvar": "VEIL_BUDGET"},
    )
    workers: int | None = Field(
        None,
        description="auto, group-gd: this many Ray actors hold a folder of Parquet files, on this machine or on the "
        "cluster that RAY_ADDRESS names.",
    )
    show_private: bool = Field(
        False, description="Also measure private rows exactly; the certificate states that it does not cover this."
    )

    @model_validator(mode="before")
    @classmethod
    def _suited(cls, given: Any) -> Any:
        """A model that suits the method, or a method that suits the model, where only one of them is named."""
        if not isinstance(given, Mapping) or (given.get("method") and given.get("model")):
            return given
        if given.get("model"):
            return {**given, "method": default_method(linear=given["model"] == SUITED["auto"])}
        method = given.get("method") or default_method(linear=True)
        return {**given, "method": method, "model": SUITED.get(method, NETWORK)}

    def options(self) -> dict[str, Any]:
        """The options of the method, including those with their own command-line option.

        Returns:
            Values by the name of the option.
        """
        own = {
            "aim": self.aim,
            "tail": self.tail,
            "allow_weaker_minority_privacy": self.allow_weaker_minority_privacy or None,
        }
        return self.option | {name: value for name, value in own.items() if value is not None}


class CompareRequest(TableRequest):
    """The request of `veil compare`.

    >>> CompareRequest.checked(methods="dp-sgd,asc", seeds=2).methods
    ('dp-sgd', 'asc')
    """

    without: ClassVar[tuple[str, ...]] = ("seed",)

    data: Path = Argument(
        Path("adult"), description="The table to train on (CSV or Parquet), or adult for the bundled one."
    )
    methods: Names = Field(
        (),
        description="Methods, or the preset best, comma-separated; see `veil methods`. "
        f"[default: {', '.join(COMPARED)}; with public rows erm too]",
    )
    seeds: int = Field(3, description="Runs per method.")
    public_seeds: bool = Field(
        False, description="Seeds 1, 2, …, for tests: anybody can then subtract the noise. [default with public rows]"
    )
    epsilon: str = Field("1", description="Budget ε of a run, or several: 0.5,1,2.")
    dataset: str | None = Field(
        None,
        description="Without public rows: charge all runs to this data set's budget before the first, or stop if they "
        "do not fit; see `veil budget`.",
    )
    store: str = Field(
        STORE,
        description="An SQLite file, or the URL of a PostgreSQL database: postgresql://…",
        json_schema_extra={"envvar": "VEIL_BUDGET"},
    )
    show_private: bool = Field(
        False,
        description="Without public rows: also measure private rows exactly; the certificates state that they do not "
        "cover this.",
    )
    option: list[str] = Field([], description="An option of one of the methods, as method.name=value. Repeatable.")

    def of_table(self, **more: Any) -> Request:
        """The request of a single run on the same table.

        Args:
            more: Fields of the single run.

        Returns:
            The request.
        """
        same = {name: getattr(self, name) for name in TableRequest.model_fields}
        return Request.checked(**same | {"method": FOR_NETWORKS} | more)
