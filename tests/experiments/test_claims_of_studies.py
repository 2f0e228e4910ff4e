"""Studies with pages of their own state what a paper claims: the verdict follows the numbers, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.audit_page import _lira_claims
from experiments.ino_regimes_page import _claims


def attacked(epsilon: float, auroc: float, ceiling: float) -> dict[str, float]:
    return {
        "epsilon": epsilon,
        "auroc": auroc,
        "auroc_low": auroc - 0.001,
        "auroc_high": auroc + 0.001,
        "auroc_ceiling": ceiling,
    }


@pytest.mark.parametrize(
    ("private", "open_", "ordered", "failing"),
    [
        (0.50, 0.51, 0.505, []),
        (0.52, 0.53, 0.53, [0]),  # above the ceiling of 0.509
        (0.505, 0.50, 0.50, [1]),
        (0.50, 0.51, 0.52, [2]),
    ],
)
def test_the_verdict_on_fig_22_follows_the_attacks(
    private: float, open_: float, ordered: float, failing: list[int]
) -> None:
    base = {"0–4": attacked(0.1, private, 0.509), "5–9": attacked(1.0, open_, 0.57)}
    ino = {"0–4": attacked(0.1, min(private, ordered), 0.509), "5–9": attacked(1.0, ordered, 0.57)}
    lines = _lira_claims({"idp-sgd": base, "ino-sgd": ino, "erm": {"0–4": {"epsilon": None}}})
    assert [number for number, line in enumerate(lines) if "**Fails" in line] == failing


def run(private: float, open_: float) -> dict[str, Any]:
    looked = {"removed_by_owner": {"0–4": 0.0, "5–9": 0.5}}
    return {
        "end": {"0–4": private, "5–9": open_, "all": (private + open_) / 2},
        "steps": [1, 2, 3, 4],
        "accuracy": {"0–4": [private] * 4, "5–9": [open_] * 4},
        "loss": {"0–4": [1 - private] * 4, "5–9": [1 - open_] * 4},
        "activity": [looked] * 4,
        "condition": {"0–4": [-1.0] * 4},
    }


def test_claims_in_the_papers_regime_hold_and_fail_by_the_runs_and_a_failing_one_says_why() -> None:
    base, own = "steps 4, clip 0.02, reach 2, tail 0", "steps 4, clip 0.02, reach 2, tail 90"
    better = _claims({base: {"0": run(0.1, 0.9)}, own: {"0": run(0.3, 0.9)}}, {}, [4])[2:]
    assert len(better) == 12
    assert all("**Holds" in line for line in better)
    worse = _claims({base: {"0": run(0.3, 0.9)}, own: {"0": run(0.1, 0.9)}}, {}, [4])[2:]
    assert all(
        "**Fails" in line and "Why: then digits 0–4 are at 10.0 % with INO-SGD and 30.0 %" in line for line in worse
    )
