"""Losses: one value per row, from whatever a user gives as loss.

Three forms are taken: `loss(model, batch)` with one value per row; `loss(outputs, targets)` such as
`F.cross_entropy` or `nn.BCEWithLogitsLoss()`; and nothing, for the usual loss of the task. Each of them can be taken
over several views of a row (`Augmented`). A loss that takes the mean over its batch is taken apart: by
`reduction="none"` where torch's own losses have that, else by calling it on each row alone. Both give the loss of a row
that does not depend on the others.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from veil.errors import InputError, require
from veil.gradients import GradientError
from veil.gradients.model_state import untouched
from veil.models.calling import call, scores, scores_or_none
from veil.plans import LossFunction
from veil.problem import Problem
from veil.problem.rows import IGNORED
from veil.training.augmenting import Augmented

Comparison = Callable[[Any, Tensor], Tensor]
Form = Callable[[Any], LossFunction]
OWN = "model"
_FEW = 3
# What a function raises that is given something else than it takes; anything else may come of the synthetic rows.
_STRUCTURE = (TypeError, AttributeError, KeyError)
_JOINED = "the loss gives one number for a whole batch"


def row_losses(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Cross-entropy of each row for classes, squared error for numbers; its mean where a row has several."""
    inputs, targets = batch
    outputs = scores(call(model, inputs))
    if targets.is_floating_point():
        if targets.ndim > 1:
            return ((outputs - targets) ** 2).flatten(1).mean(1)
        return (outputs.squeeze(-1) - targets) ** 2
    if targets.ndim > 1:
        losses = nn.functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none", ignore_index=IGNORED)
        return _mean_of_row(losses, targets, IGNORED)
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def label_losses(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """Binary cross-entropy of each row, its mean over labels."""
    outputs = scores(call(model, batch[0]))
    return nn.functional.binary_cross_entropy_with_logits(outputs, batch[1], reduction="none").flatten(1).mean(1)


def own_losses(model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
    """The loss that the model itself gives when it gets the targets as `labels`: one value per row."""
    inputs, targets = batch
    output = call(model, {**inputs, "labels": targets}) if isinstance(inputs, dict) else model(inputs, labels=targets)
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(found, Tensor) and found.ndim:
        return found
    if found is None:
        raise InputError(
            f"the model gives {type(output).__name__} without a loss: give loss=F.cross_entropy or your own"
        )
    raise GradientError(
        "the model's own loss is one number for a whole batch, so rows cannot be told apart: give loss=F.cross_entropy "
        "or a loss of your own, which is taken on the model's logits"
    )


@dataclass(frozen=True)
class Compared:
    """A loss of outputs and targets as one of model and batch.

    `whole` gives it all that the model gives, else it gets the scores. `ignored` marks targets that do not count;
    `classes_last` says that the scores of places have their classes last and the loss wants them second, as torch does.
    """

    compare: Comparison
    whole: bool = False
    ignored: int | None = None
    classes_last: bool = False

    def __call__(self, model: nn.Module, batch: tuple[Any, Tensor]) -> Tensor:
        inputs, targets = batch
        output = call(model, inputs)
        if self.whole:
            return self.compare(output, targets)
        given = scores(output)
        losses = self.compare(given.movedim(-1, 1) if self.classes_last else given, targets)
        return losses if losses.ndim < 2 else _mean_of_row(losses, targets, self.ignored)


@dataclass(frozen=True)
class OnEachRow:
    """A loss that joins its rows, called on each row as a batch of one."""

    compare: Comparison

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        def of_row(output: Tensor, target: Tensor) -> Tensor:
            return self.compare(output.unsqueeze(0), target.unsqueeze(0)).reshape(())

        found: Tensor = vmap(of_row, randomness="different")(outputs, targets)
        return found


def _mean_of_row(losses: Tensor, targets: Tensor, ignored: int | None) -> Tensor:
    """The mean over what counts of each row."""
    flat = losses.flatten(1)
    if ignored is None or targets.shape != losses.shape:
        return flat.mean(1)
    return flat.sum(1) / (targets.flatten(1) != ignored).sum(1).clamp_min(1)


def as_row_losses(loss: Any, model: nn.Module, problem: Problem) -> LossFunction:
    """The loss of each row, from any of the forms that a user may give."""
    return form_of(loss, model, problem)(loss)


def form_of(loss: Any, model: nn.Module, problem: Problem) -> Form:
    """How a loss becomes that of each row. Where its own kind does not tell, it is tried on synthetic rows."""
    if isinstance(loss, Augmented):
        inner = form_of(loss.loss, model, problem)
        return lambda given: replace(given, loss=inner(given.loss), padding=problem.padding)
    if loss is row_losses and problem.public.task == "multi-label":
        return lambda _: label_losses
    if isinstance(loss, str) and loss == OWN:
        return lambda _: own_losses
    if not callable(loss):
        raise InputError(
            f'loss is {loss!r}: give a function loss(outputs, targets) or loss(model, batch), or "{OWN}" for that of '
            "the model"
        )
    if loss is row_losses or isinstance(loss, Compared):
        return as_it_is
    batch = problem.made_up(_FEW)
    if _has_reduction(loss):
        return partial(_left_apart, classes_last=_classes_last(model, batch))
    try:
        with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(model, batch)
            return as_it_is
    except Exception as error:  # it does not take a model, or not these rows
        refused = error
    output = _output(model, batch[0])
    form = None if output is None else _form_of_outputs(loss, output, batch[1])
    if form is not None or output is None or not isinstance(refused, _STRUCTURE):
        return form or as_it_is
    raise InputError(
        f"the loss takes neither outputs and targets ({_error_of(loss, output, batch[1])}) nor model and batch "
        f"({_sentence(refused)}): give a loss of one of these forms, with one value per row"
    )


def check_loss(loss: LossFunction, model: nn.Module, problem: Problem) -> None:
    """Reject a loss of outputs and targets that does not take those of this problem."""
    if not isinstance(loss, Compared) and loss is not own_losses:
        return
    inputs, targets = problem.made_up(_FEW)
    try:
        with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = loss(model, (inputs, targets))
    except (InputError, GradientError):
        raise
    except Exception as error:  # whatever model and loss raise
        sentence = (str(error).strip() or type(error).__name__).splitlines()[0]
        kind = str(targets.dtype).removeprefix("torch.")
        raise InputError(
            f"model and loss do not take these rows with targets of shape {tuple(targets.shape[1:])} and kind {kind} "
            f'(task="{problem.public.task}"): {sentence}'
        ) from error
    require(found.shape == (_FEW,), f"the loss gives {tuple(found.shape)} for {_FEW} rows: return one value per row")


def _output(model: nn.Module, inputs: Any) -> Any:
    """What a model gives for synthetic rows; None if it does not take them."""
    try:
        with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            return call(model, inputs)
    except Exception:  # whatever a user's own model raises on rows that it did not expect
        return None


def _classes_last(model: nn.Module, batch: tuple[Any, Tensor]) -> bool:
    """Whether the model gives (rows, places, classes) where torch's losses want (rows, classes, places)."""
    targets = batch[1]
    if targets.is_floating_point() or targets.ndim < 2:
        return False
    found = scores_or_none(_output(model, batch[0]))
    if found is None or found.shape[:1] + found.shape[2:] == targets.shape:
        return False
    return found.shape[:-1] == targets.shape


def as_it_is(loss: LossFunction) -> LossFunction:
    """A loss of model and batch."""
    return loss


def _error_of(loss: Comparison, output: Any, targets: Tensor) -> str:
    """What a loss says to outputs and targets that it does not take."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(output, targets)
    except Exception as error:  # whatever a user's own loss raises
        return _sentence(error)
    return "it returns no tensor"


def _sentence(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *said[:1]])


def _form_of_outputs(loss: Comparison, output: Any, targets: Tensor) -> Form | None:
    """How a loss of outputs and targets becomes that of each row; None if it does not take them."""
    found = _tried(loss, scores_or_none(output), targets)
    if found is not None and found.ndim:
        return Compared
    if found is not None:
        if _tried(OnEachRow(loss), scores(output), targets) is None:
            raise InputError(f"{_JOINED} and cannot be called row by row: return one value per row")
        return lambda given: Compared(OnEachRow(given))
    found = None if isinstance(output, Tensor) else _tried(loss, output, targets)
    if found is not None and not found.ndim:
        raise InputError(f"{_JOINED}: return one value per row")
    return None if found is None else partial(Compared, whole=True)


def _tried(compare: Comparison, outputs: Any, targets: Tensor) -> Tensor | None:
    """What a loss gives for outputs and targets; None if it does not take them."""
    if outputs is None:
        return None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = compare(outputs, targets)
    except Exception:  # whatever a user's own loss raises
        return None
    return found if isinstance(found, Tensor) else None


def _has_reduction(loss: Any) -> bool:
    """Whether this is a loss of torch that can leave its rows apart."""
    if isinstance(loss, partial):
        return _has_reduction(loss.func)
    if isinstance(loss, nn.Module):
        return hasattr(loss, "reduction") and _is_torch(type(loss))
    return inspect.isfunction(loss) and _is_torch(loss) and "reduction" in inspect.signature(loss).parameters


def _left_apart(loss: Any, classes_last: bool = False) -> Compared:
    """A loss of torch, with what it would average left apart."""
    if isinstance(loss, nn.Module):
        apart: Any = copy.deepcopy(loss)
        apart.reduction = "none"
        return Compared(apart, ignored=getattr(loss, "ignore_index", None), classes_last=classes_last)
    ignored = inspect.signature(loss).parameters.get("ignore_index")
    skipped = None if ignored is None else ignored.default
    return Compared(partial(loss, reduction="none"), ignored=skipped, classes_last=classes_last)


def _is_torch(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("torch.nn.")
