"""What a user laid down for good has its room in every view, and leaves three quarters of it to the rest."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, UserPromptPart
from pydantic_ai.models.function import AgentInfo

from context_compiler import TokenCounter, View
from context_compiler.messages.fences import RULES_TITLE
from tests.recall.test_blocks import words
from tests.support.agents import Talker, compiler, run
from tests.support.histories import assistant, long_history, prose, user
from tests.support.views import own_texts

COUNTER = TokenCounter()


def rule(number: int, beside: str = "") -> list[ModelMessage]:
    """A turn in which the user lays something down, after what else there was to say."""
    said = f"Never move container {number} of the northern quay before the port office has signed its papers."
    return [user(f"{beside} {said}".strip()), assistant("Understood.")]


def pinned(texts: list[str]) -> tuple[str, str]:
    """The rules a view lists, and what else it adds to the messages."""
    before, _, after = "\n".join(texts).partition(f"=== BEGIN {RULES_TITLE} ===")
    rules, _, rest = after.partition(f"=== END {RULES_TITLE} ===")
    return rules, before + rest


async def live_view(messages: list[ModelMessage], budget: int) -> list[str]:
    """What a live agent is sent of this history beside its own messages."""
    ours, talker = compiler(budget=budget), Talker("ok")
    await run(Agent(talker.model, capabilities=[ours]), "What now?", message_history=messages)
    assert talker.sent[0].tokens <= budget and ours.last_view is not None
    return own_texts(ours.last_view)


@pytest.mark.parametrize("budget", [700, 800, 900, 1_000])
async def test_one_rule_fits_in_a_small_view(budget: int) -> None:
    told = await live_view([*rule(1, beside=f"{prose(1, 200)}."), *long_history(40, 2)], budget)
    assert "Never move container 1" in pinned(told)[0]


@pytest.mark.parametrize("budget", [4_000, 16_000])
async def test_many_rules_take_at_most_a_quarter_of_the_view(budget: int) -> None:
    rules = [message for number in range(200) for message in rule(number)]
    pins, rest = (COUNTER.text(text) for text in pinned(await live_view([*rules, *long_history(60, 2)], budget)))
    assert budget / 10 < pins <= budget / 4 < pins + rest


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("budget", [800, 1_500])
async def test_a_rule_is_in_every_request_of_a_long_conversation(budget: int, tools: bool) -> None:
    def look(number: int) -> str:
        return prose(number, 30)

    def script(messages: list[ModelMessage], info: AgentInfo) -> Any:
        new = isinstance(messages[-1].parts[-1], UserPromptPart)
        return [("look", {"number": len(messages)})] if tools and new else prose(len(messages), 60)

    talker, views = Talker(script), list[View]()
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=budget, on_view=views.append)])
    history: list[ModelMessage] = []
    for number in range(24):
        prompt = f"What about matter {number}?" if number % 3 else f"Do step {number}."
        history = (
            await run(agent, "Never deploy on Fridays." if not number else prompt, message_history=history)
        ).messages
    assert all("Never deploy on Fridays." in sent.text and sent.tokens <= budget for sent in talker.sent)
    assert sum(view.status == "compiled" for view in views) > 1


RULES = "Never deploy on Fridays. Always use metric units. Always answer in two sentences."


async def compiles(budget: int, first: str, again: str = "") -> tuple[int, list[str]]:
    """Compiles of a conversation of 24 short turns, and the texts of its requests."""
    views = list[View]()
    ours, talker = compiler(budget=budget, on_view=views.append), Talker(lambda messages, _: words(len(messages), 20))
    agent = Agent(talker.model, capabilities=[ours])
    history: list[ModelMessage] = []
    for number in range(24):
        prompt = f"{words(number, 12)}. {again}" if number else first
        history = (await run(agent, prompt, message_history=history)).messages
    return sum(view.status == "compiled" for view in views), [sent.text for sent in talker.sent]


@pytest.mark.parametrize("budget", [800, 1_000, 1_400])
async def test_rules_in_a_small_view_do_not_make_it_compile_at_every_turn(budget: int) -> None:
    plain, _ = await compiles(budget, "Hello.")
    ruled, requests = await compiles(budget, RULES)
    assert ruled <= plain + 3 and all("Never deploy on Fridays." in text for text in requests)


async def test_a_rule_that_every_prompt_repeats_does_not_push_others_out() -> None:
    _, requests = await compiles(1_500, RULES, again="Keep it short.")
    assert all("Never deploy on Fridays." in text for text in requests)
