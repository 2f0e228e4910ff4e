"""`veil demo`: train, compare and report on the bundled data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from veil.cli.compare import ADULT
from veil.cli.console import print_json, results_table, stdout
from veil.cli.options import Json, Quiet
from veil.errors import require
from veil.request import Request, Settings

MARK = ".veil-demo"
DEMONSTRATED = ("erm", "dp-sgd", "asc", "auto")


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("veil-demo"),
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε of the private runs.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The demo uses a fixed seed, so it is reproducible.")] = 1,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on UCI Adult (bundled), groups sex × income: ordinary training, DP-SGD, ASC and auto at the same ε."""
    import torch

    from veil.cli.progress import ProgressBar
    from veil.datasets import load_adult
    from veil.foundation.randomness import Seed
    from veil.methods import plan
    from veil.report import write_report
    from veil.tables.effects import Learned
    from veil.tables.opening import open_to_compare
    from veil.training.fitting import Job, execute

    settings = Settings.checked(epsilon=epsilon, seed=seed)
    torch.set_num_threads(1)  # the demo's model is small: a second thread costs more than it gives
    _clear(out)
    request = Request.checked(data=Path("UCI Adult"), settings=settings, **ADULT)
    opened = open_to_compare(request, load_adult(), rare=5)  # these rows are public
    problem, runs = opened.problem, []
    for method in DEMONSTRATED:
        factory = opened.factory.suiting(method)
        job = Job(
            factory(problem, Seed.from_int(seed)),
            problem,
            opened.test,
            callbacks=[ProgressBar(quiet=json or quiet)],
            not_covered=opened.not_covered,
            measures=[] if opened.encoding is None else [Learned(opened.encoding)],
            config={
                "command": "veil demo",
                "data": "UCI Adult",
                "target": request.target,
                "group": list(request.group),
                "model": factory.request.model,
            },
        )
        runs.append(execute(job, plan(problem, method, **settings.model_dump()), out / method))
    page = write_report([run.as_json() for run in runs], out / "report.html")
    summaries = [run.summary() for run in runs]
    if json:
        print_json({**summaries[-1], "rows": summaries, "report": str(page)})
        return
    sizes = dict(zip(problem.public.groups, problem.public.group_sizes, strict=True))
    stdout.print()
    stdout.print(results_table(summaries, sizes))
    stdout.print(f"\n{runs[-1].certificate.statement}", soft_wrap=True, highlight=False)
    stdout.print(f"\nReport: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)


def _clear(out: Path) -> None:
    """Remove an earlier demo; never a folder that holds anything else."""
    if out.exists() and any(out.iterdir()):
        require((out / MARK).exists(), f"{out} exists and does not contain a demo: choose another folder with --out")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
