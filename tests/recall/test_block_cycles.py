"""Recall blocks belong to the cycle beside which they were found."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo

from context_compiler import MemoryStore, View
from tests.recall.test_blocks import past
from tests.support.agents import Talker, compiler, run
from tests.support.histories import prose


async def test_a_block_is_not_sent_beside_another_cycle_than_that_for_which_it_was_found() -> None:
    """It leaves out what the quotes of its cycle said, such as the new value of what it quotes."""

    def look(path: str) -> str:
        return prose(len(path), 900)

    fails = False

    def script(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if not fails:
            return f"It is there. {prose(7, 500)}"
        return [("look", {"path": "x" * len(messages)})] if len(talker.sent) < 6 else ModelHTTPError(500, "m")

    talker, views = Talker(script), list[View]()
    ours = compiler(budget=4_000, store=MemoryStore(), on_view=views.append)
    agent = Agent(talker.model, tools=[look], capabilities=[ours])
    history = (await run(agent, "What is at item 7?", message_history=past(60))).messages
    assert views[-1].ledger["tokens"]["recall"]
    fails = True
    with pytest.raises(ModelHTTPError):
        await run(agent, "And now?", message_history=history)
    assert [view.status for view in views].count("compiled") > 1
    fails = False
    await run(agent, "Thank you.", message_history=history)
    assert views[-1].status == "cycle" and not views[-1].ledger["tokens"]["recall"]
