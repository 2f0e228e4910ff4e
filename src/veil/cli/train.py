"""`veil train`: a table in, a model with certificate and report out."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veil.cli.budget import DEFAULT, Store
from veil.cli.config_file import config_text, further_settings
from veil.cli.console import print_json, results_table, stderr, stdout
from veil.cli.options import (
    BatchSize,
    Config,
    Delta,
    Epochs,
    Group,
    Ignore,
    Json,
    LearningRate,
    Method,
    Model,
    NoiseFilter,
    PrintConfig,
    Quiet,
    Require,
    SchemaFile,
    ShowPrivate,
    Target,
    Test,
)
from veil.cli.parsing import delta_of, listed, named_values
from veil.cli.requiring import checked_requirements, judge, print_verdict
from veil.errors import require

if TYPE_CHECKING:
    from veil.methods import Method as PrivateMethod
    from veil.plans import Settings
    from veil.tables.preparing import Request
    from veil.training import Run

SMALL_MODELS = ("logistic", "mlp", "wide-and-deep", "whitened")
Data = Annotated[Path | None, typer.Argument(help="A CSV, Parquet or Arrow file, or a folder of Parquet files.")]
Epsilon = Annotated[float, typer.Option(help="Privacy budget ε.")]
Holdout = Annotated[
    float | None,
    typer.Option(help="Without --test: share of rows kept out of training and measured with noise. [default: 0.2]"),
]
Preprocessing = Annotated[
    float | None,
    typer.Option(help="Share of ε to find bounds and categories with (and group sizes, if the plan is fixed)."),
]
Owner = Annotated[str | None, typer.Option(help="Column that says who set each row's budget, an ε for one row.")]
Budgets = Annotated[
    Path | None, typer.Option(help="ε for each single row of an owner: a CSV file (owner, epsilon) or a TOML table.")
]
RowBudgets = Annotated[str | None, typer.Option(help="Column with every row's own ε, cut into at most eight levels.")]
Init = Annotated[Path | None, typer.Option(help="Public weights to start from (safetensors).")]
TrainOnly = Annotated[str, typer.Option(help="Train only parameters of these names, comma-separated: 2.*")]
Out = Annotated[Path, typer.Option(help="Folder for the run.")]
MethodOptions = Annotated[list[str] | None, typer.Option(help="An option of the method, as name=value.")]
Tail = Annotated[float | None, typer.Option(help="ino-sgd: length of the tail in percent.")]
WeakerMinority = Annotated[
    bool,
    typer.Option("--allow-weaker-minority-privacy", help="azb-weak: small groups get a larger ε than asked."),
]
ModelOptions = Annotated[list[str] | None, typer.Option(help="An option of the model, as name=value.")]
SeedNumber = Annotated[int | None, typer.Option(help="For tests only; stated on the certificate.")]
PresetName = Annotated[
    str | None, typer.Option(help="Method and model in one word: best. See docs/methods/group-gd.md.")
]
DataSetName = Annotated[
    str | None,
    typer.Option(help="Charge the run to this data set's budget; see `veil budget`. Refused if it overruns."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Show the plan per group (rates, clips, noise, cost) and stop. It reads the table, like training.",
    ),
]


def train(
    context: typer.Context,
    data: Data = None,
    config: Config = None,
    target: Target = None,
    group: Group = None,
    preset: PresetName = None,
    method: Method = "asc",
    epsilon: Epsilon = 1.0,
    delta: Delta = "auto",
    model: Model = "mlp",
    test: Test = None,
    holdout: Holdout = None,
    schema: SchemaFile = None,
    private_preprocessing: Preprocessing = None,
    owner: Owner = None,
    budgets: Budgets = None,
    row_budgets: RowBudgets = None,
    ignore: Ignore = "",
    init: Init = None,
    train_only: TrainOnly = "",
    out: Out = Path("veil-run"),
    epochs: Epochs = 20.0,
    batch_size: BatchSize = 512,
    learning_rate: LearningRate = 0.5,
    option: MethodOptions = None,
    tail: Tail = None,
    noise_filter: NoiseFilter = "none",
    allow_weaker_minority_privacy: WeakerMinority = False,
    model_option: ModelOptions = None,
    seed: SeedNumber = None,
    dataset: DataSetName = None,
    store: Store = DEFAULT,
    require: Require = None,
    show_private: ShowPrivate = False,
    json: Json = False,
    quiet: Quiet = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    print_config: PrintConfig = False,
) -> None:
    """Train on a table with privacy for every row, and show what each group gets. Exit code 1: a requirement fails."""
    if print_config:
        typer.echo(config_text(context), nl=False)
        return
    asked = _with_preset(context)
    wanted = checked_requirements(require)
    request, chosen, settings = _request(asked), _method(asked), _settings(asked, further_settings(context))
    _check_budget(context, request)
    _check_measured(request, wanted)
    _check_length(context, chosen)
    if dry_run:
        _show_plan(request, chosen, settings, json)
        return
    leads = _leads()
    run = _train(asked, request, chosen, settings, silent=json or quiet or not leads)
    if leads:
        _show(run, out, json, wanted)


def _with_preset(context: typer.Context) -> Mapping[str, Any]:
    """What was asked for, with the preset's method and model where one is named."""
    asked = dict(context.params)
    if asked["preset"] is None:
        return asked
    from veil.training.presets import preset

    typed = _typed(context, "method", "model")
    require(not typed, f"--preset {asked['preset']} brings its own method and model: leave {typed} out")
    chosen = preset(asked["preset"])
    return asked | {"method": chosen.method, "model": chosen.model}


def _typed(context: typer.Context, *names: str) -> str:
    """Those of the options that stand on the command line, as they are typed there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    found = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return " and ".join("--" + name.replace("_", "-") for name in found)


def _check_length(context: typer.Context, method: PrivateMethod) -> None:
    """Refuse what a method that solves its problem as a whole would pass over."""
    if getattr(method, "whole", False):
        typed = _typed(context, "epochs", "batch_size", "learning_rate")
        require(
            not typed,
            f"{method.name} is solved as a whole, with steps of its own: leave {typed} out",
        )


def _check_budget(context: typer.Context, request: Request) -> None:
    """Refuse an ε beside budgets that have one of their own for everybody."""
    if request.budgets is not None or request.row_budgets is not None:
        given = "--budgets" if request.budgets is not None else "--row-budgets"
        require(not _typed(context, "epsilon"), f"{given} says everybody's own ε: leave --epsilon out")


def _check_measured(request: Request, wanted: list[Any]) -> None:
    """Refuse requirements on a run that measures nothing."""
    measured = request.test is not None or request.holdout != 0
    require(measured or not wanted, "--require has nothing to judge: give --test, or hold rows out by --holdout")


def _leads() -> bool:
    """Whether this process speaks: under torchrun only the first one does."""
    return os.environ.get("RANK", "0") == "0"


def _train(
    asked: Mapping[str, Any], request: Request, method: PrivateMethod, settings: Settings, *, silent: bool
) -> Run:
    import torch

    from veil.cli.progress import ProgressBar
    from veil.tables.running import train_table

    if request.model in SMALL_MODELS:
        torch.set_num_threads(1)  # a second thread costs a small model more than it gives
    kept = ("option", "allow_weaker_minority_privacy", "model_option", "require", "show_private")
    return train_table(
        request,
        method,
        settings,
        out=asked["out"],
        resume=asked["resume"],
        callbacks=[ProgressBar(quiet=silent)],
        config={"command": _command(), "tail": asked["tail"], **{name: asked[name] or None for name in kept}},
        say=None if silent else lambda sentence: stderr.print(sentence, soft_wrap=True, highlight=False),
    )


def _command() -> str:
    """What was typed, without the password that a server's address may hold."""
    typed = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:…@", shlex.join(["veil", *sys.argv[1:]]))
    return re.sub(r"([?&](?:ssl)?password=)[^&\s']*", r"\1…", typed)


def _settings(asked: Mapping[str, Any], further: Mapping[str, Any]) -> Settings:
    from veil.plans import Settings

    names = ("epsilon", "epochs", "batch_size", "learning_rate", "seed", "noise_filter")
    return Settings.checked(**{name: asked[name] for name in names} | {"delta": delta_of(asked["delta"]), **further})


def _method(asked: Mapping[str, Any]) -> PrivateMethod:
    from veil import methods

    options = named_values(asked["option"] or [])
    if asked["tail"] is not None:
        options["tail"] = asked["tail"]
    if asked["allow_weaker_minority_privacy"]:
        options["allow_weaker_minority_privacy"] = True
    return methods.create(asked["method"], options)


def _request(asked: Mapping[str, Any]) -> Request:
    from veil.tables.preparing import Request

    require(asked["data"] is not None, "no data are named: give a table, as in veil train people.csv --target …")
    require(
        not asked["dry_run"] or asked["private_preprocessing"] is None,
        "a dry run releases nothing: leave --private-preprocessing out",
    )
    same = (
        "target",
        "test",
        "holdout",
        "schema",
        "private_preprocessing",
        "owner",
        "budgets",
        "row_budgets",
        "model",
        "init",
        "dataset",
        "store",
    )
    return Request(
        data=Path(asked["data"]),
        groups=listed(asked["group"] or ""),
        ignore=frozenset(listed(asked["ignore"])),
        model_options=named_values(asked["model_option"] or []),
        train_only=listed(asked["train_only"]),
        show_private=asked["show_private"],
        **{name: asked[name] for name in same},
    )


def _show_plan(request: Request, method: PrivateMethod, settings: Settings, json: bool) -> None:
    from veil.cli.plan_table import plan_json, plan_table
    from veil.tables.running import plan_of

    plan = plan_of(request, method, settings)
    if json:
        print_json(plan_json(plan))
    else:
        stdout.print(plan_table(plan))


def _show(run: Run, out: Path, json: bool, wanted: list[Any]) -> None:
    checks = judge([run.facts()], wanted)
    if json:
        print_json({**run.summary(), **checks.as_json()})
    else:
        if run.metrics is not None:
            sizes = dict(zip(run.plan.facts.groups, run.plan.facts.group_sizes, strict=True))
            summary = run.summary()
            stdout.print(results_table([summary], sizes))
            if summary["metrics"].get("released"):
                covered = ": it is covered by the certificate" if run.plan.private else ""
                stdout.print(f"Accuracy is from held-out rows, released with noise{covered}.")
        if "Training rows" in run.findings:
            stdout.print("The folder also holds exact figures on private rows, not covered by the certificate.")
        stdout.print(f"\n{run.certificate.statement}", soft_wrap=True, highlight=False)
        print_verdict(checks)
        stdout.print(f"\nReport: {(out / 'report.html').resolve().as_uri()}", soft_wrap=True, highlight=False)
    if not checks.met:
        raise typer.Exit(1)
