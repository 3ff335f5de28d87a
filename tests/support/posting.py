"""Requests to a server on loopback, as any client would send them."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any

from tests.support.loopback import LoopbackServer

Message = dict[str, Any]


def post(server: LoopbackServer, body: object, path: str | None = None) -> tuple[int, dict[str, Any]]:
    """A raw request: status and JSON."""
    port = int(server.base_url.split(":")[2].split("/")[0])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path or server.path, raw, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def user(text: Any = "hi") -> Message:
    """What a user says, as Chat Completions have it."""
    return {"role": "user", "content": text}
