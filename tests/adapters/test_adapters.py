"""Private steps inside other packages' loops: the same run as `veil.fit`, by their optimizers and with their hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import veil
from veil.errors import InputError
from veil.problem import Problem

pytestmark = pytest.mark.filterwarnings("ignore")
GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 5, generator=GENERATOR), torch.randint(0, 2, (60,), generator=GENERATOR)
PROBLEM = Problem.from_arrays(X, Y, ["a", "b", "b"] * 20)
PRIVACY: dict[str, Any] = {"method": "dp-sgd", "epsilon": 2.0, "seed": 3, "accountant": "rdp"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def fitted(**settings: Any) -> nn.Module:
    model = network()
    veil.fit(model, PROBLEM, **PRIVACY, **settings)
    return model


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, weights), wanted in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(weights, wanted, atol=1e-6), name


def arguments(folder: Path, **given: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    usual = {"learning_rate": 0.3, "lr_scheduler_type": "linear", "report_to": [], "use_cpu": True, "optim": "sgd"}
    return transformers.TrainingArguments(str(folder), **{"per_device_train_batch_size": 12, **usual, **given})


@pytest.mark.parametrize("parts", [1, 3])
def test_the_trainer_makes_the_run_of_fit_by_its_own_schedule(tmp_path: Path, parts: int) -> None:
    args = arguments(tmp_path, max_steps=4, gradient_accumulation_steps=parts, per_device_train_batch_size=12 // parts)
    from transformers import TrainerCallback

    from veil.adapters.hugging_face import PrivateTrainer

    class Count(TrainerCallback):
        steps = 0

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.steps += 1

    count, model = Count(), network()
    trainer = PrivateTrainer(model, args, PROBLEM, loss=F.cross_entropy, callbacks=[count], **PRIVACY)
    run = trainer.train_privately()
    wanted = fitted(steps=4, batch_size=12, learning_rate=0.3, momentum=0.0, schedule="linear")
    assert_same(model, wanted)
    assert count.steps == 4
    assert run.certificate.epsilon == pytest.approx(2.0, abs=0.02)


def test_the_trainer_refuses_what_would_not_be_private(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=4)
    from veil.adapters.hugging_face import PrivateTrainer

    with pytest.raises(InputError, match=r"train\(\) is not private"):
        PrivateTrainer(network(), args, PROBLEM, **PRIVACY).train()
    with pytest.raises(InputError, match='"learning_rate" is set by the TrainingArguments'):
        PrivateTrainer(network(), args, PROBLEM, learning_rate=0.1, **PRIVACY)


def test_lightning_makes_the_run_of_fit_by_an_optimizer_of_ones_own_and_its_hooks() -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    from veil.adapters.lightning import PrivateModule

    class Watched(PrivateModule):
        validated = batches = 0

        def validation_step(self, batch: Any, number: int) -> None:
            self.validated += 1

        def on_train_batch_end(self, *_: Any) -> None:
            self.batches += 1

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    private = Watched(model, PROBLEM, optimizer, steps=4, batch_size=12, **PRIVACY)
    named = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", num_sanity_val_steps=0, **dict.fromkeys(named, False))
    trainer.fit(private, val_dataloaders=DataLoader(TensorDataset(X, Y), batch_size=60))
    run = private.finish()
    assert (private.batches, private.validated) == (4, 1)
    assert run.stopped is None
    assert_same(model, fitted(steps=4, batch_size=12, learning_rate=0.3, momentum=0.0))


def test_lightning_gets_a_network_and_whole_batches() -> None:
    lightning = pytest.importorskip("pytorch_lightning", reason="pytorch-lightning is not installed")
    from veil.adapters.lightning import PrivateModule

    with pytest.raises(InputError, match="give the torch module inside"):
        PrivateModule(lightning.LightningModule(), PROBLEM, **PRIVACY)
    with pytest.raises(InputError, match="none comes in parts"):
        PrivateModule(network(), PROBLEM, micro_batch=4, **PRIVACY)
