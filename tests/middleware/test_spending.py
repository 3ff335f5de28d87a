"""A limit of money for the compiles of a session: they end in time, on the record, and a restart changes nothing."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler, MemoryStore, Money, Record, SQLiteStore, View
from context_compiler.errors import BudgetError, SettingsError, StoreError
from context_compiler.record.values import Compile, Entry
from tests.support.agents import Talker
from tests.support.histories import prose

MODEL = "claude-sonnet-4-5"


class Priced:
    """A model that writes notes, under a name that has a price; each answer is $0.006 dear."""

    def __init__(self, name: str = MODEL) -> None:
        self.asked = 0
        self.on_ask = lambda: None
        self.model = FunctionModel(self._answer, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        self.on_ask()
        usage = RequestUsage(input_tokens=1_000, output_tokens=200)
        return ModelResponse(parts=[TextPart(f"- **Goal**: number {self.asked}.")], usage=usage)


async def lived(
    store: Any, notes: Priced, turns: range, history: list[ModelMessage], name: str = "talk", **wanted: Any
) -> tuple[list[ModelMessage], list[View], list[Exception]]:
    errors, views = list[Exception](), list[View]()
    made: dict[str, Any] = {"store": store, "system": None, "budget": 1_500, "compile_spend_limit": Money("0.03")}
    told = {"model": notes.model, "on_error": errors.append, "on_view": views.append}
    agent = Agent(Talker("ok").model, capabilities=[ContextCompiler(**made | told | wanted)])
    for turn in turns:
        asked = f"Question {turn}: {prose(turn + 500, 300)}"
        history = (await agent.run(asked, message_history=history, conversation_id=name)).all_messages()
    return history, views, errors


def compiles(views: list[View]) -> list[str]:
    """The statuses of the compiles of a conversation."""
    records = [view.record for view in views if view.record is not None]
    return [one.compile.status.partition(";")[0] for one in records if one.compile and one.compile.compiled_prompt]


async def test_no_model_is_called_once_the_limit_might_be_exceeded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Priced()
    with caplog.at_level(logging.INFO, logger="context_compiler"):
        _, views, errors = await lived(tmp_path / "context.db", notes, range(14), [])
    assert 2 <= notes.asked <= 3 and notes.asked * Decimal("0.006") <= Decimal("0.03")
    statuses = compiles(views)
    assert statuses[: notes.asked] == ["ok"] * notes.asked and set(statuses[notes.asked :]) == {"refused"}
    assert [type(error) for error in errors] == [BudgetError] and "no model is asked" in str(errors[0])
    last = next(view.record.compile for view in reversed(views) if view.record and view.record.compile)
    assert last.error is not None and "might pass the limit of $0.0300" in last.error and not last.usage
    assert any("no model asked: the compiles of this session have cost" in line for line in caplog.messages)
    assert all(view.record is not None and view.record.tokens_sent <= 1_500 for view in views)


@pytest.mark.parametrize("record", ["full", "metadata"])
async def test_spending_is_remembered_across_restarts_and_sessions(tmp_path: Path, record: str) -> None:
    file, notes, again = tmp_path / "context.db", Priced(), Priced()
    history, _, _ = await lived(file, notes, range(9), [], record=record)
    _, views, errors = await lived(file, again, range(9, 14), history, record=record)
    assert notes.asked >= 2 and again.asked == 0 and len(errors) == 1
    assert "refused" in compiles(views) if record == "full" else views
    await lived(file, again, range(9), [], "another", record=record)
    assert again.asked == notes.asked


class Failing(MemoryStore):
    """A store that has compiles, and then fails in the way that it is told."""

    fails = ""

    async def summaries(self, *given: Any, **wanted: Any) -> list[Compile]:
        if self.fails == "slow":
            await asyncio.sleep(0.2)
        if self.fails == "unreadable":
            raise StoreError("unreachable")
        return await super().summaries(*given, **wanted)

    async def save(self, entry: Entry) -> Record:
        if self.fails == "behind":
            entry = replace(entry, compile=None, record=replace(entry.record, summary_id=None))
        return await super().save(entry)


@pytest.mark.parametrize("fails", ["unreadable", "behind", "slow"])
async def test_the_limit_holds_over_a_restart_on_a_record_that_is_unreadable_behind_or_slow(fails: str) -> None:
    store, first, again = Failing(), Priced(), Priced()
    history, _, _ = await lived(store, first, range(6), [], every_turn=True)

    def fail_from_now_on() -> None:
        store.fails = fails

    if fails == "unreadable":
        again.on_ask = fail_from_now_on
    else:
        fail_from_now_on()
    wanted: dict[str, Any] = {"compile_spend_limit": Money("0.045"), "every_turn": True, "record_timeout": 0.05}
    await lived(store, again, range(6, 18), history, **wanted)
    assert first.asked >= 2 and again.asked >= 1
    assert (first.asked + again.asked) * Decimal("0.006") <= Decimal("0.045")


async def test_a_deleted_session_has_no_spending(tmp_path: Path) -> None:
    notes, errors, store = Priced(), list[Exception](), SQLiteStore(tmp_path / "c.db")
    ours = ContextCompiler(
        store=store, system=None, budget=1_500, compile_spend_limit="$0.03", model=notes.model, on_error=errors.append
    )
    agent = Agent(Talker("ok").model, capabilities=[ours])
    asked: list[int] = []
    for kind in ("Question", "Remark"):
        history, before = list[ModelMessage](), notes.asked
        for turn in range(16):
            prompt = f"{kind} {turn}: {prose(turn + 500, 300)}"
            history = (await agent.run(prompt, message_history=history, conversation_id="talk")).all_messages()
        asked.append(notes.asked - before)
        assert [type(error) for error in errors] == [BudgetError]
        errors.clear()
        await store.delete("talk")
    assert asked[0] == asked[1] > 0
    await store.close()


async def test_without_a_record_the_process_remembers_the_spending(tmp_path: Path) -> None:
    notes = Priced()
    await lived(None, notes, range(9), [], record="off")
    assert 2 <= notes.asked <= 3


async def test_a_model_without_a_price_is_not_called(tmp_path: Path) -> None:
    notes = Priced("nobody-1")
    _, views, errors = await lived(tmp_path / "context.db", notes, range(5), [])
    assert notes.asked == 0 and "compiled" in {view.status for view in views}
    assert len(errors) == 1 and "no price is known for nobody-1" in str(errors[0])


async def test_background_compiles_respect_the_limit_too(tmp_path: Path) -> None:
    notes = Priced()
    await lived(tmp_path / "context.db", notes, range(9), [], background=True)
    assert 1 <= notes.asked <= 3


async def by_hand(
    store: Any, notes: Priced, history: list[ModelMessage], **wanted: Any
) -> tuple[ContextCompiler, list[Exception]]:
    """A compiler of a new process, on the same record."""
    errors = list[Exception]()
    made: dict[str, Any] = {"store": store, "system": None, "budget": 20_000, "compile_spend_limit": Money("0.045")}
    ours = ContextCompiler(**made | {"model": notes.model, "on_error": errors.append} | wanted)
    agent = Agent(Talker("ok").model, capabilities=[ours])
    for turn in range(6):
        asked = f"Question {turn}: {prose(turn + 500, 300)}"
        history[:] = (await agent.run(asked, message_history=history, conversation_id="talk")).all_messages()
    return ours, errors


async def test_a_manual_compile_at_the_limit_falls_back_to_quotes_and_reports_it(tmp_path: Path) -> None:
    notes, history = Priced(), list[ModelMessage]()
    ours, errors = await by_hand(tmp_path / "context.db", notes, history)
    while notes.asked < 6 and (done := await ours.compile_now("talk", f"ticket {notes.asked}")).usage:
        assert done.done and done.cost == Decimal("0.006")
    asked = notes.asked
    assert 2 <= asked <= 5
    focus = "the garden of the neighbour, and who waters it " * 10
    shown = await ours.preview("talk", focus)
    assert "might pass the limit of $0.0450: no model would be asked" in shown.why
    assert not shown.usage and shown.model == "none"
    done = await ours.compile_now("talk", focus)
    assert done.done and notes.asked == asked and done.model == "none" and not done.usage and done.summary
    assert "might pass the limit of $0.0450: no model was asked" in done.why
    assert [type(error) for error in errors] == [BudgetError]
    store = ours._middleware.archive.store  # pyright: ignore[reportPrivateUsage]
    newest = (await store.summaries("talk"))[0]
    assert newest.status.startswith("refused") and "might pass the limit" in (newest.error or "") and not newest.usage
    assert not await store.verify()


@pytest.mark.parametrize("wanted", [{"record": "off"}, {"record": "metadata"}, {"redact": str.upper}], ids=str)
async def test_manual_and_automatic_compiles_share_the_limit_in_every_record_mode(
    tmp_path: Path, wanted: dict[str, Any]
) -> None:
    notes = Priced()
    ours, errors = await by_hand(tmp_path / "context.db", notes, [], **wanted)
    for number in range(6):
        await ours.compile_now("talk", f"ticket {number}")
    assert 2 <= notes.asked <= 5 and [type(error) for error in errors] == [BudgetError]
    store = ours._middleware.archive.store  # pyright: ignore[reportPrivateUsage]
    paid = [row for row in await store.summaries("talk") if row.usage]
    assert len(paid) == (0 if wanted.get("record") == "off" else notes.asked)
    assert all(row.summary is None and row.compiled_prompt is None for row in paid)


async def test_the_cost_of_a_compile_counts_even_if_it_is_not_used(tmp_path: Path) -> None:
    notes, history = Priced(), list[ModelMessage]()
    ours, errors = await by_hand(tmp_path / "context.db", notes, history)
    ours._middleware.archive.save_action = refuse  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    for number in range(6):
        assert not (await ours.compile_now("talk", f"ticket {number}")).done
    assert 2 <= notes.asked <= 5 and BudgetError in map(type, errors)
    store = ours._middleware.archive.store  # pyright: ignore[reportPrivateUsage]
    assert sum(bool(row.usage) for row in await store.summaries("talk")) == notes.asked
    again = Priced()
    await lived(tmp_path / "context.db", again, range(6, 12), history)
    assert again.asked == 0


async def refuse(*given: Any, **wanted: Any) -> None:
    """Save nothing."""
    raise StoreError("the disk is full")


@pytest.mark.parametrize("given", [0.5, 1, "0.5", "$0", True, Money(1, fallback=100)])
def test_a_limit_must_be_an_amount_of_money(given: Any) -> None:
    with pytest.raises(SettingsError, match="compile_spend_limit|US dollars"):
        ContextCompiler(compile_spend_limit=given)
