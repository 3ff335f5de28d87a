"""One model request as we see it: its messages, what it costs beside them, and what its model allows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestContext

from context_compiler.agent import Answer
from context_compiler.items import MESSAGE_OVERHEAD
from context_compiler.prompt import Order
from context_compiler.ratios import model_family
from context_compiler.tokens import TokenCounter

Find = Callable[[list[str], str], Awaitable[str | None]]
"""The newest cycle of the last of these chain ids that has one, made with this configuration, as JSON."""

AskFor = Callable[[Order], Awaitable[Answer]]

TOOL_OVERHEAD = 12
"""Tokens that the framing of one tool definition costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model request, free of the host's own types but for messages."""

    messages: list[ModelMessage]
    overhead: int
    """Exact tokens of instructions, tools and output schema."""
    hash: str
    """SHA-256 of instructions, tools and settings."""
    model: str
    family: str
    window: int | None
    max_tokens: int | None
    framing: Callable[[list[ModelMessage]], list[ModelMessage]] | None
    """What the host makes of messages before they go out, where it says so."""
    session_id: str
    run_id: str | None
    allowance: int | None
    """Tokens that the run's usage limits leave; None where they do not say."""
    find: Find
    ask: AskFor | None
    """None where no model may be asked."""


def host_facts(ctx: RunContext[Any], context: ModelRequestContext, counter: TokenCounter) -> dict[str, Any]:
    """What a request costs beside its messages, and what its model allows."""
    settings, parameters = context.model.prepare_request(context.model_settings, context.model_request_parameters)
    instructions = [part.content for part in parameters.instruction_parts or []]
    tools = [_tool(tool) for tool in (*parameters.function_tools, *parameters.output_tools)]
    native = parameters.output_object if parameters.output_mode == "native" else None
    schema = json.dumps(native.json_schema, default=str) if native else ""
    overhead = sum(counter.text(text) + MESSAGE_OVERHEAD for text in instructions)
    overhead += sum(counter.text(tool) + TOOL_OVERHEAD for tool in tools) + counter.text(schema)
    stable = {key: value for key, value in (settings or {}).items() if isinstance(value, str | int | float | bool)}
    return {
        "overhead": overhead,
        "hash": _hash([instructions, tools, schema, stable]),
        "model": context.model.model_name,
        "family": model_family(context.model.system, context.model.model_name),
        "window": window_of(context.model),
        "max_tokens": _whole((settings or {}).get("max_tokens")),
        "framing": lambda messages: context.model.prepare_messages(messages, parameters),
        "session_id": session_of(ctx),
        "run_id": ctx.run_id,
        "allowance": allowance(ctx),
    }


def _tool(tool: Any) -> str:
    facts = {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
    return json.dumps({"type": "function", "function": facts}, default=str)


def window_of(model: Model) -> int | None:
    """The model's context window in tokens, where the host knows it."""
    return _whole(getattr(model, "context_window", None))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def run_facts(ctx: RunContext[Any], messages: list[ModelMessage], counter: TokenCounter) -> dict[str, Any]:
    """The same for a history processor, which sees the run but not the request: tools as far as they are known."""
    instructions = [getattr(messages[-1], "instructions", None) or ""] if messages else []
    manager = getattr(ctx, "tool_manager", None)
    tools = [_tool(tool) for tool in getattr(manager, "tool_defs", None) or ()]
    overhead = sum(counter.text(text) + MESSAGE_OVERHEAD for text in instructions if text)
    overhead += sum(counter.text(tool) + TOOL_OVERHEAD for tool in tools)
    return {
        "overhead": overhead,
        "hash": _hash([instructions, tools]),
        "model": ctx.model.model_name,
        "family": model_family(ctx.model.system, ctx.model.model_name),
        "window": window_of(ctx.model),
        "max_tokens": _whole((ctx.model_settings or {}).get("max_tokens")),
        "framing": None,
        "session_id": session_of(ctx),
        "run_id": ctx.run_id,
        "allowance": allowance(ctx),
    }


def _hash(facts: object) -> str:
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


def session_of(ctx: RunContext[Any]) -> str:
    """The label of the conversation that a run belongs to."""
    return ctx.conversation_id or ctx.run_id or "conversation"


def allowance(ctx: RunContext[Any]) -> int | None:
    """How many tokens the run's usage limits leave; None where they do not say."""
    allowed = ctx.usage_limits
    if allowed is None:
        return None
    left = [
        limit - used
        for limit, used in (
            (allowed.input_tokens_limit, ctx.usage.input_tokens),
            (allowed.total_tokens_limit, ctx.usage.total_tokens),
        )
        if limit is not None
    ]
    return min(left) if left else None
