"""Content-based ids: the id of a message depends on its content and on everything before it.

As in git, histories with equal prefixes share ids, a fork stores only its new messages, and a record can be verified.

A message has two names. Cycles and compiles are found by its chain id, which stays the same when a history is rebuilt
from its texts. Recorded messages have exact names, which also depend on instructions and tool outcomes, because a
rebuilt history may lack them. The exact names of a view also depend on the renderings of its dynamic system prompts;
those of a raw history do not, because each new rendering would rename the whole history. The prefix of a name tells
which kind it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b, sha256
from itertools import chain, repeat
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # importing Pydantic AI is slow, and reading the record does not need it
    from pydantic_ai.messages import ModelMessage

CHAIN = "c1:"
"""Prefix of a chain id."""
EXACT = "x1:"
"""Prefix of an exact name."""
RENDERED = "x2:"
"""Prefix of an exact name that also depends on the rendering of dynamic parts."""
RECORDED = (EXACT, RENDERED)

ANSWERS = ("tool-return", "retry-prompt")
"""Kinds of part with which the host answers a call."""

MAX_SPLITS = 15
"""Maximum number of first parts of a message that are checked for joins; each place costs two hashes."""

STAMPS = frozenset({"timestamp", "metadata", "outcome", "retry"})
"""Fields of a part that are not content: times, counts, and fields that the host adds to converted retry prompts."""

RETRIED = "retried"
"""Outcome that the host assigns on loading a retry prompt that answers a call."""

OMITTED: tuple[object, ...] = (None, [], {})
"""Values that some versions of the host write out and others omit."""


def blob_id(body: bytes) -> str:
    """Hash of a blob, in hex."""
    return blake2b(body, digest_size=16).hexdigest()


def text_hash(text: str) -> str:
    """SHA-256 of a string, in hex, comparable with the output of `sha256sum`."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def identity(body: bytes) -> str:
    """Hash of a message by the content that a model sees.

    `body` is the message's JSON. Messages that differ only in times, run ids or usage have the same identity, and so do
    messages that differ only in the rendering of a dynamic part, which the host renders anew in every run.
    """
    return _identity(json.loads(body))


@dataclass(frozen=True, slots=True)
class Split:
    """A place in a message at which the host may have joined two messages."""

    count: int
    """Number of parts before it."""
    first: str
    """The `identity` of the parts before it."""
    rest: str
    """The `identity` of the parts after it."""
    last: str = ""
    """The `identity` of the one part before it, which may have been a message of its own between two others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityFacts:
    """Everything in a message that its names depend on."""

    identity: str
    instructions: str | None
    outcomes: Mapping[int, str]
    rendering: str
    """Hash of the contents of its dynamic parts; empty if it has none."""
    splits: tuple[Split, ...]
    """Places at which the host may have joined two messages."""

    @property
    def exact(self) -> str:
        """Its `exact_identity`."""
        return exact_identity(self.identity, self.instructions, self.outcomes)


def identity_facts(body: bytes) -> IdentityFacts:
    """Read from the JSON of a message everything that its names depend on."""
    data = json.loads(body)
    parts = cast("list[object]", data.get("parts", []))
    return IdentityFacts(
        identity=_identity(data),
        instructions=data.get("instructions"),
        outcomes=outcomes(parts),
        rendering=_rendering(parts),
        splits=tuple(_splits(data, parts)),
    )


def _splits(data: Mapping[str, Any], parts: Sequence[object]) -> Iterator[Split]:
    """Find the places at which the host may have joined two messages.

    They are after the tool results at the beginning and, if the message has no run id, after each of the first parts.
    The host joins tool results at the end of a run with the next prompt, tool results with those of deferred calls, and
    an unanswered prompt with the next one. A joined message has no run id.
    """
    kinds = [cast(dict[str, object], part).get("part_kind") if isinstance(part, dict) else None for part in parts]
    results = next((index for index, kind in enumerate(kinds) if kind not in ANSWERS), len(kinds))
    first = () if data.get("run_id") else range(1, MAX_SPLITS + 1)
    for count in dict.fromkeys((*first, results)):
        if 0 < count < len(parts):
            pieces = (parts[:count], parts[count:], parts[count - 1 : count])
            yield Split(count, *(_identity({"kind": data.get("kind"), "parts": piece}) for piece in pieces))


def _rendering(parts: Sequence[object]) -> str:
    fields = [cast(dict[str, object], part) for part in parts if isinstance(part, dict)]
    dynamic = [part.get("content") for part in fields if part.get("dynamic_ref")]
    return blob_id(json.dumps(dynamic).encode()) if dynamic else ""


def exact_identity(plain: str, instructions: str | None, outcomes: Mapping[int, str]) -> str:
    """Hash of a message's `identity`, its instructions and the outcomes of its tool results."""
    if instructions is None and not outcomes:
        return plain
    canonical = json.dumps([plain, instructions, sorted(outcomes.items())], separators=(",", ":"), ensure_ascii=True)
    return blob_id(canonical.encode())


def outcomes(parts: Sequence[object]) -> dict[int, str]:
    """Outcomes of tool results by position, except successes."""
    unsuccessful: dict[int, str] = {}
    for position, part in enumerate(parts):
        fields = cast(dict[str, object], part) if isinstance(part, dict) else {}
        retried = fields.get("part_kind") == "retry-prompt" and fields.get("tool_name")
        outcome = fields.get("outcome") or (RETRIED if retried else None)
        if outcome is not None and outcome != "success":
            unsuccessful[position] = str(outcome)
    return unsuccessful


def _identity(data: Mapping[str, Any]) -> str:
    content = {"kind": data.get("kind"), "parts": [_canonical_part(part) for part in data.get("parts", [])]}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blob_id(canonical.encode())


def _canonical_part(part: object) -> object:
    """Part without stamps and dynamic content; a retry prompt gets the kind that it has once the host has loaded it."""
    if not isinstance(part, dict):
        return part
    fields = cast(dict[str, object], part)
    kept = {key: value for key, value in fields.items() if key not in STAMPS and value not in OMITTED}
    if kept.get("dynamic_ref"):
        kept.pop("content", None)
    if kept.get("part_kind") == "retry-prompt":
        answers = bool(kept.get("tool_name"))
        kept["part_kind"] = "tool-return" if answers else "retry-feedback"
        if not answers:
            kept.pop("tool_call_id", None)
    return kept


def chain_id(parent: str | None, content: str) -> str:
    """Chain id of the message that follows `parent`, a chain id; `content` is its `identity`."""
    return CHAIN + _link(parent, content)


def _link(parent: str | None, content: str) -> str:
    return blob_id(f"{parent or ''}\x00{content}".encode())


def exact_id(parent: str | None, content: str) -> str:
    """Exact name of the message that follows `parent`, an exact name; `content` is its `exact_identity`."""
    return EXACT + _link(parent, content)


def view_message_id(parent: str | None, content: str, rendering: str) -> str:
    """Exact name of a message in a view; it also depends on the `rendering` of its dynamic parts."""
    if not rendering:
        return exact_id(parent, content)
    return RENDERED + _link(parent, f"{content}\x00{rendering}")


COMPARED = ("content", "args", "outcome")
"""Attributes of a part that are compared to detect an edit in place."""

Columns = tuple[list[Any], ...]
"""Objects of many messages: the number of parts of each, instructions, all parts, and their `COMPARED` attributes."""


def objects_of(message: ModelMessage) -> list[object]:
    """Collect the parts of a message and their contents; if the result changes, the message was edited in place."""
    objects: list[object] = [*message.parts, getattr(message, "instructions", None)]
    for part in message.parts:
        for name in COMPARED:
            content = getattr(part, name, None)
            if content is not None:
                objects.append(content if type(content) is str else _snapshot(content))
    return objects


def columns_of(messages: Sequence[ModelMessage]) -> Columns:
    """Collect the objects of many messages like `objects_of`, without snapshots, in a quarter of the time."""
    lists = [message.parts for message in messages]
    parts = list(chain.from_iterable(lists))
    instructions = map(getattr, messages, repeat("instructions"), repeat(None))
    held = map(call, map(_contents_of, map(type, parts)), parts)  # pyright: ignore[reportArgumentType]
    return list(map(len, lists)), list(instructions), parts, list(held)


@cache
def _contents_of(kind: type[Any]) -> Callable[[Any], object]:
    """Return the function that gets the `COMPARED` attributes of such a part: one value, or a tuple of several."""
    names = [name for name in COMPARED if hasattr(kind, name) or name in getattr(kind, "__dataclass_fields__", ())]
    return attrgetter(*names) if names else lambda _: None


def columns_after(before: Columns | None, shared: int, new: Sequence[ModelMessage]) -> Columns:
    """Columns of a history whose first `shared` messages are those of `before`, followed by the messages `new`."""
    counts, instructions, parts, held = columns_of(new)
    added = counts, instructions, parts, [_snapshot(value) for value in held]
    if before is None or not shared:
        return added
    size = sum(before[0][:shared])
    columns = tuple(old[:most] for old, most in zip(before, (shared, shared, size, size), strict=True))
    for column, more in zip(columns, added, strict=True):
        column.extend(more)
    return columns


def are_unedited(messages: Sequence[ModelMessage], before: Columns) -> bool:
    """True if these messages still contain the objects in `before`."""
    return all(now == old[: len(now)] for now, old in zip(columns_of(messages), before, strict=True))


def _snapshot(value: object) -> object:
    """Copy dicts, lists and tuples at any depth, so that later changes can be detected; return other values as is."""
    if isinstance(value, dict):
        return {key: _snapshot(inner) for key, inner in cast(dict[object, object], value).items()}
    if isinstance(value, list):
        return [_snapshot(inner) for inner in cast(list[object], value)]
    if type(value) is tuple:
        return tuple(map(_snapshot, cast(tuple[object, ...], value)))
    return value
