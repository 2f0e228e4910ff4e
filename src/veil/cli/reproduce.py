"""`veil reproduce`: the tables and figures of the papers, one TOML file each; `python -m experiments` is the same.

The experiments are part of a checkout of Veil, not of the installed package.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from veil.cli.console import stderr, stdout
from veil.cli.options import Quiet
from veil.errors import InputError, require

RESULTS, TRIALS = Path("docs/results"), Path("runs/small")
INDEX = "index"


class ScaleChoice(StrEnum):
    """How much is run."""

    small = "small"
    paper = "paper"


Name = Annotated[
    str | None,
    typer.Argument(help="The experiment; omit to list all. index: the overview pages."),
]
Scale = Annotated[ScaleChoice, typer.Option(help="small: a check that takes seconds; paper: the published results.")]
Seeds = Annotated[int | None, typer.Option(help="Runs per arm, with seeds 1, 2, … [default: from the file]")]
Jobs = Annotated[int, typer.Option(help="Runs at the same time, one thread each.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for page, figure and stored runs [docs/results; runs/small for small].")
]
PageOnly = Annotated[bool, typer.Option("--page-only", help="Run nothing: rewrite the page from the stored runs.")]
Specs = Annotated[Path, typer.Option(help="Folder with the TOML files.")]


def reproduce(
    name: Name = None,
    scale: Scale = ScaleChoice.paper,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    out: Out = None,
    specs: Specs = Path("experiments"),
    page_only: PageOnly = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the papers and write its page; runs that are stored already are not made again.

    Exit code 1 if any run failed.
    """
    _find_checkout()
    from experiments.runner import Asked, Study, read_spec, rewrite_page, run_study
    from experiments.runner import reproduce as run_experiment

    if name is None:
        _list(specs)
        return
    if name == INDEX:
        _write_index(specs, out or RESULTS)
        return
    require(seeds is None or seeds >= 1, f"seeds is {seeds}: it must be at least 1")
    require(jobs >= 1, f"jobs is {jobs}: it must be at least 1")
    spec = read_spec(name, specs)
    folder = out or (RESULTS if scale == ScaleChoice.paper else TRIALS)
    options = dict(spec.small if scale == ScaleChoice.small else spec.full) if isinstance(spec, Study) else {}
    asked = Asked(name, scale.value, folder, seeds, jobs, options)
    failures = dict[str, str]()
    if page_only:
        rewrite_page(spec, asked)
    elif isinstance(spec, Study):
        run_study(spec, asked)
    else:
        failures = run_experiment(spec, asked, _silent if quiet else _say)
    for label, sentence in failures.items():
        _say(f"failed: {label}: {sentence}")
    typer.echo(f"Page: {folder / f'{name}.md'}")
    if failures:
        raise typer.Exit(1)


def _find_checkout() -> None:
    """Let `experiments` be imported from the checkout that this is run in, or that Veil is installed from."""
    import veil

    places = (Path.cwd(), Path(veil.__file__).parents[2])
    checkout = next((place for place in places if (place / "experiments" / "runner").is_dir()), None)
    if checkout is None:
        raise InputError("veil reproduce needs the experiments/ folder of Veil's repository: run it in a checkout")
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))


def _write_index(specs: Path, folder: Path) -> None:
    from experiments.runner import figure_index, index
    from veil.foundation.files import FOR_ALL, write_whole

    require(folder.is_dir(), f'there is no folder "{folder}": run an experiment first')
    write_whole(folder / index.NAME, index.index_of(specs, folder).encode(), FOR_ALL)
    write_whole(folder / figure_index.NAME, figure_index.figures_of(folder).encode(), FOR_ALL)
    typer.echo(f"Pages: {folder / index.NAME}, {folder / figure_index.NAME}")


def _list(specs: Path) -> None:
    from experiments.runner import names, read_spec

    page = Table()
    for heading in ("name", "shows", "title"):
        page.add_column(heading, no_wrap=heading == "name")
    for name in names(specs):
        spec = read_spec(name, specs)
        page.add_row(name, spec.shows, spec.title)
    stdout.print(page)


def _say(line: str) -> None:
    stderr.print(line, highlight=False, markup=False)


def _silent(line: str) -> None:
    """Say nothing."""
