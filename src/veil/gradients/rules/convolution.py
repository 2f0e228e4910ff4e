"""Convolutions in one, two and three dimensions: any stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from veil.gradients import costs
from veil.gradients.batches import zeroed
from veil.gradients.contributions import Contribution, Rowwise, Take, doubtful, large_positions, taken_apart
from veil.gradients.recording import Parts, Recorder, Rows, rule

# Patches are copied out a few rows at a time, so that they stay in the processor's cache.
PATCH_VALUES = 2_000_000
GRAM_VALUES = 1_000_000
# torch holds the kernels' gradient of such a convolution three times while it computes it.
GROUPED_VALUES = 2_400_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The public constants of one convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _per_dimension(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


@rule(F.conv1d, F.conv2d, F.conv3d)
def convolution(
    recorder: Recorder,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Any:
    """The gradient of the kernel is Σ_t g_t ⊗ patch_t over output positions t; that of the bias is Σ_t g_t."""
    dims = weight.ndim - 2
    if not recorder.trains(weight, bias) or input.ndim != dims + 2:
        return NotImplemented
    steps, spread, kernel = _per_dimension(stride, dims), _per_dimension(dilation, dims), tuple(weight.shape[2:])
    if isinstance(padding, str):
        total = [s * (k - 1) if padding == "same" else 0 for s, k in zip(spread, kernel, strict=True)]
        input = F.pad(input, [side for t in reversed(total) for side in (t // 2, t - t // 2)]) if any(total) else input
        padding = 0
    shape = Shape(kernel, steps, _per_dimension(padding, dims), spread, groups)
    plain_weight, plain_bias = recorder.opened(input, weight, bias)
    assert plain_weight is not None
    output = torch.convolution(
        input, plain_weight, plain_bias, steps, shape.padding, spread, False, (0,) * dims, groups
    )
    return recorder.record(
        "convolution",
        input,
        output,
        1,
        (weight, bias),
        lambda gradient, rows: _parts(recorder, input, weight, bias, shape, gradient, rows),
    )


def _parts(
    recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, gradient: Tensor, rows: Rows
) -> Parts:
    gradients = rows.split(gradient)
    if bias is not None and recorder.trains(bias):
        yield bias, Rowwise(gradients.flatten(3).sum((1, 3)))
    if recorder.trains(weight):
        images = rows.split(input.detach())
        yield (
            weight,
            Convolved(images.flatten(0, 1), gradients.flatten(0, 1), weight.detach(), shape, rows.count),
        )


@dataclass(slots=True)
class Convolved(Contribution):
    """Kernel gradients held as images and output gradients; `rows` rows of one or more images each."""

    images: Tensor
    gradients: Tensor
    weight: Tensor
    shape: Shape
    rows: int

    def settle(self, take: Take | None = None) -> tuple[Tensor, Contribution]:
        ways = self._costs()
        if min(ways, key=lambda way: ways[way]) == "gram":
            return self._by_gram()
        return Rowwise(self.values()).settle()

    def _costs(self) -> dict[str, float]:
        images = self.images.shape[0] // max(self.rows, 1)
        p, d = self.weight.shape[0], prod(self.weight.shape[1:])
        positions, pixels = prod(self.gradients.shape[2:]), prod(self._padded_size())
        work = images * positions * p * d
        held = images * (self.images[0].numel() + self.gradients[0].numel()) if self.images.shape[0] else 0
        written = 3 * costs.READ * p * d + 2 * costs.READ * max(0, p * d - held)
        ways = {
            "patches": costs.BATCHED_PRODUCT * work
            + 2 * costs.READ * images * positions * d * self.shape.groups
            + written,
            "grouped": costs.LARGE_PRODUCT * work
            + images * (costs.SETUP * p * d + 2 * costs.READ * positions * p)
            + written,
        }
        if images == 1 and self.shape.groups == 1:
            products = pixels * pixels * self.images.shape[1] + positions * positions * p
            read = costs.READ if max(self.shape.stride) == 1 else costs.STRIDED_READ
            sums = 2 * read * positions * positions * prod(self.shape.kernel)
            ways["gram"] = costs.BATCHED_PRODUCT * products + sums + costs.LARGE_PRODUCT * work
        return ways

    def _padded_size(self) -> list[int]:
        return [size + 2 * pad for size, pad in zip(self.images.shape[2:], self.shape.padding, strict=True)]

    def _padded(self, images: Tensor) -> Tensor:
        if not any(self.shape.padding):
            return images
        return F.pad(images, [side for pad in reversed(self.shape.padding) for side in (pad, pad)])

    def _windows(self) -> list[tuple[slice, ...]]:
        """For every place in the kernel, the pixels of a padded image that it meets, one per output position."""
        sizes = self.gradients.shape[2:]
        return [
            tuple(
                slice(at * spread, at * spread + (size - 1) * step + 1, step)
                for at, spread, size, step in zip(place, self.shape.dilation, sizes, self.shape.stride, strict=True)
            )
            for place in product(*(range(k) for k in self.shape.kernel))
        ]

    def _by_gram(self) -> tuple[Tensor, Contribution]:
        """Inner products of patches are sums of inner products of pixels, shifted: no patch is ever written out."""
        count, positions, size = self.images.shape[0], prod(self.gradients.shape[2:]), self._padded_size()
        step = max(1, GRAM_VALUES // max(1, prod(size) ** 2))
        found, lost = [], []
        for start in range(0, count, step):
            images = self._padded(self.images[start : start + step]).flatten(2)
            products = torch.bmm(images.transpose(1, 2), images)
            outputs = self.gradients[start : start + step].flatten(2)
            inner = torch.bmm(outputs.transpose(1, 2), outputs)
            if large_positions(products, inner):
                return Rowwise(self.values()).settle()
            pixels = products.view(-1, *size, *size)
            windows = self._windows()
            patches = pixels[(slice(None), *windows[0], *windows[0])].contiguous()
            for window in windows[1:]:
                patches += pixels[(slice(None), *window, *window)]
            gram = patches.reshape(-1, positions * positions).mul_(inner.flatten(1))
            squares, index = doubtful(gram.view(-1, positions, positions))
            found.append(squares)
            if index is not None:
                lost.append(index + start)
        if not lost:
            return torch.cat(found), self
        rows = torch.cat(lost)
        few = replace(self, images=self.images[rows], gradients=self.gradients[rows], rows=rows.shape[0])
        return taken_apart(self, torch.cat(found), rows, few.values())

    def values(self) -> Tensor:
        if self.images.shape[0] == 0:
            return self.weight.new_zeros(0, *self.weight.shape)
        ways = self._costs()
        per_image = self._by_groups() if ways["grouped"] < ways["patches"] else self._by_patches()
        if per_image.shape[0] == self.rows:
            return per_image
        return per_image.view(self.rows, -1, *self.weight.shape).sum(1)

    def _by_groups(self) -> Tensor:
        """Ordinary convolutions backward in which every image is a group of its own, a few images at a time."""
        step = max(1, GROUPED_VALUES // max(1, self.weight.numel()))
        pieces = zip(torch.split(self.images, step), torch.split(self.gradients, step), strict=True)
        found = [self._grouped(images, gradients) for images, gradients in pieces]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _grouped(self, images: Tensor, gradients: Tensor) -> Tensor:
        count, groups = images.shape[0], self.shape.groups
        kernels = self.weight.new_empty(1).expand(count * self.weight.shape[0], *self.weight.shape[1:])
        gradients = gradients.reshape(1, -1, *gradients.shape[2:])
        images = images.reshape(1, -1, *images.shape[2:])
        return self._backward(gradients, images, kernels, count * groups).view(count, *self.weight.shape)

    def _backward(self, gradients: Tensor, images: Tensor, kernels: Tensor, groups: int) -> Tensor:
        """The gradient of `kernels`, by torch's own backward pass of a convolution."""
        fixed = (None, self.shape.stride, self.shape.padding, self.shape.dilation, False, [0] * len(self.shape.kernel))
        found = torch.ops.aten.convolution_backward(gradients, images, kernels, *fixed, groups, [False, True, False])
        result: Tensor = found[1]
        return result

    def _by_patches(self) -> Tensor:
        """Patches written out by slices, a few images at a time, and multiplied with the output gradients."""
        count, groups, kernel = self.images.shape[0], self.shape.groups, self.shape.kernel
        outs, ins, places = self.weight.shape[0] // groups, self.weight.shape[1], prod(kernel)
        positions = prod(self.gradients.shape[2:])
        result = self.images.new_empty(count, groups, outs, ins * places)
        step = max(1, PATCH_VALUES // max(1, places * ins * groups * positions))
        windows = self._windows()
        for start in range(0, count, step):
            images = self._padded(self.images[start : start + step]).contiguous()
            images = images.view(images.shape[0], groups, ins, *images.shape[2:])
            patches = torch.stack([images[(slice(None), slice(None), slice(None), *window)] for window in windows], 3)
            gradients = self.gradients[start : start + step].reshape(-1, outs, positions)
            target = result[start : start + step].view(-1, outs, ins * places)
            torch.bmm(gradients, patches.reshape(-1, ins * places, positions).transpose(1, 2), out=target)
        return result.view(count, *self.weight.shape)

    def total(self, weights: Tensor) -> Tensor:
        images = self.images.shape[0] // max(self.rows, 1)
        sums = []
        for row_weights in weights.to(self.gradients.dtype):
            scale = row_weights.repeat_interleave(images).view(-1, 1, *(1 for _ in self.shape.kernel))
            sums.append(self._backward(self.gradients * scale, self.images, self.weight, self.shape.groups))
        return torch.stack(sums)

    def kept(self, keep: Tensor) -> Contribution:
        per_image = keep.repeat_interleave(self.images.shape[0] // max(self.rows, 1))
        return replace(self, images=zeroed(self.images, per_image), gradients=zeroed(self.gradients, per_image))
