"""Anthropic's Messages on loopback, as strict about tool results, roles, thinking and empty texts as Anthropic is.

with AnthropicServer([[("look", {"path": "a"})], "done"]) as server:
    agent = Agent(server.model("claude-sonnet-4-6"), tools=[look])

Not checked: the spelling of ids, signatures that this server did not issue, and what models, tools and settings exist.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from tests.support.loopback import Answer, LoopbackServer, Refusal, Script, arguments_text, fresh_id, pieces
from tests.support.wire import Body

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModel

Blocks = list[dict[str, Any]]
Turns = list[tuple[str, Blocks]]
"""Role and content blocks; a string is one text block, and messages of one role in a row are one turn."""

INLINE = (
    "claude-fable-5",
    "claude-mythos-5",
    "claude-opus-4-8",
    "claude-opus-5",
    "claude-sonnet-5",
    "claude-haiku-5-5",
)
"""How the names of models begin that take `system` messages among the others."""


class AnthropicServer(LoopbackServer):
    """Anthropic's Messages, plain and streamed, and its token count."""

    path = "/v1/messages"

    def __init__(self, script: Script = "ok.", **given: Any) -> None:
        super().__init__(script, **given)
        self._signed: dict[str, str] = {}
        """Thinking that was issued, by its signature."""

    def model(self, name: str = "claude-sonnet-4-6", **settings: Any) -> AnthropicModel:
        """A model that talks to this server, without retries of its own; `settings` go to `AnthropicModel`."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient  # 3 s, which collecting tests does not wait for
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(
            base_url=self.base_url,
            api_key="test",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False),
        )
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client), **settings)

    def validate(self, body: Body) -> None:
        messages: Any = body.get("messages")
        if not messages:
            raise Refusal("messages: at least one message is required")
        roles = ("user", "assistant", "system") if str(body.get("model")).startswith(INLINE) else ("user", "assistant")
        for index, message in enumerate(messages):
            if message.get("role") not in roles:
                raise Refusal(f"messages.{index}.role: Input should be {' or '.join(map(repr, roles))}")
        turns = _turns(messages)
        for rule in RULES:
            rule(turns)
        if self._signed:
            self._check_thinking(turns, needed=bool(body.get("thinking")))
        if any(block["type"] == "text" and not block.get("text") for block in _blocks(body.get("system"))):
            raise Refusal("system: text content blocks must be non-empty")
        if (marks := _marks([body.get("tools"), body.get("system"), messages])) > 4:
            raise Refusal(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")

    def _check_thinking(self, turns: Turns, *, needed: bool) -> None:
        """Thinking is as it was issued, and leads the response whose results come last."""
        for index, (_, blocks) in enumerate(turns):
            for position, block in enumerate(blocks):
                if block["type"] == "thinking" and self._signed.get(block.get("signature", "")) != block["thinking"]:
                    raise Refusal(f"messages.{index}.content.{position}: Invalid `signature` in `thinking` block")
        last = len(turns) - 2
        if needed and turns[-1][1][0]["type"] == "tool_result" and turns[last][1][0]["type"] != "thinking":
            text = (
                "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final "
            )
            raise Refusal(f"messages.{last}.content.0.type: {text}`assistant` message must start with a thinking block")

    def overflow(self, tokens: int, window: int) -> Refusal:
        return Refusal(f"prompt is too long: {tokens} tokens > {window} maximum")

    def error(self, refusal: Refusal) -> Body:
        return {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}}

    def other(self, path: str, tokens: int) -> Body:
        if path.partition("?")[0] != f"{self.path}/count_tokens":
            return super().other(path, tokens)
        return {"input_tokens": tokens}

    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        content: Blocks = []
        if answer.thinking:
            signature = fresh_id("signature")
            self._signed[signature] = answer.thinking
            content.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
        content += [{"type": "text", "text": answer.text}] if answer.text else []
        for call in answer.calls:
            content.append({"type": "tool_use", "id": fresh_id("toolu"), "name": call[0], "input": _arguments(call)})
        return {
            **self._opening(body, tokens, self.answer_tokens(answer)),
            "content": content,
            "stop_reason": _stop(answer),
        }

    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        yield _event("message_start", message=self._opening(body, tokens, 1))
        texts = [answer.text] if answer.text else []
        for index, text in enumerate(texts):
            yield _event("content_block_start", index=index, content_block={"type": "text", "text": ""})
            for piece in pieces(text):
                yield _event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
            yield _event("content_block_stop", index=index)
        for index, call in enumerate(answer.calls, start=len(texts)):
            block: dict[str, Any] = {"type": "tool_use", "id": fresh_id("toolu"), "name": call[0], "input": {}}
            yield _event("content_block_start", index=index, content_block=block)
            for piece in pieces(arguments_text(call)):
                delta = {"type": "input_json_delta", "partial_json": piece}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        usage = {"output_tokens": self.answer_tokens(answer)}
        yield _event("message_delta", delta={"stop_reason": _stop(answer), "stop_sequence": None}, usage=usage)
        yield _event("message_stop")

    def _opening(self, body: Body, tokens: int, output: int) -> Body:
        usage = {"input_tokens": tokens, "output_tokens": output}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        message: Body = {
            "id": fresh_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
        }
        return {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _arguments(call: tuple[str, dict[str, Any] | str]) -> Any:
    return json.loads(call[1]) if isinstance(call[1], str) else call[1]


def _stop(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def _blocks(content: Any) -> Blocks:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content or ())


def _turns(messages: Blocks) -> Turns:
    turns: Turns = []
    for message in messages:
        role, blocks = message["role"], _blocks(message.get("content"))
        if blocks and turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((role, blocks))
    return turns


def _marks(value: Any) -> int:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        inner = sum(_marks(item) for key, item in fields.items() if key != "input")
        return inner + (1 if fields.get("cache_control") else 0)
    return sum(map(_marks, cast(list[Any], value))) if isinstance(value, list) else 0


def a_user_begins(turns: Turns) -> None:
    if turns[0][0] != "user":
        raise Refusal('messages: first message must use the "user" role')


def content_is_there(turns: Turns) -> None:
    for index, (role, blocks) in enumerate(turns):
        if not blocks and not (role == "assistant" and index == len(turns) - 1):
            text = "all messages must have non-empty content except for the optional final assistant message"
            raise Refusal(f"messages.{index}: {text}")
        if not all(block.get("text") for block in blocks if block["type"] == "text"):
            raise Refusal("messages: text content blocks must be non-empty")
        if not all(block["text"].strip() for block in blocks if block["type"] == "text"):
            raise Refusal("messages: text content blocks must contain non-whitespace text")
        if role == "assistant" and blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            raise Refusal(f"messages.{index}: The final block in an assistant message cannot be `thinking`.")
    role, blocks = turns[-1]
    if role == "assistant" and blocks and blocks[-1].get("text", "").rstrip() != blocks[-1].get("text", ""):
        raise Refusal("messages: final assistant content cannot end with trailing whitespace")


def results_follow_their_calls(turns: Turns) -> None:
    used: set[str] = set()
    waiting: list[str] = []
    for index, (role, blocks) in enumerate(turns):
        _answer_all(waiting, blocks if role == "user" else [], index)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"] if role == "assistant" else []
        if len(set(waiting)) < len(waiting) or used & set(waiting):
            raise Refusal(f"messages.{index}: `tool_use` ids must be unique")
        used |= set(waiting)
    _answer_all(waiting, [], len(turns))


def _answer_all(waiting: list[str], blocks: Blocks, index: int) -> None:
    """The results that lead a user message answer exactly the calls of the message before it."""
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    leading = 0
    while leading < len(blocks) and blocks[leading]["type"] == "tool_result":
        leading += 1
    if missing := [ident for ident in waiting if ident not in results[:leading]]:
        text = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}."
        text += " Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        raise Refusal(f"messages.{index - 1}: {text}")
    for position, ident in enumerate(results):
        if ident not in waiting:
            text = f"unexpected `tool_use_id` found in `tool_result` blocks: {ident}."
            text += " Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            raise Refusal(f"messages.{index}.content.{position}: {text}")
        if results.count(ident) > 1:
            text = f"each tool_use must have a single result. Found multiple `tool_result` blocks with id: {ident}"
            raise Refusal(f"messages.{index}.content.{position}: {text}")


def native_results_follow_their_calls(turns: Turns) -> None:
    for index, (_, blocks) in enumerate(turns):
        called: set[str] = set()
        for position, block in enumerate(blocks):
            if block["type"] == "server_tool_use":
                called.add(block["id"])
            elif block["type"].endswith("_tool_result") and block["tool_use_id"] not in called:
                text = f"unexpected `tool_use_id` found in `{block['type']}` blocks: {block['tool_use_id']}."
                text += " Each such block must have a corresponding `server_tool_use` block before it."
                raise Refusal(f"messages.{index}.content.{position}: {text}")


RULES: tuple[Callable[[Turns], None], ...] = (
    a_user_begins,
    content_is_there,
    results_follow_their_calls,
    native_results_follow_their_calls,
)
