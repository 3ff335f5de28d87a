"""Watch an agent's requests: its model is wrapped for each run, so nothing else of the agent has to be known."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from context_compiler.compiler.view import View
from context_compiler.messages.items import plain_text
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.request import tool_tokens
from context_compiler.record.values import Tool
from context_compiler.testing.conversation import Conversation
from context_compiler.testing.request import READER, Request


def _tool_text(tool: Tool) -> str:
    return f"{tool.name} {tool.description or ''}\n{plain_text(tool.parameters)}"


@dataclass
class Watcher(AbstractCapability[Any]):
    """A capability for one run that adds each of its requests to a conversation."""

    conversation: Conversation = field(default_factory=Conversation)
    _view: View | None = None
    """The last view of the agent's compiler that was seen."""

    def get_ordering(self) -> CapabilityOrdering | None:
        """Run outermost, to see what was said before any other capability edits it."""
        return CapabilityOrdering(position="outermost")

    @property
    def capabilities(self) -> list[AbstractCapability[Any]]:
        """Capabilities of a run that is watched."""
        return [self, _ModelWrapper(self.wrap)]

    def wrap(self, model: Model) -> Model:
        """Wrap the model that sends the next request."""
        return WatchedModel(model, self.received, self.answered)

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Add what was said since the last answer to the conversation."""
        messages = request_context.messages
        self.conversation.add_messages(messages[after_answers(messages) if self.conversation.raw else 0 :])
        return await handler(request_context)

    def received(self, messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> None:
        """Add a request, as its model received it, to the conversation."""
        conversation = self.conversation
        last_view = conversation.compiler.last_view if conversation.compiler is not None else None
        view = last_view if last_view is not self._view else None
        self._view = last_view
        defined = [
            Tool(kind=tool.kind, name=tool.name, description=tool.description, parameters=tool.parameters_json_schema)
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        instructions = "\n\n".join(part.content for part in parameters.instruction_parts or ())
        fixed = READER.counter.text(instructions) + sum(tool_tokens(tool, READER.counter) for tool in defined)
        conversation.requests.append(
            Request(
                number=len(conversation.requests) + 1,
                turn=conversation.turns,
                messages=list(messages),
                readings=[READER.one(message) for message in messages],
                beside="\n".join([instructions, *map(_tool_text, defined)]),
                fixed=fixed,
                said=len(conversation.raw),
                status=view.status if view else "",
                budget=view.budget if view else None,
                drops=view.drops if view else (),
            )
        )

    def answered(self, response: ModelResponse) -> None:
        """Add an answer to the conversation."""
        self.conversation.add_messages([response])


@dataclass
class _ModelWrapper(AbstractCapability[Any]):
    """Wraps a model innermost, to see what other wrappers make of a request."""

    wrap: Callable[[Model], Model]

    def get_ordering(self) -> CapabilityOrdering | None:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_model(self, model: Model) -> Model:
        return self.wrap(model)


class WatchedModel(WrapperModel):
    """A model that reports the requests it receives and its answers."""

    def __init__(
        self,
        wrapped: Model,
        received: Callable[[Sequence[ModelMessage], ModelRequestParameters], None],
        answered: Callable[[ModelResponse], None],
        answer: Callable[[], ModelResponse] | None = None,
    ) -> None:
        """Wrap a model, which is not asked if there is an `answer`."""
        super().__init__(wrapped)
        self._received, self._answered, self._answer = received, answered, answer

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Report a request, and answer it."""
        self._received(messages, model_request_parameters)
        if self._answer is None:
            response = await super().request(messages, model_settings, model_request_parameters)
        else:
            response = self._answer()
        self._answered(response)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Report a request, and stream its answer."""
        self._received(messages, model_request_parameters)
        parameters = model_request_parameters
        if self._answer is None:
            opened = super().request_stream(messages, model_settings, parameters, run_context)
        else:
            recorded = CompletedStreamedResponse(
                self._answer(), model_request_parameters=parameters, replay_events=True
            )
            opened = nullcontext(recorded)
        async with opened as stream:
            yield stream
            self._answered(stream.get())


def compiler_of(agent: Any, capabilities: Sequence[AbstractCapability[Any]] = ()) -> ContextCompiler | None:
    """The `ContextCompiler` of an agent's run with further capabilities; None if it has none."""
    compilers: list[ContextCompiler] = []

    def visit(capability: AbstractCapability[Any]) -> None:
        if isinstance(capability, ContextCompiler):
            compilers.append(capability)

    for capability in (agent.root_capability, *capabilities):
        capability.apply(visit)
    return compilers[-1] if compilers else None


def after_answers(messages: Sequence[ModelMessage]) -> int:
    """Position after the last answer."""
    return max((end for end, message in enumerate(messages, 1) if isinstance(message, ModelResponse)), default=0)
