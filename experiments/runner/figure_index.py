"""Figure index: every figure of the INO-SGD paper with the claims that its pages test, whether they hold, and why not.

The verdicts are read off the pages, which follow from the stored runs alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NAME = "ino-figures.md"
# A figure, what it shows, and the pages that test it: with words that the claims of this figure have, or all of a page.
FIGURES: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Fig. 5",
        "accuracy of each owner along the run",
        (("ino-regimes", "Fig. 5a"), ("ino-drop", "lifts"), ("ino-drop-features", "lifts")),
    ),
    (
        "Fig. 6",
        "change of recall by budget",
        (
            ("ino-cifar10", "the smaller the budget|lifts"),
            ("ino-cifar10-features", "the smaller the budget|the same|lifts"),
        ),
    ),
    (
        "Fig. 7",
        "overall accuracy and loss along the run",
        (
            ("ino-regimes", "Fig. 7a"),
            ("ino-cifar10", "overall"),
            ("ino-cifar10-features", "overall"),
            ("ino-drop", "above IDP-SGD"),
            ("ino-drop-features", "above IDP-SGD"),
        ),
    ),
    (
        "Fig. 12",
        "the worst owner along the run",
        (("ino-regimes", "Fig. 12"), ("ino-cifar10", "worst owner"), ("ino-cifar10-features", "worst owner")),
    ),
    ("Fig. 13", "change by budget, classes dealt at random", (("ino-dealt", ""), ("ino-dealt-features", ""))),
    ("Fig. 15", "classes within an owner", (("ino-within-owner", ""),)),
    ("Fig. 16", "length of the tail", (("ino-tail", ""),)),
    ("Fig. 17", "α and β of the tail", (("ino-shape", ""),)),
    ("Fig. 18", "a tail of steps", (("ino-steps", ""),)),
    ("Fig. 19", "other orders", (("ino-order", ""),)),
    ("Fig. 20", "overall accuracy against the spread across owners", (("ino-pareto", ""),)),
    ("Fig. 21", "normalised gradients", (("ino-normalised", ""),)),
    ("Fig. 22", "attacks on each owner", (("audit", "Fig. 22|smallest budget|order of INO-SGD"),)),
    (
        "Table 3",
        "dropping rows of the less private owners",
        (("ino-drop", "rows dropped|rows lowers"), ("ino-drop-features", "rows dropped|rows lowers")),
    ),
)
_LINE = re.compile(r"- \*\*(?P<word>Holds|Fails|Not shown|Not run)(?P<doubt>[^*]*):\*\* (?P<said>.*)")
_INTRO = """# INO-SGD, figure by figure

Which claims of the paper's figures hold in our runs, at the moment of training that a claim is about, and why others
fail. The pages have the figures and the numbers of seeds; this one is made from them by `veil reproduce index`.
Figures that are not listed are drawings, need data that we do not have, or are on [reproduction](../reproduction.md).
"""


@dataclass(frozen=True)
class Found:
    """A claim of a page: its text, the verdict, and the cause where it fails."""

    text: str
    verdict: str
    why: str


def figures_of(folder: Path) -> str:
    """The page from the pages of a folder: how many claims of each figure hold, then every claim."""
    counts, sections = ["| figure | shows | hold | fail or are not shown |", "|---|---|--:|--:|"], list[str]()
    for figure, shows, pages in FIGURES:
        known = [(page, one) for page, words in pages for one in _claims_in(folder / f"{page}.md", words)]
        if not known:
            continue
        holding = sum(one.verdict.startswith("holds") for _, one in known)
        counts.append(f"| {figure} | {shows} | {holding} | {len(known) - holding} |")
        sections += [f"## {figure}: {shows}", "", "| page | claim | verdict | why |", "|---|---|---|---|"]
        for page, one in known:
            cells = (f"[{page}]({page}.md)", one.text, one.verdict, one.why)
            sections.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
        sections.append("")
    return "\n".join([_INTRO, *counts, "", *sections])


def _claims_in(page: Path, words: str) -> list[Found]:
    return claims_of(page.read_text(encoding="utf-8"), words) if page.exists() else []


def claims_of(page: str, words: str = "") -> list[Found]:
    """The claims of a page whose text has one of the words.

    >>> claims_of("- **Fails (at 1 of 2 values):** it grows. at 1: 2 against 3. Why: it does not.", "grows")
    [Found(text='it grows', verdict='**fails (at 1 of 2 values)**', why='it does not.')]
    """
    found = []
    for line in page.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not re.search(words, text := _text(match["said"])):
            continue
        why = match["said"].partition(" Why: ")[2]
        verdict = f"{match['word'].lower()}{match['doubt']}"
        found.append(Found(text, f"**{verdict}**" if match["word"] == "Fails" else verdict, why))
    return found


def _text(said: str) -> str:
    """The claim without its figures: up to the first full stop that is not one of "Fig."."""
    return re.split(r"(?<!Fig)(?<!Figs)\. ", said, maxsplit=1)[0]
