"""A record copied to another place and back is the same record; a copy that was interrupted is finished by the next."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from context_compiler.cli.root import app
from context_compiler.errors import StoreError
from context_compiler.layers import Layers
from context_compiler.manager.memory import SQLiteMemory
from context_compiler.record import browse
from context_compiler.record.copying import copy_record
from context_compiler.record.store import MemoryStore, SQLStore, open_place
from context_compiler.record.values import UNDO, Action, now, page_name
from tests.record.entries import Talk, compiled, cycle, request, talk


async def fill(store: SQLStore) -> None:
    """A row in every table, with gaps between the numbers, for two owners."""
    raw = talk(4, about="the weather in Ålesund \x00")
    for owner in ("", "ann"):
        one = store.scoped(owner)
        await one.save(request(talk(2), session_id="gone"))
        made = compiled(raw.ids[2], cache_key="k")
        await one.save(request(raw, Talk("a summary", "and"), compile=made, cycle=cycle(raw.ids[2], '{"a": 1}')))
        await one.save(request(raw.then("more", "words"), run_id=None))
        await one.save_layers("s", "", '{"layers": 1}', after=0)
        page = f'{{"entities": "of {owner} \ufdd0"}}'
        state = json.dumps({"id_registry": {"pages": {"3": page_name(page)}}})
        await one.save_layer_pages("pages", "", state, {page_name(page): page}, after=0)
        memory = SQLiteMemory("s", one)
        await memory.remember("Ann lives in Oslo")
        first = await memory.commit("one")
        await memory.remember("Bob lives in Rome")
        await memory.commit("two")
        await memory.checkout(first)
        await one.delete("gone")


async def content(store: SQLStore) -> list[str]:
    """Every row without the numbers that depend on its place."""
    found = [dict(row) async for row in store.scoped(None).export()]
    numbers = {"sessions": count(), "context_summaries": count()}
    names: dict[tuple[str, int], str] = {}
    for row in found:
        table = str(row["table"])
        if table in numbers:
            names[table, row["id"]] = f"{table} {next(numbers[table])}"  # type: ignore[index]
    for row in found:
        for column, table in (("session", "sessions"), ("summary", "context_summaries")):
            if isinstance(row.get(column), int):
                row[column] = names[table, row[column]]  # type: ignore[index]
        if row.pop("seal", None) is not None:
            del row["id"]
    return sorted(map(json.dumps, found))


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLStore]:
    place: Any = tmp_path / "copy.db"
    yield open_place(request.getfixturevalue("record_url") if request.param == "postgres" else place)


async def test_a_record_goes_to_another_place_and_back(target: SQLStore):
    source, back = MemoryStore(), MemoryStore()
    await fill(source)
    first = await copy_record(source, target, lambda table: None)
    again = await copy_record(source, target, lambda table: None)
    last = await copy_record(target, back, lambda table: None)
    assert first.defects == again.defects == last.defects == ()
    assert sum(again.copied.values()) == 0 and again.present == first.copied
    assert await content(target) == await content(back) == await content(source)
    ann = target.scoped("ann")
    assert [one.memory.text for one in await SQLiteMemory("s", ann).search("Oslo Rome", 5)] == ["Ann lives in Oslo"]
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


async def test_states_name_compiles_by_their_numbers_in_the_copy(target: SQLStore):
    source = MemoryStore()
    await target.save(request(talk(2), compile=compiled(), session_id="other"))
    state = json.dumps({"summary": "…", "summary_id": 1})
    await source.save(request(talk(3), compile=compiled(), cycle=cycle(talk(3).tip, state)))
    undo = Action(kind=UNDO, tip=talk(3).tip, state=json.dumps({"cycle": state, "before": 1}), created_at=now())
    await source.save_action("s", "", undo, after=0)
    assert (await copy_record(source, target, lambda table: None)).defects == ()
    (made,) = [one.summary_id for one in await target.views("s")]
    (found,), (action,) = await target.session_cycles("s"), await target.actions("s")
    assert made != 1 and json.loads(found.state)["summary_id"] == made
    assert json.loads(json.loads(action.state)["cycle"]) == json.loads(found.state)
    assert sum((await copy_record(source, target, lambda table: None)).copied.values()) == 0
    await target.close()


async def test_layers_that_the_copy_has_already_keep_the_pages_that_they_list(target: SQLStore):
    source, there = MemoryStore(), Layers(target)
    for layers, number in ((Layers(source), 1), (there, 2)):
        async with layers.turn("s") as turn:
            turn.registry.register_read("recipes", number, f"Recipe {number}")
    result = await copy_record(source, target, lambda table: None)
    assert result.defects == () and (result.copied["layer_pages"], result.present["layer_pages"]) == (0, 1)
    async with there.turn("s") as turn:
        assert [one.label for one in turn.registry] == ["Recipe 2"]
    await target.close()


async def test_a_row_that_was_changed_is_not_sealed_anew(tmp_path: Path):
    source = open_place(tmp_path / "context.db")
    await fill(source)
    await source.close()
    with sqlite3.connect(tmp_path / "context.db") as db:
        db.execute("UPDATE views SET tokens_sent = 1")
    with pytest.raises(StoreError, match="views 2 of the source was changed since it was written"):
        await copy_record(source, MemoryStore(), lambda table: None)
    await source.close()


def test_the_command_says_what_it_did(tmp_path: Path, postgres_url: str, sync_loop: Any):
    source = open_place(tmp_path / "context.db")
    sync_loop.run_until_complete(fill(source))
    sync_loop.run_until_complete(source.close())
    for places, code in (((str(tmp_path / "context.db"), postgres_url), 0), ((postgres_url, postgres_url), 2)):
        done = CliRunner().invoke(app, ["copy", *places, "--json"])
        assert done.exit_code == code, done.output
        if not code:
            said = json.loads(done.stdout)
            assert said["copied"]["views"] == 4 and said["defects"] == []
