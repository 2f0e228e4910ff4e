"""Bare parameters: used by addition, multiplication, expansion, or as a matrix.

A parameter that broadcasts against rows is expanded along the row's axis first; the gradient of that expansion is
the gradient per row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from veil.gradients.contributions import Outer, Rowwise
from veil.gradients.layouts import Layout
from veil.gradients.recording import Parts, Recorder, Rows, rule

_ELEMENTWISE = ("add", "sub", "mul", "div", "true_divide", "subtract", "multiply", "divide", "maximum", "minimum")


def _elementwise(function: Any, recorder: Recorder, *args: Any, **options: Any) -> Any:
    if len(args) < 2 or "out" in options:
        return NotImplemented
    left, right, *rest = args
    first, second = (isinstance(side, Tensor) and recorder.trains(side) for side in (left, right))
    if first == second:
        return NotImplemented
    parameter, other = (left, right) if first else (right, left)
    if not isinstance(other, Tensor):
        return NotImplemented
    shape: torch.Size = torch.broadcast_shapes(left.shape, right.shape)  # type: ignore[no-untyped-call]
    expanded = _expanded(recorder, parameter, shape)
    if expanded is None:
        return NotImplemented
    return function(expanded, other, *rest, **options) if first else function(other, expanded, *rest, **options)


def _expanded(recorder: Recorder, parameter: Tensor, shape: torch.Size) -> Tensor | None:
    """The parameter broadcast along every axis of `shape` that could hold rows, recorded; None if there is none."""
    aligned = (1,) * (len(shape) - parameter.ndim) + tuple(parameter.shape)
    wanted, axes = list(aligned), list[int]()
    for axis, (have, size) in enumerate(zip(aligned, shape, strict=True)):
        if recorder.rows > 1 and have == 1 and size > 1 and size % recorder.rows == 0:
            wanted[axis] = size
            axes.append(axis)
    if not axes and recorder.rows > 1:
        return None
    expanded = parameter.detach().view(aligned).expand(wanted).requires_grad_()
    return _recorded(recorder, parameter, expanded, aligned, max(axes, default=0) + 1)


def _recorded(recorder: Recorder, parameter: Tensor, expanded: Tensor, aligned: tuple[int, ...], lead: int) -> Tensor:
    def parts(gradient: Tensor, rows: Rows) -> Parts:
        yield parameter, Rowwise(_reduced(gradient, rows.layout, rows.count, aligned).view(-1, *parameter.shape))

    return recorder.record("parameter", parameter.detach(), expanded, lead, (parameter,), parts)


def _reduced(gradient: Tensor, layout: Layout, rows: int, aligned: tuple[int, ...]) -> Tensor:
    """Sum everything but rows out of the gradient of an expanded parameter: (rows, *aligned without the row axis)."""
    if layout.kind == "whole":
        return gradient.sum_to_size(aligned).unsqueeze(0)
    axis = layout.axis
    folds = gradient.shape[axis] // rows
    if aligned[axis] != 1:
        return _by_place(gradient, layout, rows).sum_to_size((rows, *aligned))
    sizes = (folds, rows) if layout.kind == "inner" else (rows, folds)
    gradient = gradient.reshape(*gradient.shape[:axis], *sizes, *gradient.shape[axis + 1 :])
    moved = gradient.movedim(axis + 1 if layout.kind == "inner" else axis, 0)
    return moved.sum_to_size((rows, *aligned))


def _by_place(gradient: Tensor, layout: Layout, rows: int) -> Tensor:
    """(rows, *gradient) with zeros where other rows stand, for rows along an axis of the parameter itself."""
    places = torch.arange(gradient.shape[layout.axis], device=gradient.device)
    owners = places % rows if layout.kind == "inner" else places // (len(places) // rows)
    own = owners == torch.arange(rows, device=gradient.device).unsqueeze(1)
    shape = [rows] + [1] * gradient.ndim
    shape[layout.axis + 1] = len(places)
    return torch.where(own.view(shape), gradient, gradient.new_zeros(()))


def _expansion(function: Any, recorder: Recorder, parameter: Any = None, *sizes: Any, **options: Any) -> Any:
    if not isinstance(parameter, Tensor) or not recorder.trains(parameter):
        return NotImplemented
    expanded = function(parameter.detach(), *sizes, **options)
    extra = expanded.ndim - parameter.ndim
    aligned = (1,) * extra + tuple(parameter.shape)
    pairs = list(zip(aligned, expanded.shape, strict=True))
    if any(have not in (1, size) for have, size in pairs):
        return NotImplemented
    axes = [axis for axis, (have, size) in enumerate(pairs) if have == 1 and size % recorder.rows == 0]
    if recorder.rows > 1 and not axes:
        return NotImplemented
    leaf = expanded.detach().requires_grad_()
    return _recorded(recorder, parameter, leaf, aligned, max(axes, default=0) + 1)


def _product(function: Any, recorder: Recorder, left: Any = None, right: Any = None, **options: Any) -> Any:
    """x @ W: the gradient of W is Σ_t x_t ⊗ g_t."""
    tensors = isinstance(left, Tensor) and isinstance(right, Tensor)
    if (
        not tensors
        or options
        or recorder.trains(left)
        or not recorder.trains(right)
        or right.ndim != 2
        or left.ndim < 2
        or recorder.computes_weight("product", left)
    ):
        return NotImplemented
    (plain,) = recorder.opened(left, right)
    output = function(left, plain)

    def parts(gradient: Tensor, rows: Rows) -> Parts:
        yield right, Outer(rows.split(left.detach()), rows.split(gradient), right.shape)

    return recorder.record("product", left, output, left.ndim - 1, (right,), parts)


def _named(*names: str) -> list[Any]:
    """Each torch function of that name, as a function and as a method."""
    owners = (torch, Tensor)
    return [getattr(owner, name) for owner in owners for name in names if hasattr(owner, name)]


for _function in _named(*_ELEMENTWISE):
    rule(_function)(partial(_elementwise, _function))
for _function in (Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to, Tensor.broadcast_to):
    rule(_function)(partial(_expansion, _function))
for _function in _named("matmul", "mm"):
    rule(_function)(partial(_product, _function))
