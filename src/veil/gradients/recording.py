"""Recording: watches a forward pass call by call and keeps what the layer rules need from it.

The recorder is a torch function mode: while it is active it sees every torch function that the model calls, and
touches neither the model nor its parameters. A call that has a rule and a trainable parameter among its arguments
is run by the rule on detached parameters, and its output gets a hook that hands the output's gradient to the rule
during the backward pass. Parameters used in any other way stay in the autograd graph, where they are found
afterwards and given to the fallback: nothing is missed silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from veil.gradients.contributions import Contribution, through
from veil.gradients.layouts import WHOLE, Layout, candidates, matches, probe_masks
from veil.gradients.records import GradientError

Parts: TypeAlias = Iterable[tuple[Tensor, Contribution]]
Rule: TypeAlias = Callable[..., Any]

_RULES: dict[Any, Rule] = {}


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for these torch functions.

    A rule takes the recorder and then the torch function's own arguments, and returns what the function returns.
    """

    def register(function: Rule) -> Rule:
        for key in functions:
            _RULES[key] = function
        return function

    return register


class Rows:
    """How one recorded call's tensors are cut into rows; given to a rule's `build` in the backward pass."""

    __slots__ = ("count", "layout", "lead")

    def __init__(self, count: int, layout: Layout, lead: int) -> None:
        self.count, self.layout, self.lead = count, layout, lead

    def split(self, tensor: Tensor, lead: int | None = None) -> Tensor:
        """`tensor` as (rows, positions, *features)."""
        return self.layout.split(tensor, self.lead if lead is None else lead, self.count)


Build: TypeAlias = Callable[[Tensor, Rows], Parts]


@dataclass(slots=True)
class Use:
    """One recorded call: how its output's gradient becomes contributions, where its rows stand, its size in bytes."""

    label: str
    parameters: tuple[Tensor, ...]
    lead: tuple[int, ...]
    key: tuple[Any, ...]
    build: Build | None
    layout: Layout | None
    size: int


class Recorder(TorchFunctionMode):
    """Sees one forward pass over `rows` rows and calls `arrived` with each contribution of the backward pass."""

    def __init__(
        self,
        names: dict[int, str],
        rows: int,
        layouts: dict[tuple[Any, ...], Layout | None],
        arrived: Callable[[Tensor, Contribution], None],
    ) -> None:
        super().__init__()
        self.names = dict(names)
        self.views: dict[int, tuple[Tensor, Tensor]] = {}
        self.rows = rows
        self.layouts = layouts
        self.arrived = arrived
        self.uses: list[Use] = []
        self.calls = 0
        self.roots: list[GradientEdge] = []
        self.probed: list[dict[int, Tensor]] | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _RULES.get(func)
        if handler is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        result = handler(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def close(self) -> None:
        """Let go of everything: hooks hold the recorder, which holds their nodes, a cycle that nothing else cuts."""
        self.uses.clear()
        self.roots.clear()
        self.views.clear()
        self.names = {}
        self.probed = None

    def trains(self, *parameters: Tensor | None) -> bool:
        """Whether any of these is a trainable parameter of the model."""
        names = self.names
        return any(id(parameter) in names for parameter in parameters)

    def derive(self, source: Tensor, result: Tensor) -> Tensor:
        """Let `result`, computed from the parameter (or derived tensor) `source` and no row, stand for it in rules.

        It stays in the autograd graph, so that a use without a rule still reaches the parameter.
        """
        if result.requires_grad:
            parameter = self.views[id(source)][1] if id(source) in self.views else source
            self.views[id(result)] = (result, parameter)
            self.names[id(result)] = self.names[id(parameter)]
        return result

    def without_rows(self, label: str, lead: Sequence[int]) -> bool:
        """Whether the next call, whose leading sizes are `lead`, is known or seen to work on no row at all."""
        if self.rows == 1:
            return False
        if (self.calls, label) not in self.layouts and candidates(tuple(lead), self.rows):
            return False
        self.layouts[self.calls, label] = None
        return True

    def opened(self, source: Tensor, *parameters: Tensor | None) -> list[Tensor | None]:
        """The parameters detached where they are trainable; if `source` carries no gradient, the first of them does.

        That one only makes the output differentiable: no gradient is ever asked for it.
        """
        names, carried, result = self.names, source.requires_grad, list[Tensor | None]()
        for parameter in parameters:
            if parameter is not None and id(parameter) in names:
                parameter = parameter.detach()
                if not carried:
                    carried = parameter.requires_grad_().requires_grad
            result.append(parameter)
        return result

    def record(
        self,
        label: str,
        source: Tensor,
        output: Tensor,
        lead: int,
        parameters: Sequence[Tensor | None],
        build: Build,
        layout: Layout | None = None,
    ) -> Tensor:
        """Have `build(gradient of output, rows)` called in the backward pass; returns `output`.

        The first `lead` dimensions of `output` hold rows and positions; `layout` says where, if the rule knows.
        """
        names = self.names
        trained = tuple(p for p in parameters if p is not None and id(p) in names)
        key = (self.calls, label, output.ndim, *(names[id(p)] for p in trained))
        self.calls += 1
        if self.rows == 1:
            layout = WHOLE
        size = source.numel() * source.element_size() + output.numel() * output.element_size()
        use = Use(label, trained, tuple(output.shape[:lead]), key, build, layout, size)
        self.uses.append(use)
        if not source.requires_grad:
            node = output.grad_fn
            self.roots.append(get_gradient_edge(output) if node is None else GradientEdge(node, output.output_nr))
        output.register_hook(partial(self._gradient, use))  # type: ignore[no-untyped-call]
        return output

    def trained(self, use: Use) -> list[str]:
        """Names of the parameters that a use contributes to."""
        return [self.names[id(parameter)] for parameter in use.parameters]

    def _gradient(self, use: Use, gradient: Tensor) -> None:
        if self.probed is not None:
            self.probed[-1][id(use)] = gradient
        elif use.layout is not None and use.build is not None:
            build, use.build = use.build, None
            for parameter, contribution in build(gradient, Rows(self.rows, use.layout, len(use.lead))):
                held = self.views.get(id(parameter))
                if held is None:
                    self.arrived(parameter, contribution)
                else:
                    self.arrived(held[1], through(*held, contribution))

    def settle_layouts(self, losses: Tensor, inputs: Sequence[Any]) -> None:
        """Give every use its layout: remembered, or found by a probe that costs three extra backward passes once."""
        unknown = False
        for use in self.uses:
            if use.layout is None:
                use.layout = self.layouts.get(use.key)
                if use.layout is None:
                    unknown = unknown or use.key not in self.layouts
                elif not use.layout.fits(use.lead, self.rows):
                    use.layout, unknown = None, True
        if unknown:
            self._probe(losses, inputs)

    def _probe(self, losses: Tensor, inputs: Sequence[Any]) -> None:
        masks = probe_masks(self.rows, losses)
        self.probed = []
        for mask in masks:
            self.probed.append({})
            torch.autograd.grad(losses, inputs, mask, retain_graph=True, allow_unused=True)
        probed, self.probed = self.probed, None
        for use in self.uses:
            gradients = [found[id(use)] for found in probed if id(use) in found]
            if use.layout is WHOLE or len(gradients) < len(masks):
                continue
            possible = candidates(use.lead, self.rows)
            use.layout = next((c for c in possible if matches(c, gradients, masks, len(use.lead))), None)
            # A gradient of zeros fits every layout and teaches none: ask again at the next batch.
            if any(bool((gradient != 0).any()) for gradient in gradients):
                self.layouts[use.key] = use.layout
                if use.layout is None:
                    self.layouts[use.key[:2]] = None


def unruled(losses: Tensor, recorder: Recorder, beyond: Iterable[Any] = ()) -> list[Tensor]:
    """The leaves that the losses reach without passing a recorded call: parameters used where no rule applies.

    Nodes in `beyond` are not passed either.
    """
    leaves: list[Tensor] = []
    if losses.grad_fn is None:
        return leaves
    stops = {edge.node for edge in recorder.roots}.union(beyond)
    seen = {losses.grad_fn}
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node in stops:
            continue
        if node.name().endswith("CheckpointFunctionBackward"):
            raise GradientError(
                "the model recomputes activations by reentrant checkpointing, which hides its parameters: "
                "remove torch.utils.checkpoint and bound memory with micro_batch or max_memory instead"
            )
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return leaves
