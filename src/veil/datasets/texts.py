"""Texts with groups: CivilComments (overlapping groups), MultiNLI and the Blog Authorship Corpus, as hashed tokens.

Official layouts:
`civilcomments/all_data_with_identities.csv` (WILDS), `multinli/multinli_1.0_train.jsonl` and
`multinli/multinli_1.0_dev_matched.jsonl`, `blogs/<id>.<gender>.<age>.<topic>.<sign>.xml`.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veil.datasets.files import DataFile, data_folder, locate
from veil.datasets.split import Split, set_apart
from veil.errors import InputError, require
from veil.problem import Memberships, Problem
from veil.tables.text import bag_of_tokens, token_codes, tokens

FILES = (DataFile("civilcomments/all_data_with_identities.csv"),)
MULTINLI = (
    DataFile("multinli/multinli_1.0_train.jsonl"),
    DataFile("multinli/multinli_1.0_dev_matched.jsonl"),
)
BLOGS = (DataFile("blogs"),)
IDENTITIES = (
    "male",
    "female",
    "LGBTQ",
    "christian",
    "muslim",
    "other_religions",
    "black",
    "white",
)
NEGATIONS = frozenset({"nobody", "no", "never", "nothing"})
LABELS = ("contradiction", "entailment", "neutral")
_POST = re.compile(r"<post>(.*?)</post>", re.DOTALL)


def _rows(texts: Sequence[str], length: int | None, buckets: int) -> NDArray[np.int64] | NDArray[np.float32]:
    """Token codes for models that read sequences, or bags of tokens where no length is given."""
    return bag_of_tokens(texts, "tokens", buckets) if length is None else token_codes(texts, length, buckets)


def load_civilcomments(*, length: int | None = None, buckets: int = 4096) -> Split:
    """Is a comment toxic? A row is in every group whose identity it mentions, crossed with its label (WILDS)."""
    table = pd.read_csv(locate(FILES[0], "civilcomments"), index_col=0)
    names = [name for name in IDENTITIES if name in table.columns]
    require(len(names) > 0, "all_data_with_identities.csv has no column of an identity")

    def part(split: str) -> Problem:
        rows = table[table["split"] == split]
        toxic = (rows["toxicity"] >= 0.5).to_numpy()
        memberships = {}
        for name in names:
            mentioned = (rows[name] >= 0.5).to_numpy()
            for label, of_label in (("toxic", toxic), ("not toxic", ~toxic)):
                if (mentioned & of_label).any():
                    memberships[f"{name} × {label}"] = mentioned & of_label
        texts = rows["comment_text"].fillna("").astype(str).tolist()
        return Problem.from_arrays(
            _rows(texts, length, buckets),
            np.where(toxic, "toxic", "not toxic"),
            Memberships.of(memberships),
            classes=("not toxic", "toxic"),
        )

    return Split(part("train"), part("test"), part("val") if (table["split"] == "val").any() else None)


def load_multinli(*, length: int | None = None, buckets: int = 4096) -> Split:
    """Does the second sentence follow? Groups: label × whether the second sentence has a negation (Sagawa et al.)."""
    return Split(*(_multinli(locate(file, "multinli"), length, buckets) for file in MULTINLI))


def _multinli(path: Path, length: int | None, buckets: int) -> Problem:
    texts, labels, negated = [], [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            record = json.loads(line)
            label, first, second = record["gold_label"], record["sentence1"], record["sentence2"]
        except (ValueError, KeyError) as error:
            raise InputError(f"{path.name}, row {number} is not a MultiNLI record") from error
        if label in LABELS:  # "-" means that the annotators disagreed
            texts.append(f"{first} || {second}")
            labels.append(label)
            negated.append("negation" if NEGATIONS & set(tokens(second)) else "no negation")
    groups = {"label": np.array(labels), "negation": np.array(negated)}
    return Problem.from_arrays(_rows(texts, length, buckets), labels, groups, classes=LABELS)


def load_blogs(
    *,
    topics: tuple[str, str] = ("Technology", "Arts"),
    length: int | None = None,
    buckets: int = 4096,
    test_share: float = 0.2,
    seed: int = 0,
) -> Split:
    """Which of two topics is a post about? Groups: gender × age up to 35 or above (FDPG)."""
    folder = data_folder() / BLOGS[0].path
    require(folder.is_dir(), f'data set "blogs" needs the folder {folder}')
    texts, labels, gender, age = [], [], [], []
    for path in sorted(folder.glob("*.xml")):
        parts = path.name.split(".")
        if len(parts) < 6 or parts[3] not in topics or not parts[2].isdigit():
            continue
        content = path.read_text(encoding="utf-8", errors="replace")
        for post in _POST.findall(content):
            texts.append(html.unescape(post).strip())
            labels.append(parts[3])
            gender.append(parts[1])
            age.append("up to 35" if int(parts[2]) <= 35 else "above 35")
    require(len(texts) > 0, f"{folder} holds no post about {' or '.join(topics)}")
    rows, truth = _rows(texts, length, buckets), np.array(labels)
    of = {"gender": np.array(gender), "age": np.array(age)}

    def part(which: NDArray[np.int64]) -> Problem:
        groups = {name: values[which] for name, values in of.items()}
        return Problem.from_arrays(rows[which], truth[which], groups, classes=topics)

    train, test = set_apart(len(texts), test_share, seed, "blogs")
    return Split(part(train), part(test))
