"""Trials: model, loss and evaluation are tested on synthetic rows before a row is read.

Whatever fails here has cost nothing. After training the same failure would come with the budget spent.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from veil import gradients
from veil.errors import InputError, require
from veil.foundation.nested import mapped
from veil.gradients.model_state import ModelState, untouched
from veil.gradients.recomputing import activations_kept
from veil.metrics import evaluate
from veil.metrics.heads import apart
from veil.models.calling import call, scores_or_none
from veil.plans import LossFunction
from veil.plans.plan import UNTRIED
from veil.problem import Problem
from veil.training.augmenting import PaddedBy

MADE_UP_ROWS = 5
MANY_MADE_UP_ROWS = 64
UNREACHED = (
    "no gradient reaches the model's trained weights from the loss (detached, made by numpy, or under no_grad): "
    "compute the loss from what the model gives"
)
# Padding that is masked changes a loss by rounding only.
PADDING_ERROR = 1e-3


def check_precision(model: nn.Module, *, private: bool = True) -> None:
    """Reject trained weights that are complex, and in a private run those below single precision.

    Noise is real: it would leave the imaginary part of a gradient bare. Half precision could not bound single rows.
    """
    for name, parameter in model.named_parameters():
        kind = parameter.dtype
        require(
            not parameter.requires_grad or kind.is_floating_point,
            f"the trained weights {name} are {str(kind).removeprefix('torch.')}, and updates are real: keep them as "
            "nn.Parameter(torch.view_as_real(weights)), and call torch.view_as_complex in the forward pass",
        )
        require(
            not private or not parameter.requires_grad or kind.itemsize >= 4,
            f"the model is in {str(kind).removeprefix('torch.')} ({name}), too imprecise to bound single rows: convert "
            "it with model.float()",
        )


def check_outputs(model: nn.Module, problem: Problem, otherwise: str) -> None:
    """Reject a model that does not accept rows of this shape, or whose outputs do not fit figures and losses.

    `otherwise` ends the sentence: what to do instead of changing the model.
    """
    inputs, targets = problem.made_up(MADE_UP_ROWS)
    two = torch.zeros_like(inputs[:2]) if isinstance(inputs, Tensor) else mapped(inputs, lambda part: part[:2])
    shape = f"rows of {_in_words(inputs)}"
    try:
        with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = call(model.eval(), two)
    except InputError:
        raise
    except Exception as error:  # whatever a user's own model raises
        sentence = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"the model does not accept {shape}: {sentence}") from error
    given = scores_or_none(outputs)
    found = type(outputs).__name__ if given is None else tuple(given.shape)
    fits, wanted = _fits(given, problem, tuple(targets[:2].shape))
    require(fits, f"the model gives {found} for 2 {shape}: it must give {wanted}, or you {otherwise}")


def _in_words(inputs: Any) -> str:
    """The shapes and kinds of inputs, a row of them."""
    if isinstance(inputs, dict):
        return "; ".join(f"{key} of {_in_words(part)}" for key, part in inputs.items())
    if isinstance(inputs, tuple):
        return "; ".join(map(_in_words, inputs))
    return f"shape {'×'.join(map(str, inputs.shape[1:]))} ({str(inputs.dtype).removeprefix('torch.')})"


def _fits(outputs: Tensor | None, problem: Problem, targets: tuple[int, ...]) -> tuple[bool, str]:
    """Whether the outputs of two rows are what losses and figures read of a task, and what that is, in words."""
    task, classes = problem.public.task, problem.public.outputs
    shape = () if outputs is None else tuple(outputs.shape)
    if task == "multi-label":
        return shape == targets, f"{classes} numbers per row, one per label"
    if task == "regression" and len(targets) == 1:
        return outputs is not None and outputs.numel() == 2, "one number per row"
    if task == "regression":
        return shape == targets, f"{'×'.join(map(str, targets[1:]))} numbers per row"
    several = shape[:-1] == targets and len(shape) == len(targets) + 1 and shape[-1] >= classes
    if len(targets) > 1 and shape == targets:
        return False, f"{classes} numbers per place of a row (one-hot targets of rows: give targets.argmax(1))"
    where = "row" if len(targets) == 1 else "place of a row"
    return several, f"{classes} numbers per {where}, one per class"


def check_reaches(model: nn.Module, problem: Problem, loss: LossFunction) -> None:
    """Reject a loss through which no gradient reaches the model: all would be spent, and nothing learned.

    Weights that the first pass makes would not be trained either: they come after the optimizer.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return  # the engine says so
    known = {id(parameter) for parameter in model.parameters()}
    # A loss may have no gradient on a few rows by chance (none of a class that it asks for), but not on many others.
    for count in (MADE_UP_ROWS, MANY_MADE_UP_ROWS):
        found: Any = None
        made: list[str] = []
        kept = activations_kept()  # as in the passes of a step
        with untouched(model), torch.enable_grad(), kept, torch.random.fork_rng(devices=[]), suppress(Exception):
            found = loss(model, problem.made_up(count))  # an error says the trial that it belongs to
            made = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
        require(
            not made, f'the forward pass makes the weight "{"".join(made[:1])}", so it is not trained: make it before'
        )
        if not isinstance(found, Tensor) or found.requires_grad:
            return
    raise InputError(UNREACHED)


def carried(model: nn.Module, problem: Problem, loss: LossFunction) -> tuple[Tensor, Tensor] | None:
    """Synthetic rows to update what the model's passes change by themselves (a power iteration); None if nothing."""
    rows, state = problem.made_up(MADE_UP_ROWS), ModelState(model)
    try:
        with untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(model, rows)
            return rows if state.changed() else None
    except Exception:  # whatever a user's own code does with rows that it did not expect
        return None


def check_rows_apart(model: nn.Module, problem: Problem, loss: LossFunction) -> list[str]:
    """Reject a model or a loss that mixes or stores rows; if they reject synthetic rows, the certificate says so."""
    rows, said = problem.made_up(MADE_UP_ROWS), []
    trials = (
        partial(gradients.check, model, rows, loss),
        partial(_check_padding, model, problem, loss),
        partial(_check_engine, model, rows, loss),
    )
    for trial in trials:
        try:
            with PaddedBy(problem.padding):
                trial()
        except (gradients.GradientError, InputError):
            raise
        except Exception:  # whatever a user's own code does with rows that it did not expect
            said = [UNTRIED]
    return said


def _check_engine(model: nn.Module, rows: Any, loss: LossFunction) -> None:
    """Reject what the engine cannot follow (recomputed activations, hooks) before the first step does."""
    with untouched(model), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is slow is said in the first step
        gradients.GradientEngine(model, loss).norms_and_losses(rows)


def learn(engine: gradients.GradientEngine, problem: Problem) -> None:
    """Let an engine see the model once on synthetic rows, if model and loss take them."""
    with untouched(engine.model), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is slow is said in the first step
        with suppress(Exception):  # whatever a user's own code does with rows that it did not expect
            engine.norms_and_losses(problem.made_up(MADE_UP_ROWS))


def _check_padding(model: nn.Module, problem: Problem, loss: LossFunction) -> None:
    """Reject a model that sees how far its rows are padded: that depends on the other rows of a batch."""
    pair = problem.padded_twice()
    if pair is None:
        return
    alone, together = pair
    with untouched(model), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        engine = gradients.GradientEngine(model.eval(), loss)
        one, two = (engine.norms_and_losses(rows).losses[:1] for rows in pair)
        own, other = engine.gradients(alone), engine.gradients(together)
    size = max((float(values.abs().max()) for values in own.values()), default=0.0)
    gap = max((float((values[0] - other[name][0]).abs().max()) for name, values in own.items()), default=0.0)
    same = torch.allclose(one, two, rtol=PADDING_ERROR, atol=PADDING_ERROR) and gap <= PADDING_ERROR * max(size, 1e-12)
    require(
        same,
        "the loss of a row changes when its batch is padded further, so it depends on the other rows: use the mask in "
        "the model, or pad all batches to one length (Problem.from_dataset(…, pad=128))",
    )


def check_evaluation(model: nn.Module, evaluation: Problem, groups: Sequence[str]) -> None:
    """Reject evaluation rows on which the figures could not be computed after training."""
    instead = "omit evaluation and measure yourself"
    for head, own in apart(model, evaluation).values() if evaluation.public.heads else [(model, evaluation)]:
        check_outputs(head, own, instead)
    inputs, targets = evaluation.made_up(MADE_UP_ROWS)
    cells = np.arange(MADE_UP_ROWS) % len(evaluation.public.cells)
    rows = evaluation.with_rows(inputs, targets, cells)
    try:
        with untouched(model), torch.random.fork_rng(devices=[]):
            evaluate(model, rows, groups)
    except Exception as error:  # whatever a user's own model raises
        sentence = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the model cannot be evaluated on rows like those of evaluation: {sentence}: change what the model "
            "returns, or omit evaluation and measure yourself"
        ) from error


def check_savable(model: nn.Module) -> None:
    """Reject a model whose state cannot be saved: an entry that is not a plain tensor."""
    for name, value in model.state_dict().items():
        require(
            isinstance(value, Tensor) and name.rpartition(".")[2] != "_extra_state",
            f'the model cannot be saved: "{name}" of its state_dict is a {type(value).__name__}, neither parameter nor '
            "buffer: remove get_extra_state",
        )
        try:
            fits = value.layout == torch.strided and bool(save({name: value.new_zeros(1)}))
        except Exception:  # a kind of number that the format does not have
            fits = False
        require(
            fits,
            f'the model cannot be saved: "{name}" of its state_dict is {value.dtype}, {value.layout}: register it with '
            "persistent=False",
        )
