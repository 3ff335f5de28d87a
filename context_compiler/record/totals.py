"""Sums over the requests and compiles of many sessions, which the database computes from indexes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from context_compiler.record.browse import SORTS
from context_compiler.record.database import Database
from context_compiler.record.queries import OWNED
from context_compiler.record.rows import escape_surrogates, mapping, stamp
from context_compiler.record.values import REPLAYS, mapping_of

IMPORTED = "imported"
"""First word of the status of an imported conversation, of which nothing was sent."""

_IMPORTED = f"v.status LIKE '{IMPORTED}%'"
_SENDS = f"s.session_id NOT LIKE '{REPLAYS}'"
"""Condition for the sessions that count in totals: of a replay, nothing was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSums:
    """Sums over requests of one session whose input is priced alike."""

    session: int
    model: str
    provider: str | None
    requests: int
    """Requests that were sent; no other sum but `imported` includes the others."""
    imported: int
    tokens_raw: int
    tokens_sent: int
    largest_raw: int
    """Tokens of the largest request, which decide its rates, and so those of all."""
    largest_sent: int
    cached: int
    cached_raw: int
    with_recall: int
    tokens_recall: int
    compiled: int
    fallbacks: int
    over_budget: int
    first_at: str | None
    """Stored time of the first request that was sent; None if none was."""
    last_at: str | None
    latencies_ms: Sequence[float] = ()
    """Of each request that was sent; only in `Sums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCompile:
    """A compile by a model."""

    id: int
    session: int
    model: str
    usage: Mapping[str, int]
    latency_ms: float
    sent: bool
    """True if a request contains its summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums over some sessions."""

    names: Mapping[int, str]
    """Names of the sessions by row number, the one used last first."""
    compile_counts: Mapping[int, int]
    """Compiles on the record by session, failed and refused ones included."""
    requests: Sequence[RequestSums]
    compiles: Sequence[MadeCompile]


def sums_of(db: Database, session_id: str | None, sizes_of: SizesOf) -> Sums:
    """Sums over the sessions with a name, or over all that the connection sees, except replays.

    Args:
        db: The record.
        session_id: The name; None is every name.
        sizes_of: Function from a model and its provider to the sizes of a request above which other rates apply.
    """
    name = None if session_id is None else escape_surrogates(session_id)
    named = f"(s.session_id = ?1 OR ?1 IS NULL AND {_SENDS})"
    compiles = "(SELECT count(*) FROM context_summaries c WHERE c.session = s.id)"
    query = f"SELECT s.id, s.session_id, {compiles} FROM sessions s WHERE {named} AND {OWNED.format(2)}"
    with db.snapshot():
        listed = db.execute(f"{query} ORDER BY {SORTS['used']}, s.id DESC", (name, db.owner)).fetchall()
        names = {row[0]: row[1] for row in listed}
        among = None if session_id is None and db.owner is None else [*names]
        return Sums(
            names=names,
            compile_counts={row[0]: row[2] for row in listed},
            requests=_timed_sums(db, among, sizes_of),
            compiles=made_compiles(db, among),
        )


SizesOf = Callable[[str, str | None], Iterable[int]]
"""Maps a model and its provider to the sizes of a request above which other rates apply."""


SIZED = ("tokens_sent", "tokens_raw")

SUMS = ", ".join(
    (
        f"count(*) - count(CASE WHEN {_IMPORTED} THEN 1 END) AS requests",
        f"count(CASE WHEN {_IMPORTED} THEN 1 END) AS imported",
        f"CAST(sum(CASE WHEN {_IMPORTED} THEN 0 ELSE v.tokens_raw END) AS BIGINT) AS tokens_raw",
        *(f"CAST(sum(v.{key}) AS BIGINT) AS {key}" for key in ("tokens_sent", "cached", "cached_raw", "tokens_recall")),
        "max(v.tokens_raw) AS largest_raw",
        "max(v.tokens_sent) AS largest_sent",
        "count(CASE WHEN v.tokens_recall > 0 THEN 1 END) AS with_recall",
        "count(CASE WHEN v.status LIKE 'compiled%' THEN 1 END) AS compiled",
        "count(CASE WHEN v.status LIKE 'fallback%' THEN 1 END) AS fallbacks",
        "count(CASE WHEN v.status LIKE 'floor_over_budget%' THEN 1 END) AS over_budget",
        *(
            f"{end}(CASE WHEN {_IMPORTED} THEN NULL ELSE v.created_at END) AS {name}"
            for end, name in (("min", "first_at"), ("max", "last_at"))
        ),
    )
)

LATENCIES = f"json_group_array(CASE WHEN {_IMPORTED} THEN NULL ELSE v.latency_ms END) AS latencies"


def request_sums(
    db: Database, sessions: Sequence[int] | None, sizes_of: SizesOf, *, between: tuple[int, int] | None = None
) -> list[RequestSums]:
    """Sums over the requests of some sessions, or of all for None, by session and price.

    Args:
        db: The record.
        sessions: Row numbers of the sessions.
        sizes_of: Function from a model and its provider to the sizes of a request above which other rates apply.
        between: Row numbers of the first and last request; None for all.
    """
    groups = _grouped(db, sessions, sizes_of, "v.session", between=between)
    return [RequestSums(session=key, **sums) for key, sums in groups]


def _timed_sums(db: Database, sessions: Sequence[int] | None, sizes_of: SizesOf) -> list[RequestSums]:
    """The same with latencies, as a JSON list for each group: a row for each request takes twice the time."""
    timed = list[RequestSums]()
    for key, sums in _grouped(db, sessions, sizes_of, "v.session", f"{SUMS}, {LATENCIES}"):
        latencies = [latency for latency in json.loads(sums.pop("latencies")) if latency is not None]
        timed.append(RequestSums(session=key, latencies_ms=latencies, **sums))
    return timed


def sums_over_time(
    db: Database, sessions: Sequence[int] | None, sizes_of: SizesOf, digits: int
) -> list[tuple[str, RequestSums]]:
    """The same by the first `digits` characters of the requests' times, such as 10 for days."""
    groups = _grouped(db, sessions, sizes_of, f"substr(v.created_at, 1, {digits:d})")
    return [(str(key), RequestSums(session=0, **sums)) for key, sums in groups]


def own_sessions(db: Database) -> list[int] | None:
    """Sessions of the connection's owner, except replays; None if it sees those of all owners."""
    if db.owner is None:
        return None
    return [row[0] for row in db.execute(f"SELECT s.id FROM sessions s WHERE s.owner = ? AND {_SENDS}", (db.owner,))]


def _grouped(
    db: Database,
    sessions: Sequence[int] | None,
    sizes_of: SizesOf,
    key: str,
    columns: str = SUMS,
    between: tuple[int, int] | None = None,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    where, parameters = _within(sessions)
    if between is not None:
        where, parameters = f"{where} AND v.id BETWEEN ? AND ?", (*parameters, *between)
    models = db.execute(f"SELECT DISTINCT v.model, v.provider FROM views v WHERE {where}", parameters).fetchall()
    sizes = sorted({size for row in models for size in sizes_of(row[0], row[1])})
    rates = [f"CASE WHEN v.{column} > {size:d} THEN 1 END" for column in SIZED for size in sizes]
    groups = db.execute(
        f"SELECT {key} AS grouped, v.model, v.provider, {columns} FROM views v WHERE {where}"
        f" GROUP BY {', '.join([key, 'v.model', 'v.provider', *rates])} ORDER BY 1",
        parameters,
    )
    for row in groups:
        sums = {**mapping(row)}
        yield sums.pop("grouped"), sums


_MADE = (
    "SELECT c.id, c.session, c.model_alias AS model, c.usage, c.latency_ms FROM context_summaries c"
    " WHERE c.usage <> '{}'"
)


def made_compiles(db: Database, sessions: Sequence[int] | None) -> list[MadeCompile]:
    """Compiles by a model: those whose summaries the requests of some sessions contain, and their unsent ones.

    One that requests of several sessions contain is returned for each of them.
    """
    where, parameters = _within(sessions)
    used = db.execute(
        f"SELECT DISTINCT v.summary, v.session FROM views v WHERE v.summary NOT NULL AND {where}", parameters
    )
    sent = [(row[0], row[1]) for row in used]
    numbers = None if sessions is None else json.dumps(sorted({number for number, _ in sent}))
    among = "" if numbers is None else " AND c.id IN (SELECT value FROM json_each(?))"
    rows = {row["id"]: row for row in db.execute(_MADE + among, () if numbers is None else (numbers,))}
    unsent = db.execute(
        f"{_MADE} AND {where.replace('v.', 'c.')} AND NOT EXISTS (SELECT 1 FROM views v WHERE v.summary = c.id)",
        parameters,
    ).fetchall()
    return [
        *(_made(rows[number], session, sent=True) for number, session in sent if number in rows),
        *(_made(row, row["session"], sent=False) for row in unsent),
    ]


def _made(row: Any, session: int, *, sent: bool) -> MadeCompile:
    return MadeCompile(
        id=row["id"],
        session=session,
        model=str(row["model"]),
        usage=mapping_of(row["usage"]),
        latency_ms=row["latency_ms"],
        sent=sent,
    )


def sent_compiles(db: Database, session: int, first: int, last: int) -> list[MadeCompile]:
    """Compiles by a model whose summaries the requests from `first` to `last` contain."""
    within = "c.id IN (SELECT v.summary FROM views v WHERE v.session = ? AND v.id BETWEEN ? AND ?)"
    return [_made(row, session, sent=True) for row in db.execute(f"{_MADE} AND {within}", (session, first, last))]


def unsent_compiles(db: Database, session: int, since: datetime | None, until: datetime | None) -> list[MadeCompile]:
    """Compiles by a model whose summaries no request contains, made after `since` and up to `until`."""
    compiles = db.execute(
        f"{_MADE} AND c.session = ?1 AND (?2 IS NULL OR c.created_at > ?2) AND (?3 IS NULL OR c.created_at <= ?3)"
        " AND NOT EXISTS (SELECT 1 FROM views v WHERE v.summary = c.id)",
        (session, *(None if time is None else stamp(time) for time in (since, until))),
    )
    return [_made(row, session, sent=False) for row in compiles]


def _within(sessions: Sequence[int] | None) -> tuple[str, tuple[object, ...]]:
    """SQL condition on the session of a row `v`, and its parameters; None is all except replays."""
    if sessions is None:
        return f"v.session IN (SELECT s.id FROM sessions s WHERE {_SENDS})", ()
    return "v.session IN (SELECT value FROM json_each(?))", (json.dumps(sessions),)
