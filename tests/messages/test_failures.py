"""What went wrong and what then worked, as templates are told it."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, MemoryStore
from context_compiler.errors import SettingsError
from context_compiler.messages.failures import Occasion, Reflection, ReflectionPolicy, reflection_section
from context_compiler.messages.history import History, Reader
from context_compiler.tokens import TokenCounter


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def exchange(number: int, path: str, said: str, *, failed: bool) -> list[ModelMessage]:
    """A call of `read` and what came of it."""
    call = ToolCallPart("read", {"path": path}, tool_call_id=f"c{number}")
    result = ToolReturnPart("read", said, tool_call_id=f"c{number}", outcome="failed" if failed else "success")
    return [ModelResponse(parts=[call]), ModelRequest(parts=[result])]


def read(messages: list[ModelMessage]) -> History:
    return Reader(TokenCounter(len)).read(messages)


def told(messages: list[ModelMessage], policy: ReflectionPolicy | None = None) -> list[str]:
    history = read(messages)
    return reflection_section(history, range(len(history)), policy or ReflectionPolicy()).splitlines()


TWICE = [
    asked("Read the settings."),
    *exchange(1, "a.toml", "Error: no such file a.toml", failed=True),
    *exchange(2, "b.toml", "Error: no such file b.toml", failed=True),
    *exchange(3, "src/a.toml", "port = 8081", failed=False),
    ModelResponse(parts=[TextPart("The port is 8081.")]),
]


def test_consecutive_failures_are_one_reflection_with_the_call_that_then_worked() -> None:
    assert told(TWICE) == [
        "- turn 1: read(path=b.toml) failed 2 times: Error: no such file b.toml -> then read(path=src/a.toml) worked"
    ]


def test_a_failure_without_a_later_success_is_marked() -> None:
    assert told(TWICE[:3])[0].endswith("-> it was not tried again with success")


def test_a_failure_names_its_own_call_even_if_a_later_call_has_the_same_id() -> None:
    reused = [asked("Read it."), *exchange(1, "a.toml", "Error: no such file", failed=True), asked("And b.toml?")]
    reused += exchange(1, "b.toml", "port = 8081", failed=False)
    assert told(reused) == ["- turn 1: read(path=a.toml) failed: Error: no such file -> then read(path=b.toml) worked"]


def test_an_answer_that_was_sent_back_is_reflected_on() -> None:
    retry = ModelRequest(
        parts=[RetryFeedbackPart(content="Give a whole number.", retry=RetryInfo(cause="model_retry"))]
    )
    assert "an answer was sent back: Give a whole number." in told([asked("How many?"), retry])[0]


def test_only_the_newest_reflections_are_kept() -> None:
    many = [asked("Go on.")]
    for number in range(6):
        many += exchange(2 * number, f"{number}.txt", "Error: gone", failed=True)
        many += exchange(2 * number + 1, f"{number}.md", "fine", failed=False)
    assert [line.partition(" failed")[0] for line in told(many)] == [
        f"- turn 1: read(path={number}.txt)" for number in (3, 4, 5)
    ]
    assert told(many, ReflectionPolicy(keep=0)) == []


def test_failures_are_summed_up_at_every_interval_of_turns() -> None:
    turns = [message for _ in range(4) for message in TWICE]
    lines = told(turns, ReflectionPolicy(on_tool_failure=False, every_n_turns=2))
    assert len(lines) == 2
    assert lines[0].startswith("- turns 1 to 2: failed calls: read 4 -> worked afterwards: read(path=")
    assert lines[1].startswith("- turns 3 to 4")


def test_a_custom_reflector_words_the_reflections() -> None:
    def brief(occasion: Occasion) -> Reflection:
        return Reflection(observation=f"turn {occasion.first_turn} failed", adjustment="look first")

    assert told(TWICE, ReflectionPolicy(reflector=brief)) == ["- turn 1 failed -> look first"]


def test_without_failures_there_are_no_reflections() -> None:
    calm = [asked("Read it."), *exchange(1, "a", "text", failed=False)]
    assert told(calm, ReflectionPolicy(every_n_turns=1)) == []


def test_a_number_below_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="keep=-1: give a whole number"):
        ReflectionPolicy(keep=-1)


async def _compile_prompts(before: list[ModelMessage], policy: ReflectionPolicy | None) -> list[str]:
    """The prompts of the compiles of an agent whose history begins like this."""
    asked_of: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = str(messages[-1].parts[-1].content)  # pyright: ignore[reportAttributeAccessIssue]
        if "COMPILER TASK" in prompt:
            asked_of.append(prompt)
            return ModelResponse(parts=[TextPart("Notes: the port is 8081.")])
        return ModelResponse(parts=[TextPart("Good.")])

    compiler = ContextCompiler(budget=3_000, store=MemoryStore(), system=None, reflections=policy)
    agent = Agent(FunctionModel(answer), capabilities=[compiler])
    long = [
        message
        for number in range(40)
        for message in (asked(f"Question {number} " * 40), ModelResponse(parts=[TextPart("An answer. " * 20)]))
    ]
    await agent.run("And now?", message_history=[*before, *long])
    assert len(asked_of) >= 1
    return asked_of


async def test_a_compile_of_a_live_agent_gets_the_reflections() -> None:
    assert "then read(path=src/a.toml) worked" in (await _compile_prompts(TWICE, None))[0]


async def test_a_reflector_with_an_interval_is_called_even_without_failures() -> None:
    def looks_back(occasion: Occasion) -> Reflection:
        return Reflection(observation=f"turns up to {occasion.last_turn}", adjustment="none is needed")

    prompts = await _compile_prompts([], ReflectionPolicy(every_n_turns=5, reflector=looks_back))
    assert "-> none is needed" in prompts[0]
