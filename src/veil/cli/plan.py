"""`veil plan`: what a budget can buy on a table, before anything is trained or spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from veil.cli.config_file import config_text
from veil.cli.console import percent, print_json, stdout
from veil.cli.fields import asks
from veil.cli.options import Config, Json, PrintConfig
from veil.cli.train import request_of
from veil.errors import require
from veil.request import Request

Page = Annotated[Path | None, typer.Option("--out", "-o", help="Also write a page with sliders to this HTML file.")]
SHOWN_GROUPS, WIDTH = 20, 40


@asks(Request)
def plan(
    context: typer.Context,
    config: Config = None,
    out: Page = None,
    json: Json = False,
    print_config: PrintConfig = False,
) -> None:
    """Show what ε = 0.3, 1, 3 and 8 can buy for each group. Nothing is trained on the rows, and nothing is spent.

    It reads the table as `veil train --dry-run` does, and says what it read.
    """
    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    request = request_of(context, "plan")
    if out is not None:
        require(out.suffix == ".html", f"--out is {out}: a plan is a page, so give a file that ends in .html")
        require(out.parent.is_dir(), f"there is no folder {out.parent}: create it, or choose another path with --out")
    import torch

    from veil.advice.planning import advise
    from veil.report.plan_page import write_plan_page

    torch.set_num_threads(1)  # a second thread costs a small model more than it gives
    advice = advise(request)
    page = None if out is None else write_plan_page(advice.record, advice.page_tables(), out)
    if json:
        print_json({**advice.record, "page": None if page is None else str(page)})
        return
    _show(advice.record)
    if page is not None:
        stdout.print(f"\nPage: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)


def _show(record: dict[str, Any]) -> None:
    """Tables, a picture and sentences, in the order in which somebody decides."""

    def say(text: str) -> None:
        stdout.print(text, soft_wrap=True, highlight=False, markup=False)

    say(f"{record['headline']}\n")
    stdout.print(_budget_table(record))
    stdout.print(_group_table(record))
    if record["forecast"]["made"]:
        say(_picture(record))
    say(record["forecast"]["sentence"])
    say(f"\nδ: {record['delta']['sentence']}")
    say(f"Time and memory: {record['cost']['sentence']}")
    say(f"People: {record['people']['sentence']}")
    for one in record["people"]["several"]:
        say(_person(one, record))
    if record["owners"] is not None:
        for line in (record["owners"]["sentence"], *record["owners"]["advice"]):
            say(f"Owners: {line}")
    say("\nNothing was trained and nothing is spent. Read from the rows, and covered by no ε:")
    for line in record["read"]:
        say(f"- {line}")


def _budget_table(record: dict[str, Any]) -> Table:
    page = Table(title=f"What a budget can buy: {record['rows']:,} {_units(record)}", title_justify="left")
    headings = [
        "ε",
        "worst group, %",
        "8 of 10 within",
        f"{_units(record)} / noise",
        f"{_units(record)} needed",
        "groups too small",
    ]
    for heading in headings:
        page.add_column(heading, justify="right")
    for budget in record["budgets"]:
        span = budget["worst_group_accuracy"]
        small = sum(not group["heard"] for group in budget["groups"])
        page.add_row(
            f"{budget['epsilon']:g}",
            percent(span["expected"]) if span else "–",
            f"{percent(span['low'])} to {percent(span['high'])}" if span else "–",
            f"{budget['rows_per_noise']:,.0f}",
            f"{budget['rows_to_be_heard']:,}",
            f"{small} of {len(budget['groups'])}",
        )
    lines = [f"{_units(record)} needed: for a group to be weighted separately"]
    page.caption = "\n".join([*lines, *([_other_noise(record)] if record["method_noise"] else [])])
    page.caption_justify = "left"
    return page


def _other_noise(record: dict[str, Any]) -> str:
    """The noise of another method than auto, in a line."""
    found = [one for one in record["method_noise"] if one["noise_multiplier"] is not None]
    at = ["the owners' budgets" if one["epsilon"] is None else f"ε = {one['epsilon']:g}" for one in found]
    shown = ", ".join(f"{one['noise_multiplier']:.3g} at {where}" for one, where in zip(found, at, strict=True))
    return f"Noise multiplier of {record['method']}: {shown or 'none is stated'}"


def _group_table(record: dict[str, Any]) -> Table:
    page = Table(title="Expected accuracy of each group, %", title_justify="left", caption_justify="left")
    page.add_column("group")
    page.add_column(_units(record), justify="right")
    for budget in record["budgets"]:
        page.add_column(f"ε = {budget['epsilon']:g}", justify="right")
    order = sorted(range(len(record["budgets"][0]["groups"])), key=lambda i: -record["budgets"][0]["groups"][i]["rows"])
    for index in order[:SHOWN_GROUPS]:
        own = [budget["groups"][index] for budget in record["budgets"]]
        cells = [
            ("–" if g["accuracy"] is None else percent(g["accuracy"]["expected"])) + ("" if g["heard"] else " ·")
            for g in own
        ]
        page.add_row(own[0]["group"].replace("[", r"\["), f"{own[0]['rows']:,}", *cells)
    more = len(order) - SHOWN_GROUPS
    lines = ["· too small to be weighted separately at this ε: it is combined with a similar group"]
    lines += [f"{more} smaller groups are in --json and on the page"] if more > 0 else []
    page.caption = "\n".join(lines)
    return page


def _picture(record: dict[str, Any]) -> str:
    """The worst group at each ε as a bar with its interval."""
    lines = [f"{'worst group':>14} 0 %{'100 %':>{WIDTH - 3}}"]
    for budget in record["budgets"]:
        span = budget["worst_group_accuracy"]
        low, middle, high = (round(WIDTH * span[name]) for name in ("low", "expected", "high"))
        bar = "".join("█" if at < low else "▒" if at < high else "·" for at in range(WIDTH))
        lines.append(f"{'ε = ' + format(budget['epsilon'], 'g'):>14} {bar[:middle]}│{bar[middle + 1 :]}")
    return "\n".join([*lines, f"{'':>14} │ expected, ▒ 8 of 10 within\n"])


def _person(one: dict[str, Any], record: dict[str, Any]) -> str:
    promised = "no ε is proved" if one["epsilon"] is None else f"ε = {one['epsilon']:.3g} for that person"
    said = f"- {one['rows']} rows about one person: ε = {record['people']['epsilon']:g} for rows is {promised}"
    if one["worst_group_accuracy"] is None:
        return said
    return f"{said}; with --person expect about {percent(one['worst_group_accuracy']['expected'])} % in the worst group"


def _units(record: dict[str, Any]) -> str:
    return "people" if record["unit"] == "person" else "rows"
