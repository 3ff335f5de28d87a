"""A request reads like a conversation: folded parts, calls beside results, highlighted code, differences by words."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from starlette.testclient import TestClient

from context_compiler import ContextCompiler
from context_compiler.web.app import create_app
from tests.web.conftest import HOSTILE, requests_of

CODE = f"def pay(order):\n    return '{HOSTILE}' + order  # refund\n"


def test_calls_and_results_are_lines_until_opened(tmp_path: Path) -> None:
    def read_file(path: str) -> str:
        return CODE

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("read_file", {"path": "src/pay.py"}, tool_call_id="c1")])
        return ModelResponse(parts=[TextPart('Look:\n```json\n{"total": 42}\n```\nDone.')])

    db = tmp_path / "context.db"
    compiler = ContextCompiler(model="none", store=db, system=None)

    async def record() -> None:
        agent = Agent(FunctionModel(answer), tools=[read_file], capabilities=[compiler])
        done = await agent.run("What does it return?", conversation_id="code")
        await agent.run("And now?", message_history=done.all_messages(), conversation_id="code")

    asyncio.run(record())
    with TestClient(create_app(db, system=None), base_url="http://127.0.0.1") as client:
        page = client.get("/requests/3").text
    call, result = re.findall(r'<details class="cc-part cc-kind-(?:call|return)">.*?</details>', page, re.DOTALL)
    assert "read_file</span>" in call and "path=src/pay.py" in call
    assert '<span class="h-nt">"path"</span>' in html.unescape(call)
    assert '<span class="args">path=src/pay.py</span>' in result and "2 lines" in result
    assert (
        '<span class="h-k">def</span>' in result and HOSTILE not in page and html.escape(HOSTILE, quote=False) in page
    )
    assert '<span class="h-mi">42</span>' in page
    assert re.findall(r'<a href="#(m\d+)"', page) == re.findall(r'<article class="cc-message [^"]*" id="(m\d+)"', page)


def test_all_that_a_view_adds_is_a_line_until_opened(client: TestClient) -> None:
    newest = requests_of(client, "long")[-1]["id"]
    messages = client.get(f"/api/requests/{newest}").json()["messages"]
    forms = {piece["form"] for message in messages for part in message["parts"] for piece in part["segments"]}
    page = client.get(f"/requests/{newest}").text
    pieces = re.findall(r'<details class="cc-piece"><summary><span class="cc-chip cc-(\w+)">', page)
    assert pieces and set(pieces) == forms & {
        "summary",
        "quoted",
        "recalled",
        "rule",
        "outline",
        "identifier",
        "layers",
    }


def test_a_changed_message_is_compared_by_words_on_both_sides(client: TestClient) -> None:
    requests = requests_of(client, "long")
    changed = [
        (request["id"], row)
        for request in requests
        for row in client.get(f"/api/requests/{request['id']}/diff?with=raw").json()["rows"]
        if row["kind"] == "changed" and {kind for kind, _ in row["words"]} >= {"same", "added"}
    ]
    number, row = changed[-1]
    before, after = (
        "".join(piece["text"] for part in row[side]["parts"] for piece in part["segments"])
        for side in ("before", "after")
    )
    for sign, text in (("removed", before), ("added", after)):
        for kind, words in row["words"]:
            if kind == sign:
                assert "".join(words.split()) in "".join(text.split())
    assert json.dumps(row["words"]).count("added") == sum(kind == "added" for kind, _ in row["words"])
    page = client.get(f"/requests/{number}/diff?with=raw").text
    assert "<ins>" in page and "unified" not in page
