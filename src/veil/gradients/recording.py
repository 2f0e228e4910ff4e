"""Recording: watches a forward pass call by call and keeps what the layer rules need from it.

The recorder is a torch function mode: while it is active it sees every torch function that the model calls, and
touches neither the model nor its parameters. A call that has a rule and a trainable parameter among its arguments
is run by the rule on detached parameters, and its output gets a hook that hands the output's gradient to the rule
during the backward pass. What is computed from parameters and no row stands for them in every rule (`computed`).
Parameters used in any other way stay in the autograd graph, which is read down to its last leaf after every pass: what
is found there is given to the fallback, so nothing is missed silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from veil.gradients.computed import Computed, Known
from veil.gradients.contributions import Contribution, through
from veil.gradients.graphs import Graph
from veil.gradients.layouts import WHOLE, Layout, candidates, matches, probe_scales
from veil.gradients.records import GradientError
from veil.gradients.tracing import layout_at, traced

Parts: TypeAlias = Iterable[tuple[Tensor, Contribution]]
Rule: TypeAlias = Callable[..., Any]

_RULES: dict[Any, Rule] = {}
_HOOKS = {Tensor.register_hook, Tensor.register_post_accumulate_grad_hook}
# Whoever has a node of the graph can put a hook on it, which the graph does not show.
_NODE = vars(torch._C.TensorBase)["grad_fn"].__get__


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for these torch functions.

    A rule takes the recorder and then the torch function's own arguments, and returns what the function returns.

    Args:
        functions: Functions of torch, such as `torch.nn.functional.bilinear`.

    Returns:
        A decorator, which returns its function unchanged.

    >>> @rule()  # for no function: a rule that is never called
    ... def unused(recorder, x):
    ...     return NotImplemented
    >>> unused.__name__
    'unused'
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
    """One recorded call: how its output's gradient becomes contributions, where its rows stand, its size in bytes.

    `parameters` are those that it was given, or what was computed from some, as they were then. `place` is that of its
    node in the graph of the pass; None if the losses do not depend on the call. `source` is what the rule reads again
    in the backward pass: it must not be changed until then.
    """

    label: str
    call: int
    parameters: tuple[Known, ...]
    shape: tuple[int, ...]
    lead: int
    edge: tuple[Any, int]
    build: Build | None
    layout: Layout | None
    size: int
    place: int | None = None
    source: Tensor | None = None
    version: int = 0


@dataclass(slots=True)
class Structures:
    """What is known about passes from their structure, never from their values.

    Layouts of the recorded calls by the key of the graph; the kinds of operations for which tracing was compared with
    a probe; and the calls (by number and label) that were seen to work on no row at all.
    """

    layouts: dict[Any, tuple[Layout | None, ...]] = field(default_factory=dict)
    compared: set[Any] = field(default_factory=set)
    without_rows: set[tuple[int, str]] = field(default_factory=set)


# Batches have many sizes, each with its own key: more than this many are forgotten and traced again.
_REMEMBERED = 4096


def _hooked() -> GradientError:
    return GradientError(
        "the model changes gradients by a hook on a tensor, which may mix rows undetected: write it as a "
        "torch.autograd.Function instead"
    )


class Recorder(TorchFunctionMode):
    """Sees one forward pass over `rows` rows and calls `arrived` with each contribution of the backward pass."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        buffers: Iterable[Tensor],
        rows: int,
        structures: Structures,
        arrived: Callable[[Tensor, Contribution], None],
    ) -> None:
        super().__init__()
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.computed = Computed(parameters.values(), buffers)
        self.rows = rows
        self.structures = structures
        self.arrived = arrived
        self.uses: list[Use] = []
        self.calls = 0
        self.roots: list[GradientEdge] = []
        self.probed: list[dict[int, Tensor]] | None = None
        self.pulling = False
        self.exposed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler, options = _RULES.get(func), kwargs or {}
        if handler is not None and torch.is_grad_enabled():
            result = handler(self, *args, **options)
            if result is not NotImplemented:
                return result
        elif func in _HOOKS:
            raise _hooked()
        self.exposed = self.exposed or func == _NODE
        return self.computed.call(func, args, options)

    def close(self) -> None:
        """Release everything: hooks, recorder and nodes form a reference cycle."""
        self.uses.clear()
        self.roots.clear()
        self.computed.close()
        self.probed = None

    def trains(self, *parameters: Tensor | None) -> bool:
        """Whether any of these is a trainable parameter of the model, or computed from some and no row."""
        return any(self.computed.trained(parameter) is not None for parameter in parameters)

    def holds_no_row(self, tensor: Tensor) -> bool:
        """Whether a tensor is known to be computed from parameters, buffers and constants alone."""
        return self.computed.behind((tensor,)) is not None

    def computes_weight(self, label: str, source: Tensor) -> bool:
        """Whether the next call, a linear map of `source`, computes a weight: `source` holds no row.

        A constant with as many places as there are rows may be one for each of them. It is left to the rule, unless
        another pass has shown that it is not.
        """
        if self.rows == 1 or not self.holds_no_row(source):
            return False
        known = self.structures.without_rows
        if self.rows not in source.shape[:-1]:
            known.add((self.calls, label))
        if (self.calls, label) not in known:
            return False
        self.calls += 1  # counted as any other call: calls are remembered by number
        return True

    def derive(self, source: Tensor, result: Tensor) -> Tensor:
        """Let `result`, computed from the parameter (or computed tensor) `source` and no row, stand for it in rules.

        It stays in the autograd graph, so that a use without a rule still reaches the parameter.
        """
        known = self.computed.trained(source)
        if known is not None:
            self.computed.note(result, known.behind)
        return result

    def without_rows(self, label: str, lead: Sequence[int]) -> bool:
        """Whether the next call, whose leading sizes are `lead`, is known or seen to work on no row at all.

        It is remembered: as many positions as there happen to be rows in a later batch look like rows. A call that is
        taken for one without rows by mistake is left to the fallback.
        """
        if self.rows == 1:
            return False
        known = self.structures.without_rows
        if not candidates(tuple(lead), self.rows):
            known.add((self.calls, label))
        return (self.calls, label) in known

    def opened(self, source: Tensor, *parameters: Tensor | None) -> list[Tensor | None]:
        """The parameters detached where they are trainable; if `source` carries no gradient, the first of them does.

        That one only makes the output differentiable: no gradient is ever asked for it.
        """
        carried, result = source.requires_grad, list[Tensor | None]()
        for parameter in parameters:
            if parameter is not None and self.trains(parameter):
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
        given = (self.computed.trained(parameter) for parameter in parameters)
        trained = tuple(known for known in given if known is not None)
        size = source.numel() * source.element_size() + output.numel() * output.element_size()
        use = self.follow(label, output, lead, build, trained, size, layout)
        use.source, use.version = source, source._version
        if not source.requires_grad:
            self.roots.append(GradientEdge(*use.edge))
        return output

    def follow(
        self,
        label: str,
        output: Tensor,
        lead: int,
        build: Build,
        trained: tuple[Known, ...] = (),
        size: int = 0,
        layout: Layout | None = None,
    ) -> Use:
        """Have the gradient of `output` handed over once it is known where its rows stand."""
        node = output.grad_fn
        edge = (get_gradient_edge(output).node, 0) if node is None else (node, output.output_nr)
        layout = WHOLE if self.rows == 1 else layout
        use = Use(label, self.calls, trained, tuple(output.shape), lead, edge, build, layout, size)
        self.calls += 1
        self.uses.append(use)
        output.register_hook(partial(self._gradient, use))  # type: ignore[no-untyped-call]
        return use

    def trained(self, use: Use) -> list[str]:
        """Names of the parameters that a use contributes to, once for each way in which it does."""
        return [self.names[id(behind)] for given in use.parameters for behind in given.behind]

    def _gradient(self, use: Use, gradient: Tensor | None) -> None:
        if gradient is None:  # from an autograd function that gives none: the same as zero
            return
        if self.probed is not None:
            self.probed[-1][id(use)] = gradient
            return
        if self.pulling:
            return
        if use.place is None:
            raise GradientError(
                f"a gradient reached a {use.label} that the losses do not depend on: in a loop of your own call "
                "session.step(losses), one per row, in place of loss.backward()"
            )
        if use.source is not None and use.source._version != use.version:
            raise GradientError(
                f"the model changes the input of a {use.label} in place before its backward pass reads it: "
                "modify a copy (x = x.clone())"
            )
        if use.layout is not None and use.build is not None:
            # Let go of the activation with the rule: memory that is free again is what the next layer takes.
            build, use.build, use.source = use.build, None, None
            given = {id(known.tensor): known.behind for known in use.parameters}
            for parameter, contribution in build(gradient, Rows(self.rows, use.layout, use.lead)):
                behind = given[id(parameter)]
                if behind[0] is parameter:
                    self.arrived(parameter, contribution)
                else:
                    self._arrived_through(parameter, behind, contribution)

    def _arrived_through(self, given: Tensor, behind: Sequence[Tensor], part: Contribution) -> None:
        """Hand on the contributions of the parameters behind a computed tensor; hooks on the way are not meant."""
        self.pulling = True
        try:
            found = through(given, behind, part)
        finally:
            self.pulling = False
        for parameter, contribution in found:
            self.arrived(parameter, contribution)

    def settle_layouts(self, losses: Tensor, graph: Graph, inputs: Sequence[Any]) -> None:
        """Give every use its layout: traced through the graph of this pass, or probed where the graph does not tell.

        What was traced is remembered by the graph's key and holds for every pass with that key; what had to be probed
        holds for this pass only. The first time that operations come in some order, tracing is compared with a probe,
        and always if nodes of the graph were handed out.
        """
        for use in self.uses:
            use.place = graph.places.get(use.edge[0])
        if self.rows == 1:
            return
        key = (graph.key, *((use.place, use.label) for use in self.uses))
        known = self.structures.layouts.get(key)
        if known is None:
            known = self._traced(graph)
            if len(self.structures.layouts) >= _REMEMBERED:
                self.structures.layouts.clear()
            self.structures.layouts[key] = known
        for use, layout in zip(self.uses, known, strict=True):
            use.layout = layout
        order = (tuple(graph.kinds), key[1:])
        unsure = self.exposed or any(use.layout is None and use.place is not None for use in self.uses)
        if (unsure or order not in self.structures.compared) and self._probe(losses, inputs):
            self.structures.compared.add(order)
            # What a probe refutes once is never believed again.
            believed = tuple(was if use.layout == was else None for use, was in zip(self.uses, known, strict=True))
            self.structures.layouts[key] = believed

    def _traced(self, graph: Graph) -> tuple[Layout | None, ...]:
        pitches = traced(graph, self.rows)
        found = [pitches.get(use.edge) for use in self.uses]
        return tuple(
            None if pitch is None else layout_at(use.shape, pitch, self.rows, use.lead)
            for use, pitch in zip(self.uses, found, strict=True)
        )

    def _probe(self, losses: Tensor, inputs: Sequence[Any]) -> bool:
        """Scale the rows' losses and look which places scale with them; a use that fits no layout gets none.

        Returns whether every traced layout was compared: gradients that are not finite tell nothing.
        """
        scales = probe_scales(self.rows, losses)
        self.probed = []
        for scale in scales:
            self.probed.append({})
            # Of one number: for anything else torch loads its compiler first.
            torch.autograd.grad((losses * scale).sum(), inputs, retain_graph=True, allow_unused=True)
        probed, self.probed = self.probed, None
        compared = True
        for use in self.uses:
            gradients = [found[id(use)] for found in probed if id(use) in found]
            if not gradients:
                continue
            if use.layout is not None and not bool(torch.isfinite(gradients[0]).all()):
                compared = False
                continue
            possible = candidates(use.shape[: use.lead], self.rows) if use.layout is None else [use.layout]
            fitting = len(gradients) == len(scales)
            use.layout = next((c for c in possible if fitting and matches(c, gradients, scales, use.lead)), None)
            if use.layout is None:
                self.structures.without_rows.add((use.call, use.label))
        return compared
