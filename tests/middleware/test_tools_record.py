"""Tools and output schemas on the record: as the provider was sent them, redacted where asked, and never elsewhere."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.output import ToolOutput

from context_compiler import ContextCompiler, MemoryStore, SQLiteStore, TokenCounter, build_compiling_history_processor
from context_compiler.middleware.request import tool_tokens
from context_compiler.record import browse
from context_compiler.record.store import SQLStore
from context_compiler.record.values import NATIVE, Tool
from tests.middleware.keeping import SECRET, Kept
from tests.support.agents import NOTES
from tests.support.histories import long_history


class City(BaseModel):
    """A city."""

    name: str


def forecast(day: str) -> str:
    """The weather of a day, for ann@example.org."""
    return day


async def tools(store: SQLStore) -> tuple[Tool, ...] | None:
    (record, *_) = await store.views()
    return await store.tools(record.id or 0)


async def test_the_record_has_the_tools_and_outputs_that_were_sent():
    store = MemoryStore()
    compiler = ContextCompiler(budget=4_000, store=store, system=None)
    agent = Agent(TestModel(), tools=[forecast], output_type=ToolOutput(City, strict=True), capabilities=[compiler])
    await agent.run("hello")
    recorded = await tools(store)
    assert recorded is not None and [(tool.kind, tool.name, tool.strict) for tool in recorded] == [
        ("function", "forecast", None),
        ("output", "final_result", True),
    ]
    assert recorded[0].description == "The weather of a day, for ann@example.org."
    assert dict(recorded[0].parameters)["properties"] == {"day": {"type": "string"}}
    (*_, record) = await store.views()
    sections = record.ledger["tokens"]
    counted = sum(tool_tokens(tool, TokenCounter()) for tool in recorded)
    assert isinstance(sections, dict) and counted == sections["instructions and schemas"]  # pyright: ignore[reportUnknownArgumentType]
    assert await store.verify() == ()


async def test_an_output_schema_enforced_by_the_provider_is_recorded():
    store = MemoryStore()
    model = TestModel(custom_output_text='{"name": "Oslo"}', profile={"supports_json_schema_output": True})
    agent = Agent(
        model, output_type=NativeOutput(City), capabilities=[ContextCompiler(budget=4_000, store=store, system=None)]
    )
    await agent.run("hello")
    (tool,) = await tools(store) or ()
    assert tool.kind == NATIVE and "name" in tool.parameters["properties"]


async def test_a_history_processor_records_the_tools_that_it_knows(tmp_path: Path):
    store = MemoryStore()
    processor = build_compiling_history_processor(budget=4_000, store=store, system=None)
    await Agent(TestModel(), tools=[forecast], capabilities=[ProcessHistory(processor)]).run("hello")
    assert [tool.name for tool in await tools(store) or ()] == ["forecast"]


async def test_redaction_reaches_every_text_of_a_tool():
    store = MemoryStore()
    compiler = ContextCompiler(
        budget=4_000, store=store, system=None, redact=lambda text: text.replace("day", "***").replace("ann@", "***@")
    )
    await Agent(TestModel(), tools=[forecast], capabilities=[compiler]).run("hello")
    (tool,) = await tools(store) or ()
    assert tool.kind == "function" and tool.description == "The weather of a ***, for ***@example.org."
    assert dict(tool.parameters)["properties"] == {"***": {"type": "string"}}
    assert not [row async for row in store.export() if "ann@" in str(row)]


async def test_metadata_has_no_tools(tmp_path: Path):
    kept = Kept(tmp_path, record="metadata")
    await kept.turn(SECRET)
    assert await tools(SQLiteStore(kept.file, read_only=True)) is None
    assert b"look" not in kept.file.read_bytes()


async def test_other_processes_see_a_compile_while_the_model_writes(tmp_path: Path):
    seen: list[str] = []
    reader = SQLiteStore(tmp_path / "context.db", read_only=True)

    async def write(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        while not seen:
            seen.extend(call.model for call in await reader.perform(browse.calls_in_progress))
        return ModelResponse(parts=[TextPart(NOTES)])

    compiler = ContextCompiler(
        budget=3_000,
        model=FunctionModel(write, model_name="writer"),
        store=tmp_path / "context.db",
        system=None,
        timeout=300,
    )
    agent = Agent(TestModel(), capabilities=[compiler])
    await agent.run("hello", conversation_id="x")
    await agent.run("and now?", message_history=long_history(30), conversation_id="x")
    assert seen == ["writer"] and await reader.perform(browse.calls_in_progress) == []
    await reader.close()
    await compiler.aclose()
