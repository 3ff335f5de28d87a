"""Canonical JSON of the host's messages, which is what the record stores."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, cast

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from context_compiler.errors import StoreError
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

SHALLOW = 100
"""Levels up to which Pydantic reads a value of a part itself. It reads at most 200 from JSON, though it writes 251."""


def message_body(message: ModelMessage) -> bytes:
    """Serialize one message to canonical JSON.

    A lone surrogate, which cannot be encoded, becomes a replacement character. An integer of more than 4,300 digits,
    which JSON parsers reject, becomes a string.

    Raises:
        PydanticSerializationError: The message is nested too deeply.
    """
    if _is_nested([getattr(part, name, None) for part in message.parts for name in NESTING], DEEPEST + 1):
        raise PydanticSerializationError(f"nested more than {DEEPEST} levels deep, which cannot be serialized")
    try:
        body = ModelMessagesTypeAdapter.dump_json([message], warnings=False, fallback=type_label)[1:-1]
    except PydanticSerializationError:
        valid = _replace_surrogates(message)
        plain = ModelMessagesTypeAdapter.dump_python([valid], mode="json", warnings=False, fallback=type_label)
        text = json.dumps(plain[0], ensure_ascii=False, separators=(",", ":"))
        body = _SURROGATES.sub("\ufffd", text).encode()
    return _STRING_OR_NUMBER.sub(_quote_number, body) if _has_long_number(body) else body


def _is_nested(values: Sequence[Any], levels: int) -> bool:
    """True if containers or objects that are not empty are at least this many levels deep in these values."""
    level = values
    for _ in range(levels):
        # By id: a list may occur twice.
        inner = {id(value): children for value in level if (children := _children(value))}
        if not inner:
            return False
        level = list(chain.from_iterable(inner.values()))
    return True


def _children(value: object) -> Collection[Any]:
    """Values directly inside a container or an object; empty for other values."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    if isinstance(value, (list, tuple)):
        return cast("Collection[Any]", value)
    if isinstance(value, BaseModel):
        return vars(value).values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return ()


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
        return _load_deep(bodies)
    except (ValueError, RecursionError) as error:
        raise StoreError("a recorded message cannot be read; verify the record") from error


def _load_deep(bodies: Sequence[bytes]) -> list[ModelMessage]:
    """Parse messages; deep values of parts become plain lists and objects.

    Raises:
        ValueError: A body is no message.
        RecursionError: A value is nested too deeply for Python, too.
    """
    documents = [json.loads(body) for body in bodies]
    deep = [_take_deep_values(document) for document in documents]
    messages = ModelMessagesTypeAdapter.validate_json(json.dumps(documents))
    return [_with_values(message, values) for message, values in zip(messages, deep, strict=True)]


def _take_deep_values(document: Any) -> dict[int, dict[str, Any]]:
    """Remove the deep values from the parts of a message, and return them by position and name."""
    deep_values: dict[int, dict[str, Any]] = {}
    message = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    parts: list[dict[str, Any]] = [part for part in message.get("parts") or () if isinstance(part, dict)]
    for position, part in enumerate(parts):
        if deep := {name: value for name, value in part.items() if _is_nested([value], SHALLOW)}:
            deep_values[position] = deep
            part |= {name: "" if name == "content" else None for name in deep}
    return deep_values


def _with_values(message: ModelMessage, values: dict[int, dict[str, Any]]) -> ModelMessage:
    parts: list[Any] = [replace(part, **values.get(position, {})) for position, part in enumerate(message.parts)]
    return replace(message, parts=parts)
