"""Anthropic's Messages on loopback with a prompt cache, which tells how much of each prompt it has read and written."""

from __future__ import annotations

from tests.support.anthropic_server import AnthropicServer
from tests.support.loopback import prompt_text
from tests.support.wire import Body


class CachingServer(AnthropicServer):
    """A server that keeps the beginning that a prompt has in common with the one before; a token is four characters."""

    before = ""

    def _opening(self, body: Body, tokens: int, output: int) -> Body:
        text = prompt_text({name: body.get(name) for name in ("tools", "system", "messages")})
        pairs = enumerate(zip(text, self.before, strict=False))
        shared = next((index for index, (new, old) in pairs if new != old), min(len(text), len(self.before)))
        self.before, read = text, shared // 4
        opening = super()._opening(body, tokens, output)
        fresh = max(0, len(text) // 4 - read)
        opening["usage"] |= {"input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": fresh}
        return opening
