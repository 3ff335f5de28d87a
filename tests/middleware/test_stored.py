"""What the host stores is what it would be without the compiler, whatever the agent does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolOutput,
)
from pydantic_ai.capabilities import AbstractCapability, Capability
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
)

from tests.middleware.asking import BUDGET, LOOK, look
from tests.support.agents import WAYS, Notes, Step, Talker, compiler, ran, run, unstamped
from tests.support.histories import assert_pairs_whole, long_history, snapshot

FINAL = [("final_result", {"city": "Bern", "size": 3})]


class City(BaseModel):
    city: str
    size: int


async def moody(ctx: RunContext[None], path: str) -> str:
    if ctx.retry == 0:
        raise ModelRetry("not that one")
    return f"{path} is fine"


@dataclass(frozen=True)
class Scenario:
    steps: Sequence[Step]
    given: Callable[[], dict[str, Any]] = dict
    prepare: Callable[[Agent[Any, Any]], None] = lambda agent: None

    def agent(self, talker: Talker, *capabilities: AbstractCapability[Any]) -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(talker.model, capabilities=list(capabilities), retries=2, **self.given())
        self.prepare(agent)
        return agent


def dynamic(agent: Agent[Any, Any]) -> None:
    @agent.system_prompt(dynamic=True)
    def now() -> str:
        return "It is noon."


SCENARIOS = {
    "text": Scenario(["done"]),
    "three tool steps": Scenario([LOOK, LOOK, LOOK, "done"], lambda: {"tools": [look]}),
    "parallel calls": Scenario([[*LOOK, ("look", {"path": "b"})], "done"], lambda: {"tools": [look]}),
    "a tool that asks again": Scenario(
        [[("moody", {"path": "a"})], [("moody", {"path": "b"})], "done"], lambda: {"tools": [moody]}
    ),
    "an output tool, refused once": Scenario(
        [[("final_result", {"city": "Bern", "size": "large"})], FINAL], lambda: {"output_type": ToolOutput(City)}
    ),
    "an output tool beside a function tool": Scenario(
        [LOOK, [*LOOK, *FINAL]], lambda: {"output_type": City, "tools": [look]}
    ),
    "native output, refused once": Scenario(
        ['{"city": "Bern"}', '{"city": "Bern", "size": 3}'], lambda: {"output_type": NativeOutput(City)}
    ),
    "prompted output": Scenario(['{"city": "Bern", "size": 3}'], lambda: {"output_type": PromptedOutput(City)}),
    "a system prompt": Scenario([LOOK, "done"], lambda: {"tools": [look], "system_prompt": "You are a clerk."}),
    "a dynamic system prompt": Scenario([LOOK, "done"], lambda: {"tools": [look]}, dynamic),
    "instructions": Scenario([LOOK, "done"], lambda: {"tools": [look], "instructions": "Be brief."}),
}


async def outcome(scenario: Scenario, way: str, history: list[ModelMessage], *capabilities: Any) -> Any:
    """What a run leaves behind, or how it fails: some scenarios fail in some ways without us too."""
    talker = Talker(scenario.steps)
    try:
        done = await WAYS[way](scenario.agent(talker, *capabilities), "and now?", message_history=history)
    except UnexpectedModelBehavior as error:
        return talker, type(error).__name__, None
    return talker, (unstamped(done.messages), unstamped(done.new), done.requests, str(done.output)), done


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_host_stores_the_same_with_and_without_the_compiler(name: str, way: str) -> None:
    history = long_history(8)
    before = snapshot(history)
    _, without, _ = await outcome(SCENARIOS[name], way, history)
    ours = compiler(Notes(), budget=BUDGET)
    talker, withal, done = await outcome(SCENARIOS[name], way, history, ours)
    assert withal == without
    assert snapshot(history) == before
    assert all(kept is original for kept, original in zip(done.messages, history, strict=False)) if done else True
    assert ours.last_view is not None and ours.last_view.status in ("compiled", "cycle")
    assert all(len(sent.messages) < len(history) for sent in talker.sent)
    assert max(sent.tokens for sent in talker.sent) <= BUDGET
    for sent in talker.sent:
        assert_pairs_whole(sent.messages)


@pytest.mark.parametrize("way", ["run", "run_stream"])
async def test_changed_instructions_are_stored_as_without_the_compiler(way: str) -> None:
    """The host keeps a baseline and what changed since in the history; a view may not make it forget them."""

    async def conversation(*capabilities: Any) -> tuple[list[Any], Talker]:
        tone = ["kind"]
        talker = Talker(lambda messages, info: "done " * 30)
        agent: Agent[Any, Any] = Agent(talker.model, capabilities=list(capabilities))

        @agent.instructions
        def brief() -> InstructionPart:
            return InstructionPart(content=f"be {tone[0]}", on_change="append", name="tone")

        messages: list[ModelMessage] = []
        stored: list[Any] = []
        for turn in range(8):
            tone[0] = f"mood {turn // 2}"
            done = await WAYS[way](agent, f"question {turn} " * 30, message_history=messages)
            messages = done.messages
            stored.append(unstamped(messages))
        return stored, talker

    ours = compiler(Notes(), budget=500)
    (withal, talker), (without, _) = await conversation(ours), await conversation()
    assert withal == without
    assert ours.last_view is not None and ours.last_view.status in ("compiled", "cycle")
    assert "mood 3" in talker.last.instructions + talker.last.text
    assert max(sent.tokens for sent in talker.sent) <= 500


async def test_a_capability_that_was_loaded_stays_loaded() -> None:
    def find(place: str) -> str:
        """Find a place."""
        return f"{place} is in the north"

    async def conversation(*capabilities: Any) -> tuple[Any, Talker]:
        maps: Any = Capability(
            id="maps", description="maps", tools=[find], instructions="Use maps.", defer_loading=True
        )
        load = [("load_capability", {"id": "maps"})]
        talker = Talker([load, [("find", {"place": "Bern"})], *["fine " * 60] * 8, [("find", {"place": "Thun"})], "ok"])
        agent: Agent[Any, Any] = Agent(talker.model, capabilities=[maps, *capabilities])
        messages: list[ModelMessage] = []
        for turn in range(9):
            messages = (await run(agent, f"question {turn} " * 20, message_history=messages)).messages
        return unstamped(messages), talker

    ours = compiler(Notes(), budget=1_100)
    (withal, talker), (without, plain) = await conversation(ours), await conversation()
    assert withal == without
    assert ours.last_view is not None and ours.last_view.status in ("compiled", "cycle")
    assert [sent.tools for sent in talker.sent] == [sent.tools for sent in plain.sent]
    assert "Use maps." in talker.last.instructions + talker.last.text


async def test_approvals_and_external_calls_resume_as_without_the_compiler() -> None:
    def delete(ctx: RunContext[None], path: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"{path} is gone"

    def outside(path: str) -> str:
        raise CallDeferred

    async def conversation(*capabilities: Any) -> tuple[Any, Talker]:
        talker = Talker([[("delete", {"path": "a"}), ("outside", {"path": "b"})], "done", "bye"])
        agent: Agent[Any, Any] = Agent(
            talker.model, tools=[delete, outside], output_type=[str, DeferredToolRequests], capabilities=capabilities
        )
        first = ran(await agent.run("tidy up", message_history=long_history(8)))
        assert isinstance(first.output, DeferredToolRequests)
        results = DeferredToolResults(
            approvals={call.tool_call_id: True for call in first.output.approvals},
            calls={call.tool_call_id: "seen" for call in first.output.calls},
        )
        second = ran(await agent.run(message_history=first.messages, deferred_tool_results=results))
        third = await run(agent, "thanks", message_history=second.messages)
        return unstamped(third.messages), talker

    ours = compiler(Notes(), budget=BUDGET)
    (withal, talker), (without, _) = await conversation(ours), await conversation()
    assert withal == without
    for sent in talker.sent:
        assert_pairs_whole(sent.messages)
    assert "a is gone" in talker.sent[1].text and "seen" in talker.sent[1].text
    assert ours.last_view is not None and ours.last_view.status in ("compiled", "cycle")
