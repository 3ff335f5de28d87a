"""A message as canonical JSON: what the record keeps and names, and what gives the message back without loss."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from context_compiler.messages.content import name_of

_HALVES = re.compile("[\ud800-\udfff]")
_DIGITS = re.compile(rb"(?<!\d)\d{4301}")
_STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(-?\d{4301,}+)')
"""A string whole, so that nothing within it is taken for a number; or a number longer than readers of JSON take."""


def message_body(message: ModelMessage) -> bytes:
    """The canonical JSON of one message.

    Half of a surrogate pair, which nothing can write or send, becomes a replacement character; a whole number of more
    than 4,300 digits, which nothing could read again, becomes text.
    """
    try:
        body = ModelMessagesTypeAdapter.dump_json([message], warnings=False, fallback=name_of)[1:-1]
    except PydanticSerializationError:
        loose = ModelMessagesTypeAdapter.dump_python([message], mode="json", warnings=False, fallback=name_of)
        text = json.dumps(loose[0], ensure_ascii=False, separators=(",", ":"))
        body = _HALVES.sub("\ufffd", text).encode()
    return _STRING_OR_NUMBER.sub(_as_text, body) if _DIGITS.search(body) else body


def _as_text(found: re.Match[bytes]) -> bytes:
    return b'"%s"' % found[1] if found[1] else found[0]


def load_messages(bodies: Sequence[bytes]) -> list[ModelMessage]:
    """Messages from their canonical JSON."""
    return ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(bodies) + b"]")
