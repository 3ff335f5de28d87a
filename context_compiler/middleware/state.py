"""State of one compiler and of each of its runs, a request with all that its view is made of, and the result.

A run's state changes in this module only: by the methods of `Run`, from what `respond` finds and returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from pydantic_ai.messages import ModelMessage

from context_compiler.cache import Memo
from context_compiler.compiler.advance import Advance, Where
from context_compiler.compiler.cycle import Cycle, begins
from context_compiler.compiler.policy import LEAST_HIGH, Limits, Plan
from context_compiler.compiler.recall_block import Blocks
from context_compiler.compiler.steering import NONE, Pin, Steering
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse
from context_compiler.compiler.view import View
from context_compiler.layers.context import LayerBlock
from context_compiler.messages.history import History, Reader, reader_of
from context_compiler.messages.turns import Outline, Pairing, outline, pair
from context_compiler.middleware.arguments import SHIPPED, Arguments
from context_compiler.middleware.request import Host, Request, is_long
from context_compiler.record.database import Moment
from context_compiler.record.values import Compile, Drop
from context_compiler.settings import Settings
from context_compiler.tokens import Ratios, TokenCounter, as_counter

TIGHT = 0.7
"""Share of the budget that is left once a provider has refused a request as too long."""

DROPS = 64
"""Cycles whose drops, and configurations whose former names, are remembered."""

MANY = 20_000
"""Number of messages above which even a history that has been read before takes long to compare."""

PENDING = 256
"""Conversations that may have a compile in the background."""

EMPTY = History(messages=(), readings=(), ids=(), exact=(), sums=(0,), static=0)
"""Placeholder for a history that could not be read."""

ListedDrops = tuple[tuple[Drop, ...], Sequence[Mapping[str, object]]]
"""Drops, and the rows of the token breakdown that count them by reason."""

Named = tuple[str, str, tuple[Pin, ...]]
"""Tip and configuration of a cycle, and the pins of its conversation."""

Opening = tuple[Cycle, Mapping[int, str], list[ModelMessage]]
"""A cycle, the recall blocks within what it froze, and those messages, so that they are built once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A view, and what of it goes on the record."""

    view: View
    raw: History
    sent: History
    cycle: Cycle | None
    """The cycle that the view is of; None for raw history."""
    next_cycle: Cycle | None
    """The cycle that the run is in from now on."""
    turn: int
    cost: int
    """Exact tokens of the whole request as the host renders it."""
    limit: int
    """The budget in exact tokens; 0 where `cost` could not be made sure of."""
    row: Compile | None = None
    began: bool = False
    """A new cycle began with this request."""
    ratio: float = 1.0
    opening: Opening | None = None
    pairing: Pairing | None = None
    blocks: Blocks | None = None
    """Recall blocks of its turn; None if not known yet."""
    fault: Exception | None = None
    """The reason why nothing could be recalled."""


@dataclass(slots=True)
class Run:
    """State of one run between its requests."""

    raw: History | None = None
    view: History | None = None
    cycle: Cycle | None = None
    """The cycle that the run is in, or would be in once raw history does not fit any more."""
    recorded: Cycle | None = None
    """The cycle as it is on the record."""
    opening: Opening | None = None
    blocks: Blocks | None = None
    """Recall blocks of the newest turn that this run has seen."""
    recorded_blocks: Blocks | None = None
    """The same as it is on the record."""
    config: str = ""
    """Of the cycle that the run is in."""
    parked: dict[str, tuple[Cycle | None, Cycle | None, Blocks | None, Blocks | None, bool]] = field(
        default_factory=dict[str, tuple[Cycle | None, Cycle | None, Blocks | None, Blocks | None, bool]]
    )
    """The same five of the other configurations of this run: a fallback model has a window of its own."""
    begun: bool = False
    """The cycle to start from has been looked up."""
    ratios: Ratios = field(default_factory=Ratios)
    """Learnt before this run and in it, not in other runs meanwhile: a resumed run decides alike."""
    requests: int = 0
    turn: int = 0
    asked_turn: int = -1
    """The user turn in which a model was asked last, with or without success."""
    opened_turn: int = -1
    """The user turn whose first request `every_turn` has seen."""
    sent: int = 0
    """Exact tokens of the last request as sent; 0 when it was none of ours."""
    budget: int = 0
    """The budget of the last request, in exact tokens."""
    tight: float = 1.0
    """Share of the budget that is left after a provider refused it."""
    refused: bool = False
    """The provider has refused a request of this run as too long."""
    failed: Compile | None = None
    """The compile that failed in this request."""
    layers: LayerBlock | None = None
    """The layers as this run has them, once that is settled."""
    ordered_turn: int = -1
    """The user turn in which the agent has asked for a compile last."""
    prepared: Advance | None = None
    """The compile that the agent has asked for, for the next request."""
    steering: Steering = NONE
    """Wishes of the user about this conversation, as they were when the run began."""
    earlier: Sequence[ModelMessage] | None = None
    """Messages of the record before the window that this run was given; None until that is looked up."""

    def switch(self, config: str) -> None:
        """Go on with the cycle and the blocks of this configuration: another model of the run has its own."""
        if config == self.config:
            return
        self.parked[self.config] = self.cycle, self.recorded, self.blocks, self.recorded_blocks, self.begun
        self.config = config
        found = self.parked.pop(config, (None, None, None, None, False))
        self.cycle, self.recorded, self.blocks, self.recorded_blocks, self.begun = found

    def read(self, history: History) -> None:
        """Keep a history that has been read, so that the part it shares with the next one is not read again."""
        self.raw = history

    def begin(self) -> None:
        """Look the cycle up that the run starts from: once, whatever comes of it."""
        self.begun = True

    def steer(self, steering: Steering) -> None:
        """Follow the wishes of the user from now on; their generation names the configuration."""
        self.steering, self.config = steering, steering.config(self.config)

    def start(
        self, cycle: Cycle | None, blocks: Blocks | None, ratios: Mapping[str, Any], *, adopted: bool = False
    ) -> None:
        """Start from a recorded cycle and its blocks, if they fit, and from ratios learnt by earlier runs.

        A cycle that is `adopted` from what a user did is not on the record as one of this run's configuration.
        """
        self.blocks = self.recorded_blocks = blocks
        self.ratios.restore(ratios)
        self.recorded = None if adopted else cycle
        self.tight = cycle.tight if cycle else self.tight

    def enter(self, cycle: Cycle | None, *, mended: Cycle | None = None) -> None:
        """Be in a cycle from now on, which may be `mended` with late answers in place."""
        if mended is not None and self.recorded is mended:
            self.recorded = cycle
        self.cycle = cycle

    def join(self, earlier: Sequence[ModelMessage]) -> None:
        """Go on from these messages of the record in all requests of the run."""
        self.earlier = earlier

    def open_turn(self, turn: int) -> None:
        """The first request of a user turn has been seen."""
        self.opened_turn = turn

    def relax(self) -> None:
        """Give a new cycle the whole budget again, unless the provider has refused it in this run."""
        self.tight = self.tight if self.refused else 1.0

    def tighten(self) -> None:
        """Go on with less, and without a model for this turn: the provider refused the request as too long."""
        self.tight *= TIGHT * (min(1.0, self.sent / self.budget) if self.sent and self.budget else 1.0)
        self.refused = True
        self.asked_turn = self.turn

    def ask(self, turn: int) -> None:
        """A model is asked in this turn, and not again."""
        self.asked_turn = turn

    def order(self, turn: int) -> None:
        """The agent asks for a compile in this turn, and is not heard again."""
        self.ordered_turn = turn

    def prepare(self, made: Advance) -> None:
        """Begin a cycle with this advance at the next request."""
        self.prepared = made

    def take_prepared(self) -> Advance | None:
        """The advance that the agent has asked for, once."""
        made, self.prepared = self.prepared, None
        return made

    def fail(self, row: Compile | None) -> None:
        """A compile of this request has failed; None forgets that of the request before."""
        self.failed = row

    def attach(self, layers: LayerBlock) -> None:
        """Settle the layers of this run."""
        self.layers = layers

    def settle(self, result: Result) -> None:
        """Take over what one request came to."""
        self.raw = self.raw if result.raw is EMPTY else result.raw
        self.view, self.turn, self.cycle = result.sent, result.turn, result.next_cycle
        self.opening = result.opening or self.opening
        self.blocks = result.blocks or self.blocks
        self.sent, self.budget = result.cost if result.limit else 0, result.limit

    def record(self, cycle: Cycle, summary_id: int | None, *, linked: bool) -> Cycle | None:
        """Note that the view's cycle is on the record.

        Where it is `linked` to the row of a compile that it did not know, the cycle with that row is returned and
        entered; its next request is recorded too.
        """
        self.recorded = cycle
        if self.cycle is not cycle or not linked or cycle.summary_id == summary_id:
            return None
        self.cycle = replace(cycle, summary_id=summary_id)
        return self.cycle

    def record_blocks(self, blocks: Blocks | None) -> None:
        """Note that what was recalled is on the record."""
        self.recorded_blocks = blocks or self.recorded_blocks

    def count(self) -> None:
        """One more request has been answered."""
        self.requests += 1


Conversation = tuple[str | None, str]
"""Owner and name of a conversation."""


class Pending:
    """Compiles under way in the background, one a conversation."""

    def __init__(self) -> None:
        """Start with none."""
        self._all: dict[Conversation, PendingCompile] = {}
        self._begun: set[Conversation] = set()
        self._unused: list[PendingCompile] = []

    def begin(self, conversation: Conversation) -> bool:
        """True for the one who may begin a compile of a conversation, until `begun`."""
        if conversation in self._begun:
            return False
        self._begun.add(conversation)
        return True

    def begun(self, conversation: Conversation) -> None:
        """A compile has been added, or there is none."""
        self._begun.discard(conversation)

    def find(self, conversation: Conversation, history: History, config: str) -> PendingCompile | None:
        """The compile of a conversation: by its name, else, where the host names each run anew, by what was said."""
        found = self._all.get(conversation)
        others = (one for one in reversed(self._all.values()) if one.fits(history, config))
        return found if found is not None else next(others, None)

    def add(self, one: PendingCompile) -> None:
        """Keep a compile; the oldest of too many is cancelled."""
        self._all[one.context.conversation] = one
        while len(self._all) > PENDING:
            self._leave(self._all.pop(next(iter(self._all)))).cancel()

    def take(self, one: PendingCompile) -> bool:
        """Keep it no longer; True for the first who takes it."""
        if self._all.get(one.context.conversation) is not one:
            return False
        del self._all[one.context.conversation]
        return True

    def _leave(self, one: PendingCompile) -> PendingCompile:
        """Note a compile that is done and that no request will use."""
        if one.task.done():
            self._unused.append(one)
        return one

    def take_unused(self) -> list[PendingCompile]:
        """Compiles that were done for nothing, each once."""
        unused, self._unused = self._unused, []
        return unused

    async def end(self) -> None:
        """Cancel all of them, and wait for those of this event loop to end."""
        tasks = [self._leave(one).cancel() for one in self._all.values()]
        self._all.clear()
        mine = {task for task in tasks if task.get_loop() is asyncio.get_running_loop()}
        if mine:
            await asyncio.wait(mine)


@dataclass(slots=True, kw_only=True)
class CompilerState:
    """Everything that the requests of one compiler share."""

    arguments: Arguments
    counter: TokenCounter
    reader: Reader
    settings: Settings = field(default_factory=Settings)
    former: Memo[str, str] = field(default_factory=lambda: Memo(DROPS))
    """Configurations as files of schema 3 name them, by the present name."""
    drops: Memo[Named, tuple[Cycle, ListedDrops]] = field(default_factory=lambda: Memo(DROPS))
    """Drops of recent cycles."""
    pending: Pending = field(default_factory=lambda: Pending())
    """Compiles in the background."""
    pairing: Pairing | None = None
    """The pairing of the last history without open calls: the next one often continues it."""
    outline: Outline | None = None
    """The outline of the last history that was outlined, for the same reason."""

    @classmethod
    def of(cls, arguments: Arguments) -> CompilerState:
        """The state of a new compiler; nothing is opened or read."""
        counter = as_counter(arguments.counter)
        return cls(arguments=arguments, counter=counter, reader=reader_of(counter))

    def settle(self, run: Run, result: Result) -> None:
        """Take over what one request of a run came to."""
        run.settle(result)
        if result.pairing is not None and not result.pairing.waiting:
            self.pairing = result.pairing


@dataclass(frozen=True, kw_only=True)
class RequestContext(Plan):
    """One request of one run, read: everything that its view is made of."""

    compiler: CompilerState
    run: Run
    request: Request
    host: Host | None
    """None for a one-shot view, which no request carries."""

    @cached_property
    def outline(self) -> Outline:
        """The history as turns and groups; the outline of the request before is continued where possible."""
        self.compiler.outline = found = outline(self.history, self.pairing, self.compiler.outline)
        return found

    def limits(self, cycle: Cycle | None = None) -> Limits:
        """Budget and thresholds by the ratio that a cycle froze; without one, by what was learnt until now.

        After an undo the high threshold is the budget for a while.
        """
        limits = self._thresholds(cycle)
        return replace(limits, high=limits.budget) if self._rests(limits) else limits

    def _thresholds(self, cycle: Cycle | None) -> Limits:
        ratio = cycle.ratio if cycle is not None else self.run.ratios.of(self.request.family)
        tools = cycle.tools if cycle is not None else self._mostly_tools()
        limits = self.policy.limits(self.request.fixed + self.carried, ratio=ratio, tight=self.run.tight, tools=tools)
        return limits if self.host is None else limits.beside(self.prompt_tokens, self.recent_tokens)

    @property
    def rests(self) -> bool:
        """True while a compile that was undone is not made again: only the budget itself cuts, without a model."""
        return bool(self.steering.held) and self._rests(self._thresholds(None))

    def _rests(self, limits: Limits) -> bool:
        """True until the conversation has grown by as much as between two compiles since one was undone."""
        held, ids = self.steering.held, self.history.ids
        if not held or held not in ids:
            return False
        return self.history.tokens - self.history.sums[ids.index(held) + 1] <= limits.high - limits.low

    def _mostly_tools(self) -> bool:
        """True where a session without a cycle is mostly tool work; not looked at while nothing depends on it."""
        room = (self.policy.budget - self.request.fixed) / self.run.ratios.of(self.request.family)
        grown = self.history.tokens > LEAST_HIGH * room
        return self.policy.trigger is None and self.host is not None and grown and self.tools

    def affords(self, wanted: SummaryRequest, host: Host) -> bool:
        """True if the run's usage limits leave room for a compile and the request itself."""
        given = sum(map(self.counter.text, wanted.prompts)) + wanted.cap * (len(wanted.prompts) - 1)
        return host.affords(given + self.request.overhead, wanted.cap * len(wanted.prompts))

    @property
    def conversation(self) -> Conversation:
        """The conversation of this request."""
        return self.request.owner, self.request.session_id

    @property
    def where(self) -> Where:
        """The place of this request in its conversation."""
        return Where(
            session_id=self.request.session_id,
            vault_name=self.compiler.arguments.place,
            run_id=self.request.run_id,
            turn_index=self.turn,
            request_index=self.run.requests,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingCompile:
    """A compile that was begun at a request and is made while the conversation goes on."""

    context: RequestContext
    """That request."""
    where: Where
    limits: Limits
    previous: Cycle | None
    request: SummaryRequest
    decided: int
    """Leading messages that its cycle decides on."""
    tip: str
    """The chain id of the last of them."""
    task: asyncio.Task[SummaryResponse]
    began: Moment = field(default_factory=Moment)

    def fits(self, history: History, config: str) -> bool:
        """True if what is compiled is a prefix of this history, and written in this way."""
        return self.context.policy.config == config and begins(history, self.decided, self.tip)

    def cancel(self) -> asyncio.Task[SummaryResponse]:
        """Cancel the call, from whichever thread; the task may still be ending."""
        loop = self.task.get_loop()
        if not self.task.done() and not loop.is_closed():
            loop.call_soon_threadsafe(self.task.cancel)
        return self.task


def _scope(place: str, request: Request) -> str:
    """Conversations that may share a compile: of one owner, and if their owner is not known, of one run."""
    if not request.owner:
        return (
            f"{place}/{request.scope}" if request.owner is not None else f"{place}/{request.scope} of {request.run_id}"
        )
    return f"{request.owner!r} {place}/{request.scope}"


async def read_history(reader: Reader, run: Run, messages: Sequence[ModelMessage]) -> History:
    """A history of a run, read off the event loop where that takes long; the run has it from then on."""
    news = messages[max(0, len(run.raw) - 2) :] if run.raw is not None else messages
    read = partial(reader.read, messages, last=run.raw)
    history = await asyncio.to_thread(read) if len(news) > MANY or is_long(reader.unread(news)) else read()
    run.read(history)
    return history


def read_request(
    compiler: CompilerState, run: Run, request: Request, host: Host | None, *, plain: bool = False
) -> RequestContext:
    """Read the messages of a request, and resolve its policy.

    Args:
        compiler: Shared by all runs; unchanged.
        run: The state before this request; unchanged.
        request: To be answered.
        host: Sends it.
        plain: Take the shipped template that needs no model, instead of the one asked for.

    Raises:
        TemplateError: the template is missing or wrong.
    """
    arguments = compiler.arguments
    policy = arguments.policy(
        SHIPPED if plain else arguments.templates(request.owner),
        compiler.settings,
        template="extractive" if plain else arguments.template,
        **request.terms,
        family=request.family,
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
    )
