"""Manual control of views: compile now, preview and undo a compile, and pin messages, regardless of thresholds.

Each operation is recorded as an action of its conversation, which the next run finds, in this process or another. An
operation that fails leaves the conversation as it was, and reports the error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pydantic_ai.models import Model

from context_compiler.compiler.advance import Advance, Ask, advance
from context_compiler.compiler.compile_row import failed_row
from context_compiler.compiler.policy import LARGE
from context_compiler.compiler.steering import (
    Order,
    Pin,
    compile_action,
    messages_kept_together,
    pin_of,
    position_of,
    steering_of,
)
from context_compiler.compiler.summary import SummaryRequest, SummaryResponse, model_alias
from context_compiler.compiler.view import summary_of
from context_compiler.errors import CompileError, SettingsError
from context_compiler.messages.display import role
from context_compiler.messages.fences import one_line
from context_compiler.messages.items import Kind
from context_compiler.messages.rules import Rule, rule_name
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.next_request import (
    EXCERPT,
    NOT_ASKED,
    NextRequest,
    Profile,
    UnsentHost,
    read_next_request,
)
from context_compiler.middleware.off_loop import off_loop
from context_compiler.middleware.request import Conversation, Host, is_long
from context_compiler.middleware.single_flight import SESSIONS, Summaries
from context_compiler.middleware.spending import SummaryCall, provider_of
from context_compiler.middleware.state import CompilerState
from context_compiler.record.values import DISMISS, PIN, UNDO, UNPIN, Action, Compile, Drop, now
from context_compiler.resilience import Report, try_await
from context_compiler.tokens import Ratios
from context_compiler.tokens.prices import cost_of, dollars

MAX_FOCUS = 2_000
"""Maximum length of a focus in characters."""

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
        profile: Callable[[Conversation], Profile | None],
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
            upcoming = await self._read(session, model)
            result = await self._compile(upcoming, upcoming.order(focus, start))
        return replace(result, seconds=time.perf_counter() - began)

    async def preview(
        self, session: str, focus: str, *, start: int | str | None, model: Model | str | None
    ) -> CompileResult:
        """Outcome of a compile as far as it is known in advance; no model is called and nothing is recorded."""
        focus = _checked_focus(focus)
        upcoming = await self._read(session, model)
        wanted: list[SummaryRequest] = []

        async def refuse(request: SummaryRequest) -> SummaryResponse:
            wanted.append(request)
            return NOT_ASKED

        outcome = await try_await(self._advance(upcoming, "preview", upcoming.order(focus, start), refuse))
        if outcome.value is None:
            return await self._failure(upcoming, "preview", focus, outcome.error)
        done, result = outcome.value
        if not wanted:
            return result
        order, count = wanted[0], self._state.counter.text
        refused = await self._summaries.refusal(self._summary_call(upcoming, order))
        if refused is not None:
            return replace(result, why=f"{refused}: no model would be asked" if result.done else result.why)
        tokens = sum(map(count, order.prompts)) + order.cap * (len(order.prompts) - 1)
        usage = {"input_tokens": round(tokens * upcoming.ratio), "output_tokens": order.cap * len(order.prompts)}
        most = upcoming.calibrated(upcoming.context.request.fixed + done.selection.draft.total)
        result = replace(result, after=most, usage=usage, **_model_and_cost(upcoming, usage), summary="")
        return replace(result, done=most < result.before or bool(focus), why="")

    async def _compile(self, upcoming: NextRequest, order: Order) -> CompileResult:
        answers, asked = list[SummaryResponse](), list[SummaryRequest]()

        async def ask(wanted: SummaryRequest) -> SummaryResponse:
            asked.append(wanted)
            answer = await self._summaries.answer(self._summary_call(upcoming, wanted))
            answers.append(answer)
            if answer.error is not None:
                raise answer.error
            return answer

        outcome = await try_await(self._advance(upcoming, "compile", order, ask))
        spent = answers[0] if answers else None
        if outcome.value is None:
            if spent is not None and isinstance(outcome.error, CompileError):
                where, policy = upcoming.context.where, upcoming.context.policy
                row = failed_row(where, upcoming.raw, policy, asked[0], outcome.error)
                await self._archive.keep_unsent(row, upcoming.began)
            return await self._failure(upcoming, "compile", order.focus, outcome.error, spent)
        done, result = outcome.value
        if spent is not None and spent.refused is None:
            result = replace(result, usage=spent.usage, **_model_and_cost(upcoming, spent.usage, spent.cost))
        elif spent is not None and result.done:
            result = replace(result, why=f"{spent.refused}: no model was asked")
        row = self._row(upcoming, order, done)
        if not result.done:
            await self._archive.keep_unsent(row, upcoming.began)
            return result
        saved = await try_await(self._save(upcoming, done, result, row))
        if saved.error is not None:
            await self._archive.keep_unsent(row, upcoming.began)
            return await self._failure(upcoming, "compile", order.focus, saved.error, spent)
        return result

    def _summary_call(self, upcoming: NextRequest, wanted: SummaryRequest) -> SummaryCall:
        return SummaryCall(
            key=wanted.key,
            prompts=wanted.prompts,
            cap=wanted.cap,
            writer=upcoming.writer,
            archive=self._archive,
            session=upcoming.id,
        )

    def _row(self, upcoming: NextRequest, order: Order, done: Advance) -> Compile | None:
        """The row of a compile; its tip excludes the placeholder prompt, which is not part of the conversation."""
        if done.row is None:
            return None
        tip = upcoming.raw.exact[upcoming.length - 1]
        return replace(done.row, input_payload={**(done.row.input_payload or {}), "raw_tip": tip, "focus": order.focus})

    async def _failure(
        self,
        upcoming: NextRequest,
        kind: str,
        focus: str,
        error: Exception | None,
        spent: SummaryResponse | None = None,
    ) -> CompileResult:
        """Report an error, and return the outcome of an operation that changed nothing."""
        error = error or RuntimeError("nothing came of it")
        await self._report(error)
        why, size = f"{error}; {AS_IT_WAS}", upcoming.size(upcoming.current())
        result = CompileResult(
            session=upcoming.id, kind=kind, done=False, why=why, focus=focus, before=size, after=size
        )
        if spent is None:
            return result
        return replace(result, usage=spent.usage, **_model_and_cost(upcoming, spent.usage, spent.cost))

    async def _save(self, upcoming: NextRequest, done: Advance, result: CompileResult, row: Compile | None) -> None:
        action = compile_action(done.cycle, focus=result.focus, before=result.before, after=result.after)
        await self._archive.save_action(upcoming.id, action, upcoming.began, after=upcoming.number, row=row)

    async def undo(self, session: str) -> CompileResult:
        """Restore the view before the last compile; see `ContextCompiler.undo_compile`."""
        upcoming = await self._read(session, "none")
        current, before = upcoming.current(), upcoming.before()
        if current is None:
            why = "nothing is compiled, so there is nothing to undo"
            return CompileResult(session=session, kind="undo", done=False, why=why)
        result = CompileResult(
            session=session,
            kind="undo",
            done=True,
            before=upcoming.size(current),
            after=upcoming.size(before),
            summary=summary_of(before) if before is not None else "",
        )
        budget = upcoming.context.limits().whole
        if result.after > budget:
            why = f"that is over the budget of {budget:,}, so the next request is cut again, without a model"
            result = replace(result, why=why)
        state = {"cycle": before.to_json() if before is not None else None, "before": result.before}
        action = Action(
            kind=UNDO,
            tip=upcoming.raw.ids[upcoming.length - 1],
            state=json.dumps({**state, "after": result.after}),
            created_at=now(),
            summary_id=(await self._archive.link_compile(current, upcoming.id)).summary_id,
        )
        saved = await try_await(self._archive.save_action(session, action, upcoming.began, after=upcoming.number))
        if saved.error is not None:
            await self._report(saved.error)
            return replace(result, done=False, after=result.before, why=f"{saved.error}; {AS_IT_WAS}")
        self._summaries.forget(current.summary)
        return result

    async def pin(self, session: str, message: int | str) -> Pin:
        """Keep a message in every view; see `ContextCompiler.pin`."""
        upcoming = await self._read(session, "none")
        position, context = upcoming.find(message), upcoming.context
        reading, outline = upcoming.raw.readings[position], context.outline
        pinned = {position_of(pin, upcoming.raw): pin for pin in context.steering.pins}
        if position in pinned:
            return pinned[position]
        turn = next(turn.index + 1 for turn in outline.turns if turn.start <= position < turn.stop)
        text = " ".join(item.text for item in reading.items if item.mark is None and item.kind is not Kind.SYSTEM)
        pin = Pin(
            tip=upcoming.raw.ids[position],
            name=reading.name,
            text=one_line(text, EXCERPT),
            turn=turn,
            role=role(reading),
            tokens=reading.tokens,
        )
        whole = messages_kept_together(position, outline).union(
            *(messages_kept_together(other, outline) for other in pinned if other is not None)
        )
        cost = sum(upcoming.raw.readings[index].tokens for index in whole)
        room = context.limits().room // LARGE
        if cost > room:
            others = f", with {_count_of(len(pinned), 'message')} pinned already" if pinned else ""
            raise SettingsError(
                f"message={one_line(str(message), EXCERPT)!r}: {cost:,} tokens{others}; pinned messages may take"
                f" {room:,} of a budget of {context.policy.budget:,}: unpin another one, pin a shorter one, or give a"
                " larger budget"
            )
        action = Action(kind=PIN, tip=pin.tip, state=pin.to_json(), created_at=now())
        await self._archive.save_action(session, action, upcoming.began, after=upcoming.number)
        return pin

    async def unpin(self, session: str, message: int | str) -> Pin:
        """Unpin a message; see `ContextCompiler.unpin`."""
        upcoming = await self._read(session, "none")
        words = " ".join(str(message).split()).casefold()
        pin = pin_of(upcoming.context.steering, upcoming.raw, words, lambda: upcoming.find(message))
        if pin is None:
            shown = one_line(str(message), EXCERPT)
            raise SettingsError(f"message={shown!r}: it is not pinned; `pins` lists those that are")
        action = Action(kind=UNPIN, tip=pin.tip, state="{}", created_at=now())
        await self._archive.save_action(session, action, upcoming.began, after=upcoming.number)
        return pin

    async def pins(self, session: str) -> tuple[Pin, ...]:
        """The pinned messages of a conversation, the oldest pin first."""
        return steering_of(await self._archive.actions(session))[0].pins

    async def rules(self, session: str) -> tuple[Rule, ...]:
        """The rules that are in force in a conversation; see `ContextCompiler.standing_rules`."""
        return (await self._read(session, "none")).context.rules

    async def dismiss(self, session: str, words: str) -> Rule:
        """Dismiss a rule of the user; see `ContextCompiler.dismiss_rule`."""
        upcoming = await self._read(session, "none")
        wanted = " ".join(words.split()).casefold()
        users = [rule for rule in upcoming.context.rules if rule.position >= 0]
        matches = [rule for rule in users if wanted and wanted in rule.text.casefold()]
        matches += [rule for rule in users if rule.name == rule_name(words)]
        if not matches:
            shown = one_line(words, EXCERPT)
            raise SettingsError(f"rule={shown!r}: no rule of the user contains that; `rules` lists them")
        rule = matches[-1]
        state = json.dumps({"name": rule.name, "text": rule.text})
        action = Action(kind=DISMISS, tip=upcoming.raw.ids[rule.position], state=state, created_at=now())
        await self._archive.save_action(session, action, upcoming.began, after=upcoming.number)
        return rule

    async def _advance(self, upcoming: NextRequest, kind: str, order: Order, ask: Ask) -> tuple[Advance, CompileResult]:
        """Advance as ordered; with a focus, everything that is left out is summarized again from the raw history."""
        context, previous = upcoming.context, upcoming.current()
        if order.focus and previous is not None:
            previous = replace(previous, summary="", covered=(), summary_id=None)
        host: Host = UnsentHost(ask)

        async def work(there: Host) -> Advance:
            return await advance(
                context, context.limits(), where=context.where, ask=there.ask, previous=previous, order=order
            )

        done = await (off_loop(work, host) if is_long(context.request.messages) else work(host))
        return done, self._result(upcoming, kind, done, order.focus)

    def _result(self, upcoming: NextRequest, kind: str, done: Advance, focus: str) -> CompileResult:
        """Figures of an advance, and the reason why it is not used, if it is not."""
        draft, current = done.selection.draft, upcoming.current()
        kept = [index for index in range(upcoming.length) if draft.here(index) is not None]
        before, after = upcoming.size(current), upcoming.size(done.cycle, done)
        why = ""
        if not 0 < done.cycle.decided <= upcoming.length or not done.selection.out:
            why = "nothing can be left out"
        elif not done.cycle.note and not done.cycle.quotes:
            why = "what would be left out is too short to be worth a summary"
        elif not done.selection.span and not focus:
            why = "nothing is new since the last compile; give a focus to compile everything again"
        elif after >= before and not (focus and current is not None):
            why = f"it would save nothing: {before:,} → {after:,} tokens"
        return CompileResult(
            session=upcoming.id,
            kind=kind,
            done=not why,
            why=f"{why}; {AS_IT_WAS}" if why else upcoming.note,
            focus=focus,
            before=before,
            after=before if why else after,
            kept=round(sum(draft.costs[index] for index in kept) * upcoming.ratio),
            turns=sum(upcoming.raw.readings[index].has_prompt for index in kept),
            left_out=tuple(draft.drops),
            summary=summary_of(done.cycle),
        )

    async def _read(self, session: str, model: Model | str | None) -> NextRequest:
        profile = self._profile((self._archive.owner, session))
        return await read_next_request(self._state, self._archive, self._ratios, session, profile=profile, model=model)


def _model_and_cost(upcoming: NextRequest, usage: Mapping[str, int], cost: str | None = None) -> dict[str, Any]:
    name, provider = model_alias(upcoming.writer), provider_of(upcoming.writer)
    price = Decimal(cost) if cost is not None else cost_of(name, usage, provider)
    return {"model": name, "cost": price}


def _checked_focus(text: str) -> str:
    """Strip a focus; SettingsError if it is too long."""
    text = text.strip()
    if len(text) > MAX_FOCUS:
        raise SettingsError(f"focus: {len(text):,} characters; give at most {MAX_FOCUS:,}")
    return text
