"""Data: training over large tables. Rows per second from a memory map, memory at 20 million rows, and opacus beside it.

The large run is done in a process of its own, whose largest resident memory is what the operating system says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

FEATURES = 10
FILE_ROWS = 1_000_000
BATCH = 4096
ROWS_EACH = 20


def run(repeats: int, quick: bool) -> list[dict[str, Any]]:
    """One epoch from a memory map, and one epoch beside opacus' loader; `repeats` rounds of the second."""
    rows, peer_rows = (2_000_000, 100_000) if quick else (20_000_000, 1_000_000)
    results = large(rows)
    ours, theirs = [], []
    _epoch_ours(10_000), _epoch_opacus(10_000)  # imports and caches, for both
    for _ in range(min(repeats, 3)):
        ours.append(_epoch_ours(peer_rows))
        theirs.append(_epoch_opacus(peer_rows))
    fast, slow = float(np.median(ours)), float(np.median(theirs))
    results.append(
        {"name": f"veil, {peer_rows:,} rows, one epoch", "seconds": fast, "rows_per_second": peer_rows / fast}
    )
    results.append(
        {"name": f"opacus DPDataLoader, {peer_rows:,} rows", "seconds": slow, "rows_per_second": peer_rows / slow}
    )
    results.append({"name": "opacus / veil", "ratio": slow / fast})
    return results


def generate(folder: Path, rows: int) -> None:
    """Ten numeric columns, two groups, one class to learn, in files of a million rows."""
    for part, start in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - start)
        generator = np.random.default_rng(part)
        values = generator.standard_normal((count, FEATURES)).astype(np.float32)
        table = pd.DataFrame(values, columns=[f"x{i}" for i in range(FEATURES)])
        table["group"] = (generator.random(count) < 0.1).astype(np.int8)
        table["label"] = (values[:, 0] + values[:, 1] > 0).astype(np.int8)
        table["person"] = generator.integers(0, max(rows // ROWS_EACH, 1), count)
        table.to_parquet(folder / f"part-{part:03d}.parquet", index=False)


def large(rows: int) -> list[dict[str, Any]]:
    """Conversion and one epoch, of rows and of people, each in a process of its own with its largest memory."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "table"
        folder.mkdir()
        generate(folder, rows)
        for unit in ("rows", "people"):
            words = [sys.executable, "-m", "benchmarks.data", str(folder), str(Path(place) / f"cache-{unit}"), unit]
            answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            of = f"{rows:,} Parquet rows" + ("" if unit == "rows" else f" of {rows // ROWS_EACH:,} people")
            found.append({"name": f"veil, {of} from a memory map, one epoch", **json.loads(answer.splitlines()[-1])})
    return found


def _train_mapped(folder: Path, cache: Path, unit: str) -> dict[str, Any]:
    import resource

    import veil
    from veil.tables.encoding import Encoding, Numeric
    from veil.tables.mapped import MappedPeople, parquet_problem

    torch.set_num_threads(1)
    encoding = Encoding(tuple(Numeric(f"x{i}", -4.0, 4.0, "middle") for i in range(FEATURES)), from_rows=False)
    start = time.perf_counter()
    people = MappedPeople("person", 10) if unit == "people" else None
    problem = parquet_problem(folder, encoding, "label", ["group"], cache, people=people).train
    converted = time.perf_counter() - start
    model = nn.Linear(FEATURES, 2)
    start = time.perf_counter()
    veil.fit(model, problem, method="dp-sgd", epsilon=1.0, epochs=1.0, batch_size=BATCH, seed=1)
    seconds = time.perf_counter() - start
    return {
        "convert_seconds": converted,
        "seconds": seconds,
        "rows_per_second": len(problem) / seconds,
        "processor_seconds": time.process_time(),
        "largest_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def _rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def _epoch_ours(rows: int) -> float:
    """One epoch of DP-SGD, from rows to a finished run: planning, ledger and certificate included."""
    import veil

    torch.set_num_threads(1)
    inputs, targets = _rows(rows)
    problem = veil.Problem.from_arrays(inputs, targets, classes=[0, 1])
    model = nn.Linear(FEATURES, 2)
    start = time.perf_counter()
    veil.fit(model, problem, method="dp-sgd", epsilon=1.0, epochs=1.0, batch_size=BATCH, seed=1)
    return time.perf_counter() - start


def _epoch_opacus(rows: int) -> float:
    """The same model, batch size and epoch with opacus: its own loader, engine and accountant."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = nn.Linear(FEATURES, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loader = DataLoader(TensorDataset(*_rows(rows)), batch_size=BATCH)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=1.0,
            target_delta=1.0 / (2 * rows),
            epochs=1,
            max_grad_norm=1.0,
        )
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(_train_mapped(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
