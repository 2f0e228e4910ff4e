"""`veil train`: a table in, a model with certificate and report out."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veil.cli.console import print_json, results_table, stderr, stdout
from veil.errors import InputError, require

if TYPE_CHECKING:
    from veil.methods import Method
    from veil.plan import Plan, Settings
    from veil.problem import PublicFacts
    from veil.tabular.preparing import Request
    from veil.training import Run


FURTHER = "veil.settings"


def _from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Let a TOML file give what the command line leaves out: options, and any field of `veil.plan.Settings`.

    They stand at the top or in a table `settings`, as in the `config.toml` of a run.
    """
    from veil.plan import Settings

    if path is None:
        return None
    require(path.exists(), f"there is no file {path}")
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from error
    settings = record.pop("settings", {})
    known = {parameter.name for parameter in context.command.params}
    given: dict[str, object] = {}
    further: dict[str, object] = {}
    for key, value in {**record, **settings}.items():
        name = key.replace("-", "_")
        if name in known:
            joined = isinstance(value, list) and name not in ("option", "model_option")
            given[name] = ",".join(map(str, value)) if joined else value
        elif name in Settings.model_fields:
            further[name] = value
        else:
            require(name == "command", f'{path}: "{key}" is neither an option of veil train nor a setting')
    context.default_map = {name: value for name, value in given.items() if name not in ("config", "data")}
    context.meta[FURTHER] = further
    return path


def train(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(help="A CSV, Parquet or Arrow file, or a folder of Parquet files.")],
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file with any of these options.", is_eager=True, callback=_from_file),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict.")] = None,
    group: Annotated[str | None, typer.Option(help="Column or columns that make the groups, by commas.")] = None,
    method: Annotated[str, typer.Option(help="See `veil methods`.")] = "asc",
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")] = 1.0,
    delta: Annotated[str, typer.Option(help="δ, or auto for 1 / (2 × rows).")] = "auto",
    model: Annotated[str, typer.Option(help="A built-in model, or my_module:factory.")] = "mlp",
    test: Annotated[Path | None, typer.Option(help="A table whose rows are public, for evaluation.")] = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="Without --test: share of rows kept out of training and measured with noise. [default: 0.2]"),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Public knowledge about the columns; see `veil data schema`.")
    ] = None,
    private_preprocessing: Annotated[
        float | None, typer.Option(help="Share of ε to find bounds, categories and group sizes with.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Column that says who set each row's budget.")] = None,
    budgets: Annotated[Path | None, typer.Option(help="Each owner's ε.")] = None,
    ignore: Annotated[str, typer.Option(help="Columns to leave out, by commas.")] = "",
    init: Annotated[Path | None, typer.Option(help="Public weights to start from (safetensors).")] = None,
    train_only: Annotated[str, typer.Option(help="Train only parameters of these names, by commas: 2.*")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("veil-run"),
    epochs: Annotated[float, typer.Option(help="Expected passes over the rows.")] = 20.0,
    batch_size: Annotated[int, typer.Option(help="Expected rows per step.")] = 512,
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 0.5,
    option: Annotated[list[str] | None, typer.Option(help="An option of the method, as name=value.")] = None,
    tail: Annotated[float | None, typer.Option(help="ino-sgd: length of the tail in percent.")] = None,
    noise_filter: Annotated[
        str, typer.Option(help="none, or disk: a filter after the noise, for any method.")
    ] = "none",
    allow_weaker_minority_privacy: Annotated[
        bool, typer.Option("--allow-weaker-minority-privacy", help="azb-weak: small groups get a larger ε than asked.")
    ] = False,
    model_option: Annotated[list[str] | None, typer.Option(help="An option of the model, as name=value.")] = None,
    seed: Annotated[int | None, typer.Option(help="For tests only; stated on the certificate.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan per group (rates, clips, noise, cost) and stop.")
    ] = False,
) -> None:
    """Train on a table with privacy for every row, and show what each group gets."""
    import torch

    from veil import methods
    from veil.cli.progress import ProgressBar
    from veil.plan import Settings
    from veil.tabular.preparing import Request
    from veil.tabular.running import train_table

    if model in ("logistic", "mlp", "wide-and-deep"):
        torch.set_num_threads(1)  # a second thread costs a small model more than it gives
    settings = Settings.checked(
        epsilon=epsilon,
        delta=_delta(delta),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
        **({"noise_filter": noise_filter} | context.meta.get(FURTHER, {})),
    )
    options = _options(option or [])
    if tail is not None:
        options["tail"] = tail
    if allow_weaker_minority_privacy:
        options["allow_weaker_minority_privacy"] = True
    chosen = methods.create(method, options)
    request = Request(
        data=data,
        target=target,
        groups=_listed(group or ""),
        test=test,
        holdout=holdout,
        schema=schema,
        private_preprocessing=private_preprocessing,
        owner=owner,
        budgets=budgets,
        ignore=frozenset(_listed(ignore)),
        model=model,
        model_options=_options(model_option or []),
        init=init,
        train_only=_listed(train_only),
    )
    if dry_run:
        require(private_preprocessing is None, "a dry run reads no row: leave --private-preprocessing out")
        _show_plan(request, chosen, settings, json)
        return
    run = train_table(
        request,
        chosen,
        settings,
        out=out,
        callbacks=[ProgressBar(quiet=json or quiet)],
        config={
            "command": shlex.join(["veil", *sys.argv[1:]]),
            "option": option or None,
            "model_option": model_option or None,
        },
        say=None if json or quiet else lambda sentence: stderr.print(sentence, soft_wrap=True, highlight=False),
    )
    _show(run, out, json)


class _Planned(Exception):
    """Carries a plan out of the call that would have gone on to train."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.method)
        self.plan = plan


def _show_plan(request: Request, method: Method, settings: Settings, json: bool) -> None:
    from veil.cli.plan_table import plan_json, plan_table
    from veil.tabular.running import train_table

    class PlanOnly:
        def plan(self, facts: PublicFacts, settings: Settings) -> Plan:
            raise _Planned(method.plan(facts, settings))

    try:
        train_table(request, PlanOnly(), settings)  # type: ignore[arg-type]
    except _Planned as found:
        if json:
            print_json(plan_json(found.plan))
        else:
            stdout.print(plan_table(found.plan))


def _show(run: Run, out: Path, json: bool) -> None:
    if json:
        print_json(run.summary())
        return
    if run.metrics is not None:
        sizes = dict(zip(run.plan.facts.groups, run.plan.facts.group_sizes, strict=True))
        stdout.print(results_table([run.summary()], sizes))
        if run.summary()["metrics"].get("released"):
            stdout.print("Accuracy is from held-out rows, released with noise: it is covered by the certificate.")
    stdout.print(f"\n{run.certificate.statement}", soft_wrap=True, highlight=False)
    stdout.print(f"\nReport: {(out / 'report.html').resolve().as_uri()}", soft_wrap=True, highlight=False)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


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
