"""A compile's prompts: what users say in them can stand for nothing else."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import compile_view
from context_compiler.compiler.summary import SLOT, compose_prompts, fill_slot
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter
from tests.support.builders import assistant, prose, user

TEMPLATE = Template.parse("Notes on {{ latest_input }}", name="notes")


def test_user_text_cannot_fill_the_slot_of_the_previous_summary() -> None:
    prompts = compose_prompts(TEMPLATE, {"latest_input": SLOT}, ["one", "two"], previous="", cap=400)
    assert SLOT not in prompts[0] and prompts[1].count(SLOT) == 1
    assert fill_slot(prompts[1], "the notes so far").count("the notes so far") == 1


GERMAN = "Bitte prüfe das Tor Nummer {} noch einmal und schreib mir, wer den Schlüssel hat und wann er zurückkommt. "
CHINESE = "请再检查一下第{}号门,并告诉我钥匙在谁那里,什么时候还回来,还有谁可以替他开门。"


async def asked(template: str | Template, text: str) -> str:
    """Return everything that a model is asked for a summary of a long conversation."""
    prompts: list[str] = []

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompts.append(f"{info.instructions}\n{messages[-1].parts[-1].content}")  # pyright: ignore
        return ModelResponse(parts=[TextPart("**Goal**: the gates.")])

    history = [
        message for number in range(60) for message in (user(text.format(number) * 2), assistant(text.format(-number)))
    ]
    await compile_view([*history, user("?")], template, 2_000, model=FunctionModel(write), system=None)
    assert len(prompts) == 1
    return prompts[0]


@pytest.mark.parametrize("text", [GERMAN, CHINESE])
@pytest.mark.parametrize("template", ["chat_compiler", "goal_oriented", "manager_summary", TEMPLATE])
async def test_every_summary_is_asked_for_in_the_language_of_its_conversation(
    template: str | Template, text: str
) -> None:
    prompt = await asked(template, text)
    assert text.format(7) in prompt
    assert "in the language of the conversation" in prompt.partition("EXTRACTION TEMPLATE")[0]


@pytest.mark.parametrize(
    ("template", "most"), [("chat_compiler", 460), ("goal_oriented", 520), ("manager_summary", 300)]
)
async def test_most_of_a_prompt_is_the_conversation(template: str, most: int) -> None:
    prompt = await asked(template, GERMAN)
    ours = "\n".join(line for line in prompt.splitlines() if "prüfe" not in line)
    assert 150 < TokenCounter().text(ours) <= most


async def test_a_short_summary_leaves_its_room_in_a_single_view_to_quotes() -> None:
    history = [message for number in range(60) for message in (user(prose(number, 40)), assistant(prose(-number, 40)))]
    fact = "The staging database moved to harbour-17."
    history[20:20] = [user(fact), assistant("Noted.")]
    writer = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("**Goal**: look at the gates.")]))
    asked = [*history, user("Which harbour did the staging database move to?")]
    view = await compile_view(asked, "chat_compiler", 2_000, model=writer, system=None)
    assert view.summary == "**Goal**: look at the gates."
    assert fact in str(view.messages) and 1_000 < view.tokens <= 2_000
