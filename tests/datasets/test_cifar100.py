"""The CIFAR-100 loader, on a tiny generated archive in the official layout."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veil import datasets
from veil.datasets import cifar100
from veil.datasets.files import DataFile
from veil.errors import InputError

CHOSEN = sorted(name for names in cifar100.CATEGORIES.values() for name in names)
# A hundred names in the order of the alphabet, as in the official file; those that no test looks at are made up.
NAMES = sorted([*CHOSEN, *(f"thing_{number:02d}" for number in range(90))])


def write(archive: Path, pickles: dict[str, Any]) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        for name, record in pickles.items():
            content = pickle.dumps(record, protocol=2)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return archive


def batch(rows: int) -> dict[bytes, Any]:
    """The image of row i is filled with i, and its fine label is i modulo 100, counted downwards."""
    return {
        b"data": np.repeat(np.arange(rows, dtype=np.uint8)[:, None], 3072, axis=1),
        b"fine_labels": [99 - i % 100 for i in range(rows)],
        b"coarse_labels": [i % 20 for i in range(rows)],
    }


def official() -> dict[str, Any]:
    return {
        "file.txt~": {},
        "meta": {
            b"fine_label_names": [name.encode() for name in NAMES],
            b"coarse_label_names": [f"category_{number}".encode() for number in range(20)],
        },
        "test": batch(100),
        "train": batch(200),
    }


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("VEIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "data" / "cifar-100-python.tar.gz", official())


@pytest.fixture
def trusted(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the tiny file's own checksum be the official one."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar100, "OFFICIAL", DataFile(cifar100.OFFICIAL.path, found))
    return archive


@pytest.mark.usefixtures("archive")
def test_an_archive_with_another_checksum_is_refused_and_leaves_no_cache(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the wrong file"):
        datasets.load("cifar100")
    assert not list((tmp_path / "cache").iterdir())


def test_a_missing_archive_says_what_to_do(archive: Path) -> None:
    archive.unlink()
    with pytest.raises(InputError, match="veil data fetch cifar100"):
        datasets.load("cifar100")


@pytest.mark.usefixtures("trusted")
def test_a_group_is_a_fine_class_and_everybody_is_the_owner() -> None:
    split = datasets.load("cifar100", normalisation="none")
    assert (len(split.train), len(split.test)) == (200, 100)
    assert split.train.inputs.shape == (200, 3, 32, 32)
    assert split.train.targets.tolist() == [99 - i % 100 for i in range(200)]
    assert float(split.train.inputs[7].max()) == pytest.approx(7 / 255)
    for part in (split.train, split.test):
        assert part.public.classes == part.public.groups == tuple(NAMES)
        assert part.public.owners == ("everybody",)
        assert part.public.budgets is None


@pytest.mark.usefixtures("trusted")
def test_pixels_are_normalised_by_the_published_constants() -> None:
    pixel = datasets.load("cifar100").train.inputs[51, :, 0, 0]
    assert pixel.tolist() == pytest.approx(
        [(0.2 - 0.5071) / 0.2673, (0.2 - 0.4865) / 0.2564, (0.2 - 0.4409) / 0.2762], rel=1e-5
    )


def test_the_cache_gives_the_rows_of_the_archive(trusted: Path) -> None:
    first = datasets.load("cifar100", normalisation="none")
    trusted.unlink()
    again = datasets.load("cifar100", normalisation="none")
    assert bool((again.train.inputs == first.train.inputs).all())
    assert again.test.targets.tolist() == first.test.targets.tolist()
    assert again.train.public == first.train.public


@pytest.mark.usefixtures("trusted")
def test_every_class_has_an_owner_whose_budget_rises_evenly_from_1_to_10() -> None:
    split = datasets.load("cifar100", owners="class")
    public = split.train.public
    assert public.owners == public.groups == tuple(NAMES)
    assert all(cell.owner == cell.group for cell in public.cells)
    assert public.budgets == pytest.approx([1.0 + 9.0 * number / 99 for number in range(100)])
    assert split.test.public.budgets is None


@pytest.mark.usefixtures("trusted")
def test_fish_and_vehicles_are_ten_classes_of_two_owners() -> None:
    split = datasets.load("cifar100", variant="fish-vehicles", owners="category", normalisation="none")
    assert (len(split.train), len(split.test)) == (20, 10)
    public = split.train.public
    assert public.classes == public.groups == split.test.public.groups == tuple(CHOSEN)
    assert dict(zip(public.owners, public.budgets or (), strict=True)) == {"fish": 1.0, "vehicles 1": 5.0}
    held: dict[str, set[str]] = {owner: set() for owner in public.owners}
    for cell in public.cells:
        held[public.owners[cell.owner]].add(public.groups[cell.group])
    assert held == {
        "fish": {"aquarium_fish", "flatfish", "ray", "shark", "trout"},
        "vehicles 1": {"bicycle", "bus", "motorcycle", "pickup_truck", "train"},
    }


@pytest.mark.usefixtures("trusted")
def test_a_row_of_the_subset_keeps_its_image_and_its_class() -> None:
    test = datasets.load("cifar100", variant="fish-vehicles", normalisation="none").test
    # An image of the test rows is filled with 99 less its fine label.
    filled = [round(float(image.max()) * 255) for image in test.inputs]
    assert [NAMES[99 - value] for value in filled] == [CHOSEN[target] for target in test.targets.tolist()]
    assert test.public.owners == ("everybody",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"variant": "coarse"}, 'variant is "coarse": it must be official or fish-vehicles'),
        ({"owners": "nobody"}, 'owners is "nobody": with variant "official" it must be everybody or class'),
        ({"owners": "category"}, 'owners is "category": with variant "official" it must be everybody or class'),
        (
            {"variant": "fish-vehicles", "owners": "class"},
            'owners is "class": with variant "fish-vehicles" it must be everybody or category',
        ),
        ({"normalisation": "whole"}, 'normalisation is "whole"'),
        ({"colour": "red"}, "unexpected keyword argument 'colour'"),
    ],
)
@pytest.mark.usefixtures("trusted")
def test_wrong_options_get_a_sentence(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        datasets.load("cifar100", **options)


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_pickle_that_would_run_code_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return (print, ("code ran",))

    evil = write(tmp_path / "evil.tar.gz", official() | {name: Evil()})
    with pytest.raises(InputError, match="not the official file"):
        cifar100.read_official(evil)
    assert "code ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_an_archive_that_lacks_a_pickle_is_refused(name: str, tmp_path: Path) -> None:
    rest = {key: record for key, record in official().items() if key != name}
    with pytest.raises(InputError, match="holds no train, test and meta"):
        cifar100.read_official(write(tmp_path / "part.tar.gz", rest))
