"""`veil predict`: a trained model on new rows, from file to file."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from veil.cli.console import stderr
from veil.errors import require
from veil.foundation.words import listed


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[
        Path, typer.Argument(help="New rows: a CSV, Parquet or Arrow file; a folder of Parquet files or of images.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A CSV or Parquet file. [default: CSV on standard output]")
    ] = None,
    probabilities: Annotated[bool, typer.Option(help="Also the probability of every class.")] = False,
    threshold: Annotated[
        float | None, typer.Option(help="Two classes: predict the second one from this probability on.")
    ] = None,
    threshold_for: Annotated[
        str | None,
        typer.Option(
            metavar="AIM",
            help="Two classes: the threshold that serves an aim best on the run's public --test rows, or by the counts "
            "of --release-scores: accuracy, worst-group, rate=SHARE, recall=SHARE, or equal-recall (of each group).",
        ),
    ] = None,
    keep: Annotated[str, typer.Option(help="Columns of the new rows to copy, comma-separated.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT.")] = False,
) -> None:
    """Predict new rows with a run's model. Unseen categories and missing values are allowed; it costs no ε."""
    from veil.tables.image_predictor import ImagePredictor, image_pieces
    from veil.tables.predicting import CsvWriter, ParquetWriter, predict_pieces, thresholds_of
    from veil.tables.predictor import load_any_predictor
    from veil.tables.reading import PARQUET

    require(run.is_dir(), f"{run} is not the folder of a run: give the --out of veil train")
    if out is not None:
        require(out.parent.is_dir(), f"there is no folder {out.parent}: create it, or choose another path with --out")
        require(not out.is_dir(), f"{out} is a folder: choose the path of a file with --out")
        require(force or not out.exists(), f"{out} exists already: choose another file, or add --force")
    require(out is None or out.resolve() != data.resolve(), f"{out} is the file of the new rows: choose another one")
    require(threshold is None or threshold_for is None, "give --threshold or --threshold-for, not both")
    predictor, rows = load_any_predictor(run), 0
    images = isinstance(predictor, ImagePredictor)
    require(not images or not (keep or threshold_for), "--keep and --threshold-for are for tables: leave them out")
    chosen = None if threshold_for is None else thresholds_of(run, threshold_for)
    if chosen is not None:
        for name, value in (chosen.chosen.by_group or {"all rows": chosen.chosen.overall}).items():
            stderr.print(f"Threshold of {name}: {value:g}", soft_wrap=True, highlight=False, markup=False)
        said = f"{chosen.source}: {chosen.chosen.reached}."
        stderr.print(said, soft_wrap=True, highlight=False, markup=False)
    if isinstance(predictor, ImagePredictor):
        pieces = image_pieces(predictor, data, threshold=threshold, probabilities=probabilities)
    else:
        pieces = predict_pieces(
            predictor,
            data,
            threshold=threshold if chosen is None else chosen,
            probabilities=probabilities,
            keep=listed(keep) if keep else (),
        )
    # What is not whole gets no name: an error in the middle of a file leaves nothing that looks finished.
    partial = None if out is None else out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with ExitStack() as stack:
            writer: CsvWriter | ParquetWriter
            if partial is None or out is None:
                writer = stack.enter_context(CsvWriter(sys.stdout))
            elif out.suffix in PARQUET:
                writer = stack.enter_context(ParquetWriter(partial))
            else:
                writer = stack.enter_context(CsvWriter(stack.enter_context(partial.open("w", encoding="utf-8"))))
            for piece in pieces:
                writer.write(piece)
                rows += len(piece)
        if partial is not None and out is not None:
            partial.replace(out)
            stderr.print(f"{rows:,} rows predicted: {out}", soft_wrap=True, highlight=False, markup=False)
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
