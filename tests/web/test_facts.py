"""A fact, from the request that first had it to the one that lost it."""

from __future__ import annotations

import html
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.web.app import create_app
from tests.web.conftest import FACT, HOSTILE, RULE, number_of, pages_of, renovation, requests_of

PAINTER = "The painter is called Tadeusz Wrona, his number is 0171-5550132."

SAID = [*renovation(PAINTER, RULE), *renovation()[:6], "The painter has been moved to 19 March.", *renovation()]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    """The pages of a session whose first prompt is quoted for a while after it has left, and its record."""
    db = tmp_path_factory.mktemp("house") / "context.db"
    with pages_of(db, SAID, budget=600) as client:
        yield client, db


def fate(client: TestClient, fact: str) -> dict[str, object]:
    return client.get(f"/api/sessions/{number_of(client, 'long')}/fact", params={"q": fact}).json()


def test_a_fact_is_followed_from_verbatim_to_quoted(client: TestClient) -> None:
    trace = fate(client, FACT)
    forms = [stretch["forms"] for stretch in trace["stretches"]]
    assert forms[0] == [] and not trace["stretches"][0]["known"]
    assert forms[1] == ["verbatim"] and set(forms[2]) & {"quoted", "identifier", "instruction"}
    assert trace["mentioned"] == 1 and trace["mentions"][0]["fact"] == FACT
    left = trace["stretches"][2]
    assert left["step"] in (2, 5) and left["reason"]


def test_the_search_agrees_with_the_messages_of_every_request(client: TestClient) -> None:
    for fact in (FACT, "module 9 does", "src/module_1.py:3 def", "the release code is known", "nothing says this"):
        trace = fate(client, fact)
        having = 0
        for request in requests_of(client, "long"):
            sent = client.get(f"/api/requests/{request['id']}/export").json()["json"]
            is_there = fact in sent.partition('"messages": [')[2].partition('\n  ],\n  "answer"')[0]
            stretch = next(s for s in trace["stretches"] if s["first"] <= request["id"] <= s["last"])
            assert bool(stretch["forms"]) == is_there, (fact, request["id"])
            having += is_there
        assert trace["had"] == having


@pytest.mark.parametrize(
    "fact", ["orchid-7731", "ORCHID 7731", "release code is ORCH", '"; DROP', "NEAR(", "*", "-", "é"]
)
def test_any_text_can_be_searched(client: TestClient, fact: str) -> None:
    assert client.get("/sessions/1/fact", params={"q": fact}).status_code == 200
    assert client.get("/api/sessions", params={"text": fact}).status_code == 200


def test_a_fact_that_never_occurred_is_reported_as_absent(client: TestClient) -> None:
    number = number_of(client, "long")
    assert "Nothing in this session contains" in client.get(f"/sessions/{number}/fact?q=zebra").text
    assert "&lt;script&gt;" in client.get(f"/sessions/{number}/fact", params={"q": HOSTILE}).text


def test_sessions_are_found_by_their_text(client: TestClient) -> None:
    assert [one["session_id"] for one in client.get(f"/api/sessions?text={FACT}").json()["sessions"]] == ["long"]
    assert client.get("/api/sessions?text=hello script").json()["pages"]["total"] == 3
    assert client.get("/api/sessions?text=secret words").json()["pages"]["total"] == 0


def test_text_of_the_instructions_counts_as_part_of_the_request(client: TestClient) -> None:
    found = fate(client, "answer briefly")
    assert found["mentioned"] == 0 and found["had"] == found["requests"]
    assert [one["forms"] for one in found["stretches"]] == [["beside"]]  # pyright: ignore


def test_a_fact_covered_by_a_summary_is_marked_as_perhaps_in_it(client: TestClient) -> None:
    trace = fate(client, "Answer 3: the build")
    gone = [stretch for stretch in trace["stretches"] if not stretch["forms"] and stretch["known"]]  # pyright: ignore
    assert gone and gone[-1]["told"]
    page = client.get(f"/sessions/{number_of(client, 'long')}/fact", params={"q": "Answer 3: the build"}).text
    assert "perhaps in the summary" in page


def test_a_request_without_a_fact_links_to_the_message_that_contained_it(client: TestClient) -> None:
    number = number_of(client, "long")
    fact = next(
        words
        for words in ("module 3 says", "Turn 3: read", "Answer 9", "Turn 7: read", "src/module_5.py:9 def")
        if any(not stretch["forms"] and stretch["known"] for stretch in fate(client, words)["stretches"])  # pyright: ignore
    )
    page = client.get(f"/sessions/{number}/fact", params={"q": fact}).text
    links = re.findall(r'href="(/requests/\d+/why[^"#]*)#(raw\d+)"', html.unescape(page))
    lost = [s["first"] for s in fate(client, fact)["stretches"] if not s["forms"] and s["known"]]  # pyright: ignore
    assert {f"/requests/{request}/why" for request in lost} <= {path.partition("?")[0] for path, _ in links}
    for path, anchor in links:
        assert f'id="{anchor}"' in client.get(path).text


def test_the_answer_says_when_and_why_a_fact_left(client: TestClient) -> None:
    trace = fate(client, FACT)
    answer = str(trace["answer"])
    stretches = [stretch for stretch in trace["stretches"] if stretch["known"]]  # pyright: ignore
    assert answer.startswith("The newest request has it") == bool(stretches[-1]["forms"])
    for later in stretches[1:]:
        assert f"Since request {later['first']} ({later['reason']}) it was only " in answer
        assert later["request"] == later["first"]
    assert stretches[1]["step"] and "chose other quotes" in stretches[2]["reason"]
    page = client.get(f"/sessions/{number_of(client, 'long')}/fact", params={"q": FACT}).text
    assert html.escape(answer, quote=False) in html.unescape(page)


def test_words_in_another_order_find_the_message(client: TestClient) -> None:
    number = number_of(client, "long")
    trace = fate(client, "yes without deploy")
    assert trace["had"] == 0 and [message["index"] for message in trace["near"]] == [4]  # pyright: ignore
    assert [row["id"] for row in client.get("/api/sessions?text=yes without deploy").json()["sessions"]] == [number]
    page = html.unescape(client.get(f"/sessions/{number}/fact?q=yes without deploy").text)
    assert "come nearest" in page
    follow = re.findall(r'class="mentions"><li><a href="(/sessions/\d+/fact\?q=[^"]*)"', page)
    assert "never deploy without my yes" in page and "orchid-7731" in follow[0].lower()
    assert "The newest request" in client.get(follow[0]).text


@pytest.mark.parametrize("words", ["rleease code", "released codes", "rememver deploying", "release zebra code"])
def test_misspelt_inflected_and_missing_words_find_the_message(client: TestClient, words: str) -> None:
    number = number_of(client, "long")
    assert 2 < fate(client, words)["near"][0]["index"] < 6  # pyright: ignore
    listed = client.get("/api/sessions", params={"text": words}).json()
    assert [session["id"] for session in listed["sessions"]] == [number] and listed["near"]
    assert "come nearest" in client.get("/sessions", params={"text": words}).text


def test_a_pinned_message_is_offered_to_be_unpinned_beside_its_fact(client: TestClient) -> None:
    number = number_of(client, "long")
    (mention,) = fate(client, FACT)["mentions"]  # pyright: ignore
    button = f'data-pin="m{mention["index"]}"'
    path = f"/sessions/{number}/fact?q={FACT}"
    assert button in client.get(path).text
    assert client.post(f"/api/sessions/{number}/pin", json={"message": f"m{mention['index']}"}).status_code == 200
    assert button not in client.get(path).text and f'data-unpin="m{mention["index"]}"' in client.get(path).text


def test_words_lead_to_their_session_or_to_all_that_have_them(client: TestClient) -> None:
    def leads(words: str) -> str:
        return client.get("/find", params={"q": words}, follow_redirects=False).headers["location"]

    assert leads(FACT) == f"/sessions/{number_of(client, 'long')}/fact?q={FACT}"
    assert leads("hello script") == "/sessions?text=hello+script"
    assert leads("nowhere") == "/sessions?text=nowhere"


def test_a_named_message_tells_which_request_lost_its_last_words(
    house: tuple[TestClient, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, db = house
    monkeypatch.setattr("context_compiler.middleware.remedies.TRIALS", 1)  # the budget that keeps it is not read here
    quoted, gone = client.get("/api/sessions/1/fact", params={"q": "Tadeusz Wrona"}).json()["stretches"][1:]
    assert quoted["forms"] == ["quoted"] and not gone["forms"]
    later = gone["first"] + 1
    assert later <= gone["last"]
    for number, last in ((later, gone["first"]), (quoted["last"], None)):
        page = client.get(f"/api/requests/{number}/why?message=m0").json()
        assert page["messages"][0]["fate"]["request"] == quoted["first"]
        assert page["messages"][0]["last_words"] == last
        assert [cut["request"] for cut in page["cuts"]] == [quoted["first"], *([last] if last else [])]
    assert "Its last words left at" in client.get(f"/requests/{later}/why?message=m0").text
    told = CliRunner().invoke(app, ["views", "why", str(later), "m0", "--db", str(db)]).stdout
    assert f"its last words left at request {gone['first']}" in " ".join(told.split())
    assert f"Request {gone['first']} (turn {gone['turns'][0]})" in told


def test_a_fact_leads_to_the_request_that_lost_it_and_says_why_it_came_back(tmp_path: Path) -> None:
    with pages_of(tmp_path / "context.db", SAID, budget=450) as client:
        page = client.get("/api/sessions/1/fact", params={"q": "painter"}).json()
        shown = client.get("/sessions/1/fact", params={"q": "painter"}).text
    *_, again, gone = page["stretches"]
    assert again["reason"] == "said again in turn 19" and "(said again in turn 19) it was sent" in page["answer"]
    assert not gone["forms"] and [mention["lost"] for mention in page["mentions"]] == [gone["first"], gone["first"]]
    assert re.findall(r'href="(/requests/\d+/why\?message=\w+)"', shown) == [
        f"/requests/{gone['first']}/why?message={message}" for message in ("m0", "m36")
    ]


def test_a_fact_that_is_quoted_when_its_message_leaves_has_lost_nothing(house: tuple[TestClient, Path]) -> None:
    client, _ = house
    page = client.get("/api/sessions/1/fact", params={"q": "painter"}).json()
    _, quoted, again, _ = page["stretches"]
    assert again["reason"] == "said again in turn 19" and [mention["lost"] for mention in page["mentions"]] == [0, 0]
    shown = client.get("/sessions/1/fact", params={"q": "painter"}).text
    assert f"its message left the view at request {quoted['first']}" in shown and "/why?message=" not in shown


def test_a_rule_stays_when_its_message_leaves(house: tuple[TestClient, Path]) -> None:
    client, _ = house
    page = client.get("/sessions/1/fact", params={"q": "400 euros"}).text
    assert "its message left the view at request" in page and "; the rule stays" in page and "dropped at" not in page


def test_a_fact_that_a_fallback_brings_back_has_its_reason(tmp_path: Path) -> None:
    db = tmp_path / "context.db"
    with pages_of(db, SAID[:8], budget=600) as client:
        stretch = client.get("/api/sessions/1/fact", params={"q": "Tadeusz Wrona"}).json()["stretches"][-1]
        assert stretch["forms"] == ["quoted"]
        with closing(sqlite3.connect(db)) as record:
            record.execute(
                "UPDATE views SET status = 'fallback', error = 'TemplateError: notes: gone; sent: raw history',"
                " view_tip = raw_tip WHERE id = (SELECT max(id) FROM views)"
            )
            record.commit()
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        page = client.get("/api/sessions/1/fact", params={"q": "Tadeusz Wrona"}).json()
        assert "(a fallback: TemplateError: notes: gone) it was sent word for word" in page["answer"]
