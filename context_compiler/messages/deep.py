"""Messages whose values are nested more deeply than Pydantic reads from JSON: 200 levels, though it writes 251."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, cast

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

SHALLOW = 100
"""Levels up to which Pydantic reads a value of a part itself."""


def load_deep(bodies: Sequence[bytes]) -> list[ModelMessage]:
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
        if deep := {name: value for name, value in part.items() if is_nested([value], SHALLOW)}:
            deep_values[position] = deep
            part |= {name: "" if name == "content" else None for name in deep}
    return deep_values


def is_nested(values: Sequence[Any], levels: int) -> bool:
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


def _with_values(message: ModelMessage, values: dict[int, dict[str, Any]]) -> ModelMessage:
    parts: list[Any] = [replace(part, **values.get(position, {})) for position, part in enumerate(message.parts)]
    return replace(message, parts=parts)
