"""What a session cost is on the record: as sent, with everything, and its compiles; what is unknown stays unknown."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.fallback import FallbackModel

from context_compiler import ContextCompiler, Record
from context_compiler.record.costs import Costs, add_costs, compile_cost, request_cost, sizes_of
from context_compiler.record.store import SQLiteStore
from context_compiler.record.totals import sums_of
from context_compiler.record.values import Entry
from context_compiler.tokens.prices import price_of
from tests.support.agents import Talker
from tests.support.anthropic_server import AnthropicServer
from tests.support.histories import prose

MODEL = "claude-sonnet-4-5"
BUDGET = 1_500


async def lived(file: Path, turns: int, *, restart: bool, name: str = MODEL, **wanted: Any) -> list[Record]:
    """The records of a conversation, oldest first; `restart` has a new compiler for every turn."""
    made = {"model": "none", "store": file, "system": None, "budget": BUDGET} | wanted
    compiler, history = ContextCompiler(**made), list[ModelMessage]()
    for turn in range(turns):
        compiler = ContextCompiler(**made) if restart else compiler
        talker = Talker(prose(turn, 60), model_name=name)
        agent = Agent(talker.model, capabilities=[compiler], instructions="Be brief.")
        asked = f"Question {turn}: {prose(turn + 500, 60)}"
        history = (await agent.run(asked, message_history=history, conversation_id="talk")).all_messages()
    return (await compiler.views())[::-1]


async def test_a_request_is_cached_up_to_the_end_of_the_previous_one(tmp_path: Path) -> None:
    records = await lived(tmp_path / "context.db", 10, restart=False)
    statuses = [record.status.partition(";")[0] for record in records]
    assert {"raw", "compiled", "cycle"} <= set(statuses)
    price = price_of(MODEL)
    assert price is not None and request_cost(records[0]).cached == 0
    for before, after, status in zip(records, records[1:], statuses[1:], strict=False):
        cost = request_cost(after)
        assert cost.sent == price.cost(after.tokens_sent, cached=cost.cached)
        assert cost.everything == price.cost(after.tokens_raw, cached=before.tokens_raw)
        if status == "raw":
            assert cost.cached == before.tokens_sent
        elif status == "compiled":
            assert cost.cached < before.tokens_sent / 4


async def test_cached_costs_survive_a_restart(tmp_path: Path) -> None:
    whole = await lived(tmp_path / "one.db", 10, restart=False)
    parts = await lived(tmp_path / "two.db", 10, restart=True)
    assert [record.ledger["price"] for record in parts] == [record.ledger["price"] for record in whole]


async def test_changed_instructions_start_a_new_cache(tmp_path: Path) -> None:
    compiler = ContextCompiler(model="none", store=None, system=None)
    history = list[ModelMessage]()
    for instructions in ("Be brief.", "Be brief.", "Be kind."):
        agent = Agent(Talker("ok", model_name=MODEL).model, capabilities=[compiler], instructions=instructions)
        history = (await agent.run("hello", message_history=history, conversation_id="talk")).all_messages()
    records = (await compiler.views())[::-1]
    assert [request_cost(record).cached > 0 for record in records] == [False, True, False]


async def test_a_dry_run_costs_as_much_as_the_whole_history(tmp_path: Path) -> None:
    for record in await lived(tmp_path / "context.db", 8, restart=False, dry_run=True):
        cost = request_cost(record)
        assert cost.sent is not None and cost.sent == cost.everything


async def costs_of(file: Path) -> Costs:
    """The costs of all that a record contains."""
    store = SQLiteStore(file, read_only=True)
    sums = await store.perform(partial(sums_of, session_id=None, sizes_of=sizes_of))
    await store.close()
    return add_costs(sums.requests, sums.compiles)


async def test_the_costs_of_a_record_are_those_of_its_requests(tmp_path: Path) -> None:
    file, name = tmp_path / "context.db", "gemini-2.5-pro"
    assert len(sizes := sizes_of(name, None)) == 1
    records = await lived(file, 6, restart=False, name=name)
    store, large = SQLiteStore(file), sizes[0] * 2
    for number, sent in enumerate((300, large)):
        changes = {"id": None, "run_id": f"large {number}", "tokens_sent": sent, "tokens_raw": large, "raw_tip": None}
        record = replace(records[0], **changes, view_tip=None)
        records.append(await store.save(Entry(record=record, raw=None, view=None)))
    await store.close()
    costs = await costs_of(file)
    priced = [request_cost(record) for record in records]
    assert costs.sent == sum(cost.sent for cost in priced if cost.sent is not None) > 0
    assert costs.everything == sum(cost.everything for cost in priced if cost.everything is not None)
    assert costs.priced == costs.requests == 8


async def test_a_missing_price_is_unknown_and_not_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="context_compiler"):
        await lived(tmp_path / "context.db", 8, restart=False, name="nobody-1")
    costs = await costs_of(tmp_path / "context.db")
    assert (costs.sent, costs.everything, costs.priced, costs.unknown) == (None, None, 0, ("nobody-1",))
    assert " sent" not in costs.text and "no price is known for " in costs.text
    lines = [line for line in caplog.messages if "→" in line]
    assert lines and all(line.endswith(" s, price unknown") for line in lines)
    await lived(tmp_path / "context.db", 2, restart=False)
    mixed = await costs_of(tmp_path / "context.db")
    assert mixed.sent is not None and mixed.priced == 2 and "2 of 10 requests" in mixed.text


async def test_a_compile_costs_the_tokens_reported_by_its_provider(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def step(body: Any) -> str:
        return "- **Goal**: to be brief." if "RECENT CONVERSATION" in str(body) else prose(len(str(body)), 60)

    with AnthropicServer(step) as server, caplog.at_level(logging.INFO, logger="context_compiler"):
        compiler = ContextCompiler(budget=6_000, store=tmp_path / "context.db", system=None)
        agent = Agent(server.model("claude-sonnet-4-6"), capabilities=[compiler])
        history = list[ModelMessage]()
        for turn in range(8):
            history = (
                await agent.run(prose(turn, 600), message_history=history, conversation_id="talk")
            ).all_messages()
    records = await compiler.views()
    made = next(record.compile for record in records if record.compile is not None)
    price = price_of("claude-sonnet-4-6")
    assert price is not None
    sent, answered = made.usage["input_tokens"], made.usage["output_tokens"]
    assert compile_cost(made) == price.cost(sent, output=answered) > Decimal(0)
    assert (await costs_of(tmp_path / "context.db")).compiles == sum(
        cost
        for number in {record.summary_id for record in records if record.summary_id}
        if (cost := compile_cost(next(record.compile for record in records if record.summary_id == number)))
    )
    assert any(line.endswith(" for the compile") and " sent, $" in line for line in caplog.messages)


async def test_a_fallback_model_costs_at_most_as_much_as_its_dearest_model() -> None:
    models = [Talker("ok", model_name=name).model for name in (MODEL, "gpt-5")]
    compiler = ContextCompiler(model="none", store=None, system=None)
    await Agent(FallbackModel(*models), capabilities=[compiler]).run(prose(1, 300))
    (record,) = await compiler.views()
    prices = [price.cost(record.tokens_sent) for name in (MODEL, "gpt-5") if (price := price_of(name)) is not None]
    assert len(prices) == 2 and request_cost(record).sent == max(prices)
    unpriced = FallbackModel(models[0], Talker("ok", model_name="my own").model)
    await Agent(unpriced, capabilities=[compiler]).run("hello")
    assert request_cost((await compiler.views())[0]).sent is None
