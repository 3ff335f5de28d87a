"""What stands for the turns that are left out, where a template or a counter makes that hard."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from context_compiler import Template, TokenCounter, View, compile_view
from context_compiler.compiler.cycle import Cycle
from context_compiler.errors import CompileError
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.builders import prose
from tests.support.histories import answer, long_history

TALK: list[ModelMessage] = [
    message
    for turn in range(60)
    for message in (
        ModelRequest(parts=[UserPromptPart(f"Matter {turn}: never touch table users_{turn}. {prose(turn, 20)}")]),
        ModelResponse(parts=[TextPart(f"Noted, {prose(turn + 100, 40)}")]),
    )
]
ASKED: list[ModelMessage] = [*TALK, ModelRequest(parts=[UserPromptPart("And now?")])]


def template(body: str) -> Template:
    return Template.parse(f"---\ncompiler: none\n---\n{body}", name="own")


async def viewed(body: str, budget: int = 2_000) -> View:
    return await compile_view(ASKED, template(body), budget, system=None)


@pytest.mark.parametrize("error", [ValueError("bug"), KeyError("bug"), OSError(5, "bug"), RecursionError("bug")])
async def test_any_error_of_a_custom_model_becomes_a_compile_error(error: Exception) -> None:
    with pytest.raises(CompileError, match="bug") as caught:
        await compile_view(ASKED, "chat_compiler", 2_000, model=Notes(error).model, system=None)
    assert caught.value.__cause__ is error and (caught.value.model, caught.value.phase) == ("notes", "call")


async def test_a_template_body_used_as_the_note_contains_the_values_it_asks_for() -> None:
    view = await viewed("Left out: {{ turns_left_out }}.\n{{ constraints }}\n{{ recent_turns }}")
    assert view.tokens <= 2_000
    assert "Left out: " in view.summary and "never touch table users_" in view.summary
    assert "[from turn " in view.summary and view.summary.count("=== BEGIN") == view.summary.count("=== END")


async def test_values_of_a_template_body_are_cut_until_it_fits() -> None:
    view = await viewed("{{ recent_turns }}" * 2)
    assert view.tokens <= 2_000
    assert view.summary.count("=== BEGIN") == view.summary.count("=== END") == 2


async def test_a_body_that_never_fits_is_truncated() -> None:
    view = await viewed(f"Beginning. {prose(7, 3_000)} {{{{ recent_turns }}}}")
    assert view.tokens <= 2_000 and "Beginning." in view.summary and "=== BEGIN" not in view.summary


class Steep(TokenCounter):
    """Long texts cost far more than their pieces."""

    def text(self, text: str) -> int:
        count = super().text(text)
        return count if count < 60 else count * count // 30


async def test_quotes_that_cost_more_together_than_apart_stay_within_the_budget() -> None:
    view = await compile_view(ASKED, "extractive", 600, system=None, counter=Steep())
    assert view.tokens <= 600


async def test_a_raw_history_never_begins_with_an_answer() -> None:
    talker = Talker("ok")
    history = [ModelRequest(parts=[answer("nobody", "lost")]), ModelResponse(parts=[TextPart("I looked.")])]
    views: list[View] = []
    agent = Agent(talker.model, capabilities=[compiler(budget=8_000, on_view=views.append)])
    await run(agent, "And?", message_history=history)
    assert views[0].status == "raw" and views[0].messages[0].kind == "request"


@pytest.mark.parametrize("state", ["{}", "[]", "null", "nonsense", '{"v": 1, "kept": 3}'])
def test_an_unreadable_cycle_is_ignored(state: str) -> None:
    assert Cycle.from_json(state) is None


async def test_a_line_is_put_before_a_leading_answer() -> None:
    history = [
        ModelRequest(parts=[answer("nobody", "lost")]),
        ModelResponse(parts=[TextPart("I looked.")]),
        ModelRequest(parts=[UserPromptPart("And?")]),
    ]
    view = await compile_view(history, budget=8_000, system=None)
    assert view.messages[0].kind == "request" and len(view.messages) == 3
    assert "lost" not in str(view.messages)


async def test_a_live_view_quotes_less_than_one_view_would_because_every_request_pays_for_it() -> None:
    giant = ModelRequest(parts=[UserPromptPart(prose(1, 40))]), ModelResponse(parts=[TextPart(prose(2, 12_000))])
    long = [*TALK, *giant, *TALK]
    ours, budget = compiler(budget=24_000), 24_000
    await Agent(Talker().model, capabilities=[ours]).run("And now?", message_history=long)
    assert ours.last_view is not None
    asked = [*long, ModelRequest(parts=[UserPromptPart("And now?")])]
    once = await compile_view(asked, "extractive", budget, system=None, recent_turns=0)
    most = budget // 4
    assert ours.last_view.ledger["tokens"]["quotes"] <= most < once.ledger["tokens"]["quotes"]


@pytest.mark.parametrize("model", ["nobody:knows", "groq:llama"])
async def test_an_unavailable_model_raises_a_compile_error_that_names_it(model: str) -> None:
    if model.startswith("groq") and find_spec("groq"):
        pytest.skip("the package of this provider is installed")
    long: list[ModelMessage] = [*TALK, *TALK, *ASKED]
    with pytest.raises(CompileError, match=model):
        await compile_view(long, "chat_compiler", 4_000, model=model, system=None)


async def test_room_left_by_quotes_is_used_for_more_of_the_newest_turns() -> None:
    history = [*long_history(16, 4, words=250), ModelRequest(parts=[UserPromptPart("And now?")])]
    whole = await compile_view(history, "extractive", 1_000_000, system=None)
    budget = int(whole.tokens * 0.85)
    filled = await compile_view(history, "extractive", budget, system=None)
    few = await compile_view(history, "extractive", budget, system=None, recent_turns=3)
    assert few.tokens < 0.75 * budget < 0.8 * budget < filled.tokens <= budget
    assert history[-40:] == list(filled.messages[-40:])


async def test_a_named_fidelity_caps_the_summary_and_keeps_the_newest_turns() -> None:
    history = [*long_history(30, 2, words=60), ModelRequest(parts=[UserPromptPart("And now?")])]
    full = await compile_view(history, "extractive", 5_000, fidelity="full", system=None)
    none = await compile_view(history, "extractive", 5_000, fidelity="truncate", system=None)
    asked = await compile_view(history, "extractive", 5_000, fidelity="truncate", recent_turns=3, system=None)
    assert full.tokens > 0.8 * 5_000 and full.messages[-12:] == history[-12:]
    assert none.messages == asked.messages, "as many newest turns as the template says, where they fit"


async def test_messages_removed_by_repair_are_listed_so_that_tokens_add_up() -> None:
    orphan = ModelRequest(parts=[answer("nobody asked", prose(3, 300)), UserPromptPart("Where were we?")])
    history = [*TALK[:60], orphan, *ASKED[60:]]
    view = await compile_view(history, "extractive", 1_500, system=None)
    raw = await compile_view(history, "extractive", 100_000, system=None)
    assert raw.record is not None
    broken = [drop for drop in view.drops if drop.reason.startswith("broken: ")]
    assert [drop.what for drop in broken] == ["message 60"] and broken[0].tokens > 300
    left = raw.record.tokens_raw - sum(drop.tokens for drop in view.drops)
    assert abs(left - view.ledger["tokens"]["messages"]) <= 20, (
        "but for the frames of note, rules and quotes, and a line between prompts"
    )


async def test_a_line_marks_a_message_that_repair_removed_between_two_answers() -> None:
    orphan = ModelRequest(parts=[answer("nobody asked")])
    said = ModelResponse(parts=[TextPart("It is blue.")])
    view = await compile_view([*TALK[:2], orphan, said, *ASKED[-1:]], "extractive", 8_000, system=None)
    assert [message.kind for message in view.messages] == ["request", "response"] * 2 + ["request"]
    assert "[Messages in between are left out.]" in str(view.messages[2])
