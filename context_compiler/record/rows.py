"""Conversion of values to rows and back, stored names, seals (checksums), and SQLite transactions.

A session belongs to an owner, and so does every row that refers to it. Messages, contents and memories are named by a
hash of their content. An owner's names start with a prefix of their own, so that no two owners share a row. The owner
``""`` has no prefix; it owns everything that belongs to no other owner.
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
from context_compiler.record.tables import SEALED
from context_compiler.record.values import (
    Chain,
    Compile,
    Drop,
    Entry,
    Record,
    input_price,
    list_of,
    mapping_of,
    parse_json,
    recalled_tokens,
    with_null_reasons,
)

Column = str | int | float | None


class BrokenReference(StoreError):
    """A row refers to another row that no longer exists."""


class Removed(StoreError):
    """A retried write was refused, because removals since its first attempt may have removed the same data."""


Row = Mapping[str, Any]
"""A row by column name."""

STEP_S = 0.003
"""Seconds between two attempts to begin a transaction while another process writes."""

TEXTS = ("compiled_prompt", "raw_output", "summary", "input_payload")
"""Text columns of a compile."""
SUMMED = ("model", "provider", "cached", "cached_raw", "tokens_recall")
"""Columns of a request that repeat values of its ledger, so that sums over many requests read no ledgers."""
RECORDED = tuple(name for name in SEALED["views"] if name not in ("session", "summary", *SUMMED))
"""Columns of a request that are fields of `Record`."""

TIPS = (("sessions", "raw_tip"), ("views", "raw_tip"), ("views", "view_tip"), ("context_summaries", "covered_tip"))
"""Columns that contain the stored name of a message; NULL or empty if content is not recorded."""

TURN_TIPS = (("commits", "turns_tip"), ("spaces", "turns_tip"), ("scores", "turns_tip"))
"""Such columns in the tables of managed sessions."""


_PREFIX = re.compile(r"[a-z2-7]{16}/")

Name = TypeVar("Name", bound=str | None)


@lru_cache(maxsize=10_000)
def prefix(owner: str) -> str:
    """Return the prefix of all stored names of an owner: a hash and a slash; empty for the owner ``""``."""
    if not owner:
        return ""
    return b32encode(blake2b(owner.encode(), digest_size=10).digest()).decode().lower() + "/"


def prefix_of(name: str) -> str:
    """Return the owner prefix of a stored name; empty if it has none."""
    match = _PREFIX.match(name)
    return match[0] if match else ""


def without_prefix(name: Name) -> Name:
    """Return a stored name without its owner prefix."""
    return cast(Name, name[len(prefix_of(name)) :]) if isinstance(name, str) else name


def writer_of(db: Database) -> str:
    """Return the owner that a connection writes for.

    Raises:
        StoreError: The connection works for every owner.
    """
    owner = db.owner
    if owner is None:
        raise StoreError("a store of every owner only reads and removes; choose an owner with scoped(owner)")
    return owner


REMOVED, LOST, UNEMPTIED = "removals", "lost", "unemptied"
"""Names of counters."""


def add_to_counter(db: Database, name: str, number: int) -> None:
    """Add to a counter, and record the time."""
    query = (
        "INSERT INTO counters (name, number, at) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " number = counters.number + excluded.number, at = excluded.at"
    )
    db.execute(query, (name, number, db.clock()))


def note_removal(db: Database) -> None:
    """Count a removal, and record its time, but nothing about the data that was removed."""
    add_to_counter(db, REMOVED, 1)


def add_lost(db: Database, count: int) -> None:
    """Add to the number of writes that were lost because the record could not be written."""
    with db.transaction():
        add_to_counter(db, LOST, count)


def counter(db: Database, name: str) -> tuple[int, float]:
    """Return a counter with the time of its last change; (0, 0.0) if there was none."""
    row = db.execute("SELECT number, at FROM counters WHERE name = ?", (name,)).fetchone()
    return (0, 0.0) if row is None else (row["number"], row["at"])


def removals(db: Database) -> int:
    """Return the number of removals from the record."""
    return counter(db, REMOVED)[0]


def lost(db: Database) -> int:
    """Return the number of writes that were lost because the record could not be written."""
    return counter(db, LOST)[0]


def removed_since(db: Database) -> bool:
    """True if anything was removed from the record since this write was first attempted.

    Removals are numbered by the record. Only a write whose process had never read that number is judged by ages: of the
    removal and of the write, because the clocks of the database and this machine may differ.
    """
    if db.tried is None:
        return False
    number, removed_at = counter(db, REMOVED)
    if db.tried.removals is not None:
        return number > db.tried.removals
    return number > 0 and db.clock() - removed_at <= db.tried.age


def refuse_removed(db: Database) -> None:
    """Refuse a write that was first attempted before the newest removal. Call it within the write's transaction.

    Raises:
        Removed: Something was removed since the first attempt.
    """
    if removed_since(db):
        raise Removed("data was removed after this write was first attempted, possibly the same data")


def newer_tip(db: Database, old: str | None, new: str | None) -> str | None:
    """Return the new tip of a conversation: `new`, unless a retried write would move it back from `old`."""
    if db.tried is None:
        return new
    ancestor = db.execute(
        "WITH RECURSIVE up (id) AS (SELECT id FROM nodes WHERE id = ? UNION ALL"
        " SELECT n.parent FROM up JOIN nodes n ON n.id = up.id WHERE n.parent NOT NULL)"
        " SELECT 1 FROM up WHERE id = ?",
        (old, new),
    ).fetchone()
    return new if ancestor is None else old


def stored_name(db: Database, name: Name) -> Name:
    """Return a name with the prefix of the connection's owner; unchanged if the connection works for every owner."""
    owner = db.owner
    if owner is None or not isinstance(name, str) or not name:
        return name
    if not owner:
        # a name with a prefix belongs to another owner; the slash makes it match no row
        return cast(Name, f"/{name}") if prefix_of(name) else name
    return cast(Name, prefix(owner) + name)


def clear_unknown_tip(db: Database, compile: Compile) -> Compile:
    """Clear the `covered_tip` of a compile if that message is not on the record.

    A skipped or failed compile then loses its texts too, because no request uses them.
    """
    tip = compile.covered_tip and stored_name(db, compile.covered_tip)
    if not tip or db.execute("SELECT 1 FROM nodes WHERE id = ?", (tip,)).fetchone():
        return compile
    if not compile.status.startswith(("skipped", "failed")):
        return replace(compile, covered_tip="")
    cleared = replace(compile, covered_tip="", **dict.fromkeys((*TEXTS, "summary_json"), None))
    return with_null_reasons(cleared, dict.fromkeys((*TEXTS, "summary_json"), "what it covers is not on the record"))


@dataclass(frozen=True, slots=True)
class Names(Sequence[str]):
    """The names of a chain with a prefix, which is added when a name is read."""

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
"""First byte of a string that is stored as bytes; no compressed body starts with it."""

LARGE = 1_000_000
"""Bytes above which a body is compressed at the fastest level."""


LARGEST = 256_000_000
"""Bytes of the largest body that is compressed, so that no row can unpack to more."""


def pack(body: bytes) -> bytes | str:
    """Return a body as stored: text, or compressed bytes if they are a tenth smaller or the body is not UTF-8."""
    is_small = 100 < len(body) <= LARGEST
    small = zlib.compress(body, 1 if len(body) > LARGE else -1) if is_small else body
    if len(small) < 0.9 * len(body):
        return small
    try:
        return body.decode()
    except UnicodeDecodeError:
        return zlib.compress(body) if len(body) <= LARGEST else PLAIN + body


def _decompress(stored: bytes) -> bytes:
    """Decompress a body, but no more than `LARGEST` bytes."""
    stream = zlib.decompressobj()
    body = stream.decompress(stored, LARGEST)
    if stream.unconsumed_tail:
        raise ValueError(f"the body unpacks to more than {LARGEST:,} bytes")
    if not stream.eof:
        raise ValueError("the body is cut short")
    return body


def unpack(stored: object) -> bytes:
    """Return the body of its stored form; ValueError or zlib.error if it is damaged."""
    if isinstance(stored, str):
        if not is_text(stored):
            raise ValueError("the body is not valid UTF-8")
        return stored.encode()
    if isinstance(stored, bytes):
        return stored[1:] if stored.startswith(PLAIN) else _decompress(stored)
    raise ValueError(f"a body is stored as {stored!r}")


_INSTRUCTIONS = re.compile(rb'"instructions":("[^"\\]*+(?:\\.[^"\\]*+)*")')
_NO_INSTRUCTIONS = re.compile(rb'"instructions":(null)')


def split_instructions(body: bytes) -> tuple[bytes, str | None]:
    """Split a message into its JSON without instructions and the instructions; None if it has none.

    They are stored apart, because every request of a conversation repeats the same instructions.
    """
    if b'"instructions":"' in body:
        text = json.loads(body).get("instructions")
        if isinstance(text, str):
            return _with_instructions(body, _INSTRUCTIONS, None), text
    return body, None


def join_instructions(body: bytes, text: str) -> bytes:
    """Return the JSON of a message with its instructions put back."""
    return _with_instructions(body, _NO_INSTRUCTIONS, text)


def _with_instructions(body: bytes, current: re.Pattern[bytes], text: str | None) -> bytes:
    """Replace the instructions of a message. Other matches are keys of that name in the arguments of a tool call."""
    value = json.dumps(text, ensure_ascii=False).encode()
    candidates = [body[: match.start(1)] + value + body[match.end(1) :] for match in current.finditer(body)]
    if len(candidates) == 1:
        return candidates[0]
    return next(candidate for candidate in candidates if json.loads(candidate).get("instructions") == text)


def to_bytes(text: str) -> bytes:
    """Encode a string that may contain lone surrogates as UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def to_text(body: bytes) -> str:
    """Decode a string that `to_bytes` encoded."""
    return body.decode("utf-8", "surrogatepass")


_SEALED = json.JSONEncoder(separators=(",", ":"), default=repr).encode
_WRITTEN = json.JSONEncoder(separators=(",", ":"), default=str).encode


def seal(row: int, values: Sequence[Column]) -> str:
    """Return the seal of a row: a checksum of its number and values."""
    return digest([row, *values])[:16]


def digest(values: Sequence[Column]) -> str:
    """Return a checksum of the values alone, without a row number."""
    return ids.blob_id(_SEALED(values).encode())


def is_sealed(row: int, values: Sequence[Column], stored: str) -> bool:
    """True if a seal matches its row.

    There are two forms: `seal`, and the one that PostgreSQL computes when it numbers a row itself: a SHA-256 of the
    number and the `digest` of the values.
    """
    return stored == seal(row, values) or stored == ids.text_hash(f"{row}:{digest(values)}")[:16]


def mapping(row: sqlite3.Row) -> Row:
    """Convert a row to a mapping by column name."""
    return dict(zip(row.keys(), row, strict=True))


def reusable_key(compile: Compile) -> str | None:
    """Return the cache key of a compile with status ok; None for any other compile."""
    return compile.cache_key if compile.status.split(";")[0].strip() == "ok" else None


def complete_record(entry: Entry, owner: str, **numbers: int | None) -> Record:
    """Return the record of an entry, completed with owner, tips, compile and the given row numbers."""
    compile = entry.compile or entry.record.compile
    raw_tip, view_tip = tips(entry)
    made = compile and replace(compile, owner=owner)
    return replace(entry.record, owner=owner, raw_tip=raw_tip, view_tip=view_tip, compile=made, **numbers)


def tips(entry: Entry) -> tuple[str | None, str | None]:
    """Return the raw and view tips of an entry: those of its record, or else the ends of its chains."""
    return tip_of(entry.raw, entry.record.raw_tip), tip_of(entry.view, entry.record.view_tip)


def tip_of(chain: Chain | None, tip: str | None = None) -> str | None:
    """Return a tip: the given one, or else the end of a chain; None without either."""
    return chain.ids[-1] if tip is None and chain is not None and chain.ids else tip


def stamp(moment: datetime) -> str:
    """Format a time as ISO 8601 in UTC with microseconds, so that strings sort by time; a naive time counts as UTC."""
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.isoformat(timespec="microseconds")


def days_ago(days: float) -> str:
    """Return the stamp of `days` ago, at most 700,000 because a datetime cannot go further back."""
    return stamp(datetime.now(UTC) - timedelta(days=min(days, 700_000)))


def parse_stamp(stamp: object) -> datetime:
    """Parse a stamp; ValueError if it is damaged."""
    return datetime.fromisoformat(str(stamp))


UNKNOWN = datetime.min.replace(tzinfo=UTC)
"""Time of a session or request in a list, if its own is damaged."""


def readable_stamp(stamp: object) -> datetime | None:
    """Parse a stamp; None if it is NULL or damaged, because a list must not fail for one of its rows."""
    try:
        return None if stamp is None else parse_stamp(stamp)
    except ValueError:
        return None


def summary_row(compile: Compile, session: int, prefix: str) -> tuple[Column, ...]:
    """Return the sealed columns of a compile; `prefix` is that of its owner's names."""
    key = reusable_key(compile)
    dropped = [{"what": drop.what, "reason": drop.reason, "tokens": drop.tokens} for drop in compile.sections_dropped]
    columns: dict[str, Column] = {
        **{name: getattr(compile, name) for name in SEALED["context_summaries"] if name != "session"},
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
    return tuple(_plain(columns[name]) for name in SEALED["context_summaries"])


def view_row(entry: Entry, session: int, summary: int | None, prefix: str) -> tuple[Column, ...]:
    """Return the sealed columns of an entry's request; `prefix` is that of its owner's names."""
    record = entry.record
    raw_tip, view_tip = tips(entry)
    columns: dict[str, Column] = {
        **{name: getattr(record, name) for name in RECORDED},
        **input_price(record)._asdict(),
        "tokens_recall": recalled_tokens(record),
        "session": session,
        "raw_tip": raw_tip and prefix + raw_tip,
        "view_tip": view_tip and prefix + view_tip,
        "summary": summary,
        "ratio": _real(record.ratio),
        "ledger": _json(record.ledger),
        "latency_ms": _real(record.latency_ms),
        "created_at": stamp(record.created_at),
    }
    return tuple(_plain(columns[name]) for name in SEALED["views"])


def to_compile(row: Row) -> Compile:
    """Convert a row of `context_summaries`, joined with its session, to a compile."""
    fields = {name: row[name] for name in SEALED["context_summaries"] if name != "session"}
    parsed = {name: parse_json(fields[name]) for name in ("summary_json", "input_payload")}
    fields |= {name: value if isinstance(value, dict) else None for name, value in parsed.items()}
    fields["sections_included"] = tuple(str(name) for name in list_of(row["sections_included"]))
    fields["sections_dropped"] = tuple(_drops(list_of(row["sections_dropped"])))
    fields["usage"] = mapping_of(row["usage"])
    fields["created_at"] = parse_stamp(row["created_at"])
    fields |= {name: without_prefix(fields[name]) for name in ("covered_tip", "cache_key")}
    return Compile(session_id=row["session_id"], vault_name=row["vault_name"], owner=row["owner"], **fields)


def to_record(row: Row, compile: Compile | None) -> Record:
    """Convert a row of `views`, joined with its session, to a record."""
    fields = {name: row[name] for name in RECORDED}
    fields["ledger"] = mapping_of(row["ledger"])
    fields["created_at"] = parse_stamp(row["created_at"])
    fields |= {name: without_prefix(fields[name]) for name in ("raw_tip", "view_tip")}
    session = {name: row[name] for name in ("session_id", "vault_name", "owner")}
    return Record(id=row["id"], summary_id=row["summary"], compile=compile, **session, **fields)


def _json(value: object) -> str:
    return _WRITTEN(dict(cast(Mapping[str, object], value)) if isinstance(value, Mapping) else value)


def _real(value: float) -> float:
    return float(value) if value == value else 0.0  # SQLite stores NaN as NULL


def escape_surrogates(text: str) -> str:
    """Replace lone surrogates, which SQLite cannot store, by backslash escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_text(value: object) -> bool:
    """True unless the value is a string with lone surrogates, which replace damaged bytes."""
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Column) -> Column:
    return escape_surrogates(value) if isinstance(value, str) else value


def _drops(items: Iterable[object]) -> Iterable[Drop]:
    for item in items:
        if isinstance(item, dict):
            drop = cast("dict[str, Any]", item)
            yield Drop(what=str(drop.get("what", "")), reason=str(drop.get("reason", "")), tokens=drop.get("tokens", 0))


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """Run a write transaction; an error rolls it back."""
    _begin(db)
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _begin(db: sqlite3.Connection) -> None:
    """Begin a write transaction as soon as no other process writes, within the busy timeout.

    SQLite's own wait sleeps longer after each attempt, so with many writers some of them would time out.
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
    """Run a read transaction, which sees one state of the file regardless of concurrent writes."""
    db.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
