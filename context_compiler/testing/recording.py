"""Recordings of conversations: files to keep beside a test, transcripts of other tools, and sessions on the record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse

from context_compiler.errors import ContextCompilerError, StoreError
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.history import current_instructions
from context_compiler.messages.importers import read_transcripts
from context_compiler.record import browse
from context_compiler.record.browse import Row
from context_compiler.record.database import Database
from context_compiler.record.store import open_place
from context_compiler.record.values import Record, fixed_tokens
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.live_runs import run_sync
from context_compiler.testing.request import READER, Request, flat

FORMAT, VERSION = "context-compiler recording", 1


class RecordingError(ContextCompilerError):
    """A recording cannot be read: it is missing, damaged, or of another version."""


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
        RecordingError: The recording is damaged or of another version.
        TranscriptError: The file is missing or no transcript.
    """
    text = Path(path).read_bytes() if Path(path).is_file() else b""
    if FORMAT.encode() not in text[:200]:
        return Recording(messages=read_transcripts(path)[0].messages)
    try:
        document: dict[str, Any] = json.loads(text)
        if (version := document["version"]) != VERSION:
            other = f"{path}: a recording of version {version!r:.20}, but this package reads version {VERSION}"
            raise RecordingError(f"{other}: upgrade it if it is older, or record the conversation again")
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
        compiles = await scoped.summaries(session)
    finally:
        await store.close()
    answers = [(made.compiled_prompt, made.raw_output) for made in compiles if made.compiled_prompt and made.raw_output]
    summaries = {prompt_name(prompt): answer for prompt, answer in answers}
    if not messages:
        raise RecordingError(f"{db}: no messages of a session {session!r}; `context-compiler sessions list` lists them")
    return Recording(messages=messages, summaries=summaries, answers=answers)


async def load_view(view: int, db: str | Path, owner: str | None = None) -> tuple[Recording, Request]:
    """Load what had been said when a recorded request was sent, with an empty answer, and the request itself.

    Raises:
        RecordingError: The record has no such view, or not its messages.
        StoreError: The record cannot be read.
    """
    store = open_place(db, read_only=True)
    try:
        record = await store.scoped(owner).view(view)
        if record is None or record.raw_tip is None or record.view_tip is None:
            raise RecordingError(f"{db}: no view {view} with its messages; `context-compiler views list` lists views")
        scoped = store.scoped(record.owner)
        said, sent = [
            load_messages(await scoped.chain(tip, record.session_id, record.vault_name))
            for tip in (record.raw_tip, record.view_tip)
        ]
    finally:
        await store.close()
    session = await load_session(record.session_id, db, record.owner)
    unanswered = [*said, ModelResponse(parts=[])]
    return replace(session, messages=unanswered), _request(1, record, sent, len(said))


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
        load = partial(_load, session=session, records=records)
        conversation = await scoped.perform(load) if records else None
    except KeyError as error:
        raise RecordingError(f"{db}: messages of session {session!r} are missing; verify the record") from error
    finally:
        await store.close()
    if conversation is None:
        raise RecordingError(f"{db}: no recorded messages of a session {session!r}")
    return conversation


def recorded(session: str, *, db: str | Path, owner: str | None = None) -> Conversation:
    """The requests of a session as they were recorded, outside an event loop; see `recorded_async`."""
    return run_sync(recorded_async(session, db=db, owner=owner), "recorded_async")


def _load(db: Database, session: str, records: Sequence[Record]) -> Conversation | None:
    key = browse.session_number(db, session, records[-1].vault_name)
    if key is None:
        return None
    tips = {request.id: request for request in browse.request_tips(db, key)}
    nodes = browse.session_nodes(db, key, tips.values())
    raw = browse.chain_nodes(db, browse.newest_raw_tip(db, key), key)
    messages = _messages(db, [*raw, *(browse.Node(row[0], row[2], row[4]) for row in nodes.values())])
    lengths = {node.id: length for length, node in enumerate(raw, 1)}
    conversation = Conversation()
    conversation.add_messages(messages[node.content, node.instructions] for node in raw)
    for record in records:
        tip = tips.get(cast("int", record.id))
        if tip is None or tip.view_tip is None:
            continue
        sent = [messages[row[2], row[4]] for row in _chain(nodes, tip.view_tip)]
        number, said = len(conversation.requests) + 1, lengths.get(tip.raw_tip or "", 0)
        conversation.requests.append(_request(number, record, sent, said))
    return conversation if conversation.requests else None


def _request(number: int, record: Record, sent: Sequence[ModelMessage], said: int) -> Request:
    return Request(
        number=number,
        turn=record.turn_index + 1,
        messages=sent,
        readings=[READER.one(message) for message in sent],
        beside=current_instructions(sent),
        fixed=fixed_tokens(record),
        said=said,
        status=record.status.partition(";")[0],
        budget=record.budget,
        drops=browse.listed_drops(record.ledger),
    )


def _messages(db: Database, nodes: Iterable[browse.Node]) -> dict[tuple[str, str | None], ModelMessage]:
    """Messages by the hashes of their content and their instructions."""
    distinct = list({(node.content, node.instructions): node for node in nodes}.values())
    names = [(node.content, node.instructions) for node in distinct]
    return dict(zip(names, load_messages(browse.message_bodies(db, distinct)), strict=True))


def _chain(nodes: Mapping[str, Row], tip: str | None) -> list[Row]:
    chain: list[Row] = []
    while tip is not None:
        chain.append(nodes[tip])
        tip = nodes[tip][1]
    return chain[::-1]
