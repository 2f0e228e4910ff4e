"""Validation: finds what makes one row's gradient depend on other rows, by structure and by a perturbation probe."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from veil.gradients.batches import count_rows, mapped, sliced, tensors
from veil.gradients.records import Batch, GradientError, LossFn

_FIX = "convert the model with veil.gradients.fix(model)"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason why a model cannot be trained row by row: where it is, what it is, and what to do."""

    module: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.module}: {self.reason}: {self.fix}"


def validate(model: nn.Module, batch: Batch | None = None, loss: LossFn | None = None) -> list[Finding]:
    """Everything found that mixes rows; an empty list means that nothing was.

    Without a batch only the modules are looked at. With one, rows of it are changed and removed, on a copy of the
    model, and the outputs (or the per-row losses, if `loss` is given) of the other rows must stay as they were. Rows
    are removed in evaluation mode only: the random numbers of dropout depend on how many rows there are.

    >>> [finding.module for finding in validate(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))]
    ['1 (BatchNorm1d)']
    """
    findings = [finding for name, module in model.named_modules() for finding in _of_module(name, module)]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        findings.append(
            Finding("model", "it has no trainable parameter", "set requires_grad on what should be trained")
        )
    if batch is not None and not findings:
        findings += _probe(model, batch, loss)
    return findings


def check(model: nn.Module, batch: Batch | None = None, loss: LossFn | None = None) -> None:
    """Raise `GradientError` with every finding of `validate` and its fix; return nothing if there is none."""
    findings = validate(model, batch, loss)
    if findings:
        raise GradientError("the model cannot be trained row by row: " + "; ".join(map(str, findings)))


def _of_module(name: str, module: nn.Module) -> list[Finding]:
    where = f"{name or 'model'} ({type(module).__name__})"
    if isinstance(module, DistributedDataParallel):
        return [Finding(where, "it averages gradients before rows are bounded", "give the module inside it")]
    own = list(module.parameters(recurse=False))
    coarse = [p.dtype for p in own if p.requires_grad and p.dtype in (torch.bfloat16, torch.float16)]
    if coarse:
        reason = f"it is in {str(coarse[0]).removeprefix('torch.')}, too coarse to bound one row among many"
        return [Finding(where, reason, "convert the model with model.float()")]
    if any(type(parameter.data).__name__ == "DTensor" for parameter in own):
        return [Finding(where, "its parameters are spread over processes (FSDP)", "give each process the whole module")]
    if isinstance(module, _BatchNorm):
        return [Finding(where, "it normalises a row by the other rows of its batch", f"{_FIX} (GroupNorm instead)")]
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return [Finding(where, "it stores statistics of private rows", f"{_FIX} (track_running_stats=False)")]
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return [Finding(where, "max_norm rewrites the table from the rows it sees", "remove max_norm")]
        if module.scale_grad_by_freq:
            return [Finding(where, "scale_grad_by_freq counts entries over the batch", "remove scale_grad_by_freq")]
    return []


def _probe(model: nn.Module, batch: Batch, loss: LossFn | None) -> list[Finding]:
    rows = count_rows(batch)
    if rows < 2:
        return []
    copied = copy.deepcopy(model)
    run = _runner(copied, loss)
    before = run(batch)
    fix = "make each row's output depend on that row alone (reduce over features and positions, never over rows)"
    findings = []
    for row in (0, rows - 1):
        after = run(mapped(batch, lambda tensor, row=row: _changed(tensor, row)))  # type: ignore[misc]
        others = torch.arange(rows) != row
        if any(not _same(a, b, others) for a, b in zip(before, after, strict=True)):
            findings.append(Finding("model", f"changing row {row} of the batch changes the output of other rows", fix))
            break
    copied.eval()
    whole, shorter = run(batch), run(sliced(batch, 0, rows - 1))
    if any(a.shape[0] != rows or not _same(a[: rows - 1], b, slice(None)) for a, b in zip(whole, shorter, strict=True)):
        findings.append(Finding("model", "removing a row of the batch changes the output of other rows", fix))
    return findings


def _runner(model: nn.Module, loss: LossFn | None) -> Callable[[Batch], list[Tensor]]:
    """Outputs of the model, with the same random numbers each time and no trace left in the generator."""

    def run(batch: Batch) -> list[Tensor]:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs = list(tensors(model(batch) if loss is None else loss(model, batch)))
        wrong = [tuple(output.shape) for output in outputs if output.ndim == 0]
        if wrong or not outputs:
            raise GradientError("the outputs have no row dimension: return one value per row")
        return outputs

    return run


def _changed(tensor: Tensor, row: int) -> Tensor:
    """The tensor with one row replaced: by another row's values, and shifted if they are real numbers."""
    changed = tensor.clone()
    changed[row] = tensor[(row + 1) % tensor.shape[0]]
    if tensor.is_floating_point():
        changed[row] = 2.0 * changed[row] + 1.0
    return changed


def _same(one: Tensor, other: Tensor, which: Tensor | slice) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return bool((one[which] == other[which]).all())
    tolerance = 1e-4 if one.dtype != torch.float64 else 1e-8
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return torch.allclose(one[which], other[which], rtol=tolerance, atol=tolerance * scale, equal_nan=True)
