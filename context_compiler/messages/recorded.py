"""Read recorded messages without the host: their JSON, with the attributes that its classes would have.

Importing Pydantic AI takes longer than everything else that a command does to show a recorded request.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

from context_compiler.errors import StoreError

FILE_FIELDS = {
    "binary": "data",
    "image-url": "url",
    "audio-url": "url",
    "document-url": "url",
    "video-url": "url",
    "uploaded-file": "file_id",
}
"""Kinds of files, each with the field that tells one from an object of a tool with the same `kind`."""


class Fields(dict[str, Any]):
    """A part of a message, or an object in its content; its fields are attributes too."""

    def __getattr__(self, name: str) -> Any:
        """Value of a field, decoded as the host decodes it.

        Raises:
            AttributeError: There is no such field.
        """
        if name == "_media_type":
            return self.get("media_type")
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(name) from None
        try:
            if name == "timestamp" and isinstance(value, str):
                return datetime.fromisoformat(value)
            if name == "data" and self.get("kind") == "binary" and isinstance(value, str):
                return b64decode(value.translate({ord("-"): "+", ord("_"): "/"}))
        except ValueError:
            return None
        return value


class RecordedMessage(Fields):
    """A recorded message; it reads like the host's, but cannot be sent."""

    def __init__(self, body: bytes) -> None:
        """Parse the canonical JSON of a message.

        Raises:
            ValueError, TypeError, LookupError, AttributeError, RecursionError: It is no message.
        """
        fields = cast("dict[str, Any]", json.loads(body, object_hook=_with_attributes))
        parts = [_part(part) for part in fields["parts"]]
        super().__init__({"instructions": None, "timestamp": None, "run_id": None, "metadata": None} | fields)
        self["parts"] = parts
        self.body = body

    @classmethod
    def of_prompt(cls, text: str) -> RecordedMessage:
        """Make a request of one text, to be read like a recorded one."""
        part = {"part_kind": "user-prompt", "content": text}
        return cls(json.dumps({"kind": "request", "parts": [part]}).encode())


def read_bodies(bodies: Sequence[bytes]) -> list[RecordedMessage]:
    """Read messages from their canonical JSON.

    Raises:
        StoreError: The JSON is damaged.
    """
    with report_damage():
        return [RecordedMessage(body) for body in bodies]


@contextmanager
def report_damage() -> Generator[None]:
    """Turn the errors of a recorded message that lacks something into one that says what to do.

    Raises:
        StoreError: The message is damaged.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoreError("a recorded message cannot be read; verify the record") from error


def _part(fields: dict[str, Any]) -> Fields:
    part, content = Fields(fields), fields.get("content")
    if fields.get("part_kind") == "user-prompt" and isinstance(content, list):
        pieces = cast("list[Any]", content)
        part["content"] = [
            Fields(cast("dict[str, Any]", piece)) if isinstance(piece, dict) else piece for piece in pieces
        ]
    return part


def _with_attributes(fields: dict[str, Any]) -> dict[str, Any]:
    """Give attributes to a file; leave other objects alone, such as those that a tool returned."""
    kind = fields.get("kind")
    return Fields(fields) if isinstance(kind, str) and FILE_FIELDS.get(kind) in fields else fields
