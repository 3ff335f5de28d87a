"""`--owner`: every command sees one owner's part of the record, and `delete` leaves nothing of an owner behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from context_compiler.record.store import SQLiteStore
from tests.cli.conftest import DEMO, Command, one_line
from tests.record.entries import Talk, days_ago, request


@pytest.fixture
def shared(cc: Command, tmp_path: Path) -> Command:
    """A command line in a folder with the record of two owners, who have one session of the same name."""

    async def record() -> None:
        store = SQLiteStore(tmp_path / "system" / "context.db")
        for owner in ("ann", "bob"):
            scoped = store.scoped(owner)
            await scoped.save(request(Talk(f"the plan of {owner}"), session_id="chat"))
            await scoped.save(request(Talk(f"the journey of {owner}"), session_id=f"{owner}s", created_at=days_ago(40)))
        await store.close()

    asyncio.run(record())
    return cc


def test_lists_show_only_sessions_of_the_owner(shared: Command) -> None:
    assert {session["owner"] for session in shared("sessions", "list", "--json").json["sessions"]} == {"ann", "bob"}
    assert "owner" in shared("sessions", "list").out
    for more, env in ((("--owner", "ann"), {}), ((), {"CONTEXT_COMPILER_OWNER": "ann"})):
        sessions = shared("sessions", "list", *more, "--json", **env).json["sessions"]
        assert {session["session_id"] for session in sessions} == {"chat", "anns"}
        assert {view["owner"] for view in shared("views", "list", *more, "--json", **env).json["views"]} == {"ann"}
        assert [row["session"] for row in shared("stats", *more, "--json", **env).json["sessions"]].count("chat") == 1
        assert "bob" not in shared("export", *more, **env).out
    assert shared("sessions", "list", "--owner", "nobody", "--json").json["sessions"] == []


def test_a_session_name_shared_by_several_owners_needs_the_owner_option(shared: Command) -> None:
    said = shared("sessions", "show", "chat")
    assert said.code == 2 and "2 owners have a session 'chat', such as 'ann', 'bob'; give --owner" in said.err
    assert "the plan of bob" in shared("sessions", "show", "chat", "--owner", "bob", "--raw").out
    assert shared("sessions", "show", "anns", "--owner", "bob").code == 2


def test_a_view_of_another_owner_is_not_there(shared: Command) -> None:
    by_owner = {one["owner"]: one["id"] for one in shared("views", "list", "--json").json["views"]}
    assert "of ann" in shared("views", "show", by_owner["ann"]).out
    assert shared("views", "show", by_owner["ann"], "--owner", "bob").code == 2


def test_deleting_a_session_keeps_that_of_another_owner(shared: Command) -> None:
    assert shared("sessions", "delete", "chat", "--owner", "ann", "--yes").code == 0
    assert "the plan of bob" in shared("sessions", "show", "chat", "--raw").out
    assert shared("verify").code == 0


def test_pruning_by_age_and_owner(shared: Command) -> None:
    assert "1 request removed" in shared("prune", "--older-than", "30d", "--owner", "ann").out
    left = {(one["owner"], one["session_id"]) for one in shared("views", "list", "--json").json["views"]}
    assert left == {("ann", "chat"), ("bob", "chat"), ("bob", "bobs")}


def test_deleting_an_owner_removes_every_byte_of_their_data(shared: Command, tmp_path: Path) -> None:
    asked = shared("delete", "--owner", "ann", input="n\n")
    assert asked.code == 1 and "2 sessions with 2 requests of owner 'ann'" in asked.err
    assert shared("delete", "--owner", "an", "--yes").code == 2
    said = shared("delete", "--owner", "ann", "--yes", "--json")
    assert said.json == {
        "db": "system/context.db",
        "owner": "ann",
        "sessions": 2,
        "removed": 2,
        "transcripts": [],
        "vaults": [],
    }
    left = b"".join(file.read_bytes() for file in (tmp_path / "system").iterdir())
    assert b"of ann" not in left and b"anns" not in left and b"of bob" in left
    assert shared("verify").code == 0


def test_imported_and_compiled_sessions_belong_to_the_owner(shared: Command) -> None:
    assert shared("import", DEMO, "--session", "demo", "--owner", "ann").code == 0
    assert shared("compile", DEMO, "--session", "more", "--owner", "ann", "--db", "system/context.db").code == 0
    found = {one["session_id"] for one in shared("sessions", "list", "--owner", "ann", "--json").json["sessions"]}
    assert found == {"chat", "anns", "demo", "more"}


def test_deleting_an_owner_from_a_record_without_owners_names_sessions_delete_instead(cc: Command) -> None:
    cc("import", DEMO)
    assert "`sessions delete` removes a conversation" in one_line(cc("delete", "--owner", "ann", "--yes"))


def test_two_owners_can_chat_in_sessions_of_the_same_name(shared: Command, tmp_path: Path) -> None:
    """Neither is told of the other: not by the model's history, not by the transcript, not by recall."""

    def talk(owner: str, *lines: str) -> str:
        said = shared("chat", "--model", "scripted:0", "--owner", owner, input="".join(f"{line}\n" for line in lines))
        assert said.code == 0, said.err
        return said.out

    talk("cat", "My cat is called Mia.")
    output = talk("../dan", "My dog is called Rex.", "/recall Mia", "/stats")
    assert "Mia." not in output and "turns          1" in output
    assert "turns          2" in talk("cat", "And my dog is not Rex.", "/stats")
    for owner, mine, other in (("cat", "Mia", "called Rex"), ("../dan", "called Rex", "Mia")):
        written = shared("export", "--owner", owner).out
        assert mine in written and other not in written
    folders = {path.parent.name for path in tmp_path.rglob("*.md") if "ContextTemplates" not in str(path)}
    assert len(folders) == 2 and "Chat_Sessions-cat" in folders and all(name.isprintable() for name in folders)
    assert {path.parent for path in (tmp_path / "system").glob("Chat_Sessions*/*.md")} == {
        tmp_path / "system" / name for name in folders
    }
    deleted = shared("sessions", "delete", "main", "--owner", "cat", "--yes", "--json").json
    assert deleted["transcripts"] == ["system/Chat_Sessions-cat/main.md"]
    assert shared("delete", "--owner", "../dan", "--yes", "--json").json["transcripts"] == [
        f"system/{name}" for name in folders - {"Chat_Sessions-cat"}
    ]


def test_commands_use_the_vault_of_the_owner_and_require_an_owner(shared: Command, tmp_path: Path) -> None:
    vault = "prompts/{owner}"
    for owner in ("ann", "bob"):
        folder = tmp_path / "prompts" / owner / "AssistantMD" / "ContextTemplates"
        folder.mkdir(parents=True)
        (folder / "mine.md").write_text(f"---\ncompiler: none\n---\nThe template of {owner}.")
    shown = shared("templates", "show", "mine", "--vault", vault, "--owner", "ann")
    assert "The template of ann." in shown.out
    listed = shared("templates", "list", "--vault", vault, "--json", CONTEXT_COMPILER_OWNER="bob").json["templates"]
    assert [template["path"] for template in listed if template["source"] == "vault"] == [
        str(tmp_path / "prompts/bob/AssistantMD/ContextTemplates/mine.md")
    ]
    assert shared("templates", "check", "mine", "--vault", vault, "--owner", "bob").code == 0
    options = "-t", "mine", "--budget", "900", "--vault", vault
    assert "The template of ann." in shared("compile", DEMO, *options, "--owner", "ann").out
    shared("import", DEMO, "--session", "long", "--owner", "bob")
    compacted = shared("sessions", "compact", "long", "-t", "mine", "--vault", vault, "--json").json
    assert compacted["summary"] == "The template of bob."
    assert shared("chat", "--model", "scripted:0", "--owner", "ann", "--vault", vault, input="Hello.\n").code == 0
    assert (tmp_path / "prompts/ann/AssistantMD/Chat_Sessions-ann/main.md").exists()
    (tmp_path / "w.md").write_text("## One\nDo it.\n")
    for command in (
        ("templates", "list"),
        ("templates", "check"),
        ("compile", DEMO),
        ("bench", DEMO),
        ("chat", "--model", "scripted"),
        ("serve", "--port", "0"),
        ("worker", "--until-empty"),
        ("workflow", "check", "w.md"),
        ("workflow", "run", "w.md", "--simulate"),
        ("pipeline", "check", "w.md"),
    ):
        said = shared(*command, "--vault", vault, input="")
        assert said.code == 2 and said.err.count("each owner has a folder there; name the owner, or one folder") == 1
    gone = shared("sessions", "delete", "chat", "--owner", "ann", "--vault", vault, "--yes")
    assert gone.code == 0
    left = shared("delete", "--owner", "ann", "--vault", vault, "--yes")
    assert "prompts/ann: the vault of this owner with its templates remains" in left.err
    assert "prompts/ann/AssistantMD/Chat_Sessions-ann: the transcripts" in left.err


def test_owners_whose_names_differ_by_capitals_have_transcripts_of_their_own(shared: Command, tmp_path: Path) -> None:
    for owner in ("ann", "Ann", "ANN"):
        assert shared("chat", "--model", "scripted:0", "--owner", owner, input=f"I am {owner}.\n").code == 0
    folders = [path.parent.name.casefold() for path in tmp_path.rglob("main.md")]
    assert len(folders) == len(set(folders)) == 3
