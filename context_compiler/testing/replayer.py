"""Replays: an agent runs on a recorded conversation, whose answers and tool results come from the recording."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic_ai import Agent, DeferredToolRequests, ExternalToolset, RunContext, ToolDefinition
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.errors import ContextCompilerError
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.replay import request_points, with_usage
from context_compiler.resilience import try_await
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.explain import excerpt
from context_compiler.testing.live_runs import run_sync, streaming
from context_compiler.testing.recording import Recording, Source, load_session, prompt_name, read_recording
from context_compiler.testing.request import READER, reading_text
from context_compiler.testing.watch import WatchedModel, Watcher, after_answers, compiler_of

RECORDED, NONE = "recorded", "none"
"""Values of `summaries`."""


ABORTED = "[aborted]"
"""Answer of a run in place of a recorded one that is empty, which the host would ask for again."""


class ReplayError(ContextCompilerError, AssertionError):
    """An agent does something other than the recording; the message shows both."""


async def replay_async(
    recording: Source,
    agent: Any = None,
    *,
    capabilities: Sequence[Any] = (),
    db: str | Path | None = None,
    owner: str | None = None,
    summaries: str | Model = RECORDED,
    stream: bool = False,
    **arguments: Any,
) -> Conversation:
    """Run an agent on a recorded conversation.

    The recording supplies every answer of the model and every tool result, so no key is needed and no tool is called.
    A `ContextCompiler` of the agent writes no record.

    Args:
        recording: A file (a recording, or a transcript that can be imported), messages, or with `db` a session's name.
        agent: Any Pydantic AI agent; None is one that has just the recorded tools.
        capabilities: Further capabilities of its runs.
        db: Record of the session: a file, or the address of a PostgreSQL database.
        owner: Owner of the session; None finds it among all owners.
        summaries: Writer of the compiler's summaries: `"recorded"`, a model, or `"none"`. If no recorded one fits,
            for example because the template has changed, passages are quoted, and the conversation's notes say so.
        stream: Stream the answers.
        arguments: Further arguments of `Agent.run`, such as `deps`.

    Raises:
        RecordingError: The recording is damaged or of another version.
        ReplayError: The agent makes other requests than those of the recording.
    """
    if db is not None:
        recording = await load_session(str(recording), db, owner)
    elif isinstance(recording, str | Path):
        recording = read_recording(recording)
    elif not isinstance(recording, Recording):
        recording = Recording(messages=recording)
    replayer = Replayer(Conversation(), recording=recording)
    agent = agent or _stand_in(recording.messages)
    await replayer.run(agent, capabilities, summaries, {**streaming(stream), **arguments})
    return replayer.conversation


def replay(recording: Source, agent: Any = None, **arguments: Any) -> Conversation:
    """Run an agent on a recorded conversation outside an event loop; see `replay_async`."""
    return run_sync(replay_async(recording, agent, **arguments), "replay_async")


@dataclass
class Replayer(Watcher):
    """A watcher that answers from a recording."""

    recording: Recording = field(default_factory=lambda: Recording(messages=[]))
    _points: list[int] = field(default_factory=list[int])
    """Positions of the recorded answers that are still to come."""
    _done: int = 0
    """Number of recorded messages that were said."""
    _first: bool = True
    """True before the first request of a run."""
    _difference: ReplayError | None = None
    _ended: bool = False
    """True once the last request was sent, if it has no answer."""

    async def run(
        self, agent: Any, capabilities: Sequence[Any], summaries: str | Model, arguments: dict[str, Any]
    ) -> None:
        """Run the agent until the recording ends."""
        messages, history = self.recording.messages, list[ModelMessage]()
        if messages and READER.one(messages[-1]).has_prompt:
            messages = [*messages, ModelResponse(parts=[])]
            self.recording = replace(self.recording, messages=messages)
        self._points = request_points(messages)
        writer: Model = self._writer() if isinstance(summaries, str) else summaries
        extra = [*self.capabilities, *self._capabilities(agent, capabilities, summaries, writer)]
        while self._points:
            point = self._points[0]
            history += messages[self._done : point]
            self._first = True
            run = agent.run(message_history=history, model=writer, capabilities=extra, **arguments)
            outcome = await try_await(run)
            if self._ended:
                return
            if error := self._difference or outcome.error:
                raise error
            if self._done <= point:
                raise ReplayError(f"message {point} of the recording: the run ended without a request")
            history = cast("Any", outcome.value).all_messages()
            while history and not isinstance(history[-1], ModelResponse):
                history.pop()
            history[-1:] = messages[self._done - 1 : self._done]

    def _capabilities(
        self, agent: Any, capabilities: Sequence[Any], summaries: str | Model, writer: Model
    ) -> Iterator[Any]:
        """Capabilities of each run; the compiler is a copy with another writer of summaries and without a record."""
        yield from (capability for capability in capabilities if not isinstance(capability, ContextCompiler))
        compiler = compiler_of(agent, capabilities)
        if compiler is not None:
            model = NONE if NONE in (compiler.model, summaries) else writer
            self.conversation.compiler = replace(compiler, model=model, store=None)
            yield self.conversation.compiler

    def _writer(self) -> Model:
        """A model that repeats recorded summaries."""
        names = (answer.model_name for answer in self.recording.messages if isinstance(answer, ModelResponse))

        def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            parts = [part for part in messages[-1].parts if isinstance(part, UserPromptPart)]
            summary = self.recording.summaries.get(prompt_name(str(parts[-1].content))) if parts else None
            if summary is None:
                request = len(self.conversation.requests) + 1
                lost = f"request {request}: no recorded summary fits its prompt, so passages are quoted instead"
                self.conversation.notes.append(lost)
                raise ModelHTTPError(404, "recorded", "no recorded summary fits this prompt")
            return ModelResponse(parts=[TextPart(summary)])

        return FunctionModel(write, model_name=next(filter(None, names), "recorded"))

    def wrap(self, model: Model) -> Model:
        """Answer the next request from the recording."""
        return WatchedModel(model, self.received, self.answered, self._answer)

    def _answer(self) -> ModelResponse:
        point = self._points.pop(0)
        self._done = point + 1
        answer = with_usage(self.recording.messages[point], self.conversation.requests[-1].tokens)
        assert isinstance(answer, ModelResponse)
        if any(isinstance(part, ToolCallPart) or getattr(part, "content", "") for part in answer.parts):
            return answer
        if not self._points:
            self._ended = True
            raise ReplayError("the last request of the recording has no answer")
        return replace(answer, parts=[TextPart(ABORTED)])

    def answered(self, response: ModelResponse) -> None:
        """Add the recorded answer to the conversation."""
        self.conversation.add_messages(self.recording.messages[self._done - 1 : self._done])

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Compare what the agent adds to its history with the recording, and put the recorded messages in its place."""
        recorded = self._next()
        if not self._first:
            self._check(request_context.messages, recorded)
            for messages in (ctx.messages, request_context.messages):
                messages[after_answers(messages) :] = recorded
        self._first = False
        self.conversation.add_messages(recorded)
        return await handler(request_context)

    def _next(self) -> list[ModelMessage]:
        """Recorded messages up to the next answer; none if the recording has ended."""
        return list(self.recording.messages[self._done : self._points[0]]) if self._points else []

    def _check(self, messages: Sequence[ModelMessage], recorded: Sequence[ModelMessage]) -> None:
        tail = messages[after_answers(messages) :]
        if self._points and _are_alike(tail, recorded):
            return
        theirs = _described(recorded) if self._points else "nothing: it has ended"
        both = f"\n  agent: {_described(tail)}\n  recording: {theirs}"
        self._difference = ReplayError(
            f"message {self._done}: the agent sends another request than the recording{both}"
        )
        raise self._difference

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: Any,
        args: Any,
        handler: Callable[[Any], Awaitable[Any]],
    ) -> Any:
        """Return the recorded result of a call; the tool itself is never called."""
        parts: list[Any] = [part for message in self._next() for part in message.parts]
        return next((part.content for part in parts if getattr(part, "tool_call_id", None) == call.tool_call_id), "")


def _stand_in(messages: Sequence[ModelMessage]) -> Agent[None, Any]:
    """An agent with the tools that a recording calls; its runs end with each call, whose results are recorded."""
    calls = (part for message in messages for part in message.parts if isinstance(part, ToolCallPart))
    schema = {"type": "object", "additionalProperties": True}
    tools = [ToolDefinition(name=name, parameters_json_schema=schema) for name in {call.tool_name: 0 for call in calls}]
    return Agent(toolsets=[ExternalToolset(tools)], output_type=[str, DeferredToolRequests])


def _are_alike(tail: Sequence[ModelMessage], recorded: Sequence[ModelMessage]) -> bool:
    """True if both answer the same calls, and no call fails that did not fail in the recording.

    The recording may add a prompt: results of deferred calls came with it.
    """
    theirs = {_name(part): _asks_again(part) for message in recorded for part in message.parts}
    ours = {_name(part): _asks_again(part) for message in tail for part in message.parts}
    same = ours.keys() in (theirs.keys(), theirs.keys() - {UserPromptPart.part_kind})
    return same and all(theirs[name] or not again for name, again in ours.items())


def _name(part: Any) -> str:
    return part.tool_call_id if getattr(part, "tool_name", None) else part.part_kind


def _asks_again(part: Any) -> bool:
    return part.part_kind.startswith("retry") or getattr(part, "outcome", "success") != "success"


def _described(messages: Sequence[ModelMessage]) -> str:
    return "; ".join(excerpt(reading_text(READER.one(message)), "") for message in messages) or "nothing"
