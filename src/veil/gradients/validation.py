"""Validation: finds what makes one row's gradient depend on other rows, by structure and by trying synthetic rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from veil.gradients.probing import Finding, probe
from veil.gradients.records import Batch, GradientError, LossFn

_FIX = "convert the model with veil.gradients.fix(model)"


def validate(model: nn.Module, batch: Batch | None = None, loss: LossFn | None = None) -> list[Finding]:
    """Find everything in a model that mixes or stores rows; an empty list means that nothing was found.

    Without a batch only the modules are checked. With one, its first five rows are changed, removed, repeated, put in
    another order and joined by more, on a copy of the model, at its weights and at others. The outputs (or the per-row
    losses, if `loss` is given) of the other rows and their gradients must stay as they were, and so must everything
    that the model holds. Where random numbers are drawn (dropout), the number and order of rows change in evaluation
    mode only: the random numbers of a row depend on its place.

    Args:
        model: The model.
        batch: A few rows, real or synthetic.
        loss: One value per row.

    Returns:
        What was found, each with its module and a fix.

    >>> [finding.module for finding in validate(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))]
    ['1 (BatchNorm1d)']
    """
    findings = [finding for name, module in model.named_modules() for finding in _of_module(name, module)]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        findings.append(
            Finding("model", "it has no trainable parameter", "set requires_grad on the parameters to train")
        )
    if batch is not None and not findings:
        findings += probe(model, batch, loss)
    return findings


def check(model: nn.Module, batch: Batch | None = None, loss: LossFn | None = None) -> None:
    """Raise `GradientError` with every finding of `validate` and its fix, if there is any.

    Args:
        model: The model.
        batch: A few rows, for tests beyond the kinds of modules.
        loss: One value per row.

    Raises:
        GradientError: The model mixes or stores rows; the message lists where, and what to use instead.

    >>> check(nn.Linear(3, 2))
    >>> check(nn.BatchNorm1d(3))
    Traceback (most recent call last):
        ...
    veil.gradients.records.GradientError: ...
    """
    findings = validate(model, batch, loss)
    if findings:
        raise GradientError("the model cannot be trained row by row: " + "; ".join(map(str, findings)))


def _of_module(name: str, module: nn.Module) -> list[Finding]:
    where = f"{name or 'model'} ({type(module).__name__})"
    if isinstance(module, DistributedDataParallel):
        return [Finding(where, "it averages gradients before rows are bounded", "pass the module that it wraps")]
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return [Finding(where, "torch.compile hides the layers inside of it", "pass the module as it was before")]
    own = list(module.parameters(recurse=False))
    coarse = [p.dtype for p in own if p.requires_grad and p.dtype in (torch.bfloat16, torch.float16)]
    if coarse:
        reason = f"it is in {str(coarse[0]).removeprefix('torch.')}, too imprecise to bound single rows"
        return [Finding(where, reason, "convert the model with model.float()")]
    if any(type(parameter.data).__name__ == "DTensor" for parameter in own):
        return [Finding(where, "its parameters are sharded (FSDP)", "use the whole module in each process")]
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        freeze = "" if module.running_mean is None else "freeze its statistics with .eval(), or "
        reason = "it normalises a row by the other rows of its batch"
        return [Finding(where, reason, f"{freeze}{_FIX} (GroupNorm instead)")]
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return [Finding(where, "it stores statistics of private rows", f"{_FIX} (track_running_stats=False)")]
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return [Finding(where, "max_norm rewrites the table from the rows it sees", "remove max_norm")]
        if module.scale_grad_by_freq:
            return [Finding(where, "scale_grad_by_freq counts entries over the batch", "remove scale_grad_by_freq")]
    return []
