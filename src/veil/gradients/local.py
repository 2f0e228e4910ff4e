"""Local fallback: per-row gradients of one module's parameters from that module's own calls, without the whole model.

A module whose parameters no rule covers is watched from outside: its inputs, its output, and the gradient that
reaches the output. Its parameters' gradients per row then come from torch.func on that module alone. This is done
only where it is known to be correct: the module was called once, its parameters act nowhere else, it draws no random
numbers, its outputs stand in the order of the rows (known as for any layer), and taking its rows one by one gives the
very output that the batch gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from veil.foundation.nested import mapped, tensors
from veil.gradients.fallback import without_advice
from veil.gradients.layouts import FIRST, WHOLE
from veil.gradients.recording import Parts, Recorder, Rows, Use


@dataclass(slots=True)
class Call:
    """One call of a watched module: inputs, outputs, and the gradients of the outputs once they are known."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    versions: list[int]
    outputs: list[Tensor]
    nodes: set[Any]
    uses: list[Use] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)


class Watch:
    """Forward hooks on some modules for the time of one forward pass; `close` removes them."""

    def __init__(self, model: nn.Module, modules: Iterable[str], recorder: Recorder) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in modules}
        self._recorder = recorder
        self._handles = [
            model.get_submodule(name).register_forward_hook(partial(self._called, name), with_kwargs=True)
            for name in self.calls
        ]

    def stop(self) -> None:
        """Remove the hooks: the forward pass is over."""
        for handle in self._handles:
            handle.remove()

    def close(self) -> None:
        """Stop, and release the graph, which holds a reference to this object."""
        self.stop()
        for call in (call for calls in self.calls.values() for call in calls):
            call.nodes.clear()
            call.uses.clear()
            call.gradients.clear()
        self.calls.clear()

    def _called(self, name: str, module: nn.Module, args: Any, options: Any, output: Any) -> None:
        outputs = [tensor for tensor in tensors(output) if tensor.requires_grad]
        given = [(tensor.detach(), tensor._version) for tensor in tensors((args, options))]
        plain = mapped((args, options), lambda tensor: tensor.detach())
        call = Call(plain[0], plain[1], [version for _, version in given], [], set())
        with torch._C.DisableTorchFunction():  # it is not the model that looks at nodes here
            for place, tensor in enumerate(outputs):
                call.outputs.append(tensor.detach().clone())
                call.nodes.add(tensor.grad_fn)
                call.uses.append(self._recorder.follow("module", tensor, 1, partial(_keep, call, place)))
        self.calls[name].append(call)


def _keep(call: Call, place: int, gradient: Tensor, rows: Rows) -> Parts:
    # A copy: the module's own backward may write into what it is given.
    call.gradients[place] = gradient.clone()
    return ()


def owners(names: Iterable[str]) -> dict[str, list[str]]:
    """For each parameter the modules around it, innermost first; the model itself is not among them."""
    found: dict[str, list[str]] = {}
    for name in names:
        path = name.split(".")[:-1]
        found[name] = [".".join(path[:size]) for size in range(len(path), 0, -1)]
    return found


def draws_random_numbers(module: nn.Module) -> bool:
    """Whether some part of the module is a dropout that is switched on."""
    for part in module.modules():
        rate = getattr(part, "p", None) if "Dropout" in type(part).__name__ else getattr(part, "dropout", None)
        if part.training and isinstance(rate, float) and rate > 0:
            return True
    return False


def per_row_of_module(
    module: nn.Module, call: Call, rows: int, parameters: dict[str, Tensor]
) -> dict[str, Tensor] | None:
    """Per-row gradients of `parameters` (by their names in the module); None if they may be wrong."""
    given = list(tensors((call.args, call.options)))
    changed = [tensor._version for tensor in given] != call.versions
    by_row = [place for place, tensor in enumerate(given) if tensor.ndim > 0 and tensor.shape[0] == rows]
    moved = any(use.layout not in (FIRST, WHOLE) for use in call.uses if use.place is not None)
    if changed or moved or not by_row or not call.outputs or any(out.shape[:1] != (rows,) for out in call.outputs):
        return None
    gradients = [call.gradients.get(place, torch.zeros_like(out)) for place, out in enumerate(call.outputs)]
    plain = {name: parameter.detach() for name, parameter in parameters.items()}
    outputs_of = _row_function(module, call, given, by_row)

    def pulled(inputs: list[Tensor], pulls: list[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
        found: Any = vjp(lambda values: outputs_of(values, inputs), plain)
        (result,) = found[1](pulls)
        return result, found[0]

    try:
        with without_advice():
            result, outputs = vmap(pulled)([given[place] for place in by_row], gradients)
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        # Whatever torch.func cannot do here is left to the general fallback, which says so.
        return None
    if any(not _same(one, other) for one, other in zip(outputs, call.outputs, strict=True)):
        return None
    return {name: values.detach() for name, values in result.items()}


def _row_function(
    module: nn.Module, call: Call, given: list[Tensor], by_row: list[int]
) -> Callable[[dict[str, Tensor], list[Tensor]], list[Tensor]]:
    """The module's differentiable outputs for one row, as a function of its parameters and that row's inputs."""
    rows = call.outputs[0].shape[0]
    shapes = [tuple(out.shape[1:]) for out in call.outputs]

    def outputs_of(values: dict[str, Tensor], inputs: list[Tensor]) -> list[Tensor]:
        replaced = dict(zip(by_row, inputs, strict=True))
        order = iter(range(len(given)))

        def put(tensor: Tensor) -> Tensor:
            place = next(order)
            return replaced[place].unsqueeze(0) if place in replaced else tensor

        args, options = mapped((call.args, call.options), put)
        output = functional_call(module, values, args, options)
        found = [tensor.squeeze(0) for tensor in tensors(output) if tensor.ndim > 0 and tensor.shape[0] == 1]
        if len(found) != len(shapes) or [tuple(tensor.shape) for tensor in found] != shapes or rows == 0:
            raise ValueError("the module's outputs have other shapes for one row")
        return found

    return outputs_of


def _same(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-4 if one.dtype != torch.float64 else 1e-8
    scale = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
    usable = torch.isfinite(one) & torch.isfinite(other)
    return bool(((one - other).abs()[usable] <= tolerance * scale).all())
