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
from pydantic_ai.usage import UsageLimits

from context_compiler import ContextCompiler, View
from tests.support.agents import Notes, Sent, Talker, compiler, ran, run, unstamped
from tests.support.histories import assert_pairs_whole, assistant, long_history, prose, user

BUDGET = 3_000
NO_LIMIT = UsageLimits(request_limit=None)


def look(path: str) -> str:
    return prose(len(path) * 31 + sum(map(ord, path)), 60)


class Chat:
    """A conversation of many turns on one agent, and everything that was sent and seen in it."""

    def __init__(self, *, steps: int = 1, words: int = 40, notes: Notes | None = None, **wanted: Any) -> None:
        self.steps, self.words = steps, words
        self.talker, self.notes = Talker(self._answer), notes or Notes()
        self.views: list[View] = []
        self.errors: list[Exception] = []
        wanted = {
            "budget": BUDGET,
            "trigger": 1.0,
            "on_view": self.views.append,
            "on_error": self.errors.append,
            **wanted,
        }
        self.ours = compiler(self.notes, **wanted)
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours], instructions="Be brief.")
        self.messages: list[ModelMessage] = []
        self._left = 0

    def _answer(self, messages: Any, info: Any) -> Any:
        self._left -= 1
        number = len(self.talker.sent)
        if self._left >= 0:
            return [("look", {"path": f"src/file_{number}.py"})]
        return prose(number, self.words)

    async def turn(self, number: int, history: list[ModelMessage] | None = None, **given: Any) -> None:
        self._left = self.steps
        prompt = f"Question {number}: {prose(number + 1_000, self.words)}"
        history = self.messages if history is None else history
        self.messages = (
            await run(self.agent, prompt, message_history=history, usage_limits=NO_LIMIT, **given)
        ).messages

    async def turns(self, count: int) -> None:
        for number in range(count):
            asked = self.notes.asked
            await self.turn(number)
            assert self.notes.asked <= asked + 1, f"turn {number} asked for notes more than once"

    @property
    def statuses(self) -> list[str]:
        return [view.status for view in self.views]


def extends(earlier: Sent, later: Sent) -> bool:
    """Whether a provider's prompt cache still holds all of the earlier request."""
    before, after = unstamped(earlier.messages), unstamped(later.messages)
    return after[: len(before)] == before and later.instructions == earlier.instructions


def assert_stable(sent: Sequence[Sent], views: Sequence[View]) -> None:
    """Every request goes on where the one before ended, but for the first of a new cycle."""
    for (earlier, later), view in zip(pairwise(sent), views[1:], strict=True):
        assert view.status == "compiled" or extends(earlier, later)


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


async def test_an_advance_cuts_back_to_about_half() -> None:
    chat = Chat(steps=1)
    await chat.turns(20)
    after = [view.record.tokens_sent for view in chat.views if view.status == "compiled" and view.record]
    assert after and max(after) <= BUDGET * 0.6


@pytest.mark.parametrize("trigger", [0.5, 1_800])
async def test_a_trigger_cuts_earlier_and_leaves_the_budget_alone(trigger: float | int) -> None:
    chat = Chat(steps=1, trigger=trigger)
    await chat.turns(12)
    assert max(sent.tokens for sent in chat.talker.sent) <= 1_900
    assert {view.budget for view in chat.views} == {BUDGET}


async def test_many_tool_steps_in_one_run_stay_within_the_budget() -> None:
    chat = Chat(steps=70, budget=1_200)
    await chat.turn(0)
    await chat.turn(1)
    assert not chat.errors
    assert len(chat.talker.sent) == 142 and chat.notes.asked <= 2
    assert max(sent.tokens for sent in chat.talker.sent) <= 1_200
    assert_stable(chat.talker.sent, chat.views)
    for sent in chat.talker.sent[::10]:
        assert_pairs_whole(sent.messages)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [800, 4_000, 16_000])
async def test_four_hundred_tool_steps_in_one_run(budget: int) -> None:
    chat = Chat(steps=400, budget=budget)
    await chat.turn(0)
    assert not chat.errors and len(chat.talker.sent) == 401 and chat.notes.asked <= 1
    assert max(sent.tokens for sent in chat.talker.sent) <= budget
    assert_stable(chat.talker.sent, chat.views)
    shared = sum(view.status == "cycle" for view in chat.views)
    assert shared > 200


@pytest.mark.parametrize("budget", [1, 40, 120, 260, 500])
async def test_a_tiny_budget_sends_the_least_and_says_so(budget: int) -> None:
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
async def test_a_fixed_part_near_the_budget_leaves_no_compile_on_every_request(budget: int) -> None:
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


async def test_a_view_is_compiled_once_for_all_steps_of_a_turn() -> None:
    chat = Chat(steps=3)
    await chat.turn(0, long_history(20))
    assert chat.notes.asked == 1
    assert chat.statuses == ["compiled", "cycle", "cycle", "cycle"]
    assert all("find out why the build fails" in sent.text for sent in chat.talker.sent)


async def test_nothing_is_compiled_again_after_a_restart(tmp_path: Path) -> None:
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


async def test_runs_at_once_of_one_conversation_share_one_compile(tmp_path: Path) -> None:
    notes = Notes(seconds=0.05)
    ours = compiler(notes, budget=BUDGET, store=tmp_path / "record.db")
    talkers = [Talker("done") for _ in range(5)]
    agents = [Agent(talker.model, capabilities=[ours]) for talker in talkers]
    history = long_history(20)
    done = await asyncio.gather(
        *(run(agent, f"question {number}", message_history=history) for number, agent in enumerate(agents))
    )
    assert notes.asked == 1
    assert [one.output for one in done] == ["done"] * 5
    assert all("find out why the build fails" in talker.last.text for talker in talkers)
    assert [f"question {number}" in talker.last.text for number, talker in enumerate(talkers)] == [True] * 5
    assert len(await ours.views()) == 5


async def test_every_turn_compiles_at_the_first_request_of_a_turn_and_only_there() -> None:
    chat = Chat(steps=2, every_turn=True, budget=30_000, recent_turns=1)
    await chat.turns(5)
    assert chat.statuses == ["raw"] * 6 + ["compiled", "cycle", "cycle"] * 3
    assert chat.notes.asked == 3
    assert "Question 2" not in chat.talker.last.text and "Question 3" in chat.talker.last.text


FIDELITIES = {"truncate": 0, "compact": 500, "summary:low": 600, "summary:medium": 1_500, "summary:high": 3_000}


@pytest.mark.parametrize("fidelity", FIDELITIES)
async def test_a_fidelity_caps_what_stands_for_the_past(fidelity: str) -> None:
    chat = Chat(fidelity=fidelity, budget=14_000, notes=Notes(prose(3, 4_000)))
    await chat.turn(0, long_history(120, words=30))
    tokens = chat.views[0].ledger["tokens"]
    cap = FIDELITIES[fidelity]
    assert tokens["summary"] + tokens["quotes"] <= cap
    assert bool(chat.notes.asked) == bool(cap)
    assert tokens["summary"] > cap * 0.7 if cap else not chat.views[0].summary
    assert chat.talker.sent[0].tokens <= 14_000


async def test_full_sends_everything_until_the_budget_is_passed() -> None:
    chat = Chat(fidelity="full", trigger=500, budget=8_000)
    await chat.turn(0, long_history(15))
    await chat.turn(1, long_history(60))
    assert chat.statuses == ["raw", "raw", "compiled", "cycle"]
    assert chat.talker.sent[2].tokens <= 8_000


async def test_an_edited_prompt_and_a_fork_go_on_from_the_same_cycle() -> None:
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


async def test_a_history_without_ids_that_is_made_anew_each_time_finds_its_cycle() -> None:
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


@pytest.mark.parametrize("recent", [0, 1, 3, "all"])
async def test_recent_turns_stay_as_they_are_if_they_fit(recent: Any) -> None:
    chat = Chat(steps=0, recent_turns=recent, budget=30_000, every_turn=recent != "all")
    await chat.turn(99, long_history(60, tools_per_turn=1))
    kept = [number for number in range(60) if f'"Answer {number}: ' in chat.talker.last.text]
    assert kept == (list(range(60)) if recent == "all" else list(range(61 - recent, 60)))
    assert chat.statuses == ["raw" if recent == "all" else "compiled"]


@pytest.mark.parametrize("way", ["paired", "drop", "render"])
async def test_tool_exchanges_of_kept_turns_stand_as_was_asked(way: str) -> None:
    chat = Chat(steps=1, tool_history=way, budget=30_000, every_turn=True)
    await chat.turn(99, long_history(60)[:-1])
    assert_pairs_whole(chat.talker.last.messages)
    parts = [part for message in chat.talker.last.messages for part in message.parts]
    calls = [part for part in parts if part.part_kind == "tool-call"]
    assert len(calls) == (7 if way == "paired" else 1), "the active turn keeps its own"
    assert any("[tool]" in str(part) for part in parts) == (way == "render")


TEMPLATE = """---
recent_turns: 1
---
Write notes, {word}.

{{{{ recent_turns }}}}
"""


def vault(folder: Path, text: str) -> Path:
    file = folder / "AssistantMD" / "ContextTemplates" / "mine.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


async def test_a_template_that_is_edited_between_two_runs_counts_from_the_next_compile_on(tmp_path: Path) -> None:
    file = vault(tmp_path, TEMPLATE.format(word="in short"))
    chat = Chat(steps=0, template="mine", vault=tmp_path)
    await chat.turn(0, long_history(20))
    file.write_text(TEMPLATE.format(word="at length"))
    await chat.turn(1, long_history(60))
    assert ["in short" in prompt for prompt in chat.notes.prompts] == [True, False]
    assert "at length" in chat.notes.prompts[1]
    hashes = [record.compile.template_hash for record in await chat.ours.views() if record.compile]
    assert len(set(hashes)) == 2 and not chat.errors


@pytest.mark.parametrize("harm", ["deleted", "broken"])
async def test_a_template_that_is_gone_or_broken_costs_no_run(tmp_path: Path, harm: str) -> None:
    file = vault(tmp_path, TEMPLATE.format(word="in short"))
    chat = Chat(steps=1, template="mine", vault=tmp_path)
    await chat.turn(0, long_history(20))
    file.unlink() if harm == "deleted" else file.write_text("{% if %} nothing")
    await chat.turn(1)
    assert {type(error).__name__ for error in chat.errors} == {"TemplateError"}
    assert chat.statuses[2:] == ["fallback", "fallback"]
    assert max(sent.tokens for sent in chat.talker.sent) <= BUDGET
    assert extends(chat.talker.sent[2], chat.talker.sent[3])
    file.write_text(TEMPLATE.format(word="in short"))
    await chat.turn(2)
    assert chat.statuses[-1] in ("compiled", "cycle")


async def test_the_shipped_default_needs_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    talker = Talker("done")
    agent = Agent(talker.model, capabilities=[ContextCompiler(budget=4_000)])
    await run(agent, "and now?", message_history=long_history(30))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["system"]
    assert (tmp_path / "system" / "ContextTemplates" / "chat_compiler.md").is_file()
    assert (tmp_path / "system" / "context.db").is_file()
    assert talker.last.tokens <= 4_000
