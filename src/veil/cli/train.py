"""`veil train`: a table in, a model with certificate and report out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from veil.cli.console import print_json, results_table, stdout
from veil.errors import InputError, require


def train(
    data: Annotated[Path, typer.Argument(help="The table to train on: CSV or Parquet.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    group: Annotated[str, typer.Option(help="Column or columns that make the groups, separated by commas.")],
    method: Annotated[str, typer.Option(help="See `veil methods`.")] = "dp-sgd",
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    delta: Annotated[str, typer.Option(help="δ, or auto for 1 / (2 × rows).")] = "auto",
    model: Annotated[str, typer.Option(help="logistic or mlp.")] = "mlp",
    test: Annotated[Path | None, typer.Option(help="A table whose rows are public, for evaluation.")] = None,
    ignore: Annotated[str, typer.Option(help="Columns to leave out, separated by commas.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("veil-run"),
    epochs: Annotated[float, typer.Option(help="Expected passes over the rows.")] = 20.0,
    batch_size: Annotated[int, typer.Option(help="Expected rows per step.")] = 512,
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 0.5,
    option: Annotated[list[str] | None, typer.Option(help="An option of the method, as name=value.")] = None,
    seed: Annotated[int | None, typer.Option(help="For tests only; stated on the certificate.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train on a table with privacy for every row, and show what each group gets."""
    from veil import methods
    from veil.cli.progress import ProgressBar
    from veil.plan import Settings
    from veil.randomness import Seed
    from veil.tabular import build_model, fit_encoding, read_table, table_problem
    from veil.training import fit

    settings = Settings.checked(
        epsilon=epsilon,
        delta=_delta(delta),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    chosen = methods.create(method, _options(option or []))
    table = read_table(data)
    groups = [name.strip() for name in group.split(",") if name.strip()]
    for name in (target, *groups):
        require(
            name in table.columns, f'column "{name}" is missing: the table has {", ".join(map(str, table.columns))}'
        )
    left_out = {name.strip() for name in ignore.split(",") if name.strip()}
    encoding = fit_encoding(table, {target} | left_out)
    problem = table_problem(table, encoding, target, groups)
    evaluation = None
    if test is not None:
        evaluation = table_problem(read_table(test), encoding, target, groups, like=problem.public)
    run = fit(
        build_model(model, problem.public, Seed.from_system() if seed is None else Seed.from_int(seed)),
        problem,
        method=chosen,
        evaluation=evaluation,
        callbacks=[ProgressBar(quiet=json or quiet)],
        not_covered=["Bounds and categories of the columns: they were read off the training rows."],
        out=out,
        config={
            "command": shlex.join(["veil", *sys.argv[1:]]),
            "data": str(data),
            "target": target,
            "group": groups,
            "model": model,
        },
        **settings.model_dump(),
    )
    if json:
        print_json(run.summary())
        return
    if run.metrics is not None:
        sizes = dict(zip(problem.public.groups, problem.public.group_sizes, strict=True))
        stdout.print(results_table([run.summary()], sizes))
    stdout.print(f"\n{run.certificate.statement}", soft_wrap=True, highlight=False)
    stdout.print(f"\nReport: {(out / 'report.html').resolve().as_uri()}", soft_wrap=True, highlight=False)


def _delta(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InputError(f'delta is "{text}": give a number between 0 and 1, or auto') from error


def _options(pairs: list[str]) -> dict[str, object]:
    """name=value pairs; a value that looks like a number or a truth value becomes one."""
    options: dict[str, object] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        require(bool(separator), f'option "{pair}" is not of the form name=value')
        value: object = text
        if text in {"true", "false"}:
            value = text == "true"
        else:
            for kind in (int, float):
                try:
                    value = kind(text)
                    break
                except ValueError:
                    continue
        options[name.replace("-", "_")] = value
    return options
