"""`RecordHistory`: the record as a source for the conversation search of the Pydantic AI harness.

This is the only module that imports the harness (extra `harness`), and only when a search lists conversations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.errors import SettingsError, StoreError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import reader_of
from context_compiler.messages.items import plain_text, user_content
from context_compiler.record.store import Store, Tenants, open_store
from context_compiler.record.values import SessionInfo
from context_compiler.tokens import as_counter

T = TypeVar("T")
_READER = reader_of(as_counter(None))

SUMMARY, RECEIPT = "pydantic-ai-harness.compaction.summary.v1", "pydantic-ai-harness.compaction.receipt.v1"
"""Metadata of the messages that a compaction of the harness adds to a history."""


class RecordHistory:
    """Raw histories of the record as a `HistorySource` of the harness: complete, even if views left messages out.

    They include messages that a compaction of the harness removed from the stored history, but not messages that the
    user took back. Each conversation is one run whose id is the conversation's label, or `vault/label` with a vault.
    """

    def __init__(self, store: str | Path | Store = "system/context.db") -> None:
        """Read the record at a path, or the `Store` that a compiler was given.

        Raises:
            SettingsError: The store is not scoped to one owner; several owners may use the same conversation label.
        """
        if isinstance(store, Tenants) and store.owner is None:
            raise SettingsError(f"{store!r}: give the store of one owner, scoped(owner)")
        self._store = store

    async def list_runs(self) -> list[Any]:
        """All conversations of the record, oldest first.

        Raises:
            ImportError: The harness is not installed.
            StoreError: The record cannot be read.
        """
        make = import_module("pydantic_ai_harness.step_persistence").RunRecord
        sessions = await self._read(lambda store: store.sessions())
        return [
            make(run_id=_run_id(session), conversation_id=session.session_id, started_at=session.created_at)
            for session in sorted(sessions, key=lambda session: session.created_at)
        ]

    async def run_history(self, *, run_id: str) -> list[ModelMessage]:
        """All messages of a conversation in order; empty if the conversation is unknown.

        Raises:
            StoreError: The record cannot be read.
        """
        return _merge_versions(await self._read(partial(_versions, run_id=run_id)))

    async def _read(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Read from the store, and close it if it was opened here."""
        store = open_store(self._store)
        try:
            return await work(store)
        finally:
            if store is not self._store:
                await store.close()


async def _versions(store: Store, run_id: str) -> list[list[ModelMessage]]:
    """Versions of a conversation's history, oldest first; a version that a later one continues is left out."""
    session = next((candidate for candidate in await store.sessions() if _run_id(candidate) == run_id), None)
    if session is None:
        return []
    versions = [load_messages(await store.transcript(session.session_id, session.vault_name))]
    named = set(_READER.read(versions[0]).chain.ids)
    for view in await store.views(session.session_id):
        if view.vault_name != session.vault_name or view.raw_tip is None or view.raw_tip in named:
            continue
        with suppress(StoreError):  # the chain was pruned
            versions.append(load_messages(await store.chain(view.raw_tip)))
            named |= {view.raw_tip, *_READER.read(versions[-1]).chain.ids}
    return versions[::-1]


def _merge_versions(versions: Iterable[Sequence[ModelMessage]]) -> list[ModelMessage]:
    """Merge the versions of a history: every part once, in the order in which it first appeared.

    A part that a later version lacks was removed by a compaction, and is kept. If the last prompt is missing too and
    there is no sign of a new compaction, the user took those parts back, so they are removed.
    """
    merged: dict[Hashable, tuple[ModelMessage, Any]] = {}
    before: dict[Hashable, tuple[ModelMessage, Any]] = {}
    for messages in versions:
        parts = {_part_key(message, part): (message, part) for message in messages for part in message.parts}
        artifacts = {name for name, (_, part) in parts.items() if _is_artifact(part)}
        prompt = next((name for name, (_, part) in reversed(before.items()) if part.part_kind == "user-prompt"), None)
        if prompt is not None and prompt not in parts and artifacts <= before.keys():
            for name in before.keys() - parts.keys():
                merged.pop(name, None)
        merged |= {name: entry for name, entry in parts.items() if name not in merged and name not in artifacts}
        before = parts
    groups = [[*group] for _, group in groupby(merged.values(), key=lambda entry: id(entry[0]))]
    return [replace(group[0][0], parts=[part for _, part in group]) for group in groups]


def _part_key(message: ModelMessage, part: Any) -> Hashable:
    """Key of a part that survives when the host merges its message into another."""
    when = getattr(part, "timestamp", None) or message.timestamp
    content = getattr(part, "content", None), getattr(part, "args", None)
    return part.part_kind, when, getattr(part, "tool_call_id", None), plain_text(content)


def _is_artifact(part: Any) -> bool:
    """True for a summary or a receipt of the harness, which is not part of the conversation."""
    metadata: Any = getattr(part, "metadata", None)
    if part.part_kind == "compaction":
        return isinstance(metadata, dict) and SUMMARY in metadata
    pieces = user_content(part.content) if part.part_kind == "user-prompt" else ()
    return any(getattr(piece, "metadata", None) == RECEIPT for piece in pieces)


def _run_id(session: SessionInfo) -> str:
    return f"{session.vault_name}/{session.session_id}" if session.vault_name else session.session_id
