"""ChatGPT exports: a conversation is a tree of nodes; only the branch that leads to the current node is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart

from context_compiler.messages.importers.content import answer, call, system
from context_compiler.messages.importers.draft import Draft, Json, kind, mapping, parse_time, sequence, text
from context_compiler.messages.importers.openai_chat import user

_HIDDEN = ("reasoning_recap",)
"""Content types that only repeat other messages."""


def matches(entry: Json) -> bool:
    """True for a node of a conversation."""
    return "children" in entry and ("message" in entry or "parent" in entry)


def read(draft: Draft, entries: Sequence[object], head: Json) -> None:
    """Read the nodes from the root to the current one.

    Raises:
        TranscriptError: The author of a message has no known role.
    """
    for value in draft.each(entries, _branch(draft, entries, head)):
        message = mapping((mapping(value) or {}).get("message"))
        if message is not None:
            _read_message(draft, message)


def _branch(draft: Draft, entries: Sequence[object], head: Json) -> list[int]:
    nodes = [mapping(entry) or {} for entry in entries]
    ids = {id: position for position, node in enumerate(nodes) if (id := text(node.get("id"))) is not None}
    leaves = [position for position, node in enumerate(nodes) if not sequence(node.get("children"))]
    position = ids.get(text(head.get("current_node")) or "", leaves[-1] if leaves else None)
    path: list[int] = []
    seen: set[int] = set()
    while position is not None and position not in seen:
        seen.add(position)
        path.append(position)
        position = ids.get(text(nodes[position].get("parent")) or "")
    for other, node in enumerate(nodes):
        if other not in seen and mapping(node.get("message")):
            draft.note("left out a message of another branch", other)
    return path[::-1]


def _read_message(draft: Draft, message: Json) -> None:
    author = mapping(message.get("author")) or {}
    role, content = author.get("role"), mapping(message.get("content")) or {}
    reader = _ROLES.get(role) if isinstance(role, str) else None
    if reader is None:
        raise draft.error(f"the author of a message is {kind(role)}; its role must be one of {', '.join(_ROLES)}")
    prose = _text(draft, content)
    if prose and content.get("content_type") not in _HIDDEN:
        reader(draft, message, prose)


def _text(draft: Draft, content: Json) -> str:
    """Render content as text; media become a label with their kind."""
    type_ = content.get("content_type")
    if type_ == "user_editable_context":
        return "\n\n".join(filter(None, (text(content.get(key)) for key in ("user_profile", "user_instructions"))))
    if type_ == "thoughts":
        thoughts = [mapping(thought) or {} for thought in sequence(content.get("thoughts")) or []]
        return "\n\n".join(
            filter(None, (text(thought.get("content")) or text(thought.get("summary")) for thought in thoughts))
        )
    parts = sequence(content.get("parts"))
    if parts is None:
        return text(content.get("text")) or text(content.get("result")) or ""
    return "\n".join(filter(None, (_part(draft, part) for part in parts)))


def _part(draft: Draft, part: object) -> str:
    if isinstance(part, str):
        return part
    fields = mapping(part) or {}
    prose = text(fields.get("text"))
    if prose:
        return prose
    type_ = text(fields.get("content_type")) or kind(part)
    draft.note(f"part of type {type_[:40]!r} kept as its name")
    return f"[{type_.removesuffix('_asset_pointer')[:40]}]"


def _entry(message: Json, prose: str) -> Json:
    return {"content": prose, "timestamp": message.get("create_time")}


def _system(draft: Draft, message: Json, prose: str) -> None:
    system(draft, _entry(message, prose))


def _user(draft: Draft, message: Json, prose: str) -> None:
    if (mapping(message.get("content")) or {}).get("content_type") == "user_editable_context":
        draft.note("custom instructions kept as a system message")
        _system(draft, message, prose)
    else:
        user(draft, _entry(message, prose))


def _assistant(draft: Draft, message: Json, prose: str) -> None:
    """Add an assistant message: text, reasoning or, if it is addressed to a tool, a call."""
    recipient = text(message.get("recipient")) or "all"
    content = mapping(message.get("content")) or {}
    part: ModelResponsePart
    if recipient != "all":
        argument = prose if prose.lstrip().startswith("{") else {"input": prose}
        part = call(draft, recipient, argument, call_id=message.get("id"), position=0)
    elif content.get("content_type") == "thoughts":
        part = ThinkingPart(content=prose)
    else:
        part = TextPart(content=prose)
    response = draft.respond([part], time=parse_time(message.get("create_time")), joins=True)
    model = text((mapping(message.get("metadata")) or {}).get("model_slug"))
    response.model_name = model or response.model_name


def _tool(draft: Draft, message: Json, prose: str) -> None:
    name = text((mapping(message.get("author")) or {}).get("name"))
    answer(draft, _entry(message, prose), None, name)


_ROLES: dict[str, Callable[[Draft, Json, str], None]] = {
    "system": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
}
