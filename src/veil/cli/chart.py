"""A line chart in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(xs: Sequence[float], ys: Sequence[float], title: str, height: int = 10) -> str:
    """Columns of block characters, one per point, with the extreme values written out.

    >>> print(chart([1, 2, 3], [0.0, 0.5, 1.0], "rising", height=2))
    rising
     1.0000 ┤  █
            │ ██
     0.0000 ┴───
             1 … 3
    """
    top = max(ys)
    scaled = [round(height * (len(BLOCKS) - 1) * (y / top if top > 0 else 0.0)) for y in ys]
    lines = [title]
    for row in range(height - 1, -1, -1):
        cells = (min(max(value - row * (len(BLOCKS) - 1), 0), len(BLOCKS) - 1) for value in scaled)
        label = f"{top:7.4f} ┤" if row == height - 1 else " " * 8 + "│"
        lines.append((label + "".join(BLOCKS[cell] for cell in cells)).rstrip())
    lines.append(f"{0.0:7.4f} ┴" + "─" * len(ys))
    lines.append(" " * 9 + f"{xs[0]:g} … {xs[-1]:g}")
    return "\n".join(lines)
