"""Policy of one request: its template, limits and thresholds; with its history, the plan of its views.

A view grows until it passes `high`; then it is cut back to `low`, about half way to what is fixed. Moving
the window on every request instead would cost more than sending everything, because no prompt cache
would ever hit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from context_compiler.compiler.steering import NONE, Steering, pinned
from context_compiler.fidelity import CAPS, Fidelity
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.messages.history import History, Reader, superseded_parts
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.shapes import Shape
from context_compiler.messages.turns import OUTPUT, Outline, Pairing, outline, turn_index, turn_starts
from context_compiler.settings import Amount, amount_tokens
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter

DEFAULT_BUDGET = 32_000
DEFAULT_SHARE = 0.8
DEFAULT_RESERVE = 4_096

LEAST = 1_000
"""Tokens of messages below which a trigger is raised, or half of the room where that is less: a view must be able to
grow for a few turns before it is cut back again."""

LARGE = 4
"""Divisor of the room above which a prompt is large."""

PROMPT = 0.6
"""Share of the room that a prompt keeps which does not fit whole."""

NOTED = 4
"""Divisor of the room that note and quotes have at most beside a large prompt, or turns that the caller wants kept."""

AHEAD = 4
"""Divisor of the way from the low threshold to the high one: a compile in the background has so much of it to end."""

PROMPT_ROOM = 32_000
"""Tokens of a span that one prompt may carry at least, where the compiler's window is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budget and thresholds of one request, in exact tokens: a model's learnt ratio has already been divided out."""

    budget: int
    fixed: int
    """Instructions, schemas, and what a view always carries for others."""
    high: int
    low: int
    ratio: float = 1.0
    """The model's learnt ratio."""
    tight: float = 1.0
    """Share of the budget that is left after a provider refused it."""
    notes: int = 0
    """Limit in tokens for the note and quotes of a live view together; 0: whatever is free below the low threshold."""
    block: int = 0
    """Tokens set aside for the recall block of the prompt, beside the view."""
    deeper: int = 0
    """Tokens to cut below the low threshold to make room for that block."""

    @property
    def room(self) -> int:
        """Tokens left for messages."""
        return max(0, self.budget - self.fixed)

    @property
    def used(self) -> int:
        """Tokens that messages take of the room: less than all of it where a trigger is below half."""
        return min(self.room, max(0, 2 * (self.high - self.fixed)))

    @property
    def soft(self) -> int:
        """Tokens of a request from which a compile may be made in the background: a quarter of the way before high."""
        return self.high - max(0, self.high - self.low) // AHEAD

    @property
    def ahead(self) -> Limits:
        """The same for a compile that begins at `soft`: what comes until `high` is then beside what it keeps."""
        return replace(self, low=max(self.fixed, self.low - (self.high - self.soft)))

    def carrying(self, fixed: int) -> Limits:
        """The same budget when less is fixed than it would fill alone."""
        return replace(self, fixed=fixed, high=self.budget, low=_half_way(fixed, self.budget))

    def beside(self, prompt: int, turns: int = 0) -> Limits:
        """The same with higher thresholds where what is not to be cut back takes much of the room.

        Args:
            prompt: Tokens of the current prompt.
            turns: Tokens of the turns before it that the caller wants kept.
        """
        taken = min(turns, self.room // 2)
        if prompt > self.used // LARGE:
            taken += min(prompt, int(PROMPT * self.room))
        if not taken:
            return self
        most = self.budget - self.room // 20
        high = max(self.high, min(most, self.high + taken))
        notes = min(self.notes, self.room // NOTED)
        low = self.low - (self.notes - notes)
        return replace(self, high=high, low=max(low, min(low + taken, most - self.room // 8)), notes=notes)

    def cap(self, fidelity: Fidelity) -> int:
        """The most tokens a summary may have."""
        return summary_cap(fidelity, self.used)


def summary_cap(fidelity: Fidelity, room: int) -> int:
    """The most tokens a summary may have: the mode's cap, at most a quarter of `room`, then a power of two.

    `room` is what a request has left for messages, in tokens. The rounding keeps the cap, and with it
    the name of a compile in the cache, the same when instructions change by a few tokens.
    """
    most, quarter = CAPS[fidelity], room // 4
    if quarter >= most:
        return most
    return 1 << (quarter.bit_length() - 1) if quarter > 0 else 0


def whole_budget(
    budget: Amount | None, *, reserve: int | None = None, window: int | None = None, max_tokens: int | None = None
) -> tuple[int, int | None]:
    """The budget of a request and its ceiling, in the model's tokens.

    The ceiling is the most that may go out where no view can be made: the caller's budget, else what fits the window;
    None where neither is known. A known window caps the budget: the answer, at most a quarter, stays free.

    Args:
        budget: The caller's, in tokens or as a share of the window.
        reserve: The caller's room for the answer, in tokens.
        window: The model's context window, where it is known.
        max_tokens: The most tokens of an answer that the request's settings allow.
    """
    usable = None
    if window:
        usable = window - min(reserve or max_tokens or DEFAULT_RESERVE, window // 4)
    if budget is None:
        tokens = int(DEFAULT_SHARE * window) if window else DEFAULT_BUDGET
    else:
        tokens = amount_tokens(budget, of=window or DEFAULT_BUDGET) or 1
    tokens = min(tokens, usable) if usable else tokens
    return max(1, tokens), (tokens if budget is not None else usable)


def trigger_of(trigger: Amount | None, threshold: Amount | None, fidelity: Fidelity) -> Amount | None:
    """The caller's trigger, else a template's `threshold`, where 0 is the budget; `full` waits for it."""
    if fidelity is Fidelity.FULL:
        return 1.0
    return trigger if trigger is not None else 1.0 if threshold == 0 else threshold


def limits(
    *,
    budget: int,
    trigger: Amount | None = None,
    fixed: int,
    ratio: float = 1.0,
    tight: float = 1.0,
    tools: bool = False,
) -> Limits:
    """Budget and thresholds in exact tokens.

    Args:
        budget: Of the whole request, in the model's tokens.
        trigger: High threshold, in the model's tokens or as a share of the budget; None chooses by the room.
        fixed: Tokens that the view carries whatever it leaves out.
        ratio: The model's tokens to one of ours.
        tight: Share of the budget that is left after a provider refused it.
        tools: The session is mostly tool work.
    """
    wanted = amount_tokens(trigger, of=budget)
    budget = max(1, int(budget * tight / ratio))
    room = max(0, budget - fixed)
    if wanted is None:
        high, low, notes = next(shares for least, shares in THRESHOLDS[tools] if room >= least)
        return Limits(
            budget=budget,
            fixed=fixed,
            high=min(fixed + int(high * room), budget) if room else budget,
            low=fixed + int(low * room),
            ratio=ratio,
            tight=tight,
            notes=int(notes * room),
        )
    high = min(max(int(wanted / ratio), fixed + min(room // 2, LEAST)), budget)
    return Limits(budget=budget, fixed=fixed, high=high, low=_half_way(fixed, high), ratio=ratio, tight=tight)


THRESHOLDS = {
    False: (
        (7_000, (0.7, 0.4, 0.25)),
        (3_500, (0.9, 0.55, 0.45)),
        (1_500, (0.4, 0.2, 0.0)),
        (0, (0.3, 0.15, 0.0)),
    ),
    True: (
        (40_000, (0.4, 0.2, 0.0)),
        (24_000, (0.43, 0.21, 0.0)),
        (2_000, (0.5, 0.25, 0.0)),
        (0, (1.0, 0.47, 0.0)),
    ),
}
"""For chats and for tool work, from the largest room down: high, low, and what note and quotes may take, as shares of
the room. Chosen by what views held and cost of conversations and tool sessions that were lived turn by turn."""

LEAST_HIGH = min(high for kinds in THRESHOLDS.values() for _, (high, _, _) in kinds)
"""Share of the room up to which no view is cut back, whatever the kind of session."""


def _half_way(fixed: int, high: int) -> int:
    return fixed + max(0, high - fixed) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every choice of one request, resolved.

    The caller beats the template, and the template beats the settings.
    """

    template: Template
    extractive: Template
    """Writes the note where no model is asked."""
    budget: int
    """Of the whole request, in the model's tokens."""
    trigger: Amount | None
    """High threshold, in the model's tokens or as a share of the budget; None chooses by the room."""
    fidelity: Fidelity
    fidelity_named: bool
    """The caller named the fidelity, which then caps quotes too."""
    recent_turns: int | None
    """Turns before the current one to keep if they fit; None is all."""
    recent_named: bool
    """The caller gave the number of recent turns, not the template."""
    recent_tool_results: int | None
    reflections: ReflectionPolicy
    """Which failures a template is given that asks for `reflections`."""
    tool_history: str
    inject: str
    model: str
    """Name of the compiler's model; "none" means no model."""
    every_turn: bool
    recall: Amount
    """The most that a recall block may take: a share of the room for messages, or tokens; 0 recalls nothing."""
    refs: bool
    """The agent has a tool that reads what is left out, and markers may name it."""
    prompt_room: int
    """Tokens of a span that one prompt may carry at least."""
    scope: str
    """Conversations that share their compiles: a summary is written around the question of one."""
    config: str
    """Hash of every choice that decides how a view is written; cycles of another one are not continued."""
    former: str
    """The same hash as files of schema 3 have it."""

    def limits(self, fixed: int, *, ratio: float = 1.0, tight: float = 1.0, tools: bool = False) -> Limits:
        """Budget and thresholds of a request with `fixed` tokens that no view leaves out."""
        return limits(budget=self.budget, trigger=self.trigger, fixed=fixed, ratio=ratio, tight=tight, tools=tools)


TOOL_WORK = 10
"""Tool work: at least one message in this number calls a tool."""

LOOPS = 3
"""Responses to a prompt, on average, where turns are long."""

NO_WORK = ("recall_", "compile_context", OUTPUT)
"""Prefixes of tools that look into the past or give the answer, which do not count as tool work."""

SHELLS = ("code_execution", "shell", "bash")
"""Tools of providers that are work, too."""


def _works(item: Item) -> bool:
    name = item.tool or ""
    return item.kind is Kind.CALL and not name.startswith(NO_WORK) and (not item.native or name in SHELLS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A raw history, and how its views are written: everything that follows from these two alone."""

    history: History
    pairing: Pairing
    policy: Policy
    reader: Reader
    steering: Steering = NONE

    def pinned(self, room: int | None = None) -> frozenset[int]:
        """Positions of the messages that a user has pinned, as far as they fit into their share of a room."""
        return pinned(self.steering, self.history, self.outline, room) if self.steering.pins else frozenset()

    @property
    def counter(self) -> TokenCounter:
        """Token counter."""
        return self.reader.counter

    @cached_property
    def turn(self) -> int:
        """The ordinal of the current user turn."""
        return turn_index(self.history)

    @cached_property
    def active_start(self) -> int:
        """The position at which the current turn begins."""
        return turn_starts(self.history)[-1]

    @cached_property
    def outline(self) -> Outline:
        """The history as turns and groups."""
        return outline(self.history, self.pairing)

    @cached_property
    def base(self) -> Mapping[int, Shape]:
        """The shapes of messages with broken parts."""
        shapes = {index: Shape(skip=parts) for index, parts in self.pairing.broken.items()}
        unpaired = self.pairing.unpaired
        return shapes if unpaired is None else {**shapes, unpaired: Shape(tools="render")}

    @cached_property
    def prompt_tokens(self) -> int:
        """Exact tokens of the newest prompt; 0 where nobody asked anything."""
        return next((reading.tokens for reading in reversed(self.history.readings) if reading.asks), 0)

    @cached_property
    def recent_tokens(self) -> int:
        """Exact tokens of the turns before the current one that the caller, not the template, wants kept."""
        if not self.policy.recent_named:
            return 0
        turns, wanted = self.outline.turns[:-1], self.policy.recent_turns
        newest = turns if wanted is None else turns[max(0, len(turns) - wanted) :]
        if not newest:
            return 0
        return self.history.sums[newest[-1].stop] - self.history.sums[newest[0].start]

    @cached_property
    def work(self) -> int:
        """Messages that call a function or a shell; output and recall tools do not count."""
        return sum(any(map(_works, reading.items)) for reading in self.history.readings if reading.exchanges)

    @cached_property
    def tools(self) -> bool:
        """True if one message in `TOOL_WORK` is tool work."""
        return self.work * TOOL_WORK >= len(self.history)

    @cached_property
    def loops(self) -> bool:
        """True if a turn takes several requests on average: text in a turn is then paid for in all of them."""
        prompts = sum(reading.asks for reading in self.history.readings)
        return sum(not reading.request for reading in self.history.readings) >= LOOPS * prompts

    @cached_property
    def carried(self) -> int:
        """Exact tokens that a view carries for the host whatever it leaves out."""
        readings = self.history.readings
        idle = (readings[index].items[at] for index, parts in superseded_parts(self.history).items() for at in parts)
        return sum(reading.stays for reading in readings) - sum(item.tokens for item in idle)
