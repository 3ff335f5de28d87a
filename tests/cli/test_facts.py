"""Why a message or a fact was not in a request is answered on the command line, as on the pages."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.compiler.facts import span
from context_compiler.web.app import create_app
from tests.cli.conftest import DEMO, Command, beside_copy, one_line
from tests.support.trip import FACT, plan

CODE = "orchid-7731"


LINES = [
    f"The release code is {CODE}, and you alone may know it, because I have not yet told anybody else in the team that "
    "there is one, and would rather not until the whole thing has been tried on a machine that nobody needs; so keep "
    "it to yourself, please, until then, however often they ask you for it.",
    *(f"What about part {number} of the plan?" for number in range(6)),
    "What is the release code?",
    "Thanks.",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat whose first prompt leaves its views, and comes back where a prompt asks for it."""
    system = tmp_path_factory.mktemp("chat") / "system"
    where = ["--db", str(system / "context.db"), "--system", str(system)]
    made = CliRunner().invoke(
        app,
        ["chat", "--model", "scripted:0", "--endless", "--budget", "500", *where],
        input="\n".join([*LINES, ""]),
    )
    assert made.exit_code == 0, made.output
    return system


@pytest.fixture
def chatted(cc: Command, folder: Path, tmp_path: Path) -> Command:
    """A command line beside a copy of that chat."""
    shutil.copytree(folder, tmp_path / "system")
    return cc


def test_a_fact_is_followed_through_all_requests(chatted: Command) -> None:
    result = chatted("sessions", "find", "main", CODE, "--json").json
    forms = [stretch["forms"] for stretch in result["stretches"]]
    assert forms[0] == ["verbatim"] and "verbatim" not in forms[1] and any("recalled" in form for form in forms)
    gone = [stretch for stretch in result["stretches"] if stretch["known"] and not stretch["forms"]]
    assert len(gone) > 1 and all(stretch["reason"] and stretch["request"] <= stretch["first"] for stretch in gone)
    left = result["stretches"][1]
    assert left["reason"] and left["step"] and left["request"] == left["first"]
    recalled = [str(stretch["first"]) for stretch in result["stretches"] if stretch["forms"] == ["recalled"]]
    assert f"it was sent only when recalled: {', '.join(recalled)}" in result["answer"]
    shown = chatted("sessions", "find", "main", CODE.upper())
    dropped = f"dropped at request {left['request']} (step {left['step']} of the cut order): {left['reason']}"
    assert shown.out.count(dropped) == len(gone) and "recalled before a prompt" in shown.out
    assert f"had it, {result['requests_since'] - result['had']} did not" in shown.out
    assert f"views why {result['stretches'][-1]['last']} " in shown.out


def test_the_command_line_and_the_pages_agree(chatted: Command) -> None:
    result = chatted("sessions", "find", "main", CODE, "--json").json
    with TestClient(create_app(Path("system/context.db")), base_url="http://localhost") as client:
        page = client.get("/api/sessions/1/fact", params={"q": CODE}).json()
        why = client.get(f"/api/requests/{page['stretches'][1]['first']}/why").json()["messages"][0]["fate"]
    assert result["stretches"] == page["stretches"] and result["had"] == page["had"]
    (message,) = chatted("views", "why", page["stretches"][1]["first"], "m0", "--json").json["messages"]
    assert message["fate"]["reason"] == why["reason"] and message["fate"]["form"] == why["form"]


def test_an_absent_message_comes_with_the_numbers_of_its_cut_and_a_budget_that_keeps_it(
    chatted: Command,
) -> None:
    page = chatted("sessions", "find", "main", CODE, "--json").json
    number = next(stretch["first"] for stretch in page["stretches"] if stretch["known"] and not stretch["forms"])
    why = chatted("views", "why", number, CODE, "--json").json
    (cut,), remedy = why["cuts"], why["remedy"]
    assert cut["size"] > cut["threshold"] >= cut["target"] > 0 and cut["budget"] == 500
    assert cut["sent"] <= cut["budget"]
    said = " ".join(chatted("views", "why", number, CODE).out.split())
    assert f"would have had {cut['size']:,} tokens, above the threshold of {cut['threshold']:,}" in said
    assert f"An agent with a budget of {remedy['budget']:,}" in said and "Recall was on (1)" in said
    assert "sessions pin main m0" in said and said.count("cut order") <= 1
    again = ("views", "replay", number, "--trigger", "1.0", "--json", "--budget")
    assert CODE in str(chatted(*again, remedy["budget"]).json["messages"])
    with TestClient(create_app(Path("system/context.db")), base_url="http://localhost") as client:
        payload = client.get(f"/api/requests/{number}/why", params={"message": "m0"}).json()
        shown = client.get(f"/requests/{number}/why", params={"message": "m0"}).text
        wrong = client.get(f"/api/requests/{number}/why", params={"message": "m4000"})
    assert payload["cuts"] == why["cuts"] and payload["remedy"]["budget"] >= remedy["budget"]
    assert f"An agent with a budget of {payload['remedy']['budget']:,}" in " ".join(shown.split())
    assert wrong.status_code == 404 and "give m0 to m" in wrong.json()["error"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_each_reason_is_printed_once_within_the_width_of_the_terminal(chatted: Command, width: int) -> None:
    page = chatted("sessions", "find", "main", CODE, "--json").json
    said = chatted("views", "why", page["stretches"][-1]["last"], terminal=width).plain
    assert all(len(line) <= width for line in said.splitlines()), said
    once = " ".join(said.split()).split("(1) step 2, drop older turns: one of the oldest turns, which go first")
    assert len(once) == 2 and once[0].count("(1)") > 3


def test_a_request_shows_for_each_message_whether_it_was_sent_quoted_or_left_out(chatted: Command) -> None:
    find = partial(chatted, "sessions", "find", "main", CODE, "--json")
    number = next(stretch["first"] for stretch in find().json["stretches"] if stretch["known"] and not stretch["forms"])
    words = chatted("views", "why", number, CODE)
    (gone, *_) = (stretch for stretch in find().json["stretches"] if stretch["first"] == number)
    dropped = f"dropped at request {gone['request']} (step {gone['step']} of the cut order): {gone['reason']}"
    assert f"the words are not in it: {dropped}" in words.out and "not in the request" in words.out
    every = chatted("views", "why", number, "--json").json
    assert every["words"] is None and len(every["messages"]) > 8
    assert every["messages"][-1]["fate"]["form"] == "verbatim"
    turn = chatted("views", "why", number, "turn 1", "--json").json["messages"]
    assert [message["index"] for message in turn] == [0, 1]


def test_a_fact_found_in_a_recall_block_is_labelled_so(chatted: Command) -> None:
    stretches = chatted("sessions", "find", "main", CODE, "--json").json["stretches"]
    number = next(stretch["first"] for stretch in stretches if stretch["forms"] == ["recalled"])
    shown = chatted("views", "why", number, CODE).out
    assert f"request {number} of session main" in shown
    assert "the words are in it: recalled before a prompt" in shown and "words of it: recalled" in shown


@pytest.fixture(scope="module")
def trip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of the trip, planned with recall and without it."""
    db = tmp_path_factory.mktemp("trip") / "context.db"
    asyncio.run(plan(db))
    asyncio.run(plan(db, "off", recall=0))
    return db


@pytest.fixture
def planned(cc: Command, trip: Path, tmp_path: Path) -> Command:
    """A command line beside a copy of that record."""
    return beside_copy(cc, trip, tmp_path)


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single budget tried to keep a message, where nobody reads which one keeps it."""
    monkeypatch.setattr("context_compiler.middleware.remedies.TRIALS", 1)


@pytest.mark.usefixtures("no_search")
def test_a_fact_is_lost_where_a_later_compile_replaced_its_quotes(planned: Command) -> None:
    result = planned("sessions", "find", "trip", FACT, "--json").json
    stretches = [stretch for stretch in result["stretches"] if stretch["known"]]
    quoted = next(stretch for stretch in stretches if stretch["forms"] == ["quoted"])
    lost = next(stretch for stretch in stretches if stretch["first"] > quoted["last"])
    assert quoted["request"] == quoted["first"] and quoted["step"]
    gone = [stretch for stretch in stretches if not stretch["forms"]]
    assert len(gone) > 1 and gone[0]["first"] >= lost["first"]
    assert all((stretch["request"], stretch["step"]) == (lost["first"], 0) for stretch in gone)
    dropped = f"dropped at request {lost['first']}: the compile there chose other quotes"
    assert planned("sessions", "find", "trip", FACT).out.count(dropped) >= len(gone)
    with TestClient(create_app(Path("system/context.db")), base_url="http://localhost") as client:
        assert client.get("/sessions/1/fact", params={"q": FACT}).text.count(dropped) >= len(gone)
    for missing in gone:
        shown = planned("views", "why", missing["first"], FACT).out
        assert f"the words are not in it: {dropped}" in shown
        assert f"Request {quoted['first']} (turn" in shown and f"Request {lost['first']} (turn" in shown
    recalled = [span(stretch["first"], stretch["last"]) for stretch in stretches if stretch["forms"] == ["recalled"]]
    since = f"Since request {lost['first']} (the compile there chose other quotes) it was sent only when recalled: "
    assert f"{since}{', '.join(recalled)}." in result["answer"]


@pytest.mark.usefixtures("no_search")
def test_the_advice_knows_whether_recall_was_on_and_whether_the_prompt_asked(planned: Command) -> None:
    last = planned("sessions", "find", "trip", FACT, "--json").json["newest"]
    result = planned("sessions", "find", "off", FACT, "--json").json
    unasked = planned("views", "why", last, FACT).out
    assert "the prompt shares no word with it; recall finds such" in unasked and "docs/" not in unasked
    assert "Pin it (18 tokens in every request), or phrase it as a rule" in unasked and "recall=" not in unasked
    off = planned("views", "why", result["newest"], FACT)
    assert "Recall was off" in off.out and "shares no word" not in off.out
    asked = planned("views", "why", 16, "Graça to Estrela").out  # both take something
    assert "Recall was on (1), and the prompt shares words with it" in asked and "docs/recall.md" not in asked


def test_a_pinned_message_is_not_offered_to_be_pinned_and_its_requests_name_the_pin(chatted: Command) -> None:
    find = partial(chatted, "sessions", "find", "main", CODE)
    number = next(
        stretch["first"] for stretch in find("--json").json["stretches"] if stretch["known"] and not stretch["forms"]
    )
    assert "pin it: " in chatted("views", "why", number, CODE).out
    chatted("sessions", "pin", "main", "m0")
    shown = chatted("views", "why", number, CODE).out
    assert "pin it: " not in shown and "Pin it" not in shown and "every request from the next run on has it" in shown
    before = find("--json").json
    assert not any(stretch["reason"] == "pinned" for stretch in before["stretches"])
    assert before["answer"].endswith("Message 0 is pinned now, so that every request from the next run on has it.")
    chatted("chat", "--model", "scripted:0", "--endless", "--budget", "500", input="And now?\n")
    after = find("--json").json
    newest = after["stretches"][-1]
    assert "verbatim" in newest["forms"] and newest["reason"] == "pinned" and "pinned now" not in after["answer"]
    assert find().out.count("pinned") > 1


def test_messages_with_a_single_word_are_near_and_the_search_fails(planned: Command) -> None:
    near = planned("sessions", "find", "trip", "peanut allergy Ben")
    assert near.code == 1 and near.out.index("Ben is allergic") < near.out.index("follow the first")
    every = planned("sessions", "find", "peanut allergy Ben", "--json")
    assert every.code == 1 and {session["session"] for session in every.json["sessions"]} == {"trip", "off"}
    with TestClient(create_app(Path("system/context.db")), base_url="http://localhost") as client:
        page = client.get("/sessions/1/fact", params={"q": "peanut allergy Ben"}).text
        assert "These messages come nearest" in page and "Ben is allergic" in page
        assert "No session matches" not in client.get("/sessions", params={"text": "peanut allergy Ben"}).text
    assert planned("sessions", "find", "trip", FACT).code == 0
    assert planned("sessions", "find", "zebra").code == 1


def test_without_a_session_all_are_searched_for_the_words_or_near_ones(chatted: Command) -> None:
    exact = chatted("sessions", "find", CODE, "--json").json["sessions"]
    assert [session["session"] for session in exact] == ["main"] and exact[0]["had"]
    said = chatted("sessions", "find", "main", "code of the relaese").out
    assert "Nearest to it" in said and "sessions find main 'The release code is orchid-7731" in " ".join(said.split())
    chatted("import", DEMO, "--session", "other", "--db", "system/context.db")
    assert "Nearest to it" in chatted("sessions", "find", "release zebra code").out
    assert "in session other" in chatted("sessions", "find", "28013").out
    assert "nothing in any session" in chatted("sessions", "find", "28014").out
    assert "nothing in any session" in chatted("sessions", "find", "zebra").out
    assert 'around the words, as in "the release code"' in one_line(
        chatted("sessions", "find", "main", "the", "release", "code")
    )


def test_a_missing_fact_view_or_session_is_reported_in_one_line(chatted: Command) -> None:
    assert "m0 to m" in one_line(chatted("views", "why", 1, "m999"))
    assert "no view 99" in one_line(chatted("views", "why", 99))
    for option in ((), ("--json",)):
        said = chatted("views", "why", 1, "zebra", *option)
        assert said.code == 1 and said.err == "" and said.out
    assert chatted("views", "why", 1, "zebra").out == "no message before request 1 contains 'zebra'\n"
    assert "no session 'mian'" in one_line(chatted("sessions", "find", "mian", "code"))
    assert "nothing in session main contains 'zebra'" in chatted("sessions", "find", "main", "zebra").out
    assert "TEXT is empty" in one_line(chatted("sessions", "find", "main", " "))


def test_a_pipe_gets_every_message_and_a_terminal_gets_the_option_that_shows_all(cc: Command) -> None:
    cc("compile", DEMO, "--budget", "9000", "--recent-turns", "all", "--db", "r.db")
    show = partial(cc, "views", "show", 1, "--db", "r.db")
    named = max((line["what"] for line in show("--json").json["view"]["ledger"]["dropped"]), key=len)
    assert len(named) > 10 and ", ".join(named) in show().out
    few = " ".join(show(terminal=240).plain.split())
    assert f"{named[5]} … and {len(named) - 6} more (--all)" in few
    every = show("--all", terminal=100).plain
    assert all(name.split()[1] in every for name in named) and "more (--all)" not in every


def test_a_turn_that_goes_while_the_budget_has_room_is_over_the_threshold(chatted: Command) -> None:
    shown = [chatted("views", "show", one["id"]) for one in chatted("views", "list", "--json").json["views"]]
    assert any("a recent turn, but the request was over the threshold" in one.out for one in shown)
    assert not any("over budget" in one.out for one in shown)


def test_a_pipe_gets_a_note_that_a_chat_is_resumed(chatted: Command) -> None:
    again = chatted("chat", "--model", "scripted:0", input="And now?\n")
    assert "resumed main: 9 turns" in again.err and "'Thanks.'" in again.err and "--session NAME" in again.err
    assert "resumed" not in again.out
    assert "resumed" not in chatted("chat", "--model", "scripted:0", "--session", "new", input="And now?\n").err
