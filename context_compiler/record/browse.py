"""Queries of one page each, for a record of any size: sessions, requests, and chains without their bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple, cast

from context_compiler.record import rows
from context_compiler.record.database import Database
from context_compiler.record.queries import OWNED, SUMMARIES, VIEWS, compiles_of, record_of
from context_compiler.record.rows import prefix, writer_of
from context_compiler.record.values import Compile, Drop, Record, mapping_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One conversation with its totals."""

    id: int
    session_id: str
    vault_name: str
    created_at: datetime
    last_at: datetime | None
    requests: int
    compiles: int
    fallbacks: int
    over_budget: int
    tokens_raw: int
    tokens_sent: int
    messages: int
    """Length of its raw history as last seen; 0 without content."""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request without its messages."""

    id: int
    session: int
    """Row number of its session."""
    turn_index: int
    run_id: str | None
    request_index: int
    status: str
    """First word of the status."""
    error: str | None
    budget: int | None
    tokens_raw: int
    tokens_sent: int
    messages_raw: int | None
    """Length of its raw history; None without content."""
    messages_sent: int | None
    raw_tip: str | None
    view_tip: str | None
    summary_id: int | None
    """Row number of the compile whose summary it carries."""
    template: str | None
    fidelity: str | None
    model: str | None
    """Model that was asked for that summary; `none` for no model."""
    latency_ms: float
    created_at: datetime


class Node(NamedTuple):
    """A message of a chain without its body; a tuple, because a chain may have tens of thousands."""

    id: str
    content: str
    """Hash of the body, which two chains have in common where they hold the same message."""
    instructions: str | None = None
    """Hash of the instructions of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Conditions of a list of sessions; an empty one holds for all."""

    name: str = ""
    """A part of the session's name."""
    text: str = ""
    """Words that were said in it; `among` is what they lead to."""
    status: str = ""
    """First word of the status of at least one of its requests."""
    template: str = ""
    model: str = ""
    among: tuple[int, ...] | None = None
    """Row numbers; None means any."""


_SESSIONS = (
    "SELECT s.id, s.session_id, s.vault_name, s.owner, s.created_at, max(v.created_at) AS last_at,"
    " count(v.id) AS requests, CAST(ifnull(sum(v.tokens_raw), 0) AS BIGINT) AS tokens_raw,"
    " CAST(ifnull(sum(v.tokens_sent), 0) AS BIGINT) AS tokens_sent,"
    " count(CASE WHEN v.status LIKE 'fallback%' THEN 1 END) AS fallbacks,"
    " count(CASE WHEN v.status LIKE 'floor_over_budget%' THEN 1 END) AS over_budget,"
    " (SELECT count(*) FROM context_summaries c WHERE c.session = s.id) AS compiles,"
    " (SELECT n.position + 1 FROM nodes n WHERE n.id = s.raw_tip) AS messages"
    " FROM sessions s LEFT JOIN views v ON v.session = s.id"
)
_REQUESTS = (
    "SELECT v.id, v.session, v.turn_index, v.run_id, v.request_index, v.status, v.error, v.budget, v.tokens_raw,"
    " v.tokens_sent, v.raw_tip, v.view_tip, v.summary, v.latency_ms, v.created_at, c.template_name, c.fidelity,"
    " c.model_alias, r.position + 1 AS messages_raw, w.position + 1 AS messages_sent"
    " FROM views v LEFT JOIN context_summaries c ON c.id = v.summary"
    " LEFT JOIN nodes r ON r.id = v.raw_tip LEFT JOIN nodes w ON w.id = v.view_tip"
    " JOIN sessions s ON s.id = v.session"
)


_CHAIN = (
    "WITH RECURSIVE up (id, parent, content, instructions, depth) AS ("
    "SELECT id, parent, content, instructions, 1 FROM nodes WHERE id = ?1"
    " UNION ALL SELECT n.id, n.parent, n.content, n.instructions, up.depth + 1"
    " FROM up JOIN nodes n ON n.id = up.parent WHERE ?2 < 0 OR up.depth < ?2)"
)
"""A chain from its end to its beginning, or only the last messages of it."""

NEAR = 64
"""Messages of a known chain that are looked for in another, at its end."""

_FROM_KNOWN = (
    "WITH RECURSIVE up (id, parent, content, instructions, position) AS"
    " (SELECT id, parent, content, instructions, position FROM nodes WHERE id = ?1 UNION ALL"
    " SELECT n.id, n.parent, n.content, n.instructions, n.position FROM up JOIN nodes n ON n.id = up.parent"
    " WHERE NOT (up.id IN (SELECT value FROM json_each(?2))))"
    " SELECT id, content, instructions, position FROM up ORDER BY position DESC"
)
"""A chain from its end to the first of some messages, or to its beginning."""


def sessions_page(db: Database, wanted: SessionFilter, *, limit: int, offset: int = 0) -> tuple[list[SessionRow], int]:
    """Sessions, most recently used first, and how many there are in all."""
    where, given = _conditions(wanted, db.owner)
    with db.snapshot():
        (total,) = db.execute(f"SELECT count(*) FROM sessions s WHERE {where}", given).fetchone()
        found = db.execute(
            "SELECT s.id FROM sessions s LEFT JOIN (SELECT session, max(id) AS newest FROM views GROUP BY session) n"
            f" ON n.session = s.id WHERE {where} ORDER BY n.newest DESC NULLS LAST, s.id DESC LIMIT ? OFFSET ?",
            (*given, limit, offset),
        ).fetchall()
        order = [row["id"] for row in found]
        return [_session(row) for row in _in_order(db, f"{_SESSIONS} WHERE s.id", "GROUP BY s.id", order)], total


def _conditions(wanted: SessionFilter, owner: str | None) -> tuple[str, list[object]]:
    said, given = ["1 = 1"], list[object]()
    if owner is not None:
        said.append("s.owner = ?")
        given.append(owner)
    if wanted.name:
        said.append("instr(lower(s.session_id), lower(?)) > 0")
        given.append(rows.plain(wanted.name))
    if wanted.status:
        said.append(
            "EXISTS (SELECT 1 FROM views v WHERE v.session = s.id AND (v.status = ? OR v.status LIKE ? || ';%'))"
        )
        given += [wanted.status, wanted.status]
    for column, value in (("template_name", wanted.template), ("model_alias", wanted.model)):
        if value:
            said.append(f"EXISTS (SELECT 1 FROM context_summaries c WHERE c.session = s.id AND c.{column} = ?)")
            given.append(rows.plain(value))
    if wanted.among is not None:
        said.append("s.id IN (SELECT value FROM json_each(?))")
        given.append(json.dumps(sorted(wanted.among)))
    return " AND ".join(said), given


def _in_order(db: Database, query: str, end: str, order: Sequence[int]) -> list[Any]:
    found = db.execute(f"{query} IN (SELECT value FROM json_each(?)) {end}", (json.dumps(order),))
    by_number = {row["id"]: row for row in found}
    return [by_number[number] for number in order if number in by_number]


def find_session(db: Database, number: int) -> SessionRow | None:
    """The session in that row."""
    query = f"{_SESSIONS} WHERE s.id = ?1 AND {OWNED.format(2)} GROUP BY s.id"
    row = db.execute(query, (number, db.owner)).fetchone()
    return None if row is None else _session(row)


def session_number(db: Database, session_id: str, vault_name: str = "") -> int | None:
    """Row number of a session by its name; of several owners', if the connection sees all, that of the first."""
    names = rows.plain(session_id), rows.plain(vault_name), db.owner
    query = f"SELECT s.id FROM sessions s WHERE s.session_id = ?1 AND s.vault_name = ?2 AND {OWNED.format(3)}"
    row = db.execute(f"{query} ORDER BY s.owner LIMIT 1", names).fetchone()
    return None if row is None else row["id"]


def choices(db: Database) -> Mapping[str, list[str]]:
    """Templates and models that occur on the record."""
    own = f"context_summaries c JOIN sessions s ON s.id = c.session WHERE {OWNED.format(1)}"
    return {
        name: [row[0] for row in db.execute(f"SELECT DISTINCT c.{column} FROM {own} ORDER BY 1", (db.owner,))]
        for name, column in (("template", "template_name"), ("model", "model_alias"))
    }


def requests_page(
    db: Database, session: int | None, *, limit: int, offset: int = 0, status: str = ""
) -> tuple[list[RequestRow], int]:
    """Requests of a session, or of all, newest first, and how many there are in all."""
    where = "(?1 IS NULL OR v.session = ?1) AND (?2 = '' OR v.status = ?2 OR v.status LIKE ?2 || ';%')"
    with db.snapshot():
        owner = db.owner
        every = f"SELECT count(*) FROM views v JOIN sessions s ON s.id = v.session WHERE {where} AND {OWNED.format(3)}"
        (total,) = db.execute(every, (session, status, owner)).fetchone()
        found = db.execute(
            f"{_REQUESTS} WHERE {where} AND {OWNED.format(3)} ORDER BY v.id DESC LIMIT ?4 OFFSET ?5",
            (session, status, owner, limit, offset),
        )
        return [_request(row) for row in found], total


def request_numbers(db: Database, session: int | None, after: int, limit: int) -> list[int]:
    """Numbers of the requests beyond one, of a session or of all, the lowest first."""
    within, given = ("", ()) if session is None else ("v.session = ?4 AND ", (session,))
    query = "SELECT v.id FROM views v JOIN sessions s ON s.id = v.session"
    where = f"{within}v.id > ?1 AND {OWNED.format(3)}"
    found = db.execute(f"{query} WHERE {where} ORDER BY v.id LIMIT ?2", (after, limit, db.owner, *given))
    return [row[0] for row in found]


def requests_named(db: Database, numbers: Sequence[int]) -> list[RequestRow]:
    """Requests by their numbers, in the same order."""
    return [_request(row) for row in _in_order(db, f"{_REQUESTS} WHERE v.id", "", numbers)]


def newest_request(db: Database) -> int:
    """Number of the newest request of all; 0 without any."""
    return db.execute("SELECT ifnull(max(id), 0) FROM views").fetchone()[0]


def find_request(db: Database, number: int) -> tuple[RequestRow, Record] | None:
    """The request in that row, as a row and in full."""
    with db.snapshot():
        row = db.execute(f"{_REQUESTS} WHERE v.id = ?1 AND {OWNED.format(2)}", (number, db.owner)).fetchone()
        if row is None:
            return None
        full = db.execute(f"{VIEWS} WHERE v.id = ?", (number,)).fetchone()
        return _request(row), record_of(db, full)


def neighbours(db: Database, request: RequestRow) -> tuple[int | None, int | None]:
    """Numbers of the requests before and after one in its session."""
    before = db.execute("SELECT max(id) FROM views WHERE session = ? AND id < ?", (request.session, request.id))
    after = db.execute("SELECT min(id) FROM views WHERE session = ? AND id > ?", (request.session, request.id))
    return before.fetchone()[0], after.fetchone()[0]


def decisions(db: Database, request: RequestRow, limit: int) -> list[tuple[int, tuple[Drop, ...]]]:
    """Drops of the requests before one in its session that cut the history back, the newest first."""
    found = db.execute(
        "SELECT id, ledger FROM views WHERE session = ? AND id < ? AND (status LIKE 'compiled%'"
        " OR status LIKE 'fallback%' OR status LIKE 'floor_over_budget%') ORDER BY id DESC LIMIT ?",
        (request.session, request.id, limit),
    )
    return [(row["id"], listed_drops(mapping_of(row["ledger"]))) for row in found]


def listed_drops(ledger: Mapping[str, Any]) -> tuple[Drop, ...]:
    """Drops that a token breakdown lists."""
    lines = cast("list[Mapping[str, Any]]", ledger.get("dropped") or [])
    found: list[Drop] = []
    for line in lines:
        named = cast("list[Any]", line.get("what") or [])
        found += [Drop(what=str(what), reason=str(line.get("reason", ""))) for what in named]
    return tuple(found)


def find_compile(db: Database, number: int) -> tuple[int, Compile] | None:
    """The compile in that row, and the row of its session."""
    with db.snapshot():
        query = f"{SUMMARIES} WHERE c.id = ?1 AND {OWNED.format(2)}"
        row = db.execute(query, (number, db.owner)).fetchone()
        return None if row is None else (row["session"], compiles_of([row])[number])


def carriers(db: Database, compile: int) -> tuple[int | None, int | None, int]:
    """First and last of the requests that carry the summary of a compile, and their number."""
    row = db.execute("SELECT min(id), max(id), count(*) FROM views WHERE summary = ?", (compile,)).fetchone()
    return row[0], row[1], row[2]


def newest_raw_tip(db: Database, session: int) -> str | None:
    """End of the raw history of a session as last seen."""
    row = db.execute("SELECT raw_tip FROM sessions WHERE id = ?", (session,)).fetchone()
    return None if row is None else row[0]


def chain_nodes(db: Database, tip: str | None, session: int, known: Sequence[Node] = ()) -> list[Node]:
    """A chain without its bodies, oldest first; what it shares with a `known` one of its session is not read again."""
    row = db.execute("SELECT position FROM nodes WHERE id = ?", (tip,)).fetchone()
    if row is None:
        return []
    near = known[max(0, row[0] - NEAR) : row[0] + 1] or known[-1:]
    found = db.execute(_FROM_KNOWN, (tip, json.dumps([node.id for node in near]))).fetchall()
    copies = dict(db.execute("SELECT node, content FROM copies WHERE session = ?", (session,)).fetchall())
    fresh: list[Node] = [Node(row[0], copies.get(row[0], row[1]), row[2]) for row in reversed(found)]
    begins: int = found[-1]["position"]
    return [*known[:begins], *fresh] if fresh[0].id in {one.id for one in known[begins : begins + 1]} else fresh


def last_nodes(db: Database, tip: str, count: int) -> list[Node]:
    """The last messages of a chain, oldest first."""
    found = db.execute(f"{_CHAIN} SELECT id, content, instructions FROM up ORDER BY depth", (tip, count)).fetchall()
    return [Node(row[0], row[1], row[2]) for row in reversed(found)]


def message_bodies(db: Database, nodes: Sequence[Node]) -> list[bytes]:
    """Messages of a chain with their instructions, in the same order."""
    found = bodies(db, [node.content for node in nodes])
    names = sorted({node.instructions for node in nodes if node.instructions is not None})
    texts = dict(zip(names, map(rows.to_text, bodies(db, names)), strict=True))
    return [
        body if node.instructions is None else rows.join_instructions(body, texts[node.instructions])
        for node, body in zip(nodes, found, strict=True)
    ]


def bodies(db: Database, contents: Sequence[str]) -> list[bytes]:
    """Bodies by their hashes, in the same order; messages are without their instructions."""
    found = db.execute(
        "SELECT hash, body FROM contents WHERE hash IN (SELECT value FROM json_each(?))", (json.dumps(contents),)
    )
    known = {row["hash"]: rows.unpack(row["body"]) for row in found}
    return [known[name] for name in contents]


class RequestTips(NamedTuple):
    """One request as the ends of its two chains; a tuple, because a session may have tens of thousands."""

    id: int
    turn_index: int
    raw_tip: str | None
    view_tip: str | None


def request_tips(db: Database, session: int) -> list[RequestTips]:
    """All requests of a session as they were sent, oldest first: in a dry run that is the raw history."""
    found = db.execute(
        "SELECT id, turn_index, raw_tip, CASE WHEN substr(status, 1, 7) = 'dry_run' THEN raw_tip ELSE view_tip END"
        " FROM views WHERE session = ? ORDER BY id",
        (session,),
    )
    return [RequestTips(*row) for row in found]


Row = tuple[str, str | None, str, int, str | None]
"""A message as id, parent, content hash, position and hash of its instructions."""


def session_nodes(
    db: Database, session: int, tips: Iterable[RequestTips], known: Mapping[str, Row] | None = None
) -> Mapping[str, Row]:
    """Every message of these requests of a session once by its id, parents first; `known` ones are not read again."""
    known = known or {}
    ends = {tip for one in tips for tip in (one.raw_tip, one.view_tip) if tip is not None and tip not in known}
    if not ends:
        return known
    # with an end for each request of the record, all messages are faster read than one by one
    (newest,) = db.execute("SELECT max(id) FROM views").fetchone()
    fresh = _walked(db, ends, known) if len(ends) >= newest else _climbed(db, ends, known)
    for node, content in db.execute("SELECT node, content FROM copies WHERE session = ?", (session,)):
        if node in fresh:
            name, parent, _, position, instructions = fresh[node]
            fresh[node] = name, parent, content, position, instructions
    return {**known, **{row[0]: row for row in sorted(fresh.values(), key=itemgetter(3))}}


def _walked(db: Database, ends: Iterable[str], known: Mapping[str, Row]) -> dict[str, Row]:
    every: dict[str, Row] = {row[0]: tuple(row) for row in db.execute(f"SELECT {_ROW} FROM nodes")}
    seen: dict[str, Row] = {}
    for tip in ends:
        at: str | None = tip
        while at is not None and at not in seen and at not in known and at in every:
            seen[at] = every[at]
            at = every[at][1]
    return seen


def _climbed(db: Database, ends: set[str], known: Mapping[str, Row]) -> dict[str, Row]:
    """Messages by their ends: those near an end level by level, a long rest in one query."""
    seen: dict[str, Row] = {}
    for level in range(LEVELS + 1):
        if not ends:
            break
        found = db.execute(_NAMED if level < LEVELS else _ABOVE, (json.dumps(list(ends)),))
        fresh: dict[str, Row] = {row[0]: tuple(row) for row in found}
        seen |= fresh
        ends = {row[1] for row in fresh.values() if row[1] is not None and row[1] not in seen and row[1] not in known}
    return seen


_ROW = "id, parent, content, position, instructions"

LEVELS = 24
"""Levels that are read one by one."""

_NAMED = f"SELECT {_ROW} FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
_ABOVE = (
    f"WITH RECURSIVE up ({_ROW}) AS ({_NAMED}"
    " UNION SELECT n.id, n.parent, n.content, n.position, n.instructions FROM up JOIN nodes n ON n.id = up.parent)"
    f" SELECT {_ROW} FROM up"
)


def matching_nodes(db: Database, words: str, limit: int) -> list[tuple[str, str]]:
    """Raw messages that hold these words one after the other, the newest first: id and searchable text.

    The last word may be the beginning of a longer one.
    """
    pieces = re.findall(r"\w+", words)
    if not pieces:
        return []
    owner = db.owner
    return db.find_messages(pieces, limit, prefix=None if owner is None else prefix(owner))


CONVERSATIONS = 500
"""Newest conversations of an owner that are looked at together."""


def newest_conversations(db: Database) -> list[tuple[int, str, str, str]]:
    """Number, name, beginning and end of the newest conversations of an owner that have content.

    The number of a deleted one may be that of another later, which has another name or began at another time.
    """
    found = db.execute(
        "SELECT id, session_id, created_at, raw_tip FROM sessions WHERE owner = ? AND raw_tip NOT NULL"
        " ORDER BY id DESC LIMIT ?",
        (writer_of(db), CONVERSATIONS),
    )
    return [(row[0], row[1], row[2], row[3]) for row in found]


def messages_since(db: Database, tip: str, known: str | None, most: int) -> tuple[list[bytes], bool]:
    """The newest messages up to `tip`, oldest first and without instructions: those after `known`, or at most `most`.

    The second value says if they follow `known` directly.
    """
    found = db.execute(
        "WITH RECURSIVE up (id, parent, content, place) AS (SELECT id, parent, content, 1 FROM nodes WHERE id = ?1"
        " UNION ALL SELECT n.id, n.parent, n.content, up.place + 1 FROM up JOIN nodes n ON n.id = up.parent"
        " WHERE up.place < ?2 AND up.parent <> ?3)"
        " SELECT up.parent, t.body FROM up JOIN contents t ON t.hash = up.content ORDER BY up.place DESC",
        (tip, most, known or ""),
    ).fetchall()
    goes_on = bool(found) and known is not None and found[0][0] == known
    return [rows.unpack(row[1]) for row in found], goes_on


def root_of(db: Database, node: str) -> str | None:
    """First message of the chains that a message is in."""
    row = db.execute(
        "WITH RECURSIVE up (id, parent) AS (SELECT id, parent FROM nodes WHERE id = ?"
        " UNION ALL SELECT n.id, n.parent FROM up JOIN nodes n ON n.id = up.parent)"
        " SELECT id FROM up WHERE parent IS NULL",
        (node,),
    ).fetchone()
    return None if row is None else row[0]


def first_tips(db: Database, after: int = 0) -> list[tuple[int, str]]:
    """Row number of every session beyond `after`, with the end of the raw history of its first request."""
    found = db.execute(
        "SELECT s.id, coalesce((SELECT v.raw_tip FROM views v WHERE v.session = s.id AND v.raw_tip NOT NULL"
        " ORDER BY v.id LIMIT 1), s.raw_tip) AS tip FROM sessions s WHERE s.id > ?1"
        f" AND {OWNED.format(2)}",
        (after, db.owner),
    )
    return [(row[0], row[1]) for row in found if row[1] is not None]


def common_length(db: Database, one: str | None, other: str | None) -> int:
    """Number of messages that two chains have in common at their beginning."""

    def place(name: str | None) -> tuple[str | None, int]:
        row = db.execute("SELECT parent, position FROM nodes WHERE id = ?", (name,)).fetchone()
        return (None, -1) if row is None else (row[0], row[1])

    (above, at), (other_above, other_at) = place(one), place(other)
    while one != other:
        if at >= other_at:
            one = above
            above, at = place(one)
        else:
            other = other_above
            other_above, other_at = place(other)
    return at + 1


def compile_usage(db: Database, session: int, first: int, last: int) -> list[tuple[str, dict[str, int]]]:
    """Model and usage of every compile that the requests from `first` to `last` carry, each once."""
    found = db.execute(
        "SELECT model_alias, usage FROM context_summaries WHERE usage <> '{}' AND id IN"
        " (SELECT summary FROM views WHERE session = ? AND id BETWEEN ? AND ?)",
        (session, first, last),
    )
    return [(row["model_alias"], mapping_of(row["usage"])) for row in found]


def unsent_usage(
    db: Database, session: int, since: datetime | None, until: datetime | None
) -> list[tuple[str, dict[str, int]]]:
    """Model and usage of every compile that no request carries, after `since` and up to `until`."""
    found = db.execute(
        "SELECT id, model_alias, usage FROM context_summaries WHERE session = ?1 AND usage <> '{}'"
        " AND (?2 IS NULL OR created_at > ?2) AND (?3 IS NULL OR created_at <= ?3)"
        " AND id NOT IN (SELECT summary FROM views WHERE session = ?1 AND summary IS NOT NULL)",
        (session, *(None if at is None else rows.stamp(at) for at in (since, until))),
    ).fetchall()
    return [(row["model_alias"], mapping_of(row["usage"])) for row in found if not carriers(db, row["id"])[2]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A call of a model that writes a summary now."""

    session: int
    session_id: str
    model: str
    started_at: datetime
    until: datetime
    """The end of its time limit."""


def compiles_under_way(db: Database, session: int | None = None) -> list[UnderWay]:
    """Calls for summaries of a session, or of all, that have no outcome yet, the newest first.

    The row of a compile is its outcome. A call without one is over when its time limit has passed.
    """
    found = db.execute(
        "SELECT u.session, s.session_id, u.model, u.started_at, u.expires_at"
        " FROM under_way u JOIN sessions s ON s.id = u.session"
        f" WHERE u.expires_at > ?1 AND (?2 IS NULL OR u.session = ?2) AND {OWNED.format(3)} AND NOT EXISTS"
        " (SELECT 1 FROM context_summaries c WHERE c.session = u.session AND c.created_at >= u.started_at)"
        " ORDER BY u.started_at DESC",
        (rows.stamp(datetime.now(UTC)), session, db.owner),
    )
    return [
        UnderWay(
            session=row[0],
            session_id=row[1],
            model=row[2],
            started_at=rows.parse_stamp(row[3]),
            until=rows.parse_stamp(row[4]),
        )
        for row in found
    ]


def _session(row: Any) -> SessionRow:
    return SessionRow(
        id=row["id"],
        session_id=row["session_id"],
        vault_name=row["vault_name"],
        created_at=rows.parse_stamp(row["created_at"]),
        last_at=None if row["last_at"] is None else rows.parse_stamp(row["last_at"]),
        requests=row["requests"],
        compiles=row["compiles"],
        fallbacks=row["fallbacks"],
        over_budget=row["over_budget"],
        tokens_raw=row["tokens_raw"],
        tokens_sent=row["tokens_sent"],
        messages=row["messages"] or 0,
        owner=row["owner"],
    )


def _request(row: Any) -> RequestRow:
    return RequestRow(
        id=row["id"],
        session=row["session"],
        turn_index=row["turn_index"],
        run_id=row["run_id"],
        request_index=row["request_index"],
        status=row["status"].partition(";")[0].strip(),
        error=row["error"],
        budget=row["budget"],
        tokens_raw=row["tokens_raw"],
        tokens_sent=row["tokens_sent"],
        messages_raw=row["messages_raw"],
        messages_sent=row["messages_sent"],
        raw_tip=row["raw_tip"],
        view_tip=row["view_tip"],
        summary_id=row["summary"],
        template=row["template_name"],
        fidelity=row["fidelity"],
        model=row["model_alias"],
        latency_ms=row["latency_ms"],
        created_at=rows.parse_stamp(row["created_at"]),
    )
