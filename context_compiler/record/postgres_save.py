"""Saving a request to PostgreSQL in one round trip, in which a database function writes all new rows.

The new rows are computed from the state that the last request of the conversation left, which is remembered. The
function writes nothing if the record has changed since. The first request of a conversation in this process, and each
request with a compile, look up the stored state first, in a second round trip. `queries.save` needs about twenty round
trips and handles all other cases: changed or shared histories, requests and compiles that are already stored, and
conflicts with other transactions. A history without a request, which ends each run, is saved in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any, cast

from context_compiler import ids
from context_compiler.record import queries, rows
from context_compiler.record.database import Database
from context_compiler.record.dialect import escape
from context_compiler.record.pool import CONFLICTS
from context_compiler.record.postgres_database import PostgresDatabase
from context_compiler.record.queries import NEWEST, Additions, NewMessage, SessionKey
from context_compiler.record.rows import prefix, stored_name
from context_compiler.record.values import Chain, Entry, Record

LOOK_UP = """
SELECT s.id AS session, s.created_at, s.seal, s.raw_tip, tip.position AS tip_position,
    ARRAY(SELECT id FROM {schema}.nodes WHERE id = ANY($4::text[])) AS nodes,
    ARRAY(SELECT hash FROM {schema}.contents WHERE hash = ANY($5::text[])) AS contents,
    EXISTS (
        SELECT FROM {schema}.views v WHERE v.session = s.id AND coalesce(v.run_id, '') = coalesce($6, '')
        AND v.request_index = $7 AND coalesce(v.raw_tip, '') = coalesce($8, '')
        AND coalesce(v.view_tip, '') = coalesce($9, '')
    ) OR EXISTS (SELECT FROM {schema}.context_summaries WHERE cache_key = $10) AS is_known,
    EXISTS (SELECT FROM {schema}.toolsets t WHERE t.session = s.id AND t.request_hash = $12) AS has_tools,
    CASE WHEN s.id IS NULL THEN nextval('{schema}.sessions_numbers') END AS new_session,
    CASE WHEN $11 THEN nextval('{schema}.context_summaries_numbers') END AS new_summary
FROM (VALUES (1)) AS one
LEFT JOIN {schema}.sessions s ON s.session_id = $1 AND s.vault_name = $2 AND s.owner = $3
LEFT JOIN {schema}.nodes tip ON tip.id = s.raw_tip
"""
"""Read the stored state that determines the new rows of a request, and draw the row numbers that others refer to."""


@cache
def _call(schema: str, arguments: int) -> str:
    """The statement that calls the function of `save_request.sql` with a number of arguments."""
    return f"SELECT {schema}.save_request({', '.join(f'${number}' for number in range(1, arguments + 1))})"


MAX_CONVERSATIONS, MAX_TOOLS = 1_000, 32
"""Maximum number of remembered conversations, and of remembered tool hashes in each."""


@dataclass(slots=True, kw_only=True)
class Known:
    """The stored state of a conversation, as looked up or as the last request left it."""

    session: int
    created_at: str
    seal: str | None
    """Seal of the session row, which reveals any change; None if the session is new."""
    raw_tip: str | None
    length: int
    """Length of the raw history in messages."""
    nodes: Set[str]
    """Stored names of the last messages of its chains."""
    contents: Set[str]
    """Names of stored contents that the next request may repeat."""
    tools: Set[str]
    """Request hashes whose tools are stored."""
    view: Sequence[str] = ()
    """Stored names of the last messages of the last view."""
    summary: int | None = None
    """Row number drawn for a new compile; None if there is none."""


Memory = dict[SessionKey, Known]
"""Stored states of conversations, remembered as their last requests left them; the most recently used is the last."""


async def save_fast(db: PostgresDatabase, entry: Entry, memory: Memory) -> Record | None:
    """Save an entry that only continues a remembered conversation; return None, with nothing saved, for any other."""
    key = queries.session_key(db, entry.record.session_id, entry.record.vault_name)
    state = memory.get(key)
    if state is None or entry.compile is not None or entry.raw is None or not entry.raw.ids:
        return None
    written = await _write_fast(_Save(db, key, entry.raw, entry), state, memory)
    return written and written.record(entry)


async def archive_fast(
    db: PostgresDatabase, session_id: str, vault_name: str, raw: Chain, memory: Memory
) -> Written | None:
    """Save a raw history that only continues a remembered conversation; return None, with nothing saved, for others."""
    key = queries.session_key(db, session_id, vault_name)
    state = memory.get(key)
    if state is None or not raw.ids:
        return None
    return await _write_fast(_Save(db, key, raw), state, memory)


async def _write_fast(work: _Save, state: Known, memory: Memory) -> Written | None:
    added = work.additions(state, may_look_up=False)
    if added is None:
        return None
    del memory[work.key]  # after an error, the stored state is unknown
    with suppress(*CONFLICTS):
        return await work.write(state, added, memory)
    return None


def save(db: Database, entry: Entry, memory: Memory) -> Record:
    """Save an entry and return its record with `id` and `summary_id`; an already stored entry is only looked up."""
    key = queries.session_key(db, entry.record.session_id, entry.record.vault_name)
    state = memory.pop(key, None)
    made = entry.compile
    if entry.raw is not None and entry.raw.ids and (made is None or made.covered_tip in ("", *entry.raw.ids)):
        work = _Save(cast("PostgresDatabase", db), key, entry.raw, entry)
        if written := work.save(state if entry.compile is None else None, memory):
            return written.record(entry)
    return queries.save(db, entry)


def archive(db: Database, session_id: str, vault_name: str, raw: Chain, memory: Memory) -> Written | None:
    """Save a raw history without a request, as the newest history of its conversation."""
    key = queries.session_key(db, session_id, vault_name)
    state = memory.pop(key, None)
    if raw.ids and (written := _Save(cast("PostgresDatabase", db), key, raw).save(state, memory)):
        return written
    return queries.archive(db, session_id, vault_name, raw)


@dataclass(frozen=True, slots=True)
class Written:
    """Row numbers of what was written, and its owner."""

    number: int
    """Row number of the request; 0 for a history without a request."""
    summary: int | None
    """Row number of the compile whose summary the request contains."""
    owner: str

    def record(self, entry: Entry) -> Record:
        """Return the record of the entry that was written."""
        return rows.complete_record(entry, self.owner, id=self.number, summary_id=self.summary)


class _Save:
    """One save: a raw history, and the entry of its request if there is one."""

    def __init__(self, db: PostgresDatabase, key: SessionKey, raw: Chain, entry: Entry | None = None) -> None:
        self.db, self.key, self.prefix, self.raw, self.entry = db, key, prefix(key[2]), raw, entry
        self.view = entry and entry.view
        self.compile = entry and entry.compile
        self.created_at = entry.record.created_at if entry else datetime.now(UTC)
        self.tools = "" if entry is None or entry.record.request_hash is None else entry.tools or ""
        self.hash = rows.escape_surrogates(entry.record.request_hash or "") if entry else ""
        cycles = [cycle for cycle in (entry.cycle, entry.blocks) if cycle is not None] if entry else []
        self.states = {(cycle.tip, cycle.config): (self._name(cycle.state), cycle.state) for cycle in cycles}

    def save(self, state: Known | None, memory: Memory) -> Written | None:
        """Write the new rows, based on the remembered or else the looked-up state; None if this way cannot save it."""
        with suppress(*CONFLICTS):
            if written := self._write_from(state, memory):
                return written
        with suppress(*CONFLICTS):
            return self._write_from(self.look_up(), memory)
        return None

    def _write_from(self, state: Known | None, memory: Memory) -> Written | None:
        """Write the new rows, based on a state; None, with nothing written, without a state or if it does not fit."""
        if state is None or (added := self.additions(state)) is None:
            return None
        return self.db.wait(self.write(state, added, memory))

    def look_up(self) -> Known | None:
        """Look up the stored state of the conversation; None if the request or its compile is already stored."""
        db, record = self.db, self.entry and self.entry.record
        texts = [name for name, _ in self.states.values()] + ([self._name(self.tools)] if self.tools else [])
        reusable = None if self.compile is None else rows.reusable_key(self.compile)
        raw_tip, view_tip = rows.tips(self.entry) if self.entry else (None, None)
        row = db.run(
            LOOK_UP.format(schema=db.schema),
            *map(escape, self.key),
            [*self._ends(self.raw), *self._ends(self.view)],
            texts,
            None if record is None or record.run_id is None else escape(rows.escape_surrogates(record.run_id)),
            record and record.request_index,
            stored_name(db, raw_tip),
            stored_name(db, view_tip),
            stored_name(db, reusable),
            self.compile is not None,
            escape(self.hash) if self.tools else None,
        ).fetchone()
        if row["is_known"]:
            return None
        return Known(
            session=row["session"] or row["new_session"],
            created_at=row["created_at"] or rows.stamp(self.created_at),
            seal=row["seal"],
            raw_tip=row["raw_tip"],
            length=0 if row["raw_tip"] is None else (row["tip_position"] or 0) + 1,
            nodes=set(row["nodes"]),
            contents=set(row["contents"]),
            tools={self.hash} if row["has_tools"] else set(),
            summary=row["new_summary"],
        )

    async def write(self, state: Known, added: Additions, memory: Memory) -> Written | None:
        """Write the new rows and remember the new state; None, with nothing written, if the record has changed."""
        db, raw, entry = self.db, self.raw, self.entry
        new_tools = self._name(self.tools) if self.tools and self.hash not in state.tools else None
        texts = self._texts(added.messages) | ({} if new_tools is None else {new_tools: self.tools})
        session = (self.key[0], self.key[1], self.prefix + raw.ids[-1], state.created_at, self.key[2])
        seal, compile, summary = rows.seal(state.session, session), self._compile_row(state), None
        if entry is not None:
            summary = (
                state.summary if compile is not None and entry.record.summary_id is None else entry.record.summary_id
            )
        view = None if entry is None else rows.view_row(entry, state.session, summary, self.prefix)
        tools = (state.session, self.hash, new_tools)
        arguments = [
            db.patience_ms,
            [*dict.fromkeys(added.anchors)],
            [name for name in texts if name in state.contents],
            escape(self.hash) if self.tools and new_tools is None else None,
            *self._columns(added.messages, {name: text for name, text in texts.items() if name not in state.contents}),
            _row(session, seal, state.session),
            state.seal,
            compile,
            self._cycle_rows(state),
            None if new_tools is None else _row(tools, rows.digest(tools)),
            None if view is None else _row(view, rows.digest(view)),
        ]
        number = await db.commit(_call(db.schema, len(arguments)), *arguments)
        if number is None:
            return None
        state.seal, state.raw_tip, state.length = seal, session[2], len(raw.ids)
        if entry is not None:  # otherwise the next request continues from the last one
            state.contents, state.view = frozenset(texts), self._ends(self.view)
        state.nodes = {*self._ends(raw), *state.view}
        if new_tools is not None:
            state.tools = {*islice(state.tools, MAX_TOOLS), self.hash}
        memory[self.key] = state
        if len(memory) > MAX_CONVERSATIONS:
            del memory[next(iter(memory))]
        return Written(number, summary, self.key[2])

    def _ends(self, chain: Chain | None) -> Sequence[str]:
        """Stored names of the last messages of a chain."""
        return () if chain is None else queries.stored_names(chain, self.prefix)[-NEWEST:]

    def _columns(self, messages: Sequence[NewMessage], texts: Mapping[str, str]) -> Iterator[list[Any]]:
        """Yield the columns of new contents, messages and search texts, as arguments of the database function."""
        bodies: dict[str, bytes | str] = {message.content: message.body for message in messages}
        bodies |= {name: rows.pack(rows.to_bytes(text)) for name, text in texts.items()}
        yield [*bodies]
        yield [rows.PLAIN + body.encode() if isinstance(body, str) else body for body in bodies.values()]
        nodes = [queries.node_row(message, self.prefix) for message in messages]
        yield from ([row[column] for row in nodes] for column in range(5))
        texts_of = queries.searchable_texts(messages)
        yield [node for node, _ in texts_of]
        yield [escape(text) for _, text in texts_of]

    def _cycle_rows(self, state: Known) -> list[str]:
        """Rows of the cycles of the entry, as PostgreSQL row literals."""
        cycles = [(state.session, *key, name) for key, (name, _) in self.states.items()]
        return [_row(row, rows.digest(row)) for row in cycles]

    def _compile_row(self, state: Known) -> str | None:
        """Row of a new compile, as a PostgreSQL row literal; None if there is none."""
        if self.compile is None or state.summary is None:
            return None
        row = rows.summary_row(self.compile, state.session, self.prefix)
        return _row(row, rows.seal(state.summary, row), state.summary)

    def _name(self, text: str) -> str:
        return self.prefix + ids.blob_id(rows.to_bytes(text))

    def _texts(self, messages: Sequence[NewMessage]) -> dict[str, str]:
        """Instructions of messages and states of cycles, by stored name."""
        instructions = dict.fromkeys(message.instructions for message in messages if message.instructions is not None)
        return {self._name(text): text for text in instructions} | dict(self.states.values())

    def additions(self, state: Known, *, may_look_up: bool = True) -> Additions | None:
        """Find the new messages; None if the raw history does not continue the stored one.

        Unless `may_look_up`, also None if the known ends of the chains do not suffice to find them.
        """
        additions, fresh = Additions(), set[str]()
        for chain, is_raw in ((self.raw, True), (self.view, False)):
            if chain is None:
                continue
            names = queries.stored_names(chain, self.prefix)
            low = max(0, len(names) - NEWEST)
            start = low + queries.prefix_in(names[low:], state.nodes | fresh)
            if start == low > 0:
                if not may_look_up:
                    return None
                start = queries.known_prefix(self.db, names[:low], fresh)
            if is_raw and (start != state.length or (start and names[start - 1] != state.raw_tip)):
                return None
            if start and names[start - 1] not in fresh:
                additions.anchors.append(names[start - 1])
            new = queries.new_messages(chain, names, start, self.prefix, raw=is_raw, packed=additions.packed)
            additions.messages.extend(new)
            fresh.update(names[start:])
        return additions


def _row(values: Sequence[rows.Column], seal: str, number: int | None = None) -> str:
    """Format a row as a PostgreSQL row literal: its number, the sealed columns, and the seal."""
    texts = [
        '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'
        if isinstance(value, str)
        else ("" if value is None else str(value))
        for value in (number, *values, seal)
    ]
    return escape(f"({','.join(texts)})")
