"""Explanation of a failed assertion in at most 15 lines: what left, when and why, and what would have kept it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from context_compiler.compiler.reasons import reason_of
from context_compiler.messages.display import role
from context_compiler.messages.printable import safe_line
from context_compiler.middleware.capability import ContextCompiler
from context_compiler.middleware.remedies import smallest_budget
from context_compiler.middleware.replay import LiveSession
from context_compiler.resilience import attempt
from context_compiler.testing.request import READER, Request, flat, form_of, reading_text, searched_texts, unpaired

if TYPE_CHECKING:
    from context_compiler.testing.conversation import Conversation

LINES = 15
"""Maximum number of lines of an explanation."""

WIDTH = 100
"""Maximum characters of an excerpt."""

RULE_WORDS = 40
"""Maximum words of a text that may be suggested as a rule."""

PINNED = 0.25
"""Fraction of the budget that pinned messages may take."""


def explain(conversation: Conversation, check: str, request: Request, arguments: Sequence[Any]) -> str:
    """Explain why a check with some arguments fails at a request."""
    lines = _EXPLANATIONS[check](conversation, request, *arguments)
    return "\n".join(islice(chain(lines, (f"note: {note}" for note in conversation.notes)), LINES))


def _missing(conversation: Conversation, request: Request, text: str) -> Iterator[str]:
    yield f"{request} does not contain {excerpt(text, text)!r}"
    yield from _fate(conversation, request, text)


def _stale(conversation: Conversation, request: Request, value: str, subject: str) -> Iterator[str]:
    yield f"{request} contains {excerpt(subject, subject)!r} without the newest value {excerpt(value, value)!r}"
    yield f"  the old value is in: {_whereabouts(request, subject)}"
    yield from _fate(conversation, request, value)


def _fate(conversation: Conversation, request: Request, text: str) -> Iterator[str]:
    """The lines on a text that a request lacks."""
    position = max((said for said in conversation.positions(text) if said < request.said), default=None)
    if position is None:
        yield "  said: in no message before this request"
    else:
        reading = READER.one(conversation.raw[position])
        yield f"  said: message {position}, by the {role(reading)}: {excerpt(reading_text(reading), text)!r}"
    earlier = reversed(conversation.every[: request.number - 1])
    last = next((sent for sent in earlier if conversation.contains(sent, text)), None)
    yield f"  last sent: {f'{last}, {_whereabouts(last, text)}' if last else 'never'}"
    if position is not None:
        yield from _departure(conversation, request, position)
        yield from _remedies(conversation, request, position, text)


def _departure(conversation: Conversation, request: Request, position: int) -> Iterator[str]:
    dropped = conversation.drop_of(position, request)
    before = conversation.before(request)
    everything = sum(READER.one(message).tokens for message in conversation.raw[: request.said])
    sizes = f"{request.tokens - request.fixed:,} of {everything:,} tokens of messages were sent"
    if dropped is not None:
        decided, drop = dropped
        reason = reason_of(drop.reason)
        numbered = reason is not None and reason.step.number
        step = f"step {reason.step.number} of the cut order ({reason.step.name}): " if reason and numbered else ""
        budget = f" for a budget of {decided.budget:,}" if decided.budget else ""
        yield f"  left out by: {step}{drop.reason}; decided at {decided}{budget}; {sizes}"
    elif request.status:
        yield f"  left out by: ContextCompiler ({request.status}), which names no reason; {sizes}"
    else:
        yield f"  left out by: the agent's capabilities or history processors; {sizes}"
    old = {reading.name for reading in before.readings} if before else set[str]()
    old |= {READER.one(message).name for message in conversation.raw[: request.said]}
    new = next((reading for reading in request.readings if reading.name not in old), None)
    instead = excerpt(reading_text(new), "") if new else ""
    yield f"  in its place: {instead!r}" if instead else "  in its place: nothing"


def _whereabouts(request: Request, text: str) -> str:
    for position, reading in enumerate(request.readings):
        if form := form_of(reading, text):
            return f"message {position}, {form}"
    return "the instructions or tools"


def _remedies(conversation: Conversation, request: Request, position: int, text: str) -> Iterator[str]:
    """The smallest changes that would have kept a text; for `ContextCompiler` each is tried, except a pin."""
    reading = READER.one(conversation.raw[position])
    if not request.budget:
        window = conversation.raw[position : request.said]
        tokens = sum(READER.one(message).tokens for message in window) + request.fixed
        yield f"  would keep it: a window of {len(window)} messages, {tokens:,} tokens; or the text in the instructions"
        return
    if len(text.split()) <= RULE_WORDS and _keeps(conversation, request, text, request.budget, text):
        yield f"  would keep it: rules=[{excerpt(text, text)!r}]"
    if reading.tokens <= PINNED * request.budget:
        yield f"  would keep it: pin(…, 'm{position}'), {reading.tokens:,} tokens in every request"
    everything = sum(READER.one(message).tokens for message in conversation.raw[: request.said]) + request.fixed

    async def keeps(budget: int) -> bool:
        return _keeps(conversation, request, text, budget)

    with ThreadPoolExecutor(1) as pool:  # the caller may be in an event loop
        budget = pool.submit(asyncio.run, smallest_budget(keeps, request.budget, everything)).result()
    if budget is not None:
        yield f"  would keep it: budget={budget:,}"


def _keeps(conversation: Conversation, request: Request, text: str, budget: int, *rules: str) -> bool:
    """True if the view of the same history would contain a text with another budget or further rules."""
    changed = attempt(lambda: _view_texts(conversation, request, budget, rules)).value or []
    return any(flat(text) in flat(sent) for sent in changed)


def _view_texts(conversation: Conversation, request: Request, budget: int, rules: Sequence[str]) -> list[str]:
    """Texts of the view of a request's history under a changed compiler, which keeps no record and asks no model."""
    changed = {"budget": max(1, budget - request.fixed), "model": "none", "store": None}
    current: ContextCompiler = conversation.compiler or ContextCompiler(system=None)
    compiler = replace(current, **changed, rules=[*current.rules, *rules], on_view=None, on_error=None)

    async def view() -> list[str]:
        sent = await LiveSession([compiler]).request(conversation.raw[: request.said])
        return [text for message in sent for text in searched_texts(message)]

    with ThreadPoolExecutor(1) as pool:  # the caller may be in an event loop
        return pool.submit(asyncio.run, view()).result()


def _sent(conversation: Conversation, request: Request, text: str) -> Iterator[str]:
    yield f"{request} contains {masked(text)!r}, which no request may contain"
    yield f"  in: {_whereabouts(request, text)}"
    if (said := next(conversation.positions(text), None)) is not None:
        yield f"  said: message {said}, by the {role(READER.one(conversation.raw[said]))}"
    count = len(list(conversation.containing(text)))
    yield f"  sent: in {count} of {len(conversation.requests)} requests"
    yield "  would keep it out: remove it from the history before the request, in a history processor"


def _over(conversation: Conversation, request: Request, budget: int) -> Iterator[str]:
    more = request.tokens - budget
    yield f"{request} has {request.tokens:,} tokens, {more:,} more than the budget of {budget:,}"
    if request.status:
        yield f"  view: {request.status}, for a budget of {request.budget or 0:,}"
    if request.fixed:
        yield f"  instructions and tools: {request.fixed:,} tokens"
    largest = sorted(enumerate(request.readings), key=lambda pair: -pair[1].tokens)
    for position, reading in islice(largest, 3):
        begins = excerpt(reading_text(reading), "")
        yield f"  message {position}, {role(reading)}: {reading.tokens:,} tokens: {begins!r}"
    sizes = [other.tokens for other in conversation.requests]
    over = sum(size > budget for size in sizes)
    yield f"  over it: {over} of {len(sizes)} requests, the largest with {max(sizes):,} tokens"


def _broken(conversation: Conversation, request: Request) -> Iterator[str]:
    faults = list(unpaired(request.readings))
    yield f"{request} breaks {len(faults)} of its tool calls"
    yield from (f"  {fault}" for fault in faults[:5])
    whole = not any(unpaired([READER.one(message) for message in conversation.raw[: request.said]]))
    yield f"  in everything said so far, {'each call has its result' if whole else 'a pair is broken, too'}"


def _rewritten(conversation: Conversation, request: Request, allowed: int) -> Iterator[str]:
    numbers = [rewrite.number for rewrite in conversation.rewrites()]
    yield f"{len(numbers)} requests do not begin with the request before; {allowed} may"
    yield f"  they are: {', '.join(map(str, numbers[:20]))}{' …' if len(numbers) > 20 else ''}"
    before = conversation.before(request)
    if before is not None and before.beside != request.beside:
        yield f"  {request} has other instructions or tools than the one before"
    elif before is not None:
        pairs = zip(request.readings, before.readings, strict=False)
        changed = (position for position, (new, old) in enumerate(pairs) if new.name != old.name)
        same = next(changed, len(request.readings))
        yield f"  {request} equals the one before up to message {same} of {len(before.readings)}"
        if same < len(request.readings):
            yield f"  then it has: {excerpt(reading_text(request.readings[same]), '')!r}"
        if same < len(before.readings):
            yield f"  instead of: {excerpt(reading_text(before.readings[same]), '')!r}"


def _costly(conversation: Conversation, request: Request, share: float) -> Iterator[str]:
    rewrites = len(conversation.rewrites())
    yield f"the requests cost {conversation.cost_share():.2f} of sending everything; {share:.2f} is allowed"
    yield f"  {rewrites} of {len(conversation.every)} requests lose the prompt cache"
    tokens = sum(other.tokens for other in conversation.every)
    yield f"  {tokens:,} tokens were sent in all, {request.tokens:,} of them in {request}"


_EXPLANATIONS = {
    "in_context": _missing,
    "newest": _stale,
    "not_in_context": _sent,
    "budget": _over,
    "pairs": _broken,
    "compiles": _rewritten,
    "cost": _costly,
}


def excerpt(text: str, around: str) -> str:
    """A short piece of a text on one line, with `around` in it if the text contains that."""
    line = " ".join(text.split())
    position = max(line.casefold().find(flat(around)), 0) if around else 0
    start = max(0, position - WIDTH // 3) if position + len(around) > WIDTH else 0
    piece = safe_line(line[start : start + WIDTH])
    return f"{'…' if start else ''}{piece}{'…' if start + WIDTH < len(line) else ''}"


def masked(text: str) -> str:
    """A text that a failure may show although no request may: its first and last two characters."""
    return f"{text[:2]}…{text[-2:]}" if len(text) > 8 else "…"
