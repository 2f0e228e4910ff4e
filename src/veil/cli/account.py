"""`veil account`: what releases cost, and which noise, rate or clip a budget buys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from veil.accounting import (
    Accountant,
    Event,
    Gaussian,
    Gdp,
    Pld,
    PoissonGaussian,
    Rdp,
    Relation,
    Repeated,
    SubsetGaussian,
)
from veil.accounting.calibration import clip_for, noise_multiplier, rate_for
from veil.cli.chart import chart
from veil.cli.console import print_json, stdout
from veil.errors import InputError, require

account_app = typer.Typer(
    help="What do releases cost, and which noise, rate or clip does a budget buy?",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Sampling = Annotated[
    str, typer.Option(help="poisson: each row by chance; wor: subsets without replacement; none: all rows.")
]
RelationOption = Annotated[
    str | None, typer.Option("--relation", help="add-remove or replace-one; wor has replace-one only.")
]
Rate = Annotated[str | None, typer.Option(help="Sampling rate, or one per group: 0.01,0.09.")]
Size = Annotated[int | None, typer.Option(help="Rows (wor).")]
BatchOption = Annotated[int | None, typer.Option("--batch", help="Rows per batch (wor).")]
Steps = Annotated[int, typer.Option(help="Number of releases.")]
Delta = Annotated[float, typer.Option(help="δ.")]
AccountantName = Annotated[str, typer.Option("--accountant", help="pld, rdp, or gdp (an approximation).")]
Plus = Annotated[
    list[str] | None, typer.Option(help="Further full-data releases, NOISE_MULTIPLIERxTIMES, e.g. 240.23x60.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]

ACCOUNTANTS: dict[str, type[Pld] | type[Rdp] | type[Gdp]] = {"pld": Pld, "rdp": Rdp, "gdp": Gdp}


@dataclass(frozen=True)
class Question:
    """The options that all four questions share, checked."""

    sampling: Literal["poisson", "wor", "none"]
    relation: Relation
    rates: tuple[float, ...]
    size: int
    batch: int
    steps: int
    delta: float
    extra: tuple[Repeated, ...]
    accountant: Accountant

    def release(self, kappa: float, rate: float) -> Event:
        """One release at this noise."""
        if self.sampling == "wor":
            return SubsetGaussian(kappa, self.size, self.batch)
        if self.sampling == "none" or rate == 1.0:
            return Gaussian(kappa, self.relation)
        return PoissonGaussian(kappa, rate, self.relation)

    def events(self, kappa: float, rate: float) -> tuple[Repeated, ...]:
        """All releases together."""
        return (Repeated(self.release(kappa, rate), self.steps), *self.extra)

    def facts(self) -> dict[str, Any]:
        """What was asked, for the JSON answer."""
        return {
            "delta": self.delta,
            "relation": self.relation.value,
            "accountant": self.accountant.name,
            "approximate": self.accountant.approximate,
            "sampling": self.sampling,
            "steps": self.steps,
        }


def _question(
    sampling: str,
    relation: str | None,
    rate: str | None,
    size: int | None,
    batch: int | None,
    steps: int,
    delta: float,
    plus: Sequence[str] | None,
    accountant: str,
    needs_rate: bool = True,
) -> Question:
    require(sampling in ("poisson", "wor", "none"), f'sampling is "{sampling}": it is poisson, wor or none')
    require(accountant in ACCOUNTANTS, f'accountant is "{accountant}": it is {", ".join(ACCOUNTANTS)}')
    require(0 < delta < 1, f"delta is {delta}: it must lie between 0 and 1")
    require(steps >= 1, f"steps is {steps}: it must be at least 1")
    default = "replace-one" if sampling == "wor" else "add-remove"
    known = [kind.value for kind in Relation]
    require(relation is None or relation in known, f'relation is "{relation}": it is {" or ".join(known)}')
    chosen = Relation(relation or default)
    if sampling == "wor":
        require(chosen is Relation.REPLACE_ONE, "without replacement only replace-one is proved: leave --relation out")
        require(size is not None and batch is not None, "sampling wor needs --size and --batch")
    if sampling == "poisson" and needs_rate:
        require(rate is not None, "sampling poisson needs --rate")
    rates = _numbers("rate", rate) if rate is not None and sampling == "poisson" else (1.0,)
    extra = tuple(_plus(text, chosen) for text in plus or ())
    judge = ACCOUNTANTS[accountant]()
    return Question(sampling, chosen, rates, size or 1, batch or 0, steps, delta, extra, judge)  # type: ignore[arg-type]


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f'{name} is "{text}": give a number, or several separated by commas') from error


def _plus(text: str, relation: Relation) -> Repeated:
    multiplier, _, times = text.partition("x")
    try:
        return Repeated(Gaussian(float(multiplier), relation), int(times or "1"))
    except ValueError as error:
        raise InputError(f'plus is "{text}": give NOISE_MULTIPLIERxTIMES, such as 240.23x60') from error


def _answer(question: Question, key: str, values: list[float], json: bool, more: dict[str, Any] | None = None) -> None:
    """Print one value, or one per rate (the first key then holds the worst)."""
    if json:
        record: dict[str, Any] = {key: _finite(max(values)), **question.facts(), **(more or {})}
        if len(values) > 1:
            groups = zip(question.rates, values, strict=True)
            record["by_group"] = [{"rate": rate, key: _finite(value)} for rate, value in groups]
        print_json(record)
        return
    page = Table(title=f"{question.steps:,} releases, {question.sampling}, {question.relation}", title_justify="left")
    for heading in ("rate", key.replace("_", " "), "δ", "accountant"):
        page.add_column(heading, justify="right")
    name = question.accountant.name + (" (approximation)" if question.accountant.approximate else "")
    rates = question.rates if len(question.rates) == len(values) else (math.nan,) * len(values)
    for rate, value in zip(rates, values, strict=True):
        shown = question.batch / question.size if question.sampling == "wor" else rate
        page.add_row("–" if math.isnan(shown) else f"{shown:.4g}", f"{value:.4f}", f"{question.delta:.3g}", name)
    stdout.print(page)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@account_app.command("epsilon")
def account_epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="κ = σ/C: noise over the bound on one row.")],
    steps: Steps,
    sampling: Sampling = "poisson",
    relation: RelationOption = None,
    rate: Rate = None,
    size: Size = None,
    batch: BatchOption = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    plus: Plus = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw ε over steps.")] = False,
    json: Json = False,
) -> None:
    """The ε that the releases cost, for every group's rate."""
    question = _question(sampling, relation, rate, size, batch, steps, delta, plus, accountant)
    values = [question.accountant.epsilon(question.events(noise_multiplier, q), delta) for q in question.rates]
    _answer(question, "epsilon", values, json, {"noise_multiplier": noise_multiplier})
    if plot and not json:
        _plot(question, noise_multiplier)


def _plot(question: Question, kappa: float) -> None:
    """ε over steps at the largest rate; the further releases are spread evenly."""
    marks = sorted({max(1, round(question.steps * share / 60)) for share in range(1, 61)})
    worst = max(question.rates)
    values = []
    for mark in marks:
        extra = [Repeated(item.event, math.ceil(item.times * mark / question.steps)) for item in question.extra]
        events = [Repeated(question.release(kappa, worst), mark), *extra]
        values.append(question.accountant.epsilon(events, question.delta))
    stdout.print(chart(marks, values, "ε over steps"), highlight=False, markup=False)


@account_app.command("noise")
def account_noise(
    epsilon: Annotated[float, typer.Option(help="The budget ε.")],
    steps: Steps,
    sampling: Sampling = "poisson",
    relation: RelationOption = None,
    rate: Rate = None,
    size: Size = None,
    batch: BatchOption = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    plus: Plus = None,
    json: Json = False,
) -> None:
    """The smallest noise multiplier κ = σ/C that stays within a budget, for every group's rate."""
    question = _question(sampling, relation, rate, size, batch, steps, delta, plus, accountant)
    values = [
        noise_multiplier(lambda kappa, q=q: question.events(kappa, q), epsilon, delta, question.accountant)  # type: ignore[misc]
        for q in question.rates
    ]
    _answer(question, "noise_multiplier", values, json, {"epsilon": epsilon})


@account_app.command("rate")
def account_rate(
    epsilon: Annotated[str, typer.Option(help="The budget ε, or one per owner: 0.6,8.")],
    noise_multiplier: Annotated[float, typer.Option(help="κ = σ/C.")],
    steps: Steps,
    relation: RelationOption = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    plus: Plus = None,
    json: Json = False,
) -> None:
    """The largest Poisson rate that stays within a budget."""
    question = _question("poisson", relation, None, None, None, steps, delta, plus, accountant, needs_rate=False)
    budgets = _numbers("epsilon", epsilon)
    rates = [
        rate_for(budget, delta, noise_multiplier, steps, question.relation, question.extra, question.accountant)
        for budget in budgets
    ]
    _answer_by_budget(question, "rate", budgets, rates, json, {"noise_multiplier": noise_multiplier})


@account_app.command("clip")
def account_clip(
    epsilon: Annotated[str, typer.Option(help="The budget ε, or one per owner: 0.5,3.")],
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise.")],
    rate: Annotated[float, typer.Option(help="Poisson rate.")],
    steps: Steps,
    relation: RelationOption = None,
    delta: Delta = 1e-5,
    accountant: AccountantName = "pld",
    plus: Plus = None,
    json: Json = False,
) -> None:
    """The largest bound C on one row that stays within a budget at noise σ."""
    question = _question("poisson", relation, str(rate), None, None, steps, delta, plus, accountant)
    budgets = _numbers("epsilon", epsilon)
    clips = [
        clip_for(budget, delta, rate, sigma, steps, question.relation, question.extra, question.accountant)
        for budget in budgets
    ]
    _answer_by_budget(question, "clip", budgets, clips, json, {"sigma": sigma, "rate": rate})


def _answer_by_budget(
    question: Question, key: str, budgets: tuple[float, ...], values: list[float], json: bool, more: dict[str, Any]
) -> None:
    if json:
        record: dict[str, Any] = {key: min(values), "epsilon": min(budgets), **question.facts(), **more}
        if len(values) > 1:
            pairs = zip(budgets, values, strict=True)
            record["by_owner"] = [{"epsilon": budget, key: value} for budget, value in pairs]
        print_json(record)
        return
    page = Table(title=f"{question.steps:,} releases, poisson, {question.relation}", title_justify="left")
    for heading in ("budget ε", key, "δ", "accountant"):
        page.add_column(heading, justify="right")
    for budget, value in zip(budgets, values, strict=True):
        page.add_row(f"{budget:g}", f"{value:.5g}", f"{question.delta:.3g}", question.accountant.name)
    stdout.print(page)
