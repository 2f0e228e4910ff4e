"""`veil export`: the model of a run in a format of other programs, with its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veil.cli.console import stderr
from veil.errors import require


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run on a table.")],
    to: Annotated[str, typer.Option("--to", help="onnx, sklearn (a pickled pipeline), mlflow or container.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Hand a run's model over to other programs; certificate and model card travel with it. It costs no ε."""
    from veil.handover.loaded import LoadedTableRun, load

    require(run.is_dir(), f"{run} is not the folder of a run: give the --out of veil train")
    loaded = load(run)
    require(isinstance(loaded, LoadedTableRun), f"{run} has no model of a table: export is for runs on tables")
    assert isinstance(loaded, LoadedTableRun)
    place = loaded.export(to, out, force=force)
    said = f"Exported to {place}; veil verify {place} says whether it is the certified model."
    stderr.print(said, soft_wrap=True, highlight=False, markup=False)
