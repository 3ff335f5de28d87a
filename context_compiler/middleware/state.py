"""State of a compiler and of its runs, the context of a request, and its result.

The state of a run is one `Run`; its methods are the changes of several fields at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.advance import Advance
from context_compiler.compiler.compile_row import Where
from context_compiler.compiler.cycle import RAW, Blocks, Cycle, begins, repeats_hidden
from context_compiler.compiler.policy import HIGH, LARGE, Floor, Limits, Plan
from context_compiler.compiler.rules import RuleNote, fitting_rules, rules_cost
from context_compiler.compiler.steering import NONE, Pin, Steering
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import Inserted, View, sections_of, token_breakdown
from context_compiler.layers.context import LayerBlock
from context_compiler.messages.history import History, Reader, reader_of
from context_compiler.messages.rules import Found, Rule, find_rules
from context_compiler.messages.shapes import WHOLE, Shape, shortens_prompt
from context_compiler.messages.turns import Outline, Pairing, outline, pair, prompt_at, turn_index
from context_compiler.middleware.arguments import SHIPPED, Arguments
from context_compiler.middleware.off_loop import in_thread
from context_compiler.middleware.request import Conversation, Host, Request, is_long
from context_compiler.middleware.summary_calls import answer_room
from context_compiler.record.database import Moment
from context_compiler.record.values import FIXED, Compile, Drop
from context_compiler.resilience import TimeLimit, attempt
from context_compiler.settings import Settings
from context_compiler.tokens import Ratios, TokenCounter, as_counter

DROPS = 64
"""Maximum number of cycles whose drops are cached, and of histories whose rules are."""

MANY = 20_000
"""Number of messages above which even a history that was read before takes long to compare."""

PENDING = 256
"""Maximum number of conversations with a background compile."""

EMPTY = History(messages=(), readings=(), ids=(), exact=(), sums=(0,), static=0)
"""Placeholder for a history that could not be read."""

ListedDrops = tuple[tuple[Drop, ...], Sequence[Mapping[str, object]]]
"""Drops, and the rows of the token breakdown that sum them by reason."""

Named = tuple[str, str, tuple[Pin, ...]]
"""Tip and configuration of a cycle, and the pins of its conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The frozen messages of a cycle, cached so that they are built once."""

    cycle: Cycle
    inserted: Inserted
    """Our texts before prompts within them."""
    following: tuple[ModelMessage, Shape | None] | None
    """The next raw message, and its shape if it is broken; None if there is none."""
    messages: list[ModelMessage]
    start: int
    """Raw position from which on messages are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A view, and everything about it that is recorded."""

    view: View
    raw: History
    sent: History
    cycle: Cycle | None
    """Cycle of the view; None for raw history."""
    next_cycle: Cycle | None
    """Cycle of the run from now on."""
    turn: int
    cost: int
    """Exact tokens of the whole request as the host renders it."""
    limit: int
    """Budget in exact tokens; 0 if `cost` is not reliable."""
    row: Compile | None = None
    began: bool = False
    """True if a new cycle began with this request."""
    ratio: float = 1.0
    opening: Opening | None = None
    pairing: Pairing | None = None
    blocks: Blocks | None = None
    """Recall blocks of its turn; None if they are not known yet."""
    fault: Exception | None = None
    """Error that prevented recall."""
    notes: tuple[RuleNote, ...] = ()
    """Rules that were added since the cycle began."""
    lost: tuple[Rule, ...] = ()
    """Rules for which the view has no room."""

    @property
    def shortened_prompt(self) -> int | None:
        """Position of the newest prompt if the view shortens it."""
        position = prompt_at(self.raw) if self.cycle else None
        if self.cycle is None or position is None:
            return None
        shape = dict(self.cycle.kept).get(position, WHOLE)
        return position if shortens_prompt(self.raw.readings[position], shape) else None

    @classmethod
    def unchanged(cls, request: Request, history: History, ratio: float, counter: TokenCounter) -> Result:
        """Result for a request that is sent unchanged, however long it is; it has no budget."""
        sections = {FIXED: request.overhead, **sections_of(RAW, history, counter)}
        view = View(
            messages=request.messages,
            tokens=history.tokens,
            budget=0,
            status="raw",
            ledger=token_breakdown(sections, (), ()),
        )
        return cls(
            view=view,
            raw=history,
            sent=history,
            cycle=None,
            next_cycle=None,
            turn=turn_index(history),
            cost=request.overhead + history.tokens,
            limit=0,
            ratio=ratio,
        )


@dataclass(slots=True)
class Run:
    """State of one run between its requests."""

    request: Request | None = None
    """The last request, with earlier messages and layers."""
    raw: History | None = None
    view: History | None = None
    cycle: Cycle | None = None
    """Current cycle of the run; while raw history is sent, the cycle that will follow it."""
    recorded: Cycle | None = None
    """The cycle as recorded."""
    opening: Opening | None = None
    blocks: Blocks | None = None
    """Recall blocks of the newest turn of this run."""
    notes: tuple[RuleNote, ...] = ()
    """Rules that were added since its cycle began."""
    declared: dict[int, str] = field(default_factory=dict[int, str])
    """Last answers of the functions among the declared rules, by their positions."""
    lacks_rules: bool = False
    """True if one of these functions has failed and never answered, so that its rules are not known."""
    recorded_blocks: Blocks | None = None
    """The blocks as recorded."""
    config: str = ""
    """Configuration of the current cycle."""
    parked: dict[str, tuple[Cycle | None, Cycle | None, Blocks | None, Blocks | None, bool]] = field(
        default_factory=dict[str, tuple[Cycle | None, Cycle | None, Blocks | None, Blocks | None, bool]]
    )
    """Cycle, recorded cycle, blocks, recorded blocks and `begun` of the run's other configurations: a fallback model
    has its own context window."""
    begun: bool = False
    """True once the starting cycle is looked up; this happens once, even if it fails."""
    ratios: Ratios = field(default_factory=Ratios)
    """Ratios learned before and during this run, but not in concurrent runs, so that a resumed run decides alike."""
    requests: int = 0
    turn: int = 0
    asked_turn: int = -1
    """The last user turn in which a model was called, successfully or not; it is not called again in that turn."""
    opened_turn: int = -1
    """The last user turn whose first request `every_turn` has seen."""
    sent: int = 0
    """Exact tokens of the last request as sent; 0 if it was not one of our views."""
    ratio: float = 0.0
    """Ratio with which the last request was cut; 0 before the first."""
    tight: float = 1.0
    """Fraction of the budget that remains after a provider refused a request."""
    refused: bool = False
    """True if the provider has refused a request of this run as too long."""
    retried: bool = False
    """True if it has refused the current request, which is not tried a third time."""
    window: int | None = None
    """Smallest context window that a refusal of this run has stated."""
    failed: Compile | None = None
    """Row of the compile that failed in this request."""
    own_layers: LayerBlock | None = None
    """Layers of this run without passages of other conversations, once they are chosen."""
    layers: LayerBlock | None = None
    """Layers of this run with these passages."""
    asked_across: str = ""
    """Question that these passages answer."""
    ordered_turn: int = -1
    """The last user turn in which the agent asked for a compile; further requests in the turn are ignored."""
    prepared: Advance | None = None
    """Compile that the agent asked for, to be used at the next request."""
    prepared_at: Moment = field(default_factory=Moment)
    """Time when that compile began."""
    steering: Steering = NONE
    """The user's pins and undos for this conversation when the run began."""
    earlier: Sequence[ModelMessage] | None = None
    """Recorded messages before the window that this run was given, prepended to all its requests; None until they are
    looked up."""
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(inf))
    """Time that the current request may spend on reading and searching the history."""

    def switch(self, config: str) -> None:
        """Switch to the cycle and blocks of a configuration: each model of the run has its own."""
        if config == self.config:
            return
        self.parked[self.config] = self.cycle, self.recorded, self.blocks, self.recorded_blocks, self.begun
        self.config = config
        parked = self.parked.pop(config, (None, None, None, None, False))
        self.cycle, self.recorded, self.blocks, self.recorded_blocks, self.begun = parked

    def steer(self, steering: Steering) -> None:
        """Apply the user's steering; its generation becomes part of the configuration."""
        self.steering, self.config = steering, steering.config(self.config)

    def start(
        self, cycle: Cycle | None, blocks: Blocks | None, ratios: Mapping[str, Any], *, adopted: bool = False
    ) -> None:
        """Start from a recorded cycle and its blocks, if they fit, and from the ratios of earlier runs.

        If the cycle is `adopted` from a compile or undo by hand, it is not yet recorded under this run's configuration.
        """
        self.blocks = self.recorded_blocks = blocks
        self.ratios.restore(ratios)
        self.recorded = None if adopted else cycle
        self.tight = cycle.tight if cycle else self.tight

    def enter(self, cycle: Cycle | None, *, mended: Cycle | None = None) -> None:
        """Make a cycle current; `mended` is the same cycle before late answers were added."""
        if mended is not None and self.recorded is mended:
            self.recorded = cycle
        self.cycle = cycle

    def tighten(self, share: float) -> None:
        """Use at most this share of the budget after a refusal, and call no model in this turn."""
        self.tight = min(1.0, share)
        self.refused = self.retried = True
        self.asked_turn = self.turn

    def settle(self, result: Result) -> None:
        """Update the state from the result of a request."""
        self.raw = self.raw if result.raw is EMPTY else result.raw
        self.view, self.turn, self.cycle = result.sent, result.turn, result.next_cycle
        self.opening = result.opening or self.opening
        self.blocks = result.blocks or self.blocks
        self.notes = result.notes
        self.sent, self.ratio = result.cost if result.limit else 0, result.ratio

    def record(self, cycle: Cycle, summary_id: int | None, *, linked: bool) -> Cycle | None:
        """Note that the view's cycle is recorded.

        If `linked` and the cycle did not have this `summary_id`, a copy with it becomes current and is returned. It is
        recorded with its next request.
        """
        self.recorded = cycle
        if self.cycle is not cycle or not linked or cycle.summary_id == summary_id:
            return None
        self.cycle = replace(cycle, summary_id=summary_id)
        return self.cycle


class Pending:
    """Background compiles in progress, at most one per conversation."""

    def __init__(self) -> None:
        self._all: dict[Conversation, PendingCompile] = {}
        self._reserved: set[Conversation] = set()
        self._unused: list[PendingCompile] = []

    def reserve(self, conversation: Conversation) -> bool:
        """Reserve the start of a compile of a conversation until `release`; False if it is reserved already."""
        if conversation in self._reserved:
            return False
        self._reserved.add(conversation)
        return True

    def release(self, conversation: Conversation) -> None:
        """Release the reservation: a compile was added, or none was started."""
        self._reserved.discard(conversation)

    def find(self, conversation: Conversation, history: History, config: str) -> PendingCompile | None:
        """The compile of a conversation by its label, or by a matching history if the host renames each run."""
        fitting = (job for job in reversed(self._all.values()) if job.fits(history, config))
        return self._all.get(conversation) or next(fitting, None)

    def add(self, job: PendingCompile) -> None:
        """Add a compile; if there are too many, the oldest is cancelled."""
        self._all[job.context.request.conversation] = job
        while len(self._all) > PENDING:
            self._note_unused(self._all.pop(next(iter(self._all)))).cancel()

    def take(self, job: PendingCompile) -> bool:
        """Remove a compile; True only for the first caller."""
        if self._all.get(job.context.request.conversation) is not job:
            return False
        del self._all[job.context.request.conversation]
        return True

    def _note_unused(self, job: PendingCompile) -> PendingCompile:
        """Remember a finished compile that no request will use, so that its cost is recorded."""
        if job.task.done():
            self._unused.append(job)
        return job

    def take_unused(self) -> list[PendingCompile]:
        """Return and clear the finished compiles that no request used."""
        unused, self._unused = self._unused, []
        return unused

    async def end(self) -> None:
        """Cancel all compiles, and wait until those of this event loop have ended."""
        tasks = [self._note_unused(job).cancel() for job in tuple(self._all.values())]
        self._all.clear()
        mine = {task for task in tasks if task.get_loop() is asyncio.get_running_loop()}
        if mine:
            await asyncio.wait(mine)


@dataclass(slots=True, kw_only=True)
class CompilerState:
    """State that all requests of one compiler share."""

    arguments: Arguments
    counter: TokenCounter
    reader: Reader
    settings: Settings = field(default_factory=Settings)
    drops: Memo[Named, tuple[Cycle, ListedDrops]] = field(default_factory=lambda: Memo(DROPS))
    """Drops of recent cycles."""
    pending: Pending = field(default_factory=Pending)
    """Background compiles."""
    rules: Memo[str, Found] = field(default_factory=lambda: Memo(DROPS))
    """Rules found in recent histories, by their tips."""
    notes: Memo[Conversation, tuple[RuleNote, ...]] = field(default_factory=lambda: Memo(PENDING))
    """Rules that were added to conversations since their cycles began."""
    pairing: Pairing | None = None
    """Pairing of the last history without open calls; the next history often continues it."""
    outline: Outline | None = None
    """Outline of the last history that was outlined; the next history often continues it."""

    @classmethod
    def of(cls, arguments: Arguments) -> CompilerState:
        """State of a new compiler; nothing is opened or read."""
        counter = as_counter(arguments.counter)
        return cls(arguments=arguments, counter=counter, reader=reader_of(counter))


@dataclass(frozen=True, kw_only=True)
class RequestContext(Plan):
    """Context of one request of one run: everything that its view is made from."""

    compiler: CompilerState
    run: Run
    request: Request
    host: Host | None
    """None for a one-shot view, which is not part of a request."""

    @cached_property
    def outline(self) -> Outline:
        """The history as turns and groups, continued from the outline of the previous request if possible."""
        self.compiler.outline = turns = outline(self.history, self.pairing, self.compiler.outline)
        return turns

    @cached_property
    def found_rules(self) -> Found:
        """Rules in the history, continued from those of the previous request if possible."""
        return find_rules(self.history, self.compiler.rules)

    def limits(self, cycle: Cycle | None = None) -> Limits:
        """Budget and thresholds; after undo, and in a turn that reads again what a view hides, only the budget cuts."""
        limits, start = self._thresholds(cycle), self.outline.active.start
        reads_again = cycle is not None and start < cycle.decided and repeats_hidden(cycle, self.history, start)
        return replace(limits, high=limits.budget) if reads_again or self._is_paused(limits) else limits

    def _thresholds(self, cycle: Cycle | None) -> Limits:
        ratio = self.run.ratios.of(self.request.family)
        live = self.host is not None and (cycle is not None or self._has_grown())
        limits = self.policy.limits(
            self.request.fixed + self.carried,
            ratio=max(ratio, cycle.ratio) if cycle is not None else ratio,
            tight=self.run.tight,
            tool_work=cycle.tool_work if cycle is not None else live and self.tool_work,
            floor=self._floor(cycle) if live else None,
        )
        most = limits.room // LARGE
        reserved = self._rules_cost <= most or fitting_rules(self.rules, most, self.counter)
        return limits.with_rules(min(most, self._rules_cost)) if reserved else limits

    @cached_property
    def _rules_cost(self) -> int:
        return rules_cost([rule.text for rule in self.rules], self.counter)

    def _floor(self, cycle: Cycle | None) -> Floor:
        """Tokens that no threshold may remove, with pins."""
        kept = sum(self.history.readings[index].tokens for index in self.pinned(self.policy.budget))
        return self.floor(kept, self.request.fixed + cycle.size if cycle is not None and cycle.size else 0)

    @property
    def is_paused(self) -> bool:
        """True while an undone compile must not be repeated: only the budget causes a cut, and no model is called."""
        return bool(self.steering.held) and self._is_paused(self._thresholds(None))

    def _is_paused(self, limits: Limits) -> bool:
        """True until the conversation has grown by a whole cycle since a compile was undone."""
        held, ids = self.steering.held, self.history.ids
        if not held or held not in ids:
            return False
        return self.history.tokens - self.history.sums[ids.index(held) + 1] <= limits.high - limits.low

    def _has_grown(self) -> bool:
        """True if the history is so long that the thresholds matter; they need an outline."""
        room = (self.policy.budget - self.request.fixed) / self.run.ratios.of(self.request.family)
        return self.history.tokens > HIGH * room

    def affords(self, wanted: SummaryRequest, host: Host) -> bool:
        """True if the run's usage limits allow both a compile and the request itself."""
        tokens = sum(map(self.counter.text, wanted.prompts)) + wanted.cap * (len(wanted.prompts) - 1)
        writer = self.compiler.arguments.model or self.policy.model
        answers = answer_room(wanted.cap, writer) * len(wanted.prompts)
        return host.affords(tokens + self.request.overhead, answers, self.policy.model)

    @property
    def where(self) -> Where:
        """Position of this request in its conversation."""
        return Where(
            session_id=self.request.session_id,
            vault_name=self.compiler.arguments.place,
            run_id=self.request.run_id,
            turn_index=self.turn,
            request_index=self.run.requests,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingCompile:
    """A compile that runs in the background while the conversation continues."""

    context: RequestContext
    """Context of the request that started it."""
    where: Where
    limits: Limits
    previous: Cycle | None
    request: SummaryRequest
    decided: int
    """Number of leading messages that its cycle decides on."""
    tip: str
    """Chain id of the last of those messages."""
    task: asyncio.Task[SummaryResponse]
    began: Moment = field(default_factory=Moment)

    def fits(self, history: History, config: str) -> bool:
        """True if the compiled messages are the beginning of this history, and the configuration is the same."""
        return self.context.policy.config == config and begins(history, self.decided, self.tip)

    def cancel(self) -> asyncio.Task[SummaryResponse]:
        """Cancel the call, from any thread; the task may still be ending."""
        loop = self.task.get_loop()
        if not self.task.done() and not loop.is_closed():
            loop.call_soon_threadsafe(self.task.cancel)
        return self.task


def _scope(vault: str, request: Request) -> str:
    """Scope for sharing compiles: the conversation of one owner, or of one run if the owner is unknown."""
    scope = f"{vault}/{request.scope}"
    if request.owner is None:
        return f"{scope} of {request.run_id}"
    return f"{request.owner!r} {scope}" if request.owner else scope


async def read_history(reader: Reader, run: Run, messages: Sequence[ModelMessage]) -> History:
    """Read the history of a run in the request's time, in a thread if that takes long; the run keeps it."""
    news = messages[max(0, len(run.raw) - 2) :] if run.raw is not None else messages
    short = len(news) <= MANY and attempt(lambda: is_long(reader.unread(news))).value is False

    def read() -> History:
        with run.limit.applied():
            return reader.read(messages, last=run.raw)

    history = read() if short else await in_thread(read)
    run.raw = history  # the beginning that it shares with the next one is not read again
    return history


def read_request(
    compiler: CompilerState, run: Run, request: Request, host: Host | None, *, plain: bool = False
) -> RequestContext:
    """Read the messages of a request, and resolve its policy.

    Args:
        compiler: State shared by all runs; not changed here. Its `outline` is set when the outline is first read.
        run: State before this request; not changed.
        request: The request.
        host: Sender of the request; None for a one-shot view.
        plain: Use the shipped template without a model instead of the configured one.

    Raises:
        TemplateError: The template is missing or wrong.
    """
    arguments = compiler.arguments
    policy = arguments.policy(
        SHIPPED if plain else arguments.templates(request.owner),
        compiler.settings,
        request,
        template="extractive" if plain else arguments.template,
        scope=_scope(arguments.place, request) if host is not None else "",
        refs=request.refs,
    )
    history = compiler.reader.read(request.messages, last=run.raw)
    if run.steering is not NONE:
        policy = replace(policy, config=run.steering.config(policy.config))
    return RequestContext(
        compiler=compiler,
        run=run,
        request=request,
        host=host,
        history=history,
        pairing=pair(history, compiler.pairing),
        policy=policy,
        reader=compiler.reader,
        steering=run.steering,
        declared=request.rules,
        fixed=request.fixed,
        one_shot=host is None,
    )
