"""Owners: nothing of one is found, listed, shared or removed by another, and an owner is erased without a trace."""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from context_compiler.errors import SettingsError, StoreError
from context_compiler.manager.memory import SQLiteMemory
from context_compiler.record.store import MemoryStore, SQLiteStore, SQLStore, Tenants, open_place
from tests.record.conftest import STORES, open_one
from tests.record.entries import NOW, Talk, ask, compiled, cycle, days_ago, request, talk
from tests.support.postgres import Cluster

ANN, BOB = "ann@example.org", "bob"


@pytest.fixture(params=STORES)
async def tenants(request: pytest.FixtureRequest, tmp_path: Path):
    made = open_one(request, tmp_path)
    yield made
    assert await made.verify() == ()
    await made.close()


async def both(store: Tenants, raw: Talk | None = None) -> tuple[Tenants, Tenants]:
    """The stores of two owners, each with the same session, the same messages and the same compile."""
    raw = raw or talk(3)
    ann, bob = store.scoped(ANN), store.scoped(BOB)
    for owned in (ann, bob):
        made = compiled(raw.ids[2], cache_key="k", summary=f"for {owned.owner}")
        await owned.save(request(raw, Talk("a summary", "and"), compile=made, cycle=cycle(raw.ids[2], '{"a": 1}')))
        await owned.save_layers("s", "", f"layers of {owned.owner}", after=0)
    return ann, bob


async def test_two_owners_use_one_session_id_without_meeting(tenants: Tenants):
    ann, bob = await both(tenants)
    longer = talk(3).then("said by Ann alone", "and answered")
    await ann.save(request(longer))
    assert await ann.transcript("s") == longer.bodies
    assert await bob.transcript("s") == talk(3).bodies
    assert [session.owner for session in await bob.sessions()] == [BOB]
    assert [view.owner for view in await bob.views()] == [BOB]
    assert len(await ann.views("s")) == 2
    assert await tenants.sessions() == await tenants.views() == await tenants.transcript("s") == []


async def test_an_owner_finds_no_compile_cycle_or_layer_of_another(tenants: Tenants):
    ann, bob = await both(tenants)
    raw = talk(3)
    for store in (ann, bob):
        stored = await store.find_compile("k")
        assert stored is not None and stored[1].summary == f"for {store.owner}" and stored[1].owner == store.owner
        assert [made.summary for made in await store.summaries("s")] == [f"for {store.owner}"]
        assert await store.layers("s") == (f"layers of {store.owner}", 1)
    for other in (tenants, tenants.scoped("c")):
        assert await other.find_compile("k") is None
        assert await other.find_cycle(raw.ids, "c") is None
        assert await other.layers("s") is None


async def test_a_message_is_not_shared_with_another_owner(tenants: Tenants):
    """Two that say the same keep their own times: none of them reads what the other wrote first."""
    early, late = Talk("hello", when=days_ago(5)), Talk("hello", when=NOW)
    ann, bob = tenants.scoped(ANN), tenants.scoped(BOB)
    await ann.save(request(early))
    await bob.save(request(late))
    assert await ann.chain(early.tip) == early.bodies
    assert await bob.chain(late.tip) == late.bodies
    with pytest.raises(StoreError, match="no message"):
        await tenants.chain(early.tip)


async def test_a_stored_name_of_another_owner_finds_nothing(tenants: Tenants):
    ann, bob = await both(tenants)
    names = [str(row["id"]) async for row in ann.export() if row["table"] == "nodes"]
    for store in (bob, tenants):
        for name in names:
            with pytest.raises(StoreError, match="no message"):
                await store.chain(name)
    [key] = [str(row["cache_key"]) async for row in ann.export() if row["table"] == "context_summaries"]
    assert await bob.find_compile(key) is None and await tenants.find_compile(key) is None


async def test_a_request_of_another_owner_has_no_number(tenants: Tenants):
    ann, bob = await both(tenants)
    [mine], [theirs] = await ann.views(), await bob.views()
    assert mine.id is not None and theirs.id is not None
    assert await ann.view(mine.id) == mine and await bob.view(mine.id) is None


async def test_a_saved_request_is_read_back_unchanged(tenants: Tenants):
    ann = tenants.scoped(ANN)
    raw = talk(2)
    entry = request(raw, Talk("a summary", "and"), compile=compiled(raw.ids[0], cache_key="k"))
    saved = await ann.save(entry)
    made = replace(compiled(raw.ids[0], cache_key="k"), owner=ANN)
    assert saved == replace(entry.record, id=1, summary_id=1, compile=made, owner=ANN)
    assert await ann.view(1) == saved and await ann.save(entry) == saved


async def test_deleting_and_pruning_leave_other_owners_alone(tenants: Tenants):
    ann, bob = await both(tenants)
    assert await ann.delete("s") == 1
    assert await ann.sessions() == [] and await ann.delete("s") == 0
    assert await bob.transcript("s") == talk(3).bodies and await bob.find_compile("k")
    await ann.save(request(talk(2), created_at=days_ago(40)))
    await bob.save(request(talk(4), created_at=days_ago(40)))
    assert await ann.prune(older_than_days=30) == 1
    assert len(await bob.views()) == 2 and await ann.views() == []


async def test_a_deletion_leaves_what_conversations_of_other_owners_had_left(tenants: Tenants):
    stores = [tenants, tenants.scoped(ANN), tenants.scoped(BOB)]
    for store in stores:
        for answer in ("first", "second"):
            await store.archive("s", "", talk(1).then(answer))
    before = [[row async for row in store.export()] for store in stores[1:]]
    await tenants.delete("s")
    after = [[row async for row in store.export()] for store in stores[1:]]
    assert after == before and all("first" in str(rows) for rows in after)
    assert "first" not in str([row async for row in tenants.export()])
    await tenants.scoped(ANN).delete("s")
    assert [row async for row in tenants.scoped(ANN).export()] == []
    assert [row async for row in tenants.scoped(BOB).export()] == before[1]


async def test_a_deletion_for_every_owner_leaves_the_forks_of_each(tenants: Tenants):
    """A fork, and a conversation that says the same elsewhere, keep what they share with the deleted one."""
    stores = await both(tenants)
    fork, elsewhere = talk(3).then("another way", "as you like"), Talk("before", *talk(3).texts)
    for store in stores:
        await store.save(request(fork, session_id="fork"))
        await store.save(request(elsewhere, session_id="elsewhere"))
    assert await tenants.scoped(None).delete("s") == 2
    for store in stores:
        assert await store.transcript("s") == []
        assert await store.transcript("fork") == fork.bodies
        assert await store.transcript("elsewhere") == elsewhere.bodies


async def test_an_unscoped_reader_sees_every_owner_and_cannot_write(tenants: Tenants):
    await both(tenants)
    every = tenants.scoped(None)
    assert [(info.owner, info.sessions, info.requests) for info in await every.owners()] == [(ANN, 1, 1), (BOB, 1, 1)]
    assert {session.owner for session in await every.sessions()} == {ANN, BOB}
    with pytest.raises(StoreError, match="every owner"):
        await every.save(request(talk(1)))
    with pytest.raises(StoreError, match="every owner"):
        await every.erase()
    assert await every.prune(keep_last=0) == 2


async def test_an_export_holds_the_rows_of_its_owner(tenants: Tenants):
    ann, bob = await both(tenants)
    await ann.save(request(Talk("said by Ann alone")))
    every = [row async for row in tenants.scoped(None).export()]
    mine, theirs = [row async for row in ann.export()], [row async for row in bob.export()]
    assert len(every) == len(mine) + len(theirs) and [row async for row in tenants.export()] == []
    assert "said by Ann alone" in json.dumps(mine) and "said by Ann alone" not in json.dumps(theirs)
    assert BOB not in json.dumps(mine)


async def test_memories_of_two_owners_are_apart(tenants: Tenants):
    ann, bob = (SQLiteMemory("s", cast(SQLStore, tenants.scoped(name))) for name in (ANN, BOB))
    for memory, what in ((ann, "tea"), (bob, "coffee")):
        await memory.remember("the user lives in Oslo")
        await memory.remember(f"the user drinks {what}")
    first = await ann.commit("before")
    await ann.remember("the user moved to Rome")
    second = await ann.commit("after")
    assert [match.memory.text for match in await bob.search("what does the user drink, tea?", 5)][:1] != []
    assert not any("tea" in match.memory.text for match in await bob.search("tea", 5))
    assert [fact.text for fact in (await ann.diff(first, second)).added] == ["the user moved to Rome"]
    assert await bob.log() == [] and [commit.id for commit in await ann.log()] == [second, first]
    await ann.checkout(first)
    assert await ann.search("Rome moved", 5) == []
    with pytest.raises(Exception, match="no commit"):
        await bob.checkout(first)


SECRET = "the password of Ann is correct-horse-battery"


async def test_an_erased_owner_leaves_nothing_behind(tmp_path: Path):
    """Neither words nor ids, neither plain nor compressed, neither in the file nor in its log, nor in a text index."""
    store = SQLiteStore(tmp_path / "context.db")
    _, bob = await both(store)
    ann = store.scoped(ANN)
    texts = [f"{SECRET}, message {number} of the talk about horses, batteries and staples" * 3 for number in range(9)]
    raw = Talk(*texts)
    made = compiled(raw.ids[4], cache_key="of Ann", summary=SECRET, compiled_prompt=SECRET * 40, raw_output=SECRET)
    await ann.save(request(raw, Talk(SECRET, "and"), compile=made, cycle=cycle(raw.ids[4], SECRET), session_id="Ann's"))
    await ann.save_layers("Ann's", "", SECRET, after=0)
    memory = SQLiteMemory("Ann's", ann)
    await memory.remember(SECRET)
    await memory.commit("a commit of Ann")
    db = sqlite3.connect(store.path)
    held = [body for (body,) in db.execute("SELECT body FROM contents")]
    theirs = {body for (body,) in db.execute("SELECT body FROM contents WHERE hash NOT LIKE '%/%'")}
    db.close()
    kept = {row["body"] async for row in bob.export() if row["table"] == "contents"}
    assert await ann.erase() >= 2
    assert await ann.sessions() == [] == [row async for row in ann.export()]
    assert await bob.transcript("s") == talk(3).bodies and await store.verify() == ()
    await store.close()
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    for word in (SECRET, "horse", "batteries", "staples", "Ann", ANN, "ann@"):
        assert word.encode() not in left, word
    gone = [body for body in held if _text(body) not in kept and body not in theirs]
    assert any(isinstance(body, bytes) for body in gone) and gone
    for body in gone:
        data = body if isinstance(body, bytes) else body.encode()
        assert data not in left


async def test_data_read_by_others_during_an_erasure_is_overwritten_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = SQLiteStore(tmp_path / "context.db", busy_timeout_ms=10)
    await store.save(request(Talk(SECRET), session_id="Ann's"))
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM views").fetchone()
    assert await store.erase() == 1
    assert "removed data stays on disk until no other process is reading or writing this record" in caplog.text
    reader.close()
    await store.save(request(talk(1), session_id="another"))
    assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.iterdir())
    await store.close()


@pytest.mark.slow
async def test_an_erased_owner_leaves_nothing_in_a_database_that_was_vacuumed(postgres: Cluster, postgres_url: str):
    """Neither plain nor compressed, neither in tables and indexes nor in what the planner has sampled of them."""
    database = urlsplit(postgres_url).path[1:]
    bob = open_place(postgres_url).scoped(BOB)
    ann = bob.scoped(ANN)
    for store, word in ((bob, "harmless"), (ann, SECRET)):
        raw = Talk(*(f"{word}, message {number} of the talk about many things" * 9 for number in range(5)))
        made = compiled(raw.ids[2], cache_key="k", summary=word, raw_output=word)
        options = {"compile": made, "cycle": cycle(raw.ids[2], word * 50)}
        await store.save(request(raw, Talk(word, "and"), **options, session_id=f"of {word}"))
        await store.save_layers(f"of {word}", "", word, after=0)
        memory = SQLiteMemory(f"of {word}", store)
        await memory.remember(word)
        await memory.commit(f"about {word}")
    (folder,) = postgres.run(f"SELECT oid FROM pg_database WHERE datname = '{database}'")[0]
    words = (SECRET, "horse", ANN)

    def held() -> set[str]:
        postgres.run("CHECKPOINT", database)
        files = [file.read_bytes() for file in (postgres.folder / "data" / "base" / str(folder)).iterdir()]
        pieces = [*files, *(piece for file in files for piece in _inflated(file))]
        return {word for word in words if any(word.encode() in piece for piece in pieces)}

    postgres.run("ANALYZE", database)
    assert held() == set(words)
    assert any(SECRET.encode() in piece for piece in _inflated(_bodies(postgres, database)))
    await ann.erase()
    assert held()  # until the server writes the files anew
    for _ in range(5):  # the server may be reading statistics of its own meanwhile
        postgres.run("VACUUM (FULL, ANALYZE)", database)
        postgres.run("VACUUM FULL pg_catalog.pg_statistic", database)
        if not (left := held()):
            break
    assert left == set()
    assert await bob.verify() == () and len(await bob.views()) == 1
    await bob.close()


def _bodies(postgres: Cluster, database: str) -> bytes:
    return b"".join(row[0] for row in postgres.run("SELECT body FROM context_compiler.contents", database))


def _inflated(data: bytes) -> Iterator[bytes]:
    """Whatever in some bytes can be decompressed."""
    for found in re.finditer(rb"\x78[\x01\x9c]", data):
        with suppress(zlib.error):
            yield zlib.decompressobj().decompress(data[found.start() : found.start() + 8_192], 65_536)


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else zlib.decompress(body).decode()


@pytest.mark.parametrize("name", ["a\x00b", "x" * 401, "\ud800", 7])
async def test_a_name_that_no_store_can_keep_is_refused(name: str):
    with pytest.raises(SettingsError, match="owner="):
        MemoryStore().scoped(name)


async def test_any_other_name_is_an_owner(tenants: Tenants):
    names = ["O'Neil; DROP TABLE", "ünïcode 用户", "a/b", "x" * 400, " ", "%", "'", "null"]
    for name in names:
        await tenants.scoped(name).save(request(Talk(f"hello {name}")))
    assert [info.owner for info in await tenants.scoped(None).owners()] == sorted(names)
    for name in names:
        assert await tenants.scoped(name).transcript("s") == Talk(f"hello {name}").bodies


async def test_a_message_under_the_wrong_owner_is_a_defect(tmp_path: Path):
    store = SQLiteStore(tmp_path / "context.db")
    ann, bob = await both(store)
    assert await ann.transcript("s") == await bob.transcript("s")
    await store.close()
    db = sqlite3.connect(store.path)
    [mine, theirs] = [tip for (tip,) in db.execute("SELECT view_tip FROM views ORDER BY id")]
    assert mine != theirs
    db.execute("UPDATE views SET view_tip = ? WHERE view_tip = ?", (mine, theirs))
    db.commit()
    db.close()
    assert any("another owner" in defect for defect in await store.verify())
    assert ask(store.path, "SELECT count(DISTINCT view_tip) FROM views") == [(1,)]
    await store.close()
