"""The next request of a conversation as it would be now, read for an operation by hand and never sent."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model

from context_compiler.compiler.advance import Advance, Ask, brought_up_to_date
from context_compiler.compiler.cycle import Cycle, valid_cycle
from context_compiler.compiler.steering import CycleHistory, Order, steering_of
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse, latest_input
from context_compiler.errors import SettingsError, StoreError
from context_compiler.messages.fences import clip, one_line
from context_compiler.messages.history import History
from context_compiler.messages.rules import rule_sentences
from context_compiler.messages.turns import REFERENCE
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.request import Host, Request, named_scope
from context_compiler.middleware.respond import assemble_view
from context_compiler.middleware.state import CompilerState, RequestContext, Run, read_request
from context_compiler.record.database import Moment
from context_compiler.record.values import Record, fixed_tokens
from context_compiler.tokens import Ratios

PROMPT, EXCERPT = 400, 80
"""Maximum characters of the placeholder for the next prompt, and of the excerpt of a pinned message."""

UNKNOWN = ""
"""Tokenizer family of a recorded request, whose model is not on the record; its ratio is."""

NO_MODEL = "no model is known before the first request of this process: give model= to get a written summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The last request of a conversation without its messages, and the model that it was sent to."""

    request: Request
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRequest:
    """The next request of a conversation, without its prompt."""

    context: RequestContext
    """Its history ends with a short placeholder for the next prompt."""
    number: int
    """Number of the newest action."""
    steps: CycleHistory
    writer: Model | str
    note: str
    """Reason why no model can be called; empty if one can, or if none is wanted."""
    began: Moment
    """Time when the conversation was read."""

    @property
    def id(self) -> str:
        """Label of the conversation."""
        return self.context.request.session_id

    @property
    def raw(self) -> History:
        """The history including the placeholder prompt."""
        return self.context.history

    @property
    def length(self) -> int:
        """Number of messages without the placeholder prompt."""
        return len(self.raw) - 1

    @property
    def ratio(self) -> float:
        """The learned ratio of the model."""
        return self.context.run.ratios.of(self.context.request.family)

    def current(self) -> Cycle | None:
        """The cycle of the next request; None for raw history."""
        return self._fit(self.steps.current)

    def before(self) -> Cycle | None:
        """The cycle before the current one; None for raw history."""
        return self._fit(self.steps.before)

    def _fit(self, cycle: Cycle | None) -> Cycle | None:
        if cycle is None:
            return None
        config = self.context.policy.config
        valid = valid_cycle(replace(cycle, config=config), self.raw, config)
        return valid and brought_up_to_date(valid, self.context, self.context.limits(valid).room)

    def calibrated(self, exact: int) -> int:
        """Exact tokens converted to the model's, without the placeholder prompt."""
        return round((exact - self.raw.readings[-1].tokens) * self.ratio)

    def size(self, cycle: Cycle | None, done: Advance | None = None) -> int:
        """Tokens of the next request in a cycle, without its prompt."""
        status = "compiled" if done is not None else "cycle" if cycle is not None else "raw"
        return self.calibrated(assemble_view(self.context, cycle, status, done).cost)

    def find(self, message: int | str, argument: str = "message") -> int:
        """Find the position of a message by `m12`, `turn 3` or words in it; an error names the `argument`.

        Raises:
            SettingsError: There is no such message.
        """
        named = REFERENCE.fullmatch(str(message).strip())
        number = int(named[2]) if named else -1
        if isinstance(message, int) or (named and (named[1] or "t").lower().startswith("m")):
            position = number if 0 <= number < self.length else None
        elif named:
            position = next((turn.start for turn in self.context.outline.turns[:-1] if turn.index + 1 == number), None)
        else:
            position = self._find_words(" ".join(str(message).split()).casefold())
        if position is None:
            last = self.context.outline.turns[:-1][-1].index + 1
            remedy = f"give turn 1 to turn {last}, m0 to m{self.length - 1}, or words of a message"
            raise SettingsError(f"{argument}={one_line(str(message), EXCERPT)!r}: there is no such message; {remedy}")
        return position

    def _find_words(self, words: str) -> int | None:
        """The newest message that contains these words, preferably a user message."""
        if not words:
            return None
        matches = [
            index
            for index in range(self.length - 1, -1, -1)
            for item in self.raw.readings[index].items
            if item.mark is None and words in " ".join(item.text.split()).casefold()
        ]
        prompts = (index for index in matches if self.raw.readings[index].has_prompt)
        return next(prompts, matches[0] if matches else None)

    def order(self, focus: str, start: int | str | None) -> Order:
        """The compile to make; with `start`, it begins at the turn of that message."""
        if start is None:
            return Order(focus=focus)
        position = self.find(start, "start")
        turn = next(turn for turn in self.context.outline.turns if turn.start <= position < turn.stop)
        return Order(focus=focus, start=turn.start)


NOT_ASKED = SummaryResponse(text="", refused="no model is asked")


async def decline(request: SummaryRequest) -> SummaryResponse:
    """Ask no model."""
    return NOT_ASKED


class UnsentHost(Host):
    """Host of a request that is never sent."""

    def __init__(self, answer: Ask = decline) -> None:
        """`answer` answers for the model."""
        self._answer = answer

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        """Nothing is known before it; the cycle is read from the record."""
        return {"cycle": None, "ratios": {}}

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        """Answer for the model."""
        return await self._answer(request)


async def read_next_request(
    state: CompilerState,
    archive: Archive,
    ratios: Ratios,
    session: str,
    *,
    profile: Profile | None,
    model: Model | str | None,
) -> NextRequest:
    """Read the next request of a conversation.

    Args:
        state: State of the compiler.
        archive: Archive of the owner.
        ratios: Learned ratios of models.
        session: Label of the conversation.
        profile: Its last request in this process; None if there was none, so that the record is asked.
        model: Model that writes summaries; None for that of the arguments or of the last request.

    Raises:
        StoreError: The record has no such conversation, or cannot be read.
    """
    actions, began = await archive.actions(session), archive.access.moment()
    messages = _without_open_prompt(await archive.history(session))
    if not messages:
        raise StoreError(f"session {session!r}: nothing of it is on the record")
    newest = await archive.newest_request(session) if profile is None else None
    arguments, writer, note = _arguments(state.arguments, profile, newest, model)
    run = Run()
    run.steer(steering_of(actions)[0])
    run.ratios.restore(ratios.state() | ({} if newest is None else {UNKNOWN: newest.ratio}))
    request = profile.request if profile is not None else _recorded_request(arguments, session, newest)
    prompt: ModelMessage = ModelRequest(parts=[UserPromptPart(_placeholder(state.reader.read(messages)))])
    context = read_request(
        replace(state, arguments=arguments),
        run,
        replace(request, messages=[*messages, prompt], run_id=None, owner=archive.owner),
        UnsentHost(),
    )
    steps = CycleHistory.of(actions, await archive.cycles(session), context.history.tips())
    number = actions[-1].number if actions else 0
    return NextRequest(context=context, number=number, steps=steps, writer=writer, note=note, began=began)


def _arguments(
    configured: Arguments, profile: Profile | None, newest: Record | None, model: Model | str | None
) -> tuple[Arguments, Model | str, str]:
    """Arguments (with the recorded budget unless one in tokens is set), the writing model, and why none is known."""
    arguments = copy(configured)
    if not isinstance(arguments.budget, int) and newest is not None and newest.budget is not None:
        arguments.budget = newest.budget
    if model is not None:
        arguments.model = model
    if arguments.model is not None:
        return arguments, arguments.model, ""
    if profile is not None:
        return arguments, profile.model, ""
    arguments.model = "none"
    return arguments, "none", NO_MODEL


def _placeholder(history: History) -> str:
    """Text about what the newest prompt is about, without its rules, which are not given a second time."""
    text = one_line(latest_input(history), PROMPT)
    for rule in rule_sentences(text):
        text = text.replace(rule, "…")
    return clip(text or "…", PROMPT)


def _without_open_prompt(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history without an unanswered prompt at its end, because the host merges that with the next prompt."""
    last = messages[-1] if messages else None
    waits = isinstance(last, ModelRequest) and all(
        part.part_kind in ("user-prompt", "system-prompt") for part in last.parts
    )
    return messages[:-1] if waits else messages


def _recorded_request(arguments: Arguments, session: str, newest: Record | None) -> Request:
    """The next request of a conversation, as far as the record shows it."""
    overhead = 0 if newest is None else fixed_tokens(newest)
    rules = tuple(rule for rule in arguments.rules if isinstance(rule, str))
    return Request(
        messages=[], rules=rules, session_id=session, scope=named_scope(session), overhead=overhead, family=UNKNOWN
    )
