"""Compile rarely, keep bytes stable, never pass the budget: many turns, many tool steps, every option."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from context_compiler import TokenCounter, View
from tests.middleware.chatting import BUDGET, Chat, extends
from tests.support.agents import Notes, Sent, Talker, compiler, ran, run, unstamped
from tests.support.histories import assert_pairs_whole, assistant, long_history, prose, user


def assert_stable(sent: Sequence[Sent], views: Sequence[View]) -> None:
    """Every request goes on where the one before ended, but for the first of a new cycle."""
    for (earlier, later), view in zip(pairwise(sent), views[1:], strict=True):
        assert view.status == "compiled" or extends(earlier, later)


async def test_recalled_text_never_makes_a_view_larger_than_the_raw_history() -> None:
    ours = compiler(budget=3_000)
    rest = "The rest is in the log. " * 8
    answer = [f"{index}: ticket {4700 + index % 7} is Maria's, queue q{index}. {rest}" for index in range(18)]
    agent = Agent(Talker(answer).model, capabilities=[ours])
    history: list[ModelMessage] = []
    for number in range(18):
        prompt = f"What about ticket {4700 + number % 7} of Maria? The queue, the retries, please."
        history = (await agent.run(prompt, message_history=history, conversation_id="desk")).all_messages()
    views = await ours.views()
    recalled = [view for view in views if view.ledger["tokens"].get("recall")]
    assert recalled, "nothing was recalled: the case shows nothing"
    assert all(view.tokens_sent <= view.tokens_raw for view in views)
    assert ours.last_view is not None and ours.last_view.tokens_sent == views[0].tokens_sent


@pytest.mark.parametrize("steps", [0, 1, 4])
async def test_between_two_compiles_a_view_only_grows_at_its_end(steps: int) -> None:
    chat = Chat(steps=steps)
    await chat.turns(30 // (steps + 1))
    assert not chat.errors
    assert {"raw", "compiled", "cycle"} == set(chat.statuses)
    assert_stable(chat.talker.sent, chat.views)
    assert max(sent.tokens for sent in chat.talker.sent) <= BUDGET
    assert chat.statuses.count("compiled") <= len(chat.views) // 4
    for sent in chat.talker.sent:
        assert_pairs_whole(sent.messages)
    assert await chat.ours.transcript((await chat.ours.views())[0].session_id) == chat.messages


async def test_a_compile_cuts_the_view_to_about_half() -> None:
    chat = Chat(steps=1)
    await chat.turns(20)
    after = [view.record.tokens_sent for view in chat.views if view.status == "compiled" and view.record]
    assert after and max(after) <= BUDGET * 0.6


@pytest.mark.parametrize("trigger", [0.5, 1_800])
async def test_a_trigger_cuts_earlier_and_leaves_the_budget_alone(trigger: float | int) -> None:
    chat = Chat(steps=1, trigger=trigger, recall=0)
    await chat.turns(12)
    assert max(sent.tokens for sent in chat.talker.sent) <= 1_900
    assert {view.budget for view in chat.views} == {BUDGET}


async def test_many_tool_steps_in_one_run_stay_within_the_budget() -> None:
    chat = Chat(steps=35, budget=1_200)
    await chat.turn(0)
    await chat.turn(1)
    assert not chat.errors
    assert len(chat.talker.sent) == 72 and chat.notes.asked <= 2
    assert max(sent.tokens for sent in chat.talker.sent) <= 1_200
    assert_stable(chat.talker.sent, chat.views)
    for sent in chat.talker.sent[::10]:
        assert_pairs_whole(sent.messages)


@pytest.mark.parametrize(("budget", "steps"), [(800, 60), (2_000, 70)])
async def test_dozens_of_tool_steps_in_one_run_share_a_cycle(budget: int, steps: int) -> None:
    chat = Chat(steps=steps, budget=budget)
    await chat.turn(0)
    assert not chat.errors and len(chat.talker.sent) == steps + 1 and chat.notes.asked <= 1
    assert max(sent.tokens for sent in chat.talker.sent) <= budget
    assert_stable(chat.talker.sent, chat.views)
    shared = sum(view.status == "cycle" for view in chat.views)
    assert shared > steps // 2


@pytest.mark.parametrize("budget", [1, 40, 120, 260, 500])
async def test_a_tiny_budget_sends_the_smallest_view_and_reports_it(budget: int) -> None:
    chat = Chat(steps=2, budget=budget)
    await chat.turns(4)
    over = [sent.tokens > budget for sent in chat.talker.sent]
    for sent in chat.talker.sent:
        assert_pairs_whole(sent.messages)
        assert sent.messages[-1].parts[-1].part_kind in ("user-prompt", "tool-return")
    if any(over):
        assert {type(error).__name__ for error in chat.errors} == {"BudgetError"}
        assert "floor_over_budget" in chat.statuses


@pytest.mark.parametrize("budget", [900, 1_050, 1_300])
async def test_fixed_tokens_near_the_budget_do_not_cause_a_compile_on_every_request(budget: int) -> None:
    """Instructions that take nearly all of the budget leave little to cut back to."""
    talker, notes, views = Talker(lambda messages, info: prose(len(talker.sent), 30)), Notes(), list[View]()
    ours = compiler(notes, budget=budget, on_view=views.append)
    agent = Agent(talker.model, capabilities=[ours], instructions=prose(7, 500))
    messages: list[ModelMessage] = []
    for number in range(15):
        messages = (await run(agent, f"Question {number}: {prose(number, 20)}", message_history=messages)).messages
    fixed = views[0].ledger["tokens"]["instructions and schemas"]
    assert 600 < fixed < budget
    assert notes.asked <= 3
    assert all(
        sent.tokens <= budget for sent, view in zip(talker.sent, views, strict=True) if "floor" not in view.status
    )


async def test_beside_instructions_of_three_quarters_of_the_budget_turns_of_a_quarter_of_the_rest_go_on() -> None:
    budget, views = 16_000, list[View]()
    talker = Talker(lambda messages, info: prose(len(talker.sent), 420))
    ours = compiler(None, budget=budget, on_view=views.append)
    agent, messages = Agent(talker.model, capabilities=[ours], instructions=prose(7, 7_400)), list[ModelMessage]()
    for number in range(16):
        messages = (await run(agent, f"Question {number}: {prose(number, 210)}", message_history=messages)).messages
    sizes = [view.record.tokens_raw for view in views if view.record]
    fixed, turn = views[0].ledger["tokens"]["instructions and schemas"], sizes[9] - sizes[8]
    assert 0.7 < fixed / budget < 0.8 and 0.22 < turn / (budget - fixed) < 0.28
    statuses = [view.status for view in views]
    assert all(status != other or status != "compiled" for status, other in pairwise(statuses)), statuses
    assert "compiled" in statuses and all(sent.tokens <= budget for sent in talker.sent)


COUNT = TokenCounter().text


def look(path: str) -> str:
    """Read a file."""
    return prose(len(path), 90)


@pytest.mark.parametrize("share", [0.25, 0.7])
@pytest.mark.parametrize("room", [40, 80, 120, 240])
async def test_a_prompt_stays_whole_in_the_room_beside_instructions_and_schemas(room: int, share: float) -> None:
    """A quarter of the room is a prompt's in every request; three quarters where nothing else of its turn needs any."""
    fixed, words = 0, prose(3, 300).split()
    prompt = next(text for size in range(300, 0, -1) if COUNT(text := " ".join(words[:size])) + 4 <= room * share)
    for budget in (32_000, room):
        talker, views = Talker([[("look", {"path": "a"})], "I see."]), list[View]()
        ours = compiler(None, budget=fixed + budget, on_view=views.append)
        agent = Agent(talker.model, capabilities=[ours], tools=[look], instructions=prose(7, 400))
        await run(agent, prompt, message_history=long_history(4))
        fixed = views[0].ledger["tokens"]["instructions and schemas"]
    first, second = talker.sent
    assert prompt in first.text and (prompt in second.text or share > 0.25)
    assert all(view.tokens_sent <= fixed + room for view in views)


async def test_a_prompt_cut_for_many_calls_is_whole_again_without_them() -> None:
    prompt, fixed = "Please mend ticket 4711 of Maria, and the queue.", 0
    for budget in (32_000, 64):
        steps = [[("look", {"path": path}) for path in "abc"], [("look", {"path": "d"})], "I see."]
        talker, views = Talker(steps), list[View]()
        ours = compiler(None, budget=fixed + budget, on_view=views.append)
        agent = Agent(talker.model, capabilities=[ours], tools=[look], instructions=prose(7, 400))
        await run(agent, prompt, message_history=long_history(4))
        fixed = views[0].ledger["tokens"]["instructions and schemas"]
    assert [prompt in sent.text for sent in talker.sent] == [True, False, True]
    assert all(view.tokens_sent <= fixed + 64 for view in views)


async def test_a_view_is_compiled_once_for_all_steps_of_a_turn() -> None:
    chat = Chat(steps=3)
    await chat.turn(0, long_history(20))
    assert chat.notes.asked == 1
    assert chat.statuses == ["compiled", "cycle", "cycle", "cycle"]
    assert all("find out why the build fails" in sent.text for sent in chat.talker.sent)


async def test_a_restart_compiles_nothing_again(tmp_path: Path) -> None:
    file = tmp_path / "record.db"
    first = Chat(store=file)
    await first.turn(0, long_history(20))
    again = Chat(store=file)
    await again.turn(0, long_history(20))
    assert (first.notes.asked, again.notes.asked) == (1, 0)
    assert unstamped(again.talker.sent[0].messages) == unstamped(first.talker.sent[0].messages)
    third = Chat(store=file)
    await third.turn(1, ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(first.messages)))
    assert third.notes.asked == 0 and third.statuses[0] == "cycle"
    assert extends(first.talker.last, third.talker.sent[0])


async def test_concurrent_runs_of_one_conversation_share_one_compile(tmp_path: Path) -> None:
    notes = Notes(seconds=0.05)
    ours = compiler(notes, budget=BUDGET, store=tmp_path / "record.db")
    talkers = [Talker("done") for _ in range(5)]
    agents = [Agent(talker.model, capabilities=[ours]) for talker in talkers]
    history = long_history(20)
    done = await asyncio.gather(
        *(run(agent, f"question {number}", message_history=history) for number, agent in enumerate(agents))
    )
    assert notes.asked == 1
    assert [result.output for result in done] == ["done"] * 5
    assert all("find out why the build fails" in talker.last.text for talker in talkers)
    assert [f"question {number}" in talker.last.text for number, talker in enumerate(talkers)] == [True] * 5
    assert len(await ours.views()) == 5


async def test_every_turn_compiles_at_the_first_request_of_a_turn_and_only_there() -> None:
    chat = Chat(steps=2, every_turn=True, budget=30_000, recent_turns=1, recall=0)
    await chat.turns(5)
    assert chat.statuses == ["raw"] * 6 + ["compiled", "cycle", "cycle"] * 3
    assert chat.notes.asked == 3
    prompts = [getattr(part, "content", None) for message in chat.talker.last.messages for part in message.parts]
    kept = [text.partition(":")[0] for text in prompts if isinstance(text, str) and text.startswith("Question")]
    assert kept == ["Question 3", "Question 4"]


async def test_an_edited_prompt_and_a_fork_continue_the_same_cycle() -> None:
    chat = Chat()
    await chat.turn(0, long_history(20))
    stored = list(chat.messages)
    await chat.turn(1, stored)
    await chat.turn(2, stored)
    assert chat.statuses[2::2] == ["cycle", "cycle"] and chat.notes.asked == 1
    assert extends(chat.talker.sent[1], chat.talker.sent[2]) and extends(chat.talker.sent[1], chat.talker.sent[4])
    other = [*long_history(20)[:-1], user("quite another question")]
    await chat.turn(3, other)
    assert chat.notes.asked == 1, "the part before the edit was compiled already"


async def test_a_history_without_ids_rebuilt_for_each_run_finds_its_cycle() -> None:
    chat = Chat(steps=0)
    texts = [(f"Question {turn}: {prose(turn, 40)}", prose(turn + 500, 40)) for turn in range(60)]
    for turn in range(25, 40):
        history = [message for asked, said in texts[:turn] for message in (user(asked), assistant(said))]
        await chat.turn(turn, history)
    assert "cycle" in chat.statuses and chat.statuses.count("compiled") < 6
    for (earlier, later), view in zip(pairwise(chat.talker.sent), chat.views[1:], strict=True):
        before, after = unstamped(earlier.messages)[:1], unstamped(later.messages)[:1]
        assert view.status == "compiled" or before == after
    assert chat.notes.asked <= chat.statuses.count("compiled")


async def test_a_history_that_was_shortened_is_read_as_it_is() -> None:
    chat = Chat(steps=0)
    long = long_history(20)
    await chat.turn(0, long)
    await chat.turn(1, long[:13])
    assert chat.statuses == ["compiled", "raw"]
    assert len(chat.talker.last.messages) >= 13


async def test_a_turn_that_is_resumed_is_still_the_same_turn() -> None:
    def outside(path: str) -> str:
        raise CallDeferred

    talker, notes, views = Talker([[("outside", {"path": "far"})], "done", "bye"]), Notes(), list[View]()
    ours = compiler(notes, budget=30_000, every_turn=True, on_view=views.append)
    kinds: Any = [str, DeferredToolRequests]
    agent: Agent[Any, Any] = Agent(talker.model, tools=[outside], output_type=kinds, capabilities=[ours])
    first = ran(await agent.run("ask outside", message_history=long_history(8)[:-1]))
    assert isinstance(first.output, DeferredToolRequests)
    seen = DeferredToolResults(calls={first.output.calls[0].tool_call_id: "seen"})
    second = ran(await agent.run(message_history=first.messages, deferred_tool_results=seen))
    assert [view.status for view in views] == ["compiled", "cycle"] and notes.asked == 1
    assert_pairs_whole(talker.last.messages)
    assert "seen" in talker.last.text and extends(talker.sent[0], talker.sent[1])
    await run(agent, "thanks", message_history=second.messages)
    assert views[-1].status == "compiled" and notes.asked == 2


@pytest.mark.slow
async def test_a_cycle_is_continued_however_many_messages_follow_it() -> None:
    def turns(start: int, count: int) -> list[ModelMessage]:
        return [part for number in range(start, start + count) for part in (user(f"n{number}"), assistant("ok"))]

    views = list[View]()
    ours = compiler(budget=60_000, recall=0, on_view=views.append)
    agent = Agent(Talker("fine").model, capabilities=[ours])
    done = await agent.run("go on", message_history=turns(0, 7_000), conversation_id="talk")
    assert views[-1].status == "compiled"
    later = [*done.all_messages(), *turns(7_000, 750)]
    await agent.run("go on", message_history=later, conversation_id="talk")
    assert views[-1].status == "cycle"
