"""Wishes of a user about the views of a conversation: pinned messages, a compile that was undone, a focus.

It is derived from the actions of the record. Every compile and every undo by hand opens a *generation*: cycles and
summaries of earlier ones are not found again, so that what was undone does not come back by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from context_compiler.compiler.cycle import Cycle, well_typed
from context_compiler.messages.history import History
from context_compiler.messages.turns import Outline
from context_compiler.record.values import COMPILE, PIN, UNDO, UNPIN, Action, mapping_of
from context_compiler.resilience import attempt

PINS, HELD = 4, 2
"""Divisors of the room for messages: what may be pinned, and what stays where a request has less room than that."""

PINNED, WAITS = "pinned", "pinned, over budget"
"""Reasons why a message is in a view, and why a pinned one is not."""

REFERENCE = re.compile(r"(?i)(turn|message|t|m)? ?#?(\d{1,9})")
"""A message by its turn, or by its number."""

MARK = "~"
"""Between a configuration and its generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A message that stays in every view, word for word."""

    tip: str
    """Its chain id."""
    name: str
    """Its identity, which stays the same where an earlier message is edited."""
    text: str
    """Its beginning, on one line."""
    turn: int = 0
    """From 1; 0 before the first prompt."""
    role: str = ""
    tokens: int = 0

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return {name: getattr(self, name) for name in ("tip", "name", "text", "turn", "role", "tokens")}

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls, text: str) -> Pin | None:
        """Back from JSON text; None where it is damaged."""
        try:
            pin = cls(**mapping_of(text))
        except TypeError:
            return None
        return pin if well_typed(pin) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Wishes of a user about the views of one conversation, as its next request finds them."""

    generation: int = 0
    """Number of compiles and undos by hand until now."""
    held: str = ""
    """Chain id of the newest message when the last compile was undone; empty if a compile came after that."""
    pins: tuple[Pin, ...] = ()
    """Oldest first."""

    def config(self, config: str) -> str:
        """The name under which cycles of this generation are kept."""
        base = base_config(config)
        return f"{base}{MARK}{self.generation}" if self.generation else base

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        pins = [pin.to_data() for pin in self.pins]
        return {"generation": self.generation, "held": self.held, "pins": pins}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Steering:
        """Back from plain data."""
        pins = tuple(Pin(**pin) for pin in data["pins"])
        return cls(generation=data["generation"], held=data["held"], pins=pins)


NONE = Steering()
"""Nobody has asked for anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One compile that a user asks for."""

    focus: str = ""
    """Subject that the summary and the quotes are to keep."""
    start: int = 0
    """Turns before this position stay as they are."""
    inside: bool = False
    """Tool exchanges of the current turn go too, but for the newest."""


def base_config(config: str) -> str:
    """A configuration without its generation."""
    return config.partition(MARK)[0]


def steering_of(actions: Sequence[Action]) -> tuple[Steering, Cycle | None]:
    """The wishes that follow from all actions, and the cycle that the last compile or undo led to; None for raw."""
    pins: dict[str, Pin] = {}
    for action in actions:
        if action.kind in (PIN, UNPIN):
            pins.pop(action.tip, None)
        if action.kind == PIN:
            pin = Pin.from_json(action.state)
            pins |= {action.tip: pin} if pin is not None else {}
    steps = [action for action in actions if action.kind in (COMPILE, UNDO)]
    last = steps[-1] if steps else None
    steering = Steering(
        generation=len(steps),
        held=last.tip if last is not None and last.kind == UNDO else "",
        pins=tuple(pins.values()),
    )
    return steering, cycle_of(last) if last is not None else None


def cycle_of(action: Action) -> Cycle | None:
    """The cycle that a compile made, or that an undo went back to."""
    state = mapping_of(action.state).get("cycle")
    cycle = Cycle.from_json(state) if isinstance(state, str) else None
    if cycle is None or action.kind != COMPILE:
        return cycle
    return replace(cycle, summary_id=action.summary_id)


@dataclass(slots=True)
class Steps:
    """The cycles that a conversation was in, the newest last; without any, its raw history was sent."""

    cycles: list[Cycle] = field(default_factory=list[Cycle])

    @classmethod
    def of(cls, actions: Sequence[Action], cycles: Sequence[Cycle], ids: Sequence[str]) -> Steps:
        """Replay the actions of a conversation, and the cycles of each generation.

        Args:
            actions: Oldest first.
            cycles: All that are known, oldest first; those of other configurations than the newest are left out.
            ids: Chain ids of the conversation as it is now: cycles of a fork are not part of it.
        """
        steps, known = cls(), set(ids)
        mine = [cycle for cycle in cycles if cycle.tip in known]
        base = base_config(mine[-1].config) if mine else ""
        mine = [cycle for cycle in mine if base_config(cycle.config) == base]
        generation = 0
        steps._enter(mine, Steering(generation=generation).config(base))
        for action in actions:
            if action.kind not in (COMPILE, UNDO):
                continue
            generation += 1
            found = cycle_of(action)
            if action.kind == UNDO:
                steps._leave(found if found is not None and found.tip in known else None)
            elif found is not None and found.tip in known:
                steps.cycles.append(found)
            steps._enter(mine, Steering(generation=generation).config(base))
        return steps

    def _enter(self, cycles: Sequence[Cycle], config: str) -> None:
        """Go through the cycles of one generation."""
        for cycle in cycles:
            if cycle.config != config:
                continue
            if self.cycles and _same(self.cycles[-1], cycle):
                self.cycles[-1] = cycle
            else:
                self.cycles.append(cycle)

    def _leave(self, left: Cycle | None) -> None:
        """Go back one step, to `left`: what is before that may have been pruned."""
        if self.cycles:
            self.cycles.pop()
        if left is None:
            self.cycles.clear()
        elif not (self.cycles and _same(self.cycles[-1], left)):
            self.cycles.append(left)

    @property
    def current(self) -> Cycle | None:
        """The cycle that the next request would be in; None for raw history."""
        return self.cycles[-1] if self.cycles else None

    @property
    def before(self) -> Cycle | None:
        """The cycle before that."""
        return self.cycles[-2] if len(self.cycles) > 1 else None


def _same(one: Cycle, other: Cycle) -> bool:
    """True if two cycles send the same.

    One that was adopted has another configuration, ratio and row, and one whose last message was joined with the prompt
    after it has another tip.
    """
    return (one.decided, one.note, one.quotes) == (other.decided, other.note, other.quotes)


def position_of(pin: Pin, history: History) -> int | None:
    """The place of a pinned message: by its chain id, else the newest message that says the same.

    It may have become one message with those before and after it, see `History.splits`.
    """
    if pin.tip in history.ids:
        return history.ids.index(pin.tip)
    names = (
        (one.name, *(name for split in one.splits for name in (split.first, split.rest, split.last)))
        for one in reversed(history.readings)
    )
    return next((len(history) - back for back, found in enumerate(names, 1) if pin.name in found), None)


def pin_of(steering: Steering, history: History, words: str, place: Callable[[], int]) -> Pin | None:
    """The pin that is meant: by its id, by words of it, or by its place; where its message is gone, by its turn.

    Raises:
        SettingsError: `place`, which looks the message up, knows of none.
    """
    pins = steering.pins
    if words and not REFERENCE.fullmatch(words):
        known = next((pin for pin in pins if words == pin.tip or words in pin.text.casefold()), None)
        if known is not None:
            return known
    found = {pin: position_of(pin, history) for pin in pins}
    gone = next((pin for pin in pins if found[pin] is None and words == f"turn {pin.turn}"), None)
    at = attempt(place)
    if at.error is not None and gone is None:
        raise at.error
    return next((pin for pin in pins if at.value is not None and found[pin] == at.value), gone)


def unit(position: int, outline: Outline) -> frozenset[int]:
    """The messages that stay together with one: its group, and what is tied to it."""
    found = {position}
    for turn in outline.turns:
        if turn.start <= position < turn.stop:
            group = next(group for group in turn.groups if group.start <= position < group.stop)
            found.update(range(group.start, group.stop))
    found.update(*(outline.ties.get(index, ()) for index in tuple(found)))
    return frozenset(found)


def pinned(steering: Steering, history: History, outline: Outline, room: int | None) -> frozenset[int]:
    """Positions of the pinned messages that fit into their share of a room, the newest pins first; of None, all."""
    left, found = history.tokens if room is None else room // HELD, frozenset[int]()
    for pin in reversed(steering.pins):
        at = position_of(pin, history)
        if at is None:
            continue
        more = unit(at, outline) - found
        cost = sum(history.readings[index].tokens for index in more)
        if cost <= left:
            left, found = left - cost, found | more
    return found
