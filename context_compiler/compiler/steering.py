"""Steering by the user: pinned messages, dismissed rules, and manual compiles and undos, all from the recorded actions.

Every compile and every undo by hand begins a *generation*. Cycles and summaries of earlier generations are not used
again, so that an undone compile does not come back by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

from context_compiler.compiler.cycle import Cycle, well_typed
from context_compiler.messages.history import History
from context_compiler.messages.rules import Rule, rule_name
from context_compiler.messages.turns import REFERENCE, Outline
from context_compiler.record.values import COMPILE, DISMISS, UNDO, Action, mapping_of, now, standing_pins
from context_compiler.resilience import attempt

HELD = 2
"""Divisor of the room: maximum size of the pinned messages that stay if a later request has less room."""

MARK = "~"
"""Separator between a configuration and its generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A message that stays in every view unchanged."""

    tip: str
    """Chain id of the message."""
    name: str
    """Identity of the message, which stays the same if an earlier message is edited."""
    text: str
    """Beginning of the message, on one line."""
    turn: int
    """From 1; 0 before the first prompt."""
    role: str
    tokens: int

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data."""
        return asdict(self)

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls, text: str) -> Pin | None:
        """Parse from JSON; None if it is damaged."""
        try:
            pin = cls(**mapping_of(text))
        except TypeError:
            return None
        return pin if well_typed(pin) else None


@dataclass(frozen=True, slots=True)
class Dismissal:
    """A rule that the user has dismissed; if it is given again, it stands again."""

    name: str
    """`Rule.name` of the rule."""
    tip: str
    """Chain id of the newest message that contained it."""

    def covers(self, rule: Rule, history: History) -> bool:
        """True if it dismisses this rule of a history."""
        return self.name == rule.name and (self.tip not in history.ids or rule.position <= history.ids.index(self.tip))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Steering of one conversation that applies to its next request."""

    generation: int = 0
    """Number of compiles and undos by hand so far."""
    held: str = ""
    """Chain id of the newest message at the last undo; empty if there was none, or a compile by hand after it."""
    pins: tuple[Pin, ...] = ()
    """Oldest first."""
    dismissed: tuple[Dismissal, ...] = ()
    """Rules that the user has dismissed."""

    def dismisses(self, text: str) -> bool:
        """True if a listed rule has been dismissed."""
        return bool(self.dismissed) and rule_name(text) in {dismissal.name for dismissal in self.dismissed}

    def config(self, config: str) -> str:
        """Configuration under which cycles of this generation are stored."""
        base = base_config(config)
        return f"{base}{MARK}{self.generation}" if self.generation else base

    def to_data(self) -> dict[str, Any]:
        """Convert to plain data."""
        pins = [pin.to_data() for pin in self.pins]
        dismissed = [[dismissal.name, dismissal.tip] for dismissal in self.dismissed]
        return {"generation": self.generation, "held": self.held, "pins": pins, "dismissed": dismissed}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Steering:
        """Build from plain data."""
        pins = tuple(Pin(**pin) for pin in data["pins"])
        dismissed = tuple(Dismissal(*values) for values in data["dismissed"])
        return cls(generation=data["generation"], held=data["held"], pins=pins, dismissed=dismissed)


NONE = Steering()
"""Steering of a conversation that no user has steered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A compile that a user asks for."""

    focus: str = ""
    """Subject that summary and quotes must keep; empty for none."""
    start: int | None = None
    """Position before which turns stay unchanged; None to keep the recent turns."""
    inside: bool = False
    """True if tool exchanges of the current turn are dropped too, except the newest."""


def base_config(config: str) -> str:
    """Configuration without its generation."""
    return config.partition(MARK)[0]


def steering_of(actions: Sequence[Action]) -> tuple[Steering, Cycle | None]:
    """Steering that follows from all actions, and the cycle after the last compile or undo; None for raw history."""
    pins = map(Pin.from_json, standing_pins(actions).values())
    steps = [action for action in actions if action.kind in (COMPILE, UNDO)]
    last = steps[-1] if steps else None
    steering = Steering(
        generation=len(steps),
        held=last.tip if last is not None and last.kind == UNDO else "",
        pins=tuple(pin for pin in pins if pin is not None),
        dismissed=tuple(
            Dismissal(str(mapping_of(action.state).get("name")), action.tip)
            for action in actions
            if action.kind == DISMISS
        ),
    )
    return steering, cycle_of(last) if last is not None else None


def compile_action(cycle: Cycle, **figures: object) -> Action:
    """The action of a compile that the next run of a conversation starts from; the record keeps its figures."""
    return Action(
        kind=COMPILE,
        tip=cycle.tip,
        state=json.dumps({"cycle": cycle.to_json(), **figures}),
        created_at=now(),
        summary_id=cycle.summary_id,
    )


def cycle_of(action: Action) -> Cycle | None:
    """Cycle that a compile made or that an undo returned to; None for raw history."""
    state = mapping_of(action.state).get("cycle")
    cycle = Cycle.from_json(state) if isinstance(state, str) else None
    if cycle is None or action.kind != COMPILE:
        return cycle
    return replace(cycle, summary_id=action.summary_id)


@dataclass(slots=True)
class CycleHistory:
    """Cycles of a conversation in order, for undo; if there are none, its raw history was sent."""

    cycles: list[Cycle] = field(default_factory=list[Cycle])

    @classmethod
    def of(cls, actions: Sequence[Action], cycles: Sequence[Cycle], ids: Sequence[str]) -> CycleHistory:
        """Replay the actions of a conversation together with the cycles of each generation.

        Args:
            actions: Actions, oldest first.
            cycles: All known cycles, oldest first; those of another configuration than the newest are ignored.
            ids: Chain ids of the current conversation, because cycles of a fork do not belong to it.
        """
        steps, tips = cls(), set(ids)
        mine = [cycle for cycle in cycles if cycle.needs in tips]
        base = base_config(mine[-1].config) if mine else ""
        mine = [cycle for cycle in mine if base_config(cycle.config) == base]
        steps._enter(mine, NONE.config(base))
        manual = (action for action in actions if action.kind in (COMPILE, UNDO))
        for generation, action in enumerate(manual, 1):
            sent = cycle_of(action)
            if action.kind == UNDO:
                steps._leave(sent if sent is not None and sent.needs in tips else None)
            elif sent is not None and sent.needs in tips:
                steps.cycles.append(sent)
            steps._enter(mine, Steering(generation=generation).config(base))
        return steps

    def _enter(self, cycles: Sequence[Cycle], config: str) -> None:
        """Add the cycles of one generation."""
        for cycle in cycles:
            if cycle.config != config:
                continue
            if self.cycles and _sent(self.cycles[-1]) == _sent(cycle):
                self.cycles[-1] = cycle
            else:
                self.cycles.append(cycle)

    def _leave(self, left: Cycle | None) -> None:
        """Go back one step, to `left`, which is added if earlier cycles were pruned."""
        if self.cycles:
            self.cycles.pop()
        if left is None:
            self.cycles.clear()
        elif not (self.cycles and _sent(self.cycles[-1]) == _sent(left)):
            self.cycles.append(left)

    @property
    def current(self) -> Cycle | None:
        """Cycle of the next request; None for raw history."""
        return self.cycles[-1] if self.cycles else None

    @property
    def before(self) -> Cycle | None:
        """Cycle before the current one; None for raw history."""
        return self.cycles[-2] if len(self.cycles) > 1 else None


_sent = attrgetter("decided", "note", "rules", "quotes")
"""The texts that a cycle sends, and the number of messages on which it decides.

Two cycles that send the same may differ elsewhere: an adopted cycle has another configuration, ratio and row, and the
tip changes if the host merges the last message with the prompt after it."""


def position_of(pin: Pin, history: History) -> int | None:
    """Position of a pinned message: by its chain id, else the newest message with the same content; None if not found.

    The host may have merged it with the messages before and after it, see `History.splits`.
    """
    if pin.tip in history.ids:
        return history.ids.index(pin.tip)
    names = (
        (reading.name, *(name for split in reading.splits for name in (split.first, split.rest, split.last)))
        for reading in reversed(history.readings)
    )
    return next((len(history) - back for back, texts in enumerate(names, 1) if pin.name in texts), None)


def pin_of(steering: Steering, history: History, words: str, find_position: Callable[[], int]) -> Pin | None:
    """Find the pin that `words` refers to: by id, by text, by position, or by turn if its message is gone.

    Raises:
        SettingsError: `find_position`, which looks up the position of the message, finds none.
    """
    pins = steering.pins
    if words and not REFERENCE.fullmatch(words):
        match = next((pin for pin in pins if words == pin.tip or words in pin.text.casefold()), None)
        if match is not None:
            return match
    positions = {pin: position_of(pin, history) for pin in pins}
    gone = next((pin for pin in pins if positions[pin] is None and words == f"turn {pin.turn}"), None)
    position = attempt(find_position)
    if position.error is not None and gone is None:
        raise position.error
    return next((pin for pin in pins if position.value is not None and positions[pin] == position.value), gone)


def messages_kept_together(position: int, outline: Outline) -> frozenset[int]:
    """Positions of the messages that stay together with a message: its group, and the messages tied to them."""
    together = {position}
    for turn in outline.turns:
        if turn.start <= position < turn.stop:
            group = next(group for group in turn.groups if group.start <= position < group.stop)
            together.update(range(group.start, group.stop))
    together.update(*(outline.ties.get(index, ()) for index in tuple(together)))
    return frozenset(together)


def pinned(steering: Steering, history: History, outline: Outline, room: int | None) -> frozenset[int]:
    """Positions of pinned messages that fit in their share of `room`, newest pins first; None for all of them."""
    left, positions = history.tokens if room is None else room // HELD, frozenset[int]()
    for pin in reversed(steering.pins):
        position = position_of(pin, history)
        if position is None:
            continue
        more = messages_kept_together(position, outline) - positions
        cost = sum(history.readings[index].tokens for index in more)
        if cost <= left:
            left, positions = left - cost, positions | more
    return positions
