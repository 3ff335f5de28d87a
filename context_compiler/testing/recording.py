"""Recordings of conversations: files to keep beside a test, transcripts of other tools, and sessions on the record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic_ai.messages import ModelMessage

from context_compiler.errors import ContextCompilerError, StoreError
from context_compiler.messages.history import load_messages, message_body
from context_compiler.messages.importers import read_transcripts
from context_compiler.middleware.again import fixed_tokens
from context_compiler.record import browse
from context_compiler.record.browse import Row
from context_compiler.record.database import Database
from context_compiler.record.store import open_place
from context_compiler.record.values import Record
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.live_runs import run_sync
from context_compiler.testing.request import READER, Request, flat

FORMAT, VERSION = "context-compiler recording", 1


class RecordingError(ContextCompilerError):
    """A recording cannot be read: it is missing, damaged, or of a newer version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded conversation."""

    messages: Sequence[ModelMessage]
    summaries: Mapping[str, str] = field(default_factory=dict[str, str])
    """Recorded answers to prompts for summaries, by `prompt_name`."""
    answers: Sequence[tuple[str, str]] = ()
    """The same with the prompts themselves, if they are known; they are not saved."""

    def save(self, path: Path) -> None:
        """Write the recording to a file."""
        messages = [json.loads(message_body(message)) for message in self.messages]
        document = {"format": FORMAT, "version": VERSION, "messages": messages, "summaries": dict(self.summaries)}
        path.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


Source = str | Path | Recording | Sequence[ModelMessage]
"""A file, a session's name, a recording or its messages."""


def prompt_name(prompt: str) -> str:
    """Name of a prompt for a summary: a hash of its words."""
    return hashlib.sha256(flat(prompt).encode("utf-8", "replace")).hexdigest()[:24]


def read_recording(path: str | Path) -> Recording:
    """Read a recording, or a transcript in any format that can be imported.

    Raises:
        RecordingError: The recording is damaged or of a newer version.
        TranscriptError: The file is missing or no transcript.
    """
    text = Path(path).read_bytes() if Path(path).is_file() else b""
    if FORMAT.encode() not in text[:200]:
        return Recording(messages=read_transcripts(path)[0].messages)
    try:
        document: dict[str, Any] = json.loads(text)
        version = document["version"]
        if isinstance(version, int) and version > VERSION:
            newer = f"{path}: a recording of version {version}, but this package reads up to {VERSION}: upgrade it"
            raise RecordingError(newer)
        bodies = [json.dumps(body).encode() for body in document["messages"]]
        return Recording(messages=load_messages(bodies), summaries=dict(document.get("summaries") or {}))
    except (StoreError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordingError(f"{path}: the recording is damaged ({type(error).__name__}): record it again") from error


async def load_session(session: str, db: str | Path, owner: str | None = None) -> Recording:
    """Load a session of a record, with the summaries that a model wrote for it.

    Raises:
        StoreError: The record has no such session, or cannot be read.
    """
    store = open_place(db, read_only=True)
    try:
        scoped = store.scoped(owner)
        messages = load_messages(await scoped.transcript(session))
        made = await scoped.summaries(session)
    finally:
        await store.close()
    answers = [(one.compiled_prompt, one.raw_output) for one in made if one.compiled_prompt and one.raw_output]
    summaries = {prompt_name(prompt): answer for prompt, answer in answers}
    if not messages:
        raise RecordingError(f"{db}: no messages of a session {session!r}; `context-compiler sessions list` lists them")
    return Recording(messages=messages, summaries=summaries, answers=answers)


async def recorded_async(session: str, *, db: str | Path, owner: str | None = None) -> Conversation:
    """The requests of a session as they were recorded; nothing is run.

    Args:
        session: Name of the session.
        db: Record: a file, or the address of a PostgreSQL database.
        owner: Owner of the session; None finds it among all owners.

    Raises:
        RecordingError: The record has no such session, or not its messages.
        StoreError: The record cannot be read.
    """
    store = open_place(db, read_only=True)
    try:
        scoped = store.scoped(owner)
        records = (await scoped.views(session))[::-1]
        found = await scoped.perform(partial(_load, session=session, records=records)) if records else None
    finally:
        await store.close()
    if found is None:
        raise RecordingError(f"{db}: no recorded messages of a session {session!r}")
    return found


def recorded(session: str, *, db: str | Path, owner: str | None = None) -> Conversation:
    """The requests of a session as they were recorded, outside an event loop; see `recorded_async`."""
    return run_sync(recorded_async(session, db=db, owner=owner), "recorded_async")


def _load(db: Database, session: str, records: Sequence[Record]) -> Conversation | None:
    number = browse.session_number(db, session, records[-1].vault_name)
    if number is None:
        return None
    tips = {one.id: one for one in browse.request_tips(db, number)}
    nodes = browse.session_nodes(db, number, tips.values())
    raw = browse.chain_nodes(db, browse.newest_raw_tip(db, number), number)
    messages = _messages(db, [*raw, *(browse.Node(row[0], row[2], row[4]) for row in nodes.values())])
    places = {node.id: at + 1 for at, node in enumerate(raw)}
    conversation = Conversation()
    conversation.add_messages(messages[node.content, node.instructions] for node in raw)
    for record in records:
        tip = tips.get(cast("int", record.id))
        if tip is None or tip.view_tip is None:
            continue
        sent = [messages[row[2], row[4]] for row in _chain(nodes, tip.view_tip)]
        conversation.requests.append(
            Request(
                number=len(conversation.requests) + 1,
                turn=record.turn_index + 1,
                messages=sent,
                readings=[READER.one(message) for message in sent],
                beside=getattr(sent[-1], "instructions", None) or "",
                fixed=fixed_tokens(record),
                said=places.get(tip.raw_tip or "", 0),
                status=record.status.partition(";")[0],
                budget=record.budget,
                drops=browse.listed_drops(record.ledger),
            )
        )
    return conversation if conversation.requests else None


def _messages(db: Database, nodes: Iterable[browse.Node]) -> dict[tuple[str, str | None], ModelMessage]:
    """Messages by the hashes of their content and their instructions."""
    distinct = list({(node.content, node.instructions): node for node in nodes}.values())
    names = [(node.content, node.instructions) for node in distinct]
    return dict(zip(names, load_messages(browse.message_bodies(db, distinct)), strict=True))


def _chain(nodes: Mapping[str, Row], tip: str | None) -> list[Row]:
    found: list[Row] = []
    while tip is not None and tip in nodes:
        found.append(nodes[tip])
        tip = nodes[tip][1]
    return found[::-1]
