"""Pydantic AI's own JSON, as written by `all_messages_json()` and read by the installed version."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessagesTypeAdapter

from context_compiler.messages.importers.draft import Draft, Json


def matches(entry: Json) -> bool:
    """True for a request or a response."""
    return entry.get("kind") in ("request", "response") and "parts" in entry


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read messages one by one, so that an error can name the message.

    Raises:
        TranscriptError: The installed Pydantic AI cannot read a message.
    """
    for entry in draft.each(entries):
        try:
            (message,) = ModelMessagesTypeAdapter.validate_json(json.dumps([entry]))
        except ValidationError as error:
            raise draft.error(_explain(error)) from None
        draft.add(message)


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid" and "hex escape" in first["msg"]:
        return "contains half a character (a lone surrogate such as \\ud83d); replace it, for example with \\ufffd"
    path = ".".join(str(step) for step in first["loc"][2:5])
    newer = "; was it written by a newer Pydantic AI?" if first["type"] == "union_tag_invalid" else ""
    return (
        f"is not a message that the installed Pydantic AI can read ({path or 'message'}: {first['msg'][:160]}){newer}"
    )
