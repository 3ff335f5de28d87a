"""The stateless calls of a model that write a summary, prompt after prompt, with settings of their own.

Every answer is checked before the next prompt. A prompt that the model's server refuses as too long is asked in halves.
What was answered before the time is up, or before an answer is refused, is a summary of the first prompts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, ContentFilterError, UserError
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RunUsage

from context_compiler.compiler.summary import SummaryResponse, fill_slot, halves, material_of, model_alias
from context_compiler.compiler.summary_check import summary_fault
from context_compiler.errors import CompileError
from context_compiler.middleware.refusals import is_overflow
from context_compiler.resilience import attempt, await_within, try_await
from context_compiler.template import prompt_text
from context_compiler.tokens import TokenCounter, as_counter
from context_compiler.tokens.prices import NANO, NANO_USD

OUTPUT: Any = [str, type(None)]
"""Output types of the agent: text or nothing. An empty answer is refused."""

REPLACED = ("max_tokens", "stop", "tool", "logit_bias")
"""Parts of the names of settings that are not taken from the model: length, stop sequences and tools."""

UNFINISHED = {"length": "it is unfinished", "content_filter": "it was filtered by the provider"}
"""Finish reasons of answers that are no summaries."""

LARGER = 2
"""Maximum size of an answer as a multiple of the cap."""

REASONING = 4_096
"""Tokens for the reasoning of a model that cannot do without it."""


def answer_room(cap: int, model: Model | str) -> int:
    """Maximum tokens that one answer may take, with reasoning."""
    return LARGER * cap + (REASONING if _profile(model).get("thinking_always_enabled") else 0)


def _profile(model: Model | str) -> dict[str, Any]:
    profile: Any = attempt(lambda: model.profile).value if isinstance(model, Model) else None
    return cast("dict[str, Any]", profile) if isinstance(profile, dict) else {}


def _own_settings(cap: int, model: Model | str) -> ModelSettings:
    settings = ModelSettings()
    if cap:
        settings["max_tokens"] = answer_room(cap, model)
    profile = _profile(model)
    if profile.get("supports_thinking") and not profile.get("thinking_always_enabled"):
        settings["thinking"] = False
    return settings


def with_own_settings(model: Model | str) -> Model | str:
    """Copy a model without its settings for length, stop sequences and tools, also within wrappers and fallbacks.

    The host has no public way to remove a setting. If its attribute is missing, the model is returned unchanged.
    """
    if not isinstance(model, Model):
        return model
    twin: Any = copy(model)
    if isinstance(getattr(twin, "wrapped", None), Model):
        twin.wrapped = with_own_settings(twin.wrapped)
    if isinstance(getattr(twin, "models", None), list | tuple):
        twin.models = [with_own_settings(member) for member in twin.models]
    settings: Any = getattr(twin, "_settings", None)
    if isinstance(settings, dict):
        own = cast(dict[str, Any], settings)
        twin._settings = {name: value for name, value in own.items() if not any(part in name for part in REPLACED)}
    return twin


async def ask(
    prompts: Sequence[str],
    model: Model | KnownModelName | str,
    *,
    timeout: float,
    cap: int = 0,
    counter: TokenCounter | None = None,
    instructions: str = "instructions",
) -> SummaryResponse:
    """Ask a model for a summary, prompt after prompt, each with the answer to the one before.

    Args:
        prompts: Prompts in order; each but the first has a slot for the previous answer.
        model: A model or its name.
        timeout: Seconds for all prompts together.
        cap: Maximum tokens of the summary; 0 for an answer that is no summary, which is not checked.
        counter: Counts answers.
        instructions: Name of the shipped text that is used as the agent's instructions.

    Returns:
        The summary, which covers `done` prompts. If there is none, it has a `fault`.

    Raises:
        CompileError: The model failed, its provider's package is not installed, or it took too long, before it answered
            anything.
    """
    name = model_alias(model)
    own = with_own_settings(model)
    made = attempt(
        lambda: Agent(
            own,
            instructions=prompt_text(instructions),
            name="context_compiler",
            output_type=OUTPUT,
            retries=0,
            model_settings=_own_settings(cap, model),
        )
    )
    if made.value is None:
        raise CompileError(str(made.error), model=name, phase="setup") from made.error
    writer = _Writer(cast("Agent[None, str]", made.value), cap, counter or as_counter(None), name)
    return await writer.write(prompts, timeout)


class _Writer:
    def __init__(self, agent: Agent[None, str], cap: int, counter: TokenCounter, name: str) -> None:
        self._agent, self._cap, self._counter, self._name = agent, cap, counter, name
        self._spent = RunUsage()
        self._started = time.monotonic()

    async def write(self, prompts: Sequence[str], timeout: float) -> SummaryResponse:
        waiting = [(prompt, True) for prompt in prompts]
        kept, text, done = "", "", 0
        while waiting:
            prompt, whole = waiting[0]
            filled = fill_slot(prompt, text)
            left = timeout - (time.monotonic() - self._started)
            late = TimeoutError(f"no answer within {timeout:.3g} s")
            outcome = await try_await(await_within(max(left, 0), self._agent.run(filled), late))
            split = halves(prompt) if outcome.error is not None and is_overflow(outcome.error) else None
            if split is not None:
                waiting[:1] = [(split[0], False), (split[1], whole)]
                continue
            result: Any = outcome.value
            if result is None and not isinstance(outcome.error, ContentFilterError):
                return self._failed(outcome.error, late, kept, done)
            answer = "" if result is None else (result.output or "").strip()
            if result is not None:
                self._spent.incr(result.usage)
            fault = self._fault(answer, filled, text, result) if self._cap else None
            if fault is not None:
                return self._response(kept or answer, done, fault)
            text = self._counter.head(answer, self._cap) if self._cap and len(waiting) > 1 else answer
            waiting = waiting[1:]
            if whole:
                kept, done = text, done + 1
        return self._response(kept, done)

    def _fault(self, answer: str, prompt: str, previous: str, result: Any) -> str | None:
        """Reason why an answer is no summary; None if it is one."""
        reason = "content_filter" if result is None else getattr(result.response, "finish_reason", None)
        if reason in UNFINISHED:
            return UNFINISHED[reason]
        if not answer:
            return "it is empty"
        if (size := self._counter.text(answer)) > LARGER * self._cap:
            return f"its {size} tokens are more than twice the {self._cap} that it may have"
        material, ours = material_of(prompt)
        return summary_fault(answer, material=material, instructions=ours, previous=previous)

    def _failed(self, error: Exception | None, late: Exception, kept: str, done: int) -> SummaryResponse:
        """The summary of the prompts before a failure; CompileError if there is none."""
        readable = isinstance(error, (AgentRunError, UserError, ImportError)) or error is late
        reason = str(error) if readable else f"{type(error).__name__}: {error}"
        if kept:
            return self._response(kept, done, reason)
        phase = "timeout" if error is late else "call"
        raise CompileError(reason, model=self._name, phase=phase, **_bill(self._spent)) from error

    def _response(self, text: str, done: int, fault: str | None = None) -> SummaryResponse:
        passed = (time.monotonic() - self._started) * 1000
        return SummaryResponse(text=text, latency_ms=passed, done=done, fault=fault, **_bill(self._spent))


def _bill(spent: RunUsage) -> dict[str, Any]:
    """Usage and cost of the answers so far, as plain data."""
    usage = {name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "requests")}
    cached = {name: getattr(spent, name) for name in ("cache_read_tokens", "cache_write_tokens")}
    usage |= {name: tokens for name, tokens in cached.items() if tokens}
    if spent.cost is not None:
        usage[NANO_USD] = round(spent.cost * NANO)
    return {"usage": usage, "cost": None if spent.cost is None else str(spent.cost)}
