"""Graphs and handlers that tests of running pipelines share: no model, no network, no real waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler.pipeline import Outcome, RunResult, Stage, run_pipeline


async def no_wait(seconds: float) -> None:
    """A sleep that takes no time."""


def graph(body: str, *, goal: str = "Ship it", attrs: str = "") -> str:
    """DOT around some statements, with a start and an exit."""
    return f'digraph g {{ goal="{goal}"; {attrs}\n start [shape=Mdiamond]; done [shape=Msquare];\n {body} }}'


class Script:
    """A handler that gives prepared outcomes, one a visit; the last one goes on for ever. It remembers its visits."""

    def __init__(self, outcomes: Mapping[str, list[Any]] | None = None) -> None:
        self.outcomes = {name: list(some) for name, some in (outcomes or {}).items()}
        self.seen: list[str] = []
        self.stages: list[Stage] = []

    async def execute(self, stage: Stage) -> Any:
        self.seen.append(stage.node.name)
        self.stages.append(stage)
        some = self.outcomes.get(stage.node.name, [])
        answer = some.pop(0) if len(some) > 1 else some[0] if some else Outcome()
        if isinstance(answer, BaseException):
            raise answer
        return answer(stage) if callable(answer) else answer


async def play(text: str, outcomes: Mapping[str, list[Any]] | None = None, **options: Any) -> tuple[RunResult, Script]:
    """Run a graph whose boxes are scripted."""
    script = Script(outcomes)
    given = {"handlers": {"codergen": script}, "sleep": no_wait, **options}
    return await run_pipeline(text, **given), script


def prompt_of(messages: list[ModelMessage]) -> str:
    """The last thing that a user said."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    said = [part.content for part in parts if isinstance(part, UserPromptPart)]
    return str(said[-1])


class Heard:
    """A model that remembers what it was sent, and answers by what the last prompt ends in."""

    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        self.answers = {key: list(some) if isinstance(some, list) else [some] for key, some in (answers or {}).items()}
        self.requests: list[list[ModelMessage]] = []
        self.model = FunctionModel(self._answer, model_name="heard")

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(messages)
        prompt = prompt_of(messages)
        some = next((some for key, some in self.answers.items() if prompt.endswith(key)), ["done"])
        text = some.pop(0) if len(some) > 1 else some[0]
        return ModelResponse(parts=[TextPart(text)])

    @property
    def prompts(self) -> list[str]:
        return [prompt_of(messages) for messages in self.requests]


Check = Callable[[Stage], Any]
