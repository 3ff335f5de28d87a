"""A budget in money: what a request costs at most, by the price of the model that serves it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.settings import ModelSettings

from context_compiler import ContextCompiler, Money, View, compile_view
from context_compiler.errors import SettingsError
from context_compiler.tokens.prices import price_of
from tests.support.agents import Talker
from tests.support.histories import long_history

MODEL = "claude-sonnet-4-5"


def attached(talker: Talker, **wanted: Any) -> tuple[Agent[Any, Any], list[View], list[Exception]]:
    views, errors = list[View](), list[Exception]()
    given = {"model": "none", "store": None, "system": None, "on_view": views.append, "on_error": errors.append}
    return Agent(talker.model, capabilities=[ContextCompiler(**given | wanted)]), views, errors


@pytest.mark.parametrize("usd", ["0.003", "0.006", "0.01"])
async def test_no_request_costs_more_than_its_money_even_without_a_cache(usd: str) -> None:
    agent, views, errors = attached(Talker("done", model_name=MODEL), budget=Money(usd))
    price = price_of(MODEL)
    assert price is not None
    for turns in (4, 12, 40):
        await agent.run("and now?", message_history=long_history(turns))
    for view in views:
        assert view.record is not None and price.cost(view.record.tokens_sent) <= Decimal(usd)
    assert views[-1].status == "compiled" and views[-1].budget == price.affordable(Decimal(usd))
    assert not errors


async def test_a_request_that_is_written_to_a_cache_is_held_to_that_price() -> None:
    agent, views, _ = attached(Talker("done", model_name=MODEL), budget="$0.02")
    for settings in ({}, {"anthropic_cache_messages": True}, {"anthropic_cache": "1h"}):
        await agent.run("hello", model_settings=ModelSettings(**settings))  # pyright: ignore[reportArgumentType]
    assert [view.budget for view in views] == [6_666, 5_333, 3_333]


async def test_the_most_expensive_model_of_a_fallback_chain_sets_budget_and_limit() -> None:
    cheap, dear, unknown = (Talker("done", model_name=name) for name in ("gpt-5-mini", MODEL, "nobody-1"))
    for models, budget in (((cheap, dear), 3_333), ((dear, cheap), 3_333), ((cheap, unknown), 900)):
        chain = FallbackModel(*(talker.model for talker in models))
        ours = {"budget": Money("0.01", fallback=900), "model": chain, "compile_spend_limit": "$1"}
        agent, views, errors = attached(models[0], **ours)
        await agent.run("and now?", message_history=long_history(40), model=chain)
        assert 0 <= budget - views[-1].budget <= 1 and views[-1].status == "compiled"
        made = views[-1].record and views[-1].record.compile
        assert made is not None and bool(made.usage) == (budget != 900) and bool(errors) == (budget == 900)


async def test_a_model_without_a_price_gets_the_fallback_and_one_notice() -> None:
    agent, views, errors = attached(Talker("done", model_name="nobody-1"), budget=Money(0.02, fallback=900))
    for _ in range(2):
        await agent.run("and now?", message_history=long_history(12))
    assert [view.budget for view in views] == [900, 900] and views[0].status == "compiled"
    assert [type(error) for error in errors] == [SettingsError]
    assert "no price is known for nobody-1, so it is 900 tokens" in str(errors[0])


async def test_a_line_break_in_a_model_name_does_not_break_the_log_line(caplog: pytest.LogCaptureFixture) -> None:
    agent, _, errors = attached(
        Talker("done", model_name="nobody\n2026-01-01 ERROR: forged"), budget="$0.02", compile_spend_limit="$1"
    )
    await agent.run("and now?", message_history=long_history(12))
    assert "nobody 2026-01-01 ERROR: forged" in str(errors[0])
    assert caplog.messages and not any("\n" in line for line in caplog.messages)


async def test_without_a_fallback_an_unpriced_model_has_the_default_budget() -> None:
    agent, views, errors = attached(Talker("done", model_name="nobody-1"), budget=Money(0.02))
    await agent.run("hello")
    assert views[0].budget == 32_000 and "32,000 tokens" in str(errors[0])


async def test_an_agent_file_names_money_as_text(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("model: test\ncapabilities:\n  - ContextCompiler: {budget: $0.02, store: null, system: null}\n")
    agent = Agent.from_file(file, custom_capability_types=[ContextCompiler])
    assert (await agent.run("hello", model=Talker("done", model_name=MODEL).model)).output == "done"


@pytest.mark.parametrize("given", ["0.02", "$", "$0", "two dollars"])
def test_an_invalid_amount_of_money_is_refused(given: str) -> None:
    with pytest.raises(SettingsError):
        ContextCompiler(budget=given)


async def test_a_one_shot_view_is_priced_by_the_given_model() -> None:
    with pytest.raises(SettingsError, match="no price is known for model='none'"):
        await compile_view(long_history(4), budget=Money(0.02))
    view = await compile_view(
        long_history(40), budget=Money(0.006), model=Talker("- notes", model_name=MODEL).model, system=None
    )
    assert view.budget == 2_000 and view.tokens <= 2_000
