"""A message is named by what it says and by what came before, the same on every host and after every reload."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    RetryFeedbackPart,
    RetryInfo,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.ids import CHAIN, blob_id, chain_id, identity, text_hash
from context_compiler.messages.bodies import load_messages, message_body
from tests.support.histories import histories
from tests.support.parts import retry_prompt
from tests.support.texts import texts


def name(message: ModelMessage) -> str:
    return identity(message_body(message))


def request(*parts: Any, **fields: Any) -> ModelRequest:
    return ModelRequest(parts=list(parts), **fields)


@given(histories(future=False))
def test_a_message_keeps_its_name_when_it_is_loaded_again(history: list[ModelMessage]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_messages([message_body(message) for message in history])
        assert [name(message) for message in loaded] == [name(message) for message in history]


DETAILS = [{"type": "missing", "loc": ("a", 1), "msg": "Field required", "input": {"a": 1}}]


@pytest.mark.parametrize("content", ["try again", DETAILS])
@pytest.mark.parametrize("tool", ["look", None])
def test_a_retry_prompt_keeps_its_name_when_the_host_loads_it_as_something_else(content: Any, tool: str | None) -> None:
    message = request(retry_prompt(content, tool=tool, ident="call_1"))
    (loaded,) = load_messages([message_body(message)])
    assert loaded.parts[0].part_kind != "retry-prompt"
    assert name(loaded) == name(message)


def test_an_answer_to_a_call_and_one_to_no_call_have_different_ids() -> None:
    answers = request(retry_prompt("again", tool="look", ident="call_1"))
    feedback = request(retry_prompt("again", tool=None))
    assert name(answers) != name(feedback)


CALL: dict[str, Any] = {"part_kind": "tool-call", "tool_name": "look", "args": {"path": "a"}, "tool_call_id": "call_1"}
OLDER: dict[str, Any] = {
    "kind": "response",
    "parts": [CALL],
    "model_name": "one",
    "timestamp": "2025-01-01T00:00:00Z",
    "usage": {"input_tokens": 1},
}
NEWER: dict[str, Any] = {
    "kind": "response",
    "parts": [{**CALL, "id": None, "provider_details": None, "tool_kind": None}],
    "model_name": "two",
    "timestamp": "2026-06-06T00:00:00Z",
    "usage": {"input_tokens": 9, "cost": None},
    "history_digest": None,
    "workspace_ref": {"some": "thing"},
    "run_id": "run-1",
    "metadata": {"seen": True},
}


def test_fields_stamped_by_hosts_do_not_change_the_id() -> None:
    assert identity(json.dumps(OLDER).encode()) == identity(json.dumps(NEWER).encode())


def test_a_part_that_is_not_a_mapping_still_counts_in_the_id() -> None:
    body = json.dumps({"kind": "request", "parts": ["what is this"]}).encode()
    assert identity(body) != identity(json.dumps({"kind": "request", "parts": []}).encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (request(UserPromptPart(content="yes")), request(UserPromptPart(content="no"))),
        (request(UserPromptPart(content="a"), UserPromptPart(content="b")), request(UserPromptPart(content="ab"))),
        (
            request(ToolReturnPart(tool_name="look", content="x", tool_call_id="call_1")),
            request(ToolReturnPart(tool_name="look", content="x", tool_call_id="call_2")),
        ),
        (
            request(UserPromptPart(content="again")),
            request(RetryFeedbackPart(content="again", retry=RetryInfo(cause="model_retry"))),
        ),
    ],
)
def test_anything_that_a_model_sees_changes_the_id(one: ModelMessage, other: ModelMessage) -> None:
    assert name(one) != name(other)


def test_a_chained_id_depends_on_everything_before() -> None:
    first = chain_id(None, "a")
    assert first.startswith(CHAIN)
    assert chain_id(first, "b") == chain_id(chain_id(None, "a"), "b")
    assert len({first, chain_id(first, "a"), chain_id(None, "b"), chain_id(first, "b")}) == 4


@given(texts(blank=True, surrogates=True), st.binary(max_size=20))
def test_every_text_and_every_blob_has_a_hash(text: str, blob: bytes) -> None:
    assert len(text_hash(text)) == 64
    assert len(blob_id(blob)) == 32


def test_a_text_hash_is_what_other_tools_compute() -> None:
    assert text_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
