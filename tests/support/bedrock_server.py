"""Amazon Bedrock's Converse on loopback, plain, with its token count.

with BedrockServer("done", count=tokens) as server:
    agent = Agent(server.model("anthropic.claude-sonnet-4-5-20250929-v1:0"))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.support.loopback import Answer, LoopbackServer, Refusal, fresh_id
from tests.support.wire import Body

if TYPE_CHECKING:
    from pydantic_ai.models.bedrock import BedrockConverseModel

COUNTED = {"messages", "system", "toolConfig", "additionalModelRequestFields"}
"""Fields of a Converse request that a count takes."""


class BedrockServer(LoopbackServer):
    """Converse and CountTokens."""

    path = "/model"

    def model(self, name: str, **settings: Any) -> BedrockConverseModel:
        """A model that talks to this server, without retries of its own."""
        import boto3
        from botocore.config import Config
        from pydantic_ai.models.bedrock import BedrockConverseModel
        from pydantic_ai.providers.bedrock import BedrockProvider

        client: Any = boto3.client(  # pyright: ignore[reportUnknownMemberType]
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=self.base_url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}, proxies={}, read_timeout=60),
        )
        options = {"settings": {"max_tokens": 1_000}, **settings}  # without a limit the host streams
        return BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=client), **options)

    def prompt(self, body: Body) -> str:
        converse: Any = body.get("input", {}).get("converse", body)
        tools = converse.get("toolConfig", {}).get("tools")
        return super().prompt({**converse, "tools": tools})

    def validate(self, body: Body) -> None:
        request: Any = body.get("input", {}).get("converse") if "input" in body else body
        if "input" in body and (unknown := set(request or {}) - COUNTED):
            raise Refusal(f"Unknown parameter in input.converse: {sorted(unknown)[0]!r}", kind="ValidationException")
        roles = [message.get("role") for message in (request or {}).get("messages", ())]
        if not roles or roles[0] != "user" or any(role == other for role, other in zip(roles, roles[1:], strict=False)):
            raise Refusal("A conversation must alternate between user and assistant roles.", kind="ValidationException")

    def overflow(self, tokens: int, window: int) -> Refusal:
        return Refusal(f"Input is too long for requested model: {tokens} > {window}", kind="ValidationException")

    def error(self, refusal: Refusal) -> Body:
        return {"message": refusal.message, "__type": refusal.kind}

    def other(self, path: str, tokens: int) -> Body:
        body, verb = self.requests[-1], path.partition("?")[0].rpartition("/")[2]
        if verb == "count-tokens":
            return {"inputTokens": tokens}
        if verb != "converse":
            return super().other(path, tokens)
        self.prompt_tokens.append(tokens)
        return self.whole(body, self._next(body), tokens)

    def whole(self, body: Body, answer: Answer, tokens: int) -> Body:
        content: list[Body] = [{"text": answer.text}] if answer.text else []
        for name, arguments in answer.calls:
            content.append({"toolUse": {"toolUseId": fresh_id("tooluse"), "name": name, "input": arguments}})
        used = self.answer_tokens(answer)
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": "tool_use" if answer.calls else "end_turn",
            "usage": {"inputTokens": tokens, "outputTokens": used, "totalTokens": tokens + used},
            "metrics": {"latencyMs": 1},
        }

    def events(self, body: Body, answer: Answer, tokens: int) -> Iterator[bytes]:
        raise Refusal("this server does not stream")
