"""What a session cost, in the commands and in the chat; a price that is unknown is said to be."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from context_compiler import ContextCompiler
from tests.cli.conftest import Command, chat, written
from tests.support.agents import Talker
from tests.support.histories import prose


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record of two sessions, of a model that has a price and of one that has none."""
    file = tmp_path / "record.db"

    async def live(name: str, model: str) -> None:
        compiler, history = ContextCompiler(model="none", store=file, system=None), list[ModelMessage]()
        agent = Agent(Talker("ok", model_name=model).model, capabilities=[compiler])
        for turn in range(3):
            done = await agent.run(prose(turn, 50), message_history=history, conversation_id=name)
            history = done.all_messages()

    asyncio.run(live("known", "claude-sonnet-4-5"))
    asyncio.run(live("other", "nobody-1"))
    return file


def test_stats_show_dollars_and_mark_unknown_prices(cc: Command, record: Path) -> None:
    costs = {session["session"]: session["costs"] for session in cc("stats", "--db", record, "--json").json["sessions"]}
    priced, new = costs["known"], costs["other"]
    assert 0 < priced["sent"] == priced["everything"] and priced["compiles"] == 0 and priced["priced"] == 3
    assert new["sent"] is None and new["everything"] is None and new["unknown"] == ["nobody-1"]
    shown = cc("stats", "--db", record, terminal=200).plain
    assert "prices are known for 3 of 6 requests, no price is known for nobody-1" in shown
    assert any("unknown" in line and line.strip().startswith("other") for line in shown.splitlines())


def test_a_view_has_its_cost(cc: Command, record: Path) -> None:
    shown = cc("views", "show", 2, "--db", record).out
    assert "of claude-sonnet-4-5" in shown and "tokens cached; everything $0.00" in shown
    assert "unknown: no price is known for nobody-1" in cc("views", "show", 5, "--db", record).out


def test_the_name_of_a_function_in_place_of_a_model_has_no_colon_at_its_end(cc: Command) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("Yes.")])

    agent = Agent(FunctionModel(answer), capabilities=[ContextCompiler(store="system/context.db", model="none")])
    asyncio.run(agent.run("Is it there?"))
    for command in (("views", "show", 1), ("stats",)):
        assert re.search(r"no price is known for function:answer$", cc(*command).out, re.M), command


def test_bench_uses_the_prices_of_the_named_model(cc: Command, tmp_path: Path) -> None:
    talk = written(tmp_path / "talk.json", chat(6, words=40)[:-1])
    rows = cc("bench", talk, "--budget", 700, "--price", "openai:gpt-5", "--json").json
    assert rows["priced_as"] == "openai:gpt-5" and all(row["money"] > 0 for row in rows["ways"])
    unpriced = cc("bench", talk, "--budget", 700, "--json").json
    assert {row["money"] for row in unpriced["ways"]} == {None}


def test_the_budget_and_limit_of_a_chat_can_be_amounts_of_money(cc: Command) -> None:
    given = ("chat", "--model", "scripted:0", "--endless", "--json", "--budget", "$0.02")
    said = cc(*given, "--compile-spend-limit", "$0.50", input="Hello.\n")
    assert said.code == 0 and said.json["cost"] is None and "no price is known" in said.err
    assert cc(*given, "--compile-spend-limit", "half", input="Hello.\n").code == 2
