"""A history that takes longer to read or to search than a request may take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler, MemoryStore, View, resilience
from context_compiler.messages.fences import QUOTED_TITLE
from tests.support.histories import assistant, user

BUDGET = 2_000
PROMPT = "And how many rows has the file of job 7?"
MESSAGES = [
    message
    for turn in range(900)
    for message in (
        user(f"Why does job {turn} of the night run need {turn + 7} workers? " * 3),
        assistant(f"Job {turn} reads /srv/jobs/{turn}.csv, which has {turn * 13} rows. " * 3),
    )
]
"""A history so long that its view is made in a thread."""
TO_READ = len(MESSAGES) // resilience.STEP
"""Looks at the clock while the history is read, and again while rules are found in it."""


class Conversation:
    """An agent that continues the long history, with the views and errors of its requests and what the model got."""

    def __init__(self, *, counter: Callable[[str], int] = lambda text: len(text) // 4, **options: Any) -> None:
        """A counter of its own, because what is read for the default counter is known to all agents."""
        self.views: list[View] = []
        self.errors: list[str] = []
        self.sent: list[str] = []
        self.history = MESSAGES
        callbacks = {"on_view": self.views.append, "on_error": self._note}
        compiler: Any = ContextCompiler(budget=BUDGET, model="none", counter=counter, **callbacks, **options)
        self._agent = Agent(FunctionModel(self._answered), capabilities=[compiler])

    def _note(self, error: Exception) -> None:
        self.errors.append(str(error))

    def _answered(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.sent.append("\n".join(str(part) for message in messages for part in message.parts))
        return ModelResponse(parts=[TextPart("Noted.")])

    async def ask(self, prompt: str = PROMPT) -> View:
        answered = await self._agent.run(prompt, message_history=self.history, conversation_id="talk")
        self.history = answered.all_messages()
        return self.views[-1]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that goes on by a second whenever somebody looks at it."""
    ticks = count()
    monkeypatch.setattr(resilience, "thread_time", lambda: next(ticks))
    yield


@pytest.mark.usefixtures("ticking")
async def test_a_history_that_takes_too_long_to_search_is_sent_within_the_budget_and_without_quotes() -> None:
    talk = Conversation(timeout=4 * TO_READ, record="off")
    view = await talk.ask()
    assert view.tokens_sent <= BUDGET and view.status == "compiled"
    assert PROMPT in talk.sent[0]
    assert QUOTED_TITLE not in talk.sent[0]
    assert talk.errors == [f"reading and searching a history takes more than {4 * TO_READ} s (timeout)"]


@pytest.mark.usefixtures("ticking")
async def test_the_same_history_is_quoted_if_there_is_time() -> None:
    talk = Conversation(timeout=1e9, record="off")
    view = await talk.ask()
    assert view.tokens_sent <= BUDGET
    assert QUOTED_TITLE in talk.sent[0] and not talk.errors


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("timeout", [4 * TO_READ, 1e9])
async def test_later_requests_continue_a_view_that_ran_out_of_time(timeout: float) -> None:
    talk = Conversation(timeout=timeout, record="off")
    views = [await talk.ask() for _ in range(3)]
    assert all(view.tokens_sent <= BUDGET for view in views) and len(talk.sent) == 3


async def test_a_history_that_takes_too_long_to_read_is_read_by_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = [0.0]

    def counted(text: str) -> int:
        spent[0] += 1
        return len(text) // 4

    monkeypatch.setattr(resilience, "thread_time", lambda: spent[0])
    store = MemoryStore()
    talk = Conversation(timeout=len(MESSAGES) / 2, counter=counted, store=store)
    view = await talk.ask()
    assert view.status == "fallback" and view.tokens_sent <= BUDGET and PROMPT in talk.sent[0]
    assert "reading and searching a history" in talk.errors[0]
    assert len(MESSAGES) / 2 < spent[0] < 0.6 * len(MESSAGES)
    while view.status == "fallback":
        view = await talk.ask()
    assert len(talk.views) <= 3 and view.status == "compiled" and view.tokens_sent <= BUDGET
    assert len(await store.transcript("talk")) == len(talk.history) and await store.verify() == ()


@pytest.mark.usefixtures("ticking")
async def test_rules_for_which_the_first_request_had_no_time_are_found_by_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = "From now on, always answer in French."
    messages = [*MESSAGES[:1_700], user(rule), assistant("D'accord."), *MESSAGES[1_700:]]
    monkeypatch.setattr("tests.middleware.test_time_limit.MESSAGES", messages)
    talk = Conversation(timeout=TO_READ + 4, record="off")
    await talk.ask()
    assert rule not in talk.sent[0] and talk.errors
    await talk.ask()
    assert rule in talk.sent[-1]
