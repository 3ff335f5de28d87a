"""Whatever the bytes are, they are read or refused; nothing else is ever raised."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import FORMATS, parse_transcripts
from tests.messages.importers.samples import survives

WORDS = ["user", "assistant", "", "\ud83d", "data:image/png;base64,AAAA", "data:,\udc00", "https://example.org/a", "{}"]
KEYS = """role content messages type text name arguments id tool_call_id tool_use_id input kind parts part_kind args
timestamp usage parentId image_url url source data media_type file system thinking signature file_id
mapping current_node author parts content_type chat_messages sender payload uuid parentUuid
message lc kwargs data summary call_id output arguments action observation kind args source
tool_call tool_name cause""".split()

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(WORDS)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


def some(required: str, kinds: str, keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects whose `required` key is one of `kinds`, with any values under the other keys."""
    optional = dict.fromkeys(keys.split(), values)
    return st.fixed_dictionaries({required: st.sampled_from(kinds.split())}, optional=optional)


blocks = some(
    "type",
    "text image_url image document input_audio file refusal tool_use tool_result thinking redacted_thinking toolCall x",
    "text image_url source data mimeType input_audio file refusal name input arguments id tool_use_id content thinking",
)
spoken = some("role", "user assistant toolResult", "timestamp usage toolCallId").flatmap(
    lambda message: st.lists(blocks, max_size=3).map(lambda content: {**message, "content": content})
)
messages = spoken | some(
    "role",
    "system developer user assistant tool function toolResult bashExecution custom branchSummary compactionSummary",
    "content tool_calls function_call tool_call_id name timestamp usage stopReason agent thought thinking_blocks",
)
entries = some("type", "session x compaction custom_message branch_summary", "id parentId content cwd") | st.builds(
    lambda message, more: {"type": "message", "message": message, **more},
    messages,
    st.dictionaries(st.sampled_from(["id", "parentId", "timestamp"]), scalars, max_size=3),
)
kept = some("part_kind", "user-prompt system-prompt tool-return tool-call text thinking file", "content tool_name args")
hosts = some("kind", "request response", "parts usage timestamp") | st.builds(
    lambda kind, parts: {"kind": kind, "parts": parts},
    st.sampled_from(["request", "response"]),
    st.lists(kept, max_size=3),
)
apps = (
    some("sender", "human assistant", "content text attachments files")
    | some("type", "session_meta response_item event_msg turn_context compacted", "payload timestamp")
    | some(
        "type", "function_call function_call_output reasoning message", "name arguments call_id output summary content"
    )
    | some("type", "user assistant system", "uuid parentUuid isSidechain message sessionId")
    | some("type", "human ai tool constructor", "lc id kwargs data content tool_calls tool_call_id")
    | some("source", "user agent environment", "action observation args content cause kind llm_message tool_call")
    | some("id", "a b", "parent children message")
)
lists = (
    st.lists(apps, max_size=4)
    | st.lists(messages, max_size=4)
    | st.lists(entries, max_size=4)
    | st.lists(hosts, max_size=3)
    | st.lists(values)
)
documents = (
    values
    | lists
    | st.builds(lambda a: {"mapping": dict(enumerate(a))}, st.lists(apps, max_size=3))
    | st.builds(lambda m, s: {"messages": m, "system": s}, lists, values)
    | st.lists(lists)
)
formats = st.none() | st.sampled_from(FORMATS)


def read_or_refused(data: bytes, format: str | None) -> None:
    try:
        transcripts = parse_transcripts(data, file="any.json", format=format)
    except TranscriptError as error:
        assert error.file == "any.json"
        return
    assert transcripts
    for transcript in transcripts:
        survives(transcript.messages)
        assert "\n".join((transcript.name, *transcript.notes)).encode()


@given(st.binary() | st.text('{}[]",:\\u0aNn1e9-\n\r\0').map(str.encode), formats)
@example(b'{"role": "user"}\n' * 3 + b"[", None)
def test_any_bytes_are_read_or_refused(data: bytes, format: str | None):
    read_or_refused(data, format)


@given(documents, formats, st.booleans())
def test_any_json_is_read_or_refused(value: object, format: str | None, ascii: bool):
    read_or_refused(json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass"), format)


@given(st.lists(messages | entries | hosts | values, min_size=1, max_size=4), formats)
def test_any_jsonl_is_read_or_refused(values: list[object], format: str | None):
    read_or_refused("\n".join(map(json.dumps, values)).encode(), format)


@given(st.lists(spoken, min_size=1, max_size=4))
def test_the_same_bytes_are_the_same_messages(value: list[object]):
    data = json.dumps(value).encode()
    try:
        assert parse_transcripts(data, file="a.json") == parse_transcripts(data, file="a.json")
    except TranscriptError:
        return
