"""Fits in the peers' own environment: `python -m benchmarks.tables.peers FOLDER`. Nothing of Veil is imported.

The folder has `train.parquet`, `test.parquet` and `job.json` (public facts and the list of fits). Each fit leaves
`ID.npz` with probabilities (or numbers) and one line of JSON on standard output, as soon as it is done.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables import jax_peer, number_peers
from benchmarks.tables.rows import bounded, group_weights, one_hot

# The tutorial of opacus on image classifiers, the one that calls `make_private_with_epsilon`.
OPACUS = {"epochs": 20, "batch_size": 512, "max_grad_norm": 1.2, "learning_rate": 1e-3}
HIDDEN = 64


@dataclass(frozen=True)
class Job:
    """Rows and public facts, as they came through the files."""

    train: pd.DataFrame
    test: pd.DataFrame
    target: str
    classes: tuple[str, ...]
    numeric: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[str, ...]]
    delta: float
    target_bounds: tuple[float, float] | None = None

    @classmethod
    def read(cls, folder: Path) -> tuple[Job, list[dict[str, Any]]]:
        """The job of a folder, and its fits."""
        record = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        fits = record.pop("fits")
        frames = {part: pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "test")}
        return cls(**frames, **record), fits

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each training row, as a number."""
        return np.searchsorted(self.classes, self.train[self.target].to_numpy(dtype=str))

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The number of each training row, cut to its public bounds."""
        assert self.target_bounds is not None
        return np.clip(self.train[self.target].to_numpy(dtype=np.float64), *self.target_bounds)

    def rows(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Numbers by their bounds, words by their code book: all public."""
        return np.concatenate([bounded(frame, self.numeric), one_hot(frame, self.categories)], axis=1)


Fit = Callable[[Job, dict[str, Any]], NDArray[np.float64]]


class CannotError(Exception):
    """What a peer does not do; the message is one sentence."""


def lightgbm(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """LightGBM with its defaults and categories as categories; weighted by group where columns are given."""
    from lightgbm import LGBMClassifier

    def table(frame: pd.DataFrame) -> pd.DataFrame:
        words = {n: pd.Categorical(frame[n], categories=list(v)) for n, v in job.categories.items()}
        return frame[[*job.numeric]].assign(**words)

    weights = group_weights(job.train, fit["group_columns"]) if fit["group_columns"] else None
    model = LGBMClassifier(random_state=fit["seed"], deterministic=True, n_jobs=1, verbosity=-1)
    model.fit(table(job.train), job.labels, sample_weight=weights)
    return np.asarray(model.predict_proba(table(job.test)))


def dp_ebm(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """DP-EBM with its defaults; kinds and bounds of columns are given, so that none is read off the rows for free."""
    from interpret.privacy import DPExplainableBoostingClassifier

    if len(job.classes) > 2:
        raise CannotError("Takes two classes only.")
    names = [*job.numeric, *job.categories]
    model = DPExplainableBoostingClassifier(
        feature_names=names,
        feature_types=["continuous"] * len(job.numeric) + ["nominal"] * len(job.categories),
        privacy_bounds={name: tuple(bounds) for name, bounds in job.numeric.items()},
        epsilon=fit["epsilon"],
        delta=job.delta,
        random_state=fit["seed"],
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*fixed random_state.*")  # a benchmark is repeatable
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        model.fit(job.train[names], job.labels)
    return np.asarray(model.predict_proba(job.test[names]))


def diffprivlib(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """Logistic regression with its defaults; ε alone, without δ. `data_norm` is the largest that bounds allow."""
    from diffprivlib.models import LogisticRegression
    from diffprivlib.utils import PrivacyLeakWarning

    norm = math.sqrt(len(job.numeric) + len(job.categories))  # each number within ±1, each category one 1
    model = LogisticRegression(epsilon=fit["epsilon"], data_norm=norm, random_state=fit["seed"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("error", PrivacyLeakWarning)
        model.fit(job.rows(job.train), job.labels)
    return np.asarray(model.predict_proba(job.rows(job.test)))


def opacus(job: Job, fit: dict[str, Any]) -> NDArray[np.float64]:
    """DP-SGD by opacus with the settings of its tutorial: Poisson sampling, RMSprop, its default accountant."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(fit["seed"])
    rows = torch.from_numpy(job.rows(job.train)).float()
    wide, classes = rows.shape[1], len(job.classes)
    hidden = nn.Sequential(nn.Linear(wide, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    model: nn.Module = hidden if fit["arm"] == "opacus-mlp" else nn.Linear(wide, classes)
    optimizer: Any = torch.optim.RMSprop(model.parameters(), lr=OPACUS["learning_rate"])
    batch = min(int(OPACUS["batch_size"]), len(rows))
    loader = DataLoader(TensorDataset(rows, torch.from_numpy(job.labels)), batch_size=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            target_epsilon=fit["epsilon"],
            target_delta=job.delta,
            epochs=int(OPACUS["epochs"]),
            max_grad_norm=OPACUS["max_grad_norm"],
            noise_generator=torch.Generator().manual_seed(fit["seed"]),
        )
        model.train()
        for _ in range(int(OPACUS["epochs"])):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(torch.from_numpy(job.rows(job.test)).float())
    return np.asarray(torch.softmax(scores.double(), dim=1).numpy())


@dataclass(frozen=True)
class Peer:
    """How a peer is fitted, what it is imported as and what it is installed as."""

    fit: Fit
    module: str
    package: str


_LIGHTGBM = Peer(lightgbm, "lightgbm", "lightgbm")
_OPACUS = Peer(opacus, "opacus", "opacus")
PEERS = {
    "lightgbm": _LIGHTGBM,
    "lightgbm-weighted": _LIGHTGBM,
    "dp-ebm": Peer(dp_ebm, "interpret.privacy", "interpret-core"),
    "diffprivlib": Peer(diffprivlib, "diffprivlib.models", "diffprivlib"),
    "opacus-logistic": _OPACUS,
    "opacus-mlp": _OPACUS,
    "jax-privacy": Peer(partial(jax_peer.mlp, hidden=HIDDEN), "jax_privacy", "jax-privacy"),
}
_LIGHTGBM_NUMBERS = Peer(number_peers.lightgbm, "lightgbm", "lightgbm")
NUMBER_PEERS = {
    "lightgbm": _LIGHTGBM_NUMBERS,
    "lightgbm-weighted": _LIGHTGBM_NUMBERS,
    "dp-ebm": Peer(number_peers.dp_ebm, "interpret.privacy", "interpret-core"),
    "diffprivlib": Peer(number_peers.diffprivlib, "diffprivlib.models", "diffprivlib"),
}


def main() -> None:
    """Do every fit of a folder, in order."""
    folder = Path(sys.argv[1])
    job, fits = Job.read(folder)
    peers = PEERS if job.target_bounds is None else NUMBER_PEERS
    for fit in fits:
        peer = peers[fit["arm"]]
        import_module(peer.module)  # not part of the time
        answer: dict[str, Any] = {"id": fit["id"], "version": f"{peer.package} {version(peer.package)}"}
        start = time.perf_counter()
        try:
            found = peer.fit(job, fit)
            answer["seconds"] = time.perf_counter() - start
            np.savez(folder / f"{fit['id']}.npz", probabilities=found)
        except Exception as error:  # a peer's failure is a result: it is stored and shown
            answer["failed"] = str(error) if isinstance(error, CannotError) else f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
