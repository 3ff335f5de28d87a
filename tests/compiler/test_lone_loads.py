"""A call that loads a capability without an answer that does is dropped with its turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, compile_view
from context_compiler.messages.history import reader_of
from context_compiler.messages.turns import pair
from context_compiler.tokens import as_counter
from tests.support.builders import answer, assistant, prose, user
from tests.support.parts import retry_prompt

LOADED = LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="c")


@pytest.mark.parametrize("tool_history", ["paired", "drop", "render"])
@pytest.mark.parametrize(
    ("told", "stays"),
    [
        (LOADED, True),
        (replace(LOADED, outcome="failed"), False),
        (answer("c", "[shortened]", tool="load_capability"), False),
        (retry_prompt("no such capability", tool="load_capability", ident="c"), False),
    ],
)
async def test_a_view_has_no_load_without_its_answer(told: Any, stays: bool, tool_history: Any) -> None:
    asked = LoadCapabilityCallPart(args={"id": "maps"}, tool_call_id="c")
    history = [user("Load the maps."), assistant(asked), ModelRequest(parts=[told]), assistant("done")]
    for turn in range(30):
        history += [user(prose(turn, 30)), assistant(prose(turn, 40))]
    ours = ContextCompiler(budget=1_500, model="none", store=None, tool_history=tool_history)
    await Agent(FunctionModel(say_ok), capabilities=[ours]).run("And now?", message_history=history)
    one_shot = await compile_view([*history, user("And now?")], budget=1_500)
    assert ours.last_view is not None
    for view in (ours.last_view, one_shot):
        assert (view.status, view.error) == ("compiled", None)
        assert not pair(reader_of(as_counter(None)).read(view.messages)).broken
        kinds = [part.part_kind for message in view.messages for part in message.parts]
        assert (kinds.count("tool-call"), kinds.count("tool-return")) == (stays, stays)


def say_ok(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("ok")])
