"""Nobody sees anything without the token; other sites, other hosts and other methods are turned away."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.ui.conftest import HOST, PORT, Ask
from veil.ui.guard import HEADERS, Guard

PATHS = ("/", "/style.css", "/plans", "/budgets", "/compare", "/enter", "/enter?token=", "/enter?token=é", "/nowhere")


def test_without_the_token_every_page_says_the_same_and_nothing_about_the_runs(
    client: Any, guard: Guard, ids: dict[str, str]
) -> None:
    own = [path for run in ids.values() for path in (f"/runs/{run}", f"/runs/{run}/report", f"/runs/{run}/certificate")]
    said = set()
    for path in (*PATHS, *own):
        answer = client.get(f"/{guard.place}{path}", headers={"Host": HOST})
        assert answer.status_code == 403, path
        assert "Set-Cookie" not in answer.headers
        said.add(answer.text)
    for path in ("/", "/enter", f"/enter?token={guard.token}", f"/{guard.token}/", "/favicon.ico"):
        answer = client.get(path, headers={"Host": HOST})
        assert (answer.status_code, answer.text) == (403, *said), "a path must say nothing either"
    assert said == {"Open the address that `veil ui` printed: it has the token.\n"}


def test_the_token_is_exchanged_for_a_cookie_that_scripts_other_sites_and_other_ports_do_not_get(
    client: Any, guard: Guard
) -> None:
    answer = client.get(f"/{guard.place}/enter?token={guard.token}", headers={"Host": HOST})
    cookie = answer.headers["Set-Cookie"]
    assert answer.status_code == 200
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"Path=/{guard.place}/" in cookie
    assert "Domain" not in cookie
    assert guard.token not in cookie + answer.text
    assert client.get(f"/{guard.place}/", headers={"Host": HOST}).status_code == 200


@pytest.mark.parametrize("cookie", ["", "x", "x" * 43, "é", "{token}"])
def test_another_cookie_opens_nothing(client: Any, guard: Guard, cookie: str) -> None:
    client.set_cookie(guard.cookie, cookie.format(token=guard.token), domain="127.0.0.1", path=f"/{guard.place}/")
    assert client.get(f"/{guard.place}/", headers={"Host": HOST}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", f"{HOST}.evil.example", ""]
)
def test_another_host_name_gets_nothing_even_with_the_cookie(ask: Ask, host: str) -> None:
    assert ask("/", Host=host).status_code == 403
    assert ask("/").status_code == 200
    assert ask("/", Host=f"localhost:{PORT}").status_code in (200, 403)  # a browser keeps cookies by host


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
def test_a_page_of_another_site_or_port_gets_nothing_even_with_the_cookie(ask: Ask, site: str) -> None:
    assert ask("/", **{"Sec-Fetch-Site": site}).status_code == 403
    assert ask("/", **{"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(ask: Ask, client: Any, guard: Guard, method: str) -> None:
    ask("/")
    answer = client.open(f"/{guard.place}/", method=method, headers={"Host": HOST})
    assert (answer.status_code, answer.text) == (403, "This page is read-only.\n")


def test_every_answer_forbids_scripts_frames_caches_and_referrers(ask: Ask, ids: dict[str, str]) -> None:
    for path in ("/", "/nowhere", "/style.css", f"/runs/{ids['first']}", "/budgets"):
        headers = ask(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "frame-ancestors 'none'" in policy
        assert HEADERS.items() <= dict(headers).items()
        assert "Server" not in headers


def test_a_report_is_shut_into_an_origin_of_its_own(ask: Ask, ids: dict[str, str]) -> None:
    page = ask(f"/runs/{ids['first']}").text
    frame = re.search(r"<iframe[^>]*>", page)
    assert frame is not None
    assert 'sandbox="allow-scripts"' in frame[0]
    policy = ask(f"/runs/{ids['first']}/report").headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy + page


def test_every_start_has_secrets_of_its_own_that_are_not_shown() -> None:
    one, other = Guard(1), Guard(1)
    secrets = [one.place, one.token, one.session, other.place, other.token, other.session]
    assert len(set(secrets)) == 6
    assert all(len(secret) >= 43 for secret in secrets)
    assert not any(secret in repr(one) + repr(other) for secret in secrets)
