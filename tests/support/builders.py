"""Plain histories, spelled briefly and the same on every run, and what can be said of any history.

history = [user("look around"), *exchange(1), assistant("done"), user("and now?")]
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from typing import Any, cast

from pydantic_ai.messages import (
    BaseToolCallPart,
    BaseToolReturnPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.messages.items import separate_parts
from context_compiler.tokens import TokenCounter

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
"""When everything that a builder makes happened, unless it says otherwise."""


class Drawn(list[ModelMessage]):
    """A list that prints what a person can read when a test fails: long texts and messages are cut."""

    def __repr__(self) -> str:
        shown = (re.sub(r"'([^']{80})[^']{80,}'", r"'\1…'", repr(message)) for message in self)
        return "[\n  " + ",\n  ".join(text if len(text) < 1_500 else text[:1_500] + "…" for text in shown) + "\n]"


def user(*content: Any, system: str | None = None, run_id: str | None = None) -> ModelRequest:
    """A request: strings and files make one user prompt, parts stay as they are, in the order given."""
    parts: list[Any] = [SystemPromptPart(content=system, timestamp=WHEN)] if system is not None else []
    said: list[Any] = []
    for piece in content:
        (parts if hasattr(piece, "part_kind") else said).append(piece)
    if said:
        whole = said[0] if len(said) == 1 and isinstance(said[0], str) else said
        parts.append(UserPromptPart(content=whole, timestamp=WHEN))
    return ModelRequest(parts=parts, timestamp=WHEN, run_id=run_id)


def assistant(*content: Any, run_id: str | None = None) -> ModelResponse:
    """A response: strings become text parts, parts stay as they are."""
    parts = [TextPart(content=piece) if isinstance(piece, str) else piece for piece in content]
    return ModelResponse(parts=parts, timestamp=WHEN, model_name="fake", run_id=run_id)


def call(name: str, ident: str, /, **args: Any) -> ToolCallPart:
    """A call of the tool `name`; belongs into `assistant`."""
    return ToolCallPart(tool_name=name, args=args, tool_call_id=ident)


def answer(ident: str, content: Any = "ok", /, *, tool: str = "look", **fields: Any) -> ToolReturnPart:
    """What the call `ident` returned; belongs into `user`."""
    return ToolReturnPart(tool_name=tool, content=content, tool_call_id=ident, timestamp=WHEN, **fields)


def exchange(number: int, *, calls: int = 1, content: Any = None, run_id: str | None = None) -> list[ModelMessage]:
    """One response that calls `look` and the request that answers: ids are `call_<number>`, then `…_1` and so on."""
    ids = [f"call_{number}" + (f"_{index}" if index else "") for index in range(calls)]
    asked = [call("look", ident, path=f"src/file_{number}.py") for ident in ids]
    seen = f"file_{number}.py has {number} lines" if content is None else content
    return [assistant(*asked, run_id=run_id), user(*(answer(ident, seen) for ident in ids), run_id=run_id)]


WORDS = (
    "the",
    "build",
    "of",
    "module",
    "fails",
    "after",
    "value",
    "was",
    "read",
    "from",
    "cache",
    "and",
    "never",
    "sent",
)


def prose(number: int, words: int) -> str:
    """That many words, different for every `number`, with a path and an id among them now and then."""
    chosen: list[str] = []
    for index in range(words):
        mix = (number * 7919 + index * 104_729) % 1_000_003
        if mix % 17 == 0:
            chosen.append(f"src/part_{mix % 97}/file_{number}.py")
        elif mix % 19 == 0:
            chosen.append(f"id-{mix:06d}")
        else:
            chosen.append(WORDS[mix % len(WORDS)])
    return " ".join(chosen)


def long_history(turns: int, tools_per_turn: int = 2, words: int = 40, *, run_ids: bool = True) -> list[ModelMessage]:
    """`turns` whole turns and a last question: `turns * (2 + 2 * tools_per_turn) + 1` messages, always the same.

    Args:
        turns: User turns that are over.
        tools_per_turn: Exchanges with one call in each turn.
        words: Words in each prompt, result and answer.
        run_ids: Whether each turn carries the id of a run, as the host stamps them.
    """
    history: list[ModelMessage] = []
    for turn in range(turns):
        run = f"run-{turn}" if run_ids else None
        history.append(user(f"Question {turn}: {prose(3 * turn, words)}", run_id=run))
        for step in range(tools_per_turn):
            number = turn * tools_per_turn + step
            history += exchange(number, content=prose(3 * number + 1, words), run_id=run)
        history.append(assistant(f"Answer {turn}: {prose(3 * turn + 2, words)}", run_id=run))
    history.append(user(f"Question {turns}: what about src/file_0.py?", run_id=f"run-{turns}" if run_ids else None))
    for index, message in enumerate(history):
        message.timestamp = WHEN + timedelta(seconds=index)
    return history


def answered_id(part: object) -> str | None:
    """The id of the function call that a part answers, if it answers one."""
    if isinstance(part, NativeToolReturnPart):
        return None
    if isinstance(part, BaseToolReturnPart):
        return part.tool_call_id
    named = getattr(part, "part_kind", "") == "retry-prompt" and getattr(part, "tool_name", None) is not None
    return cast(str, getattr(part, "tool_call_id", None)) if named else None


def assert_pairs_whole(messages: Sequence[ModelMessage]) -> None:
    """Every call is answered once, by the requests right after its response, and nothing answers no call.

    Also: a history begins and ends with a request, has parts in every message, and a provider's own calls and
    returns come in pairs within their response.
    """
    assert messages, "no messages"
    assert messages[0].kind == "request", "begins with a response"
    assert messages[-1].kind == "request", "ends with a response"
    waiting: list[str] = []
    for kind, group in groupby(messages, key=lambda message: message.kind):
        run = list(group)
        parts = [part for message in run for part in message.parts]
        assert all(message.parts for message in run), f"a {kind} without parts"
        answers = [ident for part in parts if (ident := answered_id(part)) is not None]
        assert sorted(answers) == sorted(waiting), f"called {waiting}, answered {answers}"
        waiting = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
        assert len(set(waiting)) == len(waiting), f"one id for several calls: {waiting}"
        _assert_native_pairs(parts)


def _assert_native_pairs(parts: Iterable[object]) -> None:
    called: list[str] = []
    for part in parts:
        if isinstance(part, NativeToolReturnPart):
            assert part.tool_call_id in called, f"native return of {part.tool_call_id} without its call"
            called.remove(part.tool_call_id)
        elif isinstance(part, BaseToolCallPart) and not isinstance(part, ToolCallPart):
            called.append(part.tool_call_id)
    assert not called, f"native calls without a return: {called}"


def snapshot(messages: Sequence[ModelMessage]) -> str:
    """Everything that is in a history, as JSON text: equal before and after means untouched."""
    return json.dumps([_deep(message) for message in messages], ensure_ascii=True, sort_keys=True)


def _deep(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    names = _fields(type(value))
    if names is not None:
        return {"": type(value).__qualname__, **{name: _deep(getattr(value, name)) for name in names}}
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value)
        return {f"{key!r}": _deep(inner) for key, inner in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [_deep(inner) for inner in cast(Sequence[object], value)]
    return repr(value)


@cache
def _fields(kind: type[Any]) -> tuple[str, ...] | None:
    """Names of the fields of a dataclass; None for another type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


_counter = TokenCounter()
_SAID = ("content", "args", "tool_name", "transcript", "instructions", "tools_added", "loaded", "settings")


def apart(message: ModelMessage) -> ModelMessage:
    """The message with each text of the compiler's as a part of its own."""
    parts = separate_parts(message)
    return message if parts is message.parts else dataclasses.replace(message, parts=list(parts))  # pyright: ignore[reportArgumentType]


def tokens_of(messages: Iterable[ModelMessage]) -> int:
    """The o200k tokens of what is said in every part: texts as they are, arguments and results as JSON, no files."""
    return sum(_counter.text(text) for message in messages for part in message.parts for text in texts_of(part))


def texts_of(part: object) -> Iterator[str]:
    """What a part says, field by field, without binary data."""
    for name in _SAID:
        value = getattr(part, name, None)
        if isinstance(value, str):
            yield value
        elif value is not None:
            yield json.dumps(_spoken(value), ensure_ascii=False)


def _spoken(value: Any) -> Any:
    """`value` without the bytes of files."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        value = {name: getattr(value, name) for name in names if not name.startswith("_") and name != "vendor_metadata"}
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value)
        return {str(key): _spoken(inner) for key, inner in pairs.items() if not isinstance(inner, bytes)}
    if isinstance(value, (list, tuple)):
        return [_spoken(inner) for inner in cast(Sequence[object], value)]
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
