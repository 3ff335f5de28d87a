"""The host and the harness watch prompt caches: a compile moves what is cached on purpose, and is no alarm."""

from __future__ import annotations

from collections import Counter
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.instrumented import InstrumentationSettings

from context_compiler import ContextCompiler, View
from tests.support.agents import unstamped
from tests.support.caching_server import CachingServer
from tests.support.histories import prose
from tests.support.loopback import Answer
from tests.support.wire import Body

COMPACTED = "gen_ai.conversation.compacted"
MODEL = "claude-sonnet-4-6"


def plan(body: Body) -> Answer:
    return Answer(text=prose(len(str(body)) % 1_000, 250))


async def lived(turns: int, *others: Any, **wanted: Any) -> tuple[list[View], list[ReadableSpan], list[ModelMessage]]:
    """Views and the host's spans of a conversation with a server that caches."""
    exporter, views, history = InMemorySpanExporter(), list[View](), list[ModelMessage]()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
    base: dict[str, Any] = {"model": "none", "store": None, "system": None, "budget": 9_000, "on_view": views.append}
    ours = [] if wanted.get("budget", 0) is None else [ContextCompiler(**base | wanted)]
    with CachingServer(plan) as server:
        model = server.model(MODEL, settings={"anthropic_cache": True})
        agent = Agent(model, capabilities=[seen, *others, *ours], instructions="You are a clerk.")
        for turn in range(turns):
            asked = f"Question {turn}: {prose(turn, 450)}"
            history = (
                await agent.run(asked, message_history=history, conversation_id=f"talk{id(views)}")
            ).all_messages()
        assert set(server.statuses) == {200}
        assert "context_compiler" not in "".join(map(str, server.requests))
    requests = [span for span in exporter.get_finished_spans() if span.name.startswith("chat ")]
    return views, requests, history


def alarms(spans: list[ReadableSpan]) -> Counter[str]:
    """Reasons that the host gives for caches that had less, and its events."""
    counts = Counter(str((span.attributes or {}).get("pydantic_ai.cache.collapse_reason")) for span in spans)
    counts["events"] = sum(event.name == "pydantic_ai.cache.collapse" for span in spans for event in span.events)
    del counts["None"]
    return counts


async def test_the_host_sees_a_compile_as_a_compaction() -> None:
    views, spans, _ = await lived(14)
    compiled = sum(view.status == "compiled" for view in views)
    counts = alarms(spans)
    assert compiled >= 2 and counts["compacted"] >= compiled and set(counts) == {"compacted", "events"}
    assert counts["events"] == 0
    marked = [bool((span.attributes or {}).get(COMPACTED)) for span in spans]
    assert marked == [view.status != "raw" for view in views]


async def test_compaction_parts_are_absent_from_history_and_view() -> None:
    views, _, history = await lived(6)
    _, _, plain = await lived(6, budget=None)
    assert "compaction" not in str(unstamped(history)) and len(history) == len(plain)
    assert all(part.part_kind != "compaction" for view in views for message in view.messages for part in message.parts)
