"""Rows of the record from values and back, their names and checksums, and transactions; `schema` has the tables.

A session belongs to an owner, and so do the rows that refer to it. Messages, contents and memories are named by what
they hold; so that no two owners share one, an owner's names begin with a prefix of their own. The owner ``""``, whose
names have none, has everything that no other owner has, such as all rows of earlier versions.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
import zlib
from base64 import b32encode
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar, cast, overload

from context_compiler import ids
from context_compiler.errors import StoreError
from context_compiler.record.database import Database
from context_compiler.record.values import (
    Chain,
    Compile,
    Drop,
    Entry,
    Record,
    list_of,
    mapping_of,
    parse_json,
    with_null_reasons,
)

Column = str | int | float | None


class BrokenReference(StoreError):
    """A row names another one that is not there any more."""


class Removed(StoreError):
    """A write comes too late, because something was removed since it was first tried, and may have been its own."""


Row = Mapping[str, Any]
"""A row by column name."""

STEP_S = 0.003
"""Seconds between checks for another process that is still writing."""

SESSION = ("session_id", "vault_name", "raw_tip", "created_at", "owner")
CYCLE = ("session", "raw_tip", "config", "state")
LAYERS = ("session", "version", "state")
TOOLS = ("session", "request_hash", "content")
CONVERSATION = ("session", "scope", "head", "tips", "state", "revision", "updated_at")
ACTION = ("session", "number", "kind", "tip", "state", "summary", "created_at")
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
    "conversations": CONVERSATION,
    "actions": ACTION,
    "toolsets": TOOLS,
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


_PREFIX = re.compile(r"[a-z2-7]{16}/")

Name = TypeVar("Name", bound=str | None)


@lru_cache(maxsize=10_000)
def prefix(owner: str) -> str:
    """The beginning of all names of an owner."""
    if not owner:
        return ""
    return b32encode(blake2b(owner.encode(), digest_size=10).digest()).decode().lower() + "/"


def prefix_of(name: str) -> str:
    """The prefix of a stored name."""
    found = _PREFIX.match(name)
    return found[0] if found else ""


def bare(name: Name) -> Name:
    """A stored name without its prefix."""
    return cast(Name, name[len(prefix_of(name)) :]) if isinstance(name, str) else name


def writer_of(db: Database) -> str:
    """The owner that a connection writes for.

    Raises:
        StoreError: It works for every owner.
    """
    owner = db.owner
    if owner is None:
        raise StoreError("a store of every owner only reads and removes; name the owner: scoped(owner)")
    return owner


def note_removal(db: Database) -> None:
    """Note when something was removed, and nothing of what it was."""
    query = "INSERT INTO removals (id, at) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at = excluded.at"
    db.execute(query, (db.clock(),))


def removed_since(db: Database) -> bool:
    """True if something has been removed since this write was first tried.

    Ages are compared, not times, because the clock of the record and ours may differ.
    """
    if db.tried is None:
        return False
    found = db.execute("SELECT at FROM removals").fetchone()
    return found is not None and db.clock() - found["at"] <= db.tried.age


def refuse_removed(db: Database) -> None:
    """Refuse a write that was first tried before the newest removal; within its transaction.

    Raises:
        Removed: Something was removed since.
    """
    if removed_since(db):
        raise Removed("something was removed since this was first tried, and it may have been a part of it")


def newer_tip(db: Database, known: str | None, given: str | None) -> str | None:
    """The new tip of a conversation that ends in `known`: a late write never sets it back to an earlier message."""
    if db.tried is None:
        return given
    found = db.execute(
        "WITH RECURSIVE up (id) AS (SELECT id FROM nodes WHERE id = ? UNION ALL"
        " SELECT n.parent FROM up JOIN nodes n ON n.id = up.id WHERE n.parent NOT NULL)"
        " SELECT 1 FROM up WHERE id = ?",
        (known, given),
    ).fetchone()
    return given if found is None else known


def stored(db: Database, name: Name) -> Name:
    """The name under which the connection's owner stores what is named so; as given for every owner."""
    owner = db.owner
    if owner is None or not isinstance(name, str) or not name:
        return name
    if not owner:
        return cast(Name, f"/{name}") if prefix_of(name) else name  # another owner's, which this one has not
    return cast(Name, prefix(owner) + name)


def covering(db: Database, compile: Compile) -> Compile:
    """A compile without what it covers, if that is not on the record: of one without use the texts are dropped too."""
    tip = compile.covered_tip and stored(db, compile.covered_tip)
    if not tip or db.execute("SELECT 1 FROM nodes WHERE id = ?", (tip,)).fetchone():
        return compile
    if not compile.status.startswith(("skipped", "failed")):
        return replace(compile, covered_tip="")
    bare = replace(compile, covered_tip="", **dict.fromkeys((*TEXTS, "summary_json"), None))
    return with_null_reasons(bare, dict.fromkeys((*TEXTS, "summary_json"), "what it covers is not on the record"))


@dataclass(frozen=True, slots=True)
class Names(Sequence[str]):
    """Names of a chain with a prefix, each put together when it is asked for."""

    prefix: str
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.prefix + name for name in self.names[index]]
        return self.prefix + self.names[index]


PLAIN = b"="
"""First byte of a text that is stored as bytes, which no compressed body has."""

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
        return stored[1:] if stored.startswith(PLAIN) else zlib.decompress(stored)
    raise ValueError(f"a body is stored as {stored!r}")


_INSTRUCTIONS = re.compile(rb'"instructions":("[^"\\]*+(?:\\.[^"\\]*+)*")')
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


_SEALED = json.JSONEncoder(separators=(",", ":"), default=repr).encode
_WRITTEN = json.JSONEncoder(separators=(",", ":"), default=str).encode


def seal(row: int, values: Sequence[Column]) -> str:
    """The checksum of a row number and its values."""
    return digest([row, *values])[:16]


def digest(values: Sequence[Column]) -> str:
    """The checksum of values without a number."""
    return ids.blob_id(_SEALED(values).encode())


def is_sealed(row: int, values: Sequence[Column], given: str) -> bool:
    """True if a seal is that of a row: ours, or the one that a database makes when it gives a row its number.

    That one is over the number and the digest of the values, by a hash that PostgreSQL knows.
    """
    return given == seal(row, values) or given == ids.text_hash(f"{row}:{digest(values)}")[:16]


def mapping(row: sqlite3.Row) -> Row:
    """A row by column name."""
    return dict(zip(row.keys(), row, strict=True))


def reusable_key(compile: Compile) -> str | None:
    """The cache key of a compile with status ok; None for any other."""
    return compile.cache_key if compile.status.split(";")[0].strip() == "ok" else None


def complete_record(entry: Entry, owner: str, **numbers: int | None) -> Record:
    """The record of an entry with its owner, the tips of its chains, its compile, and numbers of its rows."""
    compile = entry.compile or entry.record.compile
    raw_tip, view_tip = tips(entry)
    made = compile and replace(compile, owner=owner)
    return replace(entry.record, owner=owner, raw_tip=raw_tip, view_tip=view_tip, compile=made, **numbers)


def tips(entry: Entry) -> tuple[str | None, str | None]:
    """The tips of the chains of an entry."""
    return _tip(entry.record.raw_tip, entry.raw), _tip(entry.record.view_tip, entry.view)


def _tip(given: str | None, chain: Chain | None) -> str | None:
    return chain.ids[-1] if given is None and chain is not None and chain.ids else given


def stamp(moment: datetime) -> str:
    """UTC in ISO 8601 with microseconds, so that texts sort as times; a naive time is taken as UTC."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds")


def days_ago(days: float) -> str:
    """The stamp of `days` ago, capped at 700,000 because a date goes no further back."""
    return stamp(datetime.now(UTC) - timedelta(days=min(days, 700_000)))


def parse_stamp(stamp: object) -> datetime:
    """The time of a stamp; ValueError if damaged."""
    return datetime.fromisoformat(str(stamp))


def summary_row(compile: Compile, session: int, prefix: str) -> tuple[Column, ...]:
    """The columns `SUMMARY` of a compile; `prefix` begins the names of its owner."""
    key = reusable_key(compile)
    dropped = [{"what": drop.what, "reason": drop.reason, "tokens": drop.tokens} for drop in compile.sections_dropped]
    given: dict[str, Column] = {
        **{name: getattr(compile, name) for name in SUMMARY if name != "session"},
        "session": session,
        "cache_key": None if key is None else prefix + key,
        "covered_tip": compile.covered_tip and prefix + compile.covered_tip,
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


def view_row(entry: Entry, session: int, summary: int | None, prefix: str) -> tuple[Column, ...]:
    """The columns `VIEW` of the request of an entry; `prefix` begins the names of its owner."""
    one = entry.record
    raw_tip, view_tip = tips(entry)
    row = (
        *(session, one.turn_index, one.run_id, one.request_index, raw_tip and prefix + raw_tip),
        *(view_tip and prefix + view_tip, summary, one.status, one.error, one.budget),
        *(one.tokens_raw, one.tokens_sent, one.tokens_exact, _real(one.ratio), _json(one.ledger), one.request_hash),
        *(_real(one.latency_ms), stamp(one.created_at)),
    )
    return tuple([plain(value) if isinstance(value, str) else value for value in row])


def to_compile(row: Row) -> Compile:
    """The compile of a row joined with its session."""
    given = {name: row[name] for name in SUMMARY if name != "session"}
    parsed = {name: parse_json(given[name]) for name in ("summary_json", "input_payload")}
    given |= {name: value if isinstance(value, dict) else None for name, value in parsed.items()}
    given["sections_included"] = tuple(str(name) for name in list_of(row["sections_included"]))
    given["sections_dropped"] = tuple(_drops(list_of(row["sections_dropped"])))
    given["usage"] = mapping_of(row["usage"])
    given["created_at"] = parse_stamp(row["created_at"])
    given |= {name: bare(given[name]) for name in ("covered_tip", "cache_key")}
    return Compile(session_id=row["session_id"], vault_name=row["vault_name"], owner=row["owner"], **given)


def to_record(row: Row, compile: Compile | None) -> Record:
    """The record of a row joined with its session."""
    given = {name: row[name] for name in VIEW if name not in ("session", "summary")}
    given["ledger"] = mapping_of(row["ledger"])
    given["created_at"] = parse_stamp(row["created_at"])
    given |= {name: bare(given[name]) for name in ("raw_tip", "view_tip")}
    place = {name: row[name] for name in ("session_id", "vault_name", "owner")}
    return Record(id=row["id"], summary_id=row["summary"], compile=compile, **place, **given)


def _json(value: object) -> str:
    plain = dict(cast(Mapping[str, object], value)) if isinstance(value, Mapping) else value
    return _WRITTEN(plain)


def _real(value: float) -> float:
    return float(value) if value == value else 0.0  # SQLite stores NaN as NULL


def plain(text: str) -> str:
    """A text that SQLite can store: lone surrogates become backslash escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _plain(value: Column) -> Column:
    return plain(value) if isinstance(value, str) else value


def _drops(items: Iterable[object]) -> Iterable[Drop]:
    for item in items:
        if isinstance(item, dict):
            one = cast("dict[str, Any]", item)
            yield Drop(what=str(one.get("what", "")), reason=str(one.get("reason", "")), tokens=one.get("tokens", 0))


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
