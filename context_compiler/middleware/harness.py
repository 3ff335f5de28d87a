"""The record for the Pydantic AI harness: `RecordHistory` is a source of its conversation search.

The one module that loads the harness, which comes with the extra `harness`, when its search asks for a conversation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage

from context_compiler.messages.history import load_messages
from context_compiler.record.store import Store, open_store
from context_compiler.record.values import SessionInfo

T = TypeVar("T")


class RecordHistory:
    """Raw histories of the record as a `HistorySource` of the harness: whole, whatever the views have left out.

    A conversation is one run, whose id is that of the conversation; with a vault, `vault/conversation`.
    """

    def __init__(self, store: str | Path | Store = "system/context.db") -> None:
        """Read the record at a path, or the `Store` that a compiler was given."""
        self._store = store

    async def list_runs(self) -> list[Any]:
        """Every conversation of the record, the oldest first.

        Raises:
            ImportError: The harness is not installed.
            StoreError: The record cannot be read.
        """
        make = import_module("pydantic_ai_harness.step_persistence").RunRecord
        found = await self._read(lambda store: store.sessions())
        return [
            make(run_id=_run_id(one), conversation_id=one.session_id, started_at=one.created_at)
            for one in sorted(found, key=lambda one: one.created_at)
        ]

    async def run_history(self, *, run_id: str) -> list[ModelMessage]:
        """The raw history of a conversation as last seen; empty if it is unknown.

        Raises:
            StoreError: The record cannot be read.
        """

        async def bodies(store: Store) -> list[bytes]:
            known = next((one for one in await store.sessions() if _run_id(one) == run_id), None)
            return [] if known is None else await store.transcript(known.session_id, known.vault_name)

        return load_messages(await self._read(bodies))

    async def _read(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Read from the store, which is closed again if it was opened here."""
        store = open_store(self._store)
        try:
            return await work(store)
        finally:
            if store is not self._store:
                await store.close()


def _run_id(session: SessionInfo) -> str:
    return f"{session.vault_name}/{session.session_id}" if session.vault_name else session.session_id
