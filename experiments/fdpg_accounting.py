"""What each paper's rule claims and what it costs: the table of ε in docs/methods/fdpg.md, written by `make docs`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from veil.accounting import Pld, PoissonGaussian, Rdp, Repeated, joint_noise_multiplier
from veil.accounting.calibration import noise_for

BEGIN, END = "<!-- accounting: begin -->", "<!-- accounting: end -->"
DELTA = 1e-6
RATIO = 10.0


@dataclass(frozen=True)
class Paper:
    """A setting of the FDPG paper: its noise, its steps, its claim, its groups."""

    name: str
    rows: int
    smallest_group: int
    groups: int
    sigma: float
    dpsur_sigma: float
    epochs: int
    claim: float
    batch: int = 256

    @property
    def steps(self) -> int:
        """Steps of an expected `batch` rows."""
        return round(self.epochs * self.rows / self.batch)

    @property
    def rate(self) -> float:
        """The uniform rate."""
        return self.batch / self.rows


PAPERS = (
    Paper("Adult", 23_512, 11_756, 2, 1.0, 0.86, 20, 3.4),
    Paper("Dutch", 48_336, 24_118, 2, 1.0, 0.88, 20, 2.3),
    Paper("MNIST", 54_649, 500, 10, 0.8, 0.70, 60, 5.9),
)


def _both(events: list[Repeated]) -> str:
    return f"{Rdp().epsilon(events, DELTA):.2f} | {Pld().epsilon(events, DELTA):.2f}"


def _steps(paper: Paper, noise: float, rate: float) -> Repeated:
    return Repeated(PoissonGaussian(noise, rate), paper.steps)


def lines(paper: Paper) -> list[str]:
    """One line per method: what is claimed, and what the same releases cost."""
    plain, both = paper.sigma, joint_noise_multiplier(paper.sigma, RATIO * paper.sigma / math.sqrt(2.0))
    count = joint_noise_multiplier(paper.sigma, RATIO * paper.sigma)
    found = [("dp-sgd, auto-s, disk", f"σ = {plain:g}", [_steps(paper, plain, paper.rate)])]
    # Theorem 3 has neither the number of steps nor the statistics: it is the cost of one step.
    printed = Rdp().epsilon([PoissonGaussian(plain, 2 * paper.rate)], DELTA)
    for factor in (1, 2, 3, 5):
        note = f"; Theorem 3 as printed: {printed:.2f}" if factor == 2 else ""
        where = f"σ₁ = {plain:g}, σ₂ = {RATIO * plain:g}, p* = {factor} × uniform{note}"
        found.append(("fdpg", where, [_steps(paper, both, factor * paper.rate)]))
    found.append(
        ("dpsgd-f, global-adapt", f"σ = {plain:g}, counts at {RATIO * plain:g}", [_steps(paper, count, paper.rate)])
    )
    balanced = paper.batch / (paper.groups * paper.smallest_group)
    where = f"σ = {plain:g}, smallest group at p = {balanced:.4f}"
    found.append(("dp-is-sgd", where, [_steps(paper, plain, balanced)]))
    tried = _steps(paper, paper.dpsur_sigma, paper.rate)
    found.append(("dpsur, gradients only", f"σ = {paper.dpsur_sigma:g}, every try", [tried]))
    where = f"σ = {paper.dpsur_sigma:g}, every try and its test at the same multiplier"
    found.append(("dpsur", where, [Repeated(tried.event, 2 * tried.times)]))
    return [f"| {paper.name} | {name} | {where} | {paper.claim:g} | {_both(e)} |" for name, where, e in found]


def needed(paper: Paper) -> list[str]:
    """The noise multiplier of the gradient at which the claim is true, composed by PLD."""
    parts = []
    shrink = joint_noise_multiplier(1.0, RATIO / math.sqrt(2.0))
    for factor in (1.0, 1.5, 2.0, 3.0, 5.0):
        noise = noise_for(paper.claim, DELTA, factor * paper.rate, paper.steps, accountant=Pld()) / shrink
        parts.append(f"{noise:.3f}")
    return [f"| {paper.name} | {paper.claim:g} | " + " | ".join(parts) + " |"]


def table() -> str:
    """Both tables as Markdown."""
    body = [line for paper in PAPERS for line in lines(paper)]
    noise = [line for paper in PAPERS for line in needed(paper)]
    return "\n".join(
        [
            "| data | method | releases as in the paper | ε claimed | ε, RDP | ε, PLD |",
            "|---|---|---|---|---|---|",
            *body,
            "",
            "The σ₁ at which FDPG's claim is true (PLD, statistics included), if the hardest group is at a multiple of "
            "the uniform rate for the whole run:",
            "",
            "| data | ε | 1 × | 1.5 × | 2 × | 3 × | 5 × |",
            "|---|---|---|---|---|---|---|",
            *noise,
        ]
    )


def write(page: Path) -> None:
    """Put the tables between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "docs" / "methods" / "fdpg.md")
