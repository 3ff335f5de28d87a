"""Message histories: each message read once into items, token count and content-based id.

Reading costs only what is new: a known message is found by object identity, a deserialised one by its content.
The module also has the canonical JSON of a message, which the record keeps.
"""

from __future__ import annotations

import json
import operator
import re
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import reduce
from itertools import accumulate, chain, compress, count, islice
from typing import Any, cast

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest
from pydantic_core import PydanticSerializationError

from context_compiler.cache import Memo
from context_compiler.errors import StoreError
from context_compiler.ids import (
    Columns,
    Split,
    are_unedited,
    blob_id,
    chain_id,
    columns_after,
    exact_id,
    identity_facts,
    objects_of,
    sent_id,
)
from context_compiler.messages.items import Item, Kind, read_items, type_label
from context_compiler.tokens import TokenCounter, as_counter

__all__ = ["PROMPT", "History", "Reader", "Reading", "day", "load_messages", "message_body", "reader_of", "searchable"]

REMEMBERED = 50_000_000
"""Characters of the readings that are remembered by content."""

ENTRY = 1_000
"""Overhead of one remembered reading, in characters."""

PROMPT = "prompt "
"""Mark of the chain id of a prompt that is one message with the tool results before it now."""

JOINS = 4
"""Newest messages that are tried where the host may have joined two."""

RECENT = 8
"""Recently read histories whose ids may be reused by the next."""

CLOSE = 16
"""With at most this many new messages the search for a closer history stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One message as it was read."""

    items: tuple[Item, ...]
    tokens: int
    name: str
    """Its `identity`: named by content alone, without what came before."""
    exact: str
    """Its `exact_identity`, with instructions and outcomes."""
    rendering: str
    """Hash of the texts of its dynamic parts; empty if it has none."""
    splits: tuple[Split, ...]
    """Places at which the host may have joined two messages."""
    request: bool
    prompts: bool
    """It holds a user prompt that this package did not write."""
    calls: tuple[str, ...]
    """Ids of the function calls it makes."""
    answers: tuple[str, ...]
    """Ids of the function calls it answers."""
    asks: bool
    """True if it has words of a user; a file beside a tool result belongs to the result."""
    exchanges: bool
    """It calls a tool or answers a call, the provider's own tools included."""
    stays: int
    """Tokens that remain when the message is dropped: foreign system text and host bookkeeping."""
    day: str
    """The day it was made, as YYYY-MM-DD; empty where it does not say."""
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole history, read. Position `i` means the same in every tuple."""

    messages: tuple[ModelMessage, ...]
    readings: tuple[Reading, ...]
    ids: tuple[str, ...]
    exact: tuple[str, ...]
    """Exact names, under which messages are recorded."""
    sums: tuple[int, ...]
    """`sums[i]` is the price of the first `i` messages."""
    static: int
    """Leading messages without dynamic parts."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def tip(self) -> str | None:
        """The name of the whole history; None when it is empty."""
        return self.ids[-1] if self.ids else None

    def splits(self, index: int) -> list[Split]:
        """Chain ids of the two messages that message `index` may have been, for each place where it may be split.

        The host puts a request and the next one into one when a stored history is given back. So results at the end of
        a run and the prompt of the next, the results of calls that were put off, or a prompt that nobody answered and
        the next, are one message from the run after that on.
        """
        before = self.ids[index - 1] if index else None
        firsts = [(split, chain_id(before, split.first)) for split in self.readings[index].splits]
        return [Split(split.count, first, chain_id(first, split.rest)) for split, first in firsts]

    def joined_at(self, index: int, tip: str) -> tuple[int, int] | None:
        """The message up to `index` that was two when `tip` was the chain id of `index`, and the parts of the first.

        Of several only the newest few can be it: what was decided before was found again since.
        """
        joined = (at for at in range(index, -1, -1) if self.readings[at].splits)
        for at in islice(joined, JOINS):
            names = [reading.name for reading in self.readings[at + 1 : index + 1]]
            for split in self.splits(at):
                if tip == reduce(chain_id, names, split.rest):
                    return at, split.count
        return None

    def tips(self, last: int | None = None) -> list[str]:
        """Chain ids of the histories that this one continues, itself last; of those that end in its last messages.

        Those of prompts that were joined with the results before them are there with a mark too, for their blocks.
        """
        start, found, apart = 0 if last is None else max(0, len(self) - last), list[str](), list[str]()
        for index in range(start, len(self)):
            reading = self.readings[index]
            if reading.splits:
                splits = self.splits(index)
                found += (name for split in splits for name in (split.first, f"{PROMPT}{split.rest}"))
                apart = [split.rest for split in splits]
            elif apart:
                apart = [chain_id(tip, reading.name) for tip in apart]
            found += (*apart, self.ids[index]) if apart else (self.ids[index],)
        return found

    @property
    def chain(self) -> ExactChain:
        """The history as it is recorded."""
        return ExactChain(self, self.exact)

    @property
    def view_chain(self) -> ExactChain:
        """The history as it is recorded where it is a view: named by the renderings of its dynamic parts, too."""
        if self.static == len(self):
            return self.chain
        names = list(self.exact)
        for at in range(self.static, len(names)):
            reading = self.readings[at]
            names[at] = sent_id(names[at - 1] if at else None, reading.exact, reading.rendering)
        return ExactChain(self, tuple(names))

    @property
    def tokens(self) -> int:
        """Exact tokens of all its messages."""
        return self.sums[-1]

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        return message_body(self.messages[index])

    def text(self, index: int) -> str:
        """The searchable text of message `index`."""
        return searchable(self.readings[index])

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Item]]:
        """Every item between two positions, each with the position of its message."""
        for index in range(start, len(self.messages) if stop is None else stop):
            for item in self.readings[index].items:
                yield index, item


@dataclass(frozen=True, slots=True)
class ExactChain:
    """A history as a `Chain` of exact names."""

    history: History
    ids: tuple[str, ...]
    """The exact names."""

    @property
    def tip(self) -> str | None:
        """The exact name of the whole history; None when it is empty."""
        return self.ids[-1] if self.ids else None

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        return self.history.body(index)

    def text(self, index: int) -> str:
        """The searchable text of message `index`."""
        return self.history.text(index)


SPOKEN = frozenset({Kind.USER, Kind.PIN, Kind.TEXT, Kind.CALL, Kind.RETURN, Kind.FEEDBACK, Kind.COMPACTION, Kind.OTHER})


def searchable(reading: Reading) -> str:
    """Searchable text of a message: speech, calls and results."""
    texts = (f"{item.tool} {item.text}" if item.tool else item.text for item in reading.items if item.kind in SPOKEN)
    return "\n".join(text for text in texts if text)


class Reader:
    """Reads histories, and remembers what it read by identity and by content. Shared by concurrent runs."""

    def __init__(self, counter: TokenCounter) -> None:
        """Price messages with `counter`."""
        self.counter = counter
        self._seen: dict[int, tuple[weakref.ref[ModelMessage], list[object], Reading]] = {}
        self._known: Memo[str, Reading] = Memo(REMEMBERED, _size)
        self._recent: deque[tuple[History, Columns | None]] = deque(maxlen=RECENT)
        """Newest histories, each with the objects that its messages held when read; None if not all are known."""
        self._uninstructed: dict[int, tuple[weakref.ref[ModelRequest], list[object], ModelRequest]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A reader that has read nothing yet: what was read is a cache."""
        return Reader, (self.counter,)

    def read(self, messages: Sequence[ModelMessage], *, last: History | None = None) -> History:
        """Read a history; `last` is what it was at the previous request of the same run.

        The host may stamp or edit the last messages of a request but leaves older ones alone, so what `last`
        shares with `messages` object for object is reused unchecked. What a history of another run shares is reused
        only if none of it was edited in place.
        """
        kept = _unchanged_prefix(last, messages)
        known, share, held = (last, kept, self._held(last)) if last and kept else self._unedited(messages)
        news = messages[share:]
        held = columns_after(held, share, news) if held is not None or not share else None
        readings = (known.readings[:share] if known else ()) + tuple(map(self.one, news))
        if not kept and len(news) > CLOSE:
            known, share = max((known, share), self._closest(readings), key=lambda one: one[1])
        ids = list(known.ids[max(0, share - 1) : share]) if known else []
        exact = list(known.exact[max(0, share - 1) : share]) if known else []
        for reading in readings[share:]:
            ids.append(chain_id(ids[-1] if ids else None, reading.name))
            exact.append(exact_id(exact[-1] if exact else None, reading.exact))
        sums = accumulate((reading.tokens for reading in readings[share:]), initial=known.sums[share] if known else 0)
        history = History(
            messages=tuple(messages),
            readings=readings,
            ids=(known.ids[: max(0, share - 1)] if known else ()) + tuple(ids),
            exact=(known.exact[: max(0, share - 1)] if known else ()) + tuple(exact),
            sums=(known.sums[:share] if known else ()) + tuple(sums),
            static=known.static if known and known.static < share else _first_dynamic(readings, share),
        )
        self._recent.append((history, held))
        return history

    def _held(self, last: History) -> Columns | None:
        """The objects that the messages of a recent history held when they were read."""
        return next((held for history, held in tuple(self._recent) if history is last), None)

    def _unedited(self, messages: Sequence[ModelMessage]) -> tuple[History | None, int, Columns | None]:
        """The recent history with the longest common prefix of messages, if none was edited in place since."""
        best: tuple[History | None, int, Columns | None] = (None, 0, None)
        for history, held in reversed(tuple(self._recent)):
            share = common_prefix(history.messages, messages) if held is not None else 0
            if share > best[1]:
                best = history, share, held
            if best[1] >= len(messages) - CLOSE:
                break
        _, share, held = best
        return best if held is not None and are_unedited(messages[:share], held) else (None, 0, None)

    def _closest(self, readings: Sequence[Reading]) -> tuple[History | None, int]:
        """The recent history with the longest common prefix, and the length of that prefix."""
        best: tuple[History | None, int] = (None, 0)
        for history, _ in reversed(tuple(self._recent)):  # another thread may read meanwhile
            share = common_prefix(history.readings, readings)
            if share > best[1]:
                best = history, share
            if share >= len(readings) - CLOSE:
                break
        return best

    def one(self, message: ModelMessage) -> Reading:
        """Read one message, from memory where it is known."""
        seen = self._seen.get(id(message))
        look = objects_of(message)
        if seen and seen[0]() is message and seen[1] == look:
            return seen[2]
        reading = self._by_content(message)
        key = id(message)
        self._seen[key] = (weakref.ref(message, lambda _: self._seen.pop(key, None)), look, reading)
        return reading

    def unread(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Messages whose objects have not been read yet; reading them takes long."""
        kept = 0
        for history, _ in reversed(tuple(self._recent)):
            kept = max(kept, common_prefix(history.messages, messages))
            if kept >= len(messages) - CLOSE:
                break
        return [one for one in messages[kept:] if (seen := self._seen.get(id(one))) is None or seen[0]() is not one]

    def without_instructions(self, request: ModelRequest) -> ModelRequest:
        """A copy of a request without its instructions; the same one for as long as the request does not change."""
        key, look = id(request), objects_of(request)
        known = self._uninstructed.get(key)
        if known and known[0]() is request and known[1] == look:
            return known[2]
        copy = replace(request, instructions=None)
        self._uninstructed[key] = (weakref.ref(request, lambda _: self._uninstructed.pop(key, None)), look, copy)
        return copy

    def _by_content(self, message: ModelMessage) -> Reading:
        body = message_body(message)
        name = blob_id(body)
        known = self._known.get(name)
        if known is None:
            known = _read_message(message, body, self.counter)
            self._known.keep(name, known)
        return known


def _size(reading: Reading) -> int:
    return ENTRY + sum(len(item.text) for item in reading.items)


_common = Reader(as_counter(None))


def reader_of(counter: TokenCounter) -> Reader:
    """Reader for a counter; the shared counter has a shared reader, so that nothing is read twice."""
    return _common if counter is _common.counter else Reader(counter)


def _unchanged_prefix(last: History | None, messages: Sequence[ModelMessage]) -> int:
    """Number of leading messages that are the same objects as last time, minus the two a host may edit."""
    if last is None:
        return 0
    return max(0, min(common_prefix(last.messages, messages), len(last) - 2))


def _first_dynamic(readings: Sequence[Reading], start: int) -> int:
    """Position of the first message from `start` on that has dynamic parts; the length of the history if none has."""
    return next((at for at in range(start, len(readings)) if readings[at].rendering), len(readings))


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    """Number of leading elements that are the same objects."""
    return next(compress(count(), map(operator.is_not, one, other)), min(len(one), len(other)))


def _read_message(message: ModelMessage, body: bytes, counter: TokenCounter) -> Reading:
    items = read_items(message, counter)
    request = isinstance(message, ModelRequest)
    facts = identity_facts(body)
    functions = [item for item in items if item.call_id is not None and not item.native]
    answers = tuple(str(item.call_id) for item in functions if item.kind is Kind.RETURN)
    spoken = [item for item in items if item.kind is Kind.USER and item.mark is None]
    return Reading(
        items=items,
        tokens=sum(item.tokens for item in items),
        name=facts.identity,
        exact=facts.exact,
        rendering=facts.rendering,
        splits=facts.splits,
        request=request,
        prompts=request and bool(spoken),
        asks=request and bool(spoken) and not (answers and all(item.files for item in spoken)),
        calls=tuple(str(item.call_id) for item in functions if item.kind is Kind.CALL),
        answers=answers,
        exchanges=any(item.call_id is not None for item in items),
        stays=sum(item.tokens for item in items if item.stays),
        day=_day_of(message),
        run_id=message.run_id,
    )


def _day_of(message: ModelMessage) -> str:
    for one in (*message.parts, message):
        if found := day(getattr(one, "timestamp", None)):
            return found
    return ""


def day(when: object) -> str:
    """A time as YYYY-MM-DD; empty if there is none, or only the zero of an undated transcript."""
    return when.date().isoformat() if isinstance(when, datetime) and when.year > 1970 else ""


_HALVES = re.compile("[\ud800-\udfff]")
_NUMBER = 4_301
"""Digits of a whole number that is too long for JSON parsers."""
_DIGITS = re.compile(rb"\d*")
_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*(?:"|\\?\Z)|(-?\d{4301,}+)')
"""A complete string, so that digits within it are not taken for a number; or a number too long for JSON parsers."""


NESTING = ("content", "args", "metadata")
"""Attributes of parts that hold values of applications and models."""

DEEPEST = 251
"""Levels of lists and objects within a part that the host's types can write. Beyond them some versions of Pydantic try
every kind of value at every level again: 300 levels take them hours."""


def message_body(message: ModelMessage) -> bytes:
    """The canonical JSON of one message.

    Half of a surrogate pair, which nothing can write or send, becomes a replacement character; a whole number of more
    than 4,300 digits, which nothing could read again, becomes text.

    Raises:
        PydanticSerializationError: It is nested too deep.
    """
    if _is_too_deep(message):
        raise PydanticSerializationError(f"nested more than {DEEPEST} levels deep, which cannot be written")
    try:
        body = ModelMessagesTypeAdapter.dump_json([message], warnings=False, fallback=type_label)[1:-1]
    except PydanticSerializationError:
        whole = _without_halves(message)
        loose = ModelMessagesTypeAdapter.dump_python([whole], mode="json", warnings=False, fallback=type_label)
        text = json.dumps(loose[0], ensure_ascii=False, separators=(",", ":"))
        body = _HALVES.sub("\ufffd", text).encode()
    return _STRING_OR_NUMBER.sub(_as_text, body) if _has_long_number(body) else body


def _is_too_deep(message: ModelMessage) -> bool:
    level: list[Any] = [getattr(part, name, None) for part in message.parts for name in NESTING]
    for _ in range(DEEPEST + 1):
        held = {id(value): inner for value in level if (inner := _held_by(value))}  # the same list may occur twice
        if not held:
            return False
        level = list(chain.from_iterable(held.values()))
    return True


def _held_by(value: object) -> Collection[Any]:
    """Contents of a container or an object; none for other values."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    if isinstance(value, (list, tuple)):
        return cast("Collection[Any]", value)
    if isinstance(value, BaseModel):
        return vars(value).values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, one.name, None) for one in fields(value)]
    return ()


def _without_halves(value: Any) -> Any:
    """A value with every lone surrogate replaced in its texts, keys and file addresses."""
    if isinstance(value, str):
        return _HALVES.sub("\ufffd", value)
    if isinstance(value, dict):
        pairs = cast(dict[Any, Any], value).items()
        return {_without_halves(key): _without_halves(inner) for key, inner in pairs}
    if isinstance(value, list):
        return [_without_halves(inner) for inner in cast(list[Any], value)]
    if not is_dataclass(value):
        return value
    other = copy(value)
    for each in fields(value):
        if hasattr(value, each.name):
            object.__setattr__(other, each.name, _without_halves(getattr(value, each.name)))
    return other


def _has_long_number(body: bytes) -> bool:
    """True if `_NUMBER` digits follow one another: then one byte at that distance, which are looked at, is a digit."""
    for at in range(0, len(body), _NUMBER):
        if 48 <= body[at] <= 57:
            before = body[max(0, at - _NUMBER) : at]
            after = _DIGITS.match(body, at, at + _NUMBER)
            if len(before) - len(before.rstrip(b"0123456789")) + (after.end() - at if after else 0) >= _NUMBER:
                return True
    return False


def _as_text(found: re.Match[bytes]) -> bytes:
    return b'"%s"' % found[1] if found[1] else found[0]


def load_messages(bodies: Sequence[bytes]) -> list[ModelMessage]:
    """Messages from their canonical JSON.

    Raises:
        StoreError: It is damaged.
    """
    try:
        return ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(bodies) + b"]")
    except ValueError as error:
        raise StoreError("a recorded message cannot be read; verify the record") from error


def superseded_parts(history: History) -> dict[int, frozenset[int]]:
    """Positions of superseded parts by message: they may be dropped together with it.

    Host bookkeeping parts survive when their message is dropped, unless a later part supersedes them: system text that
    repeats an earlier message, and host notes from before the last compaction, which the host no longer reads.
    """
    staying = [index for index, reading in enumerate(history.readings) if reading.stays]
    noted = any(item.kind is Kind.CONTROL for index in staying for item in history.readings[index].items)
    window = _window_start(history) if noted else (0, 0)
    seen: set[str] = set()
    found: dict[int, set[int]] = {}
    for index in staying:
        for at, item in enumerate(history.readings[index].items):
            if item.kind is not Kind.SYSTEM:
                gone = item.kind is Kind.CONTROL and (index, at) < window
            else:
                gone = item.text in seen
                seen.add(item.text)
            if gone:
                found.setdefault(index, set()).add(at)
    return {index: frozenset(parts) for index, parts in found.items()}


def _window_start(history: History) -> tuple[int, int]:
    """Message and part at which the host's window opens: the last compaction, or the very first."""
    for index in range(len(history) - 1, -1, -1):
        reading = history.readings[index]
        ends = [at for at, item in enumerate(reading.items) if item.kind is Kind.COMPACTION and item.mark is None]
        if not ends:
            continue
        if not reading.request:
            return index, ends[-1]
        while index and history.readings[index - 1].request:
            index -= 1
        return index, 0
    return 0, 0
