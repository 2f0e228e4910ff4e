"""Layouts: where the rows of a batch stand among the leading dimensions of a layer's output.

Most models keep rows first. Some put time first, some fold rows and positions into one dimension. What a layer's
rule needs is always (rows, positions, features), so the layout is found once per structure by a probe and then
remembered: leaving a row's loss out must leave zeros exactly where that row stands.
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


def probe_masks(rows: int, like: Tensor) -> list[Tensor]:
    """Three sets of rows, as zeros and ones: the odd ones, the even ones, and a fixed irregular half."""
    index = torch.arange(rows, dtype=torch.float64)
    irregular = (index * 0.6180339887498949).frac() < 0.5
    return [(index % 2).to(like), (1 - index % 2).to(like), irregular.to(like)]


def matches(layout: Layout, gradients: list[Tensor], masks: list[Tensor], lead: int) -> bool:
    """Whether each gradient, taken with the losses of some rows left out, is exactly zero where those rows stand."""
    for gradient, mask in zip(gradients, masks, strict=True):
        rows = mask.shape[0]
        absent = layout.split(gradient, lead, rows).reshape(rows, -1)[mask == 0]
        # Zero times the infinite is NaN: a row that is not finite tells nothing.
        if bool((absent.nan_to_num(0.0) != 0).any()):
            return False
    return True
