"""Small chains, compiles and entries to record; each says only what a test is about."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)

from context_compiler import ids
from context_compiler.record.values import Chain, Compile, Cycle, Drop, Entry, Record

NOW = datetime.now(UTC)

TOOLS = """[{"kind": "function", "name": "forecast", "description": "The weather of a day.",
 "parameters": {"type": "object", "properties": {"day": {"type": "string"}}}}]"""


class Talk:
    """A chain of texts, the user's first and then in turn; remembers which bodies were read."""

    def __init__(self, *texts: str, when: datetime = NOW) -> None:
        self.texts = texts
        self.when = when
        self.read: list[int] = []
        self._bodies = [body(text, index, when) for index, text in enumerate(texts)]
        names: list[str] = []
        for message in self._bodies:
            names.append(ids.chain_id(names[-1] if names else None, ids.identity(message)))
        self.ids: Sequence[str] = names

    @property
    def tip(self) -> str:
        return self.ids[-1]

    @property
    def bodies(self) -> list[bytes]:
        return list(self._bodies)

    def body(self, index: int) -> bytes:
        self.read.append(index)
        return self._bodies[index]

    def text(self, index: int) -> str:
        return self.texts[index]

    def then(self, *texts: str) -> Talk:
        return Talk(*self.texts, *texts, when=self.when)


def body(text: str, position: int, when: datetime = NOW) -> bytes:
    message: ModelMessage = (
        ModelRequest(parts=[UserPromptPart(content=text, timestamp=when)])
        if position % 2 == 0
        else ModelResponse(parts=[TextPart(content=text)], timestamp=when)
    )
    return ModelMessagesTypeAdapter.dump_json([message])[1:-1]


def talk(turns: int, *, about: str = "the weather") -> Talk:
    """As many questions, all but the last one answered."""
    return Talk(*(f"{'question' if at % 2 == 0 else 'answer'} {at} on {about}" for at in range(2 * turns - 1)))


def compiled(covered: str = "", **changes: Any) -> Compile:
    """A compile that went well and may be used again."""
    usual = Compile(
        session_id="s",
        vault_name="",
        turn_index=0,
        run_id="run-0",
        covered_tip=covered,
        cache_key=None,
        template_name="chat_compiler",
        template_source="builtin",
        template_path="templates/chat_compiler.md",
        template_hash=ids.text_hash("a template"),
        fidelity="summary:medium",
        model_alias="test",
        compiled_prompt="Summarise: " + "what was said " * 40,
        raw_output="They spoke of the weather.",
        summary="They spoke of the weather.",
        summary_json={"topic": "weather"},
        input_payload={"turns": [0, 1], "latest": "and tomorrow?"},
        sections_included=("constraints", "recent_turns"),
        sections_dropped=(Drop(what="plan", reason="no room", tokens=12),),
        budget_used=7,
        survival=0.5,
        latency_ms=812.5,
        usage={"input_tokens": 300, "output_tokens": 7},
        status="ok",
        error=None,
        created_at=NOW,
    )
    return replace(usual, **changes)


def request(raw: Chain | None, view: Chain | None = None, **values: Any) -> Entry:
    """An entry of session `s`: one request per turn of `raw`, which is sent as it is unless there is a view."""
    chains = {"tools": TOOLS, **{name: values.pop(name) for name in ("compile", "cycle", "tools") if name in values}}
    sent = view or raw
    turn = (len(raw.ids) - 1) // 2 if raw is not None else 0
    usual = Record(
        session_id="s",
        vault_name="",
        turn_index=turn,
        run_id=f"run-{turn}",
        request_index=0,
        raw_tip=raw.ids[-1] if raw and raw.ids else None,
        view_tip=sent.ids[-1] if sent and sent.ids else None,
        status="raw" if view is None else "compiled",
        error=None,
        budget=8_000,
        tokens_raw=100,
        tokens_sent=40,
        tokens_exact=32,
        ratio=1.25,
        ledger={"kept": {"recent turn": 3}, "dropped": [{"reason": "old", "count": 1}]},
        request_hash="0" * 64,
        latency_ms=1.5,
        created_at=NOW,
    )
    return Entry(record=replace(usual, **values), raw=raw, view=sent, **chains)


def cycle(tip: str, state: str = "{}", config: str = "c") -> Cycle:
    return Cycle(tip=tip, config=config, state=state)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def ask(path: Path, query: str) -> list[tuple[object, ...]]:
    """What another program reads in the file."""
    db = sqlite3.connect(path)
    rows = db.execute(query).fetchall()
    db.close()
    return rows
