"""Codex sessions as JSONL: lines with a type and a payload; the response items are the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelResponse

from context_compiler.messages.importers.content import system
from context_compiler.messages.importers.draft import Draft, Json, mapping, text, time_of
from context_compiler.messages.importers.openai_responses import read_item

_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")


def matches(entry: Json) -> bool:
    """True for a line of a session."""
    return entry.get("type") in _TYPES and isinstance(entry.get("payload"), dict)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the response items, oldest first; events are skipped without a note, because they only repeat the items."""
    model: str | None = None
    for entry in draft.objects(entries, "a line", "a type and a payload"):
        payload, time = mapping(entry.get("payload")) or {}, time_of(entry)
        if entry.get("type") == "session_meta":
            base = mapping(payload.get("base_instructions")) or {}
            instructions = text(payload.get("instructions")) or text(base.get("text"))
            if instructions:
                system(draft, {"content": instructions, "timestamp": entry.get("timestamp")})
        elif entry.get("type") == "turn_context":
            model = text(payload.get("model")) or model
        elif entry.get("type") == "response_item":
            read_item(draft, {"timestamp": entry.get("timestamp"), **payload}, time=time)
            last = draft.messages[-1] if draft.messages else None
            if isinstance(last, ModelResponse):
                last.model_name = model
        elif entry.get("type") != "event_msg":
            draft.note(f"skipped line of type {str(entry.get('type'))[:40]!r}")
