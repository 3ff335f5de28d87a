"""Import transcripts of other tools as Pydantic AI messages: one file in, its conversations out.

The format is detected from the content or given by name. Broken conversations (such as calls without answers) are
imported as they are, because the view repairs them. A file that is not a transcript is an error that names the file,
the message and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Protocol

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import (
    anthropic_messages,
    chatgpt_export,
    claude_code,
    claude_export,
    cline,
    codex_session,
    langchain_dump,
    openai_chat,
    openai_responses,
    openhands,
    pi_session,
    plain_text,
    pydantic_json,
    swe_agent,
)
from context_compiler.messages.importers.document import Conversation, conversation_names, conversations, decode, load
from context_compiler.messages.importers.draft import Draft, Json, Transcript, kind, mapping

__all__ = ["FORMATS", "Transcript", "parse_transcripts", "read_transcripts"]


class _Format(Protocol):
    """A module that reads a JSON format, and detects it from a single message."""

    def matches(self, entry: Json) -> bool: ...
    def read(self, draft: Draft, entries: Sequence[object], head: Json) -> None: ...


_FORMATS: dict[str, _Format] = {
    "pydantic-ai": pydantic_json,
    "chatgpt": chatgpt_export,
    "claude": claude_export,
    "pi": pi_session,
    "codex": codex_session,
    "claude-code": claude_code,
    "openhands": openhands,
    "langchain": langchain_dump,
    "openai-responses": openai_responses,
    "cline": cline,
    "anthropic": anthropic_messages,
    "swe-agent": swe_agent,
    "openai": openai_chat,
}
"""Formats in the order in which they are tried; the first one that matches any message of a conversation is used.

A format whose messages also match a later one must precede it: `openai`, which shares its keys with most, is the last.
"""

_LOOSE = ("swe-agent", "openai")
"""Formats whose keys have other uses too, so that not every object that matches is a message."""

TEXT = "text"

FORMATS: tuple[str, ...] = (*_FORMATS, TEXT)
"""Names of the transcript formats that can be read."""


def read_transcripts(path: str | Path, *, format: str | None = None) -> list[Transcript]:
    """Read every conversation in a file, in order; at least one.

    Args:
        path: A JSON, JSONL, markdown or text file in UTF-8.
        format: One of `FORMATS`; None detects it from the content.

    Raises:
        TranscriptError: The file cannot be read, or is not a transcript.
    """
    file = str(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise TranscriptError("no such file", file=file) from None
    except IsADirectoryError:
        raise TranscriptError("is a directory; name a file in it", file=file) from None
    except (OSError, ValueError) as error:
        raise TranscriptError(f"cannot be read: {error}", file=file) from None
    return parse_transcripts(data, file=file, format=format)


def parse_transcripts(data: bytes, *, file: str, format: str | None = None) -> list[Transcript]:
    """Read every conversation in the content of a file named `file`, in order; at least one.

    Raises:
        TranscriptError: The data is not a transcript, or `format` is not one of `FORMATS`.
    """
    if format is not None and format not in FORMATS:
        raise TranscriptError(f"unknown format {format!r}; use one of {', '.join(FORMATS)}", file=file)
    stem = PurePath(file).stem
    text = decode(data, file=file)
    if format == TEXT or (format is None and plain_text.looks_like_text(text)):
        draft = Draft(file=file)
        plain_text.read(draft, text)
        return _with_messages([draft.transcript(name=stem, format=TEXT)], file)
    value = load(text, file=file)
    found_conversations = conversations(value, _is_message, trusted=format is not None)
    if not found_conversations:
        raise TranscriptError(_explain_unknown(value), file=file)
    found_names = conversation_names(found_conversations, stem)
    read = [
        _read(conversation, file=file, name=name, label=name if len(found_conversations) > 1 else "", format=format)
        for conversation, name in zip(found_conversations, found_names, strict=True)
    ]
    looks = _detect(found_conversations[0])
    if format not in (None, looks) and not any(transcript.messages for transcript in read):
        remedy = f"it looks like {looks}: leave --from (format=...) out"
        raise TranscriptError(f"contains no messages in the format {format}; {remedy}", file=file)
    return _with_messages(read, file)


def _with_messages(read: list[Transcript], file: str) -> list[Transcript]:
    if not any(transcript.messages for transcript in read):
        raise TranscriptError("contains no messages; name a file with at least one", file=file)
    return read


def _read(conversation: Conversation, *, file: str, name: str, label: str, format: str | None) -> Transcript:
    format = format or _detect(conversation)
    draft = Draft(file=file, label=label)
    for index in conversation.skipped:
        draft.note("no messages in an element of the file", index)
    if not conversation.entries:
        draft.note("conversation without messages")
    try:
        _FORMATS[format].read(draft, conversation.entries, conversation.head)
        return draft.transcript(name=name, format=format)
    except RecursionError:
        raise draft.error("is nested too deeply to be read; no transcript needs that") from None


def _is_message(entry: Json) -> bool:
    finders = (format for name, format in _FORMATS.items() if name not in _LOOSE)
    return openai_chat.is_message(entry) or any(format.matches(entry) for format in finders)


def _detect(conversation: Conversation) -> str:
    """Detect the format of a conversation; it is `openai` if the messages have only roles and plain text."""
    entries = [entry for entry in map(mapping, conversation.entries) if entry is not None]
    for name, format in _FORMATS.items():
        if any(map(format.matches, entries)):
            return name
    if "system" in conversation.head or any(map(anthropic_messages.may_match, entries)):
        return "anthropic"
    return "openai"


def _explain_unknown(value: object) -> str:
    fields = mapping(value)
    keys = f" with the keys {', '.join(repr(key[:40]) for key in list(fields)[:5])}" if fields else ""
    return (
        f"contains {kind(value)}{keys} in which no transcript was found; known formats are {', '.join(FORMATS)}. "
        f"If it is one of these, say which with --from (format=...)"
    )
