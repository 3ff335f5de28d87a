"""Divide a history into turns and groups; a group is kept, dropped or rendered as a unit.

A cut between two messages is safe if every rule in `RULES` permits it. The messages between two safe cuts form a group.
If a call is answered late (deferred tools, approvals), its message and that of the answer are tied together, so that
the messages between them do not all become one group.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from context_compiler.messages.history import History, Reader, Reading
from context_compiler.messages.items import Kind

if TYPE_CHECKING:  # as in `history`
    from pydantic_ai.messages import ModelMessage

OUTPUT = "final_result"
"""Prefix of the names of tools through which a run returns its output."""

REFERENCE = re.compile(r"(?i)(turn|message|t|m)? ?#?(\d{1,9})")
"""Reference to a message by its turn or its number."""

NEAR = 8
"""Maximum messages to search for a run id; hosts stamp nearly every message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Calls paired with answers, and the parts without a partner."""

    pairs: tuple[tuple[int, int], ...]
    """Message positions of each call and its answer."""
    broken: Mapping[int, frozenset[int]]
    """Parts without a partner, by position of their message: orphaned and repeated answers, unanswered calls,
    and thinking parts left alone without them."""
    unpaired: int | None
    """The last message, if none of its parts has a partner. It becomes text, because a view has to end with it."""
    length: int
    """Number of messages that were paired."""
    tip: str | None
    """Chain id of the last message that was paired."""
    waiting: bool
    """True if later messages may change this pairing: a call is open, or the last message is rendered as text."""


Place = tuple[int, int]
"""Position of a message, and number of a part in it."""

NOTHING = Pairing(pairs=(), broken={}, unpaired=None, length=0, tip=None, waiting=False)


@dataclass(frozen=True, slots=True)
class Group:
    """Messages from `start` to before `stop`, which stay together."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Messages from one user prompt up to the next."""

    index: int
    """0-based ordinal among user turns; -1 before the first prompt."""
    start: int
    stop: int
    groups: tuple[Group, ...]
    """Oldest first; the first one is the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Turns of a history, and ties between messages of different groups."""

    turns: tuple[Turn, ...]
    starts: tuple[int, ...]
    """Start of each turn."""
    ties: Mapping[int, tuple[int, ...]]
    """For each message with a late answer or its call: all messages that can only be dropped together with it,
    including itself."""
    readings: tuple[Reading, ...] = field(repr=False)
    """The messages that were outlined."""

    @property
    def active(self) -> Turn:
        """The turn to which the next answer belongs."""
        return self.turns[-1]


def pair(history: History, before: Pairing | None = None) -> Pairing:
    """Pair calls with answers by id, across any distance.

    Calls of one message that share an id are answered in order. If an id is called again in a later message, its open
    calls count as unanswered.

    Args:
        history: The history.
        before: The pairing of an earlier history. If this history continues that one, only new messages are examined.
    """
    if before is None or before.waiting or not continues(history, before):
        before = NOTHING
    calls: defaultdict[tuple[str, bool], deque[Place]] = defaultdict(deque)
    pairs = list(before.pairs)
    broken: defaultdict[int, set[int]] = defaultdict(set)
    for index, reading in enumerate(history.readings[before.length :], before.length):
        for position, item in enumerate(reading.items if reading.exchanges else ()):
            if item.call_id is None:
                continue
            waiting = calls[item.call_id, item.native]
            if item.kind is Kind.CALL:
                while waiting and waiting[0][0] != index:
                    lost, part = waiting.popleft()
                    broken[lost].add(part)
                waiting.append((index, position))
            elif waiting:
                pairs.append((waiting.popleft()[0], index))
            else:
                broken[index].add(position)
    unanswered = [call for waiting in calls.values() for call in waiting]
    for index, position in unanswered:
        broken[index].add(position)
    unpaired_parts = {index: _with_unsigned_thinking(history, index, parts) for index, parts in broken.items()}
    last = len(history) - 1
    textual = (
        last in unpaired_parts
        and history.readings[last].request
        and len(unpaired_parts[last]) == len(history.readings[last].items)
    )
    return Pairing(
        pairs=tuple(pairs),
        broken={**before.broken, **unpaired_parts},
        unpaired=last if textual else None,
        length=len(history),
        tip=history.tip,
        waiting=bool(unanswered) or textual,
    )


def calls_of_results(readings: Sequence[Reading]) -> Iterator[tuple[Place, Place | None]]:
    """Tool results in order, each with its call; None for a result without a call.

    If an id is used again in a later message, its open call is unanswered. Calls of one message that share an id are
    answered in order.
    """
    waiting: dict[tuple[str, bool], deque[Place]] = {}
    for position, reading in enumerate(readings):
        for part, item in enumerate(reading.items if reading.exchanges else ()):
            if item.call_id is None:
                continue
            key = item.call_id, item.native
            calls = waiting.get(key)
            if item.kind is not Kind.CALL:
                yield (position, part), calls.popleft() if calls else None
            elif calls and calls[0][0] == position:
                calls.append((position, part))
            else:
                waiting[key] = deque([(position, part)])


def superseded_parts(history: History) -> dict[int, frozenset[int]]:
    """Positions of superseded parts by message; they may be dropped together with their message.

    System text and host bookkeeping survive when their message is dropped, unless they are superseded: system text by
    an earlier part with the same text, bookkeeping by a later compaction, because the host reads nothing before it.
    A call that loads something survives only together with its answer, if both say so and the answer did not fail.
    """
    staying = [index for index, reading in enumerate(history.readings) if reading.stays]
    noted = any(item.kind is Kind.CONTROL for index in staying for item in history.readings[index].items)
    window = _window_start(history) if noted else (0, 0)
    seen: set[str] = set()
    superseded_at: defaultdict[int, set[int]] = defaultdict(set)
    for index, position in lone_loads(history):
        superseded_at[index].add(position)
    for index in staying:
        for position, item in enumerate(history.readings[index].items):
            if item.expired:
                continue
            if item.kind is not Kind.SYSTEM:
                superseded = item.kind is Kind.CONTROL and (index, position) < window
            else:
                superseded = item.text in seen
                seen.add(item.text)
            if superseded:
                superseded_at[index].add(position)
    return {index: frozenset(parts) for index, parts in superseded_at.items()}


def lone_loads(history: History) -> set[Place]:
    """Places of calls and answers that load something, but whose partner does not, or fails."""
    loads = {
        (index, position): item.failed
        for index, reading in enumerate(history.readings)
        for position, item in enumerate(reading.items if reading.exchanges else ())
        if item.loads
    }
    if not loads:
        return set()
    results = ((answer, call) for answer, call in calls_of_results(history.readings) if loads.get(answer) is False)
    return set(loads).difference(*((answer, call) for answer, call in results if call in loads))


def _window_start(history: History) -> tuple[int, int]:
    """Message and part from which on the host reads: the last compaction, or the very first part."""
    for index in range(len(history) - 1, -1, -1):
        reading = history.readings[index]
        ends = [part for part, item in enumerate(reading.items) if item.kind is Kind.COMPACTION and item.mark is None]
        if not ends:
            continue
        if not reading.request:
            return index, ends[-1]
        while index and history.readings[index - 1].request:
            index -= 1
        return index, 0
    return 0, 0


def continues(history: History, before: Pairing) -> bool:
    """True if a history begins with the one of an earlier pairing."""
    return 0 < before.length <= len(history) and history.ids[before.length - 1] == before.tip


def _with_unsigned_thinking(history: History, index: int, parts: set[int]) -> frozenset[int]:
    """Add the thinking beside broken parts if nothing else is left in the message."""
    items = history.readings[index].items
    rest = [position for position in range(len(items)) if position not in parts]
    if all(items[position].kind is Kind.THINKING for position in rest):
        return frozenset(range(len(items)))
    return frozenset(parts)


def turn_starts(history: History, first: int = 0) -> list[int]:
    """Positions from `first` on at which turns begin; always includes `first`.

    A request with a user prompt begins a turn, unless it belongs to the same run as the messages before it, or its user
    parts only accompany a tool result. A prompt that the host has joined with the last tool results of the previous run
    also begins a turn; such a joined request has no run id.
    """
    readings = history.readings
    starts = [first]
    for index in [index for index, reading in enumerate(readings[first + 1 :], first + 1) if reading.has_user_part]:
        answers_within_run = (
            readings[index].answers
            and readings[index].run_id is None
            and not (_ends_run(history, index) or _is_between_runs(history, index))
        )
        if not continues_run(history.readings, index) and not answers_within_run:
            starts.append(index)
    return starts


def _is_between_runs(history: History, index: int) -> bool:
    """True if the run before a request without a run id does not continue after it, so its parts are from two runs."""
    before = (reading.run_id for reading in reversed(history.readings[max(0, index - NEAR) : index]))
    after = (reading.run_id for reading in history.readings[index + 1 : index + 1 + NEAR])
    last = next(filter(None, before), None)
    return last is not None and last != next(filter(None, after), None)


def _ends_run(history: History, index: int) -> bool:
    """True if a request answers the call that returned a run's output, so the prompt in it begins another run."""
    items = history.readings[index].items
    return any(item.kind is Kind.RETURN and (item.tool or "").startswith(OUTPUT) for item in items)


def prompt_at(history: History) -> int | None:
    """Position of the newest user prompt; None if there is none.

    Text that a tool returned beside its result is also a user part, but no prompt.
    """
    newest: int | None = None
    for index in reversed(range(len(history))):
        if history.readings[index].has_prompt:
            if is_prompt(history.readings, index):
                return index
            newest = index if newest is None else newest
    return newest


def is_prompt(readings: Sequence[Reading], index: int) -> bool:
    """True if a message is a user's prompt, and not one whose user parts a tool of the same run returned."""
    own = readings[index]
    return own.has_prompt and not (own.beside_results and continues_run(readings, index))


def prompt_positions(messages: Sequence[ModelMessage], reader: Reader) -> list[int]:
    """Positions of the user prompts in messages that need no `History`; see `is_prompt`."""
    readings = [*map(reader.one, messages)]
    return [index for index in range(len(readings)) if is_prompt(readings, index)]


def has_prompt(history: History, group: Group) -> bool:
    """True if a group contains a user's prompt."""
    return any(is_prompt(history.readings, index) for index in range(group.start, group.stop))


def continues_run(readings: Sequence[Reading], index: int) -> bool:
    """True if a message is of the same run as the one before it; False if either run is unknown."""
    own = readings[index].run_id
    before = (reading.run_id for reading in reversed(readings[max(0, index - NEAR) : index]))
    return own is not None and own == next(filter(None, before), None)


def turn_index(history: History) -> int:
    """0-based ordinal of the current user turn."""
    starts = turn_starts(history)
    return max(0, len(starts) - 1 if history.readings and history.readings[0].has_user_part else len(starts) - 2)


Rule = Callable[[History, Sequence[tuple[int, int]], list[int]], Iterable[int]]
"""Rule that yields the positions at which a cut is not safe, given a history, its call-answer pairs and turn starts.
Positions before the first of these starts are not examined."""


def keeps_pairs(history: History, pairs: Sequence[tuple[int, int]], starts: list[int]) -> Iterable[int]:
    """Keep a call and its answer together, unless the answer is so late that they are tied instead."""
    late = _late(history, pairs, starts)
    for call, answer in pairs:
        if (call, answer) not in late:
            yield from range(call + 1, answer + 1)


def keeps_continuations(history: History, pairs: Sequence[tuple[int, int]], starts: list[int]) -> Iterable[int]:
    """Keep a request without a prompt (results, retries) together with the response that it reacts to."""
    for before, (index, reading) in pairwise(enumerate(history.readings[starts[0] :], starts[0])):
        if reading.request and not reading.has_user_part and not before[1].request:
            yield index


def keeps_one_voice(history: History, pairs: Sequence[tuple[int, int]], starts: list[int]) -> Iterable[int]:
    """Keep consecutive responses together, because they are one message to a provider."""
    for before, (index, reading) in pairwise(enumerate(history.readings[starts[0] :], starts[0])):
        if not reading.request and not before[1].request:
            yield index


RULES: tuple[Rule, ...] = (keeps_pairs, keeps_continuations, keeps_one_voice)


def _late(history: History, pairs: Sequence[tuple[int, int]], starts: list[int]) -> frozenset[tuple[int, int]]:
    """Pairs whose answer is in a different turn from the call, or after another response."""
    if not pairs:
        return frozenset()
    requests = [True, *(reading.request for reading in history.readings[starts[0] :])]
    # Number of the step that each message belongs to: a response after a request begins the next one.
    steps = [*accumulate(was and not request for was, request in pairwise(requests))]
    return frozenset(
        (call, answer)
        for call, answer in pairs
        if steps[call - starts[0]] != steps[answer - starts[0]]
        or bisect_right(starts, call) != bisect_right(starts, answer)
    )


def cut_points(history: History, pairs: Sequence[tuple[int, int]], starts: list[int]) -> list[int]:
    """Positions from the first turn start on at which all rules permit a cut; always includes the turn starts."""
    everywhere = frozenset(range(starts[0], len(history)))
    return sorted(everywhere.difference(*(rule(history, pairs, starts) for rule in RULES)).union(starts))


def paired_with(starts: Iterable[int], pairing: Pairing) -> dict[int, tuple[int, ...]]:
    """Map each given message, and every message connected with it through calls and answers, to all of these."""
    connected: dict[int, tuple[int, ...]] = {}
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for start in starts:
        if not partners:
            for call, answer in pairing.pairs:
                partners[call].append(answer)
                partners[answer].append(call)
        if start not in connected:
            whole = _reachable(start, partners)
            connected.update(dict.fromkeys(whole, whole))
    return connected


def _reachable(start: int, partners: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    reached = {start}
    waiting = [start]
    while waiting:
        new = set(partners[waiting.pop()]) - reached
        reached |= new
        waiting.extend(new)
    return tuple(sorted(reached))


def outline(history: History, pairing: Pairing, before: Outline | None = None) -> Outline:
    """Divide a history into turns and groups; an empty history has no turns.

    If the history continues the one outlined in `before`, the settled turns of that outline are reused.
    """
    if not len(history):
        return Outline(turns=(), starts=(), ties={}, readings=())
    kept, pairs = _settled(history, pairing, before)
    turns = before.turns[:kept] if before is not None else ()
    begin = turns[-1].stop if turns else 0
    starts = turn_starts(history, begin)
    cuts = cut_points(history, pairs, starts)
    groups = list(map(Group, cuts, [*cuts[1:], len(history)]))
    first_groups = [*map(partial(bisect_left, cuts), starts), len(groups)]
    opening = 0 if history.readings[0].has_user_part else -1  # what precedes the first prompt is turn -1
    ordinal = turns[-1].index + 1 if turns else opening
    edges = zip(pairwise([*starts, len(history)]), pairwise(first_groups), strict=True)
    turns += tuple(
        Turn(ordinal + offset, start, stop, tuple(groups[first:last]))
        for offset, ((start, stop), (first, last)) in enumerate(edges)
    )
    tied = {position: tie for position, tie in before.ties.items() if position < begin} if before is not None else {}
    tied |= paired_with(sorted(call for call, _ in _late(history, pairs, starts)), pairing)
    earlier = before.starts[:kept] if before is not None else ()
    return Outline(turns=turns, starts=(*earlier, *starts), ties=tied, readings=history.readings)


def _settled(history: History, pairing: Pairing, before: Outline | None) -> tuple[int, Sequence[tuple[int, int]]]:
    """Number of leading turns that can be reused from `before`, and the pairs in the messages after them.

    A turn can be reused once `NEAR` messages follow it, because those may still change where it ends, and if none of
    its calls is answered after it.
    """
    pairs = pairing.pairs  # sorted by answer
    if before is None or history.readings[: len(before.readings)] != before.readings:
        return 0, pairs
    kept = bisect_right(before.starts, len(before.readings) - 1 - NEAR) - 1
    while kept > 0:
        start = before.starts[kept]
        new = pairs[bisect_left(pairs, start, key=itemgetter(1)) :]
        first = min((call for call, _ in new), default=start)
        if first >= start:
            return kept, new
        kept = bisect_right(before.starts, first) - 1
    return 0, pairs
