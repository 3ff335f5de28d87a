"""Pages and API over a real record: sessions, requests, and why a message is not in one."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, deque
from contextlib import closing
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from context_compiler import compile_view
from context_compiler.compiler.reasons import reason_of
from context_compiler.messages.importers import parse_transcripts
from context_compiler.web.app import create_app
from tests.web.conftest import FACT, TURNS, number_of, requests_of


def test_sessions_are_listed_with_their_totals(client: TestClient) -> None:
    answer = client.get("/api/sessions").json()
    assert answer["pages"]["total"] == 5
    long = next(session for session in answer["sessions"] if session["session_id"] == "long")
    assert long["requests"] > TURNS and long["compiles"] >= 1 and long["tokens_sent"] < long["tokens_raw"]
    page = client.get("/sessions").text
    assert f'href="/sessions/{long["id"]}"' in page and f"{long['tokens_sent']:,}" in page


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("name=lon", 1),
        ("name=LON", 1),
        ("status=compiled", 1),
        ("status=raw", 5),
        ("template=nothing", 0),
        ("name=%25", 0),
    ],
)
def test_sessions_are_found_by_name_status_template_and_model(client: TestClient, query: str, count: int) -> None:
    assert client.get(f"/api/sessions?{query}").json()["pages"]["total"] == count


def test_a_session_shows_its_requests_newest_first(client: TestClient) -> None:
    found = client.get(f"/api/sessions/{number_of(client, 'long')}").json()["requests"]
    numbers = [one["id"] for one in found]
    assert numbers == sorted(numbers, reverse=True)


def test_a_request_shows_every_message_it_sent_and_why(client: TestClient) -> None:
    last = requests_of(client, "long")[-1]
    answer = client.get(f"/api/requests/{last['id']}").json()
    assert answer["pages"]["total"] == last["messages_sent"] == len(answer["messages"])
    assert answer["instructions"] == "Answer briefly."
    forms = [message["form"] for message in answer["messages"]]
    pieces = {
        piece["form"] for message in answer["messages"] for part in message["parts"] for piece in part["segments"]
    }
    assert "summary" in pieces and forms[-1] == "verbatim"
    assert answer["messages"][-1]["why"].startswith("current turn")
    origins = [message["raw"] for message in answer["messages"] if message["form"] != "summary"]
    assert None not in origins and origins == sorted(origins)
    assert sum(section["tokens"] for section in answer["bar"]) > 0


def test_every_raw_message_is_accounted_for(client: TestClient) -> None:
    for request in requests_of(client, "long"):
        answer = client.get(f"/api/requests/{request['id']}/why").json()
        assert len(answer["strip"]) == request["messages_raw"] == sum(answer["counts"].values())
        if request["status"] == "raw":
            assert set(answer["strip"]) == {"v"}


def test_a_message_left_out_names_the_step_that_dropped_it(client: TestClient) -> None:
    last = requests_of(client, "long")[-1]
    gone = client.get(f"/api/requests/{last['id']}/why", params={"only": "told"}).json()["messages"][0]
    assert gone["fate"]["step"]["number"] and gone["fate"]["reason"] and gone["fate"]["request"] <= last["id"]
    page = client.get(f"/requests/{last['id']}/why?only=told").text
    assert (
        "Not word for word." in page and "may tell it in other words" in page and gone["fate"]["step"]["name"] in page
    )


def test_a_request_without_content_is_shown_as_such(client: TestClient) -> None:
    [one] = requests_of(client, "bare")
    assert "without its messages" in client.get(f"/requests/{one['id']}").text
    assert "not on the record" in client.get(f"/requests/{one['id']}/why").text
    assert "secret words" not in client.get(f"/api/requests/{one['id']}").text


@pytest.mark.parametrize("path", ["/sessions/999", "/requests/999", "/requests/999/why", "/nothing"])
def test_missing_items_return_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404 and client.get(f"/api{path}").json()["error"]


def test_an_unknown_address_of_the_api_points_to_its_description(client: TestClient) -> None:
    assert "/api/openapi.json" in client.get("/api").json()["error"]
    assert client.get("/api/requests/999999").json()["error"] == "no request 999999 on this record"


@pytest.mark.parametrize(
    "path", ["/sessions?page=0", "/sessions?page=x", "/requests/-1", "/requests/1/why?only=some", "/sessions?nmae=x"]
)
def test_an_invalid_parameter_is_explained(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 400 and client.get(f"/api{path}").json()["error"]


def test_a_page_beyond_the_last_is_empty(client: TestClient) -> None:
    assert client.get("/api/sessions?page=4000").json()["sessions"] == []
    assert client.get("/sessions?page=4000").status_code == 200


def test_a_missing_record_is_explained_and_shown_once_it_exists(db: Path, tmp_path: Path) -> None:
    later = tmp_path / "later" / "context.db"
    with TestClient(create_app(later, system=None), base_url="http://127.0.0.1") as client:
        assert "There is no record here yet" in client.get("/sessions").text
        answer = client.get("/requests/1")
        assert answer.status_code == 503 and "there is no record here" in answer.text
        later.parent.mkdir()
        later.write_bytes(db.read_bytes())
        assert client.get("/sessions").status_code == 200


@pytest.mark.parametrize(
    "column",
    ["sessions.session_id", "sessions.created_at", "views.status", "views.created_at"],
)
def test_a_damaged_value_spoils_no_list(db: Path, column: str) -> None:
    table, name = column.split(".")
    with closing(sqlite3.connect(db)) as record:
        text = f"CAST(x'7bff' || substr(CAST({name} AS BLOB), 3) AS TEXT)"
        record.execute(f"UPDATE {table} SET {name} = {text} WHERE rowid = (SELECT min(rowid) FROM {table})")
        record.commit()
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        for path in ("/sessions", "/sessions/1", "/api/sessions", "/api/sessions/1", "/requests/2", "/api/requests/2"):
            assert client.get(path).status_code == 200, path
        assert client.get("/requests/1").status_code == (503 if column == "views.created_at" else 200)
        assert client.get("/api/requests/1").status_code == (503 if column == "views.created_at" else 200)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda db: db.write_bytes(b"not a database at all" * 200), "not a record"),
        (lambda db: db.write_bytes(b""), "it contains no record yet"),
        (
            lambda db: sqlite3.connect(db, isolation_level=None).execute("PRAGMA user_version = 999"),
            "another version of context-compiler",
        ),
    ],
    ids=["damaged", "empty", "newer"],
)
def test_an_unreadable_file_is_explained(db: Path, damage: object, says: str) -> None:
    for log in db.parent.glob("context.db-*"):
        log.unlink()
    damage(db)  # pyright: ignore
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        answer = client.get("/sessions")
        assert answer.status_code == 503 and says in answer.text
        assert says in client.get("/api/sessions").json()["error"]


def test_nothing_is_written_to_the_record(db: Path, client: TestClient) -> None:
    before = db.read_bytes()
    for path in ("/sessions", "/sessions/1", "/requests/20", "/requests/20/why"):
        client.get(path)
    assert db.read_bytes() == before


async def test_every_reason_of_the_cut_order_has_its_step() -> None:
    file = files("context_compiler").joinpath("data/demo.json")
    (demo,) = parse_transcripts(file.read_bytes(), file="demo.json")
    used: set[int] = set()
    for count in (105, 104, 103, 60, 9):
        for budget in (40, 80, 160, 400, 1_500, 6_000):
            view = await compile_view(demo.messages[:count], budget=budget)
            for drop in view.drops:
                reason = reason_of(drop.reason)
                assert reason is not None, drop
                used.add(reason.step.number)
    assert len(used) >= 5


def test_a_message_that_is_quoted_is_not_called_absent(client: TestClient) -> None:
    asked = requests_of(client, "long")[-1]["id"]
    page = client.get(f"/api/requests/{asked}/why").json()
    (said,) = [
        entry
        for entry in page["messages"]
        if entry["message"]["role"] == "user" and FACT in json.dumps(entry["message"])
    ]
    assert said["fate"]["form"] == "absent" and said["verdict"] == "partial"
    assert page["strip"][said["message"]["index"]] == "p" and page["counts"]["partial"] >= 1
    view = client.get(f"/api/requests/{asked}").json()["messages"]
    for echo in said["echoes"]:
        assert all(words in json.dumps(view[echo["sent"]]) for words in echo["words"])
    assert any(FACT in words for echo in said["echoes"] for words in echo["words"])
    runs = said["message"]["parts"][-1]["segments"][0]["runs"]
    (run,) = [text for form, text in runs if form and FACT in text]
    shown = client.get(f"/requests/{asked}/why?only=partial").text
    assert "Only the marked words are in this request" in shown and f">{run}</mark>" in shown
    others = client.get(f"/api/requests/{asked}/why", params={"only": "verbatim"}).json()["messages"]
    assert others and not any(entry["echoes"] for entry in others)


def test_every_linked_page_exists(client: TestClient) -> None:
    waiting, seen, often = deque(["/sessions", "/templates", "/pipelines"]), set[str](), Counter[str]()
    while waiting:
        address = waiting.popleft()
        kind = re.sub(r"\d+", "0", address.partition("?")[0])
        if address in seen or often[kind] == 3:
            continue
        seen.add(address)
        often[kind] += 1
        answer = client.get(address)
        assert answer.status_code == 200, address
        if "html" in answer.headers["content-type"]:
            waiting.extend(map(unescape, re.findall(r'<a [^>]*href="(/(?!static|chat)[^"#]+)', answer.text)))
    parts = ("", "/diff", "/export", "/replay", "/why")
    assert often.keys() >= {f"/requests/0{part}" for part in parts}
    assert often.keys() >= {f"/sessions/0{part}" for part in ("", "/fact", "/settings", "/steering")}
