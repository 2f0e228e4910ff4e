"""Fixing: a copy of a model in which no layer mixes rows any more."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

MOST_GROUPS = 32
FEWEST_CHANNELS = 4


def fix(model: nn.Module) -> nn.Module:
    """A copy of the model with GroupNorm in place of BatchNorm and InstanceNorm that keeps no statistics.

    Scale and shift are carried over. The model given stays as it is.

    Args:
        model: Any module.

    Returns:
        The copy, which `check` accepts if nothing else mixes rows.

    >>> type(fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]).__name__
    'GroupNorm'
    """
    fixed = copy.deepcopy(model)
    done: dict[nn.Module, nn.Module] = {}
    if isinstance(fixed, _BatchNorm):
        return _group_norm(fixed)
    for parent in list(fixed.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                # One module under two names stays one module.
                done.setdefault(child, _group_norm(child))
                setattr(parent, name, done[child])
    for module in fixed.modules():
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return fixed


def group_count(channels: int) -> int:
    """Groups of at least four channels where that is possible, and at most 32 of them.

    >>> [group_count(channels) for channels in (3, 8, 64, 512)]
    [1, 2, 16, 32]
    """
    most = min(MOST_GROUPS, max(1, channels // FEWEST_CHANNELS))
    return max(groups for groups in range(1, most + 1) if channels % groups == 0)


def _group_norm(module: _BatchNorm) -> nn.GroupNorm:
    channels = module.num_features
    like = module.weight if module.affine else module.running_mean
    device, dtype = (None, None) if like is None else (like.device, like.dtype)
    norm = nn.GroupNorm(group_count(channels), channels, module.eps, module.affine, device=device, dtype=dtype)
    if module.affine:
        with torch.no_grad():
            norm.weight.copy_(module.weight)
            norm.bias.copy_(module.bias)
        norm.weight.requires_grad_(module.weight.requires_grad)
        norm.bias.requires_grad_(module.bias.requires_grad)
    return norm.train(module.training)
