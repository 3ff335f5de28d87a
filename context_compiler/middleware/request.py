"""One model request as data: its messages, the tokens beside them, and the limits of its model; and its `Host`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol, cast
from uuid import UUID

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.ids import text_hash
from context_compiler.layers.context import NO_LAYERS, LayerBlock
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, user_content
from context_compiler.middleware.arguments import Terms
from context_compiler.middleware.windows import WINDOWS, Served
from context_compiler.record.values import NATIVE, Drop, Tool
from context_compiler.resilience import attempt
from context_compiler.tokens import TokenCounter, model_family
from context_compiler.tokens.prices import highest_price

HOST_IDS = 7
"""UUID version of the ids that the host makes up for unnamed conversations."""

JOINED: Memo[str, Sequence[ModelMessage]] = Memo(64)
"""Recorded messages before the window that a run was given, by run id; `Recall` reads them too."""

READ = "recall_read"
"""Name of the tool that reads messages left out of a view."""

CHAIN = "fallback:"
"""Beginning of the host's names for a chain of models of which any may answer."""

HOST_FACTS, CONTEXT = "__pydantic_ai__", "context_input_tokens"
"""Keys in the metadata of a response under which the host notes the size of its context; private, may be missing."""

BREAKPOINTS = 4
"""Maximum cache breakpoints in one request."""

TOOL_OVERHEAD = 12
"""Tokens that the framing of one tool definition costs."""

Conversation = tuple[str | None, str]
"""Owner and label of a conversation."""

LONG = 200_000
"""Characters above which reading, counting and ranking would block the event loop for too long."""

WIDTH = 4
"""Average characters of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Terms):
    """One model request, without host types except messages."""

    messages: list[ModelMessage]
    session_id: str
    owner: str | None = ""
    """Owner of the conversation; if None, the owner is unknown, and nothing is looked up or saved."""
    scope: str = ""
    """Scope within which compiles may be shared; empty for unnamed conversations."""
    run_id: str | None = None
    served: Served | None = None
    """Address and name of the model; None if it is not known."""
    overhead: int = 0
    """Exact tokens of instructions, tools and output schema."""
    hash: str | None = ""
    """SHA-256 of instructions, tools and settings; None if the request is not sent to a model."""
    tools: str | None = None
    """JSON of the tools and output schemas for the record; None if they are unknown."""
    refs: bool = False
    """True if the agent has the tool that reads messages left out of a view."""
    marked: bool = False
    """True if a view must contain a part that we recognize later, unless it is raw history."""
    layers: LayerBlock = NO_LAYERS
    """Layers of the session, directly before the prompt."""
    dropped: tuple[Drop, ...] = ()
    """Messages that are not part of the request, with reasons."""
    cache_point: bool = False
    """True if the notes end with a cache breakpoint, so that the notes stay cached when later messages change."""
    own: Sequence[ModelMessage] = ()
    """The history of the run as the host keeps it, without what other capabilities changed for this request."""
    joined: int = 0
    """Number of recorded messages that were put before those of the application."""
    rules: tuple[str, ...] = ()
    """Rules that the application declares."""
    instead: str = ""
    """End of the error text if there is no view; empty names the fallback that was sent."""

    @property
    def fixed(self) -> int:
        """Exact tokens of everything except the history."""
        return self.overhead + self.layers.tokens

    @property
    def conversation(self) -> Conversation:
        """Owner and label of the conversation."""
        return self.owner, self.session_id


class Host(Protocol):
    """Callbacks from a request into the run that sends it."""

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        """Starting state of a run, as plain data.

        `cycle` is the JSON of the newest cycle of the last of these chain ids that has one in this configuration, or
        None. `ratios` contains the token ratios learned so far.
        """
        ...

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        """Have a model write a summary.

        Raises:
            CompileError: No summary was written.
        """
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the run."""
        return asyncio.get_running_loop()

    async def launch(self, request: SummaryRequest) -> asyncio.Task[SummaryResponse] | None:
        """Start a summary in the background; None if this host cannot."""
        return None

    async def land(self, task: asyncio.Task[SummaryResponse]) -> SummaryResponse:
        """Wait for a summary that was started with `launch`."""
        await asyncio.wait({task})
        return response_of(task)

    def charge(self, response: SummaryResponse) -> SummaryResponse:
        """Charge the run for a launched summary, and return it.

        Raises:
            CompileError: No summary was written.
        """
        return response

    def affords(self, sent: int, answered: int, model: str = "") -> bool:
        """True if a compile with `sent` input and `answered` output tokens is within the run's usage limits."""
        return True

    def framing(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """The messages as the host renders them before sending."""
        return messages

    @property
    def is_durable(self) -> bool:
        """True in a durable run, whose replay needs the same answers: no provider counts its requests."""
        return False

    async def count(self, messages: list[ModelMessage]) -> int | None:
        """Tokens of a request with these messages as its provider counts them; not added to the run's usage.

        Returns:
            None if this host does not know the whole request.

        Raises:
            NotImplementedError: The model cannot count.
        """
        return None


class RunHost(Host):
    """Host for a run of Pydantic AI, which adds the usage of our calls to that of the run."""

    def __init__(self, ctx: RunContext[Any]) -> None:
        self._ctx = ctx

    @property
    def is_durable(self) -> bool:
        """True in a workflow of a durable engine."""
        return is_durable(self._ctx)

    def charge(self, response: SummaryResponse) -> SummaryResponse:
        """Add the usage of a summary to that of the run, and return the summary; see `charge_run`."""
        return charge_run(self._ctx, response)

    def affords(self, sent: int, answered: int, model: str = "") -> bool:
        """True if a compile takes at most half of the remaining usage limits: the request itself needs the rest."""
        allowed, used = self._ctx.usage_limits, self._ctx.usage
        if allowed is None:
            return True
        price = highest_price(model) if allowed.cost_limit is not None else None
        if price is not None and allowed.cost_limit is not None:
            if 2 * price.cost(sent, output=answered) > allowed.cost_limit - (used.cost or 0):
                return False
        takes = (
            (allowed.input_tokens_limit, used.input_tokens, sent),
            (allowed.output_tokens_limit, used.output_tokens, answered),
            (allowed.total_tokens_limit, used.total_tokens, sent + answered),
        )
        return all(limit is None or 2 * tokens <= limit - spent for limit, spent, tokens in takes)


def render_messages(
    model: object, settings: ModelSettings | None, parameters: ModelRequestParameters, messages: list[ModelMessage]
) -> list[ModelMessage]:
    """The messages as the host renders them for a model before sending."""
    if not isinstance(model, Model):
        return messages
    _, prepared = model.prepare_request(settings, parameters)
    return model.prepare_messages(messages, prepared)


def host_request(ctx: RunContext[Any], context: ModelRequestContext, counter: TokenCounter) -> Request:
    """Build the request that the host is about to send."""
    model = context.model
    settings, parameters = model.prepare_request(context.model_settings, context.model_request_parameters)
    options: dict[str, object] = dict(settings or {})
    instructions = _instructions(parameters.instruction_parts, context.messages)
    sent = (*parameters.function_tools, *parameters.output_tools)
    facts = [_definition(tool) for tool in sent]
    tools = list(map(_as_function, facts))
    native = parameters.output_object if parameters.output_mode == "native" else None
    schema = json.dumps(native.json_schema, default=str) if native else ""
    stable = {key: value for key, value in options.items() if isinstance(value, str | int | float | bool)}
    return run_request(
        ctx,
        model,
        options,
        context.messages,
        overhead=_overhead(_full_instructions(model, parameters, context.messages, instructions), tools, counter)
        + counter.text(schema),
        refs=any(tool.name == READ for tool in parameters.function_tools),
        hash=_hash([instructions, tools, schema, stable]),
        tools=_tool_list([*map(_tool_entry, sent, facts), *([_output_entry(native, schema)] if native else [])]),
        cache_point=_cache_point(options, context.messages),
        own=list(ctx.messages),
    )


def _instructions(parts: Sequence[Any] | None, messages: Sequence[ModelMessage]) -> list[str]:
    """The instructions of a request.

    For an agent without instructions the host takes those in the messages: of the newest request, including the
    requests that it merges with that, or of the request before if the newest only answers calls.
    """
    if parts is not None:
        return [part.content for part in parts]
    newest: list[ModelRequest] = []
    for message in reversed(messages):
        if isinstance(message, ModelRequest):
            newest.append(message)
        elif any(request.instructions for request in newest) or not all(map(_only_answers, newest)):
            break
    return next(([request.instructions] for request in newest if request.instructions), list[str]())


def _full_instructions(
    model: object, parameters: ModelRequestParameters, messages: list[ModelMessage], instructions: list[str]
) -> list[str]:
    """The instructions including any text that the host puts before them for some models.

    Only a private method of the host returns that text; if it is missing or fails, the instructions stay as they are.
    """
    parts_of = getattr(model, "_get_instruction_parts", None)
    if parts_of is None:
        return instructions
    parts = attempt(lambda: [str(part.content) for part in parts_of(messages, parameters) or ()]).value
    return parts if parts and len(parts) > len(instructions) else instructions


def countable(model: Any, messages: list[ModelMessage], parameters: ModelRequestParameters) -> list[ModelMessage]:
    """The messages for the provider to count; for the Gemini API with instructions and tools as messages.

    The Gemini API counts only contents, not instructions and tools.
    """
    if getattr(getattr(model, "client", None), "vertexai", None) is not False:
        return messages
    tools = [_as_function(_definition(tool)) for tool in (*parameters.function_tools, *parameters.output_tools)]
    if parameters.output_mode == "native" and parameters.output_object is not None:
        tools.append(json.dumps(parameters.output_object.json_schema, default=str))
    instructions = _instructions(parameters.instruction_parts, messages)
    fixed = "\n".join([*_full_instructions(model, parameters, messages, instructions), *tools])
    counted = [
        replace(message, parts=[_as_prompt(part) for part in message.parts])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]
    return [ModelRequest(parts=[UserPromptPart(fixed)]), *counted] if fixed else counted


def _as_prompt(part: ModelRequestPart) -> ModelRequestPart:
    return UserPromptPart(part.content) if isinstance(part, SystemPromptPart) else part


def _only_answers(request: ModelRequest) -> bool:
    return all(part.part_kind in ("tool-return", "retry-prompt", "retry-feedback") for part in request.parts)


def _cache_point(settings: Mapping[str, object], messages: Sequence[ModelMessage]) -> bool:
    """True if messages are cached at breakpoints, and one of the provider's breakpoints is free for the notes."""
    on = [name for name, value in settings.items() if "_cache_" in name and value]
    if not any(name.endswith("_cache_messages") for name in on):
        return False
    prompts = (part for message in messages for part in message.parts if isinstance(part, UserPromptPart))
    pieces = (piece for prompt in prompts for piece in user_content(prompt.content))
    return len(on) + sum(getattr(piece, "kind", None) == "cache-point" for piece in pieces) < BREAKPOINTS


def processor_request(ctx: RunContext[Any], messages: list[ModelMessage], counter: TokenCounter) -> Request:
    """Build the request of a history processor, which knows the run and its tools but not the whole request."""
    last = messages[-1] if messages else None
    instructions = [text] if (text := getattr(last, "instructions", None)) else []
    definitions = known_tools(ctx)
    facts = list(map(_definition, definitions))
    tools = list(map(_as_function, facts))
    return run_request(
        ctx,
        ctx.model,
        dict(ctx.model_settings or {}),
        messages,
        overhead=_overhead(instructions, tools, counter),
        refs=any(tool.name == READ for tool in definitions),
        hash=_hash([instructions, tools]),
        tools=_tool_list(map(_tool_entry, definitions, facts)),
        marked=True,
    )


def known_tools(ctx: RunContext[Any]) -> list[Any]:
    """Definitions of a run's tools, as far as the run exposes them."""
    return list(getattr(getattr(ctx, "tool_manager", None), "tool_defs", None) or ())


def run_request(
    ctx: RunContext[Any], model: Any, settings: Mapping[str, object], messages: list[ModelMessage], **more: Any
) -> Request:
    """Build a request with the facts of its run and its model, and with `more`."""
    served = Served.by(model)
    return Request(
        messages=messages,
        session_id=session_of(ctx),
        scope=named_scope(ctx.conversation_id or ""),
        run_id=ctx.run_id,
        model=model.model_name,
        provider=model.system,
        cache=_cache_time(settings),
        family=model_family(model.system, model.model_name),
        window=_positive(getattr(model, "context_window", None)),
        served=served,
        learnt=None if is_durable(ctx) else WINDOWS.of(served),  # a replay may be in another process
        max_tokens=_positive(settings.get("max_tokens")),
        limit=_positive(getattr(ctx.usage_limits, "per_request_input_tokens_limit", None)),
        **more,
    )


def is_size_of(request: Request, response: ModelResponse) -> bool:
    """True if the usage of a response is the size of its request, as the request's family of models counts it.

    A provider that calls its own tools, or compacts, adds up the usage of several passes; and of a chain of models,
    one of another family may have answered.
    """
    if any(part.part_kind.startswith("builtin") or part.part_kind == "compaction" for part in response.parts):
        return False
    facts: object = (response.metadata or {}).get(HOST_FACTS)
    size = cast("Mapping[str, object]", facts).get(CONTEXT) if isinstance(facts, Mapping) else None
    if size is not None and size != response.usage.input_tokens:
        return False
    if not request.model.startswith(CHAIN) or request.family.startswith(CHAIN):
        return True
    return model_family(response.provider_name, response.model_name) == request.family


def _cache_time(settings: Mapping[str, object]) -> str:
    """The longest time for which the settings cache a request: "5m", "1h", or "" for none."""
    on = [value for name, value in settings.items() if (name == "cache" or "_cache" in name) and value]
    return "1h" if any("1h" in str(value) for value in on) else "5m" if on else ""


def _overhead(instructions: Sequence[str], tools: Sequence[str], counter: TokenCounter) -> int:
    prose = sum(counter.text(text) + MESSAGE_OVERHEAD for text in instructions)
    return prose + sum(counter.text(tool) + TOOL_OVERHEAD for tool in tools)


def _definition(tool: Any) -> str:
    facts = {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
    return json.dumps(facts, default=str)


def _as_function(facts: str) -> str:
    return f'{{"type": "function", "function": {facts}}}'


def _tool_entry(tool: Any, facts: str) -> str:
    """A tool for the record: its definition, with the host's `kind` and `strict`."""
    return f'{{"kind": {json.dumps(tool.kind)}, "strict": {json.dumps(tool.strict)}, {facts[1:]}'


def _output_entry(output: Any, schema: str) -> str:
    """The output schema that the provider enforces, for the record."""
    name, description = json.dumps(output.name or "output"), json.dumps(output.description)
    described = f'"strict": {json.dumps(output.strict)}, "name": {name}, "description": {description}'
    return f'{{"kind": {json.dumps(NATIVE)}, {described}, "parameters": {schema}}}'


def _tool_list(entries: Iterable[str]) -> str:
    return f"[{', '.join(entries)}]"


def tool_tokens(tool: Tool, counter: TokenCounter) -> int:
    """Tokens of a recorded tool in a request."""
    if tool.kind == NATIVE:
        return counter.text(json.dumps(tool.parameters))
    facts = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return counter.text(_as_function(json.dumps(facts))) + TOOL_OVERHEAD


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _hash(facts: object) -> str:
    return text_hash(json.dumps(facts, sort_keys=True, default=str))


def named_scope(session: str) -> str:
    """The label of a conversation as the application names it; empty if the host made it up.

    A summary is written for the question of one conversation, so another conversation with the same beginning must not
    reuse it. A made-up id (a version 7 UUID) identifies nothing, because it changes with every run.
    """
    try:
        return "" if UUID(session).version == HOST_IDS else session
    except ValueError:
        return session


def may_be_known(session: str, messages: int) -> bool:
    """False for a first prompt under an id that the host made up: nothing of its conversation is on the record."""
    return messages > 1 or bool(named_scope(session))


def session_of(ctx: RunContext[Any]) -> str:
    """The label of the conversation that a run belongs to."""
    return ctx.conversation_id or ctx.run_id or "conversation"


def response_of(task: asyncio.Task[SummaryResponse]) -> SummaryResponse:
    """The response of a finished task; an error or a cancellation becomes a failure."""
    error = None if task.cancelled() else task.exception()
    if error is None and not task.cancelled():
        return task.result()
    why = "it was cancelled" if error is None else f"{type(error).__name__}: {error}"
    return SummaryResponse(text="", failure={"message": why, "model": "", "phase": "call"})


def is_durable(ctx: RunContext[Any]) -> bool:
    """True in a workflow of a durable engine, which must repeat the same steps in a replay.

    The host knows its own durability capabilities; older wrappers of an agent are recognized by their engine.
    """
    if ctx.in_durable_context:
        return True
    temporal, dbos, prefect = map(sys.modules.get, ("temporalio.workflow", "dbos", "prefect.context"))
    if temporal is not None and temporal.in_workflow():
        return True
    if dbos is not None and dbos.DBOS.workflow_id is not None:
        return True
    return prefect is not None and prefect.FlowRunContext.get() is not None


def charge_run(ctx: RunContext[Any], answer: SummaryResponse) -> SummaryResponse:
    """Add the tokens of an answer to the run's usage, and return it; requests are not added, because limits count them.

    Raises:
        CompileError: No summary was written; its usage is charged to the run all the same.
    """
    spent = RequestUsage(
        input_tokens=answer.usage.get("input_tokens", 0),
        output_tokens=answer.usage.get("output_tokens", 0),
        cost=None if answer.cost is None else Decimal(answer.cost),
    )
    ctx.usage.incr(spent)
    if answer.error is not None and answer.fault is None:
        raise answer.error
    return answer


def is_long(messages: Sequence[ModelMessage], last: History | None = None) -> bool:
    """True if a view of these messages takes too long for the event loop.

    Args:
        messages: The raw history.
        last: The history of the previous request; its messages have been read already.
    """
    read = len(last) if last is not None else 0
    if last is not None and last.tokens * WIDTH > LONG:
        return True
    left = LONG
    for message in messages[max(0, read - 2) :]:
        for part in message.parts:
            for content in (getattr(part, "content", None), getattr(part, "args", None)):
                if content is not None:
                    left -= len(content) if type(content) is str else _size(content, left)
            if left < 0:
                return True
    return False


def _size(content: object, most: int) -> int:
    """Characters of the texts in a content; counting stops above `most`."""
    waiting: list[object] = [content]
    size = 0
    while waiting and size <= most:
        item = waiting.pop()
        size += len(item) if isinstance(item, str | bytes) else WIDTH
        if isinstance(item, Mapping):
            waiting += cast(Mapping[object, object], item).values()
        elif isinstance(item, list | tuple):
            waiting += cast(Sequence[object], item)
    return size
