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
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.models.wrapper import WrapperModel

from context_compiler import View
from context_compiler.testing import LiveConversation, live_async
from tests.support.agents import Notes, Talker, compiler, run
from tests.support.builders import prose

BUDGET, TURNS = 1_200, 24
FACT = "By the way, the staging database is called heron."
ASK = "What is the staging database called?"

Carry = Callable[[list[ModelMessage]], list[ModelMessage]]
"""What an application makes of a stored history before it hands it to the next run."""


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


def matter(number: int, more: str = "") -> str:
    """The prompt of a turn; the fourth has the fact."""
    return f"{FACT + ' ' if number == 3 else ''}Matter {number}{more}: {prose(number + 500 * bool(more), 40)}"


class Life(LiveConversation):
    """A conversation of many turns in which a fact is told early and asked for at the end."""

    def __init__(self, budget: int | None = BUDGET, script: Any = "answer " * 60, **wanted: Any) -> None:
        options = {name: wanted.pop(name) for name in ("tools", "output_type", "instructions") if name in wanted}
        self.writer, self.talker, self.views = Notes("All went on as planned."), Talker(script), list[View]()
        self.ours = compiler(self.writer, budget=budget, on_view=self.views.append, **wanted)
        agent = Agent[Any, Any](self.talker.model, capabilities=[self.ours], **options)
        super().__init__(agent=agent, model=self.talker.model, arguments={"conversation_id": "c"})

    async def turn(self, prompt: Any, carry: Carry = whole, **given: Any) -> None:
        self.history = carry(self.history)
        await self.say_async(prompt, **given)

    async def matters(self, count: int = TURNS, carry: Carry = whole, **given: Any) -> None:
        for number in range(count):
            await self.turn(matter(number), carry, **given)

    async def ask(self, carry: Carry = whole, question: Any = ASK, **given: Any) -> None:
        await self.turn(question, carry, **given)
        self.last.assert_in_context("heron")
        self.assert_within(budget=BUDGET, pairs=True)

    async def live(self, carry: Carry = whole, **given: Any) -> Life:
        await self.matters(TURNS, carry, **given)
        await self.ask(carry, **given)
        return self

    @property
    def compiles(self) -> int:
        """Requests that began a new cycle."""
        return [request.status for request in self.requests].count("compiled")

    async def assert_few_compiles(self, plain: Life | Callable[[], Life] | None = None) -> None:
        """Compare with the plain session, which is lived once."""
        plain = plain or Life
        if not isinstance(plain, Life):
            plain = _plain.get(plain) or _plain.setdefault(plain, await plain().live())
        assert plain.compiles > 3
        assert self.compiles <= plain.compiles + 2 and self.writer.asked <= plain.writer.asked + 2


_plain: dict[Callable[[], Life], Life] = {}


def calling(budget: int = BUDGET) -> Life:
    """A conversation with a tool that is called in every turn."""

    def look(what: str) -> str:
        return f"Nothing about {what}."

    def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
        asked = isinstance(messages[-1].parts[-1], UserPromptPart)
        return [("look", {"what": f"matter {len(messages)}"})] if asked else "answer " * 40

    return Life(budget, script=answer, tools=[look])


async def test_a_dynamic_system_prompt_does_not_start_another_conversation() -> None:
    life, seen = Life(), 0

    @life.agent.system_prompt(dynamic=True)
    def now(ctx: RunContext[Any]) -> str:
        nonlocal seen
        seen += 1
        return f"You are kind. The time is {seen}."

    await life.live()
    await life.assert_few_compiles()
    life.last.assert_in_context(f"The time is {seen}.")  # as it is now


async def test_a_window_of_a_known_conversation_is_joined_with_the_record(tmp_path: Path) -> None:
    life = await Life(store=tmp_path / "record.db").live(window)
    await life.assert_few_compiles()
    assert "joined with" in (await life.ours.views("c"))[0].status
    assert len(await life.ours.transcript("c")) == 2 * (TURNS + 1)
    again = Life(store=tmp_path / "record.db")  # another process knows it too
    again.history = life.history
    await again.turn("And what did I say it was called, the staging database?", window)
    again.assert_in_context(FACT)
    assert again.writer.asked == 0


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


class Remembering(AbstractCapability[Any]):
    """Puts a text before the messages of some requests, and leaves the history of the run as it is."""

    def __init__(self, steps: int) -> None:
        self.text, self._steps = "MEMORY: the user is an admin.", steps

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        if not self.text or ctx.run_step > self._steps:
            return request_context
        first = ModelRequest(parts=[SystemPromptPart(self.text)])
        return replace(request_context, messages=[first, *request_context.messages])


@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize(("name", "only_records"), [("c", False), (None, False), ("c", True)])
async def test_a_message_that_another_capability_stops_adding_is_not_sent_again(
    steps: int, name: str | None, only_records: bool
) -> None:
    memory, ours, history = Remembering(steps), compiler(), list[ModelMessage]()
    talker = Talker([[("peek", {"path": "a"})], "one", [("peek", {"path": "b"})], "two", "three"])
    agent = Agent(talker.model, tools=[peek], capabilities=[memory, ours.recorder() if only_records else ours])
    for prompt in ("first", "second", "third"):
        memory.text = "" if prompt == "third" else memory.text
        history = (await run(agent, prompt, message_history=history, conversation_id=name)).messages
    session = history[-1].conversation_id
    assert [sent.text.count("MEMORY") for sent in talker.sent] == ([1, 0, 1, 0, 0] if steps == 1 else [1, 1, 1, 1, 0])
    assert session is not None and len(await ours.transcript(session)) == len(history)


@pytest.mark.parametrize("carried", [True, False])
async def test_a_window_without_a_conversation_name_is_joined_by_the_id_that_its_messages_carry(
    carried: bool, tmp_path: Path
) -> None:
    life = Life(store=tmp_path / "record.db")

    def carry(history: list[ModelMessage]) -> list[ModelMessage]:
        return window(history) if carried else rebuilt(window(history))

    await life.matters(TURNS, carry, conversation_id=None)
    await life.turn(ASK, carry, conversation_id=None)
    if carried:
        life.last.assert_in_context("heron")
        await life.assert_few_compiles()
    else:
        life.last.assert_not_in_context("heron")


@pytest.mark.parametrize("budget", [2_000, 6_000])
async def test_a_prompt_larger_than_the_budget_leaves_room_for_the_past(budget: int) -> None:
    life = Life()
    await life.matters(20)
    listing = "\n".join(f"./src/part_{number}/file_{number}.py" for number in range(3_000))
    prompt = f"{ASK} Here is the listing:\n{listing}"
    later = await live_async(Agent(capabilities=[compiler(budget=budget)]), [prompt], history=life.history)
    later.assert_in_context("heron", "file_2999")
    later.assert_within(budget=budget)
    assert later.requests[0].tokens >= 0.75 * budget


async def test_histories_that_a_front_end_rebuilds_keep_their_cycle() -> None:
    await (await Life().live(rebuilt)).assert_few_compiles()


def typed(*arguments: Any, **wanted: Any) -> Life:
    """A conversation whose answers are objects."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
        return [("final_result", {"text": "answer " * 60})]

    return Life(*arguments, script=answer, output_type=Told, **wanted)


class Told(BaseModel):
    text: str


async def test_structured_answers_do_not_count_as_tool_work() -> None:
    await (await typed().live()).assert_few_compiles()


@pytest.mark.parametrize("wanted", [{}, {"background": True}])
async def test_structured_answers_keep_their_cycle_where_all_turns_before_are_left_out(wanted: dict[str, Any]) -> None:
    plain, life = Life(1_000, **wanted), typed(1_000, **wanted)
    for number in range(26):
        for conversation in (plain, life):
            await conversation.turn(matter(number))
    await life.assert_few_compiles(plain)


async def test_a_picture_alone_is_not_a_question_and_fails_no_run() -> None:
    life = Life()
    await life.matters(30)
    await life.turn([BinaryContent(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")])
    life.last.assert_not_in_context("BEGIN RECALLED")


async def test_two_agents_in_turn_on_one_history() -> None:
    life = Life()
    agents = [life.agent, Agent(life.talker.model, capabilities=[life.ours], instructions="Be brief.")]
    for number in range(TURNS):
        life.agent = agents[number % 2]
        await life.turn(matter(number))
    await life.ask()
    await life.assert_few_compiles()


@pytest.mark.parametrize("cached", [True, False])
async def test_the_notes_end_with_a_cache_point_if_the_host_sets_them(cached: bool) -> None:
    life = Life()
    settings: Any = {"anthropic_cache_messages": cached}
    await life.matters(30, model_settings=settings)
    points = [message for message in life.requests[-1].messages if "CachePoint" in str(message)]
    assert len(points) == cached
    assert not cached or "BEGIN QUOTED" in str(points[0])


async def test_a_fallback_with_a_small_window_has_its_own_cycles() -> None:
    """It compiles as often as it does alone, and the large model still sees everything."""

    async def lived(windows: list[int]) -> tuple[Life, list[str]]:
        life = Life(None)
        models = [Windowed(life.talker.model, window) for window in windows]
        for number in range(36):
            await life.turn(matter(number), model=models[number % len(models)])
        statuses = [(windows[number % len(windows)], request.status) for number, request in enumerate(life.requests)]
        assert {status for window, status in statuses if window > 5_000} <= {"raw"}
        return life, [status for window, status in statuses if window == 5_000]

    both, statuses = await lived([100_000, 5_000])
    alone, expected = await lived([5_000])
    assert both.writer.asked <= alone.writer.asked and statuses.count("compiled") <= expected.count("compiled")


async def test_a_prompt_that_is_regenerated_keeps_the_cycle() -> None:
    life = Life()
    for number in range(TURNS):
        before = life.history
        await life.turn(matter(number))
        if number % 5 == 4:
            life.history = before
            await life.turn(matter(number, ", said otherwise"))
    await life.ask()
    await life.assert_few_compiles()


async def test_a_turn_that_is_edited_later_takes_the_conversation_back_to_it() -> None:
    """Every tenth turn the user goes back three turns, words that prompt differently, and goes on from there."""
    life, stored = Life(), list[list[ModelMessage]]()

    async def turn(number: int, more: str = "") -> None:
        stored[number:] = [life.history if number == len(stored) else stored[number]]
        life.history = stored[number]
        await life.turn(matter(number, more))

    for number in range(TURNS):
        await turn(number)
        if number % 10 == 9:
            await turn(number - 2, ", in other words")
            await turn(number - 1)
            await turn(number)
    await life.ask()
    await life.assert_few_compiles()


@pytest.mark.parametrize(("where", "kind"), [("before", Life), ("after", calling)])
async def test_text_added_to_a_prompt_and_removed_from_the_history_keeps_the_conversation(
    where: str, kind: Callable[[int], Life]
) -> None:
    """As applications do that retrieve documents for each prompt and store what the user typed."""

    def stripped(history: list[ModelMessage]) -> list[ModelMessage]:
        return [replace(message, parts=[_as_typed(part) for part in message.parts]) for message in history]  # pyright: ignore

    async def lived(documents: int) -> Life:
        life = kind(2_000)
        for number, typed in enumerate([*map(matter, range(30)), ASK]):
            added = f"<documents>\nDocument {number}: {prose(900 + number, documents)}\n</documents>"
            await life.turn("\n\n".join([added, typed] if where == "before" else [typed, added]), stripped)
            life.last.assert_in_context(f"Document {number}:")
            assert life.requests[-1].text.count("<documents>") == 1
        life.last.assert_in_context("heron")
        life.assert_within(budget=2_000, pairs=True)
        return life

    await (await lived(100)).assert_few_compiles(await lived(0))


FORMS = (
    "Current date: 2026-11-28. User: Anna (premium), Berlin.\n{}",
    "{}\n- be brief\n- name the source\n- use English\n- no markdown\n- if you do not know it, say so",
    "{} Answer with a JSON object that has the fields answer and confidence, and nothing else.",
    "Hi there, I hope that you are doing well. I have one quick thing on my mind this morning. {} Thanks a lot!",
    "I am preparing the release notes for tomorrow, and the team waits for the details of our setup. {}",
    "<context>" + prose(77, 60) + "</context> {}",
    "### Context:\n" + prose(78, 50) + "\n### User:\n{}\n### Assistant:",
)
"""Prompts as people and applications write them around a question."""


@pytest.mark.parametrize("kind", [Life, calling])
async def test_a_question_gets_its_answer_in_a_prompt_with_other_text(kind: Callable[[int], Life]) -> None:
    life = kind(1_500)
    await life.matters(TURNS)
    history = life.history
    for form in FORMS:
        life.history = history
        await life.turn(form.format(ASK))
        life.last.assert_in_context("heron")
    life.assert_within(budget=1_500, pairs=True)


ORDERS = (
    "I need the name of the staging database.",
    "staging database name",
    "Please write a connection string for the staging database.",
    "Connect to the staging database and count the users.",
    "Can you put the name of the staging database into the config?",
)
"""Prompts that do not ask, and need what was said before."""


@pytest.mark.parametrize("kind", [Life, calling])
async def test_an_order_gets_what_it_needs_from_the_past_and_one_about_the_present_gets_nothing(
    kind: Callable[[int], Life],
) -> None:
    life = kind(1_500)
    await life.matters(TURNS)
    history = life.history
    for order in ORDERS:
        life.history = history
        await life.turn(order)
        life.last.assert_in_context("heron")
    life.history = history
    await life.turn(f"Go on as in matter {TURNS - 1}: {prose(TURNS - 1, 12)}.")
    assert "END RECALLED ===\nGo on" not in life.requests[-1].text


def _as_typed(part: Any) -> Any:
    if not isinstance(part, UserPromptPart):
        return part
    assert isinstance(part.content, str)
    return replace(part, content=re.sub(r"\s*<documents>.*?</documents>\s*", "", part.content, flags=re.DOTALL))


@pytest.mark.parametrize("carry", [rebuilt, from_front_end])
async def test_histories_with_tool_calls_that_a_front_end_rebuilds_keep_their_cycle(carry: Carry) -> None:
    await (await calling().live(carry)).assert_few_compiles(calling)


async def test_histories_of_roles_and_texts_keep_their_cycle() -> None:
    await (await Life().live(from_front_end)).assert_few_compiles()


@pytest.mark.parametrize("every", [1, 10])
async def test_switching_the_model_keeps_the_cycle(every: int) -> None:
    life = Life()
    models = [Named(life.talker.model, name) for name in ("swift", "deep", "cheap")]
    for number in range(TURNS):
        await life.turn(matter(number), model=models[number // every % 3])
    await life.ask(model=models[0])
    await life.assert_few_compiles()


async def test_pictures_in_prompts_cause_no_more_compiles_than_texts_of_their_size() -> None:
    lives = [Life(), Life()]
    picture = BinaryContent(data=PNG, media_type="image/png")
    for life, added in zip(lives, (" ".join(["picture"] * 1_120), picture), strict=True):
        for number in range(TURNS):
            await life.turn([matter(number), added] if number % 10 == 5 else matter(number))
        await life.ask()
    await lives[1].assert_few_compiles(lives[0])


async def test_a_picture_with_a_question_finds_the_fact() -> None:
    life = Life()
    await life.matters()
    await life.ask(question=[ASK, BinaryContent(data=PNG, media_type="image/png")])


class Deferring(Life):
    """A conversation in which the prompt "Order it." calls a deferred tool, whose result comes with the next prompt."""

    def __init__(self, budget: int, **wanted: Any) -> None:
        def order() -> str:
            raise CallDeferred

        def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
            told = messages[-1].parts[-1]
            ordered = isinstance(told, UserPromptPart) and told.content == "Order it."
            return [("order", {})] if ordered else "answer " * 60

        super().__init__(budget, answer, tools=[order], output_type=[str, DeferredToolRequests], **wanted)

    async def order(self, prompt: str, carry: Carry) -> None:
        await self.turn("Order it.", carry)
        results = DeferredToolResults(calls={self.output.calls[0].tool_call_id: "It is on its way."})
        await self.turn(prompt, deferred_tool_results=results)


@pytest.mark.parametrize("carry", [whole, rebuilt])
async def test_a_question_after_a_prompt_that_came_with_the_result_of_a_deferred_call_finds_the_fact(
    carry: Carry,
) -> None:
    life = Deferring(BUDGET)
    await life.matters(20, carry)
    await life.order("Good.", carry)
    life.last.assert_not_in_context("heron")
    await life.ask(carry)


@pytest.mark.parametrize("carry", [whole, rebuilt])
async def test_a_prompt_after_one_that_came_with_the_result_of_a_deferred_call_compiles_in_its_own_turn(
    carry: Carry,
) -> None:
    life = Deferring(30_000, every_turn=True, recent_turns=0, recall=0)
    await life.matters(4, carry)
    await life.order(matter(4), carry)
    await life.turn(matter(5), carry)
    assert [request.status for request in life.requests] == ["raw"] + ["compiled"] * 6
    assert life.writer.asked == 6


async def test_the_recent_turns_that_the_caller_counts_stay_when_a_view_is_cut_back_for_a_question() -> None:
    life = Life(4_000, recent_turns=5)
    prompts = [ASK if number > 40 and number % 3 == 0 else matter(number) for number in range(70)]
    for number, prompt in enumerate(prompts):
        await life.turn(prompt)
        life.last.assert_in_context(*prompts[max(0, number - 5) : number])
    life.last.assert_in_context("heron")
    assert life.compiles > 3


@pytest.mark.parametrize("settings", [{"trigger": 1.0}, {"trigger": 1.0, "recall": 0.15}, {"recent_turns": "all"}])
async def test_a_question_in_a_full_view_finds_its_answer_with_any_settings(settings: dict[str, Any]) -> None:
    life = Life(1_200, **settings)
    for number in range(36):
        asks = number > 12 and number % 2 == 0
        await life.turn(ASK if asks else matter(number))
        if asks:
            life.last.assert_in_context("heron")
    life.assert_within(budget=1_200, pairs=True)
    assert life.compiles > 3


class Working(Life):
    """A conversation with one to six tool calls a turn. From turn 13 on, every prompt asks for the fact."""

    def __init__(self, budget: int, **wanted: Any) -> None:
        def look(what: str) -> str:
            return prose(len(what) * 7, 120)

        super().__init__(budget, self._answer, tools=[look], **wanted)
        self.left = self.cut = 0

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> Any:
        self.left -= 1
        return [("look", {"what": f"matter {self.left} of {len(messages)}"})] if self.left >= 0 else "answer " * 40

    async def work(
        self, *, turns: int = 24, first: int = 13, unless: Callable[[list[View]], bool] = lambda views: False
    ) -> None:
        """Count the questions whose views were cut back within their turn; each ends with a request that has the fact.

        Args:
            turns: Their number.
            first: The first turn that asks for the fact.
            unless: True for the views of a question that is not looked at.
        """
        for number in range(turns):
            asks, began, self.left = number >= first, len(self.views), 1 + number % 6
            await self.turn(ASK if asks else matter(number))
            views = self.views[began:]
            if asks and not unless(views):
                self.cut += was_cut(views)
                self.last.assert_in_context("heron")


def was_cut(views: list[View]) -> bool:
    """True if a view was cut back after the first request of its turn."""
    return "compiled" in [view.status for view in views[1:]]


async def test_an_answer_in_an_earlier_block_stays_when_a_view_is_cut_back_within_a_turn() -> None:
    life = Working(8_000)
    await life.work()
    assert life.cut > 2


async def test_an_answer_that_did_not_fit_is_recalled_once_the_view_is_cut_back() -> None:
    life = Working(1_800, recent_turns="all")
    await life.work(unless=lambda views: not was_cut(views) or views[0].ledger["tokens"]["recall"] > 0)
    assert life.cut > 2


@pytest.mark.parametrize(
    ("budget", "settings", "length"),
    [
        (1_000, {}, {}),
        (1_000, {"recent_turns": "all"}, {"turns": 24, "first": 20}),
        (2_000, {"trigger": 0.9}, {}),
        (2_000, {"background": True}, {}),
        (4_000, {"recent_turns": "all"}, {}),
    ],
)
async def test_every_question_keeps_its_answer_in_a_turn_with_tools(
    budget: int, settings: dict[str, Any], length: dict[str, int]
) -> None:
    life = Working(budget, **settings)
    await life.work(**{"turns": 16, "first": 10, **length})
    life.assert_within(budget=budget, pairs=True)
    assert life.cut > 2


@pytest.mark.parametrize("settings", [{"budget": 1_000}, {"budget": 2_000}, {"budget": 3_000, "trigger": 0.5}])
async def test_approvals_that_the_user_ignores_never_cost_a_view(settings: dict[str, Any]) -> None:
    """The host then joins the tool results, an answer of its own for the approval, and the next prompt."""

    def look(path: str) -> str:
        return prose(len(path), 200)

    def delete(path: str) -> str:
        return f"{path} is gone."

    def script(messages: list[ModelMessage], info: AgentInfo) -> Any:
        asked = [part for part in messages[-1].parts if isinstance(part, UserPromptPart)]
        cleans = asked and str(asked[-1].content).startswith("Clean up")
        return [("look", {"path": "a"}), ("delete", {"path": "a"})] if cleans else prose(len(messages), 80)

    errors, tools = list[Exception](), [look, Tool(delete, requires_approval=True)]
    wanted: Any = {"tools": tools, "output_type": [str, DeferredToolRequests], "on_error": errors.append, **settings}
    life = Life(script=script, **wanted)
    for number in range(24):
        await life.turn(f"Clean up number {number}." if number % 6 == 3 else matter(number))
    assert not errors and {request.status for request in life.requests} <= {"raw", "mended", "compiled", "cycle"}
    life.assert_within(budget=settings["budget"], pairs=True)
