"""The picture of an attack: ROC curves on logarithmic axes beside the ceilings that the certificate allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

LEFT, TOP, SIDE, BOTTOM = 62, 30, 360, 46
LOWEST = 1e-3
COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#7c3aed", "#b91c1c", "#0e7490", "#a16207", "#be185d", "#4d7c0f", "#1e3a8a")


def roc_svg(title: str, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """An SVG of the curves in `parts`, by name, as `Finding.as_json` has them: `curve` with fpr, tpr and ceiling.

    >>> roc_svg("x", {"a": {"auroc": 0.5, "curve": {"fpr": [0.01, 1.0], "tpr": [0.01, 1.0]}}}).startswith("<svg")
    True
    """
    width, height = LEFT + SIDE + 20, TOP + SIDE + BOTTOM + 18 * len(parts)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
        *_axes(),
    ]
    for index, (name, part) in enumerate(parts.items()):
        colour, curve = COLOURS[index % len(COLOURS)], part["curve"]
        lines.append(_line(curve["fpr"], curve["tpr"], f'stroke="{colour}" stroke-width="2"'))
        label = f"{name}: AUROC {part['auroc']:.3f}"
        if "ceiling" in curve:
            style = f'stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 4"'
            lines.append(_line(curve["fpr"], curve["ceiling"], style))
            label += f", ceiling {part['auroc_ceiling']:.3f} (dashed)"
        y = TOP + SIDE + BOTTOM + 18 * index
        lines.append(f'<rect x="{LEFT}" y="{y - 9}" width="14" height="4" fill="{colour}"/>')
        lines.append(f'<text x="{LEFT + 20}" y="{y - 3}">{escape(label)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _place(value: float) -> float:
    return (math.log10(max(value, LOWEST)) - math.log10(LOWEST)) / -math.log10(LOWEST) * SIDE


def _line(xs: Sequence[float], ys: Sequence[float], style: str) -> str:
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if x >= LOWEST]
    path = " ".join(f"{LEFT + _place(x):.1f},{TOP + SIDE - _place(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" {style}/>'


def _axes() -> list[str]:
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#999"/>'
    chance = _line([LOWEST, 1.0], [LOWEST, 1.0], 'stroke="#bbb"')
    marks = [frame, chance]
    for exponent in range(-3, 1):
        value = 10.0**exponent
        x, y = LEFT + _place(value), TOP + SIDE - _place(value)
        marks.append(f'<text x="{x:.1f}" y="{TOP + SIDE + 15}" text-anchor="middle">{value:g}</text>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    marks.append(f'<text x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 30}" text-anchor="middle">false positive rate</text>')
    middle = TOP + SIDE / 2
    marks.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">true positive rate</text>'
    )
    return marks
