"""Blocks in very large rooms, beside prompts that nearly fill theirs, and in turns that outgrow theirs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import UserPromptPart as Prompt

from context_compiler import View, compile_view
from context_compiler.tokens import TokenCounter
from tests.recall.test_blocks import ASK, SECRET, block_of, past, talked, text_of, words
from tests.support.agents import Talker, compiler

count = TokenCounter().text


async def test_a_question_in_a_budget_of_112_000_tokens_gets_a_large_block() -> None:
    """Where a share of the room for prompts that ask nothing would be more than the most that a block may take."""
    history: list[ModelMessage] = []
    for turn in range(1_000):
        history.append(ModelRequest(parts=[Prompt(f"The locker {words(turn, 14)}?")]))
        history.append(ModelResponse(parts=[TextPart(f"The locker {words(turn + 900, 30)}.")]))
    talker, _ = await talked(compiler(budget=112_000, recall=1.0), ["Hello.", ASK], history=history)
    assert count(block_of(talker.last.messages, ASK)) > 5_000


@pytest.mark.parametrize("share", [0.85, 0.92])
async def test_a_long_question_that_fits_stays_whole(share: float) -> None:
    size = 10
    while count(words(77, size)) < share * 3_000 - 40:
        size += 5
    prompt = f"{words(77, size)}\n\n{ASK}"
    talker, _ = await talked(compiler(budget=3_000), ["Hello.", "Hello again.", prompt])
    assert prompt in [text_of(part) for part in talker.last.messages[-1].parts]
    assert talker.last.tokens <= 3_000


@pytest.mark.parametrize("tools", [False, True])
async def test_a_capitalized_word_of_praise_is_not_taken_for_a_speaker(tools: bool) -> None:
    history: list[ModelMessage] = []
    for turn in range(150):
        lead = "Great! " if turn % 10 == 0 else ""
        history.append(ModelRequest(parts=[Prompt(f"{lead}{words(turn, 12)}.")]))
        if tools and turn % 2:
            call = ToolCallPart("look", {"path": words(turn + 9_000, 1)}, tool_call_id=f"t{turn}")
            history.append(ModelResponse(parts=[call]))
            history.append(ModelRequest(parts=[ToolReturnPart("look", words(turn + 7_000, 30), call.tool_call_id)]))
        history.append(ModelResponse(parts=[TextPart(f"{words(turn + 500, 30)}.")]))
    ask = "Great! What is the boiling point of xenon?"
    talker, _ = await talked(compiler(budget=8_000), ["Hello.", ask], history=history)
    assert not block_of(talker.last.messages, ask)


async def test_the_long_answer_before_a_question_stays_where_the_view_is_cut_deeper_for_it() -> None:
    ours = compiler(budget=5_000)
    talker, messages = await talked(ours, ["Hello.", "Hello again."], history=past(200))
    for turn in range(4):
        messages.append(ModelRequest(parts=[Prompt(f"Say {turn} {words(turn + 3, 60)}.")]))
        messages.append(ModelResponse(parts=[TextPart(words(turn + 88, 30))]))
        talker, messages = await talked(ours, [f"Ok {turn}."], history=messages)
    answer = f"The second point: {words(950, 480)}."
    assert 1_000 < count(answer) < 1_250, "a fifth to a quarter of the room"
    messages += [ModelRequest(parts=[Prompt("And?")]), ModelResponse(parts=[TextPart(answer)])]
    talker, _ = await talked(ours, [ASK], history=messages)
    assert answer in [text_of(part) for message in talker.last.messages for part in message.parts]
    assert "48151" in block_of(talker.last.messages, ASK)


@pytest.mark.parametrize("lines", [60, 3_000])
@pytest.mark.parametrize("ends", [False, True], ids=["before what was pasted", "after it"])
async def test_a_question_beside_a_pasted_listing_finds_its_answer_in_one_view(lines: int, ends: bool) -> None:
    """Words that only the paste has are the rarest, and would be all that is looked for."""
    history: list[ModelMessage] = []
    for turn in range(60):
        history.append(ModelRequest(parts=[Prompt(f"Question {turn}: who owns ticket OPS-{turn}? {words(turn, 20)}.")]))
        history.append(ModelResponse(parts=[TextPart(f"OPS-{turn} is Maria's. {words(turn + 500, 40)}.")]))
    listing = "\n".join(f"./src/part_{number}/file_{number}.py" for number in range(lines))
    prompt = f"{listing}\n\nWho owns OPS-7?" if ends else f"Who owns OPS-7? Here is the listing:\n{listing}"
    view = await compile_view([*history, ModelRequest(parts=[Prompt(prompt)])], "extractive", 6_000, system=None)
    assert "OPS-7 is Maria" in str(view.messages)
    assert any(quote.why.startswith("recalled") for quote in view.quoted)


@pytest.mark.parametrize("secret_at", [62, 75])
async def test_passages_only_in_the_former_view_are_recalled_when_a_turn_is_cut_back(secret_at: int) -> None:
    async def dig() -> str:
        return words(9_000 + len(talker.sent), 500)

    history: list[ModelMessage] = []
    for turn in range(80):
        told = f"On Monday {words(turn, 1).title()} opened locker {turn * 37} at the {words(turn + 300, 16)}."
        if turn >= 60:
            names = " and ".join(words(turn + offset, 1).title() for offset in (0, 99, 199))
            told = f"Last Monday {names} came at {turn * 37}, {words(turn + 300, 6)}."
        history.append(ModelRequest(parts=[Prompt(SECRET if turn == secret_at else told)]))
        history.append(ModelResponse(parts=[TextPart("Fine.")]))
    calls: list[Any] = [[("dig", {})]] * 6
    talker, views = Talker(["Fine.", *calls, "Done."]), list[View]()
    await talked(compiler(budget=4_000, on_view=views.append), ["Hello.", ASK], talker, [dig], history=history)
    block = block_of(talker.sent[1].messages, ASK)
    assert block and SECRET not in block and SECRET in talker.sent[1].text
    assert any(view.status == "compiled" for view in views[2:]), "the turn is cut back"
    assert all(SECRET in sent.text for sent in talker.sent[1:])


def lockers(turns: int) -> list[ModelMessage]:
    """A past in which somebody opens a locker in every turn."""
    history: list[ModelMessage] = []
    for turn in range(turns):
        told = f"On Monday {words(turn, 1).title()} opened locker {turn * 37} at the {words(turn + 300, 16)}."
        history.append(ModelRequest(parts=[Prompt(told)]))
        history.append(ModelResponse(parts=[TextPart("Fine.")]))
    return history


@pytest.mark.parametrize(
    ("budget", "settings"),
    [(1_500, {}), (1_500, {"recent_turns": "all"}), (4_000, {"recall": 0.3})],
)
@pytest.mark.parametrize("seed", [2, 11, 13])
async def test_a_long_turn_is_cut_back_before_its_block_loses_the_answer(
    seed: int, settings: dict[str, Any], budget: int
) -> None:
    random, size = Random(seed), budget // 1_500
    sizes = [random.choice((20, 60, 120)) * size for _ in range(99)]

    async def dig() -> str:
        return words(9_000 + len(talker.sent), sizes[len(talker.sent)])

    script: list[Any] = []
    for turn in range(4):
        script += [[("dig", {})] * random.choice((1, 1, 2)) for _ in range(random.randint(3, 7))]
        script.append(f"Fine {words(turn, 40)}.")
    talker, views = Talker(script), list[View]()
    history = lockers(60 * size)
    history[10] = ModelRequest(parts=[Prompt(f"{SECRET} {words(800, 25)}.")])
    prompts = ["Dig.", "Dig.", "Dig.", ASK]
    await talked(compiler(budget=budget, on_view=views.append, **settings), prompts, talker, [dig], history=history)
    asked = [sent for sent in talker.sent if ASK in sent.text]
    assert settings or "compiled" in [view.status for view in views[1 - len(asked) :]], "the turn is cut back"
    assert all(SECRET in sent.text for sent in asked)
    assert max(sent.tokens for sent in asked) <= budget


async def test_a_block_shortened_after_a_refusal_loses_no_passage_at_later_cuts() -> None:
    async def dig() -> str:
        return words(9_000 + len(talker.sent), 300)

    calls: list[Any] = [[("dig", {})]] * 8
    refusal = ModelHTTPError(400, "talker", body={"code": "context_length_exceeded"})
    talker, views = Talker(["Fine.", refusal, *calls, "Done."]), list[View]()
    ask = "Who opened locker 740, and what happened on Monday?"
    ours = compiler(budget=4_000, recall=0.3, on_view=views.append)
    await talked(ours, ["Hello.", ask], talker, [dig], history=lockers(120))
    sizes = [len(block_of(sent.messages, ask)) for sent in talker.sent[1:]]
    assert sum(view.status == "compiled" for view in views[2:]) >= 3, "the turn is cut back often"
    assert 0 < sizes[-1] == sizes[5] < sizes[0]
