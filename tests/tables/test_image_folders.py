"""A folder of images trains alike whether it is read at once or image by image; what cannot be read is named first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import veil
from veil.errors import InputError
from veil.tables import images
from veil.tables.images import image_problem

Image = pytest.importorskip("PIL.Image")
ROWS = 24


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for row in range(ROWS):
        path = tmp_path / "pictures" / ("cat" if row % 3 else "dog") / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(path)
    return tmp_path / "pictures"


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("size", [None, (4, 4)])
def test_images_that_stay_in_their_files_train_the_same_model(
    folder: Path, size: tuple[int, int] | None, grey: bool
) -> None:
    trained = []
    for in_memory in (True, False):
        problem = image_problem(folder, size=size, grey=grey, in_memory=in_memory)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(problem.public.input_shape)), 2))
        veil.fit(model, problem, method="asc", epsilon=2.0, steps=3, batch_size=8, seed=1)
        trained.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
        assert problem.public.groups == ("cat", "dog")
        assert (problem.source is None) == in_memory
    torch.testing.assert_close(trained[0], trained[1])


def test_images_that_do_not_fit_are_decoded_when_they_are_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = images.decode_image

    def counted(content: bytes, name: str, *more: object) -> np.ndarray:
        decoded.append(name)
        return decode(content, name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(images, "decode_image", counted)
    assert image_problem(folder).source is None
    monkeypatch.setattr(images, "IN_MEMORY", 1000)
    decoded.clear()
    problem = image_problem(folder)
    assert set(decoded) == {"01.png"}, "the first alone, for its shape"
    decoded.clear()
    problem.batch(np.array([2, 5]))
    assert len(decoded) == 2


def test_images_of_two_sizes_and_broken_ones_are_named_before_a_run(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(folder / "dog" / "00.png")
    with pytest.raises(InputError, match=r"00\.png differs in size from 01\.png"):
        image_problem(folder, in_memory=False)
    (folder / "dog" / "00.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"00\.png is not a readable image"):
        image_problem(folder, in_memory=False)
