"""Redaction of requests before they are saved, and removal of their content.

Redaction passes every text of every message through `redact`, and changes nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, cast

from context_compiler.cache import Memo
from context_compiler.errors import StoreError
from context_compiler.ids import RENDERED, blob_id, identity_facts, view_message_id
from context_compiler.record.values import Chain, Compile, Entry, MessageChain, with_null_reasons
from context_compiler.resilience import attempt

Redact = Callable[[str], str]
"""A function that returns the part of a string that may be recorded."""

Redacted = tuple[str, bytes, str, str]
"""A redacted message: its id, its JSON, its searchable text, and a hash of the JSON before the redaction."""

NEWEST = 2
"""Messages at the end of a chain that may have names of others, which were deleted since they were redacted."""

CACHE_SIZE = 50_000_000
"""Maximum size of the cache of redacted messages: bytes of JSON plus characters of searchable text."""
TOOLSETS = 100
"""Number of tool sets whose redacted form is cached."""
FREE = frozenset({"args", "content", "metadata", "provider_details", "vendor_metadata", "vendor_details"})
"""Message fields that contain user data; mapping keys in them are user data too."""
TEXTS = frozenset(
    {"instructions", "transcript", "signature", "error", "url", "file_id", "identifier", "tool_name", "dynamic_ref"}
    | {"context_id", "provider_url", "model_name", *FREE}
)
"""Message fields with arbitrary text; all other fields contain only the host's own words."""
PIECES = frozenset(
    {"binary", "image-url", "audio-url", "video-url", "document-url", "uploaded-file", "cache-point", "text-content"}
)
"""Values of the field `kind` in the host's file and text objects."""
PIECE_FIELDS = frozenset(
    {"kind", "data", "url", "file_id", "content", "media_type", "identifier", "force_download", "provider_name", "ttl"}
    | {"metadata", "vendor_metadata"}
)
"""Fields of such objects; a mapping with any other field is user data."""
FIXED = frozenset({"retry-prompt", "retry-feedback"})
"""Kinds of message parts whose content is a mapping with keys of the host."""

COMPILE_CONTENT = tuple("cache_key compiled_prompt raw_output summary summary_json input_payload".split())
"""Columns of a compile that contain content of a conversation, or ids derived from it."""

CONTENT = ("raw_tip", "view_tip", *COMPILE_CONTENT)
"""All such columns."""

METADATA, REDACTED = "record is metadata", "content is redacted, and no request has this compile"
"""Reasons why the columns `CONTENT` are NULL."""


class RedactionError(StoreError):
    """The function `redact=` raised an error, so that content cannot be recorded."""


class Redactor:
    """Redacts chains, each message of a conversation only once; ids are computed from the redacted content."""

    def __init__(self, redact: Redact) -> None:
        """Create a redactor that applies `redact` to every text."""
        self.redact = redact
        self._done: Memo[tuple[Hashable, str], Redacted] = Memo(CACHE_SIZE, lambda done: len(done[1]) + len(done[2]))
        self._tools: Memo[str, str] = Memo(TOOLSETS)

    def __call__(self, text: str) -> str:
        """Return the part of a string that may be recorded; empty if `redact` does not return a string.

        Raises:
            RedactionError: `redact` raised an error.
        """
        outcome = attempt(lambda: cast(object, self.redact(text)))
        if outcome.error is not None:
            kind = type(outcome.error).__name__
            raise RedactionError(f"redact= raised {kind}, so this is not recorded") from outcome.error
        return outcome.value if isinstance(outcome.value, str) else ""

    def entry(self, entry: Entry, conversation: Hashable) -> Entry:
        """Redact a request of a conversation, its chains, its compile and its tools."""
        record, row, tools = entry.record, entry.compile, entry.tools
        raw, view = (None if chain is None else self.chain(chain, conversation) for chain in (entry.raw, entry.view))
        kept = replace(
            record,
            raw_tip=raw.ids[-1] if raw and raw.ids else None,
            view_tip=view.ids[-1] if view and view.ids else None,
            error=self(record.error) if record.error else None,
        )
        if row is not None and raw is not None and entry.raw is not None:
            row = self.compile(row, dict(zip(entry.raw.ids, raw.ids, strict=True)))
        return Entry(record=kept, raw=raw, view=view, compile=row, tools=tools and self.tools(tools))

    def chain(self, chain: Chain, conversation: Hashable = None) -> MessageChain:
        """Redact every message of a chain of a conversation.

        Others may have messages of the same names with other times, run ids, metadata and renderings.
        """
        kept: list[Redacted] = []
        for index, name in enumerate(chain.ids):
            done = self._done.get((conversation, name))
            is_newest = index >= len(chain.ids) - NEWEST
            if done is None or (is_newest and done[3] != blob_id(chain.body(index))):
                before = chain.body(index)
                body = json.dumps(self._host_data(json.loads(before)), ensure_ascii=False).encode()
                facts = identity_facts(body)
                rendering = facts.rendering if name.startswith(RENDERED) else ""
                own = view_message_id(kept[-1][0] if kept else None, facts.exact, rendering)
                done = own, body, self(chain.text(index)), blob_id(before)
                self._done.keep((conversation, name), done)
            kept.append(done)
        ids, bodies, texts, _ = zip(*kept, strict=True) if kept else ((), (), (), ())
        return MessageChain(ids=ids, bodies=bodies, texts=texts)

    def _host_data(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Redact a message, a part or an object inside its content; the host defines its fields."""
        is_host_tool = bool(fields.get("tool_kind"))
        fixed = is_host_tool or fields.get("part_kind") in FIXED
        clean: dict[str, Any] = {}
        for key, value in fields.items():
            if key == "data" and isinstance(value, str):
                clean[key] = self._file(value, str(fields.get("media_type")))
            elif key == "citations":
                clean[key] = value if self(json.dumps(value)) == json.dumps(value) else None
            elif isinstance(value, str):
                clean[key] = self(value) if key in TEXTS and not (is_host_tool and key == "tool_name") else value
            elif key in FREE:
                clean[key] = self._user_data(value, fixed=fixed)
            else:
                clean[key] = self._nested(value)
        return clean

    def _nested(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._nested(item) for item in cast(list[Any], value)]
        return self._host_data(cast(dict[str, Any], value)) if isinstance(value, dict) else value

    def _user_data(self, value: Any, *, fixed: bool) -> Any:
        """Redact user data: every text and, unless `fixed`, every key; file objects are redacted field by field."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self._user_data(item, fixed=fixed) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        fields = cast(dict[str, Any], value)
        if fields.get("kind") in PIECES and fields.keys() <= PIECE_FIELDS:
            return self._host_data(fields)
        return {key if fixed else self(key): self._user_data(item, fixed=fixed) for key, item in fields.items()}

    def _file(self, data: str, media_type: str) -> str:
        """Redact the text of a file; UTF-8 is text whatever its type, because the host sends JSON and XML as text."""
        try:
            content = base64.b64decode(data, altchars="-_", validate=True)
            text = content.decode("utf-8", "replace" if media_type.startswith("text/") else "strict")
        except UnicodeDecodeError:
            return data
        except ValueError:
            return self(data)
        kept = self(text)
        return data if kept == text else base64.urlsafe_b64encode(kept.encode("utf-8", "replace")).decode()

    def tools(self, text: str) -> str:
        """Redact the JSON text of tools: names, descriptions, and schemas including their keys."""
        return self._tools.get_or_make(text, lambda: json.dumps([self._tool(tool) for tool in json.loads(text)]))

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        free = ("name", "description", "parameters")
        return {key: self._user_data(value, fixed=False) if key in free else value for key, value in tool.items()}

    def compile(self, row: Compile, names: Mapping[str, str]) -> Compile:
        """Redact a compile; it is never reused, because its text has changed.

        `names` maps chain ids to redacted ones. A tip that it does not contain belongs to another history. It is kept,
        because it is not on the record, so saving clears it (`rows.clear_unknown_tip`).
        """
        texts = ("compiled_prompt", "raw_output", "summary", "error")
        redacted = {name: self(text) for name in texts if (text := getattr(row, name)) is not None}
        payload = {**(row.input_payload or {}), "raw_tip": names.get(str((row.input_payload or {}).get("raw_tip")))}
        kept = replace(
            row,
            cache_key=None,
            summary_json=None,
            covered_tip=names.get(row.covered_tip, row.covered_tip),
            input_payload=payload,
            **redacted,
        )
        return with_null_reasons(kept, {"cache_key": "redacted", "summary_json": "redacted"})


def without_content(entry: Entry) -> Entry:
    """Remove all content from a request and its compile, for `record="metadata"`."""
    record, row = entry.record, entry.compile
    kept = replace(record, raw_tip=None, view_tip=None, error=_error_kind(record.error))
    compile = None if row is None else compile_without_content(row)
    return Entry(record=with_null_reasons(kept, dict.fromkeys(CONTENT, METADATA)), raw=None, view=None, compile=compile)


def compile_without_content(row: Compile, why: str = METADATA) -> Compile:
    """Remove all content from a compile; `why` is the reason given for the NULL columns."""
    kept = replace(row, covered_tip="", error=_error_kind(row.error), **dict.fromkeys(COMPILE_CONTENT, None))
    return with_null_reasons(kept, dict.fromkeys(CONTENT, why))


def _error_kind(error: str | None) -> str | None:
    """Reduce an error to its type and what was sent instead, because its message may contain conversation content."""
    if error is None:
        return None
    _, sent, what = error.rpartition("; sent:")
    return error.partition(":")[0].partition("(")[0].strip() + (f"{sent}{what}" if sent else "")
