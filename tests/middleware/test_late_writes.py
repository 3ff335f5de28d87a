"""Writes that a record could not take in time: what is deleted meanwhile stays deleted, and none is lost silently."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from context_compiler import Record, SQLiteStore
from context_compiler.errors import StoreError
from context_compiler.messages.bodies import load_messages
from context_compiler.middleware import earlier, late
from context_compiler.record import rows
from context_compiler.record.database import Moment
from context_compiler.record.schema import APPLICATION_ID
from context_compiler.record.values import Entry
from tests.middleware.faulty import Faulty, locked
from tests.support.agents import Notes
from tests.support.warm import python

pytestmark = pytest.mark.usefixtures("impatient")

SECRET = "What is the pelican's name?"
PATIENT_S = 30.0


@dataclass
class Place:
    """A record that others can hold."""

    address: Any
    lock: Callable[[], Awaitable[Callable[[], Awaitable[None]]]]
    """Keeps everybody from writing until what it returns is called."""

    def open(self, patience_s: float = 2.0) -> Any:
        """A store of its own, which gives up after so many seconds: a server on a busy machine needs some."""
        if isinstance(self.address, Path):
            return SQLiteStore(self.address)
        from context_compiler.record.pool import Postgres
        from context_compiler.record.postgres import PostgresStore

        return PostgresStore(Postgres(self.address, patience_s=patience_s))


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as undo:

        async def lock_file() -> Callable[[], Awaitable[None]]:
            release = await asyncio.to_thread(locked, tmp_path / "context.db")
            undo.callback(release)
            return lambda: asyncio.to_thread(release)

        async def lock_database() -> Callable[[], Awaitable[None]]:
            connection: Any = await pytest.importorskip("asyncpg").connect(made.address)
            await connection.execute(f"BEGIN; SELECT pg_advisory_xact_lock({APPLICATION_ID}, 1)")
            undo.push_async_callback(connection.close)
            return connection.close

        if request.param == "sqlite":
            made = Place(tmp_path / "context.db", lock_file)
        else:
            made = Place(request.getfixturevalue("postgres_url"), lock_database)
        store = made.open(PATIENT_S)
        assert await store.verify() == ()
        await store.close()
        yield made


async def delete(store: Any, place: Place) -> None:
    await store.scoped("ann").delete("talk")


async def erase(store: Any, place: Place) -> None:
    await store.scoped("ann").erase()


async def by_another_store(store: Any, place: Place) -> None:
    other = place.open(PATIENT_S)
    await other.scoped("ann").delete("talk")
    await other.close()


async def by_all_that_is_old(store: Any, place: Place) -> None:
    other = place.open(PATIENT_S).scoped(None)
    await other.prune(keep_last=0)
    await other.close()


async def by_another_process(store: Any, place: Place) -> None:
    work = "import asyncio, sys; from context_compiler.record.store import open_place;"
    work += "asyncio.run(open_place(sys.argv[1]).scoped('ann').delete('talk'))"
    await asyncio.to_thread(subprocess.run, [python(), "-c", work, str(place.address)], check=True)


WAYS = [delete, erase, by_another_store, by_all_that_is_old, by_another_process]


def given_up(faulty: Faulty) -> list[str]:
    return [str(error) for error in faulty.errors if "will not be made" in str(error)]


@pytest.mark.parametrize(
    ("place", "way", "recorded"),
    [
        *(("sqlite", way, recorded) for way in WAYS for recorded in (False, True)),
        ("postgres", delete, True),
        ("postgres", by_another_process, False),
        ("postgres", by_all_that_is_old, False),
    ],
    indirect=["place"],
)
async def test_data_deleted_before_a_delayed_write_stays_deleted(place: Place, way: Any, recorded: bool) -> None:
    store = place.open()
    faulty = Faulty(Notes(), store=store, owner="ann")
    if recorded:
        await faulty.ask("first", conversation_id="talk")
    release = await place.lock()
    await faulty.ask(SECRET, conversation_id="talk")
    assert not given_up(faulty)
    await release()
    await way(store, place)
    await faulty.ask("something else", conversation_id="other")
    everyone = store.scoped(None)
    assert [info.session_id for info in await everyone.sessions()] == ["other"]
    assert not any("pelican" in str(row) for row in [row async for row in everyone.export()])
    (told,) = given_up(faulty)
    assert told.startswith("2 writes that waited") and "something was deleted" in told
    assert await everyone.verify() == ()
    await store.close()
    if isinstance(place.address, Path):
        assert b"pelican" not in b"".join(file.read_bytes() for file in place.address.parent.iterdir())


async def test_an_earlier_deletion_does_not_block_a_delayed_write(place: Place) -> None:
    store = place.open()
    faulty = Faulty(Notes(), store=store)
    await faulty.ask("first", conversation_id="talk")
    assert await store.delete("talk") == 1
    release = await place.lock()
    await faulty.ask(SECRET, conversation_id="talk")
    await release()
    await store.prune(older_than_days=30)
    await faulty.ask("something else", conversation_id="other")
    assert [info.session_id for info in await store.sessions()] == ["other", "talk"]
    assert await store.verify() == () and not given_up(faulty)
    await store.close()


class Refusing(SQLiteStore):
    """A store that refuses requests of a conversation: at first it is busy, and then the request itself is wrong."""

    code = sqlite3.SQLITE_BUSY

    async def save(self, entry: Entry) -> Record:
        if entry.record.session_id == "wrong":
            error = sqlite3.OperationalError("this cannot be done")
            error.sqlite_errorcode = Refusing.code
            raise StoreError(str(error)) from error
        return await super().save(entry)


async def test_a_write_that_fails_for_its_own_reasons_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Refusing(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    await faulty.ask(conversation_id="wrong")
    assert not given_up(faulty)
    monkeypatch.setattr(Refusing, "code", sqlite3.SQLITE_ERROR)  # such as "no such table"
    for _ in range(late.ATTEMPTS):
        await faulty.ask(conversation_id="right")
    assert len(await store.views("right")) == late.ATTEMPTS and await store.views("wrong") == []
    (told,) = given_up(faulty)
    assert told.startswith("1 write that waited") and "cannot be done" in told and await store.verify() == ()


@pytest.mark.parametrize("name, value, why", [("LATE", 2, "wait"), ("LATE_S", -1.0, "waited for more than")])
async def test_delayed_writes_that_are_too_old_or_too_many_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float, why: str
) -> None:
    monkeypatch.setattr(late, name, value)
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    await store.verify()
    release = locked(store.path)
    for session in ("one", "two"):
        await faulty.ask(conversation_id=session)
    release()
    await faulty.ours.aclose()
    assert {info.session_id for info in await store.sessions()} == ({"two"} if name == "LATE" else set[str]())
    assert sum(int(error.split()[0]) for error in given_up(faulty)) == (2 if name == "LATE" else 4)
    assert all(why in error for error in given_up(faulty))


async def test_the_first_request_waits_too_where_nothing_could_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    faulty = Faulty(Notes(), store=folder / "context.db")
    await faulty.ask(conversation_id="talk")
    assert faulty.ours.last_view is not None and not given_up(faulty)
    folder.unlink()
    await faulty.ours.aclose()
    assert len(await faulty.ours.views("talk")) == 1 and not given_up(faulty)


async def test_nothing_is_delayed_for_an_unknown_owner(tmp_path: Path) -> None:
    store, owners = SQLiteStore(tmp_path / "context.db"), ["ann"]
    await store.verify()

    def named(context: object) -> str:
        return owners[0]

    faulty = Faulty(Notes(), store=store, owner=named)
    release = locked(store.path)
    for session in ("one", "two"):  # with two writes each, after which the record is left alone
        await faulty.ask(conversation_id=session)
    owners.clear()
    await faulty.ask(SECRET, conversation_id="three")
    release()
    await faulty.ours.aclose()
    rows = [str(row) async for row in store.scoped(None).export()]
    assert {info.session_id for info in await store.scoped("ann").sessions()} == {"one", "two"}
    assert not any("pelican" in row for row in rows) and not given_up(faulty)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork")
def test_after_a_fork_only_the_parent_has_the_delayed_writes(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    asyncio.run(store.verify())
    faulty = Faulty(Notes(), store=store)
    release = locked(store.path)
    asyncio.run(faulty.ask("first", conversation_id="talk"))
    release()
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(faulty.ours.aclose())
            code = len(asyncio.run(store.sessions()))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(faulty.ours.aclose())
    assert len(asyncio.run(store.views("talk"))) == 1 and asyncio.run(store.verify()) == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork")
def test_a_process_forked_while_the_record_is_slow_records_its_requests(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db", busy_timeout_ms=60_000)
    faulty = Faulty(Notes(), store=store, record_timeout=0.05)

    async def ask_in_child() -> None:
        await faulty.ask("first", conversation_id="child")
        async with asyncio.timeout(PATIENT_S):
            while not await store.views("child"):
                await asyncio.sleep(0.01)
        await faulty.ours.aclose()

    async def main() -> None:
        await faulty.ask("first", conversation_id="parent")
        release = locked(store.path)
        await faulty.ask("second", conversation_id="parent")
        release()
        child = os.fork()
        if not child:
            code = 1
            try:
                asyncio.run(ask_in_child())
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        await faulty.ours.aclose()
        assert [len(await store.views(name)) for name in ("parent", "child")] == [2, 1] and await store.verify() == ()

    asyncio.run(main())


async def test_reads_and_manual_steps_include_delayed_writes(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    faulty.history = []
    await faulty.ask("What of the staging database?", conversation_id="talk")
    for read in ("transcript", "pin"):
        faulty.history = faulty.done.messages
        release = locked(store.path)
        await faulty.ask(f"What is the pelican's {read}?", conversation_id="talk")
        release()
        if read == "transcript":
            assert len(await faulty.ours.transcript("talk")) == len(faulty.done.messages)
            assert len(await faulty.ours.views("talk")) == 2
        else:
            pin = await faulty.ours.pin("talk", len(faulty.done.messages) - 2)
            assert pin.text == "What is the pelican's pin?"
    assert [view.turn_index for view in await store.views("talk")] == [2, 1, 0] and await store.verify() == ()


async def test_manual_steps_do_not_use_deleted_data_from_memory(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(store=store)
    await faulty.ask(SECRET, conversation_id="talk")
    await store.delete("talk")
    for name, *arguments in (("pin", "pelican"), ("compile_now",), ("preview",), ("undo_compile",)):
        with pytest.raises(StoreError, match="nothing of it is on the record"):
            await getattr(faulty.ours, name)("talk", *arguments)
    assert [row async for row in store.export()] == [] and not faulty.errors


@pytest.mark.parametrize("waits", [False, True])
async def test_a_window_is_not_joined_with_deleted_messages_from_memory(place: Place, waits: bool) -> None:
    store = place.open()
    faulty = Faulty(store=store, budget=100_000)
    faulty.history = []
    for prompt in (SECRET, "What of the staging database?", "And of the other one?"):
        faulty.history = (await faulty.ask(prompt, conversation_id="talk")).messages
    faulty.history = faulty.history[-2:]
    release = await place.lock()
    await faulty.ask("first", conversation_id="talk")
    assert "pelican" in faulty.talker.last.text  # what waits is known to nobody else
    await release()
    if not waits:
        await faulty.ours.aclose()
    assert await store.delete("talk") == 3 + (not waits)
    await faulty.ask("second", conversation_id="talk")
    assert "pelican" not in faulty.talker.last.text and "other one" in faulty.talker.last.text
    assert not any("pelican" in str(row) for row in [row async for row in store.export()])
    await store.close()


async def test_a_window_is_not_joined_with_pruned_messages_days_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(store=store, budget=100_000)
    faulty.history = []
    for prompt in (SECRET, "And of the other one?"):
        faulty.history = (await faulty.ask(prompt, conversation_id="talk")).messages
    with sqlite3.connect(store.path, isolation_level=None) as db:
        db.execute("UPDATE views SET created_at = '2001'")
    db.close()
    assert await store.prune(older_than_days=30) == 2
    monkeypatch.setattr(earlier, "FRESH_S", -1.0)
    faulty.history = faulty.history[-2:]
    await faulty.ask("and now?", conversation_id="talk")
    assert "pelican" not in faulty.talker.last.text and len(await store.transcript("talk")) == 4


class Slow(SQLiteStore):
    """A store that takes for what comes late as long as it is told."""

    entered: list[str]
    gate: asyncio.Event

    async def save(self, entry: Entry) -> Record:
        if self.tried is not None:
            self.entered.append(entry.record.session_id)
            await self.gate.wait()
        return await super().save(entry)


async def test_delayed_requests_of_a_conversation_stay_in_order_with_any_writer(tmp_path: Path) -> None:
    store = Slow(tmp_path / "context.db")
    store.entered, store.gate = [], asyncio.Event()
    store.gate.set()
    await store.verify()
    faulty, other = Faulty(Notes(), store=store), Faulty(Notes())
    other.agent = faulty.agent
    release = locked(store.path)
    await faulty.ask("first", conversation_id="talk")
    release()
    store.entered.clear()
    store.gate.clear()
    beside = asyncio.create_task(other.ask("something else", conversation_id="other"))
    while not store.entered:
        await asyncio.sleep(0.01)
    faulty.history = faulty.done.messages
    await faulty.ask("second", conversation_id="talk")
    store.gate.set()
    await beside
    await faulty.ours.aclose()
    newer, older = [str(load_messages(await store.chain(str(view.raw_tip)))[-1]) for view in await store.views("talk")]
    assert "second" in newer and "first" in older
    assert len(await store.transcript("talk")) == len(faulty.done.messages) and store.entered == [
        "talk",
        "other",
        "talk",
    ]
    assert len(await store.views("other")) == 1 and await store.verify() == ()


class Dropping(SQLiteStore):
    """A store whose writes fail with an error that nobody has named, while `fails`."""

    fails = True

    async def save(self, entry: Entry) -> Record:
        if Dropping.fails:
            raise RuntimeError("can't start new thread")
        return await super().save(entry)

    async def archive(self, *args: Any, **given: Any) -> None:
        if Dropping.fails:
            raise RuntimeError("can't start new thread")
        await super().archive(*args, **given)


async def test_requests_that_met_an_unknown_error_are_all_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dropping, "fails", True)
    store = Dropping(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    for _ in range(5):
        await faulty.ask(conversation_id="talk")
    assert len(faulty.errors) >= 5 and "is not used for a while" in str(faulty.errors[-1])
    monkeypatch.setattr(Dropping, "fails", False)
    await faulty.ours.aclose()
    assert len(await store.views("talk")) == 5 and not given_up(faulty) and await store.verify() == ()
    await store.close()


async def test_lost_writes_are_counted_on_the_record_once_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    await store.verify()
    monkeypatch.setattr(late, "LATE_S", -1.0)
    release = locked(store.path)
    await faulty.ask(conversation_id="talk")
    release()
    await faulty.ask(conversation_id="talk")
    await faulty.ask(conversation_id="talk")
    count = await store.perform(rows.lost)
    assert count == 2 == sum(int(error.split()[0]) for error in given_up(faulty))
    assert sum("2 writes were lost" in str(error) for error in faulty.errors) == 1
    await store.close()


async def test_a_request_lost_for_its_own_content_is_counted_and_the_record_stays_in_use(
    tmp_path: Path,
) -> None:
    def refuse(text: str) -> str:
        if "secret" in text:
            raise ValueError("a secret")
        return text

    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store, redact=refuse)
    for _ in range(4):
        await faulty.ask("my secret", conversation_id="talk")
    assert await store.perform(rows.lost) == 8, "each request, and each history with its answer"
    assert await store.views("talk") == []
    assert all("a secret" in str(error.__cause__) for error in faulty.errors), "the record was never left alone"
    await faulty.ask("hello", conversation_id="other")
    assert len(await store.views("other")) == 1
    await store.close()


async def test_writes_given_up_at_the_end_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteStore(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store)
    await store.verify()
    release = locked(store.path)
    await faulty.ask(conversation_id="talk")
    release()
    monkeypatch.setattr(late, "LATE_S", -1.0)
    await faulty.ours.aclose()
    assert await store.perform(rows.lost) == sum(int(error.split()[0]) for error in given_up(faulty)) > 0
    await store.close()


async def test_a_request_waits_for_the_record_no_longer_than_its_limit_and_is_recorded_behind_its_answer(
    tmp_path: Path,
) -> None:
    store = SQLiteStore(tmp_path / "context.db", busy_timeout_ms=60_000)
    faulty = Faulty(Notes(), store=store, record_timeout=0.05)
    await faulty.ask("first", conversation_id="talk")
    await faulty.ours.pin("talk", "turn 1")
    release = locked(store.path)
    await asyncio.wait_for(faulty.ask("second", conversation_id="talk"), 30)
    await asyncio.wait_for(faulty.ask("third", conversation_id="talk"), 30)
    view = faulty.ours.last_view
    assert view is not None and view.record is not None and view.record.id is None
    assert "(record_timeout)" in str(faulty.errors[0])
    await asyncio.to_thread(release)
    await faulty.ours.aclose()
    assert len(await store.views("talk")) == 3 and not given_up(faulty) and await store.verify() == ()
    await store.close()


async def test_writes_that_an_event_loop_leaves_when_it_stops_are_made(tmp_path: Path) -> None:
    class Gated(SQLiteStore):
        gates = 0
        """Saves that may pass."""

        async def save(self, entry: Entry) -> Record:
            while Gated.gates <= 0:
                await asyncio.sleep(0.01)
            Gated.gates -= 1
            return await super().save(entry)

    store, loop = Gated(tmp_path / "context.db"), asyncio.new_event_loop()
    faulty = Faulty(Notes(), store=store, record_timeout=0.05)
    for gates in (1, 0, 0, 1):  # the last one takes the first late save, and stops within the second
        Gated.gates = gates
        await asyncio.to_thread(loop.run_until_complete, faulty.ask("and now?", conversation_id="talk"))
    Gated.gates = 9
    await faulty.ours.aclose()
    assert len(await store.views()) == 4 and not given_up(faulty) and await store.verify() == ()
    await store.close()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    await asyncio.to_thread(loop.run_until_complete, asyncio.sleep(0))
    loop.close()


async def test_delayed_writes_are_found_while_another_thread_begins_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ignore(_: object) -> None: ...

    writes, loop, opened = late.LateWrites(ignore), asyncio.get_running_loop(), ExitStack()

    async def begin() -> None:
        opened.enter_context(writes.first_attempt("other", Moment(), ignore))

    def begins_meanwhile() -> bool:
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: asyncio.run(begin()))
        thread.start()
        thread.join()
        return True

    with opened, writes.first_attempt("own", Moment(), ignore):
        monkeypatch.setattr(loop, "is_running", begins_meanwhile)
        assert not writes.take_over()
        assert writes.take_over() and [write.conversation for write in writes.waiting] == ["other"]


async def test_closing_waits_for_the_late_writes_that_another_thread_makes(tmp_path: Path) -> None:
    is_open = threading.Event()

    class Slow(SQLiteStore):
        async def save(self, entry: Entry) -> Record:
            while not is_open.is_set():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            return await super().save(entry)

    store, loop = Slow(tmp_path / "context.db"), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    faulty = Faulty(Notes(), store=store, record_timeout=0.05)
    for _ in range(5):
        asked = asyncio.run_coroutine_threadsafe(faulty.ask("and now?", conversation_id="talk"), loop)
        await asyncio.wrap_future(asked)
    is_open.set()
    await asyncio.sleep(0.15)  # that thread has begun with the writes
    await faulty.ours.aclose()
    assert len(await store.views()) == 5
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    await store.close()
    loop.close()


async def test_requests_do_not_delay_writes_faster_than_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "LATE", 8)

    class Slow(SQLiteStore):
        async def save(self, entry: Entry) -> Record:
            await asyncio.sleep(0.6 if entry.record.session_id == "first" else 0.03)
            return await super().save(entry)

    store = Slow(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store, record_timeout=0.5)
    for session in ("first", *["talk"] * 24):
        await faulty.ask("and now?", conversation_id=session)
    await faulty.ours.aclose()
    assert any("record_timeout" in str(error) for error in faulty.errors) and not given_up(faulty)
    assert len(await store.views()) == 25 and await store.verify() == ()
    await store.close()


async def test_a_program_ends_after_the_record_has_received_late_writes(tmp_path: Path) -> None:
    script = f"""
import asyncio, sqlite3, threading, time
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from context_compiler import ContextCompiler

agent = Agent(TestModel(), capabilities=[ContextCompiler(store={str(tmp_path / "context.db")!r}, record_timeout=0.05)])
agent.run_sync("first", conversation_id="talk")
lock = sqlite3.connect({str(tmp_path / "context.db")!r}, isolation_level=None, check_same_thread=False)
lock.execute("BEGIN IMMEDIATE")
agent.run_sync("second", conversation_id="talk")
threading.Timer(0.5, lambda: lock.execute("COMMIT")).start()
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=True, timeout=60)
    store = SQLiteStore(tmp_path / "context.db")
    assert len(await store.views("talk")) == 2
    await store.close()


async def test_a_late_load_drops_no_pin(tmp_path: Path) -> None:
    class Frozen(SQLiteStore):
        gate = asyncio.Event()

        async def perform_together(self, reads: Any) -> Any:
            await Frozen.gate.wait()
            return await super().perform_together(reads)

    Frozen.gate.set()
    store = Frozen(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=store, record_timeout=0.05)
    await faulty.ask("first", conversation_id="talk")
    await faulty.ours.pin("talk", "turn 3")
    pinned = (await faulty.ours.pins("talk"))[0].text
    await faulty.ask("second", conversation_id="talk")
    Frozen.gate.clear()
    await asyncio.wait_for(faulty.ask("third", conversation_id="talk"), 30)
    assert pinned[:40] in faulty.talker.last.text
    Frozen.gate.set()
    await faulty.ours.aclose()
    await store.close()


async def test_a_deletion_under_a_fast_clock_refuses_no_later_pin(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open(PATIENT_S)
    faulty = Faulty(Notes(), store=store)
    for session in ("talk", "old"):
        await faulty.ask("first", conversation_id=session)
    with monkeypatch.context() as fast:
        real = time.time
        fast.setattr(time, "time", lambda: real() + 86_400)
        await store.delete("old")
    await faulty.ours.pin("talk", "turn 2")
    assert len(await faulty.ours.pins("talk")) == 1
    await store.close()
