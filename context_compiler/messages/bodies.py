"""Canonical JSON of the host's messages, which is what the record stores."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from context_compiler.errors import StoreError
from context_compiler.messages.deep import is_nested, load_deep
from context_compiler.messages.items import type_label

_SURROGATES = re.compile("[\ud800-\udfff]")
_LONG_NUMBER = 4_301
"""Number of digits from which on JSON parsers reject an integer."""
_DIGITS = re.compile(rb"\d*")
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\\?\Z)|(-?\d{4301,}+)')
"""A complete string, matched so that digits in it are skipped, or an integer too long for JSON parsers."""


NESTING = ("content", "args", "metadata")
"""Attributes of parts that contain values of applications and models."""

DEEPEST = 251
"""Maximum nesting of lists and objects in a part. Pydantic cannot serialize deeper values, and some of its versions
retry every type at every level: 300 levels take them hours."""


def message_body(message: ModelMessage) -> bytes:
    """Serialize one message to canonical JSON.

    A lone surrogate, which cannot be encoded, becomes a replacement character. An integer of more than 4,300 digits,
    which JSON parsers reject, becomes a string.

    Raises:
        PydanticSerializationError: The message is nested too deeply.
    """
    if is_nested([getattr(part, name, None) for part in message.parts for name in NESTING], DEEPEST + 1):
        raise PydanticSerializationError(f"nested more than {DEEPEST} levels deep, which cannot be serialized")
    try:
        body = ModelMessagesTypeAdapter.dump_json([message], warnings=False, fallback=type_label)[1:-1]
    except PydanticSerializationError:
        valid = _replace_surrogates(message)
        plain = ModelMessagesTypeAdapter.dump_python([valid], mode="json", warnings=False, fallback=type_label)
        text = json.dumps(plain[0], ensure_ascii=False, separators=(",", ":"))
        body = _SURROGATES.sub("\ufffd", text).encode()
    return _STRING_OR_NUMBER.sub(_quote_number, body) if _has_long_number(body) else body


def _replace_surrogates(value: Any) -> Any:
    """Copy a value with every lone surrogate in its texts, keys and attributes replaced."""
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        pairs = cast(dict[Any, Any], value).items()
        return {_replace_surrogates(key): _replace_surrogates(inner) for key, inner in pairs}
    if isinstance(value, list):
        return [_replace_surrogates(inner) for inner in cast(list[Any], value)]
    if not is_dataclass(value):
        return value
    other = copy(value)
    for each in fields(value):
        if hasattr(value, each.name):
            object.__setattr__(other, each.name, _replace_surrogates(getattr(value, each.name)))
    return other


def _has_long_number(body: bytes) -> bool:
    """True if there are `_LONG_NUMBER` digits in a row. Any such run covers one of the bytes that are checked."""
    for start in range(0, len(body), _LONG_NUMBER):
        if 48 <= body[start] <= 57:  # a digit
            before = body[max(0, start - _LONG_NUMBER) : start]
            after = _DIGITS.match(body, start, start + _LONG_NUMBER)
            if len(before) - len(before.rstrip(b"0123456789")) + (after.end() - start if after else 0) >= _LONG_NUMBER:
                return True
    return False


def _quote_number(match: re.Match[bytes]) -> bytes:
    return b'"%s"' % match[1] if match[1] else match[0]


def load_messages(bodies: Sequence[bytes]) -> list[ModelMessage]:
    """Parse messages from their canonical JSON.

    Raises:
        StoreError: The JSON is damaged.
    """
    try:
        with suppress(ValueError):
            return ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(bodies) + b"]")
        return load_deep(bodies)
    except (ValueError, RecursionError) as error:
        raise StoreError("a recorded message cannot be read; verify the record") from error
