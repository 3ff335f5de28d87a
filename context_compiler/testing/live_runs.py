"""Live conversations: an agent runs on one prompt after another, and every request is watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.models.test import TestModel

from context_compiler.testing.conversation import Conversation
from context_compiler.testing.watch import Watcher, compiler_of

T = TypeVar("T")

Prompt = Any
"""A prompt as `Agent.run` takes it: a text, or a list of texts and files."""


@dataclass(eq=False, repr=False, kw_only=True)
class LiveConversation(Conversation):
    """A conversation with an agent that can go on."""

    agent: Any
    model: Model | str
    stream: bool = False
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of each run."""
    history: list[ModelMessage] = field(default_factory=list[ModelMessage])
    """History that the next run is given; an application may store another one."""
    output: Any = None
    """Output of the last run."""
    _watcher: Watcher | None = None

    async def say_async(self, prompt: Prompt, **arguments: Any) -> Any:
        """Run the agent on a prompt, with further arguments of `Agent.run`, and return its output."""
        self._watcher = self._watcher or Watcher(self)
        run: dict[str, Any] = {"model": self.model, **streaming(self.stream), **self.arguments, **arguments}
        extra: list[Any] = [*(run.pop("capabilities", None) or ()), *self._watcher.capabilities]
        self.compiler = compiler_of(self.agent, extra) or self.compiler
        result = await self.agent.run(prompt, message_history=self.history, capabilities=extra, **run)
        self.history, self.output = result.all_messages(), result.output
        return result.output

    def say(self, prompt: Prompt, **arguments: Any) -> Any:
        """Do the same outside an event loop."""
        return run_sync(self.say_async(prompt, **arguments), "say_async")


async def live_async(
    agent: Any,
    prompts: str | Iterable[Prompt] = (),
    *,
    model: Model | str | None = None,
    stream: bool = False,
    history: Sequence[ModelMessage] = (),
    **arguments: Any,
) -> LiveConversation:
    """Run an agent on prompts, one after another, each with the history of those before.

    Args:
        agent: Any Pydantic AI agent.
        prompts: A prompt for each turn: a text, or a list of texts and files.
        model: Model that answers; None is a scripted one that says the same every time and calls no tool.
        stream: Stream the answers.
        history: Messages before the first prompt.
        arguments: Further arguments of `Agent.run`, such as `deps`.
    """
    answering = TestModel(call_tools=[]) if model is None else model
    conversation = LiveConversation(
        agent=agent, model=answering, stream=stream, arguments=arguments, history=list(history)
    )
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        await conversation.say_async(prompt)
    return conversation


def live(agent: Any, prompts: str | Iterable[Prompt] = (), **arguments: Any) -> LiveConversation:
    """Run an agent on prompts outside an event loop; see `live_async`."""
    return run_sync(live_async(agent, prompts, **arguments), "live_async")


def run_sync(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Run a coroutine to its end.

    Raises:
        RuntimeError: An event loop is running; the message names the function to await `instead`.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError(f"an event loop is running: await {instead}(…) in an async test")


def streaming(stream: bool) -> dict[str, Any]:
    """Arguments of a run whose answers are streamed, if `stream`."""
    return {"event_stream_handler": _drain} if stream else {}


async def _drain(ctx: Any, events: AsyncIterable[Any]) -> None:
    async for _ in events:
        pass
