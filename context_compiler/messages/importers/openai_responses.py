"""OpenAI Responses: input and output items; consecutive items written by the model form one response."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart

from context_compiler.messages.importers.content import call, response_parts, result_content, system
from context_compiler.messages.importers.draft import Draft, Json, mapping, sequence, text, time_of
from context_compiler.messages.importers.openai_chat import read_role, user

_CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
"""Types of calls, with the key of their arguments."""

_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")

_TEXTS = ("input_text", "output_text", "input_image", "input_file")

_SHELL = "local_shell"


def matches(entry: Json) -> bool:
    """True for an item that only this format has."""
    type_ = text(entry.get("type"))
    if type_ in _CALLS or type_ in _RESULTS or (type_ == "reasoning" and "summary" in entry):
        return True
    blocks = sequence(entry.get("content")) or []
    return type_ in ("message", None) and any((mapping(block) or {}).get("type") in _TEXTS for block in blocks)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the instructions of the object that contains the items, then the items, oldest first."""
    if isinstance(head.get("instructions"), str) and head["instructions"]:
        system(draft, {"content": head["instructions"]})
    for item in draft.objects(entries, "an item", "a type or a role"):
        read_item(draft, item, time=time_of(item))


def read_item(draft: Draft, item: Json, *, time: datetime | None) -> None:
    """Read one item.

    Raises:
        TranscriptError: The item has neither a type nor a role, or a call has no name.
    """
    type_ = item.get("type")
    if type_ in ("message", None):
        read_role(draft, item, _ROLES)
    elif type_ in _RESULTS:
        content = item.get("output")
        structured = content is not None and not isinstance(content, str) and sequence(content) is None
        result = result_content(draft, json.dumps(content, ensure_ascii=False) if structured else content)
        draft.request([draft.result(result, call_id=text(item.get("call_id")), name=None, time=time)], time=time)
    else:
        parts = _item_parts(draft, item, type_)
        if parts:
            draft.respond(parts, time=time, joins=True)


def _item_parts(draft: Draft, item: Json, type_: object) -> list[ModelResponsePart]:
    """Parts for an item of the model that is not a message; a call to a provider's own tool is kept as text."""
    if isinstance(type_, str) and type_ in _CALLS:
        name = _SHELL if type_ == "local_shell_call" else item.get("name")
        return [call(draft, name, item.get(_CALLS[type_]), call_id=item.get("call_id") or item.get("id"), position=0)]
    if type_ == "reasoning":
        return _reasoning(item)
    draft.note(f"item of type {str(type_)[:40]!r} kept as text")
    return [TextPart(content=json.dumps(item, ensure_ascii=False))]


def _reasoning(item: Json) -> list[ModelResponsePart]:
    blocks = [*(sequence(item.get("summary")) or []), *(sequence(item.get("content")) or [])]
    reasoning = "\n\n".join(filter(None, (text((mapping(block) or {}).get("text")) for block in blocks)))
    signature = text(item.get("encrypted_content"))
    if not reasoning and not signature:
        return []
    return [ThinkingPart(content=reasoning, id=text(item.get("id")), signature=signature, provider_name="openai")]


def _assistant(draft: Draft, item: Json) -> None:
    draft.respond(response_parts(draft, item.get("content")), time=time_of(item), joins=True)


_ROLES: dict[str, Callable[[Draft, Json], None]] = {
    "user": user,
    "assistant": _assistant,
    "system": system,
    "developer": system,
}
