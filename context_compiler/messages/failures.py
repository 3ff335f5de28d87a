"""Reflections: one line on what failed and what worked instead, so that the model does not repeat a mistake.

The policy decides when to write a reflection. By default its text comes from the conversation itself (the failed call,
the number of attempts, the call that then worked), without a model call. A custom `reflector` can replace it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import NamedTuple

from context_compiler.errors import SettingsError
from context_compiler.messages.fences import one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.tool_lines import call_line, outcome_line
from context_compiler.messages.turns import Place, calls_of_results

WIDTH = 200
"""Maximum characters of an observation, and of an adjustment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call that failed one or more times in a row, and the call that followed."""

    turn: int
    """Ordinal of its user turn, from 1."""
    tool: str
    """Empty if the host rejected an answer rather than a call."""
    call: str
    """The call on one line."""
    outcome: str
    """Last result of the call, on one line."""
    times: int = 1
    worked: str = ""
    """The next successful call of the same tool, on one line; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """Subject of a reflection: one failure, or all failures in a range of turns."""

    first_turn: int
    last_turn: int
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflection:
    """An observation and the adjustment made."""

    observation: str
    adjustment: str

    def __str__(self) -> str:
        return f"- {self.observation} -> {self.adjustment}"


Reflector = Callable[[Occasion], Reflection | None]
"""Callback that writes a reflection; it returns None to write none."""


def describe_failures(occasion: Occasion) -> Reflection | None:
    """Write a reflection from the conversation alone; None if nothing failed."""
    if not occasion.failures:
        return None
    if occasion.first_turn == occasion.last_turn and len(occasion.failures) == 1:
        return _describe_one(occasion.failures[0])
    counts = Counter[str]()
    for failure in occasion.failures:
        counts[failure.tool or "answer"] += failure.times
    counted = ", ".join(f"{name} {count}" for name, count in counts.items())
    worked = list(dict.fromkeys(failure.worked for failure in occasion.failures if failure.worked))
    return Reflection(
        observation=one_line(f"turns {occasion.first_turn} to {occasion.last_turn}: failed calls: {counted}", WIDTH),
        adjustment=one_line(f"worked afterwards: {', '.join(worked)}" if worked else "nothing else worked", WIDTH),
    )


def _describe_one(failure: Failure) -> Reflection:
    times = "failed" if failure.times == 1 else f"failed {failure.times} times"
    fact = f"{failure.call} {times}" if failure.tool else "an answer was sent back"
    if failure.worked:
        then = f"then {failure.worked} worked"
    else:
        then = "it was not tried again with success" if failure.tool else "it was answered again"
    return Reflection(
        observation=one_line(f"turn {failure.turn}: {fact}: {failure.outcome}", WIDTH), adjustment=one_line(then, WIDTH)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionPolicy:
    """Rules for when to write reflections, and how many of them a template receives.

    Raises:
        SettingsError: a number is below 0.
    """

    every_n_turns: int = 0
    """Write one after every n turns, about all failures in them; 0 means never."""
    on_tool_failure: bool = True
    """Write one for each failed call."""
    keep: int = 3
    """Number of newest reflections to keep; 0 keeps none."""
    reflector: Reflector = describe_failures
    """Writes each reflection; the default calls no model."""

    def __post_init__(self) -> None:
        for name in ("every_n_turns", "keep"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name}={value!r}: give a whole number from 0 up")

    def reflections(self, history: History, positions: Sequence[int]) -> list[Reflection]:
        """The newest reflections on these messages, oldest first."""
        if not self.keep or not (self.on_tool_failure or self.every_n_turns):
            return []
        all_failures = list(failures(history, positions))
        occasions: list[Occasion] = []
        for failure in all_failures if self.on_tool_failure else ():
            occasions.append(Occasion(first_turn=failure.turn, last_turn=failure.turn, failures=(failure,)))
        if self.every_n_turns:
            last = max((turn for turn, _ in _items_by_turn(history, set(positions))), default=0)
            occasions += _periodic_occasions(all_failures, self.every_n_turns, last)
        occasions.sort(key=lambda occasion: occasion.last_turn)
        written = (self.reflector(occasion) for occasion in reversed(occasions))
        return [*islice((reflection for reflection in written if reflection is not None), self.keep)][::-1]


def reflection_section(history: History, positions: Sequence[int], policy: ReflectionPolicy) -> str:
    """Template section with one line per reflection."""
    return "\n".join(map(str, policy.reflections(history, positions)))


def failures(history: History, positions: Sequence[int]) -> Iterator[Failure]:
    """Failures in these messages; consecutive failures of one tool are merged into one."""
    wanted, readings = set(positions), history.readings
    calls = {result: call for result, call in calls_of_results(readings) if call is not None and call[0] in wanted}
    by_tool: defaultdict[str, list[_Result]] = defaultdict(list)
    for turn, address in _items_by_turn(history, wanted):
        item, call = readings[address[0]].items[address[1]], calls.get(address)
        if item.kind in (Kind.RETURN, Kind.FEEDBACK):
            made = readings[call[0]].items[call[1]] if call else None
            by_tool[item.tool or ""].append(_Result(address, turn, item, made))
    placed = [pair for tool, results in by_tool.items() for pair in _failures_of_tool(tool, results)]
    yield from (failure for _, failure in sorted(placed, key=itemgetter(0)))


class _Result(NamedTuple):
    """A tool result with its call, which is None if it is not among the messages."""

    place: Place
    turn: int
    item: Item
    call: Item | None

    def describe_call(self) -> str:
        """Write the call as one line."""
        made = self.call.text if self.call is not None else "{}"
        return call_line(self.item.tool or "", made, width=WIDTH // 2) if self.item.tool else ""


def _failures_of_tool(tool: str, results: Sequence[_Result]) -> Iterator[tuple[Place, Failure]]:
    """Failures of one tool, each with the place of its last result."""
    alike = [list(group) for _, group in groupby(results, key=lambda result: result.item.failed)]
    following: list[list[_Result]] = [*alike[1:], []]
    for group, after in zip(alike, following, strict=True):
        last = group[-1]
        if last.item.failed:
            failure = Failure(
                turn=last.turn,
                tool=tool,
                call=last.describe_call(),
                outcome=outcome_line(last.item.text, failed=True),
                times=len(group),
                worked=after[0].describe_call() if after else "",
            )
            yield last.place, failure


def _items_by_turn(history: History, wanted: set[int]) -> Iterator[tuple[int, Place]]:
    """Items of the wanted messages, each with the ordinal of its user turn, from 1."""
    turn = 0
    for index, reading in enumerate(history.readings):
        turn += reading.has_prompt
        if index in wanted:
            for part in range(len(reading.items)):
                yield max(turn, 1), (index, part)


def _periodic_occasions(failures: Sequence[Failure], size: int, last: int) -> Iterator[Occasion]:
    for stop in range(size, last + 1, size):
        inside = tuple(failure for failure in failures if stop - size < failure.turn <= stop)
        yield Occasion(first_turn=stop - size + 1, last_turn=stop, failures=inside)
