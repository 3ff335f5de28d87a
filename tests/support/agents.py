"""Models that remember what they were sent, compilers that count how often they were asked, and every way to run.

talker = Talker([[("look", {"path": "a"})], "done"])
agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=800)])
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    TextContent,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler
from context_compiler.tokens import TokenCounter
from tests.support.builders import apart, snapshot, texts_of

Step = str | Sequence[tuple[str, dict[str, Any]]] | ModelResponse | Exception
Script = Step | Sequence[Step] | Callable[[list[ModelMessage], AgentInfo], Step]

NOTES = "- **Goal**: find out why the build fails.\n- **Specifics**: src/file_0.py has 0 lines."

_counter = TokenCounter()


@dataclass(kw_only=True)
class Sent:
    """One request as the model received it."""

    messages: list[ModelMessage]
    """With each text of the compiler's as a part of its own."""
    instructions: str
    tools: str
    snapshot: str

    @property
    def tokens(self) -> int:
        """Texts, instructions and the JSON of the tools, in o200k tokens; what a host keeps beside them is not sent."""
        parts = [_plain(part) for message in self.messages for part in message.parts]
        said = sum(_counter.text(text) for part in parts for text in texts_of(part))
        return said + _counter.text(self.instructions) + _counter.text(self.tools)

    @property
    def text(self) -> str:
        """Everything in it, as text to search in."""
        return self.snapshot


def _plain(part: Any) -> Any:
    """The part with marked texts as the texts that they are."""
    pieces = getattr(part, "content", None)
    if part.part_kind != "user-prompt" or not isinstance(pieces, list):
        return part
    texts = [piece.content if isinstance(piece, TextContent) else piece for piece in pieces]
    return UserPromptPart(content=texts[0] if len(texts) == 1 and isinstance(texts[0], str) else texts)


class Talker:
    """A model that follows a script and keeps every request, plain or streamed.

    Steps are a text, tool calls, a whole response, or an error to raise; a single one is said again and again.
    """

    def __init__(self, script: Script = "ok.", *, usage: int | None = None, **model: Any) -> None:
        self.sent: list[Sent] = []
        self._script, self._step, self._calls, self._usage = script, 0, 0, usage
        self.model = FunctionModel(self._whole, stream_function=self._streamed, **model)

    def say(self, script: Script) -> None:
        """Begin another script."""
        self._script, self._step = script, 0

    @property
    def last(self) -> Sent:
        """The request that came last."""
        return self.sent[-1]

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        response = self._next(messages, info)
        if self._usage is not None:
            response.usage = RequestUsage(input_tokens=self._usage, output_tokens=1)
        return response

    async def _streamed(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for index, part in enumerate(self._next(messages, info).parts):
            if isinstance(part, ToolCallPart):
                args = part.args if isinstance(part.args, str) else json.dumps(part.args)
                yield {index: DeltaToolCall(name=part.tool_name, json_args=args, tool_call_id=part.tool_call_id)}
            elif isinstance(part, TextPart):
                yield part.content

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
            for tool in (*info.function_tools, *info.output_tools)
        ]
        said = Sent(
            messages=[apart(message) for message in messages],
            instructions=info.instructions or "",
            tools=json.dumps(tools) if tools else "",
            snapshot=snapshot(messages),
        )
        self.sent.append(said)
        step = self._chosen(messages, info)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, ModelResponse):
            return step
        return ModelResponse(parts=list(self._parts(step)), model_name="talker")

    def _chosen(self, messages: list[ModelMessage], info: AgentInfo) -> Step:
        if callable(self._script):
            return self._script(messages, info)
        if isinstance(self._script, (str, Exception, ModelResponse)):
            return self._script
        self._step += 1
        if self._step > len(self._script):
            raise AssertionError(f"request {self._step} came after the script's {len(self._script)} steps")
        return self._script[self._step - 1]  # pyright: ignore[reportReturnType]

    def _parts(self, step: str | Sequence[tuple[str, dict[str, Any]]]) -> Iterator[ModelResponsePart]:
        if isinstance(step, str):
            yield TextPart(content=step)
            return
        for name, args in step:
            self._calls += 1
            yield ToolCallPart(tool_name=name, args=args, tool_call_id=f"said_{id(self) % 997}_{self._calls}")


class Notes:
    """A compiler's model: it answers `text`, an error, or nothing for `seconds`, and keeps every prompt."""

    def __init__(self, text: str | Exception | Callable[[int], str] = NOTES, *, seconds: float = 0) -> None:
        self.prompts: list[str] = []
        self.cancelled = 0
        self._text, self._seconds = text, seconds
        self._free = asyncio.Event()
        self.release()
        self.model = FunctionModel(self.answer, model_name="notes")

    def hold(self) -> None:
        """Answer no prompt until `release`."""
        self._free.clear()

    def release(self) -> None:
        """Answer again."""
        self._free.set()

    @property
    def asked(self) -> int:
        """How many prompts came."""
        return len(self.prompts)

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Answer a prompt."""
        self.prompts.append(str(messages[-1].parts[-1].content))  # pyright: ignore
        number = self.asked
        try:
            await asyncio.sleep(self._seconds)
            await self._free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self._text, Exception):
            raise self._text
        said = self._text(number) if callable(self._text) else self._text
        usage = RequestUsage(input_tokens=100, output_tokens=20)
        return ModelResponse(parts=[TextPart(content=said)], usage=usage, model_name="notes")


def compiler(notes: Notes | None = None, **wanted: Any) -> ContextCompiler:
    """A compiler that leaves nothing behind: no files, and no model unless `notes` is one."""
    given: dict[str, Any] = {"model": notes.model if notes else "none", "store": None, "system": None, "budget": 1_500}
    return ContextCompiler(**{**given, **wanted})


@dataclass(kw_only=True)
class Ran:
    """What any way of running an agent ends with."""

    output: Any
    messages: list[ModelMessage]
    new: list[ModelMessage]
    requests: int
    events: list[Any] = field(default_factory=list[Any])


def ran(result: Any) -> Ran:
    """The same of a finished result."""
    return Ran(
        output=getattr(result, "output", None),
        messages=result.all_messages(),
        new=result.new_messages(),
        requests=result.usage.requests,
    )


async def run(agent: Agent[Any, Any], prompt: Any, **given: Any) -> Ran:
    return ran(await agent.run(prompt, **given))


async def run_stream(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Ran:
    async with agent.run_stream(prompt, **options) as stream:
        output = await stream.get_output()
        done = ran(stream)
    done.output = output
    return done


async def run_iter(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Ran:
    async with agent.iter(prompt, **options) as steps:
        async for _ in steps:
            pass
    assert steps.result is not None
    return ran(steps.result)


async def run_node_stream(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Ran:
    async with agent.iter(prompt, **options) as steps:
        async for node in steps:
            if Agent.is_model_request_node(node):
                async with node.stream(steps.ctx) as stream:
                    async for _ in stream:
                        pass
    assert steps.result is not None
    return ran(steps.result)


async def run_events(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Ran:
    last: Any = None
    events = agent.run_stream_events(prompt, **options)
    if hasattr(events, "__aenter__"):
        async with events as stream:
            async for event in stream:
                last = event
    else:
        async for event in events:
            last = event
    assert isinstance(last, AgentRunResultEvent)
    return ran(last.result)  # pyright: ignore[reportUnknownMemberType]


WAYS: dict[str, Callable[..., Any]] = {
    "run": run,
    "run_stream": run_stream,
    "iter": run_iter,
    "iter and stream": run_node_stream,
    "run_stream_events": run_events,
}
"""Every way to run an agent in an event loop."""

_STAMPS = ("timestamp", "run_id", "conversation_id", "usage", "provider_response_id", "model_name", "tool_call_id")


def unstamped(messages: Sequence[ModelMessage]) -> Any:
    """A history without what differs from run to run: times, ids and usage."""
    return _without(ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(one) for key, one in value.items() if key not in _STAMPS}
    return [_without(one) for one in value] if isinstance(value, list) else value
