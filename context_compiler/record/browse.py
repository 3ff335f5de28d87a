"""Paged queries for browsing a record of any size: sessions, requests, and chains without message bodies."""

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
from context_compiler.record.queries import OWNED, SUMMARIES, VIEWS, record_of
from context_compiler.record.rows import prefix, writer_of
from context_compiler.record.values import REPLAYS, Compile, Drop, Record, mapping_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A session with its totals."""

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
    """Length of its newest raw history; 0 if content is not recorded."""
    owner: str = ""
    layers: bool = False
    """True if layers are stored for it."""
    managed: bool = False
    """True if a manager has scored its turns or made checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request without its messages."""

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
    cached: int
    """Tokens of the sent request that the prompt cache contains."""
    messages_raw: int | None
    """Length of its raw history; None if content is not recorded."""
    messages_sent: int | None
    raw_tip: str | None
    view_tip: str | None
    summary_id: int | None
    """Row number of the compile whose summary it contains."""
    template: str | None
    fidelity: str | None
    model: str | None
    """Model that wrote the summary; `none` if no model did."""
    latency_ms: float
    created_at: datetime


class Node(NamedTuple):
    """A message of a chain without its body; a tuple, because a chain may contain tens of thousands of them."""

    id: str
    content: str
    """Hash of the body; the same message has the same hash in every chain."""
    instructions: str | None = None
    """Hash of the message's instructions; None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """Conditions that a listed session must meet; empty ones match every session."""

    name: str = ""
    """Substring of the session's name, ignoring case."""
    text: str = ""
    """Words from its messages. The caller searches for them and passes the matching sessions in `among`."""
    status: str = ""
    """First word of the status that at least one of its requests has."""
    template: str = ""
    model: str = ""
    among: tuple[int, ...] | None = None
    """Row numbers of the allowed sessions; None allows any."""
    sort: str = "used"
    """One of `SORTS`."""


_SESSIONS = (
    "SELECT s.id, s.session_id, s.vault_name, s.owner, s.created_at, max(v.created_at) AS last_at,"
    " count(v.id) AS requests, CAST(ifnull(sum(v.tokens_raw), 0) AS BIGINT) AS tokens_raw,"
    " CAST(ifnull(sum(v.tokens_sent), 0) AS BIGINT) AS tokens_sent,"
    " count(CASE WHEN v.status LIKE 'fallback%' THEN 1 END) AS fallbacks,"
    " count(CASE WHEN v.status LIKE 'floor_over_budget%' THEN 1 END) AS over_budget,"
    " (SELECT count(*) FROM context_summaries c WHERE c.session = s.id) AS compiles,"
    " (SELECT n.position + 1 FROM nodes n WHERE n.id = s.raw_tip) AS messages,"
    " (SELECT count(*) FROM layers l WHERE l.session = s.id) AS layers,"
    " (SELECT count(*) FROM spaces m WHERE m.session = s.id) AS managed"
    " FROM sessions s LEFT JOIN views v ON v.session = s.id"
)
_REQUESTS = (
    "SELECT v.id, v.session, v.turn_index, v.run_id, v.request_index, v.status, v.error, v.budget, v.tokens_raw,"
    " v.tokens_sent, v.cached, v.raw_tip, v.view_tip, v.summary AS summary_id, v.latency_ms, v.created_at,"
    " c.template_name AS template, c.fidelity, c.model_alias AS model,"
    " r.position + 1 AS messages_raw, w.position + 1 AS messages_sent"
    " FROM views v LEFT JOIN context_summaries c ON c.id = v.summary"
    " LEFT JOIN nodes r ON r.id = v.raw_tip LEFT JOIN nodes w ON w.id = v.view_tip"
    " JOIN sessions s ON s.id = v.session"
)

NEAR = 64
"""Messages near the end of a known chain at which reading another chain may stop."""

_FROM_KNOWN = (
    "WITH RECURSIVE up (id, parent, content, instructions, position) AS"
    " (SELECT id, parent, content, instructions, position FROM nodes WHERE id = ?1 UNION ALL"
    " SELECT n.id, n.parent, n.content, n.instructions, n.position FROM up JOIN nodes n ON n.id = up.parent"
    " WHERE NOT (up.id IN (SELECT value FROM json_each(?2))))"
    " SELECT id, content, instructions, position FROM up ORDER BY position DESC"
)
"""A chain from its tip `?1` back to the first message in the JSON list `?2`, or to its beginning."""


SORTS: Mapping[str, str] = {
    # the time of the newest row, because the newest time of all takes ten times as long to find
    "used": "(SELECT v.created_at FROM views v WHERE v.session = s.id ORDER BY v.id DESC LIMIT 1) DESC NULLS LAST",
    "name": "lower(s.session_id)",
    "requests": "(SELECT count(*) FROM views v WHERE v.session = s.id) DESC",
    "raw": "(SELECT sum(v.tokens_raw) FROM views v WHERE v.session = s.id) DESC NULLS LAST",
    "sent": "(SELECT sum(v.tokens_sent) FROM views v WHERE v.session = s.id) DESC NULLS LAST",
}
"""Orders of a list of sessions, as SQL."""


def sessions_page(db: Database, wanted: SessionFilter, *, limit: int, offset: int = 0) -> tuple[list[SessionRow], int]:
    """A page of sessions in the order of `wanted.sort`, and the total number of matching sessions."""
    where, parameters = _conditions(wanted, db.owner)
    with db.snapshot():
        (total,) = db.execute(f"SELECT count(*) FROM sessions s WHERE {where}", parameters).fetchone()
        numbers = db.execute(
            f"SELECT s.id FROM sessions s WHERE {where} ORDER BY {SORTS[wanted.sort]}, s.id DESC LIMIT ? OFFSET ?",
            (*parameters, limit, offset),
        ).fetchall()
        order = [row["id"] for row in numbers]
        return [_session(row) for row in _in_order(db, f"{_SESSIONS} WHERE s.id", "GROUP BY s.id", order)], total


def _conditions(wanted: SessionFilter, owner: str | None) -> tuple[str, list[object]]:
    """SQL condition on sessions `s`, and its parameters."""
    conditions, parameters = ["1 = 1"], list[object]()
    if owner is not None:
        conditions.append("s.owner = ?")
        parameters.append(owner)
    if wanted.name:
        conditions.append("instr(lower(s.session_id), lower(?)) > 0")
        parameters.append(rows.escape_surrogates(wanted.name))
    if wanted.status:
        conditions.append(
            "EXISTS (SELECT 1 FROM views v WHERE v.session = s.id AND (v.status = ? OR v.status LIKE ? || ';%'))"
        )
        parameters += [wanted.status, wanted.status]
    for column, value in (("template_name", wanted.template), ("model_alias", wanted.model)):
        if value:
            conditions.append(f"EXISTS (SELECT 1 FROM context_summaries c WHERE c.session = s.id AND c.{column} = ?)")
            parameters.append(rows.escape_surrogates(value))
    if wanted.among is not None:
        conditions.append("s.id IN (SELECT value FROM json_each(?))")
        parameters.append(json.dumps(sorted(wanted.among)))
    return " AND ".join(conditions), parameters


def _in_order(db: Database, query: str, end: str, order: Sequence[int]) -> list[Any]:
    """Rows with the given ids, in the order of the ids."""
    stored = db.execute(f"{query} IN (SELECT value FROM json_each(?)) {end}", (json.dumps(order),))
    by_number = {row["id"]: row for row in stored}
    return [by_number[number] for number in order if number in by_number]


def find_session(db: Database, number: int) -> SessionRow | None:
    """Find a session by row number; None if there is no such row."""
    query = f"{_SESSIONS} WHERE s.id = ?1 AND {OWNED.format(2)} GROUP BY s.id"
    row = db.execute(query, (number, db.owner)).fetchone()
    return None if row is None else _session(row)


def session_number(db: Database, session_id: str, vault_name: str = "") -> int | None:
    """Find the row number of a session by name; if several owners have one, take the first owner's."""
    names = rows.escape_surrogates(session_id), rows.escape_surrogates(vault_name), db.owner
    query = f"SELECT s.id FROM sessions s WHERE s.session_id = ?1 AND s.vault_name = ?2 AND {OWNED.format(3)}"
    row = db.execute(f"{query} ORDER BY s.owner LIMIT 1", names).fetchone()
    return None if row is None else row["id"]


def choices(db: Database) -> Mapping[str, list[str]]:
    """Distinct templates and models of all compiles on the record."""
    own = f"context_summaries c JOIN sessions s ON s.id = c.session WHERE {OWNED.format(1)}"
    return {
        name: [row[0] for row in db.execute(f"SELECT DISTINCT c.{column} FROM {own} ORDER BY 1", (db.owner,))]
        for name, column in (("template", "template_name"), ("model", "model_alias"))
    }


def requests_page(
    db: Database, session: int | None, *, limit: int, offset: int = 0, status: str = ""
) -> tuple[list[RequestRow], int]:
    """A page of requests, newest first, and their total number; of all sessions if `session` is None."""
    conditions, parameters = ["1 = 1"], list[object]()
    if session is not None:
        conditions.append("v.session = ?")
        parameters.append(session)
    if status:
        conditions.append("(v.status = ? OR v.status LIKE ? || ';%')")
        parameters += [status, status]
    if db.owner is not None:
        conditions.append("v.session IN (SELECT s.id FROM sessions s WHERE s.owner = ?)")
        parameters.append(db.owner)
    where = " AND ".join(conditions)
    with db.snapshot():
        (total,) = db.execute(f"SELECT count(*) FROM views v WHERE {where}", parameters).fetchone()
        query = f"SELECT v.id FROM views v WHERE {where} ORDER BY v.id DESC LIMIT ? OFFSET ?"
        page = [row[0] for row in db.execute(query, (*parameters, limit, offset))]
        return requests_by_number(db, page), total


def statuses(db: Database, session: int) -> Mapping[str, int]:
    """Number of requests of a session by the first word of their status."""
    counts: dict[str, int] = {}
    for status, count in db.execute("SELECT status, count(*) FROM views WHERE session = ? GROUP BY 1", (session,)):
        word = status.partition(";")[0].strip()
        counts[word] = counts.get(word, 0) + count
    return counts


def request_numbers(db: Database, session: int | None, after: int, limit: int) -> list[int]:
    """Row numbers above `after`, in ascending order, of the requests of a session, or of all if `session` is None."""
    within, parameters = ("", ()) if session is None else ("v.session = ?4 AND ", (session,))
    query = "SELECT v.id FROM views v JOIN sessions s ON s.id = v.session"
    where = f"{within}v.id > ?1 AND {OWNED.format(3)}"
    numbers = db.execute(f"{query} WHERE {where} ORDER BY v.id LIMIT ?2", (after, limit, db.owner, *parameters))
    return [row[0] for row in numbers]


def requests_by_number(db: Database, numbers: Sequence[int]) -> list[RequestRow]:
    """Requests by row number, in the order of `numbers`."""
    return [_request(row) for row in _in_order(db, f"{_REQUESTS} WHERE v.id", "", numbers)]


def newest_request(db: Database) -> int:
    """Row number of the newest request of all; 0 if there is none."""
    return db.execute("SELECT ifnull(max(id), 0) FROM views").fetchone()[0]


def find_request(db: Database, number: int) -> tuple[RequestRow, Record] | None:
    """Find a request by row number, as a `RequestRow` and as a full record; None if there is no such row."""
    with db.snapshot():
        row = db.execute(f"{_REQUESTS} WHERE v.id = ?1 AND {OWNED.format(2)}", (number, db.owner)).fetchone()
        if row is None:
            return None
        full = db.execute(f"{VIEWS} WHERE v.id = ?", (number,)).fetchone()
        return _request(row), record_of(db, full)


def neighbours(db: Database, request: RequestRow) -> tuple[int | None, int | None]:
    """Row numbers of the previous and next requests in the same session; None at either end."""
    before = db.execute("SELECT max(id) FROM views WHERE session = ? AND id < ?", (request.session, request.id))
    after = db.execute("SELECT min(id) FROM views WHERE session = ? AND id > ?", (request.session, request.id))
    return before.fetchone()[0], after.fetchone()[0]


def decisions(db: Database, request: RequestRow, limit: int) -> list[tuple[int, tuple[Drop, ...]]]:
    """Drops of earlier requests of the session that cut back the history, newest first, as `(row number, drops)`."""
    requests = db.execute(
        "SELECT id, ledger FROM views WHERE session = ? AND id < ? AND (status LIKE 'compiled%'"
        " OR status LIKE 'fallback%' OR status LIKE 'floor_over_budget%') ORDER BY id DESC LIMIT ?",
        (request.session, request.id, limit),
    )
    return [(row["id"], listed_drops(mapping_of(row["ledger"]))) for row in requests]


def listed_drops(ledger: Mapping[str, Any]) -> tuple[Drop, ...]:
    """Drops listed in the token breakdown of a request."""
    lines = cast("list[Mapping[str, Any]]", ledger.get("dropped") or [])
    drops: list[Drop] = []
    for line in lines:
        items = cast("list[Any]", line.get("what") or [])
        drops += [Drop(what=str(item), reason=str(line.get("reason", ""))) for item in items]
    return tuple(drops)


def find_compile(db: Database, number: int) -> tuple[int, Compile] | None:
    """Find a compile by row number; return the row number of its session and the compile, or None."""
    with db.snapshot():
        query = f"{SUMMARIES} WHERE c.id = ?1 AND {OWNED.format(2)}"
        row = db.execute(query, (number, db.owner)).fetchone()
        return None if row is None else (row["session"], rows.to_compile(rows.mapping(row)))


def requests_using_compile(db: Database, compile: int) -> tuple[int | None, int | None, int]:
    """Row numbers of the first and last requests that contain a compile's summary, and the count of such requests."""
    row = db.execute("SELECT min(id), max(id), count(*) FROM views WHERE summary = ?", (compile,)).fetchone()
    return row[0], row[1], row[2]


def newest_raw_tip(db: Database, session: int) -> str | None:
    """Tip of a session's newest raw history; None if it has none."""
    row = db.execute("SELECT raw_tip FROM sessions WHERE id = ?", (session,)).fetchone()
    return None if row is None else row[0]


def chain_nodes(db: Database, tip: str | None, session: int, cached: Sequence[Node] = ()) -> list[Node]:
    """Messages of a chain, oldest first; those shared with `cached`, a chain of the session, are not read again."""
    row = db.execute("SELECT position FROM nodes WHERE id = ?", (tip,)).fetchone()
    if row is None:
        return []
    near = cached[max(0, row[0] - NEAR) : row[0] + 1] or cached[-1:]
    ancestors = db.execute(_FROM_KNOWN, (tip, json.dumps([node.id for node in near]))).fetchall()
    copies = dict(db.execute("SELECT node, content FROM copies WHERE session = ?", (session,)).fetchall())
    fresh: list[Node] = [Node(row[0], copies.get(row[0], row[1]), row[2]) for row in reversed(ancestors)]
    begins: int = ancestors[-1]["position"]
    return [*cached[:begins], *fresh] if fresh[0].id in {node.id for node in cached[begins : begins + 1]} else fresh


def message_bodies(db: Database, nodes: Sequence[Node]) -> list[bytes]:
    """JSON of messages with their instructions, in the order of `nodes`."""
    plain = bodies(db, [node.content for node in nodes])
    names = sorted({node.instructions for node in nodes if node.instructions is not None})
    texts = dict(zip(names, map(rows.to_text, bodies(db, names)), strict=True))
    return [
        body if node.instructions is None else rows.join_instructions(body, texts[node.instructions])
        for node, body in zip(nodes, plain, strict=True)
    ]


def bodies(db: Database, contents: Sequence[str]) -> list[bytes]:
    """Bodies by hash, in the order of `contents`; messages come without their instructions."""
    stored = db.execute(
        "SELECT hash, body FROM contents WHERE hash IN (SELECT value FROM json_each(?))", (json.dumps(contents),)
    )
    by_hash = {row["hash"]: rows.unpack(row["body"]) for row in stored}
    return [by_hash[name] for name in contents]


class RequestTips(NamedTuple):
    """The two tips of a request; a tuple, because a session may contain tens of thousands of requests."""

    id: int
    turn_index: int
    raw_tip: str | None
    view_tip: str | None


def request_tips(db: Database, session: int) -> list[RequestTips]:
    """Tips of all requests of a session, oldest first; the view of a dry run is the raw history, which was sent."""
    requests = db.execute(
        "SELECT id, turn_index, raw_tip, CASE WHEN substr(status, 1, 7) = 'dry_run' THEN raw_tip ELSE view_tip END"
        " FROM views WHERE session = ? ORDER BY id",
        (session,),
    )
    return [RequestTips(*row) for row in requests]


Row = tuple[str, str | None, str, int, str | None]
"""A message as `(id, parent, content hash, position, hash of its instructions)`."""


def session_nodes(
    db: Database, session: int, tips: Iterable[RequestTips], cached: Mapping[str, Row] | None = None
) -> Mapping[str, Row]:
    """All messages of some requests of a session, by id, parents first; messages in `cached` are not read again."""
    cached = cached or {}
    ends = {
        tip for request in tips for tip in (request.raw_tip, request.view_tip) if tip is not None and tip not in cached
    }
    if not ends:
        return cached
    # with as many ends as there are requests on the record, reading all messages at once is faster
    (newest,) = db.execute("SELECT max(id) FROM views").fetchone()
    fresh = _read_by_scan(db, ends, cached) if len(ends) >= newest else _read_by_level(db, ends, cached)
    for node, content in db.execute("SELECT node, content FROM copies WHERE session = ?", (session,)):
        if node in fresh:
            name, parent, _, position, instructions = fresh[node]
            fresh[node] = name, parent, content, position, instructions
    return {**cached, **{row[0]: row for row in sorted(fresh.values(), key=itemgetter(3))}}


def _read_by_scan(db: Database, ends: Iterable[str], cached: Mapping[str, Row]) -> dict[str, Row]:
    """Read all messages of the record in one query, and return those of the chains that end at `ends`."""
    every: dict[str, Row] = {row[0]: tuple(row) for row in db.execute(f"SELECT {_ROW} FROM nodes")}
    seen: dict[str, Row] = {}
    for tip in ends:
        name: str | None = tip
        while name is not None and name not in seen and name not in cached and name in every:
            seen[name] = every[name]
            name = every[name][1]
    return seen


def _read_by_level(db: Database, ends: set[str], cached: Mapping[str, Row]) -> dict[str, Row]:
    """Read the chains that end at `ends`: the first `LEVELS` levels one query each, the rest in one query."""
    seen: dict[str, Row] = {}
    for level in range(LEVELS + 1):
        if not ends:
            break
        nodes = db.execute(_BY_ID if level < LEVELS else _WITH_ANCESTORS, (json.dumps(list(ends)),))
        fresh: dict[str, Row] = {row[0]: tuple(row) for row in nodes}
        seen |= fresh
        ends = {row[1] for row in fresh.values() if row[1] is not None and row[1] not in seen and row[1] not in cached}
    return seen


_ROW = "id, parent, content, position, instructions"

LEVELS = 24
"""Levels of ancestors that are read with one query each."""

_BY_ID = f"SELECT {_ROW} FROM nodes WHERE id IN (SELECT value FROM json_each(?))"
_WITH_ANCESTORS = (
    f"WITH RECURSIVE up ({_ROW}) AS ({_BY_ID}"
    " UNION SELECT n.id, n.parent, n.content, n.position, n.instructions FROM up JOIN nodes n ON n.id = up.parent)"
    f" SELECT {_ROW} FROM up"
)


def matching_nodes(db: Database, words: str, limit: int | None) -> list[tuple[str, str]]:
    """Find raw messages that contain a phrase, newest first, as `(message id, searchable text)`.

    The last word may be the beginning of a longer word.
    """
    pieces = re.findall(r"\w+", words)
    if not pieces:
        return []
    return db.find_messages(pieces, limit, prefix=None if db.owner is None else prefix(db.owner))


CONVERSATIONS = 500
"""Maximum number of newest conversations that are returned together."""


def newest_conversations(db: Database) -> list[tuple[int, str, str, str]]:
    """The newest conversations of an owner with recorded content, as `(row number, name, creation time, raw tip)`.

    A row number may be reused after a deletion; the name or the creation time then differs.
    """
    conversations = db.execute(
        "SELECT id, session_id, created_at, raw_tip FROM sessions WHERE owner = ? AND raw_tip NOT NULL"
        " ORDER BY id DESC LIMIT ?",
        (writer_of(db), CONVERSATIONS),
    )
    return [(row[0], row[1], row[2], row[3]) for row in conversations]


def messages_since(db: Database, tip: str, start: str | None, most: int) -> tuple[list[bytes], bool]:
    """Messages after `start` and up to `tip`, at most the newest `most`, oldest first and without instructions.

    The second value is True if they directly follow `start`.
    """
    messages = db.execute(
        "WITH RECURSIVE up (id, parent, content, place) AS (SELECT id, parent, content, 1 FROM nodes WHERE id = ?1"
        " UNION ALL SELECT n.id, n.parent, n.content, up.place + 1 FROM up JOIN nodes n ON n.id = up.parent"
        " WHERE up.place < ?2 AND up.parent <> ?3)"
        " SELECT up.parent, t.body FROM up JOIN contents t ON t.hash = up.content ORDER BY up.place DESC",
        (tip, most, start or ""),
    ).fetchall()
    follows = bool(messages) and start is not None and messages[0][0] == start
    return [rows.unpack(row[1]) for row in messages], follows


def root_of(db: Database, node: str) -> str | None:
    """Id of the first message of a message's chain; None if the message is unknown."""
    row = db.execute(
        "WITH RECURSIVE up (id, parent) AS (SELECT id, parent FROM nodes WHERE id = ?"
        " UNION ALL SELECT n.id, n.parent FROM up JOIN nodes n ON n.id = up.parent)"
        " SELECT id FROM up WHERE parent IS NULL",
        (node,),
    ).fetchone()
    return None if row is None else row[0]


def first_tips(db: Database, after: int = 0) -> list[tuple[int, str]]:
    """Sessions with a row number above `after`, as `(row number, raw tip of the first request)`; no replays."""
    sessions = db.execute(
        "SELECT s.id, coalesce((SELECT v.raw_tip FROM views v WHERE v.session = s.id AND v.raw_tip NOT NULL"
        " ORDER BY v.id LIMIT 1), s.raw_tip) AS tip FROM sessions s WHERE s.id > ?1"
        f" AND s.session_id NOT LIKE '{REPLAYS}' AND {OWNED.format(2)}",
        (after, db.owner),
    )
    return [(row[0], row[1]) for row in sessions if row[1] is not None]


def common_length(db: Database, tip: str | None, other: str | None) -> int:
    """Length of the common beginning of two chains, in messages."""

    def parent_and_position(name: str | None) -> tuple[str | None, int]:
        row = db.execute("SELECT parent, position FROM nodes WHERE id = ?", (name,)).fetchone()
        return (None, -1) if row is None else (row[0], row[1])

    (above, position), (other_above, other_position) = parent_and_position(tip), parent_and_position(other)
    while tip != other:
        if position >= other_position:
            tip = above
            above, position = parent_and_position(tip)
        else:
            other = other_above
            other_above, other_position = parent_and_position(other)
    return position + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A model call that is writing a summary now."""

    session: int
    session_id: str
    model: str
    started_at: datetime
    until: datetime
    """When its time limit ends."""


def calls_in_progress(db: Database, session: int | None = None) -> list[ModelCall]:
    """Model calls for summaries in progress, newest first; of all sessions if `session` is None.

    A call has ended when its compile is stored or its time limit has passed.
    """
    calls = db.execute(
        "SELECT u.session, s.session_id, u.model, u.started_at, u.expires_at AS until"
        " FROM under_way u JOIN sessions s ON s.id = u.session"
        f" WHERE u.expires_at > ?1 AND (?2 IS NULL OR u.session = ?2) AND {OWNED.format(3)} AND NOT EXISTS"
        " (SELECT 1 FROM context_summaries c WHERE c.session = u.session AND c.created_at >= u.started_at)"
        " ORDER BY u.started_at DESC",
        (rows.stamp(datetime.now(UTC)), session, db.owner),
    )
    return [_model_call(row) for row in calls]


def _model_call(row: Any) -> ModelCall:
    fields: dict[str, Any] = {name: rows.parse_stamp(row[name]) for name in ("started_at", "until")}
    return ModelCall(**{**rows.mapping(row), **fields})


def _session(row: Any) -> SessionRow:
    fields: dict[str, Any] = {**rows.mapping(row), "created_at": rows.readable_stamp(row["created_at"]) or rows.UNKNOWN}
    fields["last_at"] = rows.readable_stamp(row["last_at"])
    fields["messages"] = row["messages"] or 0
    fields |= {name: bool(row[name]) for name in ("layers", "managed")}
    return SessionRow(**fields)


def _request(row: Any) -> RequestRow:
    fields: dict[str, Any] = {**rows.mapping(row), "created_at": rows.readable_stamp(row["created_at"]) or rows.UNKNOWN}
    fields["status"] = row["status"].partition(";")[0].strip()
    return RequestRow(**fields)
