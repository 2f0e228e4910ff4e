"""Bounds on the gap to new rows that follow from ε-DP: the runner of `veil reproduce dp-is-bounds`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.runner import Asked
from experiments.runner.figure import Line, Panel, line_chart
from experiments.runner.findings import open_findings, read_findings
from experiments.runner.store import FOR_ALL
from veil.accounting.generalisation import tv_from_privacy
from veil.foundation.files import write_whole

TITLE = "What ε-DP says about new rows: four bounds"
ABOUT = """WYSIWYG, Fig. 2. The mean of any property in [0, 1] on training rows and on new rows differs by at most
this, on average over draws of the rows and runs, if training is ε-DP for the replacement of a row (δ = 0). No training:
formulas alone, cut at 1, where a bound says nothing.

- Proposition 2.6: the total variation distance (e^ε − 1)/(e^ε + 1), which randomised response attains: no bound from
  ε alone is smaller.
- KL: neighbours are at most ε·tanh(ε/2) apart, so √(ε·tanh(ε/2)/2) by Pinsker.
- CMI (Steinke & Zakynthinou 2020): ε-DP has a conditional mutual information of at most n·ε²/2, so √(2·CMI/n) = ε.
- e^ε − 1: the expectation of a bounded property grows by a factor of at most e^ε (Dwork et al. 2015)."""
BOUNDS: dict[str, Callable[[float], float]] = {
    "Proposition 2.6": lambda epsilon: tv_from_privacy(epsilon, 0.0),
    "KL and Pinsker": lambda epsilon: math.sqrt(epsilon * math.tanh(epsilon / 2) / 2),
    "CMI": lambda epsilon: epsilon,
    "e^ε − 1": math.expm1,
}


def bounds_at(epsilon: float) -> dict[str, float]:
    """Every bound, at most 1.

    >>> {name: round(bound, 3) for name, bound in bounds_at(1.0).items()}
    {'Proposition 2.6': 0.462, 'KL and Pinsker': 0.481, 'CMI': 1.0, 'e^ε − 1': 1.0}
    """
    return {name: min(1.0, bound(epsilon)) for name, bound in BOUNDS.items()}


def reproduce(asked: Asked) -> None:
    """Compute the table; the option is `epsilons`."""
    findings = open_findings(asked)
    part = findings.part("bounds", {"epsilons": asked.options["epsilons"]}, {})
    part["found"] = {f"{epsilon:g}": bounds_at(epsilon) for epsilon in asked.options["epsilons"]}
    findings.keep(asked)
    rewrite(asked.name, asked.folder)


def rewrite(name: str, folder: Path) -> None:
    """The page and its figure from the JSON file alone."""
    findings = read_findings(folder / f"{name}.json")
    found: Mapping[str, Mapping[str, float]] = findings.found["bounds"]["found"]
    lines = [f"# {TITLE}", "", ABOUT, "", f"| ε | {' | '.join(BOUNDS)} |", "|--:|" + "--:|" * len(BOUNDS)]
    lines += [f"| {at} | {' | '.join(f'{bounds[one]:.3f}' for one in BOUNDS)} |" for at, bounds in found.items()]
    lines += ["", f"![{TITLE}]({name}.svg)", "", findings.made_by(), ""]
    write_whole(folder / f"{name}.md", "\n".join(lines).encode(), FOR_ALL)
    curves = tuple(Line(one, tuple((float(at), bounds[one], 0.0) for at, bounds in found.items())) for one in BOUNDS)
    panel = Panel("gap at most", "ε", curves, tuple((float(at), at) for at in found if float(at) >= 0.5))
    write_whole(folder / f"{name}.svg", line_chart(TITLE, [panel]).encode(), FOR_ALL)
