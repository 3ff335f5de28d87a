"""Chat Completions on loopback, as strict about the shape of a conversation as OpenAI is.

with OpenAIServer([[("look", {"path": "a"})], "done"]) as server:
    agent = Agent(server.model("gpt-4o"), tools=[look])

Not checked: the spelling and length of ids, and what models, tools and settings exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from tests.support.loopback import Answer, LoopbackServer, Refusal, arguments_text, fresh_id, pieces
from tests.support.wire import Body

if TYPE_CHECKING:
    from pydantic_ai.models.openai import OpenAIChatModel

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
CONTENT = ("text", "image_url", "input_audio", "file", "refusal")

Messages = list[dict[str, Any]]


class OpenAIServer(LoopbackServer):
    """OpenAI's Chat Completions, plain and streamed."""

    root = "/v1"
    path = "/v1/chat/completions"

    def model(self, name: str = "gpt-4o", **settings: Any) -> OpenAIChatModel:
        """A model that talks to this server, without retries of its own; `settings` go to `OpenAIChatModel`."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # a second, which collecting tests does not wait for
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = AsyncOpenAI(
            base_url=self.base_url,
            api_key="test",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False),
        )
        return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client), **settings)

    def validate(self, body: Body) -> None:
        messages = body.get("messages")
        if not isinstance(body.get("model"), str):
            raise _refusal("you must provide a model parameter", param=None)
        for rule in RULES:
            rule(messages)

    def overflow(self, tokens: int, window: int) -> Refusal:
        text = (
            f"This model's maximum context length is {window} tokens. However, your messages resulted in "
            f"{tokens} tokens. Please reduce the length of the messages."
        )
        return _refusal(text, code="context_length_exceeded")

    def error(self, refusal: Refusal) -> Body:
        details = {"param": None, "code": None, **refusal.details}
        return {"error": {"message": refusal.message, "type": refusal.kind, **details}}

    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        calls = [
            {
                "id": fresh_id("call"),
                "type": "function",
                "function": {"name": call[0], "arguments": arguments_text(call)},
            }
            for call in answer.calls
        ]
        message = {"role": "assistant", "content": answer.text or None, "refusal": None}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
        return {**_envelope(body, "chat.completion"), "choices": [choice], "usage": self._usage(answer, tokens)}

    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        envelope = {**_envelope(body, "chat.completion.chunk"), "usage": None}
        for delta in _deltas(answer):
            yield _event({**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield _event({**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]})
        options: Body = body.get("stream_options") or {}
        if options.get("include_usage"):
            yield _event({**envelope, "choices": [], "usage": self._usage(answer, tokens)})
        yield b"data: [DONE]\n\n"

    def _usage(self, answer: Answer, tokens: int) -> Body:
        output = self.answer_tokens(answer)
        return {
            "prompt_tokens": tokens,
            "completion_tokens": output,
            "total_tokens": tokens + output,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        }


class TemplateServer(OpenAIServer):
    """A local server, whose chat template lets user and assistant take turns, as those of Mistral and Gemma do."""

    def validate(self, body: Body) -> None:
        super().validate(body)
        turns = [
            message["role"]
            for message in body["messages"]
            if message["role"] in ("user", "assistant") and not message.get("tool_calls")
        ]
        if any(role != ("user", "assistant")[index % 2] for index, role in enumerate(turns)):
            raise _refusal("Conversation roles must alternate user/assistant/user/assistant/...")


def _envelope(body: Body, kind: str) -> Body:
    return {"id": fresh_id("chatcmpl"), "object": kind, "created": 1_700_000_000, "model": body["model"]}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _deltas(answer: Answer) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(answer.text):
        yield {"content": piece}
    for index, call in enumerate(answer.calls):
        opening = {"name": call[0], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": fresh_id("call"), "type": "function", "function": opening}]}
        for piece in pieces(arguments_text(call)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _event(data: Body) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def _refusal(message: str, *, param: str | None = "messages", code: str | None = None) -> Refusal:
    return Refusal(message, param=param, code=code)


def has_messages(messages: Messages | None) -> None:
    if not isinstance(messages, list):
        raise _refusal("Missing required parameter: 'messages'.", code="missing_required_parameter")
    if not messages:
        text = (
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead."
        )
        raise _refusal(text, code="empty_array")


def roles_are_known(messages: Messages) -> None:
    for index, message in enumerate(messages):
        if message.get("role") not in ROLES:
            supported = ", ".join(f"'{role}'" for role in ROLES)
            text = f"Invalid value: '{message.get('role')}'. Supported values are: {supported}."
            raise _refusal(text, param=f"messages[{index}].role", code="invalid_value")


def _parts(content: Any) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], content) if isinstance(content, list) else []


def a_user_speaks(messages: Messages) -> None:
    if not any(message["role"] == "user" for message in messages):
        raise _refusal("Invalid 'messages': at least one message with role 'user' is required.")


def content_is_there(messages: Messages) -> None:
    for index, message in enumerate(messages):
        content: Any = message.get("content")
        path = f"messages[{index}].content"
        if message["role"] == "user" and not content:
            raise _refusal(f"Invalid '{path}': a user message must not be empty.", param=path, code="empty_content")
        if content is None and not message.get("tool_calls"):
            raise _refusal("Invalid value for 'content': expected a string, got null.", param=path)
        for position, part in enumerate(_parts(content)):
            if part.get("type") not in CONTENT:
                raise _refusal(
                    f"Invalid value: '{part.get('type')}'.", param=f"{path}[{position}]", code="invalid_value"
                )
            if part["type"] == "text" and message["role"] == "user" and not part.get("text"):
                raise _refusal(f"Invalid '{path}[{position}].text': empty string.", param=f"{path}[{position}].text")


def results_follow_their_calls(messages: Messages) -> None:
    waiting: list[str] = []
    answered: set[str] = set()
    caller = 0
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            answered.add(_answered(message, index, waiting, answered))
            continue
        _all_answered(waiting, answered, caller)
        waiting, answered, caller = _ids(message, index), set[str](), index
    _all_answered(waiting, answered, caller)


def _ids(message: dict[str, Any], index: int) -> list[str]:
    ids = [call["id"] for call in message.get("tool_calls") or ()]
    for ident in ids:
        if ids.count(ident) > 1:
            raise _refusal(
                f"Duplicate value for 'id': '{ident}' in 'tool_calls'.", param=f"messages.[{index}].tool_calls"
            )
    return ids


def _answered(message: dict[str, Any], index: int, waiting: list[str], answered: set[str]) -> str:
    ident = message.get("tool_call_id")
    if ident in answered:
        text = f"Duplicate value for 'tool_call_id': '{ident}' was already answered."
        raise _refusal(text, param=f"messages.[{index}].tool_call_id")
    if not isinstance(ident, str) or ident not in waiting:
        text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
        raise _refusal(f"Invalid parameter: {text}", param=f"messages.[{index}].role")
    return ident


def _all_answered(waiting: list[str], answered: set[str], caller: int) -> None:
    if missing := [ident for ident in waiting if ident not in answered]:
        text = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}"
        )
        raise _refusal(text, param=f"messages.[{caller}].role")


RULES: tuple[Callable[[Any], None], ...] = (
    has_messages,
    roles_are_known,
    a_user_speaks,
    content_is_there,
    results_follow_their_calls,
)
