"""What `redact` leaves of a history: every text of every message goes through it, and nothing else is touched."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from context_compiler.history import History
from context_compiler.ids import chained, identity
from context_compiler.record import Compile
from context_compiler.recording import explained

Redact = Callable[[str], str]
"""Given a text, what of it may be kept."""

MESSAGES = 50_000
"""Redacted messages remembered."""
SAID = frozenset({"args", "content", "metadata", "provider_details", "vendor_metadata", "vendor_details"})
"""Fields of a message in which somebody's own data stands, with keys and values of their own."""
WORDS = frozenset(
    {
        "kind",
        "part_kind",
        "tool_kind",
        "tool_call_id",
        "timestamp",
        "run_id",
        "conversation_id",
        "outcome",
        "state",
        "finish_reason",
        "speaker",
        "cause",
        "on_change",
        "settings",
    }
)
"""Fields of a message in which only the host's own words stand."""
PIECES = frozenset(
    {"binary", "image-url", "audio-url", "video-url", "document-url", "uploaded-file", "cache-point", "text-content"}
)
"""What files and marked texts call themselves."""
PIECE_WORDS = frozenset({"kind", "media_type", "force_download", "ttl"})


@dataclass(frozen=True, slots=True)
class Redacted:
    """A chain as it may be kept: every text of every message through `redact`."""

    ids: tuple[str, ...]
    bodies: tuple[bytes, ...]
    texts: tuple[str, ...]

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`, redacted."""
        return self.bodies[index]

    def text(self, index: int) -> str:
        """The searchable text of message `index`, redacted."""
        return self.texts[index]


class Redactor:
    """Redacts chains, each message once; names them by what is left."""

    def __init__(self, redact: Redact) -> None:
        """Keep what `redact` returns."""
        self.redact = redact
        self._done: OrderedDict[str, tuple[str, bytes, str]] = OrderedDict()

    def __call__(self, text: str) -> str:
        """What of a text may be kept."""
        kept = cast(object, self.redact(text))
        return kept if isinstance(kept, str) else ""

    def chain(self, history: History) -> Redacted:
        """The chain of a history as it may be kept."""
        kept: list[tuple[str, bytes, str]] = []
        for index, name in enumerate(history.ids):
            if name not in self._done:
                body = json.dumps(self._clean(json.loads(history.body(index))), ensure_ascii=False).encode()
                parent = kept[-1][0] if kept else None
                self._done[name] = chained(parent, identity(body)), body, self(history.text(index))
            kept.append(self._done[name])
        while len(self._done) > MESSAGES:
            self._done.popitem(last=False)
        ids, bodies, texts = zip(*kept, strict=True) if kept else ((), (), ())
        return Redacted(ids=ids, bodies=bodies, texts=texts)

    def _clean(self, value: Any, *, said: bool = False) -> Any:
        """Every text in `value` redacted; `said` is what somebody said, in which a name of ours means nothing."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self._clean(one, said=said) for one in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        given = cast(dict[str, Any], value)
        piece = given.get("kind") in PIECES
        clean: dict[str, Any] = {}
        for key, one in given.items():
            if piece and key == "data":
                clean[key] = self._file(one, str(given.get("media_type")))
            elif key in (PIECE_WORDS if piece else () if said else WORDS):
                clean[key] = one
            else:
                clean[self(key) if said and not piece else key] = self._clean(one, said=said or key in SAID)
        return clean

    def _file(self, data: Any, media_type: str) -> Any:
        if not media_type.startswith("text/") or not isinstance(data, str):
            return data
        text = base64.urlsafe_b64decode(data).decode("utf-8", "replace")
        return base64.urlsafe_b64encode(self(text).encode("utf-8", "replace")).decode()

    def compile(self, row: Compile, names: Mapping[str, str]) -> Compile:
        """A compile as it may be kept; never used again, since it no longer says what it said. `names` is for tips."""
        texts = ("compiled_prompt", "raw_output", "summary", "error")
        said = {name: self(text) for name in texts if (text := getattr(row, name)) is not None}
        payload = {**(row.input_payload or {}), "raw_tip": names.get(str((row.input_payload or {}).get("raw_tip")))}
        kept = replace(
            row,
            cache_key=None,
            summary_json=None,
            covered_tip=names.get(row.covered_tip, ""),
            input_payload=payload,
            **said,
        )
        return explained(kept, {"cache_key": "redacted", "summary_json": "redacted"})
