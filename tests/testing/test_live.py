"""Live conversations of any agent: every request is seen as its model gets it, and a failure explains itself."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool, ToolDefinition
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel

from context_compiler.testing import live, live_async
from tests.support.agents import Talker, compiler
from tests.testing.agents import RULE, compiling, failure, matters, newest, trimming


def test_a_text_that_a_history_processor_cuts_off_fails_at_the_request_in_which_it_is_missing() -> None:
    conversation = live(trimming(), matters(6, said_2=RULE))
    conversation.at_turn(2).assert_in_context(RULE)
    conversation.at_turn(4).assert_in_context(RULE)
    error = failure(lambda: conversation.assert_in_context(RULE))
    assert (error.request.number, error.request.turn) == (5, 5)
    lines = str(error).splitlines()
    assert lines[0] == f"request 5 (turn 5) does not contain {RULE!r}"
    assert "message 2, by the user" in lines[1]
    assert "request 4 (turn 4), message 0, word for word" in lines[2]
    assert "capabilities or history processors" in lines[3]
    assert "would keep it: a window of" in str(error)


def test_the_window_that_an_explanation_names_is_enough() -> None:
    error = failure(lambda: live(trimming(), matters(6, said_2=RULE)).assert_in_context(RULE))
    [(messages, tokens)] = re.findall(r"a window of (\d+) messages, (\d+) tokens", str(error))
    window = ProcessHistory[Any](lambda history: history[-int(messages) :])
    kept = live(Agent(capabilities=[window]), matters(5, said_2=RULE))
    kept.assert_in_context(RULE)
    assert kept.requests[-1].tokens == int(tokens) and error.request.turn == 5


def test_a_failure_of_the_compiler_names_step_and_reason_and_changes_that_keep_the_text() -> None:
    text = "Matter 1:"
    conversation = live(compiling(600), matters(30))
    error = failure(lambda: conversation.assert_in_context(text))
    shown = str(error)
    assert "step 2 of the cut order (drop older turns)" in shown and "for a budget of 600" in shown
    assert f"would keep it: rules=[{text!r}]" in shown and "would keep it: pin(…, 'm0')" in shown
    assert len(shown.splitlines()) <= 15
    budget = int(shown.partition("budget=")[2].splitlines()[0].replace(",", ""))
    with_more = live(compiling(budget), matters(error.request.turn))
    with_more.last.assert_in_context(text)
    live(compiling(600, rules=[text]), matters(30)).assert_in_context(text)


def test_an_agent_without_history_processor_keeps_everything() -> None:
    conversation = live(Agent(instructions="Be kind."), matters(5, said_1=RULE))
    conversation.assert_in_context(RULE, "Be kind.", "success (no tool calls)")
    conversation.assert_within(pairs=True, compiles=0, cost_of_everything=1.0)
    assert len(conversation.requests) == 5 and len(conversation.raw) == 10


def test_a_text_that_nobody_said_is_missing_from_the_first_request_on() -> None:
    found = failure(lambda: live(Agent(), ["Hello."]).assert_in_context("Good-bye."))
    assert found.request.number == 1 and "said: in no message" in str(found)


def test_an_empty_text_is_not_a_passed_check() -> None:
    with pytest.raises(ValueError, match="an empty text is in every request"):
        live(Agent(), ["Hello."]).assert_in_context(" ")


def test_a_single_prompt_is_one_turn() -> None:
    assert len(live(Agent(), "Hello.").requests) == 1


def test_a_compiler_that_is_given_to_the_runs_is_found() -> None:
    conversation = live(Agent(), matters(30), capabilities=[compiler(budget=600)])
    assert "compiled" in {request.status for request in conversation.requests}
    assert "step 2 of the cut order" in str(failure(lambda: conversation.assert_in_context("Matter 1:")))


def test_a_narrowed_conversation_without_requests_is_not_a_passed_check() -> None:
    conversation = live(Agent(), ["Hello."])
    with pytest.raises(AssertionError, match="no request to check"):
        conversation.after_turn(3).assert_in_context("Hello.")


def test_a_replaced_value_may_not_stand_alone() -> None:
    prompts = matters(8, said_1="The refund limit is 50 euros.", said_3="The refund limit is 80 euros.")
    live(Agent(), prompts).assert_newest("The refund limit is", "80 euros")

    def without_newest(messages: list[Any]) -> list[Any]:
        return [messages[0], *messages[-3:]] if len(messages) > 8 else messages

    stale = live(Agent(capabilities=[ProcessHistory(without_newest)]), prompts)
    error = failure(lambda: stale.assert_newest("The refund limit is", "80 euros"))
    assert error.request.turn == 5
    assert "the old value is in: message 0, word for word" in str(error)
    assert "message 4, by the user" in str(error)


def test_a_secret_is_found_and_not_repeated() -> None:
    conversation = live(Agent(), matters(3, said_2="My card is 4111 1111 1111 1111."))
    found = failure(lambda: conversation.assert_not_in_context("4111 1111 1111 1111"))
    assert found.request.number == 2 and "in 2 of 3 requests" in str(found)
    assert "4111" not in str(found) and "41…11" in str(found)


def test_a_request_over_the_budget_is_found_with_its_instructions_and_tools() -> None:
    def look(what: str) -> str:
        """Look something up in the long list of things that can be looked up."""
        return what

    model = TestModel(call_tools=[])
    bare, dressed = (live(Agent(tools=tools), ["Hello."], model=model) for tools in ([], [look]))
    size, more = bare.requests[0].tokens, dressed.requests[0].tokens
    assert more > size + 20
    dressed.assert_within(budget=more)
    error = failure(lambda: dressed.assert_within(budget=more - 1))
    assert "1 more than the budget" in str(error) and "instructions and tools:" in str(error)
    dressed.assert_in_context("the long list of things")


def test_a_result_without_its_call_is_a_broken_pair() -> None:
    def look(what: str) -> str:
        return f"Nothing about {what}."

    class Prompts(WrapperModel):
        async def request(self, messages: list[ModelMessage], *more: Any) -> ModelResponse:  # pyright: ignore
            return await super().request([message for message in messages if isinstance(message, ModelRequest)], *more)

    class OnlyRequests(AbstractCapability[Any]):
        def get_wrapper_model(self, model: Model) -> Model:
            return Prompts(model)

    talker = Talker([[("look", {"what": "it"})], "Nothing is there."])
    whole = live(Agent(tools=[look]), ["Look."], model=talker.model)
    whole.assert_within(pairs=True)
    assert any(isinstance(part, ToolReturnPart) for message in whole.raw for part in message.parts)
    talker = Talker([[("look", {"what": "it"})], "Nothing is there."])
    broken = live(Agent(tools=[look], capabilities=[OnlyRequests()]), ["Look."], model=talker.model)
    error = failure(lambda: broken.assert_within(pairs=True))
    assert error.request.number == 2 and "whose call is missing" in str(error)
    assert "each call has its result" in str(error)


def test_rewrites_lose_the_cache_and_cost_more() -> None:
    conversation = live(trimming(), matters(9))
    assert [request.number for request in conversation.rewrites()] == [4, 5, 6, 7, 8, 9]
    conversation.assert_within(compiles=6)
    assert failure(lambda: conversation.assert_within(compiles=4)).request.number == 8
    error = failure(lambda: conversation.assert_within(cost_of_everything=0.5))
    assert "6 of 9 requests lose the prompt cache" in str(error)


def test_instructions_that_change_lose_the_cache() -> None:
    hours = iter(range(9))
    agent = Agent(instructions=lambda: f"It is {next(hours)} o'clock.")
    conversation = live(agent, matters(3))
    conversation.assert_within(compiles=2, cost_of_everything=1)
    error = failure(lambda: conversation.assert_within(compiles=0))
    assert error.request.number == 2 and "other instructions or tools" in str(error)
    gone = failure(lambda: conversation.assert_in_context("It is 0 o'clock."))
    assert "last sent: request 1 (turn 1), the instructions or tools" in str(gone)


def test_rewrites_of_the_compiler_are_its_compiles() -> None:
    conversation = live(compiling(recall=0), matters(40))
    compiled = [one.number for one in conversation.requests if one.status == "compiled"]
    assert len(compiled) > 2 and [one.number for one in conversation.rewrites()] == compiled
    conversation.assert_within(budget=900, pairs=True, compiles=len(compiled))


@pytest.mark.parametrize("stream", [False, True])
async def test_streamed_and_asynchronous_runs_are_seen(stream: bool) -> None:
    talker = Talker("I see.")
    conversation = await live_async(trimming(), matters(4), model=talker.model, stream=stream)
    assert [len(request.messages) for request in conversation.requests] == [1, 3, 5, 5]
    assert [request.messages for request in conversation.requests] == [request.messages for request in talker.sent]
    assert len(conversation.raw) == 8
    conversation.assert_in_context("Matter 4")


async def test_a_conversation_goes_on_with_the_history_that_an_application_stores() -> None:
    conversation = await live_async(Agent(), matters(2))
    conversation.history = newest(conversation.history)[:1]
    assert await conversation.say_async("And now?") == "success (no tool calls)"
    assert [len(one.messages) for one in conversation.requests] == [1, 3, 1]


async def test_the_plain_function_in_an_event_loop_names_the_one_to_await() -> None:
    with pytest.raises(RuntimeError, match=r"await live_async\(…\)"):
        live(Agent(), ["Hello."])


def test_texts_in_parameters_of_tools_are_part_of_a_request_and_its_cache() -> None:
    numbers = count()

    def look(what: str) -> str:
        """Look."""
        return what

    async def prepare(context: RunContext[Any], tool: ToolDefinition) -> ToolDefinition:
        what = {"type": "string", "description": f"Number {next(numbers)} of the list 77."}
        return replace(tool, parameters_json_schema={"type": "object", "properties": {"what": what}})

    conversation = live(Agent(tools=[Tool(look, prepare=prepare)]), matters(3))
    conversation.assert_in_context("of the list 77")
    with pytest.raises(AssertionError):
        conversation.assert_within(compiles=0)


def test_a_text_in_the_middle_of_a_very_long_prompt_is_seen() -> None:
    conversation = live(Agent(), ["a " * 175_000 + "my key is 77 " + "b " * 175_000])
    conversation.assert_in_context("my key is 77")
    failure(lambda: conversation.assert_not_in_context("my key is 77"))
