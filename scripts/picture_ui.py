"""Take the picture of docs/ui.md: `python scripts/picture_ui.py` trains a few runs and writes docs/figures/ui.png.

The runs are trained on 4,000 rows of the bundled data, the seeds are fixed. It needs Chromium, and two minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

from veil.datasets.adult import load_adult
from veil.ui.server import make_server

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "ui.png"
TABLE = ["people.csv", "--target", "income", "--group", "sex,race", "--quiet"]


def veil(*words: str) -> None:
    """A command, in the folder where the runs go."""
    subprocess.run([sys.executable, "-m", "veil.cli", *words], check=True, stdout=subprocess.DEVNULL)


def train_runs() -> None:
    """Runs of three methods and four budgets, all charged to one data set."""
    veil("budget", "create", "people", "--epsilon", "16", "--delta", "0.01")
    for method, epsilons in {"auto": ("0.3", "1", "3"), "dp-sgd": ("1", "3"), "asc": ("1",)}.items():
        for epsilon in epsilons:
            out = ["--out", f"runs/{method}-{epsilon}", "--dataset", "people", "--seed", "1"]
            veil("train", *TABLE, "--method", method, "--epsilon", epsilon, *out)


def main() -> None:
    """Train, serve, look."""
    chromium = shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        load_adult()[0].sample(4000, random_state=0).to_csv("people.csv", index=False)
        train_runs()
        server = make_server(Path("runs").resolve(), "veil-budget.sqlite")
        threading.Thread(target=server.run, daemon=True).start()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1180, "height": 780})
            page.goto(server.guard.address)
            page.wait_for_url("**/")
            page.evaluate("document.querySelector('.lede code').textContent = 'runs'")
            page.screenshot(path=str(PICTURE))
            browser.close()
        os.chdir("/")


if __name__ == "__main__":
    main()
