"""A limit of money for the compiles of a session: they end in time, on the record, and a restart changes nothing."""

from __future__ import annotations

import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from context_compiler import ContextCompiler, Money, View
from context_compiler.errors import BudgetError, SettingsError
from tests.support.agents import Talker
from tests.support.histories import prose

MODEL = "claude-sonnet-4-5"


class Priced:
    """A model that writes notes, under a name that has a price; each answer is $0.006 dear."""

    def __init__(self, name: str = MODEL) -> None:
        self.asked = 0
        self.model = FunctionModel(self._answer, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        usage = RequestUsage(input_tokens=1_000, output_tokens=200)
        return ModelResponse(parts=[TextPart(f"- **Goal**: number {self.asked}.")], usage=usage)


async def lived(
    store: Any, notes: Priced, turns: range, history: list[ModelMessage], name: str = "talk", **wanted: Any
) -> tuple[list[ModelMessage], list[View], list[Exception]]:
    errors, views = list[Exception](), list[View]()
    made: dict[str, Any] = {"store": store, "system": None, "budget": 1_500, "compile_spend_limit": Money("0.02")}
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


async def test_no_model_is_asked_once_the_limit_might_be_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Priced()
    with caplog.at_level(logging.INFO, logger="context_compiler"):
        _, views, errors = await lived(tmp_path / "context.db", notes, range(9), [])
    assert 2 <= notes.asked <= 3 and notes.asked * Decimal("0.006") <= Decimal("0.02")
    found = compiles(views)
    assert found[: notes.asked] == ["ok"] * notes.asked and set(found[notes.asked :]) == {"refused"}
    assert [type(error) for error in errors] == [BudgetError] and "no model is asked" in str(errors[0])
    last = next(view.record.compile for view in reversed(views) if view.record and view.record.compile)
    assert last.error is not None and "might pass the limit of $0.0200" in last.error and not last.usage
    assert any("no model asked: the compiles of this session have cost" in line for line in caplog.messages)
    assert all(view.record is not None and view.record.tokens_sent <= 1_500 for view in views)


@pytest.mark.parametrize("record", ["full", "metadata"])
async def test_a_restart_and_another_session_know_what_was_spent(tmp_path: Path, record: str) -> None:
    file, notes, again = tmp_path / "context.db", Priced(), Priced()
    history, _, _ = await lived(file, notes, range(9), [], record=record)
    _, views, errors = await lived(file, again, range(9, 14), history, record=record)
    assert notes.asked >= 2 and again.asked == 0 and len(errors) == 1
    assert "refused" in compiles(views) if record == "full" else views
    await lived(file, again, range(9), [], "another", record=record)
    assert again.asked == notes.asked


async def test_without_a_record_the_process_remembers(tmp_path: Path) -> None:
    notes = Priced()
    await lived(None, notes, range(9), [], record="off")
    assert 2 <= notes.asked <= 3


async def test_a_model_without_a_price_is_not_asked(tmp_path: Path) -> None:
    notes = Priced("nobody-1")
    _, views, errors = await lived(tmp_path / "context.db", notes, range(5), [])
    assert notes.asked == 0 and "compiled" in {view.status for view in views}
    assert len(errors) == 1 and "no price is known for nobody-1" in str(errors[0])


async def test_compiles_in_the_background_are_held_to_it_too(tmp_path: Path) -> None:
    notes = Priced()
    await lived(tmp_path / "context.db", notes, range(9), [], background=True)
    assert 1 <= notes.asked <= 3


@pytest.mark.parametrize("given", [0.5, 1, "0.5", "$0", True, Money(1, fallback=100)])
def test_a_limit_is_money(given: Any) -> None:
    with pytest.raises(SettingsError, match="compile_spend_limit|US dollars"):
        ContextCompiler(compile_spend_limit=given)
