"""A long real conversation, had again in Endless mode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import SQLiteStore
from tests.chat.support import NOTES, Room, last_text

TURNS, BUDGET = 40, 3_000


def recorded(folder: Path) -> list[tuple[str, str]]:
    """What was asked and answered, turn by turn; the test is skipped where there is no such conversation."""
    files = sorted(folder.glob("beam/500K/*/chat.json"))
    if not files:
        pytest.skip(f"no conversation of {TURNS} turns below {folder}")
    said = [
        (message["role"], message["content"].rpartition("->->")[0] or message["content"])
        for batch in json.loads(files[0].read_text())
        for turn in batch["turns"]
        for message in turn
    ]
    pairs = [
        (asked[1], answered[1])
        for asked, answered in zip(said, said[1:], strict=False)
        if (asked[0], answered[0]) == ("user", "assistant")
    ]
    assert len(pairs) >= TURNS
    return pairs[:TURNS]


@pytest.mark.timeout(900)
async def test_a_long_conversation_in_endless_mode(room: Room, data_folder: Path) -> None:
    turns = recorded(data_folder)
    now = 0
    compiles = [0] * TURNS

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        text = turns[now][1]
        for start in range(0, len(text), 500):
            yield text[start : start + 500]

    def compile_(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert "COMPILER TASK" in last_text(messages)
        compiles[now] += 1
        return ModelResponse(parts=[TextPart(f"{NOTES} Turn {now + 1} has begun: {turns[now][0][:200]}")])

    chat = room.chat(FunctionModel(compile_, stream_function=answer), endless=True, budget=BUDGET)
    for number, (asked, answered) in enumerate(turns):
        now = number
        said = await chat.say(asked)
        assert said.text == answered
        assert said.view is not None and said.view.record is not None
        assert said.sent <= BUDGET and said.view.status != "floor_over_budget"
    await chat.close()

    assert max(compiles) == 1 and 3 <= sum(compiles) < TURNS
    told = chat.storage.transcript.read()
    assert [(turn.user, turn.assistant) for turn in told] == turns, "the transcript holds every word"
    again = room.chat(FunctionModel(compile_, stream_function=answer), endless=True, budget=BUDGET)
    await again.open()
    assert again.messages == chat.messages, "and so does the record"
    await again.close()
    views = await SQLiteStore(room.path / "context.db").views("talk")
    assert len(views) == TURNS
    raw, sent = sum(view.tokens_raw for view in views), sum(view.tokens_sent for view in views)
    assert sent < raw / 8
    assert not room.notices
    print(
        f"\n{sum(compiles)} compiles, {raw:,} tokens raw, {sent:,} sent, at most {max(v.tokens_sent for v in views):,}"
    )
