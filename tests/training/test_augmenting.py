"""Several views of a row are one row: averaged, then bounded once; the same views come again in a resumed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import veil
from veil.errors import InputError
from veil.gradients import GradientEngine, GradientError
from veil.problem import Problem
from veil.training import Augmented
from veil.training.callbacks import Callback
from veil.training.losses import as_row_losses

ROWS = 48
GENERATOR = torch.Generator().manual_seed(0)
PROBLEM = Problem.from_arrays(
    torch.rand(ROWS, 1, 6, 6, generator=GENERATOR), torch.randint(0, 2, (ROWS,), generator=GENERATOR)
)
SETTINGS: dict[str, Any] = {"method": "dp-sgd", "epsilon": 1.0, "steps": 6, "batch_size": 12, "seed": 2}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def shaken(images: Tensor) -> Tensor:
    flipped = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(-1), images)
    return flipped + 0.1 * torch.randn_like(images)


@pytest.mark.parametrize("views", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_the_gradient_of_a_row_is_the_mean_over_its_views(views: int, rows: int) -> None:
    model, batch = small(), PROBLEM.batch(np.arange(rows))
    loss = as_row_losses(Augmented(F.cross_entropy, shaken, views), model, PROBLEM)
    torch.manual_seed(5)
    found = GradientEngine(model, loss).gradients(batch)
    torch.manual_seed(5)
    seen = shaken(batch[0].repeat_interleave(views, 0)).view(rows, views, 1, 6, 6)
    for row in range(rows):
        targets = batch[1][row].expand(views)
        wanted = torch.autograd.grad(F.cross_entropy(model(seen[row]), targets), list(model.parameters()))
        for (name, _), gradient in zip(model.named_parameters(), wanted, strict=True):
            assert torch.allclose(found[name][row], gradient, atol=1e-6), name


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


class Stop(Callback):
    def on_step(self, report: Any) -> None:
        if report.step == 3:
            raise RuntimeError("cut short")


def test_views_differ_from_step_to_step_and_are_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    loss, settings = Augmented(F.cross_entropy, shaken, views=3), {**SETTINGS, "checkpoint_every": 1}
    undisturbed, resumed = small(), small()
    veil.fit(undisturbed, PROBLEM, loss=loss, **settings)
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(small(), PROBLEM, loss=loss, out=tmp_path / "run", callbacks=[Stop()], **settings)
    with pytest.raises(InputError, match="the loss differs"):
        veil.fit(
            small(), PROBLEM, loss=Augmented(F.cross_entropy, shaken, 2), out=tmp_path / "run", resume=True, **settings
        )
    veil.fit(resumed, PROBLEM, loss=loss, out=tmp_path / "run", resume=True, **settings)
    assert torch.equal(weights(undisturbed), weights(resumed))
    plain = small()
    veil.fit(plain, PROBLEM, loss=F.cross_entropy, **settings)
    assert not torch.allclose(weights(plain), weights(resumed))


class Shaken(Dataset[dict[str, Any]]):
    """A data set whose transform draws random numbers of torch for every item."""

    def __init__(self, by: float = 0.3) -> None:
        self.by = by

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input": PROBLEM.batch(np.array([row]))[0][0] + self.by * torch.randn(()), "label": row % 2}


def test_random_transforms_of_a_data_set_are_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    settings = {**SETTINGS, "loss": F.cross_entropy, "checkpoint_every": 1}
    undisturbed, resumed, plain = small(), small(), small()
    rows = Problem.from_dataset(Shaken())
    veil.fit(undisturbed, rows, **settings)
    with pytest.raises(RuntimeError, match="cut short"):
        veil.fit(small(), rows, out=tmp_path / "run", callbacks=[Stop()], **settings)
    veil.fit(resumed, Problem.from_dataset(Shaken()), out=tmp_path / "run", resume=True, **settings)
    assert torch.equal(weights(undisturbed), weights(resumed))
    veil.fit(plain, Problem.from_dataset(Shaken(0.0)), **settings)
    assert not torch.allclose(weights(plain), weights(resumed))


def blended(images: Tensor) -> Tensor:
    return 0.5 * images + 0.5 * images.flip(0)


def test_a_transform_that_mixes_rows_is_refused() -> None:
    with pytest.raises(GradientError, match="cannot be trained row by row"):
        veil.fit(small(), PROBLEM, loss=Augmented(F.cross_entropy, blended, 2), **SETTINGS)


def test_no_view_is_refused() -> None:
    with pytest.raises(InputError, match="at least one view"):
        Augmented(F.cross_entropy, shaken, views=0)
