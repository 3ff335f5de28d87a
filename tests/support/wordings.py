"""Refusals of requests that are too long, in the words of real providers."""

from __future__ import annotations

import json
from typing import Any

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
