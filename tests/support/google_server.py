"""Google's Gemini API on loopback, plain, with its token count, which takes contents alone.

with GoogleServer("done", count=tokens) as server:
    agent = Agent(server.model("gemini-2.5-pro"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.support.loopback import Answer, LoopbackServer, Refusal
from tests.support.wire import Body

if TYPE_CHECKING:
    from pydantic_ai.models.google import GoogleModel

COUNTED = {"contents"}
"""Fields that a count takes; the API has one more, `generateContentRequest`, which the client cannot send."""


class GoogleServer(LoopbackServer):
    """The Gemini API: contents generated and counted. With `cloud`, Vertex, whose count takes the whole request."""

    path = "/v1beta"

    def __init__(self, *given: Any, cloud: bool = False, **more: Any) -> None:
        super().__init__(*given, **more)
        self.cloud = cloud

    def model(self, name: str = "gemini-2.5-pro", **settings: Any) -> GoogleModel:
        """A model that talks to this server."""
        from google.genai import Client
        from google.genai.types import HttpOptions
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider

        options = HttpOptions(
            base_url=self.base_url, api_version="v1beta", async_client_args={"trust_env": False}, timeout=60_000
        )
        client = Client(vertexai=self.cloud, api_key="test", http_options=options)
        return GoogleModel(name, provider=GoogleProvider(client=client), **settings)

    def prompt(self, body: Body) -> str:
        parts = (body.get(name) for name in ("tools", "systemInstruction", "contents"))
        return "".join(json.dumps(part, ensure_ascii=False) for part in parts if part)

    def validate(self, body: Body) -> None:
        if not body.get("contents"):
            raise Refusal("contents is not specified", kind="INVALID_ARGUMENT")
        for index, content in enumerate(body["contents"]):
            if content.get("role") not in ("user", "model") or not content.get("parts"):
                raise Refusal(f"contents[{index}]: a role and parts are needed", kind="INVALID_ARGUMENT")

    def overflow(self, tokens: int, window: int) -> Refusal:
        text = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({window})."
        return Refusal(text, kind="INVALID_ARGUMENT")

    def error(self, refusal: Refusal) -> Body:
        return {"error": {"code": refusal.status, "message": refusal.message, "status": refusal.kind}}

    def other(self, path: str, tokens: int) -> Body:
        _, _, verb = path.partition("?")[0].rpartition(":")
        body = self.requests[-1]
        if verb == "generateContent":
            self.prompt_tokens.append(tokens)
            return self.whole(body, self._next(body), tokens)
        if verb != "countTokens":
            return super().other(path, tokens)
        if not self.cloud and (unknown := set(body) - COUNTED):
            raise Refusal(f"Invalid JSON payload received. Unknown name {sorted(unknown)[0]!r}")
        return {"totalTokens": tokens}

    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        parts: list[Body] = [{"text": answer.text}] if answer.text else []
        parts += [{"functionCall": {"name": name, "args": arguments}} for name, arguments in answer.calls]
        used = self.answer_tokens(answer)
        return {
            "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {
                "promptTokenCount": tokens,
                "candidatesTokenCount": used,
                "totalTokenCount": tokens + used,
            },
            "modelVersion": "gemini",
            "responseId": "response",
        }

    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        raise Refusal("this server does not stream")
