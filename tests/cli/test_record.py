"""What is on the record can be listed, shown, compared, replayed and deleted, from the record alone."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from context_compiler.cli.records import open_record
from context_compiler.record.store import SQLiteStore
from context_compiler.record.values import Entry, positions_of
from context_compiler.web.app import create_app
from tests.cli.conftest import DEMO, Command, chat, one_line, request, written
from tests.support.agents import Talker

READERS = [
    ("views", "list"),
    ("views", "show", "1"),
    ("views", "diff", "1", "2"),
    ("views", "replay", "1", "--template", "extractive"),
    ("sessions", "list"),
    ("sessions", "show", "demo"),
    ("sessions", "delete", "demo", "--yes"),
    ("stats",),
    ("verify",),
    ("export",),
    ("prune", "--keep-last", "1"),
]


@pytest.mark.parametrize("args", READERS, ids=" ".join)
def test_a_missing_record_is_reported_in_one_line_and_not_created(
    cc: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    said = cc(*args)
    assert said.code == 2
    assert "context.db: there is no record here" in one_line(said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", READERS[:-1], ids=" ".join)
def test_a_file_that_is_not_a_record_is_reported_in_one_line(
    cc: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    (tmp_path / "notes.db").write_text("these are notes, and not a database at all" * 50)
    said = cc(*args, "--db", "notes.db")
    assert said.code == 2 and "notes.db: " in one_line(said)


@pytest.mark.parametrize("args", [READERS[0], READERS[-1]], ids=" ".join)
def test_a_folder_given_as_the_record_is_refused_as_a_folder(
    cc: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    (tmp_path / "records").mkdir()
    said = cc(*args, "--db", "records")
    assert said.code == 2 and "records: is a folder; give the path of a file in it" in one_line(said)


@pytest.mark.parametrize(
    "args", [("views", "show"), ("views", "list", "--limit"), ("prune", "--keep-last")], ids=" ".join
)
def test_a_number_beyond_any_row_is_refused(recorded: Command, args: tuple[str, ...]) -> None:
    said = recorded(*args, "1" + 30 * "0")
    assert said.code == 2 and "a number is larger than any row or count can be" in one_line(said)


@pytest.mark.parametrize("args", [("show", "9"), ("diff", "1", "9"), ("replay", "9", "--template", "extractive")])
def test_an_unknown_view_is_reported_with_the_existing_numbers(recorded: Command, args: tuple[str, ...]) -> None:
    said = recorded("views", *args)
    assert said.code == 2 and "no view 9; there are 3, from 1 to 3; `context-compiler views" in one_line(said)


@pytest.mark.parametrize(
    "args", [("sessions", "show"), ("sessions", "delete", "--yes"), ("views", "list", "--session")]
)
def test_an_unknown_session_is_reported_with_similar_names(recorded: Command, args: tuple[str, ...]) -> None:
    said = recorded(*args, "dmeo")
    assert said.code == 2 and "no session 'dmeo'; there is 'demo'" in one_line(said)


def test_an_empty_record_is_reported_as_empty(recorded: Command) -> None:
    recorded("sessions", "delete", "demo", "--yes")
    assert "contains no sessions yet" in recorded("sessions", "list").out
    assert "contains no views yet" in recorded("views", "list").out
    assert "it contains no sessions" in one_line(recorded("sessions", "show", "demo"))
    assert "it contains no views" in one_line(recorded("views", "show", "1"))


def test_views_are_listed_newest_first(recorded: Command) -> None:
    said = recorded("views", "list", "--json")
    assert [view["id"] for view in said.json["views"]] == [3, 2, 1]
    assert [view["id"] for view in recorded("views", "list", "--limit", 1, "--json").json["views"]] == [3]
    head, *rows = recorded("views", "list").out.splitlines()
    assert head.split()[:4] == ["view", "session", "turn", "when"]
    assert rows[0].split()[0] == "3" and rows[0].endswith("summary:medium")


def test_plain_tables_have_columns_that_line_up(recorded: Command) -> None:
    head, *rows = recorded("views", "list").out.splitlines()
    for name in ("session", "status", "template", "fidelity"):
        at = head.index(name)
        assert all(row[at - 1] == " " and row[at] != " " for row in rows)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_a_terminal(recorded: Command, width: int) -> None:
    for command in (("views", "list"), ("sessions", "list"), ("stats",)):
        said = recorded(*command, terminal=width)
        assert all(len(line) <= width for line in said.plain.splitlines()), said.plain
        assert "demo" in said.plain


def test_a_view_is_shown_with_its_exact_messages_and_its_origin(recorded: Command) -> None:
    made = recorded("compile", DEMO, "--budget", 2000, "--recent-turns", 1, "--json").json
    shown = recorded("views", "show", 2, "--json").json
    assert shown["messages"] == made["messages"]
    said = recorded("views", "show", 2).out
    for told in ("template hash", made["record"]["compile"]["template_hash"], "summary:medium", "budget", "2,000"):
        assert told in said
    assert "older than what was then the last turn" in said and "Context summary (compiled):" in said


def test_the_raw_history_of_a_view_is_the_history_at_its_request(recorded: Command) -> None:
    shown = recorded("views", "show", 1, "--raw", "--json").json["messages"]
    raw = json.loads(DEMO.read_bytes())
    said = [[part.get("content") for part in message["parts"]] for message in shown]
    assert said == [[part.get("content") for part in message["parts"]] for message in raw]
    assert "Raw history: 105" in recorded("views", "show", 1, "--raw").out


@pytest.mark.parametrize("which", [(), ("--raw",)])
def test_sizes_of_messages_share_the_tokens_of_the_request(recorded: Command, which: tuple[str, ...]) -> None:
    said = recorded("views", "show", 1, *which).out
    total = re.search(r"^(?:Raw history|Messages as sent): [\d,]+, ([\d,]+) tokens$", said, re.MULTILINE)
    sizes = re.findall(r"^\d+ (?:system|user|assistant|tool|notes) · ~([\d,]+) tokens", said, re.MULTILINE)
    assert total is not None and len(sizes) > 3
    asked = int(total[1].replace(",", ""))
    assert abs(sum(int(size.replace(",", "")) for size in sizes) - asked) <= len(sizes) + asked / 100


def test_left_out_parts_of_a_view_are_counted_in_messages(recorded: Command) -> None:
    lines = recorded("views", "show", "1", "--json").json["view"]["ledger"]["dropped"]
    table = recorded("views", "show", "1").out.partition("Left out\n")[2]
    assert lines and table.split()[:3] == ["why", "messages", "tokens"]
    for line in lines:
        count = sum(len(positions_of(what)) for what in line["what"])
        assert re.search(rf"^{re.escape(line['reason'])} +{count} ", table, re.MULTILINE), line


def test_a_view_without_content_shows_why_it_has_none(cc: Command, tmp_path: Path) -> None:
    async def put_facts_only() -> None:
        store = SQLiteStore(tmp_path / "system" / "context.db")
        await store.save(Entry(record=request("raw; content: record is metadata", 1.0), raw=None, view=None))
        await store.close()

    asyncio.run(put_facts_only())
    said = cc("views", "show", 1)
    assert said.code == 2 and "without its messages (raw; content: record is metadata)" in one_line(said)
    assert cc("views", "list").code == cc("sessions", "show", "s").code == 0


def test_diff_shows_how_much_a_prompt_cache_keeps(recorded: Command) -> None:
    said = recorded("views", "diff", 1, 2, "--json").json
    first, second = (recorded("views", "show", view, "--json").json["messages"] for view in (1, 2))
    assert said["common_messages"] == 1 and first[0]["parts"] == second[0]["parts"]
    assert 0 < said["common_tokens"] < said["tokens"][0]
    assert said["diff"][:2] == ["--- view 1", "+++ view 2"]
    assert "shared    1 message, " in recorded("views", "diff", 1, 2).out


def test_a_view_has_no_differences_from_itself(recorded: Command) -> None:
    said = recorded("views", "diff", 2, 2)
    assert "100% of the second" in said.out and said.out.endswith("no difference\n")
    assert recorded("views", "diff", 2, 2, "--json").json["diff"] == []


def test_a_diff_is_in_colour_on_a_terminal(recorded: Command) -> None:
    said = recorded("views", "diff", 1, 2, terminal=100)
    assert "\x1b[32m+" in said.out and "\x1b[31m-" in said.out


def test_replay_shows_the_difference_and_writes_nothing(recorded: Command) -> None:
    said = recorded("views", "replay", 2, "--template", "goal_oriented", "--budget", 5000)
    assert said.code == 0
    assert "template  extractive → goal_oriented" in said.out and "+++ template goal_oriented" in said.out
    assert "no model was asked, so quotes replace the summary of goal_oriented; --model NAME asks one" in said.out
    assert len(recorded("views", "list", "--json").json["views"]) == 3


def test_a_replay_with_the_same_settings_changes_nothing(recorded: Command) -> None:
    said = recorded("views", "replay", 1, "--template", "extractive", "--json").json
    assert said["before"]["tokens"] == said["after"]["tokens"]
    assert said["summary_diff"] == said["comparison"]["diff"] == []


def test_a_replay_takes_missing_options_from_the_view(recorded: Command) -> None:
    said = recorded("views", "replay", 3, "--budget", 900)
    assert said.code == 0 and "template  extractive → extractive" in said.out and "budget    4,000 → 900" in said.out
    recorded("views", "replay", 3, "--budget", 900, "--record")
    made = recorded("views", "show", 4, "--json").json["view"]["compile"]
    assert (made["template_name"], made["fidelity"]) == ("extractive", "summary:medium")
    said = recorded("views", "replay", 3, "--fidelity", "compact", "--json").json
    assert said["before"]["budget"] == said["after"]["budget"] and said["after"]["tokens"] < said["before"]["tokens"]


def test_a_replay_tries_out_recall_and_trigger_as_an_agent_has_them(recorded: Command) -> None:
    def tokens(*options: object) -> int:
        said = recorded("views", "replay", 3, *options, "--json").json
        assert said["record"]["id"] is None
        return said["after"]["tokens"]

    off, some, most = (tokens("--recall", share) for share in (0, 0.15, 0.5))
    assert off < some < most <= 4_000
    assert tokens("--budget", 16_000, "--trigger", 0.9) > 13_000 > tokens("--budget", 16_000, "--trigger", 5_000)
    assert "recorded as" not in recorded("views", "replay", 3, "--recall", 0.15).out
    assert len(recorded("views", "list", "--json").json["views"]) == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--recall", "1.5"), "--recall '1.5': give a share from 0"),
        (("--recall", "most"), "--recall 'most': give a share from 0"),
        (("--trigger", "0"), "--trigger '0': give whole tokens"),
    ],
)
def test_a_wrong_recall_or_trigger_is_one_line(recorded: Command, options: tuple[str, ...], why: str) -> None:
    said = recorded("views", "replay", 3, *options)
    assert said.code == 2 and why in one_line(said)


def test_a_replay_without_any_difference_is_refused(recorded: Command) -> None:
    said = recorded("views", "replay", 3)
    assert said.code == 2 and "give --template, --budget, --fidelity, --model, --recall or --trigger" in one_line(said)


def test_a_replay_with_a_model_that_its_template_does_not_use_is_refused(recorded: Command) -> None:
    said = recorded("views", "replay", 3, "--model", "test")
    assert said.code == 2 and "asks no model; name one that does with --template" in one_line(said)


def test_a_replay_reports_a_template_that_has_changed_or_is_gone(recorded: Command, tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    own.write_text("---\ncompiler: none\n---\nNotes one.")
    recorded("compile", DEMO, "--template", "own.md", "--db", "system/context.db")
    assert recorded("views", "replay", 4, "--budget", 900).err == ""
    own.write_text("---\ncompiler: none\n---\nNotes two.")
    assert "note: template own has changed since" in recorded("views", "replay", 4, "--budget", 900).err
    own.unlink()
    said = recorded("views", "replay", 4, "--budget", 900)
    assert said.code == 2 and "own" in one_line(said) and "name one with --template" in said.err


def test_a_replay_is_recorded_only_on_request_and_beside_its_session(recorded: Command) -> None:
    asked = (
        ("stats",),
        ("stats", "--session", "demo"),
        ("sessions", "show", "demo"),
        ("sessions", "find", "my explicit yes"),
    )
    before = [recorded(*command, "--json").out for command in asked]
    said = recorded("views", "replay", 2, "--template", "extractive", "--budget", 900, "--record")
    assert said.out.endswith("recorded as view 4, in session replay of 2 · demo\n")
    assert recorded("views", "show", 4, "--json").json["view"]["session_id"] == "replay of 2 · demo"
    assert [recorded(*command, "--json").out for command in asked] == before


async def test_an_agent_continues_after_its_own_last_turn_and_not_after_a_replay(cc: Command, tmp_path: Path) -> None:
    db, history, talker = tmp_path / "context.db", list[ModelMessage](), Talker("Noted.")
    for turn in range(6):
        agent = Agent(talker.model, capabilities=[ContextCompiler(store=db, system=None, model="none", budget=300)])
        said = await agent.run(f"Part {turn}: {'some words of it ' * 20}", message_history=history, conversation_id="c")
        history = said.all_messages()
    arguments = ("views", "replay", 3, "--budget", 200, "--record", "--db", db)
    assert (await asyncio.to_thread(cc, *arguments)).code == 0
    async with open_record(db) as store:
        assert [len(await store.transcript("c")), len(await store.transcript("replay of 3 · c"))] == [12, 5]
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        kinds = {session["session_id"]: session["kind"] for session in client.get("/api/sessions").json()["sessions"]}
    assert kinds == {"c": "agent", "replay of 3 · c": "replay"}


def test_a_replay_with_a_wrong_template_is_reported_in_one_line(recorded: Command) -> None:
    said = recorded("views", "replay", 2, "--template", "nothing")
    assert said.code == 2 and "there is no template of that name" in one_line(said)


def test_a_session_is_shown_with_requests_and_history(recorded: Command) -> None:
    said = recorded("sessions", "show", "demo").out
    assert "requests" in said and "Raw history: 105 messages" in said
    assert "Pull the gateway log for Friday" in said and "charge=ch_19f04c9e amount=4290" not in said
    assert "charge=ch_19f04c9e amount=4290" in recorded("sessions", "show", "demo", "--raw").out
    assert len(recorded("sessions", "show", "demo", "--json").json["messages"]) == 105


@pytest.mark.parametrize("answer", ["n\n", "\n", "no\n"])
def test_deleting_asks_for_confirmation_and_no_cancels_it(recorded: Command, answer: str) -> None:
    said = recorded("sessions", "delete", "demo", input=answer)
    assert said.code == 1 and "with 3 requests and 105 messages" in said.err and "nothing was deleted" in said.err
    assert len(recorded("sessions", "list", "--json").json["sessions"]) == 1


@pytest.mark.parametrize("how", [("--yes",), ()])
def test_deleting_removes_the_conversation(recorded: Command, how: tuple[str, ...]) -> None:
    said = recorded("sessions", "delete", "demo", *how, "--json", input="y\n")
    assert said.json["removed"] == 3
    assert recorded("sessions", "list", "--json").json["sessions"] == []


def test_deleting_names_the_transcript_that_a_chat_leaves_behind(recorded: Command, tmp_path: Path) -> None:
    recorded("chat", "--model", "scripted:0", "--session", "a talk", input="What about the queue?\n")
    (path,) = (tmp_path / "system" / "Chat_Sessions").iterdir()
    said = recorded("sessions", "delete", "a talk", "--yes")
    assert f"note: {path.relative_to(tmp_path)}: the transcript of this chat remains; delete it" in said.err
    assert path.exists() and said.out.endswith("removed\n")
    assert recorded("sessions", "delete", "demo", "--yes", "--json").json["transcripts"] == []


def test_deleting_without_a_terminal_requires_yes(recorded: Command) -> None:
    said = recorded("sessions", "delete", "demo", input="")
    assert said.code == 2 and "give --yes" in said.err


def test_an_import_makes_sessions_that_can_be_listed_and_shown(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chats.json", [{"id": f"c{number}", "messages": chat(number)} for number in range(1, 4)])
    said = cc("import", "chats.json", "--json")
    assert [session["session"] for session in said.json["sessions"]] == ["chats#c1", "chats#c2", "chats#c3"]
    assert [session["state"] for session in said.json["sessions"]] == ["new"] * 3
    assert "Raw history: 5 messages" in cc("sessions", "show", "chats#c2").out
    assert cc("views", "replay", 3, "--template", "extractive", "--budget", 200).code == 0
    assert cc("verify").out.endswith("sound\n")


def test_importing_twice_adds_nothing_and_reports_so(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chat.json", chat(3))
    cc("import", "chat.json")
    assert cc("import", "chat.json", "--json").json["sessions"][0]["state"] == "known"
    assert len(cc("views", "list", "--json").json["views"]) == 1
    written(tmp_path / "chat.json", chat(4))
    assert cc("import", "chat.json", "--json").json["sessions"][0]["state"] == "changed"


def test_one_conversation_can_be_imported_under_another_name(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chats.json", [chat(1), chat(2)])
    cc("import", "chats.json", "--select", 1, "--session", "mine")
    assert [one["session_id"] for one in cc("sessions", "list", "--json").json["sessions"]] == ["mine"]


def test_a_name_for_several_conversations_is_refused(cc: Command, tmp_path: Path) -> None:
    written(tmp_path / "chats.json", [chat(1), chat(2)])
    assert "select one with --select" in one_line(cc("import", "chats.json", "--session", "mine"))


async def _with_tools(db: Path) -> None:
    store = SQLiteStore(db)
    tools = [{"kind": "output", "name": "go\x1b[31m", "description": "Go there.", "parameters": {"type": "object"}}]
    record = replace(request("raw", 1.0), request_hash="0" * 64)
    await store.save(Entry(record=record, raw=None, view=None, tools=json.dumps(tools)))
    await store.close()


def test_the_tools_of_a_view_are_shown_if_they_are_recorded(recorded: Command, tmp_path: Path) -> None:
    asyncio.run(_with_tools(tmp_path / "system" / "context.db"))
    said = recorded("views", "show", "4", "--tools")
    assert said.code == 0 and "Go there." in said.out and "output" in said.out and "\x1b" not in said.out
    (tool,) = json.loads(recorded("views", "show", "4", "--tools", "--json").out)["tools"]
    assert tool["description"] == "Go there." and tool["parameters"] == {"type": "object"}
    assert recorded("views", "show", "3", "--tools").out == "the tools of view 3 are not recorded\n"
    assert json.loads(recorded("views", "show", "3", "--tools", "--json").out) == {"view": 3, "tools": None}
