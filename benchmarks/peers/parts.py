"""Conversion to messages of other frameworks, one per tool result, and back without loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage, ModelResponse

from benchmarks.peers.baselines import READER
from context_compiler.messages.items import Item, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A response, or one part of a request."""

    name: str
    """Position of its message and, in a request, of its part."""
    role: str
    """One of system, user, assistant and tool."""
    text: str
    calls: tuple[Item, ...] = ()
    call_id: str = ""
    tokens: int = 0


ROLES = {Kind.SYSTEM: "system", Kind.RETURN: "tool"}


def pieces(messages: Sequence[ModelMessage], *, first: int = 0) -> list[Piece]:
    """Split a history into pieces; positions begin at `first`, and requests without parts have no piece."""
    pieces: list[Piece] = []
    for position, message in enumerate(messages, first):
        reading = READER.one(message)
        if isinstance(message, ModelResponse):
            text = "\n".join(item.text for item in reading.items if item.kind is Kind.TEXT)
            calls = tuple(item for item in reading.items if item.kind is Kind.CALL)
            pieces.append(Piece(name=f"{position}", role="assistant", text=text, calls=calls, tokens=reading.tokens))
            continue
        for part, item in enumerate(reading.items):
            role = ROLES.get(item.kind, "user")
            name, call = f"{position}.{part}", item.call_id or ""
            pieces.append(Piece(name=name, role=role, text=item.text, call_id=call, tokens=item.tokens))
    return pieces


def whole(messages: Sequence[ModelMessage], names: Iterable[str]) -> list[ModelMessage]:
    """Return the messages of these pieces; a request has only the parts named."""
    kept: dict[int, set[int]] = {}
    for name in names:
        position, _, part = name.partition(".")
        kept.setdefault(int(position), set()).update({int(part)} if part else ())
    messages_kept: list[ModelMessage] = []
    for position in sorted(kept):
        message = messages[position]
        if not isinstance(message, ModelResponse) and len(kept[position]) < len(message.parts):
            message = replace(message, parts=[message.parts[index] for index in sorted(kept[position])])
        messages_kept.append(message)
    return messages_kept
