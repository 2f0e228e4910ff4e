"""docs/gradients.md is true: its sum is that of clipped rows, and the layer that it adds agrees with the loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from veil.gradients import FallbackWarning, GradientEngine, recording

PAGE = Path(__file__).parents[2] / "docs" / "gradients.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_block_gives_the_sum_of_gradients_that_are_clipped_one_by_one(
    loop_gradients: Callable[..., dict[str, Tensor]],
) -> None:
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    exec(compile(BLOCKS[0], "gradients.md", "exec"), space)
    rows = loop_gradients(space["model"], space["loss"], (space["x"], space["y"]))
    norms = sum(gradient.flatten(1).square().sum(1) for gradient in rows.values()).sqrt()
    expected = torch.einsum("r,r...->...", 1 / norms.clamp_min(1), rows["0.weight"])
    assert norms.max() > 1
    torch.testing.assert_close(space["result"].sums[0]["0.weight"], expected, rtol=1e-4, atol=1e-5, check_dtype=False)


class Pairs(nn.Module):
    """One bilinear layer without a bias, as the rule of the page wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(3, 3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x.flip(-1))


def test_the_layer_that_the_page_adds_is_used_and_agrees_with_the_loop(
    assert_like_loop: Callable[..., None], cross_entropy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    batch = (torch.randn(7, 3), torch.randint(2, (7,)))
    with pytest.warns(FallbackWarning):  # without the rule
        GradientEngine(Pairs(), cross_entropy).weighted_sum(batch, lambda row: row.norms)
    monkeypatch.setattr(recording, "_RULES", dict(recording._RULES))  # the rule is gone after this test
    exec(compile(BLOCKS[1], "gradients.md", "exec"), {"torch": torch})
    GradientEngine(Pairs(), cross_entropy).weighted_sum(batch, lambda row: row.norms)  # no FallbackWarning
    assert_like_loop(Pairs(), batch, cross_entropy)


def test_every_block_of_the_page_is_run_here() -> None:
    assert len(BLOCKS) == 2
