"""Codex sessions as JSONL: lines with a type and a payload; the response items are the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import ModelResponse

from context_compiler.messages.importers.content import system
from context_compiler.messages.importers.draft import Draft, Json, mapping, sequence, text, time_of
from context_compiler.messages.importers.openai_responses import read_item

_INJECTED = (
    "<environment_context>",
    "<user_instructions>",
    "# agents.md instructions",
    "<user_shell_command>",
    "<turn_aborted>",
    "<skill>",
    "<subagent_notification>",
)
"""Beginnings of user messages that Codex itself writes, in lower case; they begin no turn."""

_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")


def matches(entry: Json) -> bool:
    """True for a line of a session."""
    return entry.get("type") in _TYPES and isinstance(entry.get("payload"), dict)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the response items, oldest first, without those of turns that were rolled back.

    Other events are skipped without a note, because they only repeat the items.
    """
    model: str | None = None
    for entry in draft.objects(entries, "a line", "a type and a payload", _kept(draft, entries)):
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


def _kept(draft: Draft, entries: Sequence[object]) -> list[int]:
    """Positions of the lines to read: all but the items of turns that were rolled back."""
    turns: list[int] = []
    left_out: set[int] = set()
    items: list[int] = []
    for position, entry in enumerate(entries):
        fields = mapping(entry) or {}
        payload = mapping(fields.get("payload")) or {}
        if fields.get("type") == "response_item":
            items.append(position)
            if _begins_turn(payload):
                turns.append(position)
        elif fields.get("type") == "event_msg" and payload.get("type") == "thread_rolled_back":
            count = payload.get("num_turns")
            revoked = turns[-count:] if isinstance(count, int) and count > 0 else []
            turns = turns[: len(turns) - len(revoked)]
            left_out |= {item for item in items if revoked and item >= revoked[0]}
    for position in sorted(left_out):
        draft.note("left out an item of a turn that was rolled back", position)
    return [position for position in range(len(entries)) if position not in left_out]


def _begins_turn(item: Json) -> bool:
    """True for a message that the user wrote."""
    if item.get("type") != "message" or item.get("role") != "user":
        return False
    blocks = sequence(item.get("content")) or [{"text": item.get("content")}]
    texts = (text((mapping(block) or {}).get("text")) or "" for block in blocks)
    return not any(words.lstrip().lower().startswith(_INJECTED) for words in texts)
