"""The engine: per-row losses, per-row gradient norms and weighted gradient sums, in micro-batches if need be."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import veil.gradients.rules  # noqa: F401  (registers the layer rules)
from veil.foundation.generators import random_state, set_random_state
from veil.gradients.batches import count_rows, sliced
from veil.gradients.contributions import Contribution
from veil.gradients.memory import affordable_rows
from veil.gradients.open_pass import OpenPass
from veil.gradients.passes import Memory, Outcome, in_words, run, run_again
from veil.gradients.recomputing import activations_kept
from veil.gradients.records import Batch, GradientError, GradientSum, LossFn, PerRow, Weigh


class GradientEngine:
    """Per-row gradients of `loss(model, batch)` for the trainable parameters of `model`.

    `micro_batch` bounds the rows of one forward pass; `max_memory` (bytes) derives that bound from what one row
    takes. Weights may depend on the norms and losses of the whole batch. With one micro-batch that takes one
    forward and one backward pass; with several, a first round gathers these and a second one the sum, unless the
    callable says `row_local = True` (each row's weight depends on that row alone).

    >>> model = nn.Linear(3, 1)
    >>> engine = GradientEngine(model, lambda model, batch: model(batch).squeeze(1))
    >>> result = engine.weighted_sum(torch.ones(4, 3), lambda per_row: 1 / per_row.norms)
    >>> result.sums[0]["weight"], result.per_row.norms
    (tensor([[2., 2., 2.]]), tensor([2., 2., 2., 2.]))
    """

    def __init__(
        self, model: nn.Module, loss: LossFn, *, micro_batch: int | None = None, max_memory: int | None = None
    ) -> None:
        if micro_batch is not None and micro_batch < 1:
            raise GradientError(f"micro_batch is {micro_batch}: it must be at least 1 row")
        if max_memory is not None and max_memory < 1:
            raise GradientError(f"max_memory is {max_memory}: it must be a positive number of bytes")
        self.model = model
        self.loss = loss
        self.micro_batch = micro_batch
        self.max_memory = max_memory
        self._memory = Memory()
        self._trained: dict[str, Tensor] = {}

    def weighted_sum(self, batch: Batch, weigh: Weigh, rows: int | None = None) -> GradientSum:
        """Σ wᵢ gᵢ over the rows of `batch`, where w = `weigh`(norms and losses of all rows).

        Args:
            batch: What the loss function is given; the first dimension is the row.
            weigh: Returns one factor for each row, from norms and losses.
            rows: Number of rows, where the batch itself does not tell.

        Returns:
            Sums by parameter, with the norms, losses and weights of all rows.

        Raises:
            GradientError: The model mixes rows or cannot be differentiated row by row, or the batch cannot be split.
        """
        rows = count_rows(batch) if rows is None else rows
        size = self._rows_at_once(batch, rows)
        if rows == 0:
            per_row = _no_rows(self._parameters())
            weights = _weights(weigh, per_row)
            return GradientSum(_totals({}, weights, self._parameters()), per_row, weights)
        if size >= rows:
            outcome = self._run(batch, rows)
            weights = _weights(weigh, outcome.per_row)
            return GradientSum(_totals(outcome.parts, weights, self._trained), outcome.per_row, weights)
        if count_rows(batch) != rows:
            raise GradientError(
                f"a batch of {count_rows(batch)} slices cannot be split into micro-batches of {rows} rows"
            )
        pieces = list(_pieces(batch, rows, size))
        if getattr(weigh, "row_local", False):
            return self._in_one_round(pieces, weigh)
        return self._in_two_rounds(pieces, weigh)

    def open(self, rows: int) -> OpenPass:
        """Watch a forward pass that the caller writes; `total` then sums what it found.

        Args:
            rows: Number of rows in the pass.

        Returns:
            A context manager; its `finish(losses)` returns the outcome for `total`.
        """
        return OpenPass(self.model, rows, self._parameters(), self._memory)

    def total(self, outcome: Outcome, weigh: Weigh) -> GradientSum:
        """Σ wᵢ gᵢ of an outcome, with weights from its norms and losses.

        Args:
            outcome: Result of a pass that was watched.
            weigh: Returns one factor for each row, from norms and losses.

        Returns:
            Sums by parameter, with the norms, losses and weights of all rows.
        """
        weights = _weights(weigh, outcome.per_row)
        return GradientSum(_totals(outcome.parts, weights, self._parameters()), outcome.per_row, weights)

    def norms_and_losses(self, batch: Batch) -> PerRow:
        """Norms and losses of all rows, without any sum.

        Args:
            batch: What the loss function is given; the first dimension is the row.

        Returns:
            Gradient norm and loss of each row.
        """
        rows = count_rows(batch)
        pieces = _pieces(batch, rows, self._rows_at_once(batch, rows))
        found = [self._run(piece, count, keep=False).per_row for piece, count in pieces]
        return _joined(found) if found else _no_rows(self._parameters())

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """The per-row gradients themselves, each of shape (rows, *parameter): for oracles and diagnostics.

        Args:
            batch: What the loss function is given; the first dimension is the row.

        Returns:
            One tensor for each trained parameter.
        """
        rows, parameters = count_rows(batch), self._parameters()
        result = {name: parameter.new_zeros(rows, *parameter.shape) for name, parameter in parameters.items()}
        start = 0
        for piece, count in _pieces(batch, rows, self._rows_at_once(batch, rows)):
            for name, part in self._run(piece, count).parts.items():
                result[name][start : start + count] = part.values().detach().view(count, *parameters[name].shape)
            start += count
        return result

    @property
    def held_bytes(self) -> int:
        """Memory for written-out gradients that the engine keeps between passes."""
        return self._memory.space.bytes

    def _parameters(self) -> dict[str, Tensor]:
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not parameters:
            raise GradientError("the model has no trainable parameter: set requires_grad on the parameters to train")
        return dict(parameters)

    def _run(self, batch: Batch, rows: int, keep: bool = True) -> Outcome:
        """One pass. The short way reads the parameters off the graph and knows where the model held each of them."""
        try:
            with activations_kept():
                outcome = run_again(self.model, self.loss, batch, rows, self._memory, keep)
                if outcome is None:
                    self._trained = self._parameters()
                    outcome = run(self.model, self.loss, batch, rows, self._trained, self._memory, keep)
        except (RuntimeError, IndexError) as error:
            said = in_words(error)
            if said is None:
                raise
            raise said from error
        return outcome

    def _rows_at_once(self, batch: Batch, rows: int) -> int:
        size = rows if self.micro_batch is None else min(rows, self.micro_batch)
        if self.max_memory is not None and rows > 1:
            known, parameters = self._memory.row_bytes, self._parameters()
            with activations_kept():
                size = min(size, affordable_rows(self.model, self.loss, batch, self.max_memory, parameters, known))
        return max(size, 1)

    def _in_one_round(self, pieces: list[tuple[Batch, int]], weigh: Weigh) -> GradientSum:
        per_row, weights, sums = [], [], list[dict[str, Tensor]]()
        for piece, count in pieces:
            outcome = self._run(piece, count)
            per_row.append(outcome.per_row)
            weights.append(_weights(weigh, outcome.per_row))
            _add(sums, _totals(outcome.parts, weights[-1], self._trained))
        return GradientSum(sums, _joined(per_row), torch.cat(weights, -1))

    def _in_two_rounds(self, pieces: list[tuple[Batch, int]], weigh: Weigh) -> GradientSum:
        per_row, states, device = [], [], next(self.model.parameters()).device
        for piece, count in pieces:
            states.append(random_state(device))
            per_row.append(self._run(piece, count, keep=False).per_row)
        after, joined = random_state(device), _joined(per_row)
        weights, sums, start = _weights(weigh, joined), list[dict[str, Tensor]](), 0
        for (piece, count), state, before in zip(pieces, states, per_row, strict=True):
            # The same random numbers as in the first round: a bound by other dropout masks would bound nothing.
            set_random_state(device, state)
            outcome = self._run(piece, count)
            same = torch.equal(outcome.per_row.losses, before.losses)
            if not same or not torch.allclose(outcome.per_row.norms, before.norms, rtol=1e-4):
                raise GradientError(
                    "the model is not deterministic (the same rows give different gradients), so rows cannot be "
                    "bounded over several micro-batches: make it deterministic or use one micro-batch"
                )
            _add(sums, _totals(outcome.parts, weights[..., start : start + count], self._trained))
            start += count
        set_random_state(device, after)
        return GradientSum(sums, joined, weights)


def _pieces(batch: Batch, rows: int, size: int) -> Iterator[tuple[Batch, int]]:
    if rows > 0 and size >= rows:
        yield batch, rows
        return
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        yield sliced(batch, start, stop), stop - start


def _no_rows(parameters: dict[str, Tensor]) -> PerRow:
    empty = next(iter(parameters.values())).new_zeros(0)
    return PerRow(empty, empty.clone(), torch.zeros(0, dtype=torch.bool, device=empty.device))


def _joined(per_row: list[PerRow]) -> PerRow:
    if len(per_row) == 1:
        return per_row[0]
    return PerRow(
        torch.cat([f.losses for f in per_row]),
        torch.cat([f.norms for f in per_row]),
        torch.cat([f.finite for f in per_row]),
    )


def _weights(weigh: Weigh, per_row: PerRow) -> Tensor:
    """The weights as given, 0 for rows that are not finite; anything that could poison a sum is rejected."""
    weights = weigh(per_row)
    weights = weights.detach() if weights.requires_grad else weights
    rows = per_row.norms.shape[0]
    if weights.ndim not in (1, 2) or weights.shape[-1] != rows:
        raise GradientError(
            f"the weights have shape {tuple(weights.shape)} for {rows} rows: it must be ({rows},) or (k, {rows})"
        )
    weights = weights if weights.is_floating_point() else weights.to(per_row.norms.dtype)
    # A finite sum of squares means that all are finite; anything else is looked at row by row.
    flat = weights if weights.ndim == 1 else weights.reshape(-1)
    if math.isfinite(torch.dot(flat, flat).item()):
        return weights
    weights = torch.where(per_row.finite, weights, weights.new_zeros(()))
    if not bool(torch.isfinite(weights).all()):
        raise GradientError("some weights are NaN or infinite: a row of norm 0 needs a finite weight too")
    return weights


def _totals(parts: dict[str, Contribution], weights: Tensor, parameters: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    sums: list[dict[str, Tensor]] = [{} for _ in range(1 if weights.ndim == 1 else weights.shape[0])]
    for name, parameter in parameters.items():
        part = parts.get(name)
        if part is None:
            for into in sums:
                into[name] = torch.zeros_like(parameter, requires_grad=False)
        elif weights.ndim == 1:
            sums[0][name] = part.total_of_one(weights)
        else:
            for into, total in zip(sums, part.total(weights).unbind(), strict=True):
                into[name] = total
    return sums


def added(parts: list[GradientSum]) -> GradientSum:
    """The sum over the rows of several parts of a batch, each weighed by itself.

    >>> one = GradientSum([{"w": torch.ones(2)}], _no_rows({"w": torch.ones(2)}), torch.zeros(0))
    >>> added([one, one]).sums
    [{'w': tensor([2., 2.])}]
    """
    if len(parts) == 1:
        return parts[0]
    sums: list[dict[str, Tensor]] = [{name: value.clone() for name, value in into.items()} for into in parts[0].sums]
    for part in parts[1:]:
        _add(sums, part.sums)
    return GradientSum(sums, _joined([part.per_row for part in parts]), torch.cat([p.weights for p in parts], -1))


def _add(sums: list[dict[str, Tensor]], more: list[dict[str, Tensor]]) -> None:
    if not sums:
        sums.extend(more)
        return
    for into, values in zip(sums, more, strict=True):
        for name, value in values.items():
            into[name] += value
