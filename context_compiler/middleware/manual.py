"""Manual control of views: compile now, preview and undo a compile, and pin messages, regardless of thresholds.

Each operation is recorded as an action of its conversation, which the next run finds, in this process or another. An
operation that fails leaves the conversation as it was, and reports the error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model

from context_compiler.compiler.advance import Advance, advance, failed_row, with_pins
from context_compiler.compiler.cycle import Cycle, restore_late_calls, valid_cycle
from context_compiler.compiler.steering import (
    PINS,
    REFERENCE,
    Order,
    Pin,
    Steps,
    messages_kept_together,
    pin_of,
    position_of,
    steering_of,
)
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse, latest_input, model_alias
from context_compiler.compiler.view import summary_of
from context_compiler.errors import CompileError, SettingsError, StoreError
from context_compiler.messages.display import role
from context_compiler.messages.fences import clip, one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import Kind
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.arguments import Arguments
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.request import Host, Request, is_long, named_scope
from context_compiler.middleware.respond import assemble_view
from context_compiler.middleware.single_flight import SESSIONS, Summaries
from context_compiler.middleware.state import CompilerState, RequestContext, Run, read_request
from context_compiler.record.database import Moment
from context_compiler.record.values import COMPILE, PIN, UNDO, UNPIN, Action, Compile, Drop, Record, now
from context_compiler.resilience import Report, try_await
from context_compiler.tokens import Ratios
from context_compiler.tokens.prices import cost_of, dollars

MAX_FOCUS = 2_000
"""Maximum length of a focus in characters."""

PROMPT, EXCERPT = 400, 80
"""Maximum characters of the placeholder for the next prompt, and of the excerpt of a pinned message."""

NO_MODEL = "no model is known before the first request of this process: give model= to get a written summary"

AS_IT_WAS = "the conversation is as it was"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """Outcome of a compile, a preview or an undo by hand."""

    session: str
    kind: str
    """compile, preview or undo."""
    done: bool
    """True if the next request is changed; for a preview, if a compile would change it."""
    why: str = ""
    """Reason why it is not."""
    focus: str = ""
    before: int = 0
    """Tokens of the next request without its prompt and recall block, as it would have been."""
    after: int = 0
    """The same tokens as they will be; a preview with a model has the maximum."""
    kept: int = 0
    """Tokens of the messages that are kept verbatim."""
    turns: int = 0
    """Turns that are kept in full or in part."""
    left_out: tuple[Drop, ...] = ()
    summary: str = ""
    """Replacement of the messages that are left out."""
    model: str = "none"
    """Model that writes the summary; "none" quotes."""
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens that the compile used; for a preview, the maximum."""
    cost: Decimal | None = None
    """In US dollars; None if no price is known."""
    seconds: float = 0.0

    @property
    def saved(self) -> int:
        """Tokens that each later request saves; negative after an undo."""
        return self.before - self.after

    def __str__(self) -> str:
        if not self.done:
            return self.why
        about = "at most " if self.kind == "preview" and self.model != "none" else ""
        parts = [f"{self.before:,} → {about}{self.after:,} tokens"]
        if self.kind != "undo":
            parts.append(f"{_count_of(self.turns, 'turn')} kept word for word ({self.kept:,} tokens)")
        if self.usage:
            asked = "would be asked" if self.kind == "preview" else "asked"
            parts.append(f"{self.model} {asked}: {sum(self.usage.get(name, 0) for name in TOKENS):,} tokens")
            parts.append("price unknown" if self.cost is None else dollars(self.cost))
        elif self.kind != "undo":
            parts.append("no model asked")
        return ", ".join([*parts, *([f"{self.seconds:.1f} s"] if self.kind == "compile" else [])])


TOKENS = ("input_tokens", "output_tokens")


def _count_of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The last request of a conversation without its messages, and the model that it was sent to."""

    request: Request
    model: Model | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """The current state of a conversation, read for one operation."""

    context: RequestContext
    """Its history ends with a short placeholder for the next prompt."""
    number: int
    """Number of the newest action."""
    steps: Steps
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
        found = valid_cycle(replace(cycle, config=config), self.raw, config)
        if found is None:
            return None
        found = restore_late_calls(found, self.context.pairing, self.context.base)
        return with_pins(found, self.context, self.context.limits(found).room)

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
            found = number if 0 <= number < self.length else None
        elif named:
            turns = self.context.outline.turns[:-1]
            found = next((turn.start for turn in turns if turn.index + 1 == number), None)
        else:
            found = self._find_words(" ".join(str(message).split()).casefold())
        if found is None:
            last = self.context.outline.turns[:-1][-1].index + 1
            what = f"give turn 1 to turn {last}, m0 to m{self.length - 1}, or words of a message"
            raise SettingsError(f"{argument}={one_line(str(message), EXCERPT)!r}: there is no such message; {what}")
        return found

    def _find_words(self, words: str) -> int | None:
        """The newest message that contains these words, preferably a user message."""
        if not words:
            return None
        found = [
            index
            for index in range(self.length - 1, -1, -1)
            for item in self.raw.readings[index].items
            if item.mark is None and words in " ".join(item.text.split()).casefold()
        ]
        return next((index for index in found if self.raw.readings[index].asks), found[0] if found else None)

    def order(self, focus: str, start: int | str | None) -> Order:
        """The compile to make; with `start`, it begins at the turn of that message."""
        if start is None:
            return Order(focus=focus)
        at = self.find(start, "start")
        turn = next(turn for turn in self.context.outline.turns if turn.start <= at < turn.stop)
        return Order(focus=focus, start=turn.start)


class _UnsentHost(Host):
    """Host of a request that is never sent."""

    def __init__(self, answer: Callable[[SummaryRequest], Awaitable[SummaryResponse]]) -> None:
        self._answer = answer

    async def begin(self, ids: list[str], config: str) -> dict[str, Any]:
        return {"cycle": None, "ratios": {}}

    async def ask(self, request: SummaryRequest) -> SummaryResponse:
        return await self._answer(request)


async def _refuse(request: SummaryRequest) -> SummaryResponse:
    return SummaryResponse(text="", refused="no model is asked")


class Manual:
    """Compiles, undos and pins by hand for the conversations of one owner.

    Args:
        state: State of the compiler.
        archive: Archive of the owner.
        ratios: Learned ratios of models.
        profile: Returns the last request of a conversation in this process, by owner and label.
        summaries: Summaries of the compiler, which enforce its spend limit.
        report: Called with any error.
    """

    def __init__(
        self,
        state: CompilerState,
        archive: Archive,
        ratios: Ratios,
        profile: Callable[[tuple[str | None, str]], Profile | None],
        summaries: Summaries,
        report: Report,
    ) -> None:
        self._state, self._archive, self._ratios = state, archive, ratios
        self._profile, self._summaries, self._report = profile, summaries, report

    async def compile(
        self, session: str, focus: str, *, start: int | str | None, model: Model | str | None
    ) -> CompileResult:
        """Compile a conversation now; see `ContextCompiler.compile_now`."""
        focus, began = _checked_focus(focus), time.perf_counter()
        key, timeout = self._archive.conversation(session), self._state.arguments.timeout
        async with SESSIONS.hold(key, wait=timeout) as mine:
            if not mine:
                why = f"another compile of this conversation is under way; {AS_IT_WAS}"
                return CompileResult(session=session, kind="compile", done=False, why=why, focus=focus)
            found = await self._read(session, model)
            result = await self._compile(found, found.order(focus, start))
        return replace(result, seconds=time.perf_counter() - began)

    async def preview(
        self, session: str, focus: str, *, start: int | str | None, model: Model | str | None
    ) -> CompileResult:
        """Outcome of a compile as far as it is known in advance; no model is called and nothing is recorded."""
        focus = _checked_focus(focus)
        found = await self._read(session, model)
        wanted: list[SummaryRequest] = []

        async def refuse(request: SummaryRequest) -> SummaryResponse:
            wanted.append(request)
            return await _refuse(request)

        outcome = await try_await(self._advance(found, "preview", found.order(focus, start), refuse))
        if outcome.value is None:
            return await self._failure(found, "preview", focus, outcome.error)
        done, result = outcome.value
        if not wanted:
            return result
        order, count = wanted[0], self._state.counter.text
        given = found.writer, order.prompts, order.cap
        refused = await self._summaries.refusal(self._archive, found.id, *given)
        if refused is not None:
            return replace(result, why=f"{refused}: no model would be asked" if result.done else result.why)
        given = sum(map(count, order.prompts)) + order.cap * (len(order.prompts) - 1)
        usage = {"input_tokens": round(given * found.ratio), "output_tokens": order.cap * len(order.prompts)}
        most = found.calibrated(found.context.request.fixed + done.selection.draft.total)
        result = replace(result, after=most, usage=usage, **_model_and_cost(found, usage), summary="")
        return replace(result, done=most < result.before or bool(focus), why="")

    async def _compile(self, found: _Session, order: Order) -> CompileResult:
        answers, asked = list[SummaryResponse](), list[SummaryRequest]()

        async def ask(wanted: SummaryRequest) -> SummaryResponse:
            asked.append(wanted)
            summaries = self._summaries.with_arguments(found.context.compiler.arguments)
            answer = await summaries.answer(
                wanted.key, wanted.prompts, found.writer, self._archive, session=found.id, cap=wanted.cap
            )
            answers.append(answer)
            if answer.failure is not None:
                raise CompileError(**answer.failure, usage=answer.usage, cost=answer.cost)
            return answer

        outcome = await try_await(self._advance(found, "compile", order, ask))
        spent = answers[0] if answers else None
        if outcome.value is None:
            if spent is not None and isinstance(outcome.error, CompileError):
                where, policy = found.context.where, found.context.policy
                row = failed_row(where, found.raw, policy, asked[0], outcome.error)
                await self._archive.keep_unsent(row, found.began)
            return await self._failure(found, "compile", order.focus, outcome.error, spent)
        done, result = outcome.value
        if spent is not None and spent.refused is None:
            result = replace(result, usage=spent.usage, **_model_and_cost(found, spent.usage, spent.cost))
        elif spent is not None and result.done:
            result = replace(result, why=f"{spent.refused}: no model was asked")
        row = self._row(found, order, done)
        if not result.done:
            await self._archive.keep_unsent(row, found.began)
            return result
        saved = await try_await(self._save(found, done, result, row))
        if saved.error is not None:
            await self._archive.keep_unsent(row, found.began)
            return await self._failure(found, "compile", order.focus, saved.error, spent)
        return result

    def _row(self, found: _Session, order: Order, done: Advance) -> Compile | None:
        """The row of a compile; its tip excludes the placeholder prompt, which is not part of the conversation."""
        if done.row is None:
            return None
        tip = found.raw.exact[found.length - 1]
        return replace(done.row, input_payload={**(done.row.input_payload or {}), "raw_tip": tip, "focus": order.focus})

    async def _failure(
        self, found: _Session, kind: str, focus: str, error: Exception | None, spent: SummaryResponse | None = None
    ) -> CompileResult:
        """Report an error, and return the outcome of an operation that changed nothing."""
        error = error or RuntimeError("nothing came of it")
        await self._report(error)
        why, size = f"{error}; {AS_IT_WAS}", found.size(found.current())
        result = CompileResult(session=found.id, kind=kind, done=False, why=why, focus=focus, before=size, after=size)
        if spent is None:
            return result
        return replace(result, usage=spent.usage, **_model_and_cost(found, spent.usage, spent.cost))

    async def _save(self, found: _Session, done: Advance, result: CompileResult, row: Compile | None) -> None:
        cycle = done.cycle
        figures = {"focus": result.focus, "before": result.before, "after": result.after}
        action = Action(
            kind=COMPILE,
            tip=cycle.tip,
            state=json.dumps({"cycle": cycle.to_json(), **figures}),
            created_at=now(),
            summary_id=cycle.summary_id,
        )
        await self._archive.save_action(found.id, action, found.began, after=found.number, row=row)

    async def undo(self, session: str) -> CompileResult:
        """Restore the view before the last compile; see `ContextCompiler.undo_compile`."""
        found = await self._read(session, "none")
        current, before = found.current(), found.before()
        if current is None:
            why = "nothing is compiled, so there is nothing to undo"
            return CompileResult(session=session, kind="undo", done=False, why=why)
        result = CompileResult(
            session=session,
            kind="undo",
            done=True,
            before=found.size(current),
            after=found.size(before),
            summary=summary_of(before) if before is not None else "",
        )
        budget = found.context.limits().budget * found.ratio
        if result.after > budget:
            why = f"that is over the budget of {int(budget):,}, so the next request is cut again, without a model"
            result = replace(result, why=why)
        state = {"cycle": before.to_json() if before is not None else None, "before": result.before}
        action = Action(
            kind=UNDO,
            tip=found.raw.ids[found.length - 1],
            state=json.dumps({**state, "after": result.after}),
            created_at=now(),
            summary_id=(await self._archive.link_compile(current, found.id)).summary_id,
        )
        saved = await try_await(self._archive.save_action(session, action, found.began, after=found.number))
        if saved.error is not None:
            await self._report(saved.error)
            return replace(result, done=False, after=result.before, why=f"{saved.error}; {AS_IT_WAS}")
        self._summaries.forget(current.summary)
        return result

    async def pin(self, session: str, message: int | str) -> Pin:
        """Keep a message in every view; see `ContextCompiler.pin`."""
        found = await self._read(session, "none")
        at, context = found.find(message), found.context
        one, outline = found.raw.readings[at], context.outline
        known = {position_of(pin, found.raw): pin for pin in context.steering.pins}
        if at in known:
            return known[at]
        turn = next(turn.index + 1 for turn in outline.turns if turn.start <= at < turn.stop)
        text = " ".join(item.text for item in one.items if item.mark is None and item.kind is not Kind.SYSTEM)
        pin = Pin(
            tip=found.raw.ids[at],
            name=one.name,
            text=one_line(text, EXCERPT),
            turn=turn,
            role=role(one),
            tokens=one.tokens,
        )
        whole = messages_kept_together(at, outline).union(
            *(messages_kept_together(place, outline) for place in known if place is not None)
        )
        cost = sum(found.raw.readings[index].tokens for index in whole)
        room = context.limits().room // PINS
        if cost > room:
            others = f", with {_count_of(len(known), 'message')} pinned already" if known else ""
            raise SettingsError(
                f"message={one_line(str(message), EXCERPT)!r}: {cost:,} tokens{others}; pinned messages may take"
                f" {room:,} of a budget of {context.policy.budget:,}: unpin another one, pin a shorter one, or give a"
                " larger budget"
            )
        action = Action(kind=PIN, tip=pin.tip, state=pin.to_json(), created_at=now())
        await self._archive.save_action(session, action, found.began, after=found.number)
        return pin

    async def unpin(self, session: str, message: int | str) -> Pin:
        """Unpin a message; see `ContextCompiler.unpin`."""
        found = await self._read(session, "none")
        words = " ".join(str(message).split()).casefold()
        pin = pin_of(found.context.steering, found.raw, words, lambda: found.find(message))
        if pin is None:
            shown = one_line(str(message), EXCERPT)
            raise SettingsError(f"message={shown!r}: it is not pinned; `pins` lists those that are")
        action = Action(kind=UNPIN, tip=pin.tip, state="{}", created_at=now())
        await self._archive.save_action(session, action, found.began, after=found.number)
        return pin

    async def pins(self, session: str) -> tuple[Pin, ...]:
        """The pinned messages of a conversation, the oldest pin first."""
        return steering_of(await self._archive.actions(session))[0].pins

    async def _advance(
        self, found: _Session, kind: str, order: Order, ask: Callable[[SummaryRequest], Awaitable[SummaryResponse]]
    ) -> tuple[Advance, CompileResult]:
        """Advance as ordered; with a focus, everything that is left out is summarized again from the raw history."""
        context, previous = found.context, found.current()
        if order.focus and previous is not None:
            previous = replace(previous, summary="", covered=(), summary_id=None)
        host: Host = _UnsentHost(ask)

        async def work(there: Host) -> Advance:
            return await advance(
                context,
                context.limits(),
                where=context.where,
                ask=there.ask,
                previous=previous,
                overhead=context.request.fixed,
                order=order,
            )

        done = await (off_loop(work, host) if is_long(context.request.messages, None) else work(host))
        return done, self._result(found, kind, done, order.focus)

    def _result(self, found: _Session, kind: str, done: Advance, focus: str) -> CompileResult:
        """Figures of an advance, and the reason why it is not used, if it is not."""
        draft, current = done.selection.draft, found.current()
        kept = [index for index in range(found.length) if draft.here(index) is not None]
        before, after = found.size(current), found.size(done.cycle, done)
        why = ""
        if not 0 < done.cycle.decided <= found.length or not done.selection.out:
            why = "nothing can be left out"
        elif not done.cycle.note and not done.cycle.quotes:
            why = "what would be left out is too short to be worth a summary"
        elif not done.selection.span and not focus:
            why = "nothing is new since the last compile; give a focus to compile everything again"
        elif after >= before and not (focus and current is not None):
            why = f"it would save nothing: {before:,} → {after:,} tokens"
        return CompileResult(
            session=found.id,
            kind=kind,
            done=not why,
            why=f"{why}; {AS_IT_WAS}" if why else found.note,
            focus=focus,
            before=before,
            after=before if why else after,
            kept=round(sum(draft.costs[index] for index in kept) * found.ratio),
            turns=sum(found.raw.readings[index].asks for index in kept),
            left_out=tuple(draft.drops),
            summary=summary_of(done.cycle),
        )

    async def _read(self, session: str, model: Model | str | None) -> _Session:
        """Read the current state of a conversation.

        Raises:
            StoreError: The record has no such conversation, or cannot be read.
        """
        began, actions = Moment(), await self._archive.actions(session)
        messages = _without_open_prompt(await self._archive.history(session))
        if not messages:
            raise StoreError(f"session {session!r}: nothing of it is on the record")
        profile = self._profile((self._archive.owner, session))
        newest = await self._archive.newest_request(session) if profile is None else None
        arguments, writer, note = self._arguments(profile, newest, model)
        run = Run()
        run.steer(steering_of(actions)[0])
        run.ratios.restore(self._ratios.state())
        request = profile.request if profile is not None else _recorded_request(session, newest)
        text = one_line(latest_input(self._state.reader.read(messages)), PROMPT) or "…"
        prompt: ModelMessage = ModelRequest(parts=[UserPromptPart(clip(text, PROMPT))])
        context = read_request(
            replace(self._state, arguments=arguments),
            run,
            replace(request, messages=[*messages, prompt], run_id=None, owner=self._archive.owner),
            _UnsentHost(_refuse),
        )
        steps = Steps.of(actions, await self._archive.cycles(session), context.history.tips())
        number = actions[-1].number if actions else 0
        return _Session(context=context, number=number, steps=steps, writer=writer, note=note, began=began)

    def _arguments(
        self, profile: Profile | None, newest: Record | None, model: Model | str | None
    ) -> tuple[Arguments, Model | str, str]:
        """Arguments (with the last budget if none is set), the writing model, and why no model is known."""
        arguments = copy(self._state.arguments)
        if arguments.budget is None and newest is not None and newest.budget is not None:
            arguments.budget = max(1, int(newest.budget / newest.ratio))
        if model is not None:
            arguments.model = model
        if arguments.model is not None:
            return arguments, arguments.model, ""
        if profile is not None and profile.model is not None:
            return arguments, profile.model, ""
        arguments.model = "none"
        return arguments, "none", NO_MODEL


def _without_open_prompt(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history without an unanswered prompt at its end, because the host merges that with the next prompt."""
    last = messages[-1] if messages else None
    waits = isinstance(last, ModelRequest) and all(
        part.part_kind in ("user-prompt", "system-prompt") for part in last.parts
    )
    return messages[:-1] if waits else messages


def _recorded_request(session: str, newest: Record | None) -> Request:
    """The next request of a conversation, as far as the record shows it."""
    ledger = cast("Mapping[str, Any]", newest.ledger if newest is not None else {})
    overhead = int(ledger.get("tokens", {}).get("instructions and schemas", 0))
    return Request(messages=[], session_id=session, scope=named_scope(session), overhead=overhead)


def _model_and_cost(found: _Session, usage: Mapping[str, int], cost: str | None = None) -> dict[str, Any]:
    """Name of the model that writes a summary, and the cost of its usage."""
    name, provider = model_alias(found.writer), None if isinstance(found.writer, str) else found.writer.system
    known = Decimal(cost) if cost is not None else cost_of(name, usage, provider)
    return {"model": name, "cost": known}


def _checked_focus(text: str) -> str:
    """Strip a focus and check its length.

    Raises:
        SettingsError: The focus is too long.
    """
    text = text.strip()
    if len(text) > MAX_FOCUS:
        raise SettingsError(f"focus: {len(text):,} characters; give at most {MAX_FOCUS:,}")
    return text
