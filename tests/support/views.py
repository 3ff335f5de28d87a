"""What can be said of any view, found out without asking the code that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, TextContent

from context_compiler.compiler.cut_order import MIN_PART
from context_compiler.compiler.view import View
from context_compiler.messages.fences import LEFT_OUT
from context_compiler.messages.history import Reader
from context_compiler.messages.items import RETRY_OVERHEAD, Item, Kind, mark_of
from context_compiler.tokens import TokenCounter
from tests.support.builders import answered_id

counter = TokenCounter()

CALLS = ("tool-call", "builtin-tool-call")
RETURNS = ("tool-return", "builtin-tool-return")


def wire_tokens(messages: Iterable[ModelMessage]) -> int:
    """The o200k tokens of every text that a provider is sent, framing and media not counted."""
    return sum(counter.text(text) for message in messages for part in message.parts for text in wire_texts(part))


def wire_texts(part: Any) -> Iterator[str]:
    """The texts of one part as the host itself would write them."""
    if part.part_kind in CALLS:
        yield from (part.tool_name, part.args_as_json_str())
    elif part.part_kind in RETURNS:
        yield part.tool_name
        yield part.model_response_str()
    elif part.part_kind == "user-prompt" and not isinstance(part.content, str):
        for piece in part.content:
            if isinstance(piece, str | TextContent):
                yield piece if isinstance(piece, str) else piece.content
    else:
        for name in ("content", "signature"):
            if isinstance(text := getattr(part, name, None), str):
                yield text
        for name in ("tools_added", "loaded"):
            yield from getattr(part, name, None) or ()


def own_texts(view: View) -> list[str]:
    """Everything in a view that this package wrote, but for the line that stands for what is left out."""
    texts: list[str] = []
    for part in (part for message in view.messages for part in message.parts):
        if mark_of(part):
            texts.append(str(getattr(part, "content", "")))
        elif part.part_kind == "user-prompt" and not isinstance(part.content, str):
            texts += [piece.content for piece in part.content if isinstance(piece, TextContent) and mark_of(piece)]
    return [text for text in texts if text != LEFT_OUT]


def assert_answered(messages: Sequence[ModelMessage]) -> None:
    """Every call, a provider's own included, is answered exactly once, later, and nothing answers no call."""
    waiting: set[tuple[str, bool]] = set()
    for index, part in ((index, part) for index, message in enumerate(messages) for part in message.parts):
        native = part.part_kind.startswith("builtin")
        ident = str(getattr(part, "tool_call_id", "")), native
        if part.part_kind in CALLS:
            assert ident not in waiting, f"{ident} is called again in message {index} before it was answered"
            waiting.add(ident)
        elif native or answered_id(part) is not None:
            assert ident in waiting, f"message {index} answers {ident}, which nobody calls"
            waiting.remove(ident)
    assert not waiting, f"never answered: {waiting}"


def assert_sound(view: View, history: Sequence[ModelMessage]) -> None:
    """A view is within its budget unless it is the least there can be, whole, and ends with the last request."""
    assert view.tokens == sum(Reader(counter).one(message).tokens for message in view.messages)
    if view.status != "floor_over_budget":
        assert view.tokens <= view.budget
        assert wire_tokens(view.messages) <= view.budget
    else:
        assert_least(view)
    assert_answered(view.messages)
    assert all(message.parts for message in view.messages), "a message without parts"
    assert isinstance(next(filter(_talks, view.messages)), ModelRequest), "begins with an answer"
    assert_ends_with_request(view, history)


def _talks(message: ModelMessage) -> bool:
    """Whether a message is part of the conversation: not only system text and notes of the host."""
    return any(item.kind not in (Kind.SYSTEM, Kind.CONTROL) for item in Reader(counter).one(message).items)


def assert_ends_with_request(view: View, history: Sequence[ModelMessage]) -> None:
    """The last message is the last request itself, or the same with its parts cut to size."""
    last = max(index for index, message in enumerate(history) if isinstance(message, ModelRequest))
    asked, sent = history[last], view.messages[-1]
    assert isinstance(sent, ModelRequest)
    touched = {drop.what for drop in view.drops}
    if sent is asked or asked.parts == sent.parts:
        return
    answered = {ident for message in history[:last] for part in message.parts if (ident := _called(part))}
    broken = any((ident := answered_id(part)) and ident not in answered for part in asked.parts)
    again = len({answered_id(part) for part in asked.parts}) < len(asked.parts)
    assert f"message {last}" in touched or broken or again or _repeated(history, last), "the last request was changed"
    kinds = [part.part_kind for part in asked.parts]
    assert len(sent.parts) <= len(kinds)


def _called(part: Any) -> str | None:
    return part.tool_call_id if part.part_kind == "tool-call" else None


def _repeated(history: Sequence[ModelMessage], last: int) -> bool:
    """Whether the last request answers what was answered before."""
    before = {ident for message in history[:last] for part in message.parts if (ident := answered_id(part))}
    return any(answered_id(part) in before for part in history[last].parts)


def assert_least(view: View) -> None:
    """Nothing in a view could be smaller: all that may be over a budget is what the host needs and what is open."""
    *before, last = (Reader(counter).one(message).items for message in view.messages)
    for item in (*(item for items in before for item in items), *(last if len(last) > 1 else ())):
        assert item.kind not in (Kind.THINKING, Kind.OTHER), item
        assert item.loads or item.kind is Kind.CONTROL or item.tokens <= _least(item), item
    assert not own_texts(view)


def _least(item: Item) -> int:
    if item.text == LEFT_OUT:
        return item.tokens
    name = counter.text(item.tool or "")
    retry = RETRY_OVERHEAD if item.failed else 0
    return retry + {Kind.CALL: 9 + name, Kind.RETURN: 5 + name}.get(item.kind, MIN_PART)
