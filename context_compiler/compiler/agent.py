"""One stateless question to a model: a prompt in, notes out. No tools, no history, no capabilities.

The compiler's agent keeps its own usage; whoever asked adds its tokens to the run's, but not its requests,
which would count against the limits of a run that passes without us.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.usage import RunUsage

from context_compiler.compiler.prompt import fill_slot
from context_compiler.errors import CompileError
from context_compiler.template import prompt_text

OUTPUT: Any = [str, type(None)]
"""Output types: text or nothing; the caller refuses an empty answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResponse:
    """Text of a summary with its usage. Plain data: it can be journalled and replayed."""

    text: str
    usage: dict[str, int] = field(default_factory=dict[str, int])
    cost: str | None = None
    """In US dollars, where the host knows the model's prices."""
    latency_ms: float = 0.0
    refused: str | None = None
    """Reason why no model was asked after all."""
    row: int | None = None
    """The stored compile that this is, when nobody had to be asked."""
    failure: dict[str, str] | None = None
    """Fields of a `CompileError`: a failure is data too, so that it can be journalled and replayed."""


def model_alias(model: Model | str) -> str:
    """Name of a model on the record."""
    return model if isinstance(model, str) else model.model_name


async def ask(
    prompts: Sequence[str], model: Model | KnownModelName | str, *, timeout: float, instructions: str = "instructions"
) -> SummaryResponse:
    """Ask a model for notes, chunk after chunk, each with the notes so far; the last answer is the summary.

    Args:
        prompts: In order; from the second on each has a slot for the answer before.
        model: A model or its name.
        timeout: Seconds for all of them together.
        instructions: Names the prose that the model is told first.

    Raises:
        CompileError: it could not be reached, its provider's package is not installed, or it took too long. An empty
            answer is for the caller to judge.
    """
    started = time.perf_counter()
    spent = RunUsage()
    text = ""
    try:
        agent = Agent(
            model, instructions=prompt_text(instructions), name="context_compiler", output_type=OUTPUT, retries=0
        )
        async with asyncio.timeout(timeout):
            for number, prompt in enumerate(prompts):
                result = await agent.run(fill_slot(prompt, text) if number else prompt)
                text = (result.output or "").strip()
                spent.incr(result.usage)
    except TimeoutError:
        said = f"no answer within {timeout:g} s"
        raise CompileError(said, model=model_alias(model), phase="timeout", **_bill(spent)) from None
    except (AgentRunError, UserError, ImportError) as error:
        raise CompileError(str(error), model=model_alias(model), phase="call", **_bill(spent)) from error
    return SummaryResponse(text=text, latency_ms=(time.perf_counter() - started) * 1000, **_bill(spent))


def _bill(spent: RunUsage) -> dict[str, Any]:
    """Usage of the answers so far, as plain data."""
    usage = {name: getattr(spent, name) for name in ("input_tokens", "output_tokens", "requests")}
    return {"usage": usage, "cost": None if spent.cost is None else str(spent.cost)}
