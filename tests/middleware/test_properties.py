"""Any history, any budget, any choice: what the model receives fits, is whole, and ends with what was asked."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelMessage

from context_compiler import TokenCounter, View
from context_compiler.middleware.overflow import RetryModelRequest
from tests.support.agents import Notes, Sent, Talker, compiler, run, unstamped
from tests.support.histories import answered_id, histories, snapshot

NOTED_AFTER_HOOKS = RetryModelRequest is None
"""This host notes instructions and settings in the last request after hooks, against what those left to see."""

NOTES_OF_THE_HOST = ("instruction-baseline", "instruction-delta", "tool-availability-delta", "model-settings-delta")

QUICK = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

BUDGETS = st.one_of(st.integers(20, 400), st.integers(400, 5_000), st.integers(5_000, 40_000))
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "tool_history": st.sampled_from(["paired", "drop", "render"]),
        "inject": st.sampled_from(["user", "system", "compaction"]),
        "recent_turns": st.sampled_from([0, 1, 3, "all"]),
        "every_turn": st.booleans(),
        "fidelity": st.sampled_from(["full", "truncate", "compact", "summary:high"]),
        "trigger": st.sampled_from([0.3, 0.7, 1.0]),
    },
)


def look(path: str = "") -> str:
    return f"{path} has many lines " * 30


class Once:
    """One run of an agent with a tool over a history, with what was seen of it."""

    def __init__(self, budget: int, choices: dict[str, Any]) -> None:
        self.views, self.errors = list[View](), list[Exception]()
        self.notes = Notes()
        self.talker = Talker([[("look", {"path": "z"})], "done"])
        options = {"on_view": self.views.append, "on_error": self.errors.append, "budget": budget, **choices}
        self.ours = compiler(self.notes, **options)
        self.agent = Agent(self.talker.model, tools=[look], capabilities=[self.ours], retries=3)


async def outcome(agent: Agent[Any, Any], prompt: str | None, history: list[ModelMessage]) -> Any:
    try:
        stored = unstamped((await run(agent, prompt, message_history=history)).messages)
    except (AgentRunError, UserError, AssertionError) as error:
        return type(error).__name__
    if NOTED_AFTER_HOOKS:
        for message in stored:
            message["parts"] = [part for part in message["parts"] if part["part_kind"] not in NOTES_OF_THE_HOST]
            message.pop("instructions", None)
    return stored


def assert_answered(messages: list[ModelMessage]) -> None:
    """Every call is answered before it could be called again, and nothing answers no call."""
    waiting: list[str] = []
    for part in (part for message in messages for part in message.parts):
        if part.part_kind == "tool-call":
            waiting.append(part.tool_call_id)
        elif (ident := answered_id(part)) is not None:
            assert ident in waiting, f"{ident} answers no call"
            waiting.remove(ident)
    assert not waiting, f"nobody answered {waiting}"


def system_tokens(history: list[ModelMessage]) -> int:
    """What system text takes, which is cut only after the prompt."""
    parts = [part for message in history for part in message.parts if part.part_kind == "system-prompt"]
    return sum(TokenCounter().text(str(part.content)) for part in parts)


def noted(sent: Sent) -> int:
    """What an older host adds to the last request after hooks, in tokens."""
    notes = [part for part in sent.messages[-1].parts if part.part_kind in NOTES_OF_THE_HOST]
    return sum(TokenCounter().text(str(getattr(part, "content", ""))) for part in notes) if NOTED_AFTER_HOOKS else 0


def check(history: list[ModelMessage], prompt: str | None, budget: int, choices: dict[str, Any], loop: Any) -> None:
    before = snapshot(history)
    plain = loop.run_until_complete(
        outcome(Agent(Talker([[("look", {"path": "z"})], "done"]).model, tools=[look], retries=3), prompt, history)
    )
    assume(not isinstance(plain, str))
    once = Once(budget, choices)
    withal = loop.run_until_complete(outcome(once.agent, prompt, history))
    assert withal == plain, "the host stores what it would store without us"
    assert snapshot(history) == before, "what was given is not touched"
    assert {type(error).__name__ for error in once.errors} <= {"BudgetError"}, once.errors
    assert once.notes.asked <= 1 or once.views[0].record is not None
    for sent, view in zip(once.talker.sent, once.views, strict=True):
        event(view.status)
        assert sent.tokens - noted(sent) <= budget or view.status == "floor_over_budget", (sent.tokens, view.ledger)
        assert_answered(sent.messages)
        assert sent.messages[-1].kind == "request"
    if prompt is not None and once.views[0].status != "floor_over_budget" and budget > 200 + system_tokens(history):
        assert prompt in once.talker.sent[0].text


@settings(suppress_health_check=QUICK)
@given(history=histories(future=False, ends="prompt"), budget=BUDGETS, choices=CHOICES)
def test_a_prompt_after_any_history(
    history: list[ModelMessage], budget: int, choices: dict[str, Any], sync_loop: asyncio.AbstractEventLoop
) -> None:
    check(history, "and what about now?", budget, choices, sync_loop)


@settings(suppress_health_check=QUICK)
@given(history=histories(future=False), budget=BUDGETS, choices=CHOICES)
def test_any_history_without_a_prompt(
    history: list[ModelMessage], budget: int, choices: dict[str, Any], sync_loop: asyncio.AbstractEventLoop
) -> None:
    check(history, None, budget, choices, sync_loop)


@settings(suppress_health_check=QUICK, max_examples=20)
@given(history=histories(future=False, max_turns=7), budget=BUDGETS, choices=CHOICES, data=st.data())
def test_any_history_thoroughly(
    history: list[ModelMessage],
    budget: int,
    choices: dict[str, Any],
    data: st.DataObject,
    sync_loop: asyncio.AbstractEventLoop,
) -> None:
    check(history, data.draw(st.sampled_from([None, "and what about now?"])), budget, choices, sync_loop)
