"""What every importer shares: the transcript it makes, and the plain shapes of the JSON it reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from pydantic_ai.messages import ModelMessage

FORMATS: tuple[str, ...] = ("pydantic-ai", "openai", "anthropic", "pi", "swe-agent")
"""The transcript formats that can be read, by name."""

KNOWN_SHAPES = (
    "Pydantic AI messages (pydantic-ai), OpenAI chat messages (openai), Anthropic messages (anthropic), "
    "a coding-agent session as JSONL (pi) or a SWE-agent trajectory (swe-agent)"
)

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of a message whose file gives none: the same file always reads as the same messages."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One conversation, read."""

    name: str
    """The file's stem; `stem#id` or `stem#index` for one of several conversations in a file."""
    format: str
    """One of `FORMATS`."""
    messages: tuple[ModelMessage, ...]
    notes: tuple[str, ...] = ()
    """What was read leniently: entries skipped, calls cut off, blocks of unknown type kept as text."""


def mapping(value: object) -> Json | None:
    """A JSON object, or None."""
    return cast(Json, value) if isinstance(value, dict) else None


def sequence(value: object) -> list[object] | None:
    """A JSON array, or None."""
    return cast("list[object]", value) if isinstance(value, list) else None


def text(value: object) -> str | None:
    """A JSON string, or None."""
    return value if isinstance(value, str) else None


def kind(value: object) -> str:
    """What a JSON value is, in words for people."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names = (("an object", dict), ("a list", list), ("a string", str))
    return next((name for name, shape in names if isinstance(value, shape)), "a number")


def moment(value: object) -> datetime | None:
    """A time from ISO 8601 text or from seconds or milliseconds since 1970, in UTC; None when it is neither."""
    try:
        if isinstance(value, str):
            read = datetime.fromisoformat(value)
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if abs(value) > 1e11 else value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def time_of(entry: Json) -> datetime | None:
    """When a message was written, where its entry says so."""
    return moment(entry.get("timestamp")) or moment(entry.get("created_at"))
