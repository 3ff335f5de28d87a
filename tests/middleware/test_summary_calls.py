"""The request for a summary has settings, limits and checks of its own, and keeps the progress that it made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.settings import ModelSettings

from context_compiler import ContextCompiler
from context_compiler.compiler.summary_check import summary_fault
from tests.support.agents import Talker
from tests.support.builders import assistant, prose, user

SUMMARY = "**Goal**: find out which gate opens first. **Open**: ask the keeper."

Answer = str | ModelResponse | Exception


class Writer:
    """A model for summaries that keeps its prompts and settings."""

    def __init__(self, answer: Callable[[int, str], Any], **given: Any) -> None:
        self.prompts: list[str] = []
        self.settings: list[ModelSettings] = []
        self._answer = answer
        self.model = FunctionModel(self._write, model_name="notes", **given)

    async def _write(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.prompts.append(str(messages[-1].parts[-1].content))  # pyright: ignore
        self.settings.append(info.model_settings or ModelSettings())
        said = self._answer(len(self.prompts), self.prompts[-1])
        said = await said if asyncio.iscoroutine(said) else said
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, ModelResponse) else ModelResponse(parts=[TextPart(said)])


class Life:
    """A chat whose older turns are summarized."""

    def __init__(self, writer: Writer, **given: Any) -> None:
        self.talker, self.errors = Talker("Noted, the garden needs water. " * 8), list[Exception]()
        self.views: list[Any] = []
        ours = ContextCompiler(
            **{"budget": 3_000, "store": None, "system": None, "model": writer.model, "recall": 0, **given},
            on_error=self.errors.append,
            on_view=self.views.append,
        )
        self.agent = Agent(self.talker.model, capabilities=[ours])
        self.history: list[ModelMessage] = []

    async def turns(self, count: int, words: int = 70) -> None:
        for _ in range(count):
            prompt = f"Step {len(self.history)}: {prose(len(self.history), words)}"
            result = await self.agent.run(prompt, message_history=self.history, conversation_id="gates")
            self.history = result.all_messages()

    @property
    def sent(self) -> str:
        return "".join(sent.text for sent in self.talker.sent)


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="stop"), True),
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="length"), False),
        (ModelResponse(parts=[TextPart(SUMMARY)], finish_reason="content_filter"), False),
        (SUMMARY + " gate" * 4_000, False),
        ("None.", False),
        (SUMMARY + "\n=== BEGIN TOPIC ===\ngates\n=== END TOPIC ===", False),
    ],
)
async def test_only_a_finished_answer_of_its_size_is_a_summary(answer: Answer, used: bool) -> None:
    life = Life(writer := Writer(lambda number, prompt: answer))
    await life.turns(14)
    assert writer.prompts and ("which gate opens first" in life.sent) is used
    assert not any(view.status == "fallback" for view in life.views)


async def test_a_model_that_writes_nothing_useful_is_left_alone_and_reported_once() -> None:
    life = Life(writer := Writer(lambda number, prompt: "The gate is open. " * 30))
    await life.turns(40)
    assert len(writer.prompts) == 2 and len(life.errors) == 1
    assert "unusable" in str(life.errors[0]) and "QUOTED FROM EARLIER TURNS" in life.talker.last.text
    assert "compiled" in {view.status for view in life.views} and "fallback" not in {view.status for view in life.views}


async def test_length_stop_and_tools_are_set_for_the_summary_and_the_rest_is_kept() -> None:
    given = ModelSettings(
        max_tokens=7, stop_sequences=["gate"], parallel_tool_calls=False, extra_headers={"x-team": "a"}, temperature=0.5
    )
    life = Life(writer := Writer(lambda number, prompt: SUMMARY, settings=given))
    await life.turns(14)
    settings = writer.settings[0]
    assert settings.get("extra_headers") == {"x-team": "a"} and settings.get("temperature") == 0.5
    assert not {"stop_sequences", "parallel_tool_calls"} & set(settings)
    assert 300 < settings.get("max_tokens", 0) <= 3_000 and given.get("max_tokens") == 7


async def test_a_prompt_that_is_too_long_for_the_model_is_asked_in_halves() -> None:
    def answer(number: int, prompt: str) -> Answer:
        return (
            ModelHTTPError(400, "notes", body={"code": "context_length_exceeded"})
            if number == 1
            else f"{SUMMARY} Part {number}."
        )

    life = Life(writer := Writer(answer))
    await life.turns(14)
    first, *halves = writer.prompts[:3]
    assert all(len(half) < len(first) for half in halves) and "which gate opens first" in halves[1]
    assert "which gate opens first" in life.sent and not life.errors


async def test_answers_that_came_in_time_are_kept_and_the_rest_comes_with_the_next_compile() -> None:
    async def late() -> str:
        await asyncio.sleep(60)
        return SUMMARY

    writer = Writer(lambda number, prompt: late() if number == 2 else f"{SUMMARY} Part {number}.")
    life = Life(writer, budget=60_000, timeout=2)
    life.history = [one for number in range(300) for one in (user(prose(number, 150)), assistant(prose(number, 60)))]
    await life.turns(1)
    assert len(writer.prompts) == 2 and "Part 1." in life.talker.last.text
    asked = [next(at for at in range(300) if prose(at, 150)[:200] in prompt) for prompt in writer.prompts]
    await life.turns(12, words=3_000)
    later = [at for at in range(300) if prose(at, 150)[:200] in writer.prompts[2]]
    assert min(later) == asked[1] and "Part 1." in writer.prompts[2], "the late prompt alone is asked again"


async def test_long_results_and_encoded_data_are_shown_in_part() -> None:
    life = Life(writer := Writer(lambda number, prompt: SUMMARY))
    log = " ".join(f"line {number} took {number * 31 % 977} ms" for number in range(20_000))
    life.history = [user("Here is the log: " + log), assistant("I see."), user("And: " + "QUJD" * 9_000)]
    life.history += [assistant("I see that, too."), user("Go on."), assistant("Well.")]
    await life.turns(3)
    assert sum(map(len, writer.prompts)) < 60_000
    assert "left out here" in writer.prompts[0] and "kB of encoded data" in writer.prompts[0]


MATERIAL = " ".join(prose(number, 120) for number in range(8))


def test_a_summary_in_another_language_or_with_few_words_is_not_called_invented() -> None:
    german = (
        "Der Benutzer möchte wissen, warum das Tor zuerst geöffnet wird, und bittet um eine vollständige Erklärung. "
        * 1
    )
    assert summary_fault(german, material=MATERIAL, instructions="", previous="") is None
    assert (
        summary_fault(
            "用户想知道哪个门先开,并请管理员给出完整的说明。", material=MATERIAL, instructions="", previous=""
        )
        is None
    )


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"Order {1_001 + number} shipped." for number in range(60)),
        "\n".join(f"- src/file_{number}.py has {number * 37 % 211} lines." for number in range(60)),
        "\n".join(
            f"- On 2024-05-{day:02d} the reading was {day * 31 % 97}.{day % 10} degrees." for day in range(1, 29)
        ),
    ],
)
def test_a_list_that_differs_only_in_its_numbers_does_not_repeat_itself(text: str) -> None:
    assert summary_fault(text, material=text, instructions="", previous="") is None


@pytest.mark.parametrize(
    "text",
    [
        "Order 1001 shipped. Order 1002 shipped. " * 15,
        "1 2 3 4 5 6 7 8 9 10 " * 30,
        "\n".join(f"{number}. The user asked about the gate." for number in range(1, 40)),
        " ".join(f"The {gate} is open." for gate in ("north", "south", "upper", "lower", "inner", "outer") * 8),
        "10:10 " * 100,
        "aaaa" * 200,
    ],
)
def test_numbers_that_come_again_or_only_count_a_repeated_sentence_repeat_themselves(text: str) -> None:
    assert summary_fault(text, material=text, instructions="", previous="") == "it repeats itself"
