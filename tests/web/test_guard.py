"""Who may ask, and what a browser is allowed to do with the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from context_compiler.web.app import create_app
from tests.web.browser import chat_app
from tests.web.conftest import HOSTILE, number_of

PAGES = ("/sessions", "/sessions/1", "/requests/1", "/requests/20/why")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1", "localhost@evil"]
)
def test_a_foreign_host_name_is_refused(client: TestClient, host: str) -> None:
    for path in ("/sessions", "/api/sessions", "/static/site.css"):
        answer = client.get(path, headers={"host": host})
        assert answer.status_code == 403 and "record" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:99"])
def test_loopback_is_accepted_at_any_port(client: TestClient, host: str) -> None:
    assert client.get("/api/sessions", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["Annas-MacBook.local:8000", "annas-macbook.local"])
def test_the_name_of_the_machine_is_accepted_in_any_case(db: Path, host: str) -> None:
    client = TestClient(create_app(db, system=None, hosts=["Annas-MacBook.local"]))
    assert client.get("/api/sessions", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://["},
    ],
)
def test_a_page_of_another_site_cannot_write(client: TestClient, headers: dict[str, str]) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/sessions", headers=headers).status_code == 403


@pytest.mark.parametrize("mode, destination", [("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")])
def test_a_page_of_another_site_may_link_here_and_load_nothing(tmp_path: Path, mode: str, destination: str) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": destination}
    with TestClient(chat_app(tmp_path), base_url="http://127.0.0.1") as client:
        for path in ("/chat?session=mine", "/chat/turns?session=mine", "/api/chat?session=mine", "/sessions"):
            assert client.get(path, headers=headers).status_code == 403
        assert not [*tmp_path.rglob("mine*.md")]
        opened = {**headers, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.get("/chat?session=mine", headers=opened).status_code == 200


def test_our_own_pages_may_write(client: TestClient) -> None:
    ours = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
    assert client.post("/sessions", headers=ours).status_code == 405  # allowed in, but there is nothing to write


def test_a_server_beyond_loopback_wants_its_token(db: Path) -> None:
    app = create_app(db, system=None, hosts=["box.example"], token="s3cret")
    with TestClient(app, base_url="http://box.example") as client:
        for path in ("/sessions", "/api/sessions", "/static/site.css"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/api/sessions", headers={"authorization": "Bearer s3cret"}).status_code == 200
        first = client.get("/sessions?token=s3cret&name=lo", follow_redirects=False)
        assert first.status_code == 303 and first.headers["location"] == "/sessions?name=lo"
        cookie = first.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/sessions").status_code == 200
        client.cookies.clear()
        others = {"cookie": 'settings[tab]={"a": 1}; context_compiler_token=s3cret'}  # of a neighbour on this machine
        assert client.get("/sessions", headers=others).status_code == 200


def test_no_redirect_leads_to_another_site(db: Path) -> None:
    app = create_app(db, system=None, hosts=["box.example"], token="s3cret")
    with TestClient(app, base_url="http://box.example") as client:
        answer = client.get("http://box.example//evil.example/?token=s3cret", follow_redirects=False)
        assert not answer.headers.get("location", "").startswith("//")


@pytest.mark.parametrize("path", [*PAGES, "/api/sessions", "/nothing", "/static/site.js"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_no_inline_or_external_resources(client: TestClient, path: str) -> None:
    text = client.get(path).text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>", text)
    markup = re.sub(r"<(pre|q)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", markup)
    for address in re.findall(r'\b(?:src|href)="([^"]*)"', text):
        assert address.startswith(("/", "#", "?")) and not address.startswith("//"), address
        if address.startswith("/static/"):
            assert client.get(address).status_code == 200


def test_stored_text_stays_text(client: TestClient) -> None:
    found = [client.get(f"/requests/{number}{end}").text for number in range(1, 60) for end in ("", "/why")]
    found += [client.get("/sessions").text, client.get(f"/sessions/{number_of(client, HOSTILE)}").text]
    assert any("&lt;script&gt;alert" in text for text in found)
    assert not any("<script>alert" in text or "<img src=x" in text for text in found)


def test_direction_marks_in_a_name_do_not_reorder_text(client: TestClient) -> None:
    assert "\u202e" not in client.get("/sessions").text
