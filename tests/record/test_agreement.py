"""A file and a memory that go through the same hold the same rows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from context_compiler.record.store import MemoryStore, SQLiteStore, Store
from tests.record.entries import Talk, compiled, cycle, days_ago, request


async def timeless(store: Store) -> list[str]:
    """The rows without what the clock says of a session, and the seal over it."""
    found = [dict(row) async for row in store.export()]
    clocked = [row | {"created_at": "", "seal": ""} if row["table"] == "sessions" else row for row in found]
    return sorted(str(row) for row in clocked)


@pytest.mark.parametrize("seed", range(2))
async def test_both_stores_agree_after_anything(tmp_path: Path, seed: int):
    memory, file = MemoryStore(), SQLiteStore(tmp_path / "context.db")
    draw = Random(seed)
    for step in range(40):
        await act(draw.getstate(), step, memory)
        await act(draw.getstate(), step, file)
        draw.random()
        assert await timeless(memory) == await timeless(file), f"after step {step}"
    assert await file.verify() == ()
    assert await memory.views() == await file.views()
    assert [info.session_id for info in await memory.sessions()] == [info.session_id for info in await file.sessions()]
    await file.close()


async def act(state: object, step: int, store: Store) -> None:
    """One random thing that users do to a store; the same one for the same state."""
    draw = Random()
    draw.setstate(state)  # pyright: ignore[reportArgumentType]
    session = draw.choice("abc")
    if draw.random() < 0.1:
        await store.delete(session)
        return
    if draw.random() < 0.15:
        await store.prune(older_than_days=draw.choice([None, 5, 20]), keep_last=draw.choice([None, 0, 2]))
        return
    raw = Talk(*(f"{draw.choice('xy')}" for _ in range(draw.randint(1, 7))))
    if session == "c":
        await store.archive(draw.choice("bc"), "", raw)
        return
    used = await store.find_compile(str(draw.randint(0, 3)))
    made = compiled(raw.ids[0], session_id=session, cache_key=str(draw.randint(0, 3)), turn_index=step)
    await store.save(
        request(
            raw,
            draw.choice([None, Talk("summary", *raw.texts[-2:])]),
            session_id=session,
            request_index=draw.randint(0, 3),
            created_at=days_ago(draw.choice([0, 10, 30])),
            summary_id=used[0] if used and draw.random() < 0.5 else None,
            compile=None if draw.random() < 0.5 else made,
            cycle=None if draw.random() < 0.5 else cycle(raw.tip, str(step % 4)),
        )
    )
