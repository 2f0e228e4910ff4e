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
BLUE, ORANGE, GREEN, GREY = "#2563eb", "#c2410c", "#15803d", "#e5e7eb"


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """A picture on white paper, readable on light and dark pages."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    style = 'font-family="system-ui, sans-serif" font-size="14"'
    paper = f'<rect width="{width}" height="{height}" rx="12" fill="{PAPER}"/>'
    return "\n".join([f"{head} {style}>", f"<title>{escape(title)}</title>", paper, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, color: str = INK, anchor: str = "middle", size: int = 14) -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" fill="{color}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


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
    """The seven stages of one step."""
    stages = [
        ("1 reserve", ("the cost goes into", "the ledger, on disk"), ORANGE),
        ("2 sample", ("which rows take part:", "a public rate"), BLUE),
        ("3 gradients", ("one for each row", "that was drawn"), BLUE),
        ("4 bound", ("no row counts for", "more than C"), BLUE),
        ("5 noise", ("once, σ = κ·C:", "now it may leave"), ORANGE),
        ("6 update", ("the optimizer sees", "released sums only"), GREEN),
        ("7 controller", ("rates and bounds of", "the next step"), GREEN),
    ]
    parts = []
    for k, (name, lines, color) in enumerate(stages):
        x, y = (16 + 186 * k, 40) if k < 4 else (574 - 186 * (k - 4), 168)
        parts.append(box(x, y, 160, [name, *lines], color))
        if k < 3:
            parts.append(arrow(x + 162, 81, x + 184, 81))
        elif k == 3:
            parts.append(arrow(x + 80, 124, x + 80, 166))
        elif k < 6:
            parts.append(arrow(x - 2, 209, x - 24, 209))
    parts.append(text(95, 190, "next step", SOFT, size=13))
    parts.append(arrow(95, 168, 95, 126))
    parts.append(arrow(200, 209, 134, 209))
    parts.append(
        text(
            375,
            24,
            "blue: private rows are read · orange: the guarantee is made · green: released values only",
            SOFT,
            size=13,
        )
    )
    return svg(750, 268, parts, "One step: reserve, sample, gradients, bound, noise, update, controller")


def ledger() -> str:
    """What is on disk when a run dies."""
    parts = [text(16, 28, "time →", SOFT, "start")]
    for k, word in enumerate(("step 41", "step 42", "step 43")):
        x = 40 + 230 * k
        parts.append(box(x, 44, 92, ["reserve", word], ORANGE))
        if k < 2:
            parts.append(arrow(x + 94, 74, x + 114, 74))
            parts.append(box(x + 116, 44, 92, ["release", word], BLUE))
            parts.append(arrow(x + 210, 74, x + 228, 74))
    parts.append(
        f'<line x1="612" y1="36" x2="612" y2="112" stroke="{ORANGE}" stroke-width="2" stroke-dasharray="6 4"/>'
    )
    parts.append(text(620, 66, "crash", ORANGE, "start"))
    parts.append(text(40, 138, "ledger on disk:", INK, "start"))
    parts.append(text(160, 138, "41  42  43   (43 is charged although it was never released)", SOFT, "start"))
    parts.append(text(40, 162, "model on disk:", INK, "start"))
    parts.append(
        text(160, 162, "after 42   → resuming repeats 43: same rows, same noise, no new charge", SOFT, "start")
    )
    return svg(700, 182, parts, "The ledger runs ahead of the releases: a crash over-reports, never under-reports")


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
        ("a group drawn more often …", rates, 360, BLUE, "{:.0%}", "share of its rows in a step"),
        ("… is bounded more tightly,", bounds, 115, ORANGE, "{:.2f}", "bound, times the first one"),
        ("and every group pays the same", costs, 80, GREEN, "ε = {:.1f}", "one row, after 400 steps"),
    ]
    parts = []
    for place, (title, values, scale, color, form, below) in enumerate(panels):
        middle = 125 + 225 * place
        parts.append(text(middle, 28, title, INK))
        parts += bars(middle - 67, 170, values, scale, color, 40)
        parts += [text(middle - 47 + 48 * k, 188, form.format(value), SOFT, size=12) for k, value in enumerate(values)]
        parts.append(text(middle, 210, below, SOFT, size=12))
    return svg(700, 226, parts, "ASC: a group that is drawn more often is bounded more tightly, at the same cost")


def fdpg() -> str:
    """Long gradients lose more by clipping: the group is drawn more often until both pay the same."""
    norms = {"large group": (0.5, 0.8, 1.1, 1.4), "small group": (1.4, 2.2, 2.9, 3.6)}
    parts = [text(350, 28, "what clipping at C takes from each row's gradient", INK)]
    for k, (name, lengths) in enumerate(norms.items()):
        x = 98 + 320 * k
        parts += bars(x, 190, lengths, 38, GREY, 40)
        parts += bars(x, 190, [min(length, 1.0) for length in lengths], 38, BLUE, 40)
        lost = 1 - sum(min(length, 1.0) for length in lengths) / sum(lengths)
        parts.append(text(x + 92, 212, f"{name}: {lost:.0%} is cut off", SOFT, size=13))
        parts.append(f'<line x1="{x - 20}" y1="152" x2="{x + 204}" y2="152" stroke="{ORANGE}" stroke-dasharray="5 4"/>')
        parts.append(text(x - 26, 156, "C", ORANGE, "end"))
    said = "FDPG draws the group that loses most more often, until privacy costs every group the same"
    parts.append(text(350, 240, said, GREEN, size=13))
    return svg(700, 256, parts, "FDPG: groups whose gradients lose more by clipping are drawn more often")


def ino() -> str:
    """Importance over the line of rows, the hardest first: computed by the tail that trains."""
    tail, rows = BetaTail(6.0), 12
    ends = np.arange(rows + 1, dtype=float)
    weights = (1.0 - np.diff(tail.lost(ends)))[::-1]
    parts = [text(350, 28, "rows of a batch, the highest loss first", INK)]
    parts += bars(64, 176, [1.0] * rows, 120, GREY, 40)
    parts += bars(64, 176, list(weights), 120, BLUE, 40)
    parts.append(text(200, 196, "hard rows count in full", SOFT, size=13))
    parts.append(text(500, 196, "the tail: easy rows count less and less", SOFT, size=13))
    parts.append(
        text(
            350,
            224,
            "No row can push others by more than its own bound, so the order costs no extra noise",
            GREEN,
            size=13,
        )
    )
    return svg(700, 240, parts, "INO-SGD: rows with a low loss fall into a tail and weigh less")


if __name__ == "__main__":
    FIGURES.mkdir(exist_ok=True)
    for draw in (step, ledger, asc, fdpg, ino):
        (FIGURES / f"{draw.__name__}.svg").write_text(draw(), encoding="utf-8")
    print(f"wrote {len(list(FIGURES.glob('*.svg')))} figures")
