"""Read message histories: each message into its items, its token count and its content-based id.

Only new messages cost time: a known message object is found by its identity, a deserialised copy by its content.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, reduce
from importlib import import_module
from itertools import accumulate, compress, count, islice
from typing import TYPE_CHECKING, Any, cast

from context_compiler.cache import Memo
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
    view_message_id,
)
from context_compiler.messages.items import Item, Kind, read_items, separate_parts
from context_compiler.messages.recorded import RecordedMessage, report_damage
from context_compiler.resilience import in_steps
from context_compiler.tokens import TokenCounter, as_counter

if TYPE_CHECKING:  # importing Pydantic AI is slow, and reading the record does not need it
    from pydantic_ai.messages import ModelMessage, ModelRequest

__all__ = ["History", "Reader", "Reading", "current_instructions", "day", "reader_of", "searchable"]

MAX_CACHED_CHARACTERS = 50_000_000
"""Maximum characters of text in the readings that are cached by content."""

ENTRY = 1_000
"""Overhead of one cached reading, in characters."""

JOINS = 4
"""Number of newest possibly joined messages that `History.joined_at` tries."""

RECENT = 8
"""Number of recently read histories that the next reading may continue."""

CLOSE = 16
"""The search for a history to continue stops at one that leaves at most this many messages to read."""

RETURNED_WITHIN, AT_ONCE = timedelta(seconds=1), timedelta(milliseconds=5)
"""The host makes the user parts of what a tool returned directly after its result. A prompt that was added to a run
while its tools worked may be in the same message, but it is older than the newest result. After an earlier result, only
a part that was made at once belongs to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything that reading one message yields."""

    items: tuple[Item, ...]
    tokens: int
    name: str
    """Its `identity`: a hash of its content alone, independent of the messages before it."""
    exact: str
    """Its `exact_identity`, which also covers instructions and tool outcomes."""
    rendering: str
    """Hash of the texts of its dynamic parts; empty if it has none."""
    splits: tuple[Split, ...]
    """Places at which the host may have joined two messages."""
    request: bool
    has_user_part: bool
    """True if it contains a user prompt that this package did not write."""
    calls: tuple[str, ...]
    """Ids of the function calls it makes."""
    answers: tuple[str, ...]
    """Ids of the function calls it answers."""
    has_prompt: bool
    """True if a user wrote something in it; a file beside a tool result belongs to the result and does not count."""
    beside_results: bool
    """True if a tool returned its user parts beside its result, by their timestamps; see `RETURNED_WITHIN`."""
    exchanges: bool
    """True if it calls a tool or answers a call, including the provider's own tools."""
    stays: int
    """Tokens that remain when the message is dropped: pins, host bookkeeping, and system text of others."""
    day: str
    """Date of the message as YYYY-MM-DD; empty if it has no timestamp."""
    run_id: str | None
    answered: Reading | None = None
    """Its reading once it has been answered, if that is another one because it has scoped parts."""

    @property
    def scoped(self) -> bool:
        """True if it contains parts that are sent until it has been answered, and no longer."""
        return any(item.scoped for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A whole history with the reading of each message. Index `i` refers to the same message in every tuple."""

    messages: tuple[ModelMessage, ...]
    readings: tuple[Reading, ...]
    ids: tuple[str, ...]
    exact: tuple[str, ...]
    """Exact names, under which the messages are recorded."""
    sums: tuple[int, ...]
    """`sums[i]` is the number of tokens of the first `i` messages."""
    static: int
    """Number of leading messages without dynamic parts."""

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def tip(self) -> str | None:
        """Chain id of the whole history; None if it is empty."""
        return self.ids[-1] if self.ids else None

    def splits(self, index: int) -> list[Split]:
        """Chain ids of the two messages that the host may have joined into message `index`, for each possible place.

        The host joins consecutive requests when it receives a stored history. So the tool results that end a run and
        the next prompt, the results of deferred calls, or an unanswered prompt and the next one become one message
        from the next run on.
        """
        before = self.ids[index - 1] if index else None
        firsts = [(split, chain_id(before, split.first)) for split in self.readings[index].splits]
        return [Split(split.count, first, chain_id(first, split.rest)) for split, first in firsts]

    def joined_at(self, index: int, tip: str) -> tuple[int, int] | None:
        """Find the message up to `index` that was still two messages when `tip` was the chain id of `index`.

        Only the newest candidates are tried, because decisions older than those have been recorded again since.

        Returns:
            The position of the message and the number of parts that came from the first of the two; None if no
            message fits.
        """
        candidates = (position for position in range(index, -1, -1) if self.readings[position].splits)
        for position in islice(candidates, JOINS):
            names = [reading.name for reading in self.readings[position + 1 : index + 1]]
            for split in self.splits(position):
                if tip == reduce(chain_id, names, split.rest):
                    return position, split.count
        return None

    def tips(self, last: int | None = None) -> list[str]:
        """Chain ids of all histories that this one continues, its own last.

        If the host joined a prompt with the tool results before it, the prompt's own id is included too.

        Args:
            last: Return only the ids of histories that end within this many last messages; None returns all.
        """
        start, chain_ids, apart = 0 if last is None else max(0, len(self) - last), list[str](), list[str]()
        for index in range(start, len(self)):
            reading = self.readings[index]
            if reading.splits:
                splits = self.splits(index)
                chain_ids += (name for split in splits for name in (split.first, split.rest))
                apart = [split.rest for split in splits]
            elif apart:
                apart = [chain_id(tip, reading.name) for tip in apart]
            chain_ids += (*apart, self.ids[index]) if apart else (self.ids[index],)
        return chain_ids

    @property
    def chain(self) -> ExactChain:
        """The history in the form in which it is recorded."""
        return ExactChain(self, self.exact)

    @property
    def view_chain(self) -> ExactChain:
        """The history in the form in which it is recorded as a view: names also cover renderings of dynamic parts."""
        if self.static == len(self):
            return self.chain
        names = list(self.exact)
        for index in range(self.static, len(names)):
            reading = self.readings[index]
            names[index] = view_message_id(names[index - 1] if index else None, reading.exact, reading.rendering)
        return ExactChain(self, tuple(names))

    @property
    def tokens(self) -> int:
        """Exact tokens of all messages together."""
        return self.sums[-1]

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        return body_of(self.messages[index])

    def text(self, index: int) -> str:
        """The searchable text of message `index`."""
        return searchable(self.readings[index])

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Item]]:
        """Items of the messages from `start` to before `stop`, each with the position of its message."""
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
        """Exact name of the whole history; None if it is empty."""
        return self.ids[-1] if self.ids else None

    def body(self, index: int) -> bytes:
        """The canonical JSON of message `index`."""
        return self.history.body(index)

    def text(self, index: int) -> str:
        """The searchable text of message `index`."""
        return self.history.text(index)


SPOKEN = frozenset({Kind.USER, Kind.PIN, Kind.TEXT, Kind.CALL, Kind.RETURN, Kind.FEEDBACK, Kind.COMPACTION, Kind.OTHER})


def searchable(reading: Reading) -> str:
    """Searchable text of a message: the words of users and models, tool calls and tool results."""
    texts = (f"{item.tool} {item.text}" if item.tool else item.text for item in reading.items if item.kind in SPOKEN)
    return "\n".join(text for text in texts if text)


class Reader:
    """Reads histories and caches the readings, by object identity and by content. Concurrent runs may share it."""

    def __init__(self, counter: TokenCounter) -> None:
        """Count tokens with `counter`."""
        self.counter = counter
        self._seen: dict[int, tuple[weakref.ref[ModelMessage], list[object], Reading]] = {}
        self._known: Memo[str, Reading] = Memo(MAX_CACHED_CHARACTERS, _weight)
        self._recent: deque[tuple[History, Columns | None]] = deque(maxlen=RECENT)
        """Newest histories, each with the objects that its messages contained when read; None if some are unknown."""
        self._uninstructed: dict[int, tuple[weakref.ref[ModelRequest], list[object], ModelRequest]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the caches: the copy is a reader that has read nothing yet."""
        return Reader, (self.counter,)

    def read(self, messages: Sequence[ModelMessage], *, last: History | None = None) -> History:
        """Read a history, reusing what is known of its beginning.

        The host may stamp or edit the last messages of a request but leaves older ones alone. So messages that are the
        same objects as in `last` are reused unchecked, except its last two, which must be unedited. If nothing changed,
        `last` itself is returned. Messages shared with a history of another run are reused only if none of them was
        edited in place.

        Args:
            messages: The whole history.
            last: The history at the previous request of the same run.
        """
        kept = self._unchanged_prefix(last, messages)
        if last is not None and kept == len(last) == len(messages):
            return last
        base, share, objects = (last, kept, self._objects_in(last)) if last and kept else self._find_unedited(messages)
        start = _current_request(messages)
        changes = range(min(start, _current_request(base.messages)), share) if base else ()
        share = next((index for index in changes if base and base.readings[index].scoped), share)
        news = messages[share:]
        objects = columns_after(objects, share, news) if objects is not None or not share else None
        readings = (base.readings[:share] if base else ()) + tuple(
            self._one_at(index, message, start) for index, message in enumerate(in_steps(news), share)
        )
        if not kept and len(news) > CLOSE:  # the objects are new, but the contents may be known
            closest, length, _ = self._find_closest(readings, lambda history, _: history.readings)
            base, share = (closest, length) if length > share else (base, share)
        ids, exact = (base.ids[:share], base.exact[:share]) if base else ((), ())
        sums = base.sums[: share + 1] if base else (0,)
        new = readings[share:]
        history = History(
            messages=tuple(messages),
            readings=readings,
            ids=ids + _chain(chain_id, ids, [reading.name for reading in new]),
            exact=exact + _chain(exact_id, exact, [reading.exact for reading in new]),
            sums=sums[:-1] + tuple(accumulate((reading.tokens for reading in new), initial=sums[-1])),
            static=base.static if base and base.static < share else _first_dynamic(readings, share),
        )
        self._recent.append((history, objects))
        return history

    def read_recorded(self, messages: Sequence[RecordedMessage]) -> History:
        """Read recorded messages like the host's.

        Raises:
            StoreError: One of them is damaged.
        """
        with report_damage():
            return self.read(cast("Sequence[ModelMessage]", messages))

    def one_recorded(self, message: RecordedMessage) -> Reading:
        """Read one recorded message like the host's.

        Raises:
            StoreError: It is damaged.
        """
        with report_damage():
            return self.one(cast("ModelMessage", message))

    def _unchanged_prefix(self, last: History | None, messages: Sequence[ModelMessage]) -> int:
        """Number of leading messages that are the same objects as in `last`; its last two must also be unedited."""
        if last is None:
            return 0
        share = common_prefix(last.messages, messages)
        start, checked = _current_request(last.messages), range(max(0, len(last) - 2), share)
        edited = (index for index in checked if self._one_at(index, messages[index], start) is not last.readings[index])
        return next(edited, share)

    def _one_at(self, index: int, message: ModelMessage, current: int) -> Reading:
        """Read the message at a position in a history whose current request begins at `current`."""
        reading = self.one(message)
        return reading.answered if reading.answered and index < current else reading

    def _objects_in(self, last: History) -> Columns | None:
        """Objects that the messages of a recent history contained when they were read; None if unknown."""
        return next((objects for history, objects in tuple(self._recent) if history is last), None)

    def _find_unedited(self, messages: Sequence[ModelMessage]) -> tuple[History | None, int, Columns | None]:
        """Recent history with the longest common prefix of messages, if none of these was edited in place since."""
        best = self._find_closest(messages, lambda history, objects: () if objects is None else history.messages)
        _, share, objects = best
        return best if objects is not None and are_unedited(messages[:share], objects) else (None, 0, None)

    def _find_closest(
        self, wanted: Sequence[object], of: Callable[[History, Columns | None], Sequence[object]]
    ) -> tuple[History | None, int, Columns | None]:
        """Recent history with the longest common prefix: of what it has, by `of`, and what is wanted.

        Returns:
            The history, the length of the prefix, and the objects in the history's messages; `(None, 0, None)` if
            there is no such history.
        """
        best: tuple[History | None, int, Columns | None] = (None, 0, None)
        for history, objects in reversed(tuple(self._recent)):  # a copy, because another thread may append
            share = common_prefix(of(history, objects), wanted)
            if share > best[1]:
                best = history, share, objects
            if best[1] >= len(wanted) - CLOSE:
                break
        return best

    def one(self, message: ModelMessage) -> Reading:
        """Read one message, from the cache if it is known."""
        key, look = id(message), objects_of(message)
        seen = self._seen.get(key)
        if seen and seen[0]() is message and seen[1] == look:  # an id may belong to a newer object by now
            return seen[2]
        body = body_of(message)
        reading = self._known.get_or_make(blob_id(body), lambda: _read_message(message, body, self.counter))
        self._seen[key] = (weakref.ref(message, lambda _: self._seen.pop(key, None)), look, reading)
        return reading

    def unread(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Messages whose objects are not in the cache, so that reading them takes time."""
        _, kept, _ = self._find_closest(messages, lambda history, _: history.messages)
        cached = ((message, self._seen.get(id(message))) for message in messages[kept:])
        return [message for message, seen in cached if seen is None or seen[0]() is not message]

    def without_instructions(self, request: ModelRequest) -> ModelRequest:
        """Copy a request without its instructions; return the same copy until the request changes."""
        key, look = id(request), objects_of(request)
        stored = self._uninstructed.get(key)
        if stored and stored[0]() is request and stored[1] == look:
            return stored[2]
        copy = replace(request, instructions=None)
        self._uninstructed[key] = (weakref.ref(request, lambda _: self._uninstructed.pop(key, None)), look, copy)
        return copy


def body_of(message: ModelMessage) -> bytes:
    """Canonical JSON of a message; of a recorded one, as it is recorded."""
    return message.body if isinstance(message, RecordedMessage) else _serializer()(message)


@cache
def _serializer() -> Callable[[ModelMessage], bytes]:
    return import_module("context_compiler.messages.bodies").message_body


def _weight(reading: Reading) -> int:
    return ENTRY + sum(len(item.text) for item in reading.items)


_shared = Reader(as_counter(None))


def reader_of(counter: TokenCounter) -> Reader:
    """Reader for a counter; the default counter has one shared reader, so that nothing is read twice."""
    return _shared if counter is _shared.counter else Reader(counter)


def _chain(name: Callable[[str | None, str], str], before: Sequence[str], contents: Sequence[str]) -> tuple[str, ...]:
    """Chained names of the messages with these contents, which follow the messages named `before`."""
    tip = before[-1] if before else None
    return tuple([tip := name(tip, content) for content in contents])


def _first_dynamic(readings: Sequence[Reading], start: int) -> int:
    """Position of the first message from `start` on that has dynamic parts; the length of the history if none has."""
    return next((index for index in range(start, len(readings)) if readings[index].rendering), len(readings))


def common_prefix(former: Sequence[object], other: Sequence[object]) -> int:
    """Number of leading elements that are the same objects."""
    return next(compress(count(), map(operator.is_not, former, other)), min(len(former), len(other)))


def _current_request(messages: Sequence[ModelMessage | RecordedMessage]) -> int:
    """Position of the first of the newest requests that follow one another; a response after them continues them."""
    start = len(messages)
    for kind in ("response", "request"):
        while start and messages[start - 1].kind == kind:
            start -= 1
    return start


def current_instructions(messages: Sequence[ModelMessage | RecordedMessage]) -> str:
    """Instructions of the current request, which its last message need not have; empty if there are none."""
    requests = [message for message in messages[_current_request(messages) :] if message.kind == "request"]
    return next((request.instructions for request in reversed(requests) if request.instructions), "")


def _read_message(message: ModelMessage, body: bytes, counter: TokenCounter) -> Reading:
    items = read_items(message, counter)
    request = message.kind == "request"
    facts = identity_facts(body)
    functions = [item for item in items if item.call_id is not None and not item.native]
    answers = tuple(str(item.call_id) for item in functions if item.kind is Kind.RETURN)
    spoken = [item for item in items if item.kind is Kind.USER and item.mark is None]
    reading = Reading(
        items=items,
        tokens=sum(item.tokens for item in items),
        name=facts.identity,
        exact=facts.exact,
        rendering=facts.rendering,
        splits=facts.splits,
        request=request,
        has_user_part=request and bool(spoken),
        has_prompt=request and bool(spoken) and not (answers and all(item.files for item in spoken)),
        beside_results=bool(answers and spoken) and _all_returned(message, items),
        calls=tuple(str(item.call_id) for item in functions if item.kind is Kind.CALL),
        answers=answers,
        exchanges=any(item.call_id is not None for item in items),
        stays=sum(item.tokens for item in items if item.stays),
        day=_day_of(message),
        run_id=message.run_id,
    )
    return replace(reading, answered=_once_answered(reading)) if reading.scoped else reading


def _once_answered(reading: Reading) -> Reading:
    """A reading whose scoped parts have expired."""
    items = tuple(replace(item, tokens=0, expired=True) if item.scoped else item for item in reading.items)
    expired = sum(item.tokens for item in reading.items if item.scoped)
    return replace(reading, items=items, tokens=reading.tokens - expired, stays=reading.stays - expired)


def _all_returned(message: ModelMessage, items: Sequence[Item]) -> bool:
    """True if tools returned all user parts: each was made directly after a result."""
    pairs = [*zip(separate_parts(message), items, strict=True)]
    made, said = ([_time_of(part) for part, item in pairs if item.kind is kind] for kind in (Kind.RETURN, Kind.USER))
    limits = dict.fromkeys(filter(None, made), AT_ONCE)
    if not limits:
        return False
    limits[max(limits)] = RETURNED_WITHIN
    return all(when and any(timedelta() <= when - time <= limit for time, limit in limits.items()) for when in said)


def _time_of(part: object) -> datetime | None:
    """Timestamp of a part, in UTC if it has no time zone; None if it has none."""
    when = getattr(part, "timestamp", None)
    if not isinstance(when, datetime):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _day_of(message: ModelMessage) -> str:
    days = (day(getattr(source, "timestamp", None)) for source in (*message.parts, message))
    return next(filter(None, days), "")


UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""Time of a message that has none; constant, so that the same message is equal every time it is made."""


def day(when: object) -> str:
    """Format a time as YYYY-MM-DD; empty for no time and for the placeholder of undated messages."""
    return when.date().isoformat() if isinstance(when, datetime) and when.year > UNDATED.year else ""
