"""Small transcripts, and short ways to read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import Transcript, parse_transcripts

HELLO = {"role": "user", "content": "Hello"}
PIXEL = "iVBORw0KGgo="


def read(value: object, *, format: str | None = None) -> Transcript:
    """The only conversation in a JSON value, which also survives being stored."""
    (transcript,) = read_all(value, format=format)
    return transcript


def read_all(value: object, *, format: str | None = None) -> list[Transcript]:
    found = parse_transcripts(json.dumps(value).encode(), file="sample.json", format=format)
    for transcript in found:
        survives(transcript.messages)
    return found


def lines(*values: object) -> bytes:
    return "\n".join(map(json.dumps, values)).encode()


def survives(messages: Iterable[ModelMessage]) -> None:
    kept = list(messages)
    assert ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(kept)) == kept


def kinds(messages: Iterable[ModelMessage]) -> list[list[str]]:
    """The kinds of the parts of each message."""
    return [[part.part_kind for part in message.parts] for message in messages]


def parts(messages: Iterable[ModelMessage], kind: str) -> list[Any]:
    return [part for message in messages for part in message.parts if part.part_kind == kind]


def refused(value: object, *, format: str | None = None) -> TranscriptError:
    """The error that a JSON value, or the bytes of a file, are refused with."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(TranscriptError) as caught:
        parse_transcripts(data, file="sample.json", format=format)
    assert caught.value.file == "sample.json"
    return caught.value


def the(folder: Path, pattern: str) -> list[Path]:
    """The real files that a pattern names; the test is skipped without them."""
    paths = sorted(folder.glob(pattern))
    if not paths:
        pytest.skip(f"no {pattern} in {folder}")
    return paths
