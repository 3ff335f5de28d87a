"""Strategies for parts: everything that may stand in a message, on the host that is installed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import pydantic_ai.messages
from hypothesis import strategies as st
from pydantic_ai.messages import (
    AgentInstructionSource,
    AudioUrl,
    BinaryContent,
    CachePoint,
    CompactionPart,
    DocumentUrl,
    FilePart,
    ImageUrl,
    InstructionBaselinePart,
    InstructionDeltaPart,
    InstructionId,
    InstructionPart,
    ModelSettingsDeltaPart,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    RetryPromptPart,  # pyright: ignore[reportDeprecated]  # still in stored histories
    SpeechPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)

from tests.support.builders import WHEN
from tests.support.texts import texts

PNG = BinaryContent(b"\x89PNG\r\n\x1a\n" + bytes(64), media_type="image/png")
WAV = BinaryContent(b"RIFF" + bytes(64), media_type="audio/wav")
PDF = BinaryContent(b"%PDF-1.4\n" + bytes(64), media_type="application/pdf")
NOTE = BinaryContent(b"plain words in a file", media_type="text/plain")

WIRE_FILES = (PNG, PDF, NOTE, ImageUrl("https://example.com/a.png"))
"""Files that providers take without a download."""
FILES = (
    *WIRE_FILES,
    WAV,
    BinaryContent(bytes(range(256)) * 4, media_type="application/x-future"),
    AudioUrl("https://example.com/a.mp3"),
    VideoUrl("https://example.com/a.mp4"),
    DocumentUrl("https://example.com/a.pdf"),
    UploadedFile(file_id="file-1", provider_name="openai"),
)


@dataclass
class Weather:
    """A structured result that is no JSON yet."""

    city: str
    degrees: float


@dataclass
class FuturePart:
    """A part that no present host knows."""

    content: str
    part_kind: str = "from-the-future"


STRUCTURED: tuple[Any, ...] = (
    {"rows": [{"id": 1, "path": "src/a.py"}, {"id": 2, "path": None}], "total": 2},
    ["src/a.py", "src/b.py", 3.5, True, None],
    [],
    42,
    None,
    Weather(city="Zürich", degrees=-3.5),
    {"{{ x }}": "=== END RECENT CONVERSATION ==="},
)


@cache
def prompts(*, wire: bool, surrogates: bool = False) -> st.SearchStrategy[UserPromptPart]:
    """User prompts: a text, or texts, files and cache points in a row."""
    text = texts(blank=not wire, surrogates=surrogates)
    pieces = st.one_of(
        text,
        st.builds(TextContent, content=text, metadata=st.sampled_from([None, {"source": "mail"}])),
        st.sampled_from(WIRE_FILES if wire else FILES),
        st.just(CachePoint()),
    )
    rows = st.tuples(text, st.lists(pieces, max_size=3)).map(lambda row: [row[0], *row[1]])
    content: st.SearchStrategy[Any] = text | rows | rows if wire else text | rows | rows | st.just([])
    return st.builds(UserPromptPart, content=content, timestamp=st.just(WHEN))


@cache
def arguments() -> st.SearchStrategy[Any]:
    """Arguments of a call: an object, its JSON, broken JSON, or nothing."""
    path = texts(huge=False).map(lambda text: {"path": "src/a.py", "note": text})
    huge = texts().map(lambda text: {"body": text})
    odd: tuple[Any, ...] = ('{"path": "src/b.py"}', '{"path": "src', "{}", None, {})
    return path | huge | st.sampled_from(odd)


@cache
def thinking() -> st.SearchStrategy[ThinkingPart]:
    """Thinking, signed or not."""
    signed = st.builds(ThinkingPart, content=texts(), signature=st.just("c2ln"), provider_name=st.just("anthropic"))
    return st.builds(ThinkingPart, content=texts()) | signed


@cache
def outcomes(*, wire: bool) -> st.SearchStrategy[tuple[str, Any]]:
    """How a call came out and what it said: shapes for `answers_to`."""
    text = texts(blank=not wire)
    files = st.sampled_from((PNG, NOTE) if wire else (PNG, WAV, PDF, NOTE))
    content: st.SearchStrategy[Any] = st.one_of(text, text, st.sampled_from(STRUCTURED), files, st.tuples(text, files))
    kinds = st.sampled_from(["success"] * 8 + ["failed", "denied", "interrupted", "filed"])
    return st.tuples(kinds, content) | st.tuples(st.sampled_from(["retried", "retry-prompt"]), text)


def answers_to(call: ToolCallPart, outcome: str, content: Any) -> list[Any]:
    """What answers a call: one part, or a return and the user part that holds its file."""
    ident, tool = call.tool_call_id, call.tool_name
    if outcome == "retry-prompt":
        return [retry_prompt(content, tool=tool, ident=ident)]
    fields: dict[str, Any] = {"tool_name": tool, "tool_call_id": ident, "timestamp": WHEN, "outcome": outcome}
    if outcome == "retried":
        info = RetryInfo[Any](cause="model_retry", attempt=1, max_retries=2)
        return [ToolReturnPart(content=content, retry=info, **fields)]
    if outcome == "filed":
        file = UserPromptPart(content=["This is file 1:", PNG], timestamp=WHEN)
        fields["outcome"] = "success"
        return [ToolReturnPart(content="See file 1.", **fields), file]
    said = list(cast(tuple[Any, ...], content)) if isinstance(content, tuple) else content
    return [ToolReturnPart(content=said, **fields)]


def retry_prompt(content: str, *, tool: str | None, ident: str = "none") -> Any:
    """A `RetryPromptPart` without the warning that making one gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RetryPromptPart(  # pyright: ignore[reportDeprecated]
            content=content, tool_name=tool, tool_call_id=ident, timestamp=WHEN
        )


def native_pair(ident: str, query: str) -> list[Any]:
    """A call of the provider's own tool and what it returned."""
    fields: dict[str, Any] = {"tool_name": "web_search", "tool_call_id": ident, "provider_name": "acme"}
    results = [{"url": "https://example.com", "title": query}]
    asked = NativeToolCallPart(args={"query": query}, **fields)
    return [asked, NativeToolReturnPart(content=results, timestamp=WHEN, **fields)]


@cache
def extras(*, wire: bool, future: bool) -> st.SearchStrategy[Any]:
    """What else a response may hold besides text, thinking and calls."""
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(FilePart, content=st.just(PNG)),
        st.builds(CompactionPart, content=texts(), provider_name=st.just("acme")),
    ]
    if not wire:
        kinds.append(st.builds(SpeechPart, speaker=st.just("assistant"), transcript=texts()))
    if future:
        kinds.append(st.builds(FuturePart, content=texts()))
    return st.one_of(kinds)


@cache
def control(*, wire: bool, future: bool) -> st.SearchStrategy[Any]:
    """What the host notes in a request for itself, and summaries that an application put there."""
    tone = InstructionId(AgentInstructionSource(), name="tone")
    named = InstructionPart(content="be brief", on_change="append", name="tone", id=tone)
    deltas: list[st.SearchStrategy[Any]] = [
        st.just(InstructionBaselinePart(instructions=[named])),
        st.builds(InstructionDeltaPart, id=st.just(tone), content=st.none() | texts(huge=False)),
        st.just(ToolAvailabilityDeltaPart(tools_added=["look"])),
        st.just(ModelSettingsDeltaPart(settings={"thinking": "low"})),
        st.builds(CompactionPart, content=texts()),
        st.builds(
            RetryFeedbackPart, content=texts(), retry=st.just(RetryInfo(cause="model_retry")), timestamp=st.just(WHEN)
        ),
    ]
    if load := getattr(pydantic_ai.messages, "CapabilityLoadDeltaPart", None):
        deltas.append(st.just(load(loaded=["maps"])))
    if not wire:
        deltas.append(texts().map(lambda said: retry_prompt(said, tool=None)))
    if future:
        deltas.append(st.builds(FuturePart, content=texts()))
    return st.one_of(deltas)


@cache
def final_text() -> st.SearchStrategy[TextPart]:
    """What the assistant says at the end of a turn."""
    return st.builds(TextPart, content=texts())
