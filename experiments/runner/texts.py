"""Texts as hashed features: by a fixed public rule that looks at one text alone, so they cost no ε."""

from __future__ import annotations

import numpy as np

from veil.datasets.files import read_verified
from veil.datasets.split import Split, set_apart
from veil.datasets.surnames import FILES, LANGUAGES
from veil.problem import Problem
from veil.tables.text import bag_of_tokens

# A language with fewer names than this is left out: at ε = 1 nobody can hear it.
LEAST = 500


def hashed_surnames(seed: int, buckets: int, validation: bool = False) -> Split:
    """Surnames of the languages with 500 names or more, as bags of hashed triples of letters; groups are languages.

    A fifth is set apart for testing by the seed. With `validation` the rows to measure on are a fifth of the others.
    """
    read = [read_verified(file, "surnames").decode("utf-8").splitlines() for file in FILES]
    named = {
        language: [line for line in lines if line.strip()] for language, lines in zip(LANGUAGES, read, strict=True)
    }
    kept = {language: names for language, names in named.items() if len(names) >= LEAST}
    bags = bag_of_tokens([name for names in kept.values() for name in names], "characters", buckets)
    truth = np.repeat(list(kept), [len(names) for names in kept.values()])
    train, test = set_apart(len(truth), 0.2, seed, "surnames/hashed")
    if validation:
        stays, away = set_apart(len(train), 0.2, seed, "reproduction/validation")
        train, test = train[stays], train[away]
    made = [Problem.from_arrays(bags[rows], truth[rows], truth[rows], classes=tuple(kept)) for rows in (train, test)]
    return Split(made[0], made[1])
