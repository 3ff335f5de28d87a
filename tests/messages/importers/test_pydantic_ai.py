from __future__ import annotations

import json

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from context_compiler.messages.importers import parse_transcripts
from tests.messages.importers.samples import lines, read, refused

MESSAGES: list[ModelMessage] = [
    ModelRequest(
        parts=[UserPromptPart(content=["See", BinaryContent(data=b"\x89PNG", media_type="image/png")])],
        instructions="Be brief.",
        run_id="r1",
        metadata={"app": "x"},
    ),
    ModelResponse(parts=[ThinkingPart("Hm", signature="s"), ToolCallPart("f", {"a": 1}, "c")], model_name="m"),
    ModelRequest(parts=[ToolReturnPart(tool_name="f", content={"b": [2]}, tool_call_id="c", metadata=[1])]),
    ModelResponse(parts=[TextPart("Done")]),
]


def as_json() -> list[dict[str, object]]:
    return json.loads(ModelMessagesTypeAdapter.dump_json(MESSAGES))


def expected() -> tuple[ModelMessage, ...]:
    return tuple(ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(MESSAGES)))


def test_the_json_of_the_host_is_read_without_loss():
    transcript = read(as_json())
    assert transcript.format == "pydantic-ai"
    assert transcript.messages == expected()


def test_an_object_with_messages_and_one_message_a_line_are_the_same_transcript():
    assert read({"messages": as_json(), "tokens": 5}).messages == expected()
    (transcript,) = parse_transcripts(lines(*as_json()), file="run.jsonl")
    assert (transcript.name, transcript.messages) == ("run", expected())


async def test_the_messages_of_a_run_are_read():
    result = await Agent(TestModel()).run("Hello")
    (transcript,) = parse_transcripts(result.all_messages_json(), file="run.json")
    assert list(transcript.messages) == ModelMessagesTypeAdapter.validate_json(result.all_messages_json())


def test_a_prompt_to_retry_from_an_older_host_is_read():
    older = [{"kind": "request", "parts": [{"part_kind": "retry-prompt", "content": "again", "tool_name": "f"}]}]
    (part,) = read(older).messages[0].parts
    assert isinstance(part, RetryPromptPart | ToolReturnPart)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"part_kind": "hologram", "content": "x"}, "newer Pydantic AI"),
        ({"part_kind": "user-prompt"}, "parts.0.user-prompt"),
        ({"part_kind": "user-prompt", "content": "\ud83d"}, "half a character"),
    ],
)
def test_a_message_that_the_host_cannot_read_is_named(part: dict[str, object], words: str):
    error = refused([*as_json(), {"kind": "request", "parts": [part]}])
    assert error.index == 4
    assert words in str(error)
    assert "errors.pydantic.dev" not in str(error)
