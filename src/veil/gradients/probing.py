"""Probing: tests on synthetic rows whether model and loss keep rows separate and leave the model unchanged.

Each row must give the same result in every batch: the same values and the same gradients, when
other rows are changed, repeated, left out, put in another order, or when more are added. This is tried at the weights
that the model starts with and at others, because a layer that starts at zero hides what is behind it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from veil.foundation.nested import mapped, tensors
from veil.gradients.batches import count_rows
from veil.gradients.model_state import ModelState, copied
from veil.gradients.recomputing import activations_kept
from veil.gradients.records import Batch, GradientError, LossFn

BASE_ROWS = 5
# Of a model that needs so many products for the first rows, fewer rows are tried.
COSTLY, FEWEST_ROWS = 1e9, 3
# Products that the trial may take in all, beyond what it does in any case: about a second.
MOST_WORK = 3e9
# What one number of a parameter costs in a comparison of gradients, and one call of torch, in products.
PARAMETER_WORK, CALL_WORK = 200, 1e5
TOLERANCE = 1e-4
# A difference of rounding (a unit at the very kink of its activation) does not come again with other rows; mixing does.
DOUBTFUL = 1e-2

_APART = "make each row's output depend on that row alone (reduce over features and positions, never over rows)"
_NO_STATE = "keep nothing between passes and draw random numbers from torch's own generator"
_NO_WRITES = "return or pass it on instead of storing it in forward"
_ONE_NUMBER = (
    "the loss gives one number for the whole batch (a mean or a sum): return one value per row (with torch losses: "
    "reduction='none')"
)
_WRITTEN = "the forward pass writes to it, so it would hold private rows without noise"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a model cannot be trained row by row: where it is, what it is, and what to do.

    Args:
        module: Name of the module.
        reason: What is wrong with it.
        fix: What to do.

    >>> str(Finding("norm (BatchNorm1d)", "it normalises a row by the other rows of its batch", "use GroupNorm"))
    'norm (BatchNorm1d): it normalises a row by the other rows of its batch: use GroupNorm'
    """

    module: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.module}: {self.reason}: {self.fix}"


@dataclass(frozen=True)
class _Variant:
    """Another batch in which some rows of the first stand: `places[k]` of it is `rows[k]` of the first."""

    what: str
    batch: Batch
    rows: Tensor
    places: Tensor
    basic: bool = False


@dataclass
class _Pass:
    """What a pass gave: values by row, and what gradients can be taken of."""

    values: list[Tensor]
    outputs: list[Tensor]
    inputs: list[Tensor]
    parameters: list[Tensor]
    drew: bool

    @cached_property
    def scales(self) -> list[float]:
        """The size of each parameter's slope over all rows; one that is zero but for rounding counts as larger."""
        found = [_scale(gradient) for gradient in self.gradients(torch.arange(self.values[0].shape[0]))[0]]
        return [max(scale, 0.1 * max(found)) for scale in found]

    def gradients(self, places: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Of the rows at `places`, each with a weight of its own: slopes of parameters, and of inputs by row."""
        pulls = []
        for output in self.outputs:
            weights = torch.zeros_like(output)
            generator = torch.Generator().manual_seed(1)
            drawn = torch.rand(len(places), *output.shape[1:], generator=generator) + 0.5
            weights[places] = drawn.to(output)
            # One number: for anything else torch loads its compiler first.
            pulls.append((output * weights).sum())
        leaves = self.parameters + self.inputs
        if not pulls or not leaves:
            return [], []
        total = torch.stack([pull.to(pulls[0].dtype) for pull in pulls]).sum()
        found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
        given = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]
        return given[: len(self.parameters)], given[len(self.parameters) :]


class _Work(TorchFunctionMode):
    """Counts the products of a forward pass and its calls, roughly: the same numbers on every machine."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.calls = 0.0, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = list(tensors((args, list((kwargs or {}).values()))))
        each = sum(t.numel() / t.shape[0] for t in given if isinstance(t, nn.Parameter) and t.ndim > 1)
        if not each and given and getattr(func, "__name__", "") in ("matmul", "__matmul__", "bmm", "einsum", "mm"):
            each = given[0].shape[-1]
        self.calls += 1
        self.products += (each or 1) * sum(t.numel() for t in tensors(result))
        return result


class _Trial:
    """A copy of the model that is run again and again from the same state and the same random numbers."""

    def __init__(self, model: nn.Module, loss: LossFn | None) -> None:
        self.model, self.loss = copied(model), loss
        self.trained: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        self.size = sum(p.numel() for p in self.trained)
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.state = self.after = ModelState(self.model)
        self.written: set[str] = set()
        self.work, self.spent = _Work(), 0.0

    def run(self, batch: Batch) -> _Pass:
        """One pass; what it wrote into the model is noted, unless any rows would have come to the same, and undone."""
        try:
            return self.run_on(batch)
        finally:
            self.written.update(self.after.changed())
            self.state.put_back()

    def settle(self, batch: Batch) -> None:
        """Let a first pass initialise lazily, at these weights and in this mode; then check a second pass."""
        self.run_on(batch)
        self.state = ModelState(self.model)
        self.run_on(batch)
        self.after = self.state.renew()
        self.state.put_back()

    def run_on(self, batch: Batch) -> _Pass:
        """One pass that leaves what it wrote."""
        leaves: list[Tensor] = []

        def fresh(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor.clone()
            leaves.append(tensor.detach().clone().requires_grad_())
            return leaves[-1].clone()  # not a leaf: a model may write into the rows that it is given

        with activations_kept(), torch.enable_grad(), _same_random_numbers() as before:
            given = mapped(batch, fresh)
            result = self.model(given) if self.loss is None else self.loss(self.model, given)
            drew = not torch.equal(torch.get_rng_state(), before)
        values = list(tensors(result))
        if not values or any(value.ndim == 0 for value in values):
            raise GradientError(_ONE_NUMBER if self.loss else "the outputs have no rows: return one value per row")
        outputs = [value for value in values if value.requires_grad]
        return _Pass([value.detach() for value in values], outputs, leaves, self.trained, drew)

    def affords(self, rows: int) -> bool:
        """Whether a comparison over this many rows is within the limit; if so, it is counted."""
        work = 6.0 * rows * self.work.products + 6 * CALL_WORK * self.work.calls + 2 * PARAMETER_WORK * self.size
        if self.spent + work > MOST_WORK:
            return False
        self.spent += work
        return True

    def set_mode(self, evaluating: bool) -> None:
        for module, training in self.modes:
            module.training = training and not evaluating

    def redraw(self, seed: int) -> None:
        """Other weights, none of them zero: first near those of the start, then further away."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.trained:
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                noise = noise + 0.1 * torch.where(noise < 0, -1.0, 1.0).to(noise)
                width = max(1, parameter.numel() // max(1, parameter.shape[0])) if parameter.ndim > 1 else 4
                near = torch.where(parameter == 0, noise.abs() / math.sqrt(width), parameter * (1 + 0.3 * noise.tanh()))
                parameter.copy_(near if seed == 1 else parameter + noise / math.sqrt(width))


def probe(model: nn.Module, batch: Batch, loss: LossFn | None) -> list[Finding]:
    """The findings; errors of the model on the unchanged batch are not caught."""
    rows = count_rows(batch)
    if rows < 2:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a single row, or far ones, may be odd to the model
        trial = _Trial(model, loss)
        first = mapped(batch, lambda tensor: tensor[:BASE_ROWS])
        found = _writes(trial, first)
        if not found:
            found = _compared(trial, first)
        found += [Finding(name, _WRITTEN, _NO_WRITES) for name in sorted(trial.written)]
    return list(dict.fromkeys(found))


def _writes(trial: _Trial, batch: Batch) -> list[Finding]:
    """State that a pass changes: rejected unless it does not depend on the rows.

    A table that is made at the first pass may stay, and a buffer that every pass carries on (a power iteration). Other
    counters of passes are rejected: a checkpoint would not store them.
    """
    other_rows = [mapped(batch, _far), mapped(batch, lambda tensor: tensor[:-1])]
    saved, found = set(trial.model.state_dict()), set[str]()
    for evaluating in (False, True):
        trial.set_mode(evaluating)
        before = ModelState(trial.model, parameters=True)
        for turn in range(2):
            trial.run_on(batch)
            moved = before.changed()
            if not moved:
                break
            found.update(name for name in moved if turn and name not in saved)
            after = ModelState(trial.model, parameters=True)
            for rows in other_rows:
                before.put_back()
                try:
                    trial.run_on(rows)
                except Exception:  # rows that the model does not take: nothing to compare
                    continue
                found.update(after.changed())
            after.put_back()
            before = after
    trial.set_mode(False)
    return [Finding(name, _WRITTEN, _NO_WRITES) for name in sorted(found)]


def _compared(trial: _Trial, batch: Batch) -> list[Finding]:
    """Compare rows in different batches, at the starting weights and others, in the given and evaluation mode."""
    with trial.work as work:
        trial.settle(batch)
    work.products /= count_rows(batch)
    if work.products * BASE_ROWS > COSTLY:
        batch = mapped(batch, lambda tensor: tensor[:FEWEST_ROWS])
    failed: Exception | None = None
    for seed in (0, 1, 2):
        if seed:
            trial.redraw(seed)
        for evaluating in (False, True):
            trial.set_mode(evaluating)
            try:
                trial.settle(batch)
                base = trial.run(batch)
            except Exception:  # weights that the model does not take
                if seed == 0:
                    raise
                break
            for variant in _variants(batch, sizes=not base.drew):
                needed = variant.basic and seed < 2
                if not trial.affords(count_rows(variant.batch)) and not needed:
                    continue
                try:
                    reason = _difference(trial, batch, base, variant)
                except Exception as error:  # rows that the model does not take: said by the caller if it is basic
                    failed = error if needed and seed == 0 and failed is None else failed
                    continue
                if reason is not None:
                    return [Finding("model", reason, _NO_STATE if variant.batch is batch else _APART)]
            if not base.drew and (seed or not trial.affords(count_rows(batch))):
                break  # without random numbers the other mode has little to add
    trial.set_mode(False)
    if failed is not None:
        raise failed
    return []


def _variants(batch: Batch, sizes: bool) -> list[_Variant]:
    """Batches that share rows with the first, the most telling ones first; with `sizes` other sizes and orders too."""
    rows = count_rows(batch)
    every, last = torch.arange(rows), rows - 1

    def taken(index: Tensor) -> Batch:
        return mapped(batch, lambda tensor: tensor[index.to(tensor.device)])

    def changed(row: int) -> Batch:
        return mapped(batch, lambda tensor: _with(tensor, torch.tensor([row]), _shifted))

    others = "the output of other rows"
    of_one = "the output of a row"
    found = [_Variant("the same rows give a different output the second time", batch, every, every, True)]
    found.append(_Variant(f"changing row 0 of the batch changes {others}", changed(0), every[1:], every[1:], True))
    if sizes:
        few = every[:last]
        found.append(_Variant(f"removing a row of the batch changes {others}", taken(few), few, few, True))
    found.append(
        _Variant(f"changing row {last} of the batch changes {others}", changed(last), every[:last], every[:last])
    )
    if sizes:
        turned = every.flip(0)
        found.append(_Variant("rows in another order give other outputs", taken(turned), turned, every))
        some = torch.tensor([last, 0])
        found.append(_Variant(f"removing rows of the batch changes {others}", taken(some), some, torch.arange(2)))
        one = every[:1]
        found.append(_Variant(f"removing all other rows changes {of_one}", taken(one), one, one))
    same = taken(torch.zeros(rows, dtype=torch.int64))
    found.append(_Variant(f"repeating a row changes {others}", same, every[:1], every[:1]))
    far = mapped(batch, lambda tensor: _with(tensor, every[1:], _far))
    found.append(_Variant(f"changing all other rows changes {of_one}", far, every[:1], every[:1]))
    if sizes:
        many = every.repeat(4)
        found.append(_Variant(f"adding rows to the batch changes {others}", taken(many), every, every))
    return found


def _difference(trial: _Trial, batch: Batch, base: _Pass, variant: _Variant) -> str | None:
    """What is different about the rows that both batches share; None if nothing is."""
    size, of_gradients = _distance(base, trial.run(variant.batch), variant, variant.batch is not batch)
    if size <= TOLERANCE:
        return None
    if size <= DOUBTFUL:
        near = _moved(batch)
        other = next(v for v in _variants(near, sizes=True) if v.what == variant.what)
        size, of_gradients = _distance(trial.run(near), trial.run(other.batch), other, True)
        if size <= TOLERANCE:
            return None
    return variant.what.replace("output", "gradient") if of_gradients else variant.what


def _distance(base: _Pass, other: _Pass, variant: _Variant, gradients: bool) -> tuple[float, bool]:
    """The largest difference relative to the size of what is compared, and whether it is one of gradients."""
    rows, places = variant.rows, variant.places
    by_rows = len(base.values) == len(other.values) and all(
        one.shape[0] > int(rows.max()) and two.shape[0] > int(places.max()) and one.shape[1:] == two.shape[1:]
        for one, two in zip(base.values, other.values, strict=True)
    )
    if not by_rows:
        return math.inf, False
    pairs = [(one[rows], two[places]) for one, two in zip(base.values, other.values, strict=True)]
    value = max(
        (_gap(one, two, _scale(whole)) for (one, two), whole in zip(pairs, base.values, strict=True)), default=0.0
    )
    if value > TOLERANCE or not gradients:
        return value, False
    (mine, own), (theirs, given) = base.gradients(rows), other.gradients(places)
    if any(_reaches_others(g, rows) for g in own) or any(_reaches_others(g, places) for g in given):
        return math.inf, True
    compared = zip(mine, theirs, base.scales, strict=True)
    return max((_gap(one, two, max(scale, _scale(one))) for one, two, scale in compared), default=0.0), True


def _reaches_others(gradient: Tensor, rows: Tensor) -> bool:
    """Whether the losses of some rows have a slope, however small, at the inputs of others."""
    absent = torch.ones(gradient.shape[0], dtype=torch.bool)
    absent[rows] = False
    # Zero times the infinite is NaN and tells nothing.
    return bool((gradient[absent.to(gradient.device)].nan_to_num(0.0, 0.0, 0.0) != 0).any())


def _gap(one: Tensor, other: Tensor, scale: float) -> float:
    if one.dtype != other.dtype:
        return math.inf
    if not one.is_floating_point():
        return 0.0 if bool((one == other).all()) else math.inf
    if one.numel() == 0:
        return 0.0
    gap = float((one - other).abs().max())
    if math.isfinite(gap):  # then all values are
        return gap / scale if scale > 0 else (math.inf if gap > 0 else 0.0)
    usable = torch.isfinite(one) & torch.isfinite(other)
    if not bool((torch.isfinite(one) == torch.isfinite(other)).all()):
        return math.inf
    gap = float((one - other).abs()[usable].max()) if bool(usable.any()) else 0.0
    return gap / scale if scale > 0 else (math.inf if gap > 0 else 0.0)


def _scale(values: Tensor) -> float:
    if not values.is_floating_point() or values.numel() == 0:
        return 1.0
    largest = float(values.abs().max())
    return largest if math.isfinite(largest) else float(values.nan_to_num(0.0, 0.0, 0.0).abs().max())


def _with(tensor: Tensor, rows: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    changed, index = tensor.clone(), rows.to(tensor.device)
    changed[index] = change(tensor)[index]
    return changed


def _shifted(tensor: Tensor) -> Tensor:
    """Every row replaced: by the next row's values, shifted, or by other whole numbers of the same range."""
    return 2.0 * tensor.roll(-1, 0) + 1.0 if tensor.is_floating_point() else _turned(tensor)


def _far(tensor: Tensor) -> Tensor:
    return -30.0 * tensor.roll(1, 0) - 7.0 if tensor.is_floating_point() else _turned(tensor)


def _moved(batch: Batch) -> Batch:
    return mapped(batch, lambda tensor: 0.9 * tensor + 0.05 if tensor.is_floating_point() else tensor)


def _turned(tensor: Tensor) -> Tensor:
    """Other whole numbers of the same range; a mask never hides a whole row, of which many models take the mean."""
    if not tensor.numel():
        return tensor
    turned = ~tensor if tensor.dtype == torch.bool else tensor.min() + tensor.max() - tensor
    if turned[:1].numel() > 1:
        flat = turned.reshape(len(turned), -1)
        hidden = (flat == flat.min()).all(1)
        flat[:, 0] = torch.where(hidden, flat.max(), flat[:, 0])
        turned = flat.view(tensor.shape)
    return turned


@contextmanager
def _same_random_numbers() -> Iterator[Tensor]:
    """Use the same random numbers each time and restore the generator; yields the initial state."""
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    try:
        yield torch.get_rng_state()
    finally:
        torch.set_rng_state(kept)
