"""Surnames: 20,074 names from 18 languages as rows of characters (Robertson 2017, the counts of the INO-SGD paper)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from veil.datasets.files import DataFile, read_verified
from veil.datasets.split import Split, set_apart
from veil.errors import require
from veil.problem import Problem
from veil.tables.text import character_codes

_SUMS = {
    "Arabic": "6f424a8dbe51cbbbabab7a57d38b617210125e4e3991f3c657cb79b8f104bafc",
    "Chinese": "49263ef55a8cb1740e841d65cad8214b2f9b5b869bc534c811746422496fa91e",
    "Czech": "145bbbd6d0816578f03388e92c264d39ef1c60df920b081d371fa5c5cc055a8e",
    "Dutch": "924f32b635170eae561f84538632138fc07d4c8bbd70ba3fb980de1ecc4d2af3",
    "English": "9cca037066d3d5989e24bc01801416162de506b5e28e15b7c092a47905d29bf2",
    "French": "81e65b36c60ed5b89a17422f6edcadbb89546f38ad69e960e64e7ba682012a95",
    "German": "7449cd590b97a733e18d613a4155decd77ec35dc5f8aadd7a82204dce4f051db",
    "Greek": "3555b5186de7f401e6d991b088e9e644ca3099116477818c25ab5793801389e6",
    "Irish": "cf8c7013256252a88d2503127b87282a11f21b2ff6db1bded68834c19a1ec058",
    "Italian": "f88414c27d0606a11a678b4859277828c2565d6cc4d9ee932deef6e94f3b35e4",
    "Japanese": "e0e717e114fec3e7eade4d9dabe0067c475f43147e36a22b47902ee76ad9e67f",
    "Korean": "cd54221ccb362a6cba4c78828838cf3268a0e59744767a37cf6ec4b74036b136",
    "Polish": "45bab898af2f60ed3a728bbf6980e28821011a7caa53227553b5785903a40826",
    "Portuguese": "50a8735f41f4f73757c8ce5b16cb0275cd86b2b214bcbc8c9805f508cb131c53",
    "Russian": "43b3e64ce351f77f1ac9e0cdf7566012d127f4371875fd25208845b5c9d6f7c3",
    "Scottish": "78d0252711d87d948ea86fe34826c51d2d794a8e52d15b5d6f7b6244d45d62dd",
    "Spanish": "1bcb462ed3316756a85781d68232bddae04498fdddd5d9219c53fd1fbdeba7a7",
    "Vietnamese": "f3f9e4164ab47601178a6e45b216464a64122f49d05541f24bf18a757253281d",
}
_BASE = "https://raw.githubusercontent.com/spro/practical-pytorch/5e79b652c199421f54e11534b6bdf6257637a49b/data/names/"
FILES = tuple(DataFile(f"names/{name}.txt", total, f"{_BASE}{name}.txt") for name, total in _SUMS.items())
LANGUAGES = tuple(_SUMS)
LENGTH = 20
BUDGETS = {"Russian": 3.0, "other": 2.0}


def load_surnames(
    *,
    groups: Literal["language", "owner"] = "language",
    owners: Literal["majority", "everybody"] = "majority",
    test_share: float = 0.2,
    seed: int = 0,
) -> Split:
    """Rows of 20 character codes. `owners="majority"`: Russian names allow ε = 3 and all others ε = 2 (INO-SGD).

    A row's group is its language, or with `groups="owner"` whether it is Russian.

    Args:
        groups: A row's group: its `language`, or its `owner`.
        owners: Who owns a row: `majority` (Russian and others), or `everybody`.
        test_share: The share of the rows that is set apart for testing.
        seed: Public: the same seed gives the same split.

    Returns:
        Training and test rows as problems.

    Raises:
        InputError: An option is unknown, or the raw files are not in VEIL_DATA or do not match their checksums.
    """
    require(groups in ("language", "owner"), f'groups is "{groups}": it must be language or owner')
    require(owners in ("majority", "everybody"), f'owners is "{owners}": it must be majority or everybody')
    names: list[str] = []
    labels: list[str] = []
    for language, file in zip(LANGUAGES, FILES, strict=True):
        lines = [line for line in read_verified(file, "surnames").decode("utf-8").splitlines() if line.strip()]
        names += lines
        labels += [language] * len(lines)
    codes, truth = character_codes(names, LENGTH), np.array(labels)
    who = np.where(truth == "Russian", "Russian", "other")
    of = truth if groups == "language" else who
    train, test = set_apart(len(truth), test_share, seed, "surnames")
    return Split(
        Problem.from_arrays(
            codes[train],
            truth[train],
            of[train],
            owners=who[train] if owners == "majority" else None,
            budgets=BUDGETS if owners == "majority" else None,
            classes=LANGUAGES,
        ),
        Problem.from_arrays(codes[test], truth[test], of[test], classes=LANGUAGES),
    )
