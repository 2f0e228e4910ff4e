"""The scattering transform of images: fixed wavelet features that use no other row, so they cost no privacy.

Tramèr & Boneh (2021) found that a linear model on these features beats private convolutional networks at small ε.

    S₀ = x ⋆ φ_J,   S₁ = |x ⋆ ψ_λ₁| ⋆ φ_J,   S₂ = ||x ⋆ ψ_λ₁| ⋆ ψ_λ₂| ⋆ φ_J  (j₂ > j₁)

with Morlet wavelets ψ at J scales and L angles, sampled every 2^J pixels. Convolutions are circular, after the image
was mirrored at its edges. With J = 2 and L = 8 a channel gives 1 + 16 + 64 = 81 maps.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veil.errors import require


def scattering(images: Tensor, scales: int = 2, angles: int = 8, rows_at_once: int = 16) -> Tensor:
    """Features [rows, channels × maps, height / 2^J, width / 2^J] of images [rows, channels, height, width].

    Args:
        images: Rows of channels × height × width.
        scales: How often the resolution is halved, J.
        angles: Directions of the wavelets.
        rows_at_once: Images held in memory at once; it changes no value.

    Returns:
        The features, as numbers of single precision.

    Raises:
        InputError: The shape is another one, or is not divisible by 2^J.

    >>> scattering(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """
    require(images.ndim == 4, "scattering needs rows of shape channels × height × width")
    height, width = images.shape[2:]
    stride = 2**scales
    require(
        height % stride == 0 and width % stride == 0,
        f"images of {height} × {width} pixels are not divisible by {stride}: pad them or use fewer scales",
    )
    filters = _filters(height + 2 * stride, width + 2 * stride, scales, angles)
    pieces = [_scatter(piece, filters, stride) for piece in torch.split(images.to(torch.float32), rows_at_once)]
    return torch.cat(pieces)


def _scatter(images: Tensor, filters: tuple[Tensor, tuple[tuple[Tensor, ...], ...]], stride: int) -> Tensor:
    low, waves = filters
    rows, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (stride,) * 4, mode="reflect")
    down, across = _averages(low, stride)

    def smooth(whole: Tensor) -> Tensor:
        return down @ whole @ across.T

    spectrum, maps, second = torch.fft.fft2(padded), [smooth(padded)], list[Tensor]()
    for scale, at_scale in enumerate(waves):
        for wave in at_scale:
            size = torch.fft.ifft2(spectrum * wave).abs()
            maps.append(smooth(size))
            first = torch.fft.fft2(size) if scale + 1 < len(waves) else size
            for coarser in waves[scale + 1 :]:
                second += [smooth(torch.fft.ifft2(first * other).abs()) for other in coarser]
    stacked = torch.stack([*maps, *second], dim=2)
    return stacked.reshape(rows, -1, height // stride, width // stride)


def _averages(low: Tensor, stride: int) -> tuple[Tensor, Tensor]:
    """The matrices that average a mirrored image by φ_J down its rows and across its columns, at the sampled places.

    φ_J is a Gaussian, the same in all directions: the product of one along each axis.
    """
    kernel = torch.fft.ifft2(low.double()).real
    sides = kernel[:, 0], kernel[0] / kernel[0, 0]
    found = []
    for side in sides:
        places = torch.arange(stride, len(side) - stride, stride)
        found.append(side[(places[:, None] - torch.arange(len(side))) % len(side)].float())
    return found[0], found[1]


@lru_cache(maxsize=8)
def _filters(height: int, width: int, scales: int, angles: int) -> tuple[Tensor, tuple[tuple[Tensor, ...], ...]]:
    """The spectra of φ_J and of ψ by scale and angle."""
    low = _spectrum(_gaussian(height, width, 0.8 * 2 ** (scales - 1), 0.0, 1.0))
    low = low / low[0, 0]
    waves = tuple(
        tuple(
            _spectrum(
                _morlet(
                    height,
                    width,
                    0.8 * 2**scale,
                    (angles // 2 - 1 - turn) * math.pi / angles,
                    0.75 * math.pi / 2**scale,
                    4.0 / angles,
                )
            )
            for turn in range(angles)
        )
        for scale in range(scales)
    )
    return low, waves


def _spectrum(kernel: NDArray[np.complex128]) -> Tensor:
    # The transform of these kernels is real: they are symmetric, the imaginary part antisymmetric.
    return torch.from_numpy(np.ascontiguousarray(np.fft.fft2(kernel).real.astype(np.float32)))


def _gaussian(height: int, width: int, sigma: float, angle: float, slant: float) -> NDArray[np.complex128]:
    return _gabor(height, width, sigma, angle, 0.0, slant)


def _gabor(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """A wave under an elliptic Gaussian window, wrapped around the edges of the grid."""
    total = np.zeros((height, width), dtype=np.complex128)
    cos, sin = math.cos(angle), math.sin(angle)
    for shift_y in range(-2, 3):
        for shift_x in range(-2, 3):
            y, x = np.mgrid[shift_y * height : (shift_y + 1) * height, shift_x * width : (shift_x + 1) * width].astype(
                np.float64
            )
            along, across = x * cos + y * sin, -x * sin + y * cos
            window = -(along**2 + (slant * across) ** 2) / (2 * sigma**2)
            total += np.exp(window + 1j * frequency * along)
    return np.asarray(total * slant / (2 * math.pi * sigma**2))


def _morlet(
    height: int, width: int, sigma: float, angle: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """A Gabor wave less the share of its window that brings its mean to zero."""
    wave = _gabor(height, width, sigma, angle, frequency, slant)
    window = _gabor(height, width, sigma, angle, 0.0, slant)
    return np.asarray(wave - window * (wave.sum() / window.sum()))
