"""A record that fails costs no run: it is told, and left alone after a while."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from context_compiler import MemoryStore, Record, SQLiteStore
from context_compiler.errors import StoreError
from context_compiler.messages.bodies import load_messages
from context_compiler.middleware import store_access
from context_compiler.record.store import open_store
from context_compiler.record.values import Action, Chain, Cycle, Entry
from context_compiler.resilience import Breaker
from tests.middleware.faulty import BUDGET, Faulty, locked
from tests.support.agents import Notes, compiler, run


class Broken:
    """A store whose every method raises."""

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **given: Any) -> Any:
            raise ZeroDivisionError(name)

        return fail


METHODS = "save archive find_compile find_cycle close chain view views summaries sessions transcript delete prune"
METHODS += " verify export"
for method in METHODS.split():
    setattr(Broken, method, lambda self, *args, **given: self.__getattr__("work")())


async def test_a_store_whose_every_method_raises_fails_no_run() -> None:
    faulty = Faulty(Notes(), store=Broken())
    for _ in range(4):
        await faulty.ask()
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET
    assert faulty.kinds == ["ZeroDivisionError"] * 3 + ["StoreError"] * 4, "then it is left alone"
    assert "is not used for a while" in str(faulty.errors[-1])
    assert faulty.statuses == ["compiled"] + ["cycle"] * 3, "what is in memory goes on"
    with pytest.raises(ZeroDivisionError):
        await faulty.ours.views()


@pytest.mark.parametrize("owner", ["", "maria"])
@pytest.mark.parametrize("hook", ["late", "scoped", "perform", "announce_compile", "withdraw_compile"])
async def test_a_custom_store_that_raises_synchronously_fails_no_run(hook: str, owner: str) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError(hook)

    store: Any = type("Mine", (MemoryStore,), {hook: fail})()
    faulty = Faulty(Notes(), store=store, owner=lambda _: owner)
    await faulty.ask(conversation_id="one")
    faulty.history = faulty.done.messages
    await faulty.ask(conversation_id="one")
    await faulty.ask(conversation_id="one", message_history=faulty.history[-9:])
    assert faulty.done.output == "done" and faulty.talker.last.tokens <= BUDGET
    assert "fallback" not in str(faulty.statuses)
    assert all("is not used" in str(error) or type(error) is ZeroDivisionError for error in faulty.errors)
    assert faulty.errors or hook in ("announce_compile", "withdraw_compile", "scoped"), "what nobody needs is not told"


async def test_a_store_is_not_used_if_nothing_is_recorded() -> None:
    faulty = Faulty(Notes(), store=Broken(), record="off")
    for _ in range(3):
        await faulty.ask()
    assert not faulty.errors and faulty.statuses == ["compiled", "cycle", "cycle"]


async def test_a_custom_store_that_returns_invalid_values_fails_no_run() -> None:
    class Nonsense(MemoryStore):
        async def save(self, entry: Entry) -> Any:
            return 42

    faulty = Faulty(Notes(), store=Nonsense())
    await faulty.ask()
    assert faulty.done.output == "done" and faulty.kinds == ["TypeError"]


async def test_a_record_with_damaged_messages_fails_no_run_and_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "context.db"
    faulty = Faulty(Notes(), store=file)
    await faulty.ask(conversation_id="one")
    with closing(sqlite3.connect(file)) as db:
        db.execute("UPDATE contents SET body = 'no message'")
        db.commit()
    again = Faulty(Notes(), store=file)
    await again.ask(conversation_id="one", message_history=again.history[-10:])
    assert again.done.output == "done" and "StoreError" in again.kinds
    with pytest.raises(StoreError, match="verify the record"):
        await again.ours.transcript("one")


async def test_the_wait_for_a_locked_record_is_limited_by_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def opened(store: Any, *, busy_timeout_ms: int) -> Any:
        waits.append(busy_timeout_ms)
        return open_store(store, busy_timeout_ms=busy_timeout_ms)

    monkeypatch.setattr(store_access, "open_store", opened)
    faulty = Faulty(Notes(), store=tmp_path / "context.db", timeout=0.1)
    await faulty.ask()
    release = locked(tmp_path / "context.db")
    await faulty.ask()
    release()
    assert faulty.done.output == "done" and waits == [100]


@pytest.mark.slow
async def test_a_locked_record_leaves_a_model_the_time_to_write_its_summary(tmp_path: Path) -> None:
    made = SQLiteStore(tmp_path / "context.db")
    assert await made.prune() == 0
    await made.close()
    release = locked(tmp_path / "context.db")
    faulty = Faulty(Notes(), store=tmp_path / "context.db", timeout=2)
    await faulty.ask()
    release()
    assert faulty.statuses[0].startswith("compiled") and "Goal" in faulty.views[0].summary


class Unwritable(MemoryStore):
    """A store that can be read and not written, as on a full disk."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def save(self, entry: Entry) -> Record:
        self.calls += 1
        raise StoreError("the disk is full")

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        self.calls += 1
        raise StoreError("the disk is full")


async def test_a_store_that_can_be_read_but_not_written_is_paused_too() -> None:
    store = Unwritable()
    faulty = Faulty(store=store)
    for _ in range(6):
        await faulty.ask()
    assert {str(error)[:16] for error in faulty.errors} == {"the disk is full"} and len(faulty.errors) >= 6
    assert "is not used for a while" in str(faulty.errors[-1]), "each request that is not recorded is reported"


class Unreadable(MemoryStore):
    """A store that can be written and not read; the methods in `says` raise what it maps them to."""

    def __init__(self, **says: str) -> None:
        super().__init__()
        self.says, self.calls = says, list[str]()

    async def actions(self, session_id: str, vault_name: str = "") -> list[Action]:
        self._fail("actions")
        return await super().actions(session_id, vault_name)

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        self._fail("find_cycle")
        return await super().find_cycle(tips, config)

    async def views(self, *given: Any, **wanted: Any) -> list[Record]:
        self._fail("views")
        return await super().views(*given, **wanted)

    async def save(self, entry: Entry) -> Record:
        self._fail("save")
        return await super().save(entry)

    def _fail(self, method: str) -> None:
        if method in self.says:
            self.calls.append(method)
            raise StoreError(self.says[method])


async def test_an_error_repeated_in_one_request_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Unreadable(actions="unreachable", views="unreachable", save="unreachable")
    faulty = Faulty(store=store)
    await faulty.ask()
    assert store.calls == ["actions", "views", "save"] and [str(error) for error in faulty.errors] == ["unreachable"]
    assert [record.getMessage() for record in caplog.records if "unreachable" in record.getMessage()] == [
        "context_compiler: StoreError: unreachable"
    ]


async def test_errors_of_requests_that_are_only_recorded_are_reported_once_too() -> None:
    store, errors = Unreadable(views="unreachable", save="unreachable"), list[Exception]()
    ours = compiler(budget=BUDGET, store=store, on_error=errors.append).recorder()
    await run(Agent(TestModel(), capabilities=[ours]), "hello", conversation_id="known")
    assert set(store.calls) == {"views", "save"} and {str(error) for error in errors} == {"unreachable"}


async def test_each_request_reports_its_errors_again() -> None:
    faulty = Faulty(store=Unreadable(find_cycle="no cycles", views="no requests"))
    await faulty.ask()
    assert [str(error) for error in faulty.errors] == ["no cycles", "no requests"]
    faulty = Faulty(store=Unreadable(actions="no actions"))
    for _ in range(4):
        await faulty.ask()
    assert [str(error) for error in faulty.errors] == ["no actions"] * 4


class Damaged(MemoryStore):
    """A store that gives back cycles with a call but not its answer."""

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        cycle = await super().find_cycle(tips, config)
        state = json.loads(cycle.state) if cycle else None
        if cycle is None or not isinstance(state, dict):
            return cycle
        return replace(cycle, state=json.dumps({**state, "kept": state["kept"][1:2]}))


async def test_an_unusable_cycle_fails_once_in_a_run_and_is_replaced() -> None:
    store = Damaged()
    await Faulty(store=store).ask()
    later = Faulty(store=store, script=[[("look", {"path": "a"})], [("look", {"path": "b"})], "done"])
    await later.ask()
    assert later.statuses == ["fallback", "cycle", "cycle"] and len(later.errors) == 1
    assert later.talker.last.tokens <= BUDGET


class Hanging(Broken):
    """A store none of whose methods ever answers."""

    async def _hang(self, *args: Any, **given: Any) -> Any:
        await asyncio.Event().wait()

    def __getattr__(self, name: str) -> Any:
        return self._hang


class HangingFile(SQLiteStore):
    """One whose own part does not answer, in front of a file that does."""

    async def save(self, entry: Entry) -> Record:
        await asyncio.Event().wait()
        return await super().save(entry)

    async def announce_compile(self, *args: Any, **given: Any) -> Any:
        await asyncio.Event().wait()


for method in METHODS.split():
    setattr(Hanging, method, Hanging._hang)


async def test_the_wait_for_a_hanging_store_is_limited_by_the_timeout() -> None:
    faulty = Faulty(store=Hanging(), timeout=0.3)
    for _ in range(4):
        await asyncio.wait_for(faulty.ask(), 20)
    assert faulty.done.output == "done" and faulty.statuses[1:] == ["cycle"] * 3
    told = "Hanging did not answer within 0.3 s (timeout)"
    assert str(faulty.errors[0]) == told and all(str(error).startswith(told) for error in faulty.errors)


async def test_a_file_store_that_hangs_in_custom_code_is_limited_by_the_timeout_too(tmp_path: Path) -> None:
    faulty = Faulty(Notes(), store=HangingFile(tmp_path / "record.db"), timeout=1.0)
    await asyncio.wait_for(faulty.ask(), 20)
    assert faulty.done.output == "done"
    assert {str(error) for error in faulty.errors} == {"HangingFile did not answer within 1 s (timeout)"}


@pytest.mark.parametrize("fault", ["hangs", "raises"])
async def test_a_listener_that_hangs_or_raises_fails_no_run_and_is_reported(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    async def listen(view: object) -> None:
        if fault == "raises":
            raise ValueError("a mistake")
        await asyncio.Event().wait()

    async def hear(error: Exception) -> None:
        heard.append(str(error))
        await asyncio.Event().wait()

    faulty = Faulty(on_view=listen, on_error=hear, timeout=0.3)
    await asyncio.wait_for(faulty.ask(), 20)
    assert faulty.done.output == "done"
    assert heard == ["a mistake" if fault == "raises" else "on_view took longer than 0.3 s (timeout)"]
    told = [record.getMessage() for record in caplog.records]
    assert told[-1].endswith("on_error failed: ContextCompilerError: on_error took longer than 0.3 s (timeout)")


def test_a_breaker_is_still_open_after_thousands_of_failures() -> None:
    breaker = Breaker()
    for _ in range(2_000):
        breaker.failed()
    assert breaker.open


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("until", ["the answer", "the next request", "the end of the third run"])
async def test_a_locked_file_fails_no_run_and_its_requests_are_recorded_later(tmp_path: Path, until: str) -> None:
    file = tmp_path / "record.db"
    await SQLiteStore(file).verify()
    release = locked(file)

    def answer(messages: object, info: object) -> str:
        if until == "the answer":
            release()
        return "done"

    faulty = Faulty(Notes(), script=answer, store=file)
    await faulty.ask("What is first?", conversation_id="talk")
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"} and "locked" in str(faulty.errors[0])
    told = faulty.views[0].record
    assert told is not None and told.id is None
    words = ["first", "second", "third"][: {"the answer": 1, "the next request": 2}.get(until, 3)]
    for word in words[1:]:
        if until == "the next request":
            release()
        faulty.history = faulty.done.messages
        await faulty.ask(f"What is {word}?", conversation_id="talk")
    if until == "the end of the third run":
        release()
        await faulty.ours.aclose()
    store = SQLiteStore(file)
    raws = [load_messages(await store.chain(str(view.raw_tip))) for view in reversed(await store.views("talk"))]
    assert [f"What is {word}?" in str(raw[-1]) for word, raw in zip(words, raws, strict=True)] == [True] * len(words)
    assert len(await store.transcript("talk")) == len(faulty.done.messages) and await store.verify() == ()


def corrupt(folder: Path) -> Path:
    file = folder / "record.db"
    file.write_bytes(b"this is no database " * 500)
    return file


def a_folder(folder: Path) -> Path:
    (folder / "record.db").mkdir()
    return folder / "record.db"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "record.db"


@pytest.mark.parametrize("make", [corrupt, a_folder, below_a_file])
async def test_a_store_that_cannot_be_opened_fails_no_run(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    faulty = Faulty(Notes(), store=make(tmp_path))
    await faulty.ask()
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}
    assert faulty.statuses == ["compiled"]
    with pytest.raises(StoreError):
        await faulty.ours.views()


async def test_a_read_only_file_fails_no_run(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    await Faulty(Notes(), store=file).ask()
    faulty = Faulty(Notes(), store=SQLiteStore(file, read_only=True))
    await faulty.ask("another question")
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}
    assert faulty.statuses == ["cycle"], "what is there can be read"


async def test_a_file_deleted_while_open_fails_no_run(tmp_path: Path) -> None:
    file = tmp_path / "record.db"

    def gone(messages: Any, info: Any) -> Any:
        for path in tmp_path.iterdir():
            path.unlink()
        return [("look", {"path": "a"})] if len(faulty.talker.sent) < 3 else "done"

    faulty = Faulty(Notes(), gone, store=file)
    await faulty.ask()
    assert faulty.done.output == "done" and not faulty.errors
    record = faulty.views[0].record
    assert record is not None and len(await faulty.ours.transcript(record.session_id)) == len(faulty.done.messages)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
async def test_a_full_disk_fails_no_run(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "record.db")
    await store.verify()

    class Full(SQLiteStore):
        async def save(self, entry: Any) -> Any:
            raise StoreError(f"{self.path}: the disk is full")

    faulty = Faulty(Notes(), store=Full(tmp_path / "record.db"))
    await faulty.ask()
    assert faulty.done.output == "done" and set(faulty.kinds) == {"StoreError"}


DAMAGE = ("{", '["x"]', "3", '{"cycle": 3}', b"\xff\xfe\x00", "[" * 5_000)
TABLES = (("actions", "state"), ("cycles", "config"), ("views", "ledger"), ("context_summaries", "sections_dropped"))


@pytest.mark.parametrize(("table", "column"), TABLES)
async def test_a_damaged_row_fails_no_run_and_no_manual_step(table: str, column: str, tmp_path: Path) -> None:
    file = tmp_path / "context.db"
    talk = Faulty(Notes(), store=file)
    await talk.ask(conversation_id="one")
    await talk.ours.pin("one", "turn 1")
    await talk.ours.compile_now("one")
    talk.history = talk.done.messages
    await talk.ask(conversation_id="one")
    await talk.ours.aclose()
    for damage in DAMAGE:
        with closing(sqlite3.connect(file)) as db:
            newest = f"(SELECT max(rowid) FROM {table})"
            assert db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {newest}", (damage,)).rowcount
            db.commit()
        again = Faulty(Notes(), store=file)
        again.history = talk.history
        await again.ask(conversation_id="one")
        assert again.done.output == "done" and again.talker.last.tokens <= BUDGET
        assert "fallback" not in str(again.statuses) and not again.errors
        assert await again.ours.views("one") and (await again.ours.compile_now("one")).session == "one"
        await again.ours.pin("one", "turn 2")
        assert await again.ours.pins("one")
        assert await SQLiteStore(file).verify(), "it is no secret"
        await again.ours.aclose()
