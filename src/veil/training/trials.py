"""Trials: model, loss and evaluation are tested on synthetic rows before a row is read.

Whatever fails here has cost nothing. After training the same failure would come with the budget spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from veil import gradients
from veil.errors import InputError, require
from veil.gradients.model_state import ModelState
from veil.metrics import evaluate
from veil.plans import LossFunction
from veil.plans.plan import UNTRIED
from veil.problem import Memberships, Problem

MADE_UP_ROWS = 5


def made_up(problem: Problem) -> tuple[Tensor, Tensor]:
    """A few rows and targets of the problem's shapes and kinds, drawn without looking at any row."""
    facts, rows = problem.public, MADE_UP_ROWS
    generator = torch.Generator().manual_seed(0)
    kind = _kind(problem)
    if kind.is_floating_point:
        inputs = torch.randn(rows, *facts.input_shape, generator=generator).to(kind)
    else:
        inputs = torch.randint(0, 2, (rows, *facts.input_shape), generator=generator).to(kind)
    if problem.targets.is_floating_point():
        return inputs, torch.randn(rows, *problem.targets.shape[1:], generator=generator).to(problem.targets.dtype)
    return inputs, torch.randint(0, max(1, facts.outputs), (rows,), generator=generator)


def check_outputs(model: nn.Module, problem: Problem, otherwise: str) -> None:
    """Reject a model that does not accept rows of this shape, or whose outputs do not fit figures and losses.

    `otherwise` ends the sentence: what to do instead of changing the model.
    """
    facts, inputs = problem.public, made_up(problem)[0]
    kind = str(inputs.dtype).removeprefix("torch.")
    shape = f"rows of shape {'×'.join(map(str, facts.input_shape))} ({kind})"
    try:
        with _untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = model.eval()(torch.zeros_like(inputs[:2]))
    except Exception as error:  # whatever a user's own model raises
        sentence = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"the model does not accept {shape}: {sentence}") from error
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if facts.task == "regression":
        fits, wanted = isinstance(outputs, Tensor) and outputs.numel() == 2, "one number per row"
    else:
        fits = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] >= facts.outputs
        wanted = f"{facts.outputs} numbers per row, one per class"
    require(fits, f"the model gives {found} for 2 {shape}: it must give {wanted}, or you {otherwise}")


def carried(model: nn.Module, problem: Problem, loss: LossFunction) -> tuple[Tensor, Tensor] | None:
    """Synthetic rows to update what the model's passes change by themselves (a power iteration); None if nothing."""
    rows, state = made_up(problem), ModelState(model)
    try:
        with _untouched(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            loss(model, rows)
            return rows if state.changed() else None
    except Exception:  # whatever a user's own code does with rows that it did not expect
        return None


def check_rows_apart(model: nn.Module, problem: Problem, loss: LossFunction) -> list[str]:
    """Reject a model or a loss that mixes or stores rows; if they reject synthetic rows, the certificate says so."""
    try:
        gradients.check(model, made_up(problem), loss)
    except gradients.GradientError:
        raise
    except Exception:  # whatever a user's own code does with rows that it did not expect
        return [UNTRIED]
    return []


def check_evaluation(model: nn.Module, evaluation: Problem, groups: Sequence[str]) -> None:
    """Reject evaluation rows on which the figures could not be computed after training."""
    require(
        evaluation.source is None,
        "evaluation takes rows from a source, and figures need them in memory: give a Problem made from arrays",
    )
    check_outputs(model, evaluation, "omit evaluation and measure yourself")
    inputs, targets = made_up(evaluation)
    cells = np.arange(MADE_UP_ROWS) % len(evaluation.public.cells)
    crossed = evaluation.memberships
    if crossed is not None:
        crossed = Memberships(crossed.names, np.ones((MADE_UP_ROWS, len(crossed.names)), dtype=bool))
    rows = replace(
        evaluation,
        inputs=inputs,
        targets=targets,
        cell_of=cells,
        present=np.ones(MADE_UP_ROWS, dtype=bool),
        memberships=crossed,
    )
    try:
        with _untouched(model), torch.random.fork_rng(devices=[]):
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


def _kind(problem: Problem) -> torch.dtype:
    return problem.inputs.dtype if problem.source is None else torch.float32


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Leave the model as it is, whatever its forward pass writes, and every module in its mode."""
    state, modes = ModelState(model), [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        state.put_back()
        for module, training in modes:
            module.training = training
