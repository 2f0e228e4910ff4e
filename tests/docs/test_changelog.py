"""CHANGELOG.md is merged line by line from many branches: no line is torn, doubled or outside a section."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def faults(text: str) -> list[str]:
    """Lines that stand where no line of a changelog should."""
    found = []
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        start = line.startswith("- ")
        inside = before.startswith(("- ", "  "))
        heading = line.startswith(("# ", "## ", "### ", "#### "))
        prose = bool(line) and ((line[0].isupper() and not before) or (line[0] == "[" and before[:1].isupper()))
        if not (start or heading or not line or prose or (line.startswith("  ") and inside)):
            found.append(f"line {number} is torn: {line[:60]}")
        if start and before.startswith("#"):
            found.append(f"line {number} follows its heading without an empty line")
        before = line
    found += [
        f"empty line inside a list before: {text[: gap.start()].count(chr(10)) + 3}" for gap in GAP.finditer(text)
    ]
    entries = re.split(r"^(?:- |#+ )", text, flags=re.MULTILINE)
    found += [f"twice: {entry[:60]}" for entry, times in Counter(entries).items() if times > 1 and len(entry) > 30]
    return found


GAP = re.compile(r"^(?:- |  ).+\n\n- ", re.MULTILINE)


def test_no_line_is_torn_doubled_or_outside_a_list() -> None:
    assert faults(TEXT) == []


def test_what_comes_next_stands_on_top_in_sections_that_each_stand_once() -> None:
    versions = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\]( - \d{4}-\d\d-\d\d)?", version) for version in versions[1:])
    for section in TEXT.split("\n## ")[1:]:
        headings = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert set(headings) <= SECTIONS
        assert len(headings) == len(set(headings))


def test_the_citation_names_the_newest_version() -> None:
    newest, date = re.findall(r"^## \[(\d.*)\] - (.+)$", TEXT, re.MULTILINE)[0]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {newest}\n" in cited
    assert f"\ndate-released: {date}\n" in cited


def untold(tags: list[str], text: str) -> list[str]:
    """Releases among tags that the changelog does not describe: of another version, or with lines unreleased."""
    unreleased, newest = re.split(r"^## \[", text, flags=re.MULTILINE)[1:3]
    told = "v" + newest.partition("]")[0] if unreleased.strip() == "Unreleased]" else "no version"
    return [tag for tag in tags if re.fullmatch(r"v\d+(\.\d+)*", tag) and tag != told]


def test_a_tag_of_this_commit_is_the_newest_version() -> None:
    if shutil.which("git") is None:
        pytest.skip("git is missing")
    words = ["git", "tag", "--points-at", "HEAD"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # a source archive has no tags
    assert untold(done.stdout.split(), TEXT) == []


def test_a_tag_that_the_changelog_does_not_describe_is_found() -> None:
    text = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Fixed\n\n- One thing.\n"
    assert untold(["v0.3.0", "v-next", "nightly"], text) == []
    assert untold(["v0.4.0"], text) == ["v0.4.0"]
    assert untold(["v0.3.0"], text.replace("ed]\n", "ed]\n\n### Added\n\n- Another.\n")) == ["v0.3.0"]


def test_a_line_that_a_merge_tore_or_doubled_is_found() -> None:
    good = "# Changelog\n\n## [Unreleased]\n\n### Fixed\n\n- One thing, which was wrong for a long time.\n  And more.\n"
    assert faults(good) == []
    entry = "- One thing, which was wrong for a long time.\n  And more.\n"
    for bad in (
        good + entry,
        good + "-- Two\n",
        good + " Three\n",
        good + "\n- Four\n",
        good.replace("ed\n\n-", "ed\n-"),
    ):
        assert faults(bad), bad
