"""Draw the figures of docs/how-it-works.md: `python scripts/draw_figures.py` writes docs/figures/*.svg.

Bounds and weights are computed by the functions that train models, on the small examples that stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from veil.accounting import Pld, PoissonGaussian, Repeated
from veil.accounting.calibration import noise_for
from veil.bounding import BetaTail

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
INK, SOFT, PAPER = "#1f2937", "#6b7280", "#ffffff"
WIDTH = 400  # letters of 14 are then above 12 pixels on a phone
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#c2410c", "#15803d", "#e5e7eb"


def svg(height: int, parts: Sequence[str], title: str) -> str:
    """A picture on white paper, readable on light and dark pages and narrow enough for a phone."""
    size = f'width="{WIDTH * 1.15:g}" height="{height * 1.15:g}" viewBox="0 0 {WIDTH} {height}"'
    style = 'role="img" font-family="system-ui, sans-serif" font-size="14"'
    paper = f'<rect width="{WIDTH}" height="{height}" rx="12" fill="{PAPER}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, color: str = INK, anchor: str = "middle") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}" font-size="14">{escape(words)}</text>'


def box(x: float, y: float, width: float, lines: Sequence[str], color: str) -> str:
    """A framed box with a few centred lines, the first one bold."""
    height = 22 * len(lines) + 16
    frame = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="8" fill="{color}14" stroke="{color}"/>'
    words = [text(x + width / 2, y + 26 + 22 * k, line, INK if k == 0 else SOFT) for k, line in enumerate(lines)]
    words[0] = words[0].replace("<text", '<text font-weight="600"')
    return "\n".join([frame, *words])


def arrow(x1: float, y1: float, x2: float, y2: float, color: str = SOFT) -> str:
    """A straight arrow."""
    along = 1 if x2 > x1 else -1 if x2 < x1 else 0
    down = 0 if along else (1 if y2 > y1 else -1)
    tip = f"{x2:g},{y2:g} {x2 - 8 * along - 5 * (not along):g},{y2 - 8 * down - 5 * bool(along):g}"
    tip += f" {x2 - 8 * along + 5 * (not along):g},{y2 - 8 * down + 5 * bool(along):g}"
    line = f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="2"/>'
    return f'{line}<polygon points="{tip}" fill="{color}"/>'


def step() -> str:
    """The seven stages of one step, as a ring."""
    left, right, rows = 8, 216, (66, 170, 274, 378)
    stages = [
        ("1 reserve", ("the cost goes into", "the ledger, on disk"), ORANGE, left, 0),
        ("2 sample", ("which rows take part:", "a public rate"), BLUE, right, 0),
        ("3 gradients", ("one for each row", "that was drawn"), BLUE, right, 1),
        ("4 bound", ("no row counts for", "more than C"), BLUE, right, 2),
        ("5 noise", ("once, σ = κ·C: the", "sum may be released"), ORANGE, right, 3),
        ("6 update", ("the optimizer sees", "released sums only"), GREEN, left, 3),
        ("7 controller", ("rates and bounds of", "the next step"), GREEN, left, 2),
    ]
    parts = [text(200, 26, "blue: reads private rows · orange: makes the", SOFT)]
    parts.append(text(200, 46, "guarantee · green: sees released values only", SOFT))
    parts += [box(x, rows[row], 176, [name, *lines], color) for name, lines, color, x, row in stages]
    parts.append(arrow(left + 178, rows[0] + 41, right - 2, rows[0] + 41))
    parts += [arrow(right + 88, rows[row] + 84, right + 88, rows[row + 1] - 2) for row in range(3)]
    parts.append(arrow(right - 2, rows[3] + 41, left + 178, rows[3] + 41))
    parts.append(arrow(left + 88, rows[3] - 2, left + 88, rows[2] + 84))
    parts.append(arrow(left + 88, rows[2] - 2, left + 88, rows[0] + 84))
    parts.append(text(left + 98, rows[1] + 45, "next step", SOFT, "start"))
    return svg(472, parts, "One step: reserve, sample, gradients, bound, noise, update, controller")


def ledger() -> str:
    """What is on disk when a run dies."""
    parts = [text(8, 24, "time →", SOFT, "start")]
    for k, word in enumerate(("step 41", "step 42", "step 43")):
        x = 2 + 152 * k
        parts.append(box(x, 40, 66, ["reserve", word], ORANGE))
        if k < 2:
            parts.append(arrow(x + 67, 70, x + 75, 70))
            parts.append(box(x + 76, 40, 66, ["release", word], BLUE))
            parts.append(arrow(x + 143, 70, x + 151, 70))
    dashes = f'stroke="{ORANGE}" stroke-width="2" stroke-dasharray="6 4"'
    parts.append(f'<line x1="384" y1="34" x2="384" y2="106" {dashes}/>')
    parts.append(text(392, 24, "crash", ORANGE, "end"))
    lines = (
        (134, INK, "The ledger on disk has steps 41, 42 and 43:"),
        (154, SOFT, "step 43 is charged but was never released."),
        (188, INK, "The model on disk is that after step 42:"),
        (208, SOFT, "resuming repeats step 43 with the same rows"),
        (228, SOFT, "and noise, so nothing new is charged."),
    )
    parts += [text(8, y, words, color, "start") for y, color, words in lines]
    return svg(246, parts, "The ledger runs ahead of the releases: a crash over-reports, never under-reports")


def bars(x: float, y: float, values: Sequence[float], scale: float, color: str, width: float = 26) -> list[str]:
    """Upright bars that stand on y."""
    parts = []
    for k, value in enumerate(values):
        left, tall = x + (width + 8) * k, scale * value
        size = f'width="{width:g}" height="{tall:.1f}"'
        parts.append(f'<rect x="{left:g}" y="{y - tall:.1f}" {size} fill="{color}"/>')
    return parts


def asc() -> str:
    """Three rates, the bounds that go with them, and what a row then pays: computed by the accountant."""
    rates, steps, delta = (0.02, 0.08, 0.32), 400, 1e-5
    noise = [noise_for(1.0, delta, rate, steps, accountant=Pld()) for rate in rates]
    bounds = [noise[0] / kappa for kappa in noise]
    events = [PoissonGaussian(kappa, rate) for kappa, rate in zip(noise, rates, strict=True)]
    costs = [Pld().epsilon([Repeated(event, steps)], delta) for event in events]
    panels = [
        (("a group drawn", "more often …"), rates, 360, BLUE, "{:.0%}", ("share of its rows", "in a step")),
        (("… is bounded", "more tightly,"), bounds, 115, ORANGE, "{:.2f}", ("bound, times", "the first one")),
        (("and every group", "pays the same"), costs, 80, GREEN, "{:.1f}", ("ε of one row,", "after 400 steps")),
    ]
    parts = []
    for place, (title, values, scale, color, form, below) in enumerate(panels):
        middle = 68 + 132 * place
        parts += [text(middle, 26 + 18 * k, words) for k, words in enumerate(title)]
        parts += bars(middle - 53, 182, values, scale, color, 30)
        parts += [text(middle - 38 + 38 * k, 201, form.format(value), SOFT) for k, value in enumerate(values)]
        parts += [text(middle, 226 + 18 * k, words, SOFT) for k, words in enumerate(below)]
    return svg(258, parts, "ASC: a group that is drawn more often is bounded more tightly, at the same cost")


def fdpg() -> str:
    """Long gradients lose more by clipping: the group is drawn more often until both pay the same."""
    norms = {"large group": (0.5, 0.8, 1.1, 1.4), "small group": (1.4, 2.2, 2.9, 3.6)}
    parts = [text(200, 26, "what clipping at C cuts off each row's gradient")]
    for k, (name, lengths) in enumerate(norms.items()):
        x = 38 + 194 * k
        parts += bars(x, 188, lengths, 38, GREY, 28)
        parts += bars(x, 188, [min(length, 1.0) for length in lengths], 38, BLUE, 28)
        lost = 1 - sum(min(length, 1.0) for length in lengths) / sum(lengths)
        parts.append(text(x + 68, 210, f"{name} loses {lost:.0%}", SOFT))
        parts.append(f'<line x1="{x - 10}" y1="150" x2="{x + 146}" y2="150" stroke="{ORANGE}" stroke-dasharray="5 4"/>')
        parts.append(text(x - 14, 155, "C", ORANGE, "end"))
    parts.append(text(200, 242, "FDPG draws the group that loses most more often,", GREEN))
    parts.append(text(200, 261, "until privacy costs every group the same", GREEN))
    return svg(278, parts, "FDPG: groups whose gradients lose more by clipping are drawn more often")


def ino() -> str:
    """Importance over the line of rows, the hardest first: computed by the tail that trains."""
    tail, rows = BetaTail(6.0), 12
    ends = np.arange(rows + 1, dtype=float)
    weights = (1.0 - np.diff(tail.lost(ends)))[::-1]
    parts = [text(200, 26, "rows of a batch, the highest loss first")]
    parts += bars(24, 160, [1.0] * rows, 112, GREY, 22)
    parts += bars(24, 160, list(weights), 112, BLUE, 22)
    parts.append(text(24, 182, "hard rows count in full", SOFT, "start"))
    parts.append(text(376, 182, "easy rows count less", SOFT, "end"))
    parts.append(text(200, 212, "No row can push others by more than its own", GREEN))
    parts.append(text(200, 231, "bound, so the order costs no extra noise", GREEN))
    return svg(248, parts, "INO-SGD: rows with a low loss fall into a tail and weigh less")


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for draw in (step, ledger, asc, fdpg, ino):
        (FIGURES / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
    print(f"wrote {len(list(FIGURES.glob('*.svg')))} figures")
