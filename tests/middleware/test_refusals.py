"""Refusals in the words of real providers: which of them a shorter request helps, and the numbers that they state."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

from context_compiler.middleware.refusals import is_overflow, refusal_of
from tests.support.wordings import TOO_LONG

OTHER: dict[str, tuple[int, Any]] = {
    "anthropic, output": (400, "max_tokens: 90000 > 64000, which is the maximum allowed number of output tokens for m"),
    "anthropic, thinking": (
        400,
        "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at "
        "https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
    ),
    "anthropic, image": (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes"),
    "anthropic, pixels": (
        400,
        "messages.0.content.0.image.source.base64.data: At least one of the image dimensions exceed max allowed size: "
        "8000 pixels",
    ),
    "anthropic, cache": (400, "A maximum of 4 blocks with cache_control may be provided. Found 5."),
    "anthropic, order": (400, "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after"),
    "anthropic, credit": (400, "Your credit balance is too low to access the Anthropic API."),
    "openai, output": (
        400,
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided "
        "100000.",
    ),
    "openai, unsupported": (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    ),
    "openai, id": (
        400,
        {
            "message": "Invalid 'input[2].id': string too long. Expected a string with maximum length 64, but got a "
            "string with length 402 instead.",
            "code": "string_above_max_length",
        },
    ),
    "openai, tools": (400, "Invalid 'tools': array too long. Expected an array with maximum length 128."),
    "openai, rate": (
        429,
        "Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 40000.",
    ),
    "openai, quota": (429, "You exceeded your current quota, please check your plan and billing details."),
    "openai, filter": (400, "The response was filtered due to the prompt triggering the content management policy."),
    "openai, policy": (400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy."),
    "groq, output": (
        400,
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
    ),
    "groq, rate": (
        413,
        {
            "message": "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9905, please "
            "reduce your message size and try again.",
            "code": "rate_limit_exceeded",
        },
    ),
    "bedrock, output": (
        400,
        "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value that "
        "is lower than 4096.",
    ),
    "bedrock, throttling": (400, "ThrottlingException: Too many tokens, please wait before trying again."),
    "gemini, output": (
        400,
        "Unable to submit request because it has a maxOutputTokens value of 100000 but the supported range is from 1 "
        "(inclusive) to 65537 (exclusive).",
    ),
    "gemini, cache": (
        400,
        "Cached content is too small. total_token_count=500, min_total_token_count=1024",
    ),
    "gemini, quota": (400, "Quota exceeded for metric: generate_content_paid_tier_input_token_count, limit: 1000000"),
    "deepseek, output": (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"),
    "dashscope, output": (400, "Range of max_tokens should be [1, 8192]"),
    "fastapi, output": (422, [{"loc": ["body", "max_tokens"], "msg": "Input should be less than or equal to 8192"}]),
    "fastapi, list": (422, [{"loc": ["body", "messages"], "msg": "Input should be a valid list"}]),
    "temperature": (400, "temperature: must be less than or equal to 2"),
    "a small window": (400, "Model context window too small: the minimum is 16000 tokens."),
    "roles": (400, "Conversation roles must alternate user/assistant/user/assistant/..."),
    "no model": (404, "The model `context-window-exceeded` does not exist"),
    "a schema": (400, "Invalid schema for function 'look': context must be an object"),
    "a key": (401, "Incorrect API key provided; the maximum length of a prompt is exceeded"),
    "overload": (503, "the request exceeds the available context size"),
    "nothing": (400, None),
    "a broken server": (500, "Internal server error"),
}
"""Status, and body or message."""


def refused(body: Any, status: int = 400) -> ModelHTTPError:
    return ModelHTTPError(status, "some-model", body={"message": body} if isinstance(body, str) else body)


@pytest.mark.parametrize("name", TOO_LONG)
def test_an_overflow_is_one_in_the_words_of_each_provider(name: str) -> None:
    body, window, tokens = TOO_LONG[name]
    refusal = refusal_of(refused(body))
    assert refusal is not None
    assert refusal.window(512) == window
    size = tokens or 9_000
    assert refusal.counted(0.5 * size, 3 * size) == tokens if tokens else True


@pytest.mark.parametrize("name", TOO_LONG)
def test_an_overflow_is_read_from_a_body_of_text_and_from_a_nested_one_too(name: str) -> None:
    body = TOO_LONG[name][0]
    assert is_overflow(refused(json.dumps(body) if isinstance(body, dict) else body))
    assert is_overflow(refused({"detail": [{"error": body}]}))
    assert is_overflow(ExceptionGroup("all failed", [ValueError("x"), refused(body)]))


@pytest.mark.parametrize("name", OTHER)
def test_a_refusal_that_a_shorter_request_does_not_help_is_none(name: str) -> None:
    status, body = OTHER[name]
    assert not is_overflow(refused(body, status))


@pytest.mark.parametrize("body", [None, {"message": TOO_LONG["together"][0], "code": 400}])
def test_an_error_within_a_stream_is_read_too(body: Any) -> None:
    error = ModelAPIError("some-model", str(TOO_LONG["together"][0]))
    error.body = body
    refusal = refusal_of(error)
    assert refusal is not None and refusal.window(512) == 262_144
    assert not is_overflow(ModelAPIError("some-model", "Connection error."))


def test_any_other_error_is_none_whatever_it_says() -> None:
    assert not is_overflow(ValueError("context_length_exceeded"))


@pytest.mark.parametrize("body", [None, "", {"error": {"message": "Request Entity Too Large"}}])
def test_status_413_says_it_by_itself(body: Any) -> None:
    assert is_overflow(refused(body, 413))


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_window_below_the_floor_is_not_believed_and_nothing_else_taken_for_it(name: str) -> None:
    body, window, _ = TOO_LONG[name]
    small = re.sub(rf"\b(?:{window}|{window or 0:,})\b", "300", json.dumps(body))
    found = refusal_of(refused(json.loads(small)))
    assert found is not None and found.window(512) is None


def test_a_long_or_hostile_body_is_read_in_little_time() -> None:
    for text in ("max " * 50_000, "context length " * 20_000, "1," * 50_000, "[" * 50_000):
        is_overflow(refused(text))
