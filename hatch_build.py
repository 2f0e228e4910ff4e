"""Project URLs of a build: those of the repository that builds it, which a checkout elsewhere does not know."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {"Source": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md", "Documentation": "/tree/main/docs"}


class ProjectUrls(MetadataHookInterface):
    """`VEIL_URL`, or what the workflows of the hosting service state about themselves."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        home = os.environ.get("VEIL_URL") or "/".join(
            os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
        )
        known = home.startswith("https://")
        metadata["urls"] = {name: home + page for name, page in PAGES.items()} if known else {}
