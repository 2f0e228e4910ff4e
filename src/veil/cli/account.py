"""`veil account`: the cost of releases, and the noise, rate or clip for a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer
from pydantic import Field, model_validator
from rich.table import Table

from veil.accounting.events import Event, Gaussian, PoissonGaussian, Relation, Repeated, SubsetGaussian
from veil.cli.chart import chart
from veil.cli.console import people_sentence, print_json, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Json
from veil.errors import InputError, require
from veil.foundation.words import numbers
from veil.request.settings import Asked

if TYPE_CHECKING:
    from veil.accounting import Accountant

account_app = typer.Typer(
    help="Compute the cost of releases, or the noise, rate or clip for a budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
KINDS = ("pld", "rdp", "gdp")
Kappa = Annotated[float, typer.Option(help="κ = σ/C: noise over the bound on one row.")]
Budgets = Annotated[str, typer.Option(help="The budget ε, or one per owner: 0.6,8.")]


class Releases(Asked):
    """The releases that all four subcommands share, and their accountant: Poisson-sampled, rate not set yet."""

    steps: int = Field(description="Number of releases.")
    relation: str | None = Field(None, description="add-remove or replace-one; wor has replace-one only.")
    delta: float = Field(1e-5, description="δ.")
    accountant: str = Field("pld", description="pld, rdp, or gdp (an approximation).")
    plus: list[str] = Field([], description="Further full-data releases, NOISE_MULTIPLIERxTIMES, e.g. 240.23x60.")

    @classmethod
    def asked(cls, context: typer.Context) -> Self:
        """The values of the command line, validated."""
        return cls.checked(**values_of(cls, context))

    @model_validator(mode="after")
    def _known(self) -> Self:
        require(self.accountant in KINDS, f'accountant is "{self.accountant}": it must be one of {", ".join(KINDS)}')
        require(0 < self.delta < 1, f"delta is {self.delta}: it must be between 0 and 1")
        require(self.steps >= 1, f"steps is {self.steps}: it must be at least 1")
        known = [kind.value for kind in Relation]
        asked = self.relation
        require(asked is None or asked in known, f'relation is "{asked}": it must be {" or ".join(known)}')
        return self

    @property
    def drawn(self) -> str:
        """How rows are drawn."""
        return "poisson"

    @property
    def neighbours(self) -> Relation:
        """The relation asked for, or the one that fits how rows are drawn."""
        return Relation(self.relation or ("replace-one" if self.drawn == "wor" else "add-remove"))

    @property
    def judge(self) -> Accountant:
        """The accountant."""
        from veil.accounting import Gdp, Pld, Rdp

        kinds: dict[str, type[Accountant]] = {"pld": Pld, "rdp": Rdp, "gdp": Gdp}
        return kinds[self.accountant]()

    @property
    def extra(self) -> tuple[Repeated, ...]:
        """The further releases."""
        return tuple(_plus(text, self.neighbours) for text in self.plus)

    def facts(self) -> dict[str, Any]:
        """What was asked, for the JSON answer."""
        return {
            "delta": self.delta,
            "relation": self.neighbours.value,
            "accountant": self.accountant,
            "approximate": self.judge.approximate,
            "sampling": self.drawn,
            "steps": self.steps,
        }


class SampledReleases(Releases):
    """Releases without their noise."""

    sampling: str = Field(
        "poisson", description="poisson: each row independently; wor: subsets without replacement; none: all rows."
    )
    rate: str | None = Field(None, description="Sampling rate, or one per group: 0.01,0.09.")
    size: int | None = Field(None, description="Rows (wor).")
    batch: int | None = Field(None, description="Rows per batch (wor).")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        known = self.sampling in ("poisson", "wor", "none")
        require(known, f'sampling is "{self.sampling}": it must be poisson, wor or none')
        if self.sampling == "wor":
            proved = self.neighbours is Relation.REPLACE_ONE
            require(proved, "sampling without replacement is proved for replace-one only: omit --relation")
            require(self.size is not None and self.batch is not None, "sampling wor needs --size and --batch")
        require(self.sampling != "poisson" or self.rate is not None, "sampling poisson needs --rate")
        return self

    @property
    def drawn(self) -> str:
        """How rows are drawn."""
        return self.sampling

    @property
    def rates(self) -> list[float]:
        """The rate of every group; one where all rows are drawn alike."""
        if self.sampling == "wor":
            return [(self.batch or 0) / (self.size or 1)]
        return [1.0] if self.rate is None or self.sampling == "none" else numbers(self.rate, "rate")

    def release(self, kappa: float, rate: float) -> Event:
        """One release at this noise."""
        if self.sampling == "wor":
            return SubsetGaussian(kappa, self.size or 1, self.batch or 0)
        return Gaussian(kappa, self.neighbours) if rate == 1.0 else PoissonGaussian(kappa, rate, self.neighbours)

    def events(self, kappa: float, rate: float) -> tuple[Repeated, ...]:
        """All releases together."""
        return (Repeated(self.release(kappa, rate), self.steps), *self.extra)


def _plus(text: str, relation: Relation) -> Repeated:
    multiplier, _, times = text.partition("x")
    try:
        return Repeated(Gaussian(float(multiplier), relation), int(times or "1"))
    except ValueError as error:
        raise InputError(f'plus is "{text}": give NOISE_MULTIPLIERxTIMES, such as 240.23x60') from error


@dataclass(frozen=True)
class Answer:
    """A value of `key` for each rate of a group, or for each budget ε of an owner."""

    key: str
    by: Literal["rate", "epsilon"]
    given: Sequence[float]
    values: Sequence[float]

    def show(self, asked: Releases, json: bool, **more: Any) -> None:
        """Print the values; in JSON the worst stands first."""
        if json:
            print_json(self._record() | asked.facts() | more | self._parts())
            return
        page = Table(title=f"{asked.steps:,} releases, {asked.drawn}, {asked.neighbours}", title_justify="left")
        for heading in ("rate" if self.by == "rate" else "budget ε", self.key.replace("_", " "), "δ", "accountant"):
            page.add_column(heading, justify="right")
        name = asked.accountant + (" (approximation)" if asked.judge.approximate else "")
        for given, value in zip(self.given, self.values, strict=True):
            page.add_row(f"{given:.4g}", f"{value:.5g}", f"{asked.delta:.3g}", name)
        stdout.print(page)

    def _record(self) -> dict[str, Any]:
        if self.by == "rate":
            return {self.key: _finite(max(self.values))}
        return {self.key: min(self.values), "epsilon": min(self.given)}

    def _parts(self) -> dict[str, Any]:
        """The single values, where there are several."""
        pairs = zip(self.given, self.values, strict=True)
        parts = [{self.by: given, self.key: _finite(value)} for given, value in pairs]
        return {"by_group" if self.by == "rate" else "by_owner": parts} if len(parts) > 1 else {}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@account_app.command("epsilon")
@asks(SampledReleases)
def account_epsilon(
    context: typer.Context,
    noise_multiplier: Kappa,
    plot: Annotated[bool, typer.Option("--plot", help="Plot ε over steps.")] = False,
    json: Json = False,
) -> None:
    """The ε that the releases cost, for every group's rate."""
    from veil.accounting.certificate import UNIT

    asked = SampledReleases.asked(context)
    values = [asked.judge.epsilon(asked.events(noise_multiplier, rate), asked.delta) for rate in asked.rates]
    people = {} if asked.judge.approximate else _of_people(asked, noise_multiplier)
    finite = {rows: value for rows, value in people.items() if math.isfinite(value)}
    more = {"unit": UNIT, "by_rows": finite} if finite else {}
    Answer("epsilon", "rate", asked.rates, values).show(asked, json, noise_multiplier=noise_multiplier, **more)
    if finite and not json:
        stdout.print(people_sentence(finite), soft_wrap=True, highlight=False)
    if plot and not json:
        _plot(asked, noise_multiplier)


def _of_people(asked: SampledReleases, kappa: float) -> dict[str, float]:
    """The ε of a person with several rows of one group, at the rate where it is largest."""
    from veil.accounting.people import SHOWN, epsilon_of_rows

    return {
        str(rows): max(
            epsilon_of_rows(asked.events(kappa, rate), rows, asked.delta, asked.judge) for rate in asked.rates
        )
        for rows in SHOWN
    }


def _plot(asked: SampledReleases, kappa: float) -> None:
    """ε over steps at the largest rate; the further releases are spread evenly."""
    marks = sorted({max(1, round(asked.steps * share / 60)) for share in range(1, 61)})
    worst = max(asked.rates)
    values = []
    for mark in marks:
        extra = [Repeated(item.event, math.ceil(item.times * mark / asked.steps)) for item in asked.extra]
        events = [Repeated(asked.release(kappa, worst), mark), *extra]
        values.append(asked.judge.epsilon(events, asked.delta))
    stdout.print(chart(marks, values, "ε over steps"), highlight=False, markup=False)


@account_app.command("noise")
@asks(SampledReleases)
def account_noise(
    context: typer.Context, epsilon: Annotated[float, typer.Option(help="The budget ε.")], json: Json = False
) -> None:
    """The smallest noise multiplier κ = σ/C that stays within a budget, for every group's rate."""
    from veil.accounting.calibration import noise_multiplier

    asked = SampledReleases.asked(context)
    values = [
        noise_multiplier(lambda kappa, rate=rate: asked.events(kappa, rate), epsilon, asked.delta, asked.judge)  # type: ignore[misc]
        for rate in asked.rates
    ]
    Answer("noise_multiplier", "rate", asked.rates, values).show(asked, json, epsilon=epsilon)


@account_app.command("rate")
@asks(Releases)
def account_rate(context: typer.Context, epsilon: Budgets, noise_multiplier: Kappa, json: Json = False) -> None:
    """The largest Poisson rate that stays within a budget."""
    from veil.accounting.calibration import rate_for

    asked, budgets = Releases.asked(context), numbers(epsilon, "epsilon")
    rates = [
        rate_for(budget, asked.delta, noise_multiplier, asked.steps, asked.neighbours, asked.extra, asked.judge)
        for budget in budgets
    ]
    Answer("rate", "epsilon", budgets, rates).show(asked, json, noise_multiplier=noise_multiplier)


@account_app.command("clip")
@asks(Releases)
def account_clip(
    context: typer.Context,
    epsilon: Budgets,
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise.")],
    rate: Annotated[float, typer.Option(help="Poisson rate.")],
    json: Json = False,
) -> None:
    """The largest bound C on one row that stays within a budget at noise σ."""
    from veil.accounting.calibration import clip_for

    asked, budgets = Releases.asked(context), numbers(epsilon, "epsilon")
    clips = [
        clip_for(budget, asked.delta, rate, sigma, asked.steps, asked.neighbours, asked.extra, asked.judge)
        for budget in budgets
    ]
    Answer("clip", "epsilon", budgets, clips).show(asked, json, sigma=sigma, rate=rate)
