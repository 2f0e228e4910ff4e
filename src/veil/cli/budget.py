"""`veil budget`: a privacy budget across runs, which a team can share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from veil.cli.console import print_json, stdout
from veil.cli.fields import asks, values_of
from veil.cli.options import Json, Store
from veil.errors import InputError, require
from veil.request import BudgetRequest
from veil.request.request import STORE

if TYPE_CHECKING:
    from veil.budget_store import Balance, BudgetStore, DataSet, Entry

budget_app = typer.Typer(
    help="A privacy budget for all runs on the same rows.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(help="The name of the data set.")]


@budget_app.command("create")
@asks(BudgetRequest)
def create(context: typer.Context, store: Store = STORE, json: Json = False) -> None:
    """Give a data set a budget. It can be lowered later, never raised."""
    from veil.accounting.events import Relation
    from veil.budget_store import BudgetStore, DataSet

    asked = BudgetRequest.checked(**values_of(BudgetRequest, context))
    made = DataSet(
        asked.dataset,
        Relation(asked.relation),
        asked.group,
        asked.owner.strip(),
        asked.compose,
        person=asked.person.strip(),
    )
    place = BudgetStore.create(store)
    place.add_dataset(made, epsilon=asked.epsilon, delta=asked.delta)
    _show(place, [asked.dataset], json)


@budget_app.command("limit")
def limit(
    dataset: Name,
    epsilon: Annotated[float, typer.Option(help="ε for all runs together.")],
    delta: Annotated[float, typer.Option(help="δ for all runs together.")],
    group: Annotated[str | None, typer.Option(help="The group that this limit applies to.")] = None,
    owner: Annotated[str | None, typer.Option(help="The owner that this limit applies to.")] = None,
    store: Store = STORE,
    json: Json = False,
) -> None:
    """Limit a group or an owner further, or lower a limit. Without either: lower the total."""
    from veil.budget_store import BudgetStore, Limit

    place = BudgetStore.open(store)
    place.add_limit(dataset, Limit(epsilon, delta, group, owner))
    _show(place, [dataset], json)


@budget_app.command("show")
def show(
    dataset: Annotated[str | None, typer.Argument(help="A data set; by default all.")] = None,
    store: Store = STORE,
    json: Json = False,
) -> None:
    """Show what every limit allows, what is charged and what is left."""
    from veil.budget_store import BudgetStore

    place = BudgetStore.open(store)
    _show(place, place.names() if dataset is None else [dataset], json)


@budget_app.command("reserve")
def reserve(
    dataset: Name,
    run: Annotated[str, typer.Option(help="A unique name for what will read the rows.")],
    epsilon: Annotated[float, typer.Option(help="Maximum ε per row.")],
    delta: Annotated[float, typer.Option(help="Maximum δ per row.")] = 0.0,
    note: Annotated[str, typer.Option(help="Purpose, for the history.")] = "",
    store: Store = STORE,
    json: Json = False,
) -> None:
    """Charge a use of the rows outside `veil train`, before it starts."""
    from veil.budget_store import BudgetStore, Spending
    from veil.budget_store.costs import amount

    place = BudgetStore.open(store)
    cost = amount(epsilon, delta, place.dataset(dataset))
    entry = place.reserve(dataset, Spending(run, cost, note=note))
    if json:
        print_json(entry.as_json())
        return
    _show(place, [dataset], json)


@budget_app.command("cancel")
def cancel(
    dataset: Name,
    run: Annotated[str, typer.Option(help="The run whose reservation to cancel.")],
    no_row_was_read: Annotated[
        bool, typer.Option("--no-row-was-read", help="Confirm it; needed for what `reserve` charged.")
    ] = False,
    store: Store = STORE,
    json: Json = False,
) -> None:
    """Cancel a reservation if no row was read. A run that has started stays charged."""
    from veil.budget_store import BudgetStore

    place = BudgetStore.open(store)
    entry = _entry(place, dataset, run)
    require(
        bool(entry.method) or no_row_was_read,
        f'run "{run}" was not trained by Veil, so only you know: if no row was read, add --no-row-was-read',
    )
    place.cancel(dataset, run)
    if json:
        print_json(_entry(place, dataset, run).as_json())
        return
    _show(place, [dataset], json)


@budget_app.command("history")
def history(dataset: Name, store: Store = STORE, json: Json = False) -> None:
    """List every reservation: when, for what, how much, and its state."""
    from veil.budget_store import BudgetStore

    entries = BudgetStore.open(store).history(dataset)
    if json:
        print_json({"dataset": dataset, "runs": [entry.as_json() for entry in entries]})
        return
    table = Table(title=Text(f"Runs charged to {dataset}"), title_justify="left")
    for heading in ("run", "method", "state", "reserved"):
        table.add_column(heading)
    table.add_column("ε", justify="right")
    table.add_column("δ", justify="right")
    table.add_column("note")
    for entry in entries:
        cost = (f"{entry.most.epsilon:.4g}", f"{entry.most.delta:.3g}") if entry.charged else ("–", "–")
        words = (entry.run, entry.method or "–", entry.state, entry.reserved, *cost, entry.note)
        table.add_row(*(Text(word) for word in words))
    stdout.print(table)


def _entry(store: BudgetStore, dataset: str, run: str) -> Entry:
    found = next((entry for entry in store.history(dataset) if entry.run == run), None)
    if found is None:
        raise InputError(f'there is no run "{run}" in the budget of "{dataset}": see veil budget history')
    return found


def _show(store: BudgetStore, names: list[str], json: bool) -> None:
    found = [(store.dataset(name), store.balances(name), _reading_more(store, name)) for name in names]
    if json:
        print_json({"store": store.place, "datasets": [_as_json(*item) for item in found]})
        return
    for dataset, balances, more in found:
        stdout.print(_table(dataset, balances))
        if more:
            runs = "1 run" if len(more) == 1 else f"{len(more)} runs"
            line = f"{runs} also read something from the rows that no ε covers (details: veil budget history)."
            stdout.print(Text(line), soft_wrap=True)
    if not found:
        stdout.print("No data set yet: create one with veil budget create.")


def _reading_more(store: BudgetStore, dataset: str) -> list[str]:
    """Runs that read something from the rows without a charge."""
    return [entry.run for entry in store.history(dataset) if entry.reads_more]


def _as_json(dataset: DataSet, balances: list[Balance], more: list[str]) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "relation": dataset.relation.value,
        "groups": list(dataset.groups),
        "owner": dataset.owner or None,
        "person": dataset.person or None,
        "composition": dataset.composition,
        "order": dataset.order,
        "limits": [balance.as_json() for balance in balances],
        "runs_not_fully_charged": more,
    }


def _table(dataset: DataSet, balances: list[Balance]) -> Table:
    how = "sums of ε and δ" if dataset.order is None else f"Rényi costs at order {dataset.order:.3g}"
    whose = f", people by {dataset.person}" if dataset.person else ""
    title = Text(f"Budget of {dataset.name} ({dataset.relation}, {how}{whose})")
    table = Table(title=title, title_justify="left")
    table.add_column("people of" if dataset.person else "rows of")
    for heading in ("ε", "charged", "left", "δ", "charged", "left"):
        table.add_column(heading, justify="right")
    table.add_column("share left", justify="right")
    for balance in balances:
        limit = balance.limit
        table.add_row(
            Text(limit.name().replace("every row", "everybody") if dataset.person else limit.name()),
            f"{limit.epsilon:g}",
            f"{balance.spent_epsilon:.4g}",
            f"{balance.left_epsilon:.4g}",
            f"{limit.delta:g}",
            f"{balance.spent_delta:.3g}",
            f"{balance.left_delta:.3g}",
            f"{100 * balance.left:.0f} %",
        )
    return table
