"""Loaders of the papers' other data sets, on tiny generated files in the official layout."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veil import datasets
from veil.datasets import bank_fraud, cifar10, files, texts
from veil.datasets.files import DataFile, fetch
from veil.errors import InputError
from veil.tables import images


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("VEIL_DATA", str(folder))
    monkeypatch.setenv("VEIL_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def no_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are files that hold one number: the layout is tested without an image library."""

    def decode(content: bytes, name: str, size: Any = None, grey: bool = False) -> np.ndarray[Any, Any]:
        return np.full((1 if grey else 3, *(size or (8, 8))), int(content), dtype=np.uint8)

    monkeypatch.setattr(images, "decode_image", decode)
    monkeypatch.setattr(cifar10, "decode_image", decode)


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.usefixtures("no_pillow")
def test_celeba_follows_the_official_partition_and_crosses_two_attributes(data: Path) -> None:
    names = [f"{i:06d}.jpg" for i in range(1, 13)]
    lines = ["12", "5_o_Clock_Shadow Blond_Hair Eyeglasses Male"]
    for i, name in enumerate(names):
        lines.append(f"{name}  -1 {1 if i % 2 else -1}  -1 {1 if i % 4 < 2 else -1}")
        put(data / "celeba/img_align_celeba" / name, str(i))
    put(data / "celeba/list_attr_celeba.txt", "\n".join(lines))
    put(
        data / "celeba/list_eval_partition.txt",
        "\n".join(f"{name} {0 if i < 4 else 1 if i < 8 else 2}" for i, name in enumerate(names)),
    )
    split = datasets.load("celeba", size=(8, 8), normalisation="none")
    assert split.train.public.groups == (
        "female × blond",
        "female × not blond",
        "male × blond",
        "male × not blond",
    )
    assert [len(part) for part in (split.train, split.test, split.validation) if part is not None] == [4, 4, 4]
    assert split.train.public.classes == ("female", "male")
    assert split.train.targets.tolist() == [1, 1, 0, 0]
    assert float(split.test.inputs[0].max()) == pytest.approx(8 / 255)


@pytest.mark.usefixtures("no_pillow")
def test_utkface_reads_groups_off_file_names_and_leaves_out_broken_ones(data: Path) -> None:
    for i in range(20):
        put(data / "UTKFace" / f"{20 + i}_{i % 2}_{i % 3}_2017010{i % 9}.jpg.chip.jpg", str(i))
    put(data / "UTKFace" / "39_1_20170116174525125.jpg.chip.jpg", "1")
    split = datasets.load("utkface", groups="race × gender", size=(8, 8))
    assert len(split.train) + len(split.test) == 20
    assert "Asian × female" in {*split.train.public.groups, *split.test.public.groups}


@pytest.mark.usefixtures("no_pillow")
def test_pneumonia_reads_the_diagnosis_off_the_path_and_gives_the_ill_a_smaller_budget(data: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        for i in range(count):
            put(data / f"chest_xray/{part}/NORMAL/IM-{i}.jpeg", str(i))
            put(data / f"chest_xray/{part}/PNEUMONIA/person{i}_bacteria_1.jpeg", str(i))
            put(data / f"chest_xray/{part}/PNEUMONIA/person{i}_virus_1.jpeg", str(i))
    split = datasets.load("pneumonia", each=4, size=(8, 8))
    assert split.train.public.group_sizes == (4, 4, 4)
    assert dict(zip(split.train.public.owners, split.train.public.budgets or (), strict=True)) == {
        "healthy": 5.0,
        "ill": 0.5,
    }
    assert split.train.public.owner_sizes == (4, 8)
    assert split.train.inputs.shape == (12, 1, 8, 8)


@pytest.mark.usefixtures("no_pillow")
def test_inaturalist_takes_the_super_category_as_class_and_group(data: Path) -> None:
    for part in ("train", "val"):
        record = {
            "images": [{"id": i, "file_name": f"train_val_images/x/{part}{i}.jpg"} for i in range(4)],
            "annotations": [{"image_id": i, "category_id": i % 3} for i in range(4)],
            "categories": [{"id": c, "supercategory": "Aves" if c else "Fungi"} for c in range(3)],
        }
        put(data / f"inaturalist/{part}2017.json", json.dumps(record))
        for i in range(4):
            put(data / f"inaturalist/train_val_images/x/{part}{i}.jpg", str(i))
    split = datasets.load("inaturalist", size=(8, 8))
    assert split.train.public.groups == ("Aves", "Fungi")
    assert split.train.public.group_sizes == (2, 2)
    put(data / "inaturalist/val2017.json", "{}")
    with pytest.raises(InputError, match="not an annotation file"):
        datasets.load("inaturalist", size=(8, 8))


def fraud_table(rows: int) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    table = {name: generator.uniform(low, high, rows) for name, (low, high) in bank_fraud.BOUNDS.items()}
    table |= {name: generator.integers(0, 2, rows) for name in (*bank_fraud.SWITCHES, "keep_alive_session")}
    table |= {name: generator.choice(list(values), rows) for name, values in bank_fraud.VALUES.items()}
    frame = pd.DataFrame(table)
    frame["customer_age"] = generator.choice([20, 60], rows)
    frame["prev_address_months_count"] = -1
    frame["month"], frame["fraud_bool"] = np.arange(rows) % 8, generator.integers(0, 2, rows)
    return frame


def test_bank_fraud_crosses_fraud_with_age_and_tests_on_the_last_months(data: Path) -> None:
    (data / "bank_account_fraud").mkdir()
    fraud_table(160).to_csv(data / "bank_account_fraud/Base.csv", index=False)
    split = datasets.load("bank-fraud")
    assert (len(split.train), len(split.test)) == (120, 40)
    assert split.train.public.groups == (
        "fraud × 50 or under",
        "fraud × over 50",
        "legitimate × 50 or under",
        "legitimate × over 50",
    )
    names = list(bank_fraud.BOUNDS)
    missing = split.train.inputs[:, 2 * names.index("prev_address_months_count") + 1]
    assert bool((missing == 1).all()), "−1 means that the value is missing"


def test_civilcomments_has_overlapping_groups(data: Path) -> None:
    # Each of four identities is mentioned alone, and once all together, in toxic and in other comments.
    rows = [
        {"comment_text": f"comment {i}", "split": ["train", "val", "test"][i % 3], "toxicity": float(i // 15 % 2)}
        | {name: float(i // 3 % 5 in (k, 4)) for k, name in enumerate(texts.IDENTITIES[:4])}
        for i in range(60)
    ]
    (data / "civilcomments").mkdir()
    pd.DataFrame(rows).to_csv(data / "civilcomments/all_data_with_identities.csv")
    split = datasets.load("civilcomments", buckets=32)
    assert split.train.memberships is not None
    assert int(split.train.memberships.table.sum(axis=1).max()) > 1
    assert any(name.endswith("× not toxic") for name in split.train.public.groups)
    assert split.train.inputs.shape == (20, 32)
    assert datasets.load("civilcomments", length=6, buckets=32).train.inputs.dtype.is_floating_point is False


def test_multinli_crosses_label_and_negation_and_drops_disagreement(data: Path) -> None:
    lines = []
    for i in range(12):
        label = [*texts.LABELS, "-"][i % 4]
        second = "There is nothing here." if i % 8 < 4 else "There is a house."
        lines.append(json.dumps({"gold_label": label, "sentence1": "A house.", "sentence2": second}))
    for name in ("train", "dev_matched"):
        put(data / f"multinli/multinli_1.0_{name}.jsonl", "\n".join(lines))
    split = datasets.load("multinli", buckets=16)
    assert len(split.train) == 9
    assert len(split.train.public.groups) == 6
    put(data / "multinli/multinli_1.0_dev_matched.jsonl", lines[0] + "\n{}")
    with pytest.raises(InputError, match="row 1 is not a MultiNLI record"):
        datasets.load("multinli", buckets=16)


def test_blogs_keep_two_topics_and_cross_gender_with_age(data: Path) -> None:
    for i, (gender, age, topic) in enumerate(
        (g, a, t) for g in ("male", "female") for a in (23, 41) for t in ("Technology", "Arts", "Law")
    ):
        posts = "".join(f"<date>1,May,2004</date><post> post {n} &amp; more </post>" for n in range(6))
        put(data / "blogs" / f"{i}.{gender}.{age}.{topic}.Aries.xml", f"<Blog>{posts}</Blog>")
    split = datasets.load("blogs", buckets=16)
    assert len(split.train) + len(split.test) == 48
    assert set(split.train.public.groups) == {
        "female × above 35",
        "female × up to 35",
        "male × above 35",
        "male × up to 35",
    }


def cifar_archive(path: Path, rows: int = 4) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            record = {
                b"data": np.arange(rows * 3072, dtype=np.uint64).astype(np.uint8).reshape(rows, 3072),
                b"labels": [i % 10 for i in range(rows)],
            }
            content = pickle.dumps(record, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def trusting(monkeypatch: pytest.MonkeyPatch, name: str, path: Path) -> None:
    """Let the tiny file's own checksum be the official one."""
    file: DataFile = getattr(cifar10, name)
    monkeypatch.setattr(cifar10, name, DataFile(file.path, hashlib.sha256(path.read_bytes()).hexdigest()))


def test_cifar10_reads_the_official_pickles(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar_archive(data / "cifar-10-python.tar.gz", rows=10)
    with pytest.raises(InputError, match="is the wrong file"):
        datasets.load("cifar10")
    trusting(monkeypatch, "OFFICIAL", data / "cifar-10-python.tar.gz")
    split = datasets.load("cifar10", owners="class", normalisation="none")
    assert split.train.inputs.shape == (50, 3, 32, 32)
    assert split.train.public.budgets == tuple(np.linspace(0.5, 5.0, 10).tolist())
    assert float(split.train.inputs[0, 0, 0, 1]) == pytest.approx(1 / 255)
    less_private = datasets.load("cifar10", owners="class", budgets=(6.0, 15.0), normalisation="none")
    assert less_private.train.public.budgets == tuple(np.linspace(6.0, 15.0, 10).tolist())
    again = datasets.load("cifar10", normalisation="none")
    assert bool((again.train.inputs == split.train.inputs).all()), "the cache must give the same rows"


def test_classes_of_cifar10_can_be_dealt_to_owners_with_fixed_budgets(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_archive(data / "cifar-10-python.tar.gz", rows=10)
    trusting(monkeypatch, "OFFICIAL", data / "cifar-10-python.tar.gz")
    dealt = []
    for seed in (1, 2):
        train = datasets.load("cifar10", owners="dealt", seed=seed, normalisation="none").train
        budgets = dict(zip(train.public.owners, train.public.budgets or (), strict=True))
        assert budgets["1"] == 0.5
        assert budgets["10"] == 5.0
        dealt.append({train.public.groups[cell.group]: train.public.owners[cell.owner] for cell in train.public.cells})
        assert sorted(dealt[-1].values(), key=int) == [str(number) for number in range(1, 11)]
    assert dealt[0] != dealt[1], "another seed deals other classes"
    with pytest.raises(InputError, match="owners is"):
        datasets.load("cifar10", owners="nobody")


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return (print, ("code ran",))

    content = pickle.dumps({b"data": Evil(), b"labels": [0]})
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with pytest.raises(InputError, match="not the official file"):
        cifar10.read_official(tmp_path / "evil.tar.gz")


@pytest.mark.usefixtures("no_pillow")
def test_cifar10_reads_the_jpeg_tree(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = data / cifar10.JPEG.path
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for part in ("train", "test"):
            for number, name in enumerate(cifar10.CLASSES):
                info = tarfile.TarInfo(f"{part}/{name}/0000.jpg")
                info.size = 1
                tar.addfile(info, io.BytesIO(str(number).encode()))
    trusting(monkeypatch, "JPEG", archive)
    split = datasets.load("cifar10", normalisation="none")
    assert split.train.targets.tolist() == list(range(10))
    assert float(split.train.inputs[7].max()) == pytest.approx(7 / 255)


def test_images_are_decoded_and_scaled(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name, colour in (("a", (255, 0, 0)), ("b", (0, 255, 0))):
        (tmp_path / name).mkdir()
        pillow.new("RGB", (16, 12), colour).save(tmp_path / name / "0.png")
    found, labels = images.read_image_folder(tmp_path, size=(6, 8))
    assert found.shape == (2, 3, 6, 8)
    assert labels.tolist() == ["a", "b"]
    assert found[0, :, 0, 0].tolist() == [255, 0, 0]
    put(tmp_path / "a" / "1.png", "no image")
    with pytest.raises(InputError, match=r"1\.png is not a readable image"):
        images.read_image_folder(tmp_path, size=(6, 8))


def test_fetching_checks_what_it_got_and_keeps_nothing_wrong(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"rows"
    packed = gzip.compress(content)
    answers = {"https://example.org/good.gz": packed, "https://example.org/bad.gz": gzip.compress(b"other")}
    monkeypatch.setattr(files.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(answers[url]))
    total = hashlib.sha256(content).hexdigest()
    good = fetch(DataFile("x/good.gz", total, "https://example.org/good.gz", packed=True), "x")
    assert good.read_bytes() == packed
    with pytest.raises(InputError, match="it was deleted"):
        fetch(DataFile("x/bad.gz", total, "https://example.org/bad.gz", packed=True), "x")
    assert [path.name for path in (data / "x").iterdir()] == ["good.gz"]
    with pytest.raises(InputError, match="cannot be downloaded"):
        fetch(DataFile("x/unknown"), "x")
    with pytest.raises(InputError, match="not an https URL"):
        fetch(DataFile("x/plain", None, "http://example.org/plain"), "x")
