"""Computed weights: the tensors of a pass that hold no row, and the parameters that they are computed from.

`weight_norm`, weight standardisation, DoRA and `F.linear(x, 2 * W)` compute a weight before they use it. The gradient
of a parameter behind such a weight is that of the weight, pulled back through what was computed. A tensor is known to
hold no row if nothing that went into it may hold one: parameters, buffers, what was made from no tensor at all, and
what was computed from these. Whatever else a call is given may hold rows, and what it returns is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor without rows, the parameters behind it, and the version and the node that it had when it was computed.

    A later write voids it, and so does another node: what an autograd function computed, its forward has shown without
    the gradients that its backward gives.
    """

    tensor: Tensor
    behind: tuple[Tensor, ...]
    version: int
    node: Any

    @classmethod
    def now(cls, tensor: Tensor, behind: tuple[Tensor, ...]) -> Known:
        """The tensor as it is."""
        return cls(tensor, behind, tensor._version, tensor.grad_fn)

    @property
    def changed(self) -> bool:
        """Whether its graph may be another one since."""
        return self.tensor._version != self.version or self.tensor.grad_fn is not self.node


class Computed:
    """What one pass computed without any row. `parameters` and `buffers` are those of the model."""

    def __init__(self, parameters: Iterable[Tensor], buffers: Iterable[Tensor]) -> None:
        self._trainable = {id(parameter): parameter for parameter in parameters}
        self._buffers = buffers
        self._held: dict[int, Tensor] | None = None
        self._known: dict[int, Known] = {}

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a function, and note what it returns if it is given no row."""
        behind = self.behind((*args, *options.values()) if options else args)
        result = function(*args, **options)
        if behind is not None:
            self.note(result, behind)
        return result

    def trained(self, tensor: Tensor | None) -> Known | None:
        """A tensor that rules may take for a parameter: one of the model, or one computed from some and no row."""
        known = self._known.get(id(tensor))
        if known is not None:
            return known if known.behind and not known.changed else None
        parameter = self._trainable.get(id(tensor))
        return None if parameter is None else Known.now(parameter, (parameter,))

    def behind(self, given: Iterable[Any]) -> tuple[Tensor, ...] | None:
        """The parameters behind everything that a call is given; None if some of it may hold rows."""
        found: dict[int, Tensor] = {}
        for part in given:
            if isinstance(part, Tensor):
                own = self._behind(part)
            elif isinstance(part, list | tuple):
                own = self.behind(part)
            else:
                continue
            if own is None:
                return None
            for parameter in own:
                found[id(parameter)] = parameter
        return tuple(found.values())

    def note(self, result: Any, behind: tuple[Tensor, ...]) -> None:
        """Know what was computed from these parameters and no row; without parameters it is a constant."""
        if isinstance(result, list | tuple):
            for part in result:
                self.note(part, behind)
        elif isinstance(result, Tensor) and not isinstance(result, nn.Parameter) and not result.is_inference():
            carried = behind if result.requires_grad else ()
            if carried or not result.requires_grad:
                self._known[id(result)] = Known.now(result, carried)

    def close(self) -> None:
        """Release every tensor."""
        self._trainable, self._known, self._held = {}, {}, None

    def _behind(self, tensor: Tensor) -> tuple[Tensor, ...] | None:
        known = self._known.get(id(tensor))
        if known is not None:
            return None if known.changed else known.behind
        if id(tensor) in self._trainable:
            return (tensor,)
        if tensor.requires_grad:  # somebody else's parameter, or a buffer into which rows were written
            return None
        if isinstance(tensor, nn.Parameter):
            return ()
        if self._held is None:
            self._held = {id(buffer): buffer for buffer in self._buffers}
        return () if id(tensor) in self._held else None
