"""Figure: lines with their spread, and bars, as SVG without any library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#0b6bcb", "#c2410c", "#15803d", "#7c3aed", "#b91c1c", "#0e7490", "#a16207", "#be185d", "#4d7c0f", "#1e3a8a")
LEFT, TOP, WIDE, TALL, BOTTOM, LINE = 52, 44, 330, 220, 44, 18
Place = Callable[[float], float]
DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Line:
    """Points (x, mean, standard deviation)."""

    name: str
    points: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `ticks` names places on the x axis."""

    title: str
    x_title: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]


def line_chart(title: str, panels: Sequence[Panel]) -> str:
    """Panels side by side with one legend; bars of one standard deviation, or a band where there are many points.

    >>> panel = Panel("accuracy", "ε", (Line("asc", ((1.0, 0.5, 0.1), (2.0, 0.7, 0.1))),), ((1.0, "1"), (2.0, "2")))
    >>> line_chart("x", [panel]).startswith("<svg")
    True
    """
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    width = (LEFT + WIDE + 24) * len(panels)
    height = TOP + TALL + BOTTOM + LINE * len(names)
    parts = _opening(title, width, height)
    for place, panel in enumerate(panels):
        parts += _panel(panel, place * (LEFT + WIDE + 24), names)
    for index, name in enumerate(names):
        y = TOP + TALL + BOTTOM + LINE * index + 4
        parts.append(f'<path d="M{LEFT} {y - 4}h24" {_stroke(index)} stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 30}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def bar_chart(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """One block of lying bars per label, one bar per series, with the number at its end.

    >>> "50" in bar_chart("x", ["asc"], {"worst group": [50.0]}, "percent")
    True
    """
    names, thick = list(series), 14
    block = thick * len(names) + 12
    longest = max(map(len, labels), default=0)
    left = max(LEFT, 20 + 6 * longest)
    width, height = left + WIDE + 70, TOP + block * len(labels) + LINE * (len(names) + 1) + 10
    finite = [value for numbers in series.values() for value in numbers if math.isfinite(value)]
    top, bottom = max([*finite, 0.0]), min([*finite, 0.0])
    scale = WIDE / ((top - bottom) or 1.0)
    parts = _opening(title, width, height)
    for place, label in enumerate(labels):
        y = TOP + block * place
        parts.append(f'<text x="{left - 8}" y="{y + block / 2:.1f}" text-anchor="end">{escape(label)}</text>')
        for index, numbers in enumerate(series.values()):
            value, at = numbers[place], y + thick * index
            if not math.isfinite(value):
                continue
            start, length = left + (min(value, 0.0) - bottom) * scale, abs(value) * scale
            colour = COLOURS[index % len(COLOURS)]
            box = f'x="{start:.1f}" y="{at}" width="{length:.1f}" height="{thick - 3}"'
            parts.append(f'<rect {box} fill="{colour}"/>')
            parts.append(f'<text x="{start + length + 4:.1f}" y="{at + thick - 4}">{value:.3g}</text>')
    for index, name in enumerate(names):
        y = TOP + block * len(labels) + LINE * index + 12
        parts.append(f'<rect x="{left}" y="{y - 9}" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{left + 16}" y="{y}">{escape(name)}</text>')
    parts.append(f'<text x="{width - 8}" y="{height - 8}" text-anchor="end">{escape(unit)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _opening(title: str, width: int, height: int) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="14" font-size="13">{escape(title)}</text>',
    ]


def _stroke(index: int) -> str:
    """Colour and dashes of a line: told apart without colour too."""
    dashes = DASHES[index // 2 % len(DASHES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{COLOURS[index % len(COLOURS)]}"{dashed} fill="none"'


def _panel(panel: Panel, left: int, names: Sequence[str]) -> list[str]:
    points = [point for line in panel.lines for point in line.points]
    xs = [x for x, _, _ in points] + [x for x, _ in panel.ticks]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    bottom, step, top = _axis(
        min((y - s for _, y, s in points), default=0), max((y + s for _, y, s in points), default=1)
    )
    x0 = left + LEFT

    def across(x: float) -> float:
        return x0 + WIDE * ((x - low) / (high - low) if high > low else 0.5)

    def up(y: float) -> float:
        return TOP + TALL * (1 - (y - bottom) / ((top - bottom) or 1.0))

    parts = [f'<text x="{x0}" y="{TOP - 5}" font-weight="bold">{escape(panel.title)}</text>']
    for number in range(round((top - bottom) / step) + 1):
        value = bottom + number * step
        parts.append(f'<path d="M{x0} {up(value):.1f}h{WIDE}" stroke="#ddd"/>')
        parts.append(f'<text x="{x0 - 6}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for x, words in panel.ticks:
        parts.append(f'<text x="{across(x):.1f}" y="{TOP + TALL + 14}" text-anchor="middle">{escape(words)}</text>')
    parts.append(f'<text x="{x0 + WIDE / 2}" y="{TOP + TALL + 29}" text-anchor="middle">{escape(panel.x_title)}</text>')
    for line in panel.lines:
        index = names.index(line.name)
        path = "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y, _ in line.points)
        parts += _spread(line, index, across, up)
        parts.append(f'<path d="{path}" {_stroke(index)} stroke-width="2"/>')
        if len(line.points) <= 8:
            colour = COLOURS[index % len(COLOURS)]
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>' for x, y, _ in line.points
            ]
    return parts


def _spread(line: Line, index: int, across: Place, up: Place) -> list[str]:
    colour = COLOURS[index % len(COLOURS)]
    if not any(s for _, _, s in line.points):
        return []
    if len(line.points) <= 8:
        return [
            f'<path d="M{across(x):.1f} {up(y - s):.1f}L{across(x):.1f} {up(y + s):.1f}" stroke="{colour}"/>'
            for x, y, s in line.points
            if s
        ]
    there = [f"{across(x):.1f} {up(y + s):.1f}" for x, y, s in line.points]
    back = [f"{across(x):.1f} {up(y - s):.1f}" for x, y, s in reversed(line.points)]
    return [f'<path d="M{"L".join([*there, *back])}Z" fill="{colour}" opacity="0.12"/>']


def _axis(low: float, high: float) -> tuple[float, float, float]:
    """Bottom, step and top of an axis in round numbers.

    >>> _axis(3.0, 97.0)
    (0.0, 20.0, 100.0)
    """
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor * 5 >= span)
    bottom = math.floor(low / step) * step
    return bottom, step, max(math.ceil(high / step) * step, bottom + step)
