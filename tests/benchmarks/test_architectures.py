"""The benchmark of real architectures measures those whose weights are partly frozen too."""

from __future__ import annotations

import pytest

from benchmarks.architectures import measured, workloads

for package in ("transformers", "peft"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["DistilBERT", "DoRA"])
def test_an_architecture_is_measured_against_a_plain_step(name: str) -> None:
    workload = next(workload for workload in workloads(quick=True) if workload.name == name)
    row = measured(workload, repeats=1, seconds=0.0)
    assert row["ratio_to_sgd"] > 0
