"""Guard: who may look. Nothing is shown to somebody who did not come with the token, or by another site's page.

The token is in the address that `veil ui` prints; it is exchanged for a cookie. A browser sends a cookie of 127.0.0.1
to *every* port of it, also to a server of another user, so the cookie belongs to a path that nobody can guess.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from flask import Request, Response

OWN_SITE = ("same-origin", "none")
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
# The pages have no script at all.
POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; frame-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# A report runs its own script, in an origin of its own, and can neither load nor send anything.
FRAMED = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Guard:
    """The secrets of one start of `veil ui`: they end with it."""

    port: int
    place: str = field(default_factory=_secret, repr=False)
    token: str = field(default_factory=_secret, repr=False)
    session: str = field(default_factory=_secret, repr=False)

    @property
    def address(self) -> str:
        """What to open: the only place where the token stands."""
        return f"http://127.0.0.1:{self.port}/{self.place}/enter?token={self.token}"

    @property
    def cookie(self) -> str:
        """The name of the cookie; two of our servers may run at once."""
        return f"veil-ui-{self.port}"

    def fault(self, request: Request) -> str | None:
        """Why a request is turned away before anything of it is read; None where it is not."""
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        if request.headers.get("Host", "") not in hosts:  # another name for this address: DNS rebinding
            return "This address is not that of the page."
        entering = request.path == f"/{self.place}/enter"
        if not entering and request.headers.get("Sec-Fetch-Site", "none") not in OWN_SITE:
            return "Another site's page asked for this."
        if request.method not in ("GET", "HEAD"):
            return "This page is read-only."
        if not entering and not _same(request.cookies.get(self.cookie, ""), self.session):
            return "Open the address that `veil ui` printed: it has the token."
        return None

    def admits(self, token: str) -> bool:
        """Whether this is the token."""
        return _same(token, self.token)

    def let_in(self, response: Response) -> Response:
        """Exchange the token for the cookie."""
        response.set_cookie(
            self.cookie, self.session, path=f"/{self.place}/", httponly=True, samesite="Strict", secure=False
        )
        return response


def _same(found: str, wanted: str) -> bool:
    """Compare in a time that says nothing about where they differ."""
    return secrets.compare_digest(found.encode("utf-8", "replace"), wanted.encode())
