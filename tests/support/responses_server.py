"""OpenAI's Responses on loopback, plain, with its token count, and as strict about calls, outputs and reasoning.

with ResponsesServer("done", count=tokens) as server:
    agent = Agent(server.model("gpt-5"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tests.support.loopback import Answer, LoopbackServer, Refusal, Script, arguments_text, fresh_id
from tests.support.wire import Body

if TYPE_CHECKING:
    from pydantic_ai.models.openai import OpenAIResponsesModel

FIELDS = {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "previous_response_id"}
FIELDS |= {"conversation", "reasoning", "text", "truncation"}
"""Fields that a count takes."""


def _said(item: Body) -> str:
    """Text of a message, or arguments of a call."""
    content = item.get("content") or ""
    text = content if isinstance(content, str) else "".join(piece["text"] for piece in content)
    return text + json.dumps(json.loads(item.get("arguments") or "null"), sort_keys=True)


class ResponsesServer(LoopbackServer):
    """OpenAI's Responses, plain, and their input tokens."""

    root = "/v1"
    path = "/v1/responses"

    def __init__(self, script: Script = "ok.", **options: Any) -> None:
        super().__init__(script, **options)
        self._sealed: dict[str, tuple[str, str]] = {}
        """Encrypted content of each reasoning item that was issued, and the item that followed."""
        self._needed: dict[str, str] = {}
        """Reasoning that was issued with each other item."""
        self._said: dict[str, str] = {}
        """Text or arguments of each item that was issued; the API uses this instead of what is sent with its id."""

    def model(self, name: str = "gpt-5", **settings: Any) -> OpenAIResponsesModel:
        """A model that talks to this server, without retries of its own."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient  # a second, which collecting tests does not wait for
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = AsyncOpenAI(
            base_url=self.base_url,
            api_key="test",
            max_retries=0,
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False),
        )
        return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=client), **settings)

    def validate(self, body: Body) -> None:
        items: Any = body.get("input")
        if not isinstance(body.get("model"), str):
            raise Refusal("Missing required parameter: 'model'.")
        if not items:
            raise Refusal("Missing required parameter: 'input'.")
        waiting: set[str] = set()
        for index, item in enumerate(items):
            if item.get("type") == "function_call":
                waiting.add(item["call_id"])
            elif item.get("type") == "function_call_output":
                if item["call_id"] not in waiting:
                    raise Refusal(f"No tool call found for function call output with call_id {item['call_id']}.")
                waiting.discard(item["call_id"])
            elif item.get("type") != "reasoning" and item.get("role") not in (
                "user",
                "assistant",
                "system",
                "developer",
            ):
                raise Refusal(f"Invalid value: {item.get('role')!r} at input[{index}].role.")
        if waiting:
            raise Refusal(f"No tool output found for function call {sorted(waiting)[0]}.")
        self._check_reasoning(items)

    def _issue(self, output: list[Body]) -> None:
        """Remember what an answer said, its reasoning, what that led to, and which reasoning each item needs."""
        self._said |= {item["id"]: _said(item) for item in output}
        if output[0]["type"] == "reasoning":
            self._sealed[output[0]["id"]] = output[0]["encrypted_content"], output[1]["id"]
            self._needed |= {item["id"]: output[0]["id"] for item in output[1:]}

    def _check_reasoning(self, items: list[Any]) -> None:
        """Reasoning is as it was issued, and stands before what it led to; no item comes without its own."""
        seen: set[str] = set()
        for item, following in zip_longest(items, items[1:]):
            ident = item.get("id")
            if self._said.get(ident, _said(item)) != _said(item):
                raise Refusal(f"Item '{ident}' is not as it was issued: its stored copy would be used.")
            if item.get("type") == "reasoning":
                sealed, led = self._sealed.get(ident, (None, None))
                if sealed is None or item.get("encrypted_content") != sealed:
                    raise Refusal(f"The encrypted content for item {ident} could not be verified.")
                if following is None or following.get("id") != led:
                    text = f"Item '{ident}' of type 'reasoning' was provided without its required following item."
                    raise Refusal(text)
                seen.add(ident)
            elif (needed := self._needed.get(ident)) is not None and needed not in seen:
                kind = item.get("type", "message")
                text = (
                    f"Item '{ident}' of type '{kind}' was provided without its required 'reasoning' item: '{needed}'."
                )
                raise Refusal(text)

    def overflow(self, tokens: int, window: int) -> Refusal:
        text = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Refusal(text, code="context_length_exceeded")

    def error(self, refusal: Refusal) -> Body:
        facts: Body = {"message": refusal.message, "type": refusal.kind, "param": None, "code": None}
        return {"error": facts | refusal.details}

    def other(self, path: str, tokens: int) -> Body:
        if path.partition("?")[0] != f"{self.path}/input_tokens":
            return super().other(path, tokens)
        if unknown := set(self.requests[-1]) - FIELDS:
            raise Refusal(f"Unknown parameter: {sorted(unknown)[0]!r}.")
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        output: list[Body] = []
        if answer.thinking:
            reasoning: Body = {"type": "reasoning", "id": fresh_id("rs"), "encrypted_content": fresh_id("sealed")}
            output.append({**reasoning, "summary": [{"type": "summary_text", "text": answer.thinking}]})
        if answer.text:
            content = [{"type": "output_text", "text": answer.text, "annotations": []}]
            facts = {"role": "assistant", "status": "completed", "content": content}
            output.append({"type": "message", "id": fresh_id("msg"), **facts})
        for call in answer.calls:
            facts = {"name": call[0], "arguments": arguments_text(call), "status": "completed"}
            output.append({"type": "function_call", "id": fresh_id("fc"), "call_id": fresh_id("call"), **facts})
        self._issue(output)
        used = self.answer_tokens(answer)
        usage: Body = {"input_tokens": tokens, "output_tokens": used, "total_tokens": tokens + used}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": fresh_id("resp"),
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "completed",
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        raise Refusal("this server does not stream")
