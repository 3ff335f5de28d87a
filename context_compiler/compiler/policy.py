"""Policy of one request (template, budget, thresholds), and its plan, which is the policy together with the history.

A view grows until it passes the high threshold, then it is cut back to the low one, about half way to the fixed tokens.
A window that moves on every request would cost more than sending everything, because no prompt cache would ever hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from context_compiler.compiler.steering import NONE, Steering, pinned
from context_compiler.fidelity import CAPS, Fidelity
from context_compiler.messages.failures import ReflectionPolicy
from context_compiler.messages.history import History, Reader
from context_compiler.messages.items import Item, Kind
from context_compiler.messages.rules import Found, Rule, find_rules, rules_in_force
from context_compiler.messages.shapes import Shape
from context_compiler.messages.turns import (
    OUTPUT,
    Group,
    Outline,
    Pairing,
    has_prompt,
    outline,
    prompt_at,
    superseded_parts,
    turn_index,
    turn_starts,
)
from context_compiler.recall.question import Pending, pending_question
from context_compiler.recall.unknown import absent_terms
from context_compiler.resilience import attempt
from context_compiler.settings import Amount, amount_tokens
from context_compiler.template import Template
from context_compiler.tokens import TokenCounter

DEFAULT_BUDGET = 32_000
DEFAULT_SHARE = 0.8
DEFAULT_RESERVE = 4_096

MIN_TRIGGER = 1_000
"""Minimum tokens of messages, or half of the room if that is less, to which a caller's trigger is raised. A view must
be able to grow for a few turns before it is cut back again."""

LARGE = 4
"""Divisor of the room: what takes more is large, be it a prompt, another part, a turn, or all rules, pins or quotes. Of
the distance between the thresholds, this part is left when a background compile starts."""

SMALL = 16
"""Divisor of the room: what takes less is small."""

SMALL_ROOM = 1_500
"""Room in tokens below which a live view of tool work is brief. Of no smaller one, a fraction in `recall=` is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budget and thresholds of one request, in exact tokens: the model's learned ratio is divided out already."""

    budget: int
    """Maximum size of the whole request."""
    whole: int
    """The same in the model's tokens, not rounded down to tokens of ours."""
    fixed: int
    """Tokens that no view can leave out: instructions, schemas, and parts that the host needs."""
    high: int
    """Size of a request above which its view is cut back."""
    low: int
    """Size to which it is cut back."""
    ratio: float
    """Learned ratio of the model's tokens to ours."""
    tight: float
    """Fraction of the budget in use; below 1 after a provider refused a request as too long."""
    max_notes: int
    """Maximum size of note and quotes of a live view together; 0 for whatever is free below the low threshold."""
    block_reserve: int
    """Tokens reserved for the recall block of the prompt, in addition to the view."""
    extra_cut: int
    """Tokens to cut below the low threshold to make room for that block."""
    rules: int
    """Part of `fixed` that is reserved for the rules of the conversation."""
    framing: int
    """Tokens that the host adds to the messages when it renders them."""

    @property
    def room(self) -> int:
        """Tokens left for messages."""
        return max(0, self.budget - self.fixed)

    @property
    def used(self) -> int:
        """Part of the room that messages use: less than all of it if the trigger is below half of it."""
        return min(self.room, max(0, 2 * (self.high - self.fixed)))

    @property
    def background_threshold(self) -> int:
        """Size of a request from which a compile may run in the background: a quarter of the way below `high`."""
        return self.high - max(0, self.high - self.low) // LARGE

    @property
    def for_background(self) -> Limits:
        """Limits for a background compile: it cuts deeper by as much as the view grows until `high`."""
        return replace(self, low=max(self.fixed, self.low - (self.high - self.background_threshold)))

    def with_fixed(self, fixed: int) -> Limits:
        """Limits with the same budget and other fixed tokens, for a request whose fixed tokens would fill it alone."""
        return replace(self, fixed=fixed, high=self.budget, low=_half_way(fixed, self.budget))

    def with_rules(self, tokens: int) -> Limits:
        """Limits with room for the rules of the conversation below both thresholds."""
        high = min(self.high + tokens, self.budget)
        return replace(self, fixed=self.fixed + tokens, high=high, low=min(self.low + tokens, high), rules=tokens)

    def max_extra_cut(self, prompt: int, turns: int) -> int:
        """Maximum of `extra_cut` so that the turns that the caller wants kept fit beside the prompt and the note.

        Args:
            prompt: Tokens of the current prompt.
            turns: Tokens of those turns; 0 for none, and then nothing but the room limits the cut.
        """
        taken = self.max_notes + prompt + min(turns, self.room // 2)
        return max(0, self.low - self.fixed - taken) if turns else self.room

    def cap(self, fidelity: Fidelity) -> int:
        """Maximum size of a summary in tokens."""
        return summary_cap(fidelity, self.used)


def summary_cap(fidelity: Fidelity, room: int) -> int:
    """Maximum size of a summary in tokens: the fidelity's cap, or a quarter of `room` rounded down to a power of two.

    The rounding keeps the cap the same when instructions change by a few tokens, and with it the cache key of a
    compile.
    """
    most, quarter = CAPS[fidelity], room // 4
    if quarter >= most:
        return most
    return 1 << (quarter.bit_length() - 1) if quarter > 0 else 0


def whole_budget(
    budget: Amount | None,
    *,
    reserve: int | None = None,
    window: int | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
) -> tuple[int, int | None]:
    """Budget of a request and its ceiling, in the model's tokens.

    The ceiling is the maximum that may be sent if no view can be made: the caller's budget, else what fits the window;
    None if neither is known. A known window caps the budget, less the room for the answer: `max_tokens`, which
    providers add to the input before they compare it with the window, else a quarter of the window at most.

    Args:
        budget: Budget of the caller, in tokens or as a fraction of the window.
        reserve: Room for the answer that the caller wants, in tokens.
        window: Context window of the model; None if unknown.
        max_tokens: Maximum tokens of an answer, from the settings of the request.
        limit: Maximum input tokens of a request, by the run's usage limits.
    """
    usable = limit
    if window:
        quarter = window // 4
        answer = min(reserve or DEFAULT_RESERVE, quarter)
        if max_tokens and not reserve:
            answer = min(max_tokens, window - quarter)
        usable = min(window - answer, limit or window)
    if budget is None:
        tokens = int(DEFAULT_SHARE * window) if window else DEFAULT_BUDGET
    else:
        tokens = amount_tokens(budget, of=window or DEFAULT_BUDGET) or 1
    tokens = min(tokens, usable) if usable else tokens
    return max(1, tokens), (tokens if budget is not None else usable)


def trigger_of(trigger: Amount | None, threshold: Amount | None, fidelity: Fidelity) -> Amount | None:
    """Trigger to use: the caller's, else the template's `threshold`, in which 0 means the budget.

    With fidelity `full` it is the budget in any case.
    """
    if fidelity is Fidelity.FULL:
        return 1.0
    return trigger if trigger is not None else 1.0 if threshold == 0 else threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Tokens that no threshold may remove, and the size of the exchanges that the thresholds follow."""

    prompt: int
    """Prompts of the current turn."""
    kept: int
    """Pinned messages, and standing instructions of the user."""
    turns: int
    """Earlier turns that the caller wants kept."""
    newest: int
    """Results of the newest exchange."""
    exchange: int
    """Usual size of an exchange."""
    cut: int
    """The whole request after the last cut; 0 before the first."""

    def lasting(self, room: int) -> int:
        """Tokens of `room` that stay throughout the turn."""
        return min(self.prompt, room - room // LARGE) + min(self.turns, max(0, room // 2 - self.exchange)) + self.kept


def limits(
    *,
    budget: int,
    trigger: Amount | None = None,
    fixed: int,
    ratio: float = 1.0,
    tight: float = 1.0,
    tool_work: bool = False,
    floor: Floor | None = None,
) -> Limits:
    """Compute budget and thresholds in exact tokens.

    Args:
        budget: Budget of the whole request, in the model's tokens.
        trigger: High threshold, in the model's tokens or as a fraction of the budget; None chooses by the exchanges.
        fixed: Tokens that no view can leave out.
        ratio: The model's tokens for each of ours.
        tight: Fraction of the budget to use; below 1 after a provider refused a request.
        tool_work: The session is tool work, whose view needs no room for quotes.
        floor: What no threshold may remove; None for a view that is not cut before it is over the budget.
    """
    wanted = amount_tokens(trigger, of=budget)
    whole = ceil(budget * tight - 1e-6)
    budget = max(1, int(budget * tight / ratio))
    room = max(0, budget - fixed)
    least = min(budget, fixed + (floor.lasting(room) if floor else 0))
    notes = 0 if tool_work or wanted is not None else _max_notes(room, budget - least)
    base = least + notes
    newest, exchange = (min(budget, base + floor.newest), floor.exchange) if floor else (base, 0)
    if not room:
        high, low = budget, fixed
    elif wanted is None:
        start = min(budget, floor.cut or base) if floor else base
        share = HIGH + notes / room + STEEP * exchange / max(1, budget - start) if floor else 1
        high = max(start + int(min(1.0, share) * (budget - start)), newest + exchange)
        low = base + int(LOW * (budget - base)) + min(exchange, (budget - base) // LARGE)
    else:
        high = max(int(wanted / ratio), newest + min((budget - newest) // 2, MIN_TRIGGER))
        low = _half_way(base, min(high, budget))
    high = min(high, budget)
    low = min(max(low, newest), high) if room else fixed
    return Limits(
        budget=budget,
        whole=whole,
        fixed=fixed,
        high=high,
        low=low,
        ratio=ratio,
        tight=tight,
        max_notes=notes,
        block_reserve=0,
        extra_cut=0,
        rules=0,
        framing=0,
    )


HIGH, STEEP = 0.2, 7
"""Room to grow from one cut to the next, as a fraction of what the cut left free: the first, plus the second times the
size of an exchange as such a fraction, at most 1. The share of note and quotes is added, because every cut writes them
again."""

LOW = 0.14
"""Low threshold as a fraction of what is free beside the floor; room for one exchange, at most a
quarter of it, is added."""

MIN_NOTES = 1_800
"""Minimum room for note and quotes of a chat; if it is over half of the room, they get only what is free."""


def _max_notes(room: int, free: int) -> int:
    """Maximum size of note and quotes of a chat."""
    most = max(room // LARGE, MIN_NOTES)
    return min(most, free // 2) if 2 * most <= room else 0


def _half_way(fixed: int, high: int) -> int:
    return fixed + max(0, high - fixed) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All settings of one request, resolved: the caller overrides the template, which overrides the defaults."""

    template: Template
    extractive: Template
    """Template that writes the note if no model is asked."""
    budget: int
    """Budget of the whole request, in the model's tokens."""
    trigger: Amount | None
    """High threshold, in the model's tokens or as a fraction of the budget; None chooses by the room."""
    fidelity: Fidelity
    fidelity_named: bool
    """True if the caller named the fidelity, which then caps quotes too."""
    recent_turns: int | None
    """Number of turns before the current one to keep if they fit; None for all."""
    recent_named: bool
    """True if the caller gave the number of recent turns, False if the template did."""
    recent_tool_results: int | None
    """Number of tool results that the model's prompt contains whole; None for all."""
    reflections: ReflectionPolicy
    """Selects the failures for a template that asks for `reflections`."""
    tool_history: str
    """Form of tool exchanges of earlier turns: paired, drop or render."""
    inject: str
    """Channel of a model's summary: user, system or compaction."""
    model: str
    """Name of the compiler's model; "none" for no model."""
    every_turn: bool
    """True if every user turn begins with a compile."""
    recall: Amount
    """Maximum size of a recall block: a fraction of the room, or tokens; 0 for no recall."""
    says_absent: bool
    """True if a recall block names the terms of its prompt that nobody has said."""
    detects_rules: bool
    """True if rules are found in the user's prompts."""
    refs: bool
    """True if the agent has a tool that reads left-out text, so that truncation markers may name it."""
    prompt_room: int
    """Maximum tokens of a prompt for a summary."""
    scope: str
    """Name of the conversations that share compiles. A summary is written around the question of one conversation."""
    config: str
    """Hash of all settings that decide how a view is written; a cycle of another configuration is not continued."""

    def limits(
        self, fixed: int, *, ratio: float = 1.0, tight: float = 1.0, tool_work: bool = False, floor: Floor | None = None
    ) -> Limits:
        """Budget and thresholds of a request with `fixed` tokens that no view can leave out."""
        return limits(
            budget=self.budget,
            trigger=self.trigger,
            fixed=fixed,
            ratio=ratio,
            tight=tight,
            tool_work=tool_work,
            floor=floor,
        )


TOOL_WORK = 10
"""A session is tool work if at least one message in this number calls a tool."""

LONG_TURNS = 3
"""Turns are long if a prompt has at least this many responses on average."""

REFUSED_SHARE = 0.7
"""Fraction of the budget, or of a block, that remains after a provider refused a request as too long."""

NO_WORK = ("recall_", "compile_context", OUTPUT)
"""Prefixes of tools that do not count as tool work: they search the past or give the answer."""

SHELLS = ("code_execution", "shell", "bash")
"""Native tools of providers that count as tool work."""


def _works(item: Item) -> bool:
    name = item.tool or ""
    return item.kind is Kind.CALL and not name.startswith(NO_WORK) and (not item.native or name in SHELLS)


def rules_of(history: History, declared: Sequence[str], steering: Steering, detected: Found) -> tuple[Rule, ...]:
    """Rules in force: those that the application declares, then those found in a history, oldest first."""
    first, dismissed = tuple(map(Rule, dict.fromkeys(declared))), steering.dismissed
    names = {rule.name for rule in first}
    users = (
        rule
        for rule in (() if detected.between_people else detected.rules)
        if rule.name not in names and not any(dismissal.covers(rule, history) for dismissal in dismissed)
    )
    return (*first, *rules_in_force(users))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A raw history with its policy, and everything that follows from the two alone."""

    history: History
    pairing: Pairing
    policy: Policy
    reader: Reader
    steering: Steering = NONE
    declared: tuple[str, ...] = ()
    """Rules that the application declares for this request."""
    fixed: int
    """Exact tokens of the request apart from its history."""
    one_shot: bool = False
    """True for a view that serves a single request, so that it may fill the budget."""

    @cached_property
    def found_rules(self) -> Found:
        """Rules in the history."""
        return find_rules(self.history)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Rules in force."""
        detects = self.policy.detects_rules
        return rules_of(self.history, self.declared, self.steering, self.found_rules if detects else Found())

    @cached_property
    def retired_rules(self) -> tuple[str, ...]:
        """Texts of the user's rules that are no longer in force, because they were dismissed or replaced."""
        if not self.policy.detects_rules or self.found_rules.between_people:
            return ()
        standing = {rule.name for rule in self.rules}
        return tuple(rule.text for rule in self.found_rules.rules if rule.name not in standing)

    def pinned(self, room: int | None = None) -> frozenset[int]:
        """Positions of pinned messages that fit in their share of `room`; None for all pinned messages."""
        return pinned(self.steering, self.history, self.outline, room) if self.steering.pins else frozenset()

    @property
    def counter(self) -> TokenCounter:
        """Token counter."""
        return self.reader.counter

    @cached_property
    def turn(self) -> int:
        """Ordinal of the current user turn."""
        return turn_index(self.history)

    @cached_property
    def active_start(self) -> int:
        """Position at which the current turn begins."""
        return turn_starts(self.history)[-1]

    @cached_property
    def prompt_start(self) -> int:
        """Position from which prompts belong to the current turn; before `active_start` if no user wrote in it.

        Recall blocks are assigned to turns by position. Ordinals change if a stored history has lost its run ids,
        because a prompt that came with the results of deferred calls then becomes part of the turn before it.
        """
        return min(self.active_start, prompt_at(self.history) or 0)

    @cached_property
    def outline(self) -> Outline:
        """Turns and groups of the history."""
        return outline(self.history, self.pairing)

    @cached_property
    def base(self) -> Mapping[int, Shape]:
        """Shapes of messages that have broken parts, by position."""
        shapes = {index: Shape(skip=parts) for index, parts in self.pairing.broken.items()}
        unpaired = self.pairing.unpaired
        return shapes if unpaired is None else {**shapes, unpaired: Shape(tools="render")}

    @cached_property
    def question(self) -> Pending | None:
        """The question that recall answers; None if there is no prompt."""
        return pending_question(self.history, self.counter)

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """Exact terms of the question that nothing said before it contains; none if they cannot be found."""
        question = self.question
        return () if question is None else attempt(lambda: absent_terms(self.history, question)).value or ()

    @cached_property
    def prompt_tokens(self) -> int:
        """Exact tokens of the newest prompt; 0 if there is none."""
        position = prompt_at(self.history)
        return self.history.readings[position].tokens if position is not None else 0

    def floor(self, kept: int, cut: int) -> Floor:
        """Tokens that no threshold may remove, with what the user steers, and the request after the last cut."""
        groups = self.outline.active.groups
        prompts = [group for group in groups if has_prompt(self.history, group)]
        newest = 0 if groups[-1] in prompts else self._tokens(groups[-1])
        prompt = sum(map(self._tokens, prompts))
        return Floor(
            prompt=prompt, kept=kept, turns=self.recent_tokens, newest=newest, exchange=self._exchange, cut=cut
        )

    @cached_property
    def _exchange(self) -> int:
        """Usual size of an exchange in the newest messages that the room would hold, each weighted by its size.

        The weights keep it large while a few large results fill the view, however many small ones follow.
        """
        room, total, squares = max(1, self.policy.budget - self.fixed), 0, 0
        for group in (group for turn in reversed(self.outline.turns) for group in reversed(turn.groups)):
            size = min(self._tokens(group), room // 2)
            if total + size > room:
                break
            total, squares = total + size, squares + size * size
        return squares // max(1, total)

    def _tokens(self, group: Group) -> int:
        return self.history.sums[group.stop] - self.history.sums[group.start]

    @cached_property
    def recent_tokens(self) -> int:
        """Exact tokens of the earlier turns that the caller wants kept; 0 if the template decides."""
        if not self.policy.recent_named:
            return 0
        turns, wanted = self.outline.turns[:-1], self.policy.recent_turns
        newest = turns if wanted is None else turns[max(0, len(turns) - wanted) :]
        if not newest:
            return 0
        return self.history.sums[newest[-1].stop] - self.history.sums[newest[0].start]

    @cached_property
    def tool_calls(self) -> int:
        """Number of messages that call a function or a shell; output and recall tools do not count."""
        return sum(any(map(_works, reading.items)) for reading in self.history.readings if reading.exchanges)

    @cached_property
    def tool_work(self) -> bool:
        """True if the session is tool work, see `TOOL_WORK`."""
        return self.tool_calls * TOOL_WORK >= len(self.history)

    @cached_property
    def long_turns(self) -> bool:
        """True if turns are long (see `LONG_TURNS`), so that a text in a turn is paid for in several requests."""
        return self.requests_per_turn >= LONG_TURNS

    @cached_property
    def requests_per_turn(self) -> float:
        """Average number of responses to a prompt."""
        prompts = sum(reading.has_prompt for reading in self.history.readings)
        return sum(not reading.request for reading in self.history.readings) / max(1, prompts)

    @property
    def recalls(self) -> bool:
        """True if the settings allow recall blocks."""
        return bool(self.policy.recall) and self.policy.fidelity is not Fidelity.TRUNCATE

    @cached_property
    def carried(self) -> int:
        """Exact tokens of host parts that a view carries even from messages that it leaves out."""
        readings = self.history.readings
        idle = (
            readings[index].items[part] for index, parts in superseded_parts(self.history).items() for part in parts
        )
        return sum(reading.stays for reading in readings) - sum(item.tokens for item in idle)
