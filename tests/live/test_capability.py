"""Attached to an agent, the compiler changes what a request carries and nothing else: what the host stores stays."""

from __future__ import annotations

import asyncio
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
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import View
from context_compiler.live.overflow import RetryModelRequest
from tests.support.agents import WAYS, Notes, Step, Talker, compiler, ran, run, unstamped
from tests.support.histories import assert_pairs_whole, assistant, long_history, snapshot

BUDGET = 1_500
FINAL = [("final_result", {"city": "Bern", "size": 3})]


class City(BaseModel):
    city: str
    size: int


def look(path: str) -> str:
    return f"{path} has many lines " * 20


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


LOOK = [("look", {"path": "a"})]
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
async def test_what_is_stored_is_what_it_would_be_without_us(name: str, way: str) -> None:
    history = long_history(8)
    before = snapshot(history)
    _, without, _ = await outcome(SCENARIOS[name], way, history)
    ours = compiler(Notes(), budget=BUDGET)
    talker, withal, done = await outcome(SCENARIOS[name], way, history, ours)
    assert withal == without
    assert snapshot(history) == before
    assert all(kept is given for kept, given in zip(done.messages, history, strict=False)) if done else True
    assert ours.last_view is not None and ours.last_view.status in ("compiled", "cycle")
    assert all(len(sent.messages) < len(history) for sent in talker.sent)
    assert max(sent.tokens for sent in talker.sent) <= BUDGET
    for sent in talker.sent:
        assert_pairs_whole(sent.messages)


@pytest.mark.parametrize("way", WAYS)
async def test_the_first_turns_of_a_conversation_go_out_as_they_are(way: str) -> None:
    talker, ours = Talker([LOOK, "done", "sure"]), compiler(Notes(), budget=32_000)
    agent = Agent(talker.model, tools=[look], capabilities=[ours])
    first = await WAYS[way](agent, "look around")
    await WAYS[way](agent, "thanks", message_history=first.messages)
    plain = Talker([LOOK, "done", "sure"])
    agent = Agent(plain.model, tools=[look])
    await WAYS[way](agent, "thanks", message_history=(await WAYS[way](agent, "look around")).messages)
    assert [unstamped(sent.messages) for sent in talker.sent] == [unstamped(sent.messages) for sent in plain.sent]
    assert ours.last_view is not None and ours.last_view.status == "raw"


def test_it_works_without_a_loop(sync_loop: asyncio.AbstractEventLoop) -> None:
    talker, notes = Talker([LOOK, "done"]), Notes()
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(notes, budget=BUDGET)])
    done = agent.run_sync("and now?", message_history=long_history(8))
    assert done.output == "done" and notes.asked == 1
    assert len(talker.sent[0].messages) < 10


async def test_the_view_ends_with_the_prompt_and_begins_with_the_notes() -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=long_history(8)[:-1])
    texts = [
        str(part.content) for message in talker.last.messages for part in message.parts if message.kind == "request"
    ]
    assert "Context summary (compiled):" in texts[0] and "find out why the build fails" in texts[0]
    assert texts[-1] == "and now?"
    assert sum("and now?" in text for text in texts) == 1


@pytest.mark.parametrize("inject", ["user", "system", "compaction"])
async def test_the_notes_stand_on_the_channel_that_was_asked_for(inject: str) -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=2 * BUDGET, inject=inject)
    await run(Agent(talker.model, capabilities=[ours]), "and now?", message_history=long_history(16))
    assert ours.last_view is not None
    parts = [part for message in ours.last_view.messages for part in message.parts]
    kinds = [part.part_kind for part in parts if "Context summary (compiled):" in str(getattr(part, "content", ""))]
    assert kinds == [{"user": "user-prompt", "system": "system-prompt", "compaction": "compaction"}[inject]]
    said = [part for part in parts if "Question" in str(getattr(part, "content", ""))]
    assert said and {part.part_kind for part in said} == {"user-prompt"}


async def test_an_agents_own_system_text_is_kept_before_the_notes() -> None:
    history = long_history(8)
    history[0] = ModelRequest(parts=[SystemPromptPart("You are a clerk."), *history[0].parts])
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    agent = Agent(talker.model, capabilities=[ours], instructions="Be brief.", system_prompt="You are a clerk.")
    await run(agent, "and now?", message_history=history)
    parts = [part for message in talker.last.messages for part in message.parts]
    assert [part.content for part in parts if part.part_kind == "system-prompt"] == ["You are a clerk."]
    assert parts[0].part_kind == "system-prompt" and talker.last.instructions == "Be brief."


@pytest.mark.parametrize("way", ["run", "run_stream"])
async def test_instructions_that_change_are_stored_as_without_us(way: str) -> None:
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


async def test_approvals_and_external_calls_are_resumed_as_without_us() -> None:
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


async def test_a_run_without_a_prompt_goes_on_where_the_history_ends() -> None:
    talker, ours = Talker("done"), compiler(Notes(), budget=BUDGET)
    history = long_history(8)
    done = ran(await Agent(talker.model, capabilities=[ours]).run(message_history=history))
    assert unstamped(done.messages[: len(history)]) == unstamped(history)
    assert talker.last.messages[-1].parts[-1].content == "Question 8: what about src/file_0.py?"


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_whoever_looks_is_shown_every_view_before_it_goes_out(asynchronous: bool) -> None:
    seen: list[View] = []

    async def later(view: View) -> None:
        await asyncio.sleep(0)
        seen.append(view)

    talker = Talker([LOOK, "done"])
    ours = compiler(Notes(), budget=BUDGET, on_view=later if asynchronous else seen.append)
    await run(Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=long_history(8))
    assert [view.status for view in seen] == ["compiled", "cycle"]
    assert [view.record.tokens_sent for view in seen if view.record] == [
        record.tokens_sent for record in await ours.views()
    ][::-1]
    assert ours.last_view is seen[-1]
    assert seen[0].summary.startswith("- **Goal**") and seen[0].drops and seen[0].kept


async def test_a_dry_run_records_what_would_be_sent_and_sends_raw() -> None:
    talker, notes = Talker([LOOK, "done"]), Notes()
    ours = compiler(notes, budget=BUDGET, dry_run=True)
    history = long_history(8)
    await run(Agent(talker.model, tools=[look], capabilities=[ours]), "and now?", message_history=history)
    assert all(len(sent.messages) >= len(history) for sent in talker.sent)
    records = await ours.views()
    assert [record.status.partition(";")[0] for record in records] == ["dry_run", "dry_run"]
    assert all(record.tokens_sent == record.tokens_raw for record in records)
    assert ours.last_view is not None and ours.last_view.tokens < BUDGET and notes.asked == 1


async def test_two_compilers_on_one_agent_are_one() -> None:
    talker = Talker([LOOK, "done"])
    agent = Agent(talker.model, tools=[look], capabilities=[compiler(budget=BUDGET), compiler(Notes(), budget=BUDGET)])
    done = await run(agent, "and now?", message_history=long_history(8))
    assert done.output == "done"
    said = [part for message in talker.last.messages for part in message.parts if "(compiled)" in str(part)]
    assert len(said) == 1


async def test_an_edit_by_another_capability_is_seen_and_kept() -> None:
    class Shout(AbstractCapability[Any]):
        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            messages = list(request_context.messages)
            messages[-1] = ModelRequest(parts=[*messages[-1].parts, UserPromptPart("LOUDER")])
            request_context.messages = messages
            return request_context

    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[compiler(Notes(), budget=BUDGET), Shout()])
    await run(agent, "and now?", message_history=long_history(8))
    assert "LOUDER" in talker.last.text and "and now?" in talker.last.text and len(talker.last.messages) < 10


async def test_a_response_that_goes_on_is_left_to_the_provider() -> None:
    ours = compiler(budget=BUDGET)
    asked = [*long_history(8)[:-1], assistant("half an ans")]
    context = ModelRequestContext(
        model=Talker("ok").model,
        messages=asked,
        model_settings=None,
        model_request_parameters=ModelRequestParameters(),
    )
    hook: Any = getattr(ours, "prepare_model_request" if RetryModelRequest is not None else "before_model_request")
    assert (await hook(None, context)).messages is asked
    assert ours.last_view is None


class Odd(FunctionModel):
    """A model that fails when it is asked how much it can read."""

    @property
    def context_window(self) -> int:
        raise ZeroDivisionError("nobody knows")


async def test_a_request_that_cannot_be_read_goes_out_as_it_is() -> None:
    errors: list[Exception] = []
    ours = compiler(budget=BUDGET, on_error=errors.append)
    sent: list[list[ModelMessage]] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append(messages)
        return ModelResponse(parts=[TextPart("ok")])

    history = long_history(8)
    await Agent(Odd(reply), capabilities=[ours]).run("and now?", message_history=history)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert len(sent[0]) >= len(history)
