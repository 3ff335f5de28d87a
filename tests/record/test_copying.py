"""A record copied to another place and back is the same record; a copy that was interrupted is finished by the next."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.errors import StoreError
from context_compiler.layers import Layers
from context_compiler.manager.memory import SQLiteMemory
from context_compiler.record import browse
from context_compiler.record.conversations import (
    LogEntry,
    StoredConversation,
    find_conversation,
    read_log,
    write_conversation,
)
from context_compiler.record.copying import copy_record
from context_compiler.record.store import MemoryStore, SQLStore, open_place
from context_compiler.record.values import UNDO, Action, now
from tests.record.entries import NOW, Talk, body, compiled, cycle, days_ago, request, talk
from tests.support.postgres import Cluster

LATER = NOW + timedelta(hours=1)


async def fill(store: SQLStore) -> None:
    """A row in every table, with gaps between the numbers, for two owners."""
    raw = talk(4, about="the weather in Ålesund \x00")
    for owner in ("", "ann"):
        owned = store.scoped(owner)
        await owned.save(request(talk(2), session_id="gone"))
        made = compiled(raw.ids[2], cache_key="k")
        await owned.save(request(raw, Talk("a summary", "and"), compile=made, cycle=cycle(raw.ids[2], '{"a": 1}')))
        await owned.save(request(raw.then("more", "words"), run_id=None))
        await owned.save_layers("s", "", '{"layers": 1}', after=0)
        memory = SQLiteMemory("s", owned)
        await memory.remember("Ann lives in Oslo")
        first = await memory.commit("one")
        await memory.remember("Bob lives in Rome")
        await memory.commit("two")
        await memory.checkout(first)
        await owned.delete("gone")


async def content(store: SQLStore) -> list[str]:
    """Every row without the numbers that depend on its place."""
    rows = [dict(row) async for row in store.scoped(None).export()]
    numbers = {"sessions": count(), "context_summaries": count()}
    names: dict[tuple[str, int], str] = {}
    for row in rows:
        table = str(row["table"])
        if table in numbers:
            names[table, row["id"]] = f"{table} {next(numbers[table])}"  # type: ignore[index]
    for row in rows:
        for column, table in (("session", "sessions"), ("summary", "context_summaries")):
            if isinstance(row.get(column), int):
                row[column] = names[table, row[column]]  # type: ignore[index]
        if row.pop("seal", None) is not None:
            del row["id"]
    return sorted(map(json.dumps, rows))


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLStore]:
    place: Any = tmp_path / "copy.db"
    yield open_place(request.getfixturevalue("record_url") if request.param == "postgres" else place)


async def test_a_record_can_be_copied_to_another_store_and_back(target: SQLStore):
    source, back = MemoryStore(), MemoryStore()
    await fill(source)
    first = await copy_record(source, target, lambda table: None)
    again = await copy_record(source, target, lambda table: None)
    last = await copy_record(target, back, lambda table: None)
    assert first.defects == again.defects == last.defects == ()
    assert sum(again.copied.values()) == 0 and again.present == first.copied
    assert await content(target) == await content(back) == await content(source)
    ann = target.scoped("ann")
    assert [match.memory.text for match in await SQLiteMemory("s", ann).search("Oslo Rome", 5)] == ["Ann lives in Oslo"]
    assert len(await ann.perform(lambda db: browse.matching_nodes(db, "weather in alesund", 50))) == 7
    assert await ann.find_compile("k") is not None
    await target.close()


async def test_a_copy_that_was_interrupted_is_finished_by_the_next(target: SQLStore):
    source = MemoryStore()
    await fill(source)

    def stop(table: str) -> None:
        if table == "views":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        await copy_record(source, target, stop)
    await source.save(request(talk(9), session_id="later"))
    result = await copy_record(source, target, lambda table: None)
    assert result.defects == () and result.present["nodes"]
    assert await content(target) == await content(source)
    await target.close()


async def keep(
    store: SQLStore, revision: str, *said: str, after: str | None = None, name: str = "hosted", when: datetime = NOW
) -> None:
    """Keep a conversation of the host whose log goes on with these messages; `revision` also says when."""
    names = [text if name == "hosted" else f"{name} {text}" for text in said]
    entries = [
        LogEntry(id=entry, parent=before, body=body(text, index, when))
        for index, (before, entry, text) in enumerate(zip((after, *names[:-1]), names, said, strict=True))
    ]
    state = StoredConversation(
        conversation_id=name,
        scope=None,
        head=names[-1],
        branches=(),
        state=json.dumps({"state": revision}),
        revision=revision,
        updated_at=days_ago(10 - int(revision)),
    )
    expected = None if revision == "1" else str(int(revision) - 1)
    work = partial(write_conversation, conversation=state, entries=entries, expected=expected, text_of=bytes.decode)
    assert await store.perform(work)


async def change(store: SQLStore) -> None:
    """Go on with everything that `fill` and `keep` have begun, in rows that are there already."""
    for owner in ("", "ann"):
        owned = store.scoped(owner)
        await owned.archive("s", "", talk(2, about="another beginning"))
        await owned.save(
            request(talk(4, about="the weather in Ålesund \x00"), request_index=7, cycle=cycle(talk(4).tip))
        )
        await owned.save(request(talk(4), request_index=8, cycle=cycle(talk(4).tip, '{"b": 2}')))
        await owned.save_layers("s", "", '{"layers": 2}', after=1)
        memory = SQLiteMemory("s", owned)
        await memory.remember("Carol lives in Paris")
        await memory.commit("three")
    await keep(store, "2", "and", "then", after="first")


async def test_a_second_copy_updates_changed_rows(target: SQLStore):
    source = MemoryStore()
    await fill(source)
    await keep(source, "1", "first")
    assert (await copy_record(source, target, lambda table: None)).defects == ()
    await change(source)
    again = await copy_record(source, target, lambda table: None)
    assert again.defects == () and again.copied["conversations"] == again.copied["sessions"] // 2 == 1
    for _ in range(2):
        assert await content(target) == await content(source)
        ann = SQLiteMemory("s", target.scoped("ann"))
        assert sorted([match.memory.text for match in await ann.search("lives in Oslo Rome Paris", 5)]) == [
            "Ann lives in Oslo",
            "Carol lives in Paris",
        ]
        await source.prune()
        await target.prune()
    assert await target.conversation("hosted") == [
        body(text, position) for text, position in (("first", 0), ("and", 0), ("then", 1))
    ]
    await target.close()


async def test_changes_in_the_target_are_kept_and_reported(target: SQLStore):
    source = MemoryStore()
    await fill(source)
    await keep(source, "1", "first")
    await copy_record(source, target, lambda table: None)
    await change(target)
    await keep(source, "2", "or", after="first")
    before = await content(target)
    result = await copy_record(source, target, lambda table: None)
    assert {defect.partition(":")[0] for defect in result.defects} >= {"sessions", "layers", "spaces", "conversations"}
    assert all("changed in the target" in defect for defect in result.defects) and await target.verify() == ()
    assert set(before) - set(await content(target)) <= {row for row in before if '"conversations"' in row}
    await target.prune()
    state = await target.perform(partial(find_conversation, conversation_id="hosted"))
    assert state is not None and (state.head, state.branches) == ("then", ("or",))  # no entry that was copied is gone
    assert await target.perform(partial(read_log, head="or", limit=None))
    await target.close()


async def test_a_copied_conversation_keeps_its_own_times(target: SQLStore):
    source, ours, theirs = MemoryStore(), Talk(*"abcd"), Talk(*"abcd", when=LATER)
    await target.save(request(theirs, session_id="there"))
    await source.save(request(ours))
    await source.save(request(ours.then("e", "f"), session_id="longer"))
    await source.save(request(Talk(*"abcd", when=LATER + timedelta(hours=1)), session_id="third"))
    for _ in range(2):
        assert (await copy_record(source, target, lambda table: None)).defects == ()
        for name in ("s", "longer", "third"):
            assert await target.transcript(name) == await source.transcript(name), name
        assert await target.transcript("there") == theirs.bodies
    await target.close()


async def test_an_earlier_history_keeps_its_own_times(target: SQLStore):
    source, ours = MemoryStore(), Talk(*"abcd")
    await target.save(request(Talk(*"abcd", when=LATER), session_id="there"))
    await source.save(request(ours))
    await source.archive("s", "", Talk("another beginning"))
    assert (await copy_record(source, target, lambda table: None)).defects == ()
    query = "SELECT id FROM sessions WHERE session_id = 's'"
    session = await target.perform(lambda db: db.execute(query).fetchone()[0])
    nodes = await target.perform(lambda db: browse.chain_nodes(db, ours.tip, session))
    assert await target.perform(lambda db: browse.message_bodies(db, nodes)) == ours.bodies
    await target.close()


async def test_a_conversation_that_was_changed_in_the_target_keeps_its_times(target: SQLStore):
    source, theirs = MemoryStore(), Talk(*"abcd", when=LATER)
    await source.save(request(Talk(*"abcd")))
    await target.save(request(theirs))
    await target.archive("s", "", theirs.then("more"))
    (defect,) = (await copy_record(source, target, lambda table: None)).defects
    assert "changed in the target" in defect
    assert await target.transcript("s") == theirs.then("more").bodies
    await target.close()


async def test_a_copied_conversation_of_the_host_keeps_its_own_times(target: SQLStore):
    source = MemoryStore()
    await keep(target, "1", "first", "second", name="there", when=LATER)
    await keep(source, "1", "first", "second")
    for _ in range(2):
        assert (await copy_record(source, target, lambda table: None)).defects == ()
        for name, when in (("hosted", NOW), ("there", LATER)):
            whole = [body("first", 0, when), body("second", 1, when)]
            assert await target.conversation(name) == whole
            assert await target.transcript(name) == whole
    await target.close()


async def test_a_compile_whose_answer_differs_from_the_copied_one_is_copied_too(target: SQLStore):
    source = MemoryStore()
    await target.save(request(talk(2), compile=compiled(cache_key="k", raw_output="there"), session_id="there"))
    await source.save(request(talk(2), compile=compiled(cache_key="k", raw_output="here")))
    for _ in range(2):
        assert (await copy_record(source, target, lambda table: None)).defects == ()
    (view,) = await target.views("s")
    assert view.compile is not None and view.compile.raw_output == "here"
    stored = await target.find_compile("k")
    assert stored is not None and stored[1].raw_output == "there" and len(await target.summaries("s")) == 1
    await target.close()


async def test_states_name_compiles_by_their_numbers_in_the_copy(target: SQLStore):
    source = MemoryStore()
    await target.save(request(talk(2), compile=compiled(), session_id="other"))
    state = json.dumps({"summary": "…", "summary_id": 1})
    await source.save(request(talk(3), compile=compiled(), cycle=cycle(talk(3).tip, state)))
    undo = Action(kind=UNDO, tip=talk(3).tip, state=json.dumps({"cycle": state, "before": 1}), created_at=now())
    await source.save_action("s", "", undo, after=0)
    assert (await copy_record(source, target, lambda table: None)).defects == ()
    (made,) = [view.summary_id for view in await target.views("s")]
    (copied,), (action,) = await target.session_cycles("s"), await target.actions("s")
    assert made != 1 and json.loads(copied.state)["summary_id"] == made
    assert json.loads(json.loads(action.state)["cycle"]) == json.loads(copied.state)
    assert sum((await copy_record(source, target, lambda table: None)).copied.values()) == 0
    await target.close()


async def test_layers_that_were_changed_in_the_copy_stay_as_they_are(target: SQLStore):
    source, there = MemoryStore(), Layers(target)
    for layers, number in ((Layers(source), 1), (there, 2)):
        async with layers.turn("s") as turn:
            turn.registry.register_read("recipes", number, f"Recipe {number}")
    result = await copy_record(source, target, lambda table: None)
    assert result.defects == ("layers: session 's' was changed in the target, so it is not as in the source",)
    assert await target.verify() == ()
    async with there.turn("s") as turn:
        assert [entity.label for entity in turn.registry] == ["Recipe 2"]
    await target.close()


async def test_a_tampered_row_is_not_copied(tmp_path: Path):
    source = open_place(tmp_path / "context.db")
    await fill(source)
    await source.close()
    with sqlite3.connect(tmp_path / "context.db") as db:
        db.execute("UPDATE views SET tokens_sent = 1")
    with pytest.raises(StoreError, match="views 2 of the source was changed since it was written"):
        await copy_record(source, MemoryStore(), lambda table: None)
    await source.close()


@pytest.mark.slow
async def test_copied_text_is_searchable_at_once(postgres: Cluster, postgres_url: str):
    source, target = MemoryStore(), open_place(postgres_url)
    await source.save(request(talk(200)))
    assert (await copy_record(source, target, lambda table: None)).defects == ()
    counts = "SELECT count(*), count(words) FROM context_compiler.messages_fts"
    assert [tuple(row) for row in postgres.run(counts, urlsplit(postgres_url).path[1:])] == [(399, 399)]
    assert len(await target.perform(lambda db: browse.matching_nodes(db, "answer 397 on", 50))) == 1
    await target.close()


def test_the_command_reports_its_work(tmp_path: Path, postgres_url: str, sync_loop: Any):
    source = open_place(tmp_path / "context.db")
    sync_loop.run_until_complete(fill(source))
    sync_loop.run_until_complete(source.close())
    for places, code in (((str(tmp_path / "context.db"), postgres_url), 0), ((postgres_url, postgres_url), 2)):
        done = CliRunner().invoke(app, ["copy", *places, "--json"])
        assert done.exit_code == code, done.output
        if not code:
            said = json.loads(done.stdout)
            assert said["copied"]["views"] == 4 and said["defects"] == []
