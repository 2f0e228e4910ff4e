"""The experiments of the repository, and which of them can run with the data that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runner import Spec, names, read_spec
from experiments.runner.problems import PROBLEMS
from veil import datasets
from veil.datasets.cifar10 import JPEG
from veil.datasets.files import data_folder
from veil.errors import InputError

ROOT = Path(__file__).parents[2]
SPECS, RESULTS = ROOT / "experiments", ROOT / "docs" / "results"
NAMES = names(SPECS)
OF_STUDIES = {
    "ino": ("mnist", "ctg", "surnames"),
    "ino-regimes": ("mnist",),
    "audit": ("mnist",),
    "fdpg-mnist": ("mnist",),
    "asc-variance": ("mnist",),
    "dp-is-adversarial": ("cifar10",),
}


def needs_data(name: str) -> None:
    """Skip where VEIL_DATA has not the raw files: they are not passed on with the repository."""
    spec = read_spec(name, SPECS)
    needed = (PROBLEMS[spec.data].dataset,) if isinstance(spec, Spec) else OF_STUDIES.get(name, ())
    for dataset in needed:
        if dataset is not None and not _present(dataset):
            pytest.skip(f"VEIL_DATA holds no {dataset}")


def _present(dataset: str) -> bool:
    try:
        return datasets.dataset(dataset).present() or (dataset == "cifar10" and (data_folder() / JPEG.path).exists())
    except InputError:
        return False
