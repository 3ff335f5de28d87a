"""Content-based ids: the id of a message depends on its content and on everything before it.

Equal prefixes therefore share ids, a fork stores only what is new, and a file can be verified. The idea is git's.

A message has two names. The chain id finds cycles and compiles: it is the same for a history that was built again from
its texts. The exact name is that of the recorded message: it also depends on what such a history may lack, on
instructions and on the outcome of a tool. A view is named by the rendering of its dynamic system prompts, too; a raw
history is not, since each rendering would name all of it anew. A prefix says by which rule a name was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # looking at a record does not wait for the host
    from pydantic_ai.messages import ModelMessage

VERSION = "c1:"
EXACT = "x1:"
RENDERED = "x2:"
"""Prefix of an exact name that also depends on the rendering of dynamic parts."""
RECORDED = (EXACT, RENDERED)


def blob_id(body: bytes) -> str:
    """Name a blob by its bytes."""
    return blake2b(body, digest_size=16).hexdigest()


def text_hash(text: str) -> str:
    """SHA-256 of a text, in hex: the form in which people compare files."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def identity(body: bytes) -> str:
    """Hash of one message by what its parts say to a model.

    `body` is the message's JSON. Two messages that differ only in times, run ids or usage are one, and so are two
    renderings of the same dynamic part: the host renders it anew at every run.
    """
    return _identity(json.loads(body))


@dataclass(frozen=True, slots=True)
class Split:
    """A place in a message at which the host may have joined two."""

    count: int
    """Parts before it."""
    first: str
    """The `identity` of these alone."""
    rest: str
    """The `identity` of what follows them."""
    last: str = ""
    """The `identity` of the part before it alone, which may have been a message between two others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityFacts:
    """Parts of the names of a message."""

    identity: str
    instructions: str | None
    outcomes: Mapping[int, str]
    rendering: str
    """Hash of the texts of its dynamic parts; empty if it has none."""
    splits: tuple[Split, ...]
    """Places at which the host may have joined two messages."""

    @property
    def exact(self) -> str:
        """Its `exact_identity`."""
        return exact_identity(self.identity, self.instructions, self.outcomes)


def identity_facts(body: bytes) -> IdentityFacts:
    """The facts that name a message, of its JSON."""
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
    """After the last tool result; after each of the first parts too, where a message belongs to no run.

    The host joins results at the end of a run with the prompt of the next, results of some calls with those of others
    that were put off, and a prompt that nobody answered with the next. What it joined belongs to no run.
    """
    kinds = [cast(dict[str, object], part).get("part_kind") if isinstance(part, dict) else None for part in parts]
    results = next((at for at, kind in enumerate(kinds) if kind not in ANSWERS), len(kinds))
    first = range(1, MOST_SPLITS if not data.get("run_id") else 0)
    for count in dict.fromkeys((*first, results)):
        if 0 < count < len(parts):
            pieces = (parts[:count], parts[count:], parts[count - 1 : count])
            yield Split(count, *(_identity({"kind": data.get("kind"), "parts": piece}) for piece in pieces))


def _rendering(parts: Sequence[object]) -> str:
    given = [cast(dict[str, object], part) for part in parts if isinstance(part, dict)]
    dynamic = [part.get("content") for part in given if part.get("dynamic_ref")]
    return blake2b(json.dumps(dynamic).encode(), digest_size=16).hexdigest() if dynamic else ""


def exact_identity(plain: str, instructions: str | None, outcomes: Mapping[int, str]) -> str:
    """Hash of one message by its `identity`, its instructions and the outcomes of its tools."""
    if instructions is None and not outcomes:
        return plain
    canonical = json.dumps([plain, instructions, sorted(outcomes.items())], separators=(",", ":"), ensure_ascii=True)
    return blake2b(canonical.encode(), digest_size=16).hexdigest()


def outcomes(parts: Sequence[object]) -> dict[int, str]:
    """The outcomes of tool results by position, without those that succeeded."""
    found: dict[int, str] = {}
    for at, part in enumerate(parts):
        given = cast(dict[str, object], part) if isinstance(part, dict) else {}
        retried = given.get("part_kind") == "retry-prompt" and given.get("tool_name")
        outcome = given.get("outcome") or (RETRIED if retried else None)
        if outcome is not None and outcome != "success":
            found[at] = str(outcome)
    return found


def _identity(data: Mapping[str, Any]) -> str:
    content = {"kind": data.get("kind"), "parts": [_without_stamps(part) for part in data.get("parts", [])]}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return blake2b(canonical.encode(), digest_size=16).hexdigest()


def _without_stamps(part: object) -> object:
    if not isinstance(part, dict):
        return part
    given = cast(dict[str, object], part)
    kept = {key: value for key, value in given.items() if key not in STAMPS and value not in _UNSAID}
    if kept.get("dynamic_ref"):
        kept.pop("content", None)
    if kept.get("part_kind") == "retry-prompt":
        answers = bool(kept.get("tool_name"))
        kept["part_kind"] = "tool-return" if answers else "retry-feedback"
        if not answers:
            kept.pop("tool_call_id", None)
    return kept


ANSWERS = ("tool-return", "retry-prompt")
"""Kinds of part with which the host answers a call."""

MOST_SPLITS = 16
"""Parts of one message after which it may have been joined; each place is named twice."""

STAMPS = frozenset({"timestamp", "metadata", "outcome", "retry"})
"""Fields of a part that are not content: times, counts, and a host's rewriting of old retry prompts."""

RETRIED = "retried"
"""Outcome with which the host loads a retry prompt that answers a call."""

_UNSAID: tuple[object, ...] = (None, [], {})
"""Values that one version of the host writes out and another omits."""


def chain_id(parent: str | None, content: str) -> str:
    """Name a message reached by way of `parent`; `content` is its `identity`."""
    return VERSION + blake2b(f"{parent or ''}\x00{content}".encode(), digest_size=16).hexdigest()


def exact_id(parent: str | None, content: str) -> str:
    """The exact name of a message reached by way of the exact name `parent`; `content` is its `exact_identity`."""
    return EXACT + chain_id(parent, content).removeprefix(VERSION)


def sent_id(parent: str | None, content: str, rendering: str) -> str:
    """The exact name of a message of a view, whose dynamic parts have the given `rendering`."""
    if not rendering:
        return exact_id(parent, content)
    return RENDERED + chain_id(parent, f"{content}\x00{rendering}").removeprefix(VERSION)


HELD = ("content", "args", "outcome")
"""Attributes of a part that are compared by identity to detect an edit in place."""

Columns = tuple[list[Any], ...]
"""Objects of many messages: the number of parts of each, instructions, all parts, and their `HELD` attributes."""


def objects_of(message: ModelMessage) -> list[object]:
    """Parts of a message and their contents as objects; a change of identity shows an edit in place."""
    held: list[object] = [*message.parts, getattr(message, "instructions", None)]
    for part in message.parts:
        for name in HELD:
            content = getattr(part, name, None)
            if content is not None:
                held.append(content if type(content) is str else _snapshot(content))
    return held


def columns_of(messages: Sequence[ModelMessage]) -> Columns:
    """The objects of all messages, like `objects_of` but without snapshots, in a quarter of the time."""
    lists = [message.parts for message in messages]
    parts = list(chain.from_iterable(lists))
    instructions = map(getattr, messages, repeat("instructions"), repeat(None))
    held = (list(map(getattr, parts, repeat(name), repeat(None))) for name in HELD)
    return list(map(len, lists)), list(instructions), parts, *held


def columns_after(before: Columns | None, shared: int, news: Sequence[ModelMessage]) -> Columns:
    """Columns of a history: from `before` for its first `shared` messages, and from `news` for the rest."""
    counts, instructions, parts, *held = columns_of(news)
    found = counts, instructions, parts, *([_snapshot(value) for value in column] for column in held)
    if before is None or not shared:
        return found
    size = sum(before[0][:shared])
    sizes = (shared, shared, *repeat(size, len(found) - 2))
    return tuple(old[:most] + new for old, most, new in zip(before, sizes, found, strict=True))


def are_unedited(messages: Sequence[ModelMessage], before: Columns) -> bool:
    """True if these messages still hold the objects in `before`."""
    return all(now == old[: len(now)] for now, old in zip(columns_of(messages), before, strict=True))


def _snapshot(value: object) -> object:
    """Copy of a value's containers, so that a change within them shows; other values as they are."""
    if isinstance(value, dict):
        return {key: _snapshot(inner) for key, inner in cast(dict[object, object], value).items()}
    if isinstance(value, list):
        return [_snapshot(inner) for inner in cast(list[object], value)]
    return value
