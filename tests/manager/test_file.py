"""Memories in a file: apart by session, removed with it, proved, and restored although the process dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from context_compiler.errors import CompileError, SettingsError, StoreError
from context_compiler.manager import SQLiteMemory
from context_compiler.record.store import SQLiteStore
from tests.manager.fakes import Scribe, managed, said, talk
from tests.support.warm import python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "context.db"


def ask(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


async def test_sessions_have_separate_memories(path: Path) -> None:
    store = SQLiteStore(path)
    memory, other = SQLiteMemory("one", store), SQLiteMemory("other", store)
    await memory.remember("heron is here")
    assert await other.search("heron", 5) == []
    commit = await memory.commit("first")
    assert [info.id for info in await memory.log()] == [commit] and await other.log() == []
    await store.close()


async def test_a_session_that_is_deleted_leaves_nothing_behind(path: Path) -> None:
    store = SQLiteStore(path)
    gone, kept = SQLiteMemory("gone", store), SQLiteMemory("kept", store)
    for memory in (gone, kept):
        manager = managed(Scribe("A secret heron."), memory, recent_turns_to_keep=1, checkpoint_interval=2)
        await talk(manager, 4)
        await manager.summarize()
    await store.delete("gone")
    assert await store.verify() == ()
    assert await gone.search("heron", 5) == [] and await gone.log() == [] and await gone.scores() == []
    assert await kept.search("heron", 5) and len(await kept.log()) == 2 and len(await kept.scores()) == 4
    await store.delete("kept")
    await store.close()
    for table in ("memories", "commits", "spaces", "scores", "live_memories", "contents", "nodes", "memories_fts"):
        assert ask(path, f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_a_deleted_memory_is_nowhere_in_the_files(path: Path) -> None:
    store = SQLiteStore(path)
    await SQLiteMemory("s", store).remember("The password is swordfish.")
    await store.delete("s")
    await store.close()
    assert b"swordfish" not in path.read_bytes()


async def test_pruning_takes_no_memory_away(path: Path) -> None:
    store = SQLiteStore(path)
    memory = SQLiteMemory("s", store)
    manager = managed(Scribe(), memory, checkpoint_interval=2)
    await talk(manager, 5)
    before = manager.to_json()
    await manager.rollback()
    await store.prune(older_than_days=0)
    assert await store.verify() == ()
    assert len(await memory.log()) == 2
    again = managed(Scribe(), memory)
    assert await again.resume() and again.turn_count == 4
    assert before
    await store.close()


async def test_the_record_shows_how_a_summary_was_made(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    scribe = Scribe("A move was planned.")
    manager = managed(scribe, memory, recent_turns_to_keep=1)
    await talk(manager, 3)
    done = await manager.summarize()
    await talk(manager, 1, start=3)
    [row] = await memory.store.summaries("s")
    assert (row.summary, row.raw_output, row.compiled_prompt) == (done.summary, done.summary, scribe.prompts[0])
    assert row.status.startswith("ok;") and row.template_name == "manager_summary" and row.survival == done.survival
    assert b"answer 1 " in (await memory.store.chain(row.covered_tip))[-1]
    await memory.close()


async def test_the_record_of_a_summary_that_could_not_be_kept_is_kept_with_the_next_turn(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    manager = managed(Scribe("A move was planned."), memory, recent_turns_to_keep=1)
    await talk(manager, 3)
    refusal = "CREATE TRIGGER refusal BEFORE INSERT ON context_summaries BEGIN SELECT RAISE(ABORT, 'refused'); END"
    await memory.store.perform(lambda db: db.execute(refusal))
    done = await manager.summarize()
    await memory.store.perform(lambda db: db.execute("DROP TRIGGER refusal"))
    assert await memory.store.summaries("s") == []
    await talk(manager, 1, start=3)
    assert [row.summary for row in await memory.store.summaries("s")] == [done.summary]
    await memory.close()


@pytest.mark.parametrize(
    ("answer", "status", "raw", "error"),
    [
        (ConnectionError("the line is down"), "failed", None, "the line is down"),
        ("", "refused", "", "the answer is empty"),
        ("words " * 2_000, "refused", ("words " * 2_000).strip(), "is not shorter than"),
    ],
)
@pytest.mark.parametrize("within_a_turn", [True, False])
async def test_an_unusable_summary_is_recorded(
    path: Path, answer: str | Exception, status: str, raw: str | None, error: str, within_a_turn: bool
) -> None:
    memory, scribe = SQLiteMemory("s", path), Scribe(answer)
    manager = managed(scribe, memory, recent_turns_to_keep=1, max_tokens=250, auto_summarize=within_a_turn)
    await talk(manager, 1 if within_a_turn else 2)
    if within_a_turn:
        result = await manager.process_turn("and what now? " * 40)
        assert "summary: CompileError" in result.trouble[0] and not result.summarization_triggered
    else:
        with pytest.raises(CompileError, match=error):
            await manager.summarize()
    row, *_ = await memory.store.summaries("s")
    assert row.status.startswith(f"{status};") and error in str(row.error)
    assert (row.summary, row.raw_output, row.survival) == (None, raw, None)
    assert row.compiled_prompt == scribe.prompts[-1]
    assert await memory.store.verify() == ()
    await memory.close()


async def test_pruning_keeps_the_record_of_a_summary_until_it_is_older_than_the_age(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    manager = managed(Scribe("A move was planned."), memory, recent_turns_to_keep=1)
    await talk(manager, 3)
    await manager.summarize()
    for limits in ({"older_than_days": 365.0}, {"keep_last": 1}, {"older_than_days": 365.0, "keep_last": 1}):
        await memory.store.prune(**limits)
        assert len(await memory.store.summaries("s")) == 1, limits
    await memory.store.prune(older_than_days=0.0)
    assert await memory.store.summaries("s") == []
    await memory.close()


async def test_quotes_made_without_a_model_are_recorded(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    manager = managed("none", memory, recent_turns_to_keep=1)
    await talk(manager, 3)
    done = await manager.summarize()
    [row] = await memory.store.summaries("s")
    assert row.summary == done.summary and row.compiled_prompt is None
    assert row.status.startswith("deterministic;") and "no model was asked" in row.status
    assert await memory.store.verify() == ()
    await memory.close()


async def test_a_rolled_back_turn_is_still_on_the_record(path: Path) -> None:
    store = SQLiteStore(path)
    manager = managed(Scribe(), SQLiteMemory("s", store), checkpoint_interval=99)
    await manager.checkpoint("empty")
    await talk(manager, 2)
    await manager.process_turn("the last one")
    await manager.rollback()
    await store.prune()
    [[tip]] = [row for row in ask(path, "SELECT turns_tip FROM scores ORDER BY id DESC LIMIT 1")]
    assert b"the last one" in (await store.chain(str(tip)))[-1]
    await store.close()


async def test_an_edit_of_the_file_is_detected(path: Path) -> None:
    for damage, told in (
        ("UPDATE scores SET quality = 1.0", "scores 1"),
        ("UPDATE commits SET message = 'forged'", "commits"),
        ("DELETE FROM live_memories", "live_memories"),
        ("UPDATE memories SET position = 7", "memories"),
        ("UPDATE spaces SET state = state || ' '", "spaces 1"),
        ("UPDATE spaces SET turns_tip = NULL", "spaces 1"),
        ("UPDATE spaces SET head = NULL", "spaces 1"),
        ("UPDATE memories SET content = (SELECT hash FROM contents WHERE hash <> content LIMIT 1)", "memories"),
    ):
        path.unlink(missing_ok=True)
        memory = SQLiteMemory("s", path)
        await memory.remember("heron")
        await talk(managed(Scribe(), memory, checkpoint_interval=1), 1)
        await memory.close()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(damage)
        assert any(told in defect for defect in await memory.store.verify()), damage
        await memory.close()


async def test_a_checkpoint_of_a_long_session_writes_only_new_rows(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    manager = managed("none", memory, auto_summarize=False, checkpoint_interval=999)
    await talk(manager, 100, words=5)
    await manager.checkpoint("first")
    before = ask(path, "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM contents)")[0]
    await talk(manager, 1, start=100, words=5)
    await manager.checkpoint("second")
    after = ask(path, "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM contents)")[0]
    assert after[0] == int(str(before[0])) + 2 and int(str(after[1])) <= int(str(before[1])) + 4
    await memory.close()


async def test_a_file_that_is_not_a_record_is_reported_with_its_path(path: Path) -> None:
    path.write_text("no database " * 100)
    with pytest.raises(StoreError, match="context.db"):
        await SQLiteMemory("s", path).remember("heron")
    manager = managed(Scribe(), SQLiteMemory("s", path))
    result = await manager.process_turn("Hello.")
    assert result.trouble and manager.add_response("Hi.")


def test_a_memory_needs_a_session_name() -> None:
    for wrong in ("", "  ", None):
        with pytest.raises(SettingsError, match="session="):
            SQLiteMemory(wrong)  # pyright: ignore[reportArgumentType]


DYING = """
import asyncio, os, signal, sys, time
from context_compiler.manager import SQLiteMemory

async def go_back_and_forth(path, commits) -> None:
    memory = SQLiteMemory("s", path)
    await memory.log()
    os.write(1, b"begins")
    while True:
        for commit in commits:
            await memory.checkout(commit)

for pause, path in zip((0.0, 0.013, 0.031, 0.057, 0.101), sys.argv[3:], strict=True):
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(said, 1)
        asyncio.run(go_back_and_forth(path, sys.argv[1:3]))
    os.read(heard, 6)
    time.sleep(pause)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
async def test_a_checkout_is_complete_even_if_the_process_is_killed(path: Path, tmp_path: Path) -> None:
    async def look(path: Path) -> None:
        memory = SQLiteMemory("s", path)
        assert await memory.store.verify() == ()
        current = (await memory.log(1))[0].id
        assert current in (early, late)
        for name, size in ((early, 300), (late, 600)):
            await memory.checkout(name)
            assert len(await memory.search("early late", 2_000)) > 0
            [(live,)] = ask(path, "SELECT count(*) FROM live_memories")
            assert live == size
        await memory.close()

    memory = SQLiteMemory("s", path)
    commits: list[str] = []
    for name in ("early", "late"):
        for number in range(300):
            await memory.remember(f"{name} {number}")
        commits.append(await memory.commit(name))
    await memory.close()
    early, late = commits
    copies = [shutil.copy(path, tmp_path / f"{number}.db") for number in range(5)]
    subprocess.run([python(), "-c", DYING, early, late, *copies], cwd=ROOT, check=True, timeout=100)
    for copy in copies:
        await look(copy)


async def test_a_session_that_another_manager_kept_meanwhile_is_not_overwritten(path: Path) -> None:
    told: list[Exception] = []
    memories = [SQLiteMemory("s", path) for _ in range(3)]
    first = managed("none", memories[0], on_error=told.append)
    second, third = (managed("none", memory) for memory in memories[1:])
    await first.process_turn("from the first")
    assert await second.resume() and (await second.process_turn("from the second")).trouble == ()
    late = await first.process_turn("too late")
    assert "another manager has kept it meanwhile" in late.trouble[0] and isinstance(told[0], StoreError)
    assert await third.resume() and said(third.transcript()) == ["from the first", "from the second"]
    assert await first.resume() and (await first.process_turn("now it may")).trouble == ()
    for memory in memories:
        await memory.close()


async def test_a_session_deleted_meanwhile_is_saved_again(path: Path) -> None:
    store, memory = SQLiteStore(path), SQLiteMemory("s", path)
    manager = managed("none", memory)
    await manager.process_turn("one")
    await store.delete("s")
    assert (await manager.process_turn("two")).trouble == ()
    assert len(await store.sessions()) == 1
    await store.close()
    await memory.close()


async def test_a_manager_does_not_conflict_with_itself_after_a_cancelled_turn(path: Path) -> None:
    memory = SQLiteMemory("s", path)
    manager = managed("none", memory)
    for pause in (0.0, 0.001, 0.002, 0.004, 0.008):
        turn = asyncio.create_task(manager.process_turn("cancelled"))
        await asyncio.sleep(pause)
        turn.cancel()
        await asyncio.wait([turn])
    assert (await manager.process_turn("whole")).trouble == ()
    await memory.close()
