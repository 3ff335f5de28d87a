"""Common ways of using a host keep their few compiles, and a fact from the beginning is found when asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.models.wrapper import WrapperModel

from context_compiler import ContextCompiler, View
from context_compiler.testing import LiveConversation
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.builders import prose

BUDGET, TURNS = 4_000, 70
FACT = "By the way, the staging database is called heron."
ASK = "What is the staging database called?"


Carry = Callable[[list[ModelMessage]], list[ModelMessage]]
"""What an application makes of a stored history before it hands it to the next run."""


class Told(BaseModel):
    text: str


class Life(LiveConversation):
    """A conversation of many turns in which a fact is told early and asked for at the end."""

    def __init__(self, budget: int = BUDGET, **wanted: Any) -> None:
        self.cut = 0
        self.writer, self.talker, self.seen = Notes("All went on as planned."), Talker("answer " * 60), 0
        self.views: list[View] = []
        self.ours: ContextCompiler = compiler(self.writer, budget=budget, on_view=self.views.append, **wanted)
        super().__init__(agent=Agent(self.talker.model, capabilities=[self.ours]), model=self.talker.model)

    async def live(self, carry: Carry, **given: Any) -> None:
        for number in range(TURNS):
            await self.turn(matter(number), carry, **given)
        await self.ask(carry, **given)

    async def ask(self, carry: Carry, **given: Any) -> None:
        await self.turn(ASK, carry, **given)
        self.last.assert_in_context("heron")
        self.assert_within(budget=BUDGET, pairs=True)

    async def turn(self, prompt: Any, carry: Carry, **given: Any) -> None:
        self.history = carry(self.history)
        await self.say_async(prompt, conversation_id="c", **{"model": self.talker.model, **given})

    @property
    def compiles(self) -> int:
        """Requests that began a new cycle."""
        return [request.status for request in self.requests].count("compiled")

    def assert_few_compiles(self, plain: Life) -> None:
        assert plain.compiles > 3
        assert self.compiles <= plain.compiles + 2 and self.writer.asked <= plain.writer.asked + 2


def matter(number: int) -> str:
    """The prompt of a turn; the fourth has the fact."""
    return f"{FACT + ' ' if number == 3 else ''}Matter {number}: {prose(number, 40)}"


class Windowed(WrapperModel):
    """A model whose context window is known."""

    def __init__(self, wrapped: Any, window: int) -> None:
        super().__init__(wrapped)
        self._window = window

    @property
    def context_window(self) -> int:
        return self._window


class Named(WrapperModel):
    """A model under another name."""

    def __init__(self, wrapped: Any, name: str) -> None:
        super().__init__(wrapped)
        self._name = name

    @property
    def model_name(self) -> str:
        return self._name


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x01\x00\x00\x00\x01\x00\x08\x02\x00\x00\x00"
"""The beginning of a picture of 256 × 256."""


def whole(history: list[ModelMessage]) -> list[ModelMessage]:
    return history


def window(history: list[ModelMessage]) -> list[ModelMessage]:
    return history[-21:]


def rebuilt(history: list[ModelMessage]) -> list[ModelMessage]:
    """As a front end would give it back: new objects, without times and ids."""
    data = ModelMessagesTypeAdapter.dump_python(history, mode="json")
    for message in data:
        for key in ("timestamp", "run_id", "conversation_id", "provider_response_id", "metadata"):
            message.pop(key, None)
        for part in message["parts"]:
            part.pop("timestamp", None)
    return ModelMessagesTypeAdapter.validate_python(data)


def from_front_end(history: list[ModelMessage]) -> list[ModelMessage]:
    """As a front end gives it back that keeps roles, texts and calls: new messages of today."""
    fresh: list[ModelMessage] = []
    for message in history:
        parts: list[Any] = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                parts.append(ToolCallPart(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id))
            elif isinstance(part, ToolReturnPart):
                parts.append(ToolReturnPart(part.tool_name, part.content, tool_call_id=part.tool_call_id))
            elif isinstance(part, UserPromptPart):
                parts.append(UserPromptPart(part.content))
            elif isinstance(part, TextPart):
                parts.append(TextPart(part.content))
        fresh.append(ModelRequest(parts=parts) if isinstance(message, ModelRequest) else ModelResponse(parts=parts))
    return fresh


_plain: dict[str, Life] = {}


@pytest.fixture
async def plain() -> Life:
    """The plain session, which is lived once."""
    if "talk" not in _plain:
        await Life.live(_plain.setdefault("talk", Life()), whole)
    return _plain["talk"]


@pytest.fixture
async def plain_with_tools() -> Life:
    """The plain session with a tool that is called in every turn, which is lived once."""
    if "tools" not in _plain:
        await Life.live(_plain.setdefault("tools", with_tool_calls(Life())), whole)
    return _plain["tools"]


async def test_a_dynamic_system_prompt_does_not_start_another_conversation(plain: Life) -> None:
    life = Life()

    @life.agent.system_prompt(dynamic=True)
    def now(ctx: RunContext[Any]) -> str:
        life.seen += 1
        return f"You are kind. The time is {life.seen}."

    await life.live(whole)
    life.assert_few_compiles(plain)
    assert f"The time is {life.seen}." in life.talker.last.text, "it is sent as it is now"


async def test_a_window_of_a_known_conversation_is_joined_with_the_record(plain: Life, tmp_path: Path) -> None:
    life = Life(store=tmp_path / "record.db")
    await life.live(window)
    life.assert_few_compiles(plain)
    record = (await life.ours.views("c"))[0]
    assert "joined with" in record.status
    assert len(await life.ours.transcript("c")) == 2 * (TURNS + 1)
    again = Life(store=tmp_path / "record.db")
    again.history = life.history
    await again.turn("And what did I say it was called, the staging database?", window)
    assert again.writer.asked == 0 and FACT in again.talker.last.text, "another process knows it too"


def peek(path: str) -> str:
    return f"{path} is empty"


class Trimming(AbstractCapability[Any]):
    """Sends the last messages only, and leaves the history of the run as it is."""

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        return replace(request_context, messages=request_context.messages[-3:])


@pytest.mark.parametrize("keeps", [ProcessHistory(lambda messages: messages[-3:]), Trimming()])
async def test_a_window_that_moves_within_a_run_loses_no_message_and_repeats_none(
    keeps: AbstractCapability[Any], tmp_path: Path
) -> None:
    views, history = list[View](), list[ModelMessage]()
    for number in range(4):
        ours = compiler(None, store=tmp_path / "record.db", on_view=views.append)
        talker = Talker([[("peek", {"path": "a"})], [("peek", {"path": "b"})], f"answer {number}"])
        agent = Agent(talker.model, tools=[peek], capabilities=[keeps, ours])
        history = (await run(agent, f"question {number}", message_history=history, conversation_id="c")).messages
    text = str(await ours.transcript("c"))
    assert all(text.count(f"{word} {number}") == 1 for word in ("question", "answer") for number in range(4))
    assert len(await ours.transcript("c")) == 4 * 6 and {view.status for view in views} == {"raw"}


@pytest.mark.parametrize("carried", [True, False])
async def test_a_window_without_a_conversation_name_is_joined_by_the_id_that_its_messages_carry(
    carried: bool, plain: Life, tmp_path: Path
) -> None:
    life = Life(store=tmp_path / "record.db")
    for number in range(TURNS):
        given = window(life.history) if carried else rebuilt(window(life.history))
        life.history = (await run(life.agent, matter(number), message_history=given)).messages
    await run(life.agent, ASK, message_history=life.history if carried else rebuilt(life.history))
    assert ("heron" in life.talker.last.text) is carried
    if carried:
        life.assert_few_compiles(plain)


@pytest.mark.parametrize("budget", [2_000, 6_000])
async def test_a_prompt_larger_than_the_budget_leaves_room_for_the_past(budget: int) -> None:
    life = Life()
    for number in range(20):
        await life.turn(f"{FACT if number == 3 else ''} Matter {number}: {prose(number, 40)}", whole)
    talker = Talker("Found.")
    agent = Agent(talker.model, capabilities=[compiler(budget=budget)])
    listing = "\n".join(f"./src/part_{number}/file_{number}.py" for number in range(3_000))
    await run(agent, f"{ASK} Here is the listing:\n{listing}", message_history=life.history)
    assert "heron" in talker.last.text and "file_2999" in talker.last.text
    assert 0.75 * budget <= talker.last.tokens <= budget


async def test_histories_that_a_front_end_rebuilds_keep_their_cycle(plain: Life) -> None:
    life = Life()
    await life.live(rebuilt)
    life.assert_few_compiles(plain)


async def test_structured_answers_do_not_count_as_tool_work(plain: Life) -> None:
    life = typed()
    await life.live(whole)
    life.assert_few_compiles(plain)


@pytest.mark.parametrize("wanted", [{}, {"background": True}])
async def test_structured_answers_keep_their_cycle_where_all_turns_before_are_left_out(wanted: dict[str, Any]) -> None:
    plain, life = Life(2_400, **wanted), typed(2_400, **wanted)
    for number in range(40):
        for one in (plain, life):
            await one.turn(matter(number), whole)
    life.assert_few_compiles(plain)


def typed(*given: Any, **wanted: Any) -> Life:
    """A conversation whose answers are objects."""
    life = Life(*given, **wanted)
    life.talker = Talker(lambda messages, info: [("final_result", {"text": "answer " * 60})])
    life.agent = Agent(life.talker.model, capabilities=[life.ours], output_type=Told)
    return life


async def test_a_picture_alone_is_not_a_question_and_fails_no_run() -> None:
    life = Life()
    for number in range(30):
        await life.turn(f"Matter {number}: {prose(number, 40)}", whole)
    await life.turn([BinaryContent(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")], whole)
    assert life.talker.last.text.count("BEGIN RECALLED") == 0


async def test_two_agents_in_turn_on_one_history(plain: Life) -> None:
    life = Life()
    other = Agent(life.talker.model, capabilities=[life.ours], instructions="Be brief.")
    agents = [life.agent, other]
    for number in range(TURNS):
        life.agent = agents[number % 2]
        await life.turn(matter(number), whole)
    await life.ask(whole)
    life.assert_few_compiles(plain)


@pytest.mark.parametrize("cached", [True, False])
async def test_the_notes_end_with_a_cache_point_if_the_host_sets_them(cached: bool) -> None:
    life = Life()
    settings: Any = {"anthropic_cache_messages": cached}
    for number in range(30):
        await life.turn(f"Matter {number}: {prose(number, 40)}", whole, model_settings=settings)
    points = [message for message in life.talker.last.messages if "CachePoint" in str(message)]
    assert len(points) == cached
    assert not cached or "BEGIN QUOTED" in str(points[0])


async def test_a_fallback_with_a_small_window_has_its_own_cycles() -> None:
    """It compiles as often as it does alone, and the large model still sees everything."""

    async def lived(windows: list[int]) -> tuple[int, list[str]]:
        views: list[View] = []
        notes, talker = Notes("All went on as planned."), Talker("answer " * 60)
        ours = compiler(notes, budget=None, on_view=views.append)
        models = [Windowed(talker.model, window) for window in windows]
        agent, history = Agent(models[0], capabilities=[ours]), list[ModelMessage]()
        for number in range(40):
            model = models[number % len(models)]
            ran = await run(
                agent,
                f"Matter {number}: {prose(number, 40)}",
                message_history=history,
                model=model,
                conversation_id="c",
            )
            history = ran.messages
        small = [view.status for number, view in enumerate(views) if windows[number % len(windows)] == 5_000]
        assert {view.status for number, view in enumerate(views) if windows[number % len(windows)] > 5_000} <= {"raw"}
        return notes.asked, small

    asked, both = await lived([100_000, 5_000])
    alone, statuses = await lived([5_000])
    assert asked <= alone and both.count("compiled") <= statuses.count("compiled")


async def test_a_prompt_that_is_regenerated_keeps_the_cycle(plain: Life) -> None:
    life = Life()
    for number in range(TURNS):
        before = life.history
        await life.turn(matter(number), whole)
        if number % 5 == 4:
            life.history = before
            await life.turn(f"Matter {number}, said otherwise: {prose(number + 500, 40)}", whole)
    await life.ask(whole)
    life.assert_few_compiles(plain)


async def test_a_turn_that_is_edited_later_takes_the_conversation_back_to_it(plain: Life) -> None:
    """Every tenth turn the user goes back three turns, words that prompt differently, and goes on from there."""
    life, stored = Life(), list[list[ModelMessage]]()
    number = 0
    while number < TURNS:
        del stored[number:]
        stored.append(life.history)
        await life.turn(matter(number), whole)
        number += 1
        if number % 10 == 0:
            life.history = stored[number - 3]
            await life.turn(f"Matter {number - 3}, in other words: {prose(number + 700, 40)}", whole)
            stored[number - 2 :] = []
            for again in range(number - 2, number):
                stored.append(life.history)
                await life.turn(matter(again), whole)
    await life.ask(whole)
    life.assert_few_compiles(plain)


@pytest.mark.parametrize(("where", "tools"), [("before", False), ("after", True)])
async def test_text_added_to_a_prompt_and_removed_from_the_history_keeps_the_conversation(
    where: str, tools: bool
) -> None:
    """As applications do that retrieve documents for each prompt and store what the user typed."""

    def stripped(history: list[ModelMessage]) -> list[ModelMessage]:
        return [replace(one, parts=[_as_typed(part) for part in one.parts]) for one in history]  # pyright: ignore

    async def lived(documents: int) -> Life:
        life = with_tool_calls(Life()) if tools else Life()
        for number, typed in enumerate([*map(matter, range(TURNS)), ASK]):
            added = f"<documents>\nDocument {number}: {prose(900 + number, documents)}\n</documents>"
            await life.turn("\n\n".join([added, typed] if where == "before" else [typed, added]), stripped)
            assert life.talker.last.text.count("<documents>") == 1 and f"Document {number}" in life.talker.last.text
        life.last.assert_in_context("heron")
        life.assert_within(budget=BUDGET, pairs=True)
        return life

    plain = await lived(0)
    (await lived(200)).assert_few_compiles(plain)


def with_tool_calls(life: Life) -> Life:
    """The same with a tool that is called in every turn."""

    def look(what: str) -> str:
        return f"Nothing about {what}."

    def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
        asked = isinstance(messages[-1].parts[-1], UserPromptPart)
        return [("look", {"what": f"matter {len(messages)}"})] if asked else "answer " * 40

    life.talker = Talker(answer)
    life.agent = Agent(life.talker.model, tools=[look], capabilities=[life.ours])
    return life


def _as_typed(part: Any) -> Any:
    if not isinstance(part, UserPromptPart):
        return part
    assert isinstance(part.content, str)
    return replace(part, content=re.sub(r"\s*<documents>.*?</documents>\s*", "", part.content, flags=re.DOTALL))


@pytest.mark.parametrize("carry", [rebuilt, from_front_end])
async def test_histories_with_tool_calls_that_a_front_end_rebuilds_keep_their_cycle(
    carry: Carry, plain_with_tools: Life
) -> None:
    life = with_tool_calls(Life())
    await life.live(carry)
    life.assert_few_compiles(plain_with_tools)


async def test_histories_of_roles_and_texts_keep_their_cycle(plain: Life) -> None:
    life = Life()
    await life.live(from_front_end)
    life.assert_few_compiles(plain)


@pytest.mark.parametrize("every", [1, 10])
async def test_switching_the_model_keeps_the_cycle(plain: Life, every: int) -> None:
    life = Life()
    models = [Named(life.talker.model, name) for name in ("swift", "deep", "cheap")]
    for number in range(TURNS):
        await life.turn(matter(number), whole, model=models[number // every % 3])
    await life.ask(whole, model=models[0])
    life.assert_few_compiles(plain)


async def test_pictures_in_prompts_cause_no_more_compiles_than_texts_of_their_size() -> None:
    picture = BinaryContent(data=PNG, media_type="image/png")
    text = " ".join(["picture"] * 1_120)
    lives = [Life(), Life()]
    for life, added in zip(lives, (text, picture), strict=True):
        for number in range(TURNS):
            await life.turn([matter(number), added] if number % 10 == 5 else matter(number), whole)
        await life.ask(whole)
    lives[1].assert_few_compiles(lives[0])


async def test_a_picture_with_a_question_finds_the_fact(plain: Life) -> None:
    life = Life()
    for number in range(TURNS):
        await life.turn(matter(number), whole)
    await life.turn([ASK, BinaryContent(data=PNG, media_type="image/png")], whole)
    life.last.assert_in_context("heron")
    life.assert_within(budget=BUDGET, pairs=True)


class Deferring(Life):
    """A conversation in which the prompt "Order it." calls a deferred tool, whose result comes with the next prompt."""

    def __init__(self, budget: int, **wanted: Any) -> None:
        def order() -> str:
            raise CallDeferred

        def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
            told = messages[-1].parts[-1]
            ordered = isinstance(told, UserPromptPart) and told.content == "Order it."
            return [("order", {})] if ordered else "answer " * 60

        super().__init__(budget, **wanted)
        self.talker, kinds = Talker(answer), [str, DeferredToolRequests]
        self.agent = Agent[Any, Any](self.talker.model, tools=[order], output_type=kinds, capabilities=[self.ours])

    async def order(self, prompt: str, carry: Carry) -> None:
        deferred = await run(self.agent, "Order it.", message_history=carry(self.history), conversation_id="c")
        results = DeferredToolResults(calls={deferred.output.calls[0].tool_call_id: "It is on its way."})
        self.history = deferred.messages
        await self.turn(prompt, carry, deferred_tool_results=results)


@pytest.mark.parametrize("carry", [whole, rebuilt])
async def test_a_question_after_a_prompt_that_came_with_the_result_of_a_deferred_call_finds_the_fact(
    carry: Carry,
) -> None:
    life = Deferring(1_500)
    for number in range(20):
        await life.turn(matter(number), carry)
    await life.order("Good.", carry)
    life.last.assert_not_in_context("heron")
    await life.ask(carry)


@pytest.mark.parametrize("carry", [whole, rebuilt])
async def test_a_prompt_after_one_that_came_with_the_result_of_a_deferred_call_compiles_in_its_own_turn(
    carry: Carry,
) -> None:
    life = Deferring(30_000, every_turn=True, recent_turns=0, recall=0)
    for number in range(4):
        await life.turn(matter(number), carry)
    await life.order(matter(4), carry)
    await life.turn(matter(5), carry)
    assert [view.status for view in life.views] == ["raw"] + ["compiled"] * 6
    assert life.writer.asked == 6


async def test_the_recent_turns_that_the_caller_counts_stay_when_a_view_is_cut_back_for_a_question() -> None:
    life = Life(recent_turns=5)
    for number in range(TURNS):
        await life.turn(ASK if number > 40 and number % 3 == 0 else matter(number), whole)
        prompts = [matter(one) for one in range(max(0, number - 5), number) if not (one > 40 and one % 3 == 0)]
        assert all(prompt in life.talker.last.text for prompt in prompts), number
    life.last.assert_in_context("heron")
    assert life.compiles > 3


@pytest.mark.parametrize("settings", [{"trigger": 1.0}, {"trigger": 1.0, "recall": 0.15}, {"recent_turns": "all"}])
async def test_a_question_in_a_full_view_finds_its_answer_with_any_settings(settings: dict[str, Any]) -> None:
    life = Life(2_000, **settings)
    for number in range(60):
        await life.turn(ASK if number > 12 and number % 2 == 0 else matter(number), whole)
        life.last.assert_within(budget=2_000, pairs=True)
        if number > 12 and number % 2 == 0:
            life.last.assert_in_context("heron")
    assert life.compiles > 3


class Working(Life):
    """A conversation with one to six tool calls a turn. From turn 26 on, every prompt asks for the fact."""

    def __init__(self, budget: int, **wanted: Any) -> None:
        def look(what: str) -> str:
            return prose(len(what) * 7, 120)

        super().__init__(budget, **wanted)
        self.left, self.lost = 0, list[int]()
        self.talker = Talker(self._answer)
        self.agent = Agent[Any, Any](self.talker.model, tools=[look], capabilities=[self.ours])

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        self.left -= 1
        return [("look", {"what": f"matter {self.left} of {len(messages)}"})] if self.left >= 0 else "answer " * 40

    async def work(self, *, unless: Callable[[list[View]], bool] = lambda views: False) -> None:
        """Count the questions whose views were cut back within their turn, and note all without the fact.

        Args:
            unless: True for the views of a question that is not looked at.
        """
        for number in range(46):
            asks, began, self.left = number > 25, len(self.views), 1 + number % 6
            await self.turn(ASK if asks else matter(number), whole)
            views = self.views[began:]
            if asks and not unless(views):
                self.cut += was_cut(views)
                self.lost += [number] if "heron" not in self.talker.last.text else []


def was_cut(views: list[View]) -> bool:
    """True if a view was cut back after the first request of its turn."""
    return "compiled" in [view.status for view in views[1:]]


async def test_an_answer_in_an_earlier_block_stays_when_a_view_is_cut_back_within_a_turn() -> None:
    life = Working(8_000)
    await life.work()
    assert life.cut > 2 and not life.lost


async def test_an_answer_that_did_not_fit_is_recalled_once_the_view_is_cut_back() -> None:
    life = Working(1_800, recent_turns="all")
    await life.work(unless=lambda views: not was_cut(views) or views[0].ledger["tokens"]["recall"] > 0)
    assert life.cut > 2 and not life.lost


@pytest.mark.parametrize("settings", [{}, {"trigger": 0.9}, {"recent_turns": "all"}, {"background": True}])
@pytest.mark.parametrize("budget", [1_000, 2_000, 4_000])
async def test_every_question_keeps_its_answer_in_a_turn_with_tools(budget: int, settings: dict[str, Any]) -> None:
    life = Working(budget, **settings)
    await life.work()
    assert not life.lost
    assert all(view.tokens_sent <= budget for view in life.views)


@pytest.mark.parametrize("settings", [{"budget": 1_000}, {"budget": 2_000}, {"budget": 3_000, "trigger": 0.5}])
async def test_approvals_that_the_user_ignores_never_cost_a_view(settings: dict[str, Any]) -> None:
    """The host then joins the tool results, an answer of its own for the approval, and the next prompt."""
    calls = [("look", {"path": "a"}), ("delete", {"path": "a"})]

    def look(path: str) -> str:
        return prose(len(path), 200)

    def delete(path: str) -> str:
        return f"{path} is gone."

    def script(messages: list[ModelMessage], info: AgentInfo) -> Any:
        asked = [part for part in messages[-1].parts if isinstance(part, UserPromptPart)]
        return calls if asked and str(asked[-1].content).startswith("Clean up") else prose(len(messages), 80)

    views, errors = list[View](), list[Exception]()
    ours = compiler(on_view=views.append, on_error=errors.append, **settings)
    tools = [look, Tool(delete, requires_approval=True)]
    agent = Agent(Talker(script).model, tools=tools, output_type=[str, DeferredToolRequests], capabilities=[ours])
    history: list[ModelMessage] = []
    for number in range(24):
        prompt = f"Clean up number {number}." if number % 6 == 3 else matter(number)
        history = (await run(agent, prompt, message_history=history, conversation_id="c")).messages
    assert not errors and {view.status for view in views} <= {"raw", "mended", "compiled", "cycle"}
    assert all(view.tokens_sent <= settings["budget"] for view in views)
