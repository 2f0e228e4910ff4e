"""TensorBoard and MLflow: imported only when used, sent public values only, closed at the end."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

import veil
from veil.datasets import GroupSpec, generate
from veil.errors import InputError
from veil.training.trackers import MLflow, TensorBoard

GROUPS = [GroupSpec("large", 200), GroupSpec("small", 60, angle=1.0)]


class Recorder:
    """Keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *words, **named: self.calls.append((name, words, named))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [words for called, words, _ in self.calls if called == name]


def tracked(callback: Any) -> None:
    veil.fit(
        torch.nn.Linear(10, 2),
        generate(GROUPS),
        method="dp-sgd",
        evaluation=generate(GROUPS, seed=1),
        callbacks=[callback],
        steps=4,
        batch_size=40,
        seed=1,
    )


def test_tensorboard_gets_every_curve(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    writer = Recorder()
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda **_: writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    tracked(TensorBoard(tmp_path))
    scalars = writer.named("add_scalar")
    assert {name for name, _, _ in scalars} >= {"epsilon/large", "epsilon/small", "group_accuracy/small", "disparity"}
    assert [step for name, _, step in scalars if name == "epsilon/large"] == [0, 1, 2, 3]
    assert len(writer.named("close")) == 1


def test_mlflow_gets_settings_and_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Recorder()
    monkeypatch.setitem(sys.modules, "mlflow", server)  # type: ignore[arg-type]
    tracked(MLflow(experiment="income"))
    assert server.named("set_experiment") == [("income",)]
    assert server.named("log_params")[0][0]["method"] == "dp-sgd"
    assert "seed" not in server.named("log_params")[0][0]
    assert len(server.named("log_metrics")) == 4
    assert "worst_group_accuracy" in server.named("log_metrics")[-1][0]
    assert len(server.named("end_run")) == 1


@pytest.mark.parametrize(("callback", "package"), [(TensorBoard("x"), "tensorboard"), (MLflow(), "mlflow")])
def test_a_missing_package_is_named_with_the_way_to_get_it(
    callback: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"veil-dp\[{package}\]"):
        tracked(callback)


def test_neither_is_imported_before_it_is_used() -> None:
    program = "import sys, veil.training.trackers; sys.exit('mlflow' in sys.modules or 'tensorboard' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
