"""The tables of the record, their migrations, and their rows from values and back.

`PRAGMA user_version` counts the `MIGRATIONS` applied to a file, and `PRAGMA application_id` marks it as a record. A
column that ends in `_tip` names a node, but for the tip of a cycle, which is a chain id; the state of a cycle is a hash
into `contents`, while the texts of a compile are columns that any tool can read. A `seal` is a checksum of the other
columns of its row, for rows that are not named by their content.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record.values import Chain, Compile, Drop, Entry, Record

Column = str | int | float | None
Row = Mapping[str, Any]
"""A row by column name."""

STEP_S = 0.003
"""Seconds between two looks whether another process still writes."""

SESSION = ("session_id", "vault_name", "raw_tip", "created_at")
CYCLE = ("session", "raw_tip", "config", "state")
LAYERS = ("session", "version", "state")
SCORE = (
    *("session", "turn_index", "turns_tip", "quality", "health", "tokens", "summarized", "checkpoint"),
    *("rolled_back", "trouble", "created_at"),
)
TEXTS = ("compiled_prompt", "raw_output", "summary", "input_payload")
"""Texts of a compile, which are hashes into `contents` in a file of schema 1 to 3."""
NOT_RECORDED = "instructions, outcomes: not recorded before schema 4"
"""Note in the status of a request of schema 1 to 3, whose messages may be those of another that began alike."""
SUMMARY = (
    *("session", "turn_index", "run_id", "covered_tip", "cache_key"),
    *("template_name", "template_source", "template_path", "template_hash", "fidelity", "model_alias"),
    *("compiled_prompt", "raw_output", "summary", "summary_json", "input_payload"),
    *("sections_included", "sections_dropped", "budget_used", "survival", "latency_ms", "usage"),
    *("status", "error", "created_at"),
)
VIEW = (
    *("session", "turn_index", "run_id", "request_index", "raw_tip", "view_tip", "summary", "status", "error"),
    *("budget", "tokens_raw", "tokens_sent", "tokens_exact", "ratio", "ledger", "request_hash"),
    *("latency_ms", "created_at"),
)
SEALED: Mapping[str, Sequence[str]] = {
    "sessions": SESSION,
    "context_summaries": SUMMARY,
    "cycles": CYCLE,
    "views": VIEW,
    "layers": LAYERS,
    "scores": SCORE,
}
"""Columns under the `seal` of a row, in order, for the tables whose rows are not named by their content."""

TIPS = (
    ("sessions", "raw_tip"),
    ("views", "raw_tip"),
    ("views", "view_tip"),
    ("context_summaries", "covered_tip"),
)
"""Columns that name a message; NULL or empty if no content is recorded."""

TURN_TIPS = (("commits", "turns_tip"), ("spaces", "turns_tip"), ("scores", "turns_tip"))
"""The same columns of managed sessions."""


LARGE = 1_000_000
"""Bytes of a body from which on it is compressed fast rather than well."""


def pack(body: bytes) -> bytes | str:
    """The stored form of a body: text, or compressed bytes if that saves a tenth or the body is not UTF-8."""
    small = zlib.compress(body, 1 if len(body) > LARGE else -1) if len(body) > 100 else body
    if len(small) < 0.9 * len(body):
        return small
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body)


def unpack(stored: object) -> bytes:
    """The body of its stored form; ValueError or zlib.error if damaged."""
    if isinstance(stored, str):
        return stored.encode()
    if isinstance(stored, bytes):
        return zlib.decompress(stored)
    raise ValueError(f"a body is stored as {stored!r}")


_INSTRUCTIONS = re.compile(rb'"instructions":("(?:[^"\\]++|\\.)*+")')
_NO_INSTRUCTIONS = re.compile(rb'"instructions":(null)')


def split_instructions(body: bytes) -> tuple[bytes, str | None]:
    """A message without its instructions, and those: each message of a conversation would repeat them."""
    if b'"instructions":"' in body:
        text = json.loads(body).get("instructions")
        if isinstance(text, str):
            return _with_instructions(body, _INSTRUCTIONS, None), text
    return body, None


def join_instructions(body: bytes, text: str) -> bytes:
    """A message with its instructions."""
    return _with_instructions(body, _NO_INSTRUCTIONS, text)


def _with_instructions(body: bytes, now: re.Pattern[bytes], text: str | None) -> bytes:
    """The message with other instructions; a key of that name may also be in what a tool was given."""
    value = json.dumps(text, ensure_ascii=False).encode()
    found = [body[: match.start(1)] + value + body[match.end(1) :] for match in now.finditer(body)]
    return found[0] if len(found) == 1 else next(one for one in found if json.loads(one).get("instructions") == text)


def to_bytes(text: str) -> bytes:
    """UTF-8 with lone surrogates."""
    return text.encode("utf-8", "surrogatepass")


def to_text(body: bytes) -> str:
    """The text of `to_bytes`."""
    return body.decode("utf-8", "surrogatepass")


def seal(row: int, values: Sequence[Column]) -> str:
    """The checksum of a row number and its values."""
    return ids.blob_id(json.dumps([row, *values], separators=(",", ":"), default=repr).encode())[:16]


def mapping(row: sqlite3.Row) -> Row:
    """A row by column name."""
    return dict(zip(row.keys(), row, strict=True))


def reusable_key(compile: Compile) -> str | None:
    """The cache key of a compile with status ok; None for any other."""
    return compile.cache_key if compile.status.split(";")[0].strip() == "ok" else None


def complete_record(entry: Entry) -> Record:
    """The record of an entry with the tips of its chains and its compile."""
    return replace(
        entry.record,
        raw_tip=_tip(entry.record.raw_tip, entry.raw),
        view_tip=_tip(entry.record.view_tip, entry.view),
        compile=entry.compile or entry.record.compile,
    )


def _tip(given: str | None, chain: Chain | None) -> str | None:
    return chain.ids[-1] if given is None and chain is not None and chain.ids else given


def stamp(moment: datetime) -> str:
    """UTC in ISO 8601 with microseconds, so that texts sort as times; a naive time is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="microseconds")


def days_ago(days: float) -> str:
    """The stamp of `days` ago, capped at 700,000 because a date goes no further back."""
    return stamp(datetime.now(UTC) - timedelta(days=min(days, 700_000)))


def parse_stamp(stamp: object) -> datetime:
    """The time of a stamp; ValueError if damaged."""
    return datetime.fromisoformat(str(stamp))


def summary_row(compile: Compile, session: int) -> tuple[Column, ...]:
    """The columns `SUMMARY` of a compile."""
    dropped = [{"what": drop.what, "reason": drop.reason, "tokens": drop.tokens} for drop in compile.sections_dropped]
    given: dict[str, Column] = {
        **{name: getattr(compile, name) for name in SUMMARY if name != "session"},
        "session": session,
        "cache_key": reusable_key(compile),
        "summary_json": None if compile.summary_json is None else _json(compile.summary_json),
        "input_payload": None if compile.input_payload is None else _json(compile.input_payload),
        "sections_included": _json(compile.sections_included),
        "sections_dropped": _json(dropped),
        "survival": None if compile.survival is None else _real(compile.survival),
        "latency_ms": _real(compile.latency_ms),
        "usage": _json(compile.usage),
        "created_at": stamp(compile.created_at),
    }
    return tuple(_plain(given[name]) for name in SUMMARY)


def view_row(record: Record, session: int) -> tuple[Column, ...]:
    """The columns `VIEW` of a record."""
    given: dict[str, Column] = {
        **{name: getattr(record, name) for name in VIEW if name not in ("session", "summary")},
        "session": session,
        "summary": record.summary_id,
        "ratio": _real(record.ratio),
        "ledger": _json(record.ledger),
        "latency_ms": _real(record.latency_ms),
        "created_at": stamp(record.created_at),
    }
    return tuple(_plain(given[name]) for name in VIEW)


def to_compile(row: Row) -> Compile:
    """The compile of a row joined with its session."""
    given = {name: row[name] for name in SUMMARY if name != "session"}
    given |= {name: _mapping(given[name]) for name in ("summary_json", "input_payload")}
    given["sections_included"] = tuple(str(name) for name in _list(row["sections_included"]))
    given["sections_dropped"] = tuple(_drops(_list(row["sections_dropped"])))
    given["usage"] = _mapping(row["usage"]) or {}
    given["created_at"] = parse_stamp(row["created_at"])
    return Compile(session_id=row["session_id"], vault_name=row["vault_name"], **given)


def to_record(row: Row, compile: Compile | None) -> Record:
    """The record of a row joined with its session."""
    given = {name: row[name] for name in VIEW if name not in ("session", "summary")}
    given["ledger"] = _mapping(row["ledger"]) or {}
    given["created_at"] = parse_stamp(row["created_at"])
    place = {"session_id": row["session_id"], "vault_name": row["vault_name"]}
    return Record(id=row["id"], summary_id=row["summary"], compile=compile, **place, **given)


def _json(value: object) -> str:
    plain = dict(cast(Mapping[str, object], value)) if isinstance(value, Mapping) else value
    return json.dumps(plain, separators=(",", ":"), default=str)


def _real(value: float) -> float:
    return float(value) if value == value else 0.0  # SQLite stores NaN as NULL


def plain(text: str) -> str:
    """A text that SQLite can store: lone surrogates become backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Column) -> Column:
    return plain(value) if isinstance(value, str) else value


def _loaded(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _mapping(text: object) -> dict[str, Any] | None:
    value = _loaded(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _list(text: object) -> list[object]:
    value = _loaded(text)
    return cast("list[object]", value) if isinstance(value, list) else []


def _drops(items: Iterable[object]) -> Iterable[Drop]:
    for item in items:
        if isinstance(item, dict):
            one = cast("dict[str, Any]", item)
            yield Drop(what=str(one.get("what", "")), reason=str(one.get("reason", "")), tokens=one.get("tokens", 0))


APPLICATION_ID = 0x63747863  # "ctxc"

TABLES = (
    """CREATE TABLE contents (
        hash TEXT PRIMARY KEY,
        body NOT NULL                   -- text as it is; a blob is compressed with zlib
    )""",
    """CREATE TABLE nodes (
        id TEXT PRIMARY KEY,
        parent TEXT REFERENCES nodes(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY,
        session_id TEXT NOT NULL,
        vault_name TEXT NOT NULL,
        raw_tip TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL,
        UNIQUE (session_id, vault_name)
    )""",
    """CREATE TABLE copies (             -- a message whose times and run ids are another conversation's in `nodes`
        session INTEGER NOT NULL REFERENCES sessions(id),
        node TEXT NOT NULL REFERENCES nodes(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        PRIMARY KEY (session, node)
    ) WITHOUT ROWID""",
    """CREATE TABLE context_summaries (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        covered_tip TEXT NOT NULL,
        cache_key TEXT UNIQUE,          -- NULL unless status is ok
        template_name TEXT NOT NULL,
        template_source TEXT NOT NULL,
        template_path TEXT,
        template_hash TEXT NOT NULL,
        fidelity TEXT NOT NULL,
        model_alias TEXT NOT NULL,
        compiled_prompt TEXT REFERENCES contents(hash),
        raw_output TEXT REFERENCES contents(hash),
        summary TEXT REFERENCES contents(hash),
        summary_json TEXT,
        input_payload TEXT REFERENCES contents(hash),
        sections_included TEXT NOT NULL,
        sections_dropped TEXT NOT NULL,
        budget_used INTEGER NOT NULL,
        survival REAL,
        latency_ms REAL NOT NULL,
        usage TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX summaries_of_session ON context_summaries (session)",
    """CREATE TABLE cycles (
        session INTEGER NOT NULL REFERENCES sessions(id),
        raw_tip TEXT NOT NULL,
        config TEXT NOT NULL,           -- how its views are written: another way has cycles of its own
        state TEXT NOT NULL REFERENCES contents(hash),
        seal TEXT NOT NULL,
        PRIMARY KEY (raw_tip, config, session)
    )""",
    """CREATE TABLE views (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        run_id TEXT,
        request_index INTEGER NOT NULL,
        raw_tip TEXT,
        view_tip TEXT,
        summary INTEGER REFERENCES context_summaries(id),
        status TEXT NOT NULL,
        error TEXT,
        budget INTEGER,
        tokens_raw INTEGER NOT NULL,
        tokens_sent INTEGER NOT NULL,
        tokens_exact INTEGER NOT NULL,
        ratio REAL NOT NULL,
        ledger TEXT NOT NULL,
        request_hash TEXT,
        latency_ms REAL NOT NULL,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    """CREATE UNIQUE INDEX views_once ON views (
        session, ifnull(run_id, ''), request_index, ifnull(raw_tip, ''), ifnull(view_tip, '')
    )""",
    "CREATE VIRTUAL TABLE messages_fts USING fts5(text, node UNINDEXED)",
)

MEMORY_TABLES = (
    """CREATE TABLE memories (           -- named as reached by all that was remembered before
        id TEXT PRIMARY KEY,
        parent TEXT REFERENCES memories(id),
        content TEXT NOT NULL REFERENCES contents(hash),
        position INTEGER NOT NULL,
        created_at TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE commits (            -- named by all its other columns
        id TEXT PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        parent TEXT REFERENCES commits(id),
        memory_tip TEXT REFERENCES memories(id),
        turns_tip TEXT,
        state TEXT REFERENCES contents(hash),
        memories INTEGER NOT NULL,
        turns INTEGER NOT NULL,
        author TEXT NOT NULL,
        message TEXT NOT NULL,
        created_at TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE spaces (             -- where a session's memory and turns are now
        session INTEGER PRIMARY KEY REFERENCES sessions(id),
        memory_tip TEXT REFERENCES memories(id),
        head TEXT REFERENCES commits(id),
        turns_tip TEXT,
        state TEXT
    )""",
    """CREATE TABLE scores (
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        turn_index INTEGER NOT NULL,
        turns_tip TEXT,
        quality REAL NOT NULL,
        health REAL NOT NULL,
        tokens INTEGER NOT NULL,
        summarized INTEGER NOT NULL,
        checkpoint TEXT,
        rolled_back INTEGER NOT NULL,
        trouble TEXT,
        created_at TEXT NOT NULL,
        seal TEXT NOT NULL
    )""",
    "CREATE INDEX scores_of_session ON scores (session)",
    """CREATE TABLE live_memories (      -- what the memory of a session holds now; the rest of `memories` was before
        id INTEGER PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions(id),
        memory TEXT NOT NULL REFERENCES memories(id),
        UNIQUE (session, memory)
    )""",
    "CREATE INDEX memories_by_content ON memories (content)",
    "CREATE VIRTUAL TABLE memories_fts USING fts5(terms)",
)


def create_record(db: sqlite3.Connection) -> None:
    """Create the tables of schema 1."""
    for statement in TABLES:
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def create_memories(db: sqlite3.Connection) -> None:
    """Create the tables of managed sessions: memories, commits and scores."""
    for statement in MEMORY_TABLES:
        db.execute(statement)


def create_layers(db: sqlite3.Connection) -> None:
    """Create the table of layers: the newest state of each session."""
    db.execute(
        """CREATE TABLE layers (
        session INTEGER NOT NULL UNIQUE REFERENCES sessions(id),
        version INTEGER NOT NULL,
        state TEXT NOT NULL,
        seal TEXT NOT NULL
    )"""
    )


def record_exactly(db: sqlite3.Connection) -> None:
    """Record messages with their instructions, and the texts of compiles as text; earlier requests get a note."""
    db.execute("ALTER TABLE nodes ADD COLUMN instructions TEXT REFERENCES contents(hash)")
    for number, *values, old in db.execute(f"SELECT id, {', '.join(VIEW)}, seal FROM views").fetchall():
        given = dict(zip(VIEW, values, strict=True))
        if given["view_tip"] is not None and seal(number, values) == old:
            given["status"] = f"{given['status']}; {NOT_RECORDED}"
            row = (given["status"], seal(number, tuple(given.values())), number)
            db.execute("UPDATE views SET status = ?, seal = ? WHERE id = ?", row)
    _keep_texts(db)


def _keep_texts(db: sqlite3.Connection) -> None:
    """Move the texts of compiles from `contents` into their columns; a row that was damaged keeps its wrong seal."""
    table = next(statement for statement in TABLES if "TABLE context_summaries" in statement)
    table = table.replace(" REFERENCES contents(hash)", "").replace("context_summaries", "summaries_with_texts")
    db.execute(table)
    columns = ("id", *SUMMARY, "seal")
    named: set[str] = set()
    for number, *values, old in db.execute(f"SELECT {', '.join(columns)} FROM context_summaries ORDER BY id"):
        given = dict(zip(SUMMARY, values, strict=True))
        texts = {name: _text(db, given[name]) for name in TEXTS}
        named |= {given[name] for name in TEXTS if isinstance(given[name], str)}
        whole = seal(number, values) == old and all(texts[name] is not None for name in TEXTS if given[name])
        row = tuple((given | texts).values())
        marks = ", ".join("?" * len(columns))
        kept = (number, *row, seal(number, row) if whole else old)
        db.execute(f"INSERT INTO summaries_with_texts ({', '.join(columns)}) VALUES ({marks})", kept)
    db.execute("DROP TABLE context_summaries")
    db.execute("ALTER TABLE summaries_with_texts RENAME TO context_summaries")
    db.execute("CREATE INDEX summaries_of_session ON context_summaries (session)")
    used = (("nodes", "content"), ("copies", "content"), ("cycles", "state"), ("memories", "content"))
    held = " UNION ".join(f"SELECT {column} FROM {name}" for name, column in used)
    db.execute(
        f"DELETE FROM contents WHERE hash IN (SELECT value FROM json_each(?)) AND hash NOT IN ({held}"
        " UNION SELECT state FROM commits WHERE state NOT NULL)",
        (json.dumps(sorted(named)),),
    )


def _text(db: sqlite3.Connection, name: Column) -> str | None:
    """A text of `contents`; None if it is not there or damaged."""
    found = db.execute("SELECT body FROM contents WHERE hash = ?", (name,)).fetchone()
    try:
        body = None if found is None else unpack(found[0])
    except (ValueError, zlib.error):
        return None
    return None if body is None or ids.blob_id(body) != name else plain(to_text(body))


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    create_record,
    create_memories,
    create_layers,
    record_exactly,
)
"""In order; append only."""


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """A write transaction, rolled back on an error."""
    _begin(db)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _begin(db: sqlite3.Connection) -> None:
    """Begin as soon as no other process writes, within the busy timeout.

    SQLite's own wait sleeps longer each time, so that of many writers some would wait until their time is over.
    """
    patience: int = db.execute("PRAGMA busy_timeout").fetchone()[0]
    end = time.monotonic() + patience / 1_000
    db.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
            time.sleep(STEP_S)
    finally:
        db.execute(f"PRAGMA busy_timeout = {patience:d}")


@contextmanager
def snapshot(db: sqlite3.Connection) -> Generator[None]:
    """A read transaction: one state of the file, whatever others write meanwhile."""
    db.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def version_of(db: sqlite3.Connection) -> int:
    """Number of migrations applied to the file; 0 for a new one.

    Raises:
        StoreError: the file belongs to another program, or to a newer version of this one.
    """
    with snapshot(db):
        return _version(db)


def migrate(db: sqlite3.Connection) -> None:
    """Apply the migrations that the file lacks; two processes may do so at once."""
    if version_of(db) == len(MIGRATIONS):
        return
    checked = db.execute("PRAGMA foreign_keys").fetchone()[0]
    db.execute("PRAGMA foreign_keys = OFF")  # a table that others refer to is replaced
    try:
        with transaction(db):
            for step in MIGRATIONS[_version(db) :]:
                step(db)
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    finally:
        db.execute(f"PRAGMA foreign_keys = {checked:d}")


def _version(db: sqlite3.Connection) -> int:
    """The version of the file; three queries, which must see one state of it."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    tables = int(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if owner != APPLICATION_ID and (owner or version or tables):
        raise StoreError("the database belongs to another program; give the record a file of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the record was written by a newer version (schema {version}, this one knows {len(MIGRATIONS)});"
            " upgrade context-compiler, or give it another file"
        )
    return version
