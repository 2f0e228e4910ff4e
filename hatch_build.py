"""Project URLs and README of a build: they name the repository that builds it, which no other checkout knows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md", "Documentation": "/tree/main/docs"}
# Links of Markdown that are neither addresses nor places on the same page; those with ! are images.
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class Published(MetadataHookInterface):
    """`VEIL_URL`, or what the workflows of the hosting service state about themselves."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        home = os.environ.get("VEIL_URL") or "/".join(
            os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
        )
        known = home.startswith("https://")
        metadata["urls"] = {name: home + page for name, page in PAGES.items()} if known else {}
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(text, home) if known else text}


def with_addresses(text: str, home: str) -> str:
    """Markdown whose links to files of the repository are addresses, as a package index needs them.

    >>> with_addresses("![a figure](docs/a.svg) and [a page](docs/b.md#part)", "https://example.org/veil")
    '![a figure](https://example.org/veil/raw/main/docs/a.svg) and [a page](https://example.org/veil/blob/main/docs/b.md#part)'
    """
    return LINK.sub(lambda link: f"{link[1]}[{link[2]}]({home}/{'raw' if link[1] else 'blob'}/main/{link[3]})", text)
