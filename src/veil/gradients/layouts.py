"""Layouts: where the rows of a batch stand among the leading dimensions of a layer's output.

Most models keep rows first. Some put time first, some fold rows and positions into one dimension. What a layer's
rule needs is always (rows, positions, features). The layout follows from the graph of the pass (`tracing`); where the
graph does not show it, it is probed in that pass: scaling a row's loss must scale exactly the places where it stands.
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
        return size == rows if self.kind == "plain" else size > 0 and size % rows == 0

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


# Exact in every precision, and small enough that no gradient of ordinary size leaves the range of single precision.
_DIGITS = 16
# How much of a row's gradient (by norm) may stand at places of other rows. Scaling by powers of two is exact, so only
# underflow is left to tolerate.
_TOLERANCE = 1e-5


def probe_scales(rows: int, like: Tensor) -> list[Tensor]:
    """Scales of the rows' losses: ones, and powers of two by the digits of the row's number in base 16.

    Any two rows differ in some digit, so in one of these their gradients are scaled at least a factor of 2 apart.
    """
    scales, numbers = [torch.ones(rows)], torch.arange(rows)
    while not scales[1:] or bool(numbers.any()):
        scales.append(torch.ldexp(torch.ones(rows), numbers % _DIGITS - _DIGITS // 2))
        numbers = numbers // _DIGITS
    return [scale.to(like) for scale in scales]


def matches(layout: Layout, gradients: list[Tensor], scales: list[Tensor], lead: int) -> bool:
    """Whether every place of the gradient is scaled with the row that the layout puts there, and with no other.

    Rows that are not finite cannot be told apart: they match no layout.
    """
    plain, *others = (layout.split(gradient, lead, len(scales[0])).flatten(1) for gradient in gradients)
    allowed = _TOLERANCE * torch.linalg.vector_norm(plain, dim=1) + torch.finfo(plain.dtype).tiny
    for scaled, scale in zip(others, scales[1:], strict=True):
        gap = torch.linalg.vector_norm(scaled - plain * scale.unsqueeze(1), dim=1)
        if not bool((gap <= scale * allowed).all()):
            return False
    return True
