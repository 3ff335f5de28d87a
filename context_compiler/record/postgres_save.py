"""A request saved in PostgreSQL in two round trips: one statement looks up what is there, one function writes the rest.

`queries.save` does the same for every request, in about twenty. What is unusual is left to it: a history that was
changed, or is shared with another conversation, a request or a compile that is stored already, and a transaction that
met another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from context_compiler import ids
from context_compiler.record import queries, rows
from context_compiler.record.database import Database
from context_compiler.record.dialect import NUMBERS, escape, search_rows
from context_compiler.record.pool import CONFLICTS
from context_compiler.record.queries import NEWEST, Additions, SessionKey
from context_compiler.record.rows import prefix, stored
from context_compiler.record.values import Entry, Record

if TYPE_CHECKING:
    from context_compiler.record.postgres import PostgresDatabase

_Columns = Mapping[str, rows.Column]
_NODE, _TEXT = ("id", "parent", "content", "position", "instructions"), ("node", "text", "words")

LOOK = """
SELECT s.id AS session, s.created_at, s.raw_tip, tip.position AS tip_position,
    ARRAY(SELECT id FROM {schema}.nodes WHERE id = ANY($4::text[])) AS nodes,
    ARRAY(SELECT hash FROM {schema}.contents WHERE hash = ANY($5::text[])) AS contents,
    EXISTS (
        SELECT FROM {schema}.views v WHERE v.session = s.id AND coalesce(v.run_id, '') = coalesce($6, '')
        AND v.request_index = $7 AND coalesce(v.raw_tip, '') = coalesce($8, '')
        AND coalesce(v.view_tip, '') = coalesce($9, '')
    ) OR EXISTS (SELECT FROM {schema}.context_summaries WHERE cache_key = $10) AS is_known,
    CASE WHEN s.id IS NULL THEN nextval('{schema}.sessions_numbers') END AS new_session,
    CASE WHEN $11 THEN nextval('{schema}.context_summaries_numbers') END AS new_summary,
    CASE WHEN $13::text IS NOT NULL AND NOT EXISTS (
        SELECT FROM {schema}.toolsets t WHERE t.session = s.id AND t.request_hash = $13
    ) THEN nextval('{schema}.toolsets_numbers') END AS new_tools,
    ARRAY(SELECT nextval('{schema}.cycles_numbers') FROM generate_series(1, $12)) AS cycles,
    nextval('{schema}.views_numbers') AS new_view
FROM (VALUES (1)) AS one
LEFT JOIN {schema}.sessions s ON s.session_id = $1 AND s.vault_name = $2 AND s.owner = $3
LEFT JOIN {schema}.nodes tip ON tip.id = s.raw_tip
"""
"""All that decides what a request adds, and numbers for its rows, which their seals cover."""

WRITE = (
    "SELECT {schema}.save_request($1, $2, $3, $4, $5, $6::text::json, $7::text::json, $8::text::json, $9,"
    " $10::text::json, $11::text::json, $12::text::json, $13::text::json)"
)


def save(db: Database, entry: Entry) -> Record:
    """Save an entry and return its record with `id` and `summary_id`; an entry saved before is only looked up."""
    with suppress(*CONFLICTS):
        if (saved := _save(cast("PostgresDatabase", db), entry)) is not None:
            return saved
    return queries.save(db, entry)


def _save(db: PostgresDatabase, entry: Entry) -> Record | None:
    """The record of a usual request; None if it is not one, and nothing was saved."""
    if entry.raw is None or not entry.raw.ids:
        return None
    key = queries.session_key(db, entry.record.session_id, entry.record.vault_name)
    own, record = prefix(key[2]), rows.complete_record(entry)
    record = replace(record, owner=key[2], compile=record.compile and replace(record.compile, owner=key[2]))
    cycles = [cycle for cycle in (entry.cycle, entry.blocks) if cycle is not None]
    tools = "" if entry.record.request_hash is None else entry.tools or ""
    kept = {_name(own, cycle.state): cycle.state for cycle in cycles}
    found = _look(db, key, entry, record, tools, [*kept, _name(own, tools)])
    added = None if found["is_known"] else _additions(db, entry, own, found)
    if added is None:
        return None

    if found["new_tools"]:
        kept[_name(own, tools)] = tools
    messages, contents = added.messages, _contents(added, own, kept, found["contents"])
    session, is_new = found["session"] or found["new_session"], found["session"] is None
    created_at = rows.stamp(entry.record.created_at) if is_new else found["created_at"]
    made = [] if entry.compile is None else [rows.summary_row(entry.compile, session, own)]
    if made and record.summary_id is None:
        record = replace(record, summary_id=found["new_summary"])
    states = [(session, cycle.tip, cycle.config, _name(own, cycle.state)) for cycle in cycles]
    toolset = (session, rows.plain(record.request_hash or ""), _name(own, tools))
    db.commit(
        WRITE.format(schema=db.schema),
        db.patience_ms,
        [*dict.fromkeys(added.anchors)],
        [*kept],
        [*contents],
        [*contents.values()],
        _json([dict(zip(_NODE, queries.node_row(one, own), strict=True)) for one in messages]),
        _json([dict(zip(_TEXT, row, strict=True)) for row in search_rows(queries.searchable_texts(messages))]),
        _json(_sealed("sessions", session, (key[0], key[1], own + entry.raw.ids[-1], created_at, key[2]))),
        is_new,
        _json([_sealed("context_summaries", found["new_summary"], row) for row in made]),
        _json([_sealed("cycles", number, row) for number, row in zip(found["cycles"], states, strict=True)]),
        _json([_sealed("toolsets", found["new_tools"], toolset)] if found["new_tools"] else []),
        _json([_sealed("views", found["new_view"], rows.view_row(record, session, own))]),
    )
    return replace(record, id=found["new_view"])


def _look(db: PostgresDatabase, key: SessionKey, entry: Entry, record: Record, tools: str, texts: Sequence[str]) -> Any:
    """The row of `LOOK` for an entry."""
    own = prefix(key[2])
    chains = [chain for chain in (entry.raw, entry.view) if chain is not None]
    reusable = None if entry.compile is None else rows.reusable_key(entry.compile)
    return db.run(
        LOOK.format(schema=db.schema),
        *map(escape, key),
        [name for chain in chains for name in queries.stored_names(chain, own)[-NEWEST:]],
        texts,
        None if record.run_id is None else escape(rows.plain(record.run_id)),
        record.request_index,
        stored(db, record.raw_tip),
        stored(db, record.view_tip),
        stored(db, reusable),
        entry.compile is not None,
        sum(cycle is not None for cycle in (entry.cycle, entry.blocks)),
        escape(rows.plain(record.request_hash or "")) if tools else None,
    ).fetchone()


def _contents(added: Additions, own: str, kept: Mapping[str, str], known: Sequence[str]) -> dict[str, bytes]:
    """Bodies of new messages and of texts that are not stored yet, by name."""
    bodies: dict[str, bytes | str] = {one.content: one.body for one in added.messages}
    bodies |= queries.instructions_of(added.messages, own)
    bodies |= {name: rows.pack(rows.to_bytes(text)) for name, text in kept.items() if name not in known}
    return {name: rows.PLAIN + body.encode() if isinstance(body, str) else body for name, body in bodies.items()}


def _name(prefix: str, text: str) -> str:
    """The name under which a text is stored."""
    return prefix + ids.blob_id(rows.to_bytes(text))


def _additions(db: PostgresDatabase, entry: Entry, own: str, found: Any) -> Additions | None:
    """The new messages of an entry; None if its history is not the saved one of its conversation, or more of that."""
    additions, known, fresh = Additions(), set[str](found["nodes"]), set[str]()
    for chain, is_raw in ((entry.raw, True), (entry.view, False)):
        if chain is None:
            continue
        names = queries.stored_names(chain, own)
        low = max(0, len(names) - NEWEST)
        start = low + queries.prefix_in(names[low:], known | fresh)
        if start == low > 0:
            start = queries.known_prefix(db, names[:low], fresh)
        if is_raw:
            tip, held = found["raw_tip"], (found["tip_position"] or 0) + 1
            if start != (0 if tip is None else held) or (tip is not None and names[held - 1] != tip):
                return None
        if start and names[start - 1] not in fresh:
            additions.anchors.append(names[start - 1])
        additions.messages.extend(queries.new_messages(chain, names, start, own, raw=is_raw))
        fresh.update(names[start:])
    return additions


def _sealed(table: str, number: int, values: Sequence[rows.Column]) -> _Columns:
    """The row of a table with its number and seal, by column."""
    named = dict(zip(rows.SEALED[table], values, strict=True))
    return {NUMBERS.get(table, "id"): number, **named, "seal": rows.seal(number, values)}


def _json(found: Sequence[_Columns] | _Columns) -> str:
    """Rows as JSON whose texts and numbers PostgreSQL can hold."""
    given = [found] if isinstance(found, Mapping) else found
    held = [{name: _value(value) for name, value in row.items()} for row in given]
    return json.dumps(held[0] if isinstance(found, Mapping) else held, ensure_ascii=False)


def _value(value: rows.Column) -> rows.Column:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return escape(value) if isinstance(value, str) else value
