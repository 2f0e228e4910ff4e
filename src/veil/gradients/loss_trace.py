"""Loss traces: whether the user's own pass keeps rows separate outside the model.

In a user-written loop the loss is a tensor, not a function that could be tested before. But every torch call between
the batch and the model, and between the model and the losses, is seen while it happens. Once the losses are given, the
same calls are made again with the values of some rows changed: nothing may change at the other rows. That also finds
what the autograd graph does not show, such as weights that were detached.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from veil.foundation.nested import mapped, tensors
from veil.gradients.records import Batch, GradientError

TOLERANCE = 1e-3
# More calls than this are not a loss: the pass goes around the model's own `forward`, and is not made again.
MOST_CALLS = 2000
# The first passes are tried in every way, later ones in one way each: a loop seldom changes what it does.
THOROUGH = 5
# What these give has the shape of a row's values and nothing else of them.
_LIKE = ("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like")
_NEW = ("new_empty", "new_full", "new_ones", "new_zeros", "new_tensor")


@dataclass(slots=True)
class _Step:
    """One torch call on values that come from rows."""

    function: Any
    args: Any
    options: dict[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class _Start:
    """A tensor as it was when it was first seen, and whether it holds one value per row."""

    value: Tensor
    by_row: bool


class LossTrace(TorchFunctionMode):
    """Records the torch calls of a pass over `batch` outside `model`; `check` repeats them with other rows.

    Which rows are changed, and how, follows from `turn`, the number of passes before.
    """

    def __init__(self, model: nn.Module, batch: Batch, turn: int = 0) -> None:
        super().__init__()
        given = list(tensors(batch))
        self._model, self._rows, self._turn = model, given[0].shape[0], turn
        self._depth, self._open = 0, ExitStack()
        self._steps: list[_Step] = []
        self._starts: dict[int, _Start] = {}
        self._given: list[Tensor] = []
        self._known: dict[int, Tensor] = {}  # the tensors themselves, so that no other one takes up their ids
        for tensor in given:
            self._begin(tensor)

    def __enter__(self) -> LossTrace:
        """Start watching."""
        self._open.callback(self._model.register_forward_pre_hook(self._enters, with_kwargs=True).remove)
        self._open.callback(self._model.register_forward_hook(self._leaves, always_call=True).remove)
        self._open.push(super().__exit__)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching; safe to call twice."""
        self._open.pop_all().__exit__(kind, error, trace)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options, name = kwargs or {}, getattr(func, "__name__", "")
        if self._depth or len(self._steps) > MOST_CALLS or name in _LIKE or name in _NEW:
            return func(*args, **options)
        given = list(tensors((args, list(options.values()))))
        if not any(id(tensor) in self._known for tensor in given):
            return func(*args, **options)
        written = _written(name, args, options)
        if written is not None and id(written) not in self._known:
            self._begin(written, by_row=False)
        result = func(*args, **options)
        found = list(tensors(result))
        if found or written is not None:
            self._steps.append(_Step(func, args, options, result))
            self._known.update((id(tensor), tensor) for tensor in found)
        return result

    def check(self, losses: Tensor) -> None:
        """Raise `GradientError` if the losses or the model's inputs mix or reorder rows."""
        self.__exit__(None, None, None)
        try:
            if self._rows > 1 and len(self._steps) <= MOST_CALLS:
                with torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self._check(losses)
        finally:
            for held in (self._steps, self._starts, self._given, self._known):
                held.clear()

    def _check(self, losses: Tensor) -> None:
        ends = [(losses, "the losses mix rows", "compute each row's loss from that row alone, in the same order")]
        fix = "pass the rows of the batch to the model unchanged and in order (no mixup)"
        ends += [(tensor, "the model's inputs mix rows", fix) for tensor in self._given]
        made = {id(tensor) for step in self._steps for tensor in tensors((step.args[:1], step.result))}
        plain = self._again(None, "") if made else {}
        # Calls that give something else each time (random numbers) show nothing, nor does what was not seen.
        ends = [end for end in ends if id(end[0]) in made and self._has_rows(end[0])]
        ends = [end for end in ends if _same(plain.get(id(end[0])), end[0])]
        half = torch.rand(self._rows, generator=torch.Generator().manual_seed(self._turn)) < 0.5
        half[0], half[-1] = True, False
        ways = [(rows, kind) for kind in ("shifted", "repeated") for rows in (half, ~half)]
        for changed, kind in ways if self._turn < THOROUGH else ways[self._turn % 4 :][:1]:
            other = self._again(changed, kind) if ends else {}
            for end, what, fix in ends:
                one, two = plain[id(end)], other.get(id(end))
                if two is not None and not _same(two, one, ~changed):
                    raise GradientError(f"{what} (changing some rows of the batch changes others): {fix}")

    def _again(self, changed: Tensor | None, kind: str) -> dict[int, Tensor]:
        """Every value of the pass with some rows replaced at every start; as far as the calls take such values."""
        values: dict[int, Tensor] = {}

        def put(tensor: Tensor) -> Tensor:
            key = id(tensor)
            if key not in values and key in self._starts:
                start = self._starts[key]
                value = start.value
                values[key] = value.clone() if changed is None or not start.by_row else _replaced(value, changed, kind)
            return values.get(key, tensor)

        for step in self._steps:
            try:
                options = {key: mapped(value, put) for key, value in step.options.items()}
                result = step.function(*mapped(step.args, put), **options)
                values.update(zip(map(id, tensors(step.result)), tensors(result), strict=True))
            except Exception:  # values that the user's own calls do not take
                return {}
        return values

    def _begin(self, tensor: Tensor, by_row: bool = True) -> None:
        """Take a tensor as given: rows of the batch, what the model made of them, or what rows are written into."""
        if id(tensor) not in self._starts:
            self._known[id(tensor)] = tensor
            self._starts[id(tensor)] = _Start(tensor.detach().clone(), by_row and self._has_rows(tensor))

    def _has_rows(self, tensor: Tensor) -> bool:
        """Whether rows are certainly the first dimension; another dimension of this size makes it ambiguous."""
        return tensor.shape[:1] == (self._rows,) and self._rows not in tensor.shape[1:]

    def _enters(self, model: nn.Module, args: Any, options: Any) -> None:
        if not self._depth:
            self._given += [tensor for tensor in tensors((args, options)) if id(tensor) in self._known]
        self._depth += 1

    def _leaves(self, model: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if not self._depth:
            for tensor in tensors(output):
                self._begin(tensor)


def _written(name: str, args: Any, options: dict[str, Any]) -> Tensor | None:
    """The tensor that a call writes into, if it does."""
    if isinstance(options.get("out"), Tensor):
        return options["out"]  # type: ignore[no-any-return]
    setting = name in ("__setitem__", "__set__") or (name.startswith("__i") and name != "__invert__")
    writes = setting or (name.endswith("_") and not name.endswith("__"))
    return args[0] if writes and args and isinstance(args[0], Tensor) else None


def _replaced(values: Tensor, rows: Tensor, kind: str) -> Tensor:
    """The values with some rows repeating the first of them, or shifted, or other whole numbers of the same range."""
    found, rows = values.clone(), rows.to(values.device)
    if kind == "repeated":
        found[rows] = values[rows][:1]
    elif values.is_floating_point():
        found[rows] = 2.0 * values[rows] + 1.0
    elif values.dtype != torch.bool:
        found[rows] = values.min() + values.max() - values[rows]
    return found


def _same(one: Tensor | None, other: Tensor, rows: Tensor | None = None) -> bool:
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, whole = one.detach(), other.detach()
    if rows is not None:
        one, other = one[rows.to(one.device)], whole[rows.to(one.device)]
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(whole.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return torch.allclose(one, other.detach(), rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
