"""Layouts: where the rows of a batch stand among the leading dimensions of a layer's output.

Most models keep rows first. Some put time first, some fold rows and positions into one dimension. What a layer's
rule needs is always (rows, positions, features), so the layout is found once per structure by a probe and then
remembered: a gradient that is scaled by vᵢ for row i must come out scaled by vᵢ exactly where row i stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows stand on `axis`, alone (`plain`) or folded with positions (`outer`: rows vary slowest, `inner`: fastest).

    `whole` says that everything belongs to the batch's single row.
    """

    kind: str
    axis: int = 0

    def fits(self, lead: tuple[int, ...], rows: int) -> bool:
        """Whether leading dimensions `lead` can hold `rows` rows in this layout."""
        if self.kind == "whole":
            return rows == 1
        if self.axis >= len(lead):
            return False
        size = lead[self.axis]
        return size == rows if self.kind == "plain" else size % rows == 0

    def split(self, tensor: Tensor, lead: int, rows: int) -> Tensor:
        """`tensor` as (rows, positions, *rest), where its first `lead` dimensions hold rows and positions."""
        if lead == 1 and self.kind in ("plain", "whole"):
            return tensor.unsqueeze(1) if self.kind == "plain" else tensor.unsqueeze(0)
        rest = tensor.shape[lead:]
        if self.kind == "outer":
            tensor = _unfolded(tensor, self.axis, rows, tensor.shape[self.axis] // rows)
        elif self.kind == "inner":
            tensor = _unfolded(tensor, self.axis, tensor.shape[self.axis] // rows, rows).movedim(self.axis + 1, 0)
            return tensor.reshape(rows, -1, *rest)
        if self.axis:
            tensor = tensor.movedim(self.axis, 0)
        return tensor.reshape(rows, -1, *rest)


def _unfolded(tensor: Tensor, axis: int, first: int, second: int) -> Tensor:
    return tensor.reshape(*tensor.shape[:axis], first, second, *tensor.shape[axis + 1 :])


WHOLE = Layout("whole")
FIRST = Layout("plain", 0)


def candidates(lead: tuple[int, ...], rows: int) -> list[Layout]:
    """The layouts that the sizes allow, the likeliest first."""
    plain = [Layout("plain", axis) for axis in range(len(lead))]
    folded = [Layout(kind, axis) for axis, size in enumerate(lead) if size != rows for kind in ("outer", "inner")]
    return [layout for layout in plain + folded if layout.fits(lead, rows)]


def probe_weights(rows: int, like: Tensor) -> Tensor:
    """Weights that tell rows apart: fixed, all different from their neighbours, between 1 and 2."""
    golden = torch.arange(1, rows + 1, dtype=torch.float64) * 0.6180339887498949
    return (1.0 + golden.frac()).to(like)


def matches(layout: Layout, plain: Tensor, scaled: Tensor, lead: int, weights: Tensor) -> bool:
    """Whether `scaled` is `plain` times each row's weight, with rows where `layout` says they are."""
    rows = weights.shape[0]
    before = layout.split(plain, lead, rows).reshape(rows, -1)
    after = layout.split(scaled, lead, rows).reshape(rows, -1)
    expected = before * weights.unsqueeze(1).to(before)
    usable = torch.isfinite(expected) & torch.isfinite(after)
    gap = torch.where(usable, (after - expected).abs(), torch.zeros_like(after)).amax(1)
    scale = torch.where(usable, expected.abs(), torch.zeros_like(after)).amax(1)
    return bool((gap <= 1e-3 * scale + 1e-7 * scale.amax()).all())
