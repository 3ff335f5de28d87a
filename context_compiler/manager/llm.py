"""Whatever a caller gives as their LLM can be asked in one way: prompts in, an answer out, no memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, cast

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model

from context_compiler.compiler.agent import Answer, ask, named
from context_compiler.compiler.prompt import filled
from context_compiler.errors import CompileError, SettingsError
from context_compiler.resilience import attempted

Asking = Callable[..., Awaitable[Answer]]
"""Prompts in, an answer out; `instructions` names the prose that the model is told first."""
Charge = Callable[[Answer], object]
"""Told of every answer, by whoever pays for it."""


class Questions:
    """Asks one LLM, and tells whoever pays."""

    def __init__(self, llm: object, timeout: float) -> None:
        """Take what can be asked.

        Raises:
            SettingsError: it is none of that.
        """
        self.name = called(llm)
        self.charge: Charge | None = None
        self._ask = asking(llm, timeout)

    @property
    def silent(self) -> bool:
        """There is no model, by choice."""
        return self._ask is None

    async def __call__(self, prompts: Sequence[str], *, instructions: str = "instructions") -> Answer:
        """Ask prompt after prompt; the last answer counts.

        Raises:
            CompileError: there is no model, or it could not be reached.
        """
        if self._ask is None:
            raise CompileError("there is no model by choice", model=self.name, phase="call")
        answer = await self._ask(prompts, instructions=instructions)
        if self.charge is not None:
            self.charge(answer)
        return answer


def asking(llm: object, timeout: float) -> Asking | None:
    """How to ask whatever a caller gave as their LLM; None for `"none"`, which is no model by choice.

    Raises:
        SettingsError: it is none of what can be asked.
    """
    if llm == "none":
        return None
    if isinstance(llm, AbstractAgent):
        model = cast(Any, llm).model
        if model is None:
            raise SettingsError(f"the agent {cast(Any, llm).name!r} has no model: give it one, or name a model as llm")
        return partial(ask, model=model, timeout=timeout)
    if isinstance(llm, str | Model) and llm:
        return partial(ask, model=cast("Model | str", llm), timeout=timeout)
    if callable(llm):
        return partial(_called, llm, timeout)
    raise SettingsError(
        f'llm={llm!r}: give a model, its name, an agent, or a function from a prompt to a text; "none" is no model'
    )


async def _called(function: Callable[[str], Any], timeout: float, prompts: Sequence[str], **_: str) -> Answer:
    """Ask a function of the caller's, prompt after prompt."""
    name = getattr(function, "__name__", type(function).__name__)
    text = ""
    for number, prompt in enumerate(prompts):
        work = _said(function, filled(prompt, text) if number else prompt)
        outcome = await attempted(asyncio.wait_for(work, timeout))
        if outcome.error is not None or not isinstance(outcome.value, str):
            reason = outcome.error or f"it answered {outcome.value!r:.80}, which is no text"
            raise CompileError(str(reason), model=name, phase="call") from outcome.error
        text = outcome.value.strip()
    return Answer(text=text)


async def _said(function: Callable[[str], Any], prompt: str) -> object:
    said = function(prompt)
    return await said if isawaitable(said) else said


def called(llm: object) -> str:
    """What an LLM is called in errors."""
    if isinstance(llm, str | Model):
        return named(cast("Model | str", llm))
    return str(getattr(llm, "name", None) or getattr(llm, "__name__", None) or type(llm).__name__)
