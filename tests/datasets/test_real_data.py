"""Loaders of data sets whose files are there: counts as the papers give them, checksums, public splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from veil import datasets
from veil.datasets import files, mnist, surnames
from veil.datasets.files import data_folder
from veil.errors import InputError
from veil.tables.text import VOCABULARY


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where VEIL_DATA has not the raw files: they are not passed on with the repository."""
    try:
        here = datasets.dataset(name).present()
    except InputError:
        here = False
    return pytest.mark.skipif(not here, reason=f"VEIL_DATA holds no {name}")


def test_adult_has_the_sizes_of_the_official_split_and_of_the_fdpg_paper() -> None:
    official = datasets.load("adult")
    assert (len(official.train), len(official.test)) == (32_561, 16_281)
    assert official.train.public.group_sizes == (10_771, 21_790)
    balanced = datasets.load("adult", variant="fdpg")
    assert len(balanced.train) == 23_512
    assert sum(balanced.train.public.group_sizes) + len(balanced.test) == 2 * 14_695


def test_adult_is_encoded_by_its_description_and_every_value_is_known() -> None:
    rows = datasets.load("adult").train.inputs.numpy()
    assert rows.min() >= -1
    assert rows.max() <= 1
    train, _ = datasets.load_adult()
    whole = train.notna().all(axis=1).to_numpy()
    # 8 categories and 5 numbers: a row without gaps has one 1 per category, so no category value was unknown.
    assert np.array_equal(rows[whole][:, 10:].sum(axis=1), np.full(whole.sum(), 8.0))


@needs("dutch")
def test_dutch_has_the_counts_of_the_papers() -> None:
    split = datasets.load("dutch")
    assert len(split.train) == 48_336
    groups = np.array(split.train.public.group_sizes) + np.array(split.test.public.group_sizes)
    assert dict(zip(split.train.public.groups, groups.tolist(), strict=True)) == {"female": 30_273, "male": 30_147}


@needs("mnist")
def test_mnist_has_its_published_counts_and_the_owners_of_the_ino_paper() -> None:
    split = datasets.load("mnist", owners="halves", normalisation="none")
    assert split.train.inputs.shape == (60_000, 1, 28, 28)
    assert split.train.public.group_sizes[:3] == (5_923, 6_742, 5_958)
    assert split.train.public.owner_sizes == (30_596, 29_404)
    assert split.train.public.budgets == (0.1, 1.0)
    assert (float(split.train.inputs.min()), float(split.train.inputs.max())) == (0.0, 1.0)
    assert len(split.test) == 10_000


@needs("mnist")
def test_unbalanced_mnist_has_the_rows_of_both_papers() -> None:
    asc = datasets.load("unbalanced-mnist")
    assert (len(asc.train), asc.train.public.group_sizes[8]) == (49_208, 474)
    assert asc.validation is not None
    assert len(asc.validation) == 6_000
    fdpg = datasets.load("unbalanced-mnist", variant="fdpg")
    assert (len(fdpg.train), fdpg.train.public.group_sizes[8]) == (54_649, 500)


def test_which_rows_stay_depends_on_the_seed_alone() -> None:
    one, again, other = (datasets.load("adult", variant="fdpg", seed=seed).train.inputs for seed in (0, 0, 1))
    assert bool((one == again).all())
    assert not bool((one == other).all())


@needs("ctg")
def test_ctg_has_one_owner_per_diagnosis() -> None:
    split = datasets.load("ctg")
    assert len(split.train) + len(split.test) == 2_126
    assert dict(zip(split.train.public.owners, split.train.public.budgets or (), strict=True)) == {
        "normal": 5.0,
        "pathological": 3.0,
        "suspicious": 4.0,
    }
    assert float(split.train.inputs.abs().max()) <= 1.0


@needs("surnames")
def test_surnames_have_the_counts_of_the_ino_paper() -> None:
    split = datasets.load("surnames", groups="owner")
    both = np.array(split.train.public.group_sizes) + np.array(split.test.public.group_sizes)
    assert dict(zip(split.train.public.groups, both.tolist(), strict=True)) == {"Russian": 9_408, "other": 10_666}
    assert len(split.train.public.classes) == 18
    assert split.train.inputs.shape[1] == surnames.LENGTH
    assert int(split.train.inputs.max()) < VOCABULARY


@needs("mnist")
def test_a_file_whose_checksum_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist").mkdir()
    for file in mnist.FILES:
        content = bytearray(files.read_verified(file, "mnist"))
        content[20] ^= 1
        (tmp_path / file.path).with_suffix("").write_bytes(bytes(content))
    monkeypatch.setenv("VEIL_DATA", str(tmp_path))
    with pytest.raises(InputError, match="is the wrong file"):
        datasets.load("mnist")


def test_a_missing_file_or_folder_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEIL_DATA", str(tmp_path))
    with pytest.raises(InputError, match="veil data fetch ctg"):
        datasets.load("ctg")
    monkeypatch.delenv("VEIL_DATA")
    with pytest.raises(InputError, match="VEIL_DATA is not set"):
        data_folder()


def test_unknown_options_and_names_get_a_sentence() -> None:
    with pytest.raises(InputError, match='did you mean "adult"'):
        datasets.load("adutl")
    with pytest.raises(InputError, match="unexpected keyword argument 'colour'"):
        datasets.load("adult", colour="red")
    with pytest.raises(InputError, match="it must be official or fdpg"):
        datasets.load("adult", variant="other")
