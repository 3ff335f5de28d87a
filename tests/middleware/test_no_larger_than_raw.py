"""A cut that a provider's refusal asked for is not continued where the raw history fits and is no larger."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo

from context_compiler import MemoryStore, View
from tests.support.agents import WAYS, Talker, compiler
from tests.support.builders import assistant, user
from tests.support.histories import prose


async def test_a_cut_for_a_smaller_window_is_not_continued_if_it_saves_nothing() -> None:
    window = 90

    def answer(messages: list[ModelMessage], info: AgentInfo) -> str | ModelHTTPError:
        if talker.last.tokens > window:
            return ModelHTTPError(400, "m", body={"code": "context_length_exceeded"})
        return "fine"

    talker, views = Talker(answer), list[View]()
    ours = compiler(budget=4_000, trigger=1.0, store=MemoryStore(), on_view=views.append)
    agent, history = Agent(talker.model, capabilities=[ours]), [user("Item 0: " + prose(0, 60)), assistant("Noted.")]
    history = (await WAYS["run"](agent, "And now?", message_history=history)).messages
    window = 10_000
    await WAYS["run"](agent, prose(2, 300), message_history=history)
    assert [view.status for view in views] == ["raw", "compiled", "raw"]
    assert not views[-1].drops
