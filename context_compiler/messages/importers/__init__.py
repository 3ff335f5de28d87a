"""Import transcripts of other tools as Pydantic AI messages: one file in, its conversations out.

The format is detected from the content or given by name. A broken transcript is imported as it is (the view repairs);
a file that is no transcript is an error that names the file, the message and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import anthropic_messages, openai_chat, pi_session, pydantic_json, swe_agent
from context_compiler.messages.importers.document import Conversation, conversations, detect, load, names
from context_compiler.messages.importers.draft import FORMATS, KNOWN_SHAPES, Draft, Json, Transcript, kind, mapping

__all__ = ["FORMATS", "Transcript", "parse_transcripts", "read_transcripts"]

_READERS: dict[str, Callable[[Draft, Sequence[object], Json], None]] = {
    "pydantic-ai": pydantic_json.read,
    "openai": openai_chat.read,
    "anthropic": anthropic_messages.read,
    "pi": pi_session.read,
    "swe-agent": swe_agent.read,
}


def read_transcripts(path: str | Path, *, format: str | None = None) -> list[Transcript]:
    """Every conversation in a file, in its order; at least one.

    Args:
        path: A JSON or JSONL file in UTF-8.
        format: One of `FORMATS`; None reads it off the content.

    Raises:
        TranscriptError: the file cannot be read, or is no transcript.
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
    """Every conversation in the bytes of a file named `file`; at least one.

    Raises:
        TranscriptError: the bytes are no transcript, or `format` is none of `FORMATS`.
    """
    if format is not None and format not in FORMATS:
        raise TranscriptError(f"unknown format {format!r}; use one of {', '.join(FORMATS)}", file=file)
    value = load(data, file=file)
    found = conversations(value, trusted=format is not None)
    if not found:
        raise TranscriptError(_unknown(value), file=file)
    called = names(found, PurePath(file).stem)
    read = [
        _read(one, file=file, name=name, label=name if len(found) > 1 else "", format=format)
        for one, name in zip(found, called, strict=True)
    ]
    if not any(transcript.messages for transcript in read):
        raise TranscriptError("holds no messages; name a file with at least one", file=file)
    return read


def _read(one: Conversation, *, file: str, name: str, label: str, format: str | None) -> Transcript:
    format = format or detect(one)
    draft = Draft(file=file, label=label)
    for index in one.skipped:
        draft.note("no messages in an element of the file", index)
    if not one.entries:
        draft.note("conversation without messages")
    try:
        _READERS[format](draft, one.entries, one.head)
        return draft.transcript(name=name, format=format)
    except RecursionError:
        raise draft.wrong("is nested too deeply to be read; no transcript needs that") from None


def _unknown(value: object) -> str:
    held = mapping(value)
    keys = f" with the keys {', '.join(repr(key[:40]) for key in list(held)[:5])}" if held else ""
    return (
        f"holds {kind(value)}{keys} in which no transcript was found; known are {KNOWN_SHAPES}. "
        f"If it is one of these, say which with --format (format=...)"
    )
