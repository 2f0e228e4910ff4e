"""A model that lives elsewhere is trained there: no tensor of the CPU meets its own, and the result is the same.

Where there is no GPU, `elsewhere` stands for one; tests over `DEVICES` run on those that are present. Noise is drawn on
the CPU, from the same stream on every device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import veil
from tests.training.elsewhere import DEVICE, Elsewhere, There
from tests.training.small_models import WORDS, Encoder
from veil.errors import InputError
from veil.problem import Problem
from veil.training import Augmented

ROWS = 60
SETTINGS: dict[str, Any] = {"epsilon": 2.0, "steps": 5, "batch_size": 12, "seed": 3}
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(ROWS, 5, generator=GENERATOR), torch.randint(0, 2, (ROWS,), generator=GENERATOR)
TOKENS = torch.randint(1, WORDS, (ROWS, 6), generator=GENERATOR)
GROUPS = ["a" if row % 3 else "b" for row in range(ROWS)]
TABLE = Problem.from_arrays(X, Y, GROUPS)
TEXT = Problem.from_arrays({"input_ids": TOKENS}, Y, GROUPS)
SENTENCES = Problem.from_arrays({"input_ids": [TOKENS[row, : 2 + row % 5] for row in range(ROWS)]}, Y, GROUPS)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.data.here.flatten() if isinstance(p.data, There) else p.flatten() for p in model.parameters()])


CASES = {"table": (mlp, TABLE), "text": (Encoder, TEXT), "sentences": (Encoder, SENTENCES)}
METHODS = ["dp-sgd", "asc", "adaptive-clip", "auto-s", "dp-is-sgd", "fdpg", "dpsur", "ino-sgd", "erm", "gdro"]


DEVICES = [
    "cpu",
    *(["cuda"] if torch.cuda.is_available() else []),
    *(["mps"] if torch.backends.mps.is_available() else []),
]


def trained(case: str, device: str | None, **settings: Any) -> nn.Module:
    build, problem = CASES[case]
    torch.manual_seed(0)
    model = build()
    veil.fit(model, problem, evaluation=problem, loss=F.cross_entropy, device=device, **{**SETTINGS, **settings})
    return model


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *(("table", {"method": method}) for method in METHODS),
        ("table", {"method": "dp-sgd", "micro_batch": 4}),
        ("table", {"method": "dp-sgd", "secure_noise": True, "optimizer": "adam", "ema": 0.9}),
        ("text", {"method": "dp-sgd"}),
        ("sentences", {"method": "asc"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_a_step_makes_no_tensor_of_the_cpu_that_meets_a_model_elsewhere(case: str, settings: dict[str, Any]) -> None:
    wanted = weights(trained(case, None, **settings))
    with Elsewhere():
        model = trained(case, str(DEVICE), **settings)
    assert all(isinstance(parameter.data, There) for parameter in model.parameters())
    assert torch.allclose(weights(model), wanted, atol=1e-6)


@pytest.mark.filterwarnings("ignore::veil.gradients.FallbackWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("table", {"method": "dp-sgd"}),
        ("table", {"method": "asc", "micro_batch": 4}),
        ("text", {"method": "dp-sgd", "optimizer": "adam"}),
        ("sentences", {"method": "asc"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_device_gives_the_same_model(case: str, settings: dict[str, Any], device: str) -> None:
    model = trained(case, device, **settings)
    assert {parameter.device.type for parameter in model.parameters()} == {device}
    assert torch.allclose(weights(model).cpu(), weights(trained(case, None, **settings)), atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_views_and_optimizers_of_a_user_work_on_every_device(device: str) -> None:
    torch.manual_seed(0)
    model = mlp().to(device)
    loss = Augmented(F.cross_entropy, lambda rows: rows + 0.1 * torch.randn_like(rows), views=2)
    assert veil.fit(model, TABLE, loss=loss, method="dp-sgd", **SETTINGS).certificate.private
    session = veil.session(model, TABLE, method="dp-sgd", **SETTINGS)
    session.use(torch.optim.Adam(model.parameters()))
    for inputs, targets in session:
        assert inputs.device.type == targets.device.type == device
        session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
    assert session.finish().certificate.private


def test_only_a_number_per_row_is_brought_back_in_a_step() -> None:
    build, problem = CASES["table"]
    with Elsewhere() as elsewhere:
        veil.fit(build(), problem, method="dp-sgd", device=str(DEVICE), **{**SETTINGS, "batch_size": 30})
    weights_of_model = {parameter.numel() for parameter in build().parameters()}
    large = [size for size in elsewhere.moved if size > ROWS and size not in weights_of_model]
    assert not large, f"values of rows were brought to the CPU: {large}"


def test_a_session_hands_out_rows_where_the_model_lives() -> None:
    with Elsewhere():
        model = mlp().to(DEVICE)
        session = veil.session(model, TABLE, method="dp-sgd", **SETTINGS)
        for inputs, targets in session:
            assert inputs.device == targets.device == DEVICE
            session.step(F.cross_entropy(model(inputs), targets, reduction="none"))
        session.finish()


def test_auto_finds_a_device_and_a_wrong_one_is_named() -> None:
    assert next(trained("table", "auto", method="dp-sgd").parameters()).device.type in ("cpu", "cuda", "mps")
    with pytest.raises(InputError, match='device is "gpu", which torch does not have here'):
        trained("table", "gpu")


def test_a_model_on_two_devices_is_refused() -> None:
    with Elsewhere():
        model = mlp()
        model[0].to(DEVICE)
        with pytest.raises(InputError, match=r"the model lives on cpu and meta: move all of it"):
            veil.fit(model, TABLE, **SETTINGS)
