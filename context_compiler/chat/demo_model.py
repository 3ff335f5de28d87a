"""An offline model that needs no key: it answers from a bundled script, and writes a summary when asked for one.

An answer depends only on the last prompt, so a conversation can be repeated. Usage is reported as a provider reports
it, including tokens read from the prompt cache.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from zlib import crc32

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from context_compiler.compiler.summary import latest_input
from context_compiler.messages.fences import clip
from context_compiler.messages.history import reader_of
from context_compiler.messages.turns import prompt_at
from context_compiler.tokens import as_counter

NAME = "scripted"
TASK = "=== BEGIN COMPILER TASK ==="
LINES, WORDS, WIDTH = 12, 14, 120
"""Maximum lines of a summary, and maximum words and characters of each line."""

ALIKE = 3
"""Number of first words by which lines count as alike: a summary that repeats itself would be refused."""

_SPEAKER_LINE = re.compile(r"^(User|Assistant): (?:On “.*”:\n+)?(.+)$", re.MULTILINE)


@cache
def script() -> tuple[str, ...]:
    """Read the bundled answers."""
    text = files("context_compiler").joinpath("data/scripted.md").read_text(encoding="utf-8")
    return tuple(answer.strip() for answer in text.split("\n----\n"))


def answer_to(prompt: str) -> str:
    """Return the answer to a prompt; the same prompt always gets the same answer."""
    if TASK in prompt:
        return _summary(prompt)
    answers = script()
    words = clip(" ".join(prompt.split()[:WORDS]), WIDTH)
    return f"On “{words}”:\n\n{answers[crc32(prompt.encode('utf-8', 'replace')) % len(answers)]}"


def _summary(prompt: str) -> str:
    """Summarize the conversation in a compiler's prompt: its newest lines, and of those that begin alike only one."""
    said = {(who, *text.split()[:ALIKE]): (who, text) for who, text in _SPEAKER_LINE.findall(prompt)}
    lines = [f"- {who} said: {clip(' '.join(text.split()[:WORDS]), WIDTH)}" for who, text in said.values()]
    return "\n".join(["**Said so far**", "", *lines[-LINES:]])


class ScriptedModel(Model):
    """The bundled offline model.

    Args:
        delay: Seconds between words of a streamed answer.
        calls: Tool calls that it makes before each answer, one after the other, as `(tool, arguments)`.
    """

    def __init__(self, delay: float = 0.01, *, calls: Sequence[tuple[str, Mapping[str, Any]]] = ()) -> None:
        super().__init__()
        self.delay, self.calls = delay, tuple(calls)
        self._reader = reader_of(as_counter(None))
        self._cached: list[str] = []

    @property
    def model_name(self) -> str:
        """Model name, as recorded."""
        return NAME

    @property
    def system(self) -> str:
        """Provider name."""
        return NAME

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Answer in one piece."""
        text, usage = self._answer(messages)
        part = self._next_call(messages) or TextPart(text)
        return ModelResponse(parts=[part], usage=usage, model_name=NAME, provider_name=NAME)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Answer word by word."""
        text, usage = self._answer(messages)
        yield _Streamed(
            model_request_parameters=model_request_parameters,
            words=re.findall(r"\S*\s*", text),
            call=self._next_call(messages),
            reported=usage,
            delay=self.delay,
        )

    def _next_call(self, messages: Sequence[ModelMessage]) -> ToolCallPart | None:
        """Return the next call of this turn; None if all were made, or if a summary is asked for."""
        prompt = prompt_at(self._reader.read(messages))
        if prompt is None or any(TASK in str(getattr(part, "content", "")) for part in messages[prompt].parts):
            return None
        made = sum(isinstance(message, ModelResponse) for message in messages[prompt:])
        due = self.calls[made:]
        return ToolCallPart(due[0][0], {**due[0][1]}, tool_call_id=f"{NAME}-{len(messages)}") if due else None

    def _answer(self, messages: Sequence[ModelMessage]) -> tuple[str, RequestUsage]:
        history = self._reader.read(messages)
        prompt = latest_input(history)
        text = answer_to(prompt)
        names = [reading.name for reading in history.readings]
        cached = 0
        if TASK not in prompt:
            shared = min(len(names), len(self._cached))
            unchanged = next((index for index in range(shared) if names[index] != self._cached[index]), shared)
            cached = history.sums[unchanged]
            self._cached = names
        usage = RequestUsage(
            input_tokens=history.tokens, cache_read_tokens=cached, output_tokens=self._reader.counter.text(text)
        )
        return text, usage


@dataclass
class _Streamed(StreamedResponse):
    words: Sequence[str]
    reported: RequestUsage
    delay: float
    call: ToolCallPart | None = None
    began: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        self._usage = self.reported

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        if self.call is not None:
            yield self._parts_manager.handle_tool_call_part(
                vendor_part_id="call",
                tool_name=self.call.tool_name,
                args=self.call.args_as_dict(),
                tool_call_id=self.call.tool_call_id,
            )
            return
        for word in self.words:
            for event in self._parts_manager.handle_text_delta(vendor_part_id="answer", content=word):
                yield event
            await asyncio.sleep(self.delay)

    @property
    def model_name(self) -> str:
        return NAME

    @property
    def provider_name(self) -> str | None:
        return NAME

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.began
