"""A model that keeps its requests and knows what providers refuse."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from os.path import commonprefix
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import TokenCounter
from context_compiler.messages.history import Reader
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.middleware.overflow import RetryModelRequest
from context_compiler.middleware.request import TOOL_OVERHEAD

COUNTER = TokenCounter()
READER = Reader(COUNTER)
HOST_NOTES = ("instruction-baseline", "instruction-delta", "tool-availability-delta", "model-settings-delta")
"""Parts that hosts below 2.64 add after our hook."""
NOTED_LATER = RetryModelRequest is None
UNSENT = ("timestamp", "run_id", "conversation_id", "usage", "model_name", "provider_response_id", "metadata", "state")
"""Fields of stored messages that are never sent to a provider."""

HALVES = re.compile("[\ud800-\udfff]")
"""Half surrogates, which cannot be sent to a provider; the record has U+FFFD instead."""

Step = ModelResponse | Exception
Script = Callable[[list[ModelMessage], AgentInfo], Step]


@dataclass(kw_only=True)
class Sent:
    """One request as the model received it."""

    messages: list[ModelMessage]
    parameters: Any
    instructions: str
    tokens: int
    """Tokens of messages, instructions, tools and schemas, by the package's own counter."""
    overhead: int
    """Tokens of instructions, tools and schemas."""
    refused: bool = False

    @property
    def prompts(self) -> list[str]:
        """Every text that the user wrote."""
        return all_texts(self.messages, UserPromptPart)


@dataclass
class StrictModel:
    """A model that follows a script, plain or streamed."""

    script: Script
    usage: float = 1.0
    """Factor between the tokens that it counts and reports and the exact ones."""
    framing: int = 0
    """Tokens that it adds to every count."""
    name: str = "strict"
    system: str = "function"
    """Name of the provider that it simulates."""
    sent: list[Sent] = field(default_factory=list[Sent])

    def __post_init__(self) -> None:
        self.model = _Counting(self._whole, stream_function=self._streamed, model_name=self.name)
        self.model.count, self.model.served_by = self.counted, self.system

    def counted(self, tokens: int) -> int:
        """Return the model's count for an exact number of tokens."""
        return max(1, round(tokens * self.usage) + self.framing)

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return self._next(messages, info)

    async def _streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for index, part in enumerate(self._next(messages, info).parts):
            if isinstance(part, ToolCallPart):
                yield {
                    index: DeltaToolCall(
                        name=part.tool_name, json_args=part.args_as_json_str(), tool_call_id=part.tool_call_id
                    )
                }
            elif isinstance(part, TextPart):
                yield part.content

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        overhead = _overhead(info.model_request_parameters)
        said = Sent(
            messages=list(messages),
            parameters=info.model_request_parameters,
            instructions=info.instructions or "",
            tokens=READER.read(_without_notes(messages)).tokens + overhead,
            overhead=overhead,
        )
        self.sent.append(said)
        step = self.script(messages, info)
        if isinstance(step, Exception):
            said.refused = True
            raise step
        step.usage = RequestUsage(input_tokens=self.counted(said.tokens), output_tokens=1)
        return step


class _Counting(FunctionModel):
    """A model that can count a request before it is sent."""

    count: Callable[[int], int]
    served_by: str

    @property
    def system(self) -> str:
        """Name of the provider; our count may not be exact for its tokenizer."""
        return self.served_by

    async def count_tokens(
        self, messages: list[ModelMessage], model_settings: Any, model_request_parameters: Any
    ) -> Any:
        tokens = READER.read(_without_notes(messages)).tokens + _overhead(model_request_parameters)
        return RequestUsage(input_tokens=self.count(tokens))


def _overhead(parameters: Any) -> int:
    texts = [part.content for part in parameters.instruction_parts or []]
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    written = [json.dumps({"type": "function", "function": tool}, default=str) for tool in tools]
    native = parameters.output_object if parameters.output_mode == "native" else None
    schema = COUNTER.text(json.dumps(native.json_schema, default=str)) if native else 0
    told = sum(COUNTER.text(text) + MESSAGE_OVERHEAD for text in texts)
    return told + sum(COUNTER.text(tool) + TOOL_OVERHEAD for tool in written) + schema


def _without_notes(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    if not NOTED_LATER or not messages or not any(part.part_kind in HOST_NOTES for part in messages[-1].parts):
        return list(messages)
    last: Any = messages[-1]
    kept = [part for part in last.parts if part.part_kind not in HOST_NOTES]
    return [*messages[:-1], type(last)(parts=kept)]


def part_texts(part: Any) -> list[str]:
    content = getattr(part, "content", "")
    pieces = content if isinstance(content, list | tuple) else [content]
    return [text for piece in pieces if isinstance(text := getattr(piece, "content", piece), str)]


def all_texts(messages: Sequence[ModelMessage], kind: type[Any] = object) -> list[str]:
    """Return the texts of all parts of a type."""
    parts = [part for message in messages for part in message.parts if isinstance(part, kind)]
    return [text for part in parts for text in part_texts(part)]


def refusals(messages: Sequence[ModelMessage], *, shared: str = "") -> Iterator[str]:
    """Yield every reason why a provider would refuse a request.

    Calls whose paths begin with `shared` may share an id within one answer, if each result follows its own call.
    """
    if not messages or messages[0].kind != "request" or messages[-1].kind != "request":
        yield f"begins or ends wrongly: {[message.kind for message in messages]}"
    for before, after in pairwise(messages):
        if before.kind == after.kind:
            parts = [[part.part_kind for part in message.parts] for message in (before, after)]
            yield f"two messages of the kind {before.kind} in a row: {parts}"
    for position, message in enumerate(messages):
        if not message.parts:
            yield f"message {position} of {len(messages)} is empty"
        yield from _blank(position, message)
    waiting: list[str] = []
    for position, message in enumerate(messages):
        if message.kind == "response":
            waiting = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            if len(set(waiting)) < len(waiting):
                yield from _sharing(position, message, messages[position + 1 :][:1], shared)
            continue
        answered = [name for part in message.parts if (name := _answered(part)) is not None]
        if sorted(answered) != sorted(waiting):
            yield f"message {position} of {len(messages)} answers {answered}, but the calls before it are {waiting}"
        waiting = []


def _sharing(position: int, message: ModelMessage, following: Sequence[ModelMessage], shared: str) -> Iterator[str]:
    """Yield why calls of one id cannot be told apart by their order and results."""
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    paths = [str(part.args_as_dict().get("path")) for part in calls]
    if not shared or not all(path.startswith(shared) for path in paths):
        yield f"message {position} makes a call twice: {[part.tool_call_id for part in calls]}"
        return
    results = [str(part.content) for answer in following for part in answer.parts if part.part_kind == "tool-return"]
    for path, result in zip(paths, results, strict=False):
        if path not in result and any(re.search(rf"{re.escape(other)}\b", result) for other in paths):
            yield f"message {position} calls {path}, and its result is {result[:80]!r}"


def _answered(part: Any) -> str | None:
    if part.part_kind == "tool-return":
        return part.tool_call_id
    return part.tool_call_id if part.part_kind == "retry-prompt" and part.tool_name else None


def _blank(position: int, message: ModelMessage) -> Iterator[str]:
    for part in message.parts:
        text: Any = getattr(part, "content", None)
        if part.part_kind in ("text", "system-prompt", "user-prompt") and isinstance(text, str) and not text.strip():
            yield f"message {position} has a blank {part.part_kind}"


def plain(messages: Sequence[ModelMessage]) -> list[Any]:
    """Convert a history to plain data, without the fields that are never sent."""
    data = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
    return [_without(message) for message in data]


def _without(value: Any) -> Any:
    if isinstance(value, str):
        return HALVES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {key: _without(inner) for key, inner in value.items() if key not in UNSENT}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def rendered(model: FunctionModel, messages: Sequence[ModelMessage], parameters: Any) -> list[Any]:
    """Render a history as the host passes it to a model: parts in order, each with its role."""
    return in_order(model.prepare_messages(merged(_without_notes(messages)), parameters))


def prompt_tokens(model: FunctionModel, text: str, parameters: Any) -> int:
    """Count a prompt, with the note that the host adds if the prompt looks like the host's own markup."""
    return READER.read(model.prepare_messages([ModelRequest(parts=[UserPromptPart(text)])], parameters)).tokens


def merged(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Join consecutive requests, as the host does."""
    joined: list[ModelMessage] = []
    for message in messages:
        if joined and isinstance(message, ModelRequest) and isinstance(joined[-1], ModelRequest):
            joined[-1] = replace(message, parts=[*joined[-1].parts, *message.parts])
        else:
            joined.append(message)
    return joined


def in_order(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return the parts of a history with their roles; consecutive requests are joined, with tool results first."""
    ordered: list[Any] = []
    for kind, group in groupby(plain(_without_notes(messages)), key=lambda message: message["kind"]):
        parts = [part for message in group for part in message["parts"]]
        if kind == "request":
            results = [part for part in parts if part.get("tool_call_id")]
            results.sort(key=lambda part: part["tool_call_id"])
            parts = [*results, *(part for part in parts if not part.get("tool_call_id"))]
        ordered += [(kind, part) for part in parts]
    return ordered


def difference(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Describe briefly where two lists differ."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return f"at {index} of {len(first)} and {len(second)}: {_around(str(a), str(b))}"
    shorter, longer = sorted((first, second), key=len)
    return f"{len(first)} and {len(second)} entries; the next is {str(longer[len(shorter) :][:1])[:300]}"


def _around(first: str, second: str) -> str:
    same = len(commonprefix((first, second)))
    return " and ".join(f"…{text[max(0, same - 60) : same + 120]!r}" for text in (first, second))
