"""Take the picture of the report in README.md: `python scripts/picture_report.py [REPORT.html]`.

It is written to docs/figures/report.png. Without a report `veil demo` makes one. Needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "report.png"
WIDTH, HEIGHT = 1120, 760


def demonstrated(folder: Path) -> Path:
    """The report that `veil demo` writes."""
    subprocess.run([sys.executable, "-m", "veil.cli", "demo", "--quiet", "--out", str(folder)], check=True)
    return folder / "report.html"


def take(report: Path, picture: Path) -> None:
    """The first screen of the page."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector(".chart svg")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        take(Path(sys.argv[1]) if len(sys.argv) > 1 else demonstrated(Path(made) / "demo"), PICTURE)
    print(PICTURE)
