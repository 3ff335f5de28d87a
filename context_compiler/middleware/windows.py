"""Context windows that the host does not know: learnt from refusals, or asked of a model server on this machine.

What is learnt belongs to a base URL and a model, and is known to this process alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import SplitResult, quote, urlsplit

from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.resilience import attempt, try_await

LEAST = 512
"""Smallest window in tokens that is believed; servers are started with windows of 1,024 and more."""

ANSWERS_WITHIN_S = 1.0
"""Seconds within which a server has to answer all questions."""

MOST_BYTES = 1_000_000
"""Bytes of an answer that are read."""

NAMES = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length", "n_ctx")
"""Names of the window in the model lists of vLLM, SGLang, LM Studio, Ollama and llama.cpp."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model at its address, the key under which a window is known."""

    base_url: str
    model: str

    @classmethod
    def by(cls, model: Model) -> Served:
        """The key of a model of the host."""
        return cls(attempt(lambda: str(model.base_url or "")).value or "", model.model_name)


class Windows:
    """Windows that were learnt in this process, by address and model."""

    def __init__(self) -> None:
        self._known: Memo[Served, int] = Memo(256)
        self._asked: Memo[Served, bool] = Memo(256)

    def of(self, served: Served) -> int | None:
        """The window of a model; None if it is unknown."""
        return self._known.get(served)

    def learn(self, served: Served, window: int) -> None:
        """Remember the window that a server stated."""
        self._known.keep(served, max(LEAST, window))

    def forget(self) -> None:
        """Forget all windows, and which servers were asked."""
        self.__init__()

    async def ask(self, served: Served) -> None:
        """Ask the server for the window, once, if it is on this machine; a failure is not an error."""
        if self._asked.get(served):
            return
        self._asked.keep(served, True)
        address = urlsplit(served.base_url)
        if not _is_local(address):
            return
        window = (await try_await(asyncio.wait_for(_asked_window(address, served.model), ANSWERS_WITHIN_S))).value
        if window is not None and self.of(served) is None:
            self.learn(served, window)


WINDOWS = Windows()
"""The windows of this process."""


def _is_local(address: SplitResult) -> bool:
    """True if an address is plain HTTP to the loopback interface."""
    host = address.hostname or ""
    loopback = host == "localhost" or bool(attempt(lambda: ip_address(host).is_loopback).value)
    return address.scheme == "http" and loopback


async def _asked_window(address: SplitResult, model: str) -> int | None:
    """The window by llama.cpp's properties, else by the list of models; None if neither names one."""
    root = address.path.rstrip("/").removesuffix("/v1")
    properties = await _get(address, f"{root}/props?model={quote(model, safe='')}")
    for facts in (properties.get("default_generation_settings"), properties):
        if (window := _window_in(facts)) is not None:
            return window
    listed = (await _get(address, f"{root}/v1/models")).get("data")
    models: list[Any] = cast(list[Any], listed) if isinstance(listed, list) else []
    models = [facts for facts in models if isinstance(facts, dict)]
    named = [facts for facts in models if facts.get("id") == model] or (models if len(models) == 1 else [])
    windows = (_window_in(part) for facts in named for part in (facts, facts.get("meta")))
    return next((window for window in windows if window is not None), None)


def _window_in(facts: object) -> int | None:
    """The window that a JSON object names; None if there is none to believe."""
    if not isinstance(facts, Mapping):
        return None
    values = (cast(Mapping[str, object], facts).get(name) for name in NAMES)
    return next((value for value in values if type(value) is int and value >= LEAST), None)


async def _get(address: SplitResult, path: str) -> Mapping[str, Any]:
    """The JSON object at a path; empty if there is none. Redirects are not followed, and no proxy is used.

    Raises:
        OSError: The server cannot be reached.
    """
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        host = address.netloc.rpartition("@")[2]
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n\r\n".encode())
        await writer.drain()
        answer = await reader.read(MOST_BYTES)
        while len(answer) < MOST_BYTES and (more := await reader.read(MOST_BYTES - len(answer))):
            answer += more
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    parsed = attempt(lambda: json.loads(body)).value if head.split(b" ")[1:2] == [b"200"] else None
    return cast(Mapping[str, Any], parsed) if isinstance(parsed, dict) else {}
