"""Tables in partitions: the cost of a step of `auto` in one process and with Ray actors; computed for many machines."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from veil.foundation.randomness import Seed
from veil.foundation.ray_cluster import RayCluster
from veil.methods.convex.feature_rows import Featured
from veil.methods.convex.steered_rows import Classes, InCoordinates, Pull, Whitened
from veil.models import build_model
from veil.problem.sums import Part, RowSums, sums_of
from veil.tables.encoding import Category, Encoding, Numeric
from veil.tables.partitions import partitioned_problem

FILES, NUMBERS, KNOTS, OUTPUTS = 8, 10, 12, 2
KINDS = ("a", "b", "c", "d", "e")
ENCODING = Encoding(
    (*(Numeric(f"x{i}", -3, 3, "middle") for i in range(NUMBERS)), Category("kind", KINDS)), from_rows=False
)
# What the computed lines assume: machines of so many cores, each as fast as one actor was here; a network of so many
# bytes a second at the driver, which answers reach one after the other.
MACHINES, CORES, ROWS, NETWORK = 64, 16, 10_000_000_000, 1.25e9
STEPS = 40


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """Seconds per step and rows per second by number of actors; then what follows for many machines."""
    rows = 40_000 if quick else 400_000
    with tempfile.TemporaryDirectory() as place, _cached(Path(place) / "cache"):
        folder = _written(Path(place) / "table", rows)
        found = [_measured(folder, rows, None, repeats)]
        cluster = RayCluster(4)
        try:
            found += [_measured(folder, rows, actors, repeats) for actors in (1, 2, 4)]
        finally:
            cluster.close()
    return [*(measured.shown() for measured in found), *_computed(found)]


@dataclass(frozen=True)
class Measured:
    """Seconds of each kind of pass, by who holds the rows."""

    actors: int | None
    rows: int
    opened: float
    made: float
    step: float
    nothing: float
    width: int

    def shown(self) -> dict[str, Any]:
        """As the table shows it."""
        who = "one process, file by file" if self.actors is None else f"{self.actors} actors"
        return {
            "workload": f"{who}, {self.rows:,} rows of {self.width} numbers in {FILES} files",
            "s_convert": self.opened,
            "ms_step_rows_made_anew": 1e3 * self.made,
            "ms_step_rows_kept": 1e3 * self.step,
            "million_rows_per_s": self.rows / self.step / 1e6,
            "ms_question": 1e3 * self.nothing,
        }


def _measured(folder: Path, rows: int, actors: int | None, repeats: int) -> Measured:
    start = time.perf_counter()
    problem = partitioned_problem(folder, ENCODING, "y", ["kind"], actors).train
    opened = time.perf_counter() - start
    sums, rounds = sums_of(problem), min(repeats, 5)
    try:
        model: Any = build_model(
            "additive",
            problem.public,
            Seed.from_int(0),
            blocks=ENCODING.widths(),
            numbers=ENCODING.numbers(),
            knots=KNOTS,
        )
        features, width = model[:-1], model[-1].in_features
        white = Whitened(torch.zeros(width).double(), torch.eye(width).double(), torch.ones(width).double())
        view = InCoordinates(white, torch.zeros(len(problem.public.cells)).long(), Classes, OUTPUTS)
        pull = Pull(torch.zeros(OUTPUTS, width + 1).double(), torch.zeros(1).double(), torch.ones(1).double(), 0.3)
        nothing = _fastest(lambda: sums.total(_nothing), rounds)
        # A chain of its own is a first pass: features and whitening are made, then the step.
        made = _fastest(lambda: sums.through(Featured(features)).through(view).total(pull), 2)
        kept: RowSums = sums.through(Featured(features)).through(view)
        kept.total(pull)
        step = _fastest(lambda: kept.total(pull), rounds)
    finally:
        assert problem.elsewhere is not None
        problem.elsewhere.close()
    return Measured(actors, rows, opened, made, step, nothing, width)


def _computed(found: list[Measured]) -> list[dict[str, Any]]:
    """What a step costs on many machines: rows by the pace of one actor, questions by what each actor adds."""
    one, most = found[1], found[-1]
    actors = MACHINES * CORES
    each = max(0.0, most.nothing - one.nothing) / max((most.actors or 1) - 1, 1)
    asking = one.nothing + each * (actors - 1)
    answers = actors * 8 * OUTPUTS * (one.width + 1) / NETWORK
    moments = actors * 8 * one.width**2 / NETWORK
    share = ROWS / actors
    # Whitened rows, their classes, lengths, shares and units in double precision.
    kept = ROWS / MACHINES * 8 * (one.width + 1 + OUTPUTS + 4) / 1e9
    lines = []
    for name, pace in (("kept in memory", one.step), ("made anew in every step", one.made)):
        rows = (pace - one.nothing) / one.rows * share
        lines.append(
            {
                "workload": f"computed: {MACHINES} machines of {CORES} cores, {ROWS:,} rows {name}",
                "s_step": rows + asking + answers,
                "s_of_it_rows": rows,
                "s_of_it_asking_and_answers": asking + answers,
                "s_moments_once": moments + asking,
                "million_rows_per_s": ROWS / (rows + asking + answers) / 1e6,
                f"hours_of_{STEPS}_steps": STEPS * (rows + asking + answers) / 3600,
                "gb_per_machine": kept if name.startswith("kept") else None,
            }
        )
    return lines


def _nothing(part: Part) -> torch.Tensor:
    return torch.zeros(1)


def _fastest(work: Any, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _written(folder: Path, rows: int) -> Path:
    folder.mkdir()
    for file in range(FILES):
        generator = np.random.default_rng(file)
        table = pd.DataFrame(
            generator.standard_normal((rows // FILES, NUMBERS)), columns=[f"x{i}" for i in range(NUMBERS)]
        )
        table["kind"] = np.array(KINDS)[generator.integers(0, len(KINDS), len(table))]
        table["y"] = np.where(table["x0"] + generator.standard_normal(len(table)) > 0, "yes", "no")
        table.to_parquet(folder / f"part-{file}.parquet", index=False)
    return folder


@contextmanager
def _cached(place: Path) -> Iterator[None]:
    before = os.environ.get("VEIL_CACHE")
    os.environ["VEIL_CACHE"] = str(place)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("VEIL_CACHE")
        else:
            os.environ["VEIL_CACHE"] = before
