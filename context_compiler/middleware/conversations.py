"""`RecordConversationStore`: the host's conversations in the database of the record, next to their views.

The host stores a conversation as a log of messages. Here each entry is a message of the record. A compiler on the same
store therefore finds the whole conversation, even if a run is given only its last messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from context_compiler.errors import SettingsError
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.history import reader_of, searchable
from context_compiler.record import conversations, removal
from context_compiler.record.conversations import LogEntry, StoredConversation
from context_compiler.record.store import DEFAULT_PATH, SQLStore, Store, open_store
from context_compiler.tokens import as_counter

try:
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
except ImportError:  # before version 2.68
    if TYPE_CHECKING:
        raise
    ConversationConflict = ConversationEntry = ConversationRecord = None
    ConversationStore = object


class RecordConversationStore(ConversationStore):
    """Store of the host's conversations in a record; each message is stored once and shared with the recorded requests.

    Give the compiler the same store and owner: it then also compiles and recalls the messages that a windowed
    `load(limit=…)` leaves out.

    `delete` removes a conversation with its requests, compiles, layers and memory, and every message that nothing else
    needs, so nothing of it is left in the file.

    Args:
        store: A path, or a store that the compiler uses too.
        owner: Owner of all conversations; two owners may use the same ids. None takes each conversation's `scope` as
            its owner, or `""` if it has no scope.

    Raises:
        SettingsError: This version of Pydantic AI has no conversation stores, or the store cannot keep conversations.
    """

    def __init__(self, store: str | Path | Store = DEFAULT_PATH, *, owner: str | None = None) -> None:
        if ConversationStore is object:
            raise SettingsError("conversation stores need Pydantic AI 2.68 or newer: pip install -U pydantic-ai-slim")
        opened = open_store(store)
        if not isinstance(opened, SQLStore):
            raise SettingsError(f"{store!r} keeps no conversations: give a path, or a store of this package")
        self.store = opened.scoped(owner)
        self._facts: TypeAdapter[Any] = TypeAdapter(ConversationRecord)
        self._reader = reader_of(as_counter(None))

    def __repr__(self) -> str:
        return f"RecordConversationStore({self.store!r})"

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record for a conversation; None if the store does not have it."""
        stored = await self.store.perform(partial(conversations.find_conversation, conversation_id=conversation_id))
        return None if stored is None else self._facts.validate_json(stored.state)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """All records or those of a scope, newest first."""
        stored = await self.store.perform(partial(conversations.conversations, scope=scope, limit=limit))
        return [self._facts.validate_json(conversation.state) for conversation in stored]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries in one transaction.

        Raises:
            ConversationConflict: The stored revision is a different one, or the parent of an entry no longer exists.
            StoreError: The record could not be saved; nothing was written.
        """
        log = [LogEntry(id=entry.id, parent=entry.parent_id, body=message_body(entry.message)) for entry in new_entries]
        conversation = StoredConversation(
            conversation_id=record.conversation_id,
            scope=record.scope,
            head=record.head_id,
            branches=tuple(record.branches),
            state=self._facts.dump_json(record).decode(),
            revision=record.revision,
            updated_at=record.updated_at,
        )
        work = partial(
            conversations.write_conversation,
            conversation=conversation,
            entries=log,
            expected=expected_revision,
            text_of=self._text,
        )
        if not await self.store.perform(work):
            raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation and everything stored with it; entries that another conversation needs are kept.

        Raises:
            ConversationConflict: The stored revision is a different one.
        """
        work = partial(removal.delete_conversation, conversation_id=conversation_id, expected=expected_revision)
        if not await self.store.perform(work):
            raise ConversationConflict(conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """One entry; LookupError if it does not exist."""
        return (await self.read_history(entry_id, limit=1))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to and including `head_id`, oldest first, or the last `limit` of them.

        Raises:
            LookupError: There is no such entry.
        """
        if head_id is None or limit == 0:
            return []
        entries = await self.store.perform(partial(conversations.read_log, head=head_id, limit=limit))
        if not entries:
            raise LookupError(f"no entry {head_id!r}")
        messages = load_messages([entry.body for entry in entries])
        return [
            ConversationEntry(id=entry.id, parent_id=entry.parent, message=message)
            for entry, message in zip(entries, messages, strict=True)
        ]

    async def close(self) -> None:
        """Close the store; the next use opens it again."""
        await self.store.close()

    def _text(self, body: bytes) -> str:
        return searchable(self._reader.one(load_messages([body])[0]))
