"""Refusals in the words of real providers: which of them a shorter request helps, and the numbers that they state."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError

from context_compiler.middleware.refusals import is_overflow, refusal_of

TOO_LONG: dict[str, tuple[Any, int | None, int | None]] = {
    "openai, messages": (
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. "
        "Please reduce the length of the messages.",
        8_192,
        8_545,
    ),
    "openai, completions": (
        "This model's maximum context length is 4097 tokens, however you requested 4116 tokens (3860 in your prompt; "
        "256 for the completion). Please reduce your prompt; or completion length.",
        4_097,
        3_860,
    ),
    "openai, responses": (
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
        None,
    ),
    "openai, configured limit": (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens. Please "
        "reduce the length of the messages.",
        272_000,
        289_650,
    ),
    "a code alone": ({"error": {"message": "", "code": "context_length_exceeded"}}, None, None),
    "another code alone": ({"error": {"type": "exceed_context_size_error"}}, None, None),
    "anthropic": ("prompt is too long: 213462 tokens > 200000 maximum", 200_000, 213_462),
    "anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
        200_000,
        188_240,
    ),
    "gemini": (
        "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
        1_048_575,
        1_196_265,
    ),
    "vertex": (
        "Unable to submit request because the input token count is 1500000 but model only supports up to 1048576. "
        "Reduce the input token count and try again.",
        1_048_576,
        1_500_000,
    ),
    "bedrock": ("Input is too long for requested model.", None, None),
    "bedrock, nova": (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        None,
        None,
    ),
    "bedrock, cohere": (
        "Too many input tokens. Max input tokens: 8192, request input token count: 9905",
        8_192,
        9_905,
    ),
    "mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        32_768,
        40_000,
    ),
    "groq": ("Please reduce the length of the messages or completion.", None, None),
    "xai": (
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        131_072,
        537_812,
    ),
    "cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 9905. Try using a shorter "
        "prompt, or enable prompt truncating.",
        4_081,
        None,
    ),
    "together": (
        "The input (265330 tokens) is longer than the model's context length (262144 tokens).",
        262_144,
        265_330,
    ),
    "together, inputs": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9905 `inputs` tokens and "
        "512 `max_new_tokens`",
        8_193,
        9_905,
    ),
    "tgi": ("Input validation error: `inputs` must have less than 1024 tokens. Given: 1500", 1_024, 1_500),
    "openrouter": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": json.dumps(
                        {
                            "error": {
                                "message": "This endpoint's maximum context length is 131072 tokens. However, you "
                                "requested about 195008 tokens (163008 of text input, 32000 in the output)."
                            }
                        }
                    )
                },
            }
        },
        131_072,
        163_008,
    ),
    "llama.cpp": (
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1311,
                "n_ctx": 1024,
            }
        },
        1_024,
        1_311,
    ),
    "llama.cpp, newer": (
        "request (1311 tokens) exceeds the available context size (1024 tokens), try increasing it",
        1_024,
        1_311,
    ),
    "llama.cpp, while it answers": ("Context size has been exceeded.", None, None),
    "vllm": (
        "This model's maximum context length is 32768 tokens. However, you requested 41648 tokens (37552 in the "
        "messages, 4096 in the completion). Please reduce the length of the messages or completion.",
        32_768,
        37_552,
    ),
    "vllm, input tokens": (
        "You passed 9905 input tokens and requested 512 output tokens. However, the model's context length is only "
        "8192 tokens, resulting in a maximum input length of 7680 tokens. Please reduce the input length.",
        8_192,
        9_905,
    ),
    "vllm, at least": (
        "This model's maximum context length is 131072 tokens. However, you requested 16000 output tokens and your "
        "prompt contains at least 115073 input tokens, for a total of at least 131073 tokens. Please reduce the length "
        "of the input prompt or the number of requested output tokens.",
        131_072,
        115_073,
    ),
    "vllm, answer": (
        "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 8192 "
        "tokens and your request has 7254 input tokens (2000 > 8192 - 7254).",
        8_192,
        7_254,
    ),
    "vllm, decoder": (
        "The decoder prompt (length 9905) is longer than the maximum model length of 8192. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens.",
        8_192,
        9_905,
    ),
    "vllm, total length": (
        "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
        4_096,
        25_938,
    ),
    "sglang": (
        "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of "
        "9905 tokens: 8881 tokens from the input messages and 1024 tokens for the completion.",
        8_192,
        8_881,
    ),
    "ollama": ("prompt too long; exceeded max context length by 1713 tokens", None, None),
    "ollama, input": ("the input length exceeds the context length", None, None),
    "lm studio": (
        "Trying to keep the first 9905 tokens when context the overflows. However, the model is loaded with context "
        "length of only 8192 tokens, which is not enough.",
        8_192,
        None,
    ),
    "lm studio, older": ("The number of tokens to keep is greater than the context length", None, None),
    "copilot": (
        {
            "message": "prompt token count of 145000 exceeds the limit of 128000",
            "code": "model_max_prompt_tokens_exceeded",
        },
        128_000,
        145_000,
    ),
    "dashscope": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
        129_024,
        None,
    ),
    "z.ai": ({"error": {"message": "Prompt exceeds max length", "code": "1261"}}, None, None),
    "moonshot": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        262_144,
        300_000,
    ),
    "minimax": ("invalid params, context window exceeds limit (2013)", None, None),
    "workers ai": (
        "AiError: The estimated number of input and maximum output tokens (9905) exceeded this model context window "
        "limit (8192).",
        8_192,
        None,
    ),
    "poolside": (
        "Input length 265330 exceeds the maximum allowed input length of 262144 tokens.",
        262_144,
        265_330,
    ),
    "fireworks": ("The prompt is too long: 140000, model maximum context length: 131071", 131_071, 140_000),
    "cerebras": (
        "Please reduce the length of the messages or completion. Current length is 9905 while limit is 8192",
        8_192,
        9_905,
    ),
    "watsonx": (
        "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
        4_096,
        5_000,
    ),
    "doubao": ("Total tokens of image and text exceed max message tokens", None, None),
    "databricks": ("Bad request: prompt token count (9905) cannot exceed 8192", 8_192, 9_905),
    "tabbyapi": ("Prompt length 9905 is greater than max_seq_len 8192", 8_192, 9_905),
    "ds4": ("Prompt has 300,000 tokens, but the configured context size is 131,072 tokens", 131_072, 300_000),
    "litellm": ("litellm.ContextWindowExceededError: litellm.BadRequestError: ...", None, None),
    "openai, messages array": (
        "Invalid 'messages': array too long. Expected an array with maximum length 2048.",
        None,
        None,
    ),
}
"""Body or message, context window, and tokens of the input."""

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
    found = refusal_of(refused(body))
    assert found is not None
    assert found.window(512) == window
    size = tokens or 9_000
    assert found.counted(0.5 * size, 3 * size) == tokens if tokens else True


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
    found = refusal_of(error)
    assert found is not None and found.window(512) == 262_144
    assert not is_overflow(ModelAPIError("some-model", "Connection error."))


def test_any_other_error_is_none_whatever_it_says() -> None:
    assert not is_overflow(ValueError("context_length_exceeded"))


@pytest.mark.parametrize("body", [None, "", {"error": {"message": "Request Entity Too Large"}}])
def test_status_413_says_it_by_itself(body: Any) -> None:
    assert is_overflow(refused(body, 413))


def test_a_window_below_the_floor_is_not_believed() -> None:
    found = refusal_of(refused("This model's maximum context length is 8 tokens; the prompt has 9000 tokens."))
    assert found is not None and found.window(512) is None


def test_a_long_or_hostile_body_is_read_in_little_time() -> None:
    for text in ("max " * 50_000, "context length " * 20_000, "1," * 50_000, "[" * 50_000):
        is_overflow(refused(text))
