"""Assemble a view, the messages that one request sends instead of its whole history, and report their origins.

Order of a view: system text and host parts of messages that are left out, one note with the summary, one fenced part
with all quotes, then the kept messages, the current turn last.

Users and assistant take turns, because the chat templates of some models reject two messages of one side in a row. So
note and quotes are texts of the first kept prompt's message, and a recall block is one of its own prompt's. The current
prompt never contains them; if no earlier prompt is kept, a line of the assistant stands in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic_ai.messages import (
    CachePoint,
    CompactionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    UserContent,
    UserPromptPart,
)

from context_compiler.compiler.cut_order import drop_of
from context_compiler.compiler.cycle import Blocks, Cycle
from context_compiler.compiler.policy import Plan
from context_compiler.compiler.reasons import (
    AS_STUB,
    BROKEN,
    CARRIED_FOR_HOST,
    CARRIED_PIN,
    CURRENT_TURN,
    DROPPED_EARLIER,
    KEPT_TURN,
    OTHER_SHAPE,
    PIN_WAITS,
    PINNED,
    SHORTENED_EARLIER,
    WRITTEN,
    kept_form,
)
from context_compiler.compiler.rules import rules_text
from context_compiler.errors import ContextCompilerError
from context_compiler.messages.display import (
    CARRIED,
    SUMMARY,
    Bar,
    ShownMessage,
    added_texts,
    bars,
    role,
    show_parts,
    time_of,
)
from context_compiler.messages.fences import BETWEEN, ELLIPSIS, LEFT_OUT, SUMMARY_PREFIX
from context_compiler.messages.history import UNDATED, History, Reader, reader_of
from context_compiler.messages.html import document, fragment
from context_compiler.messages.items import MARK, Kind, mark_of, user_content
from context_compiler.messages.shapes import WHOLE, Shape, apply_shape, price
from context_compiler.messages.spans import spans
from context_compiler.messages.turns import pair
from context_compiler.recall.question import pending_question
from context_compiler.recall.unknown import absent_terms
from context_compiler.record.values import Drop, Record
from context_compiler.tokens import TokenCounter, as_counter

Inserted = Mapping[int, tuple[str, ...]]
"""Our texts directly before prompts, by the positions of their messages."""

NOTHING: Inserted = {}


Placed = tuple[int, ModelMessage]
"""A message of a view with its position in the raw history."""

OURS = -2
"""Position of a message that was written for the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Verbatim text in a view from a message that is left out."""

    what: str
    """Origin, such as `turn 12`."""
    why: str
    """Reason, such as "a rule" or "recalled, score 1.23"; the block of a live agent has no score."""
    text: str


def block_quotes(blocks: Blocks) -> list[Quote]:
    """Quotes of recall blocks, as a view lists them."""
    why = "recalled for its prompt"
    return [Quote(what=f"before turn {block.turn + 1}", why=why, text=block.text) for block in blocks.all]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The exact messages to send, and their provenance."""

    messages: list[ModelMessage]
    tokens: int
    """Exact tokens of the messages alone, by o200k; compare `tokens_sent`, not this, with `budget`."""
    budget: int
    """Budget of the request, in the model's tokens; 0 for none."""
    status: str
    """raw, compiled, cycle, fallback or floor_over_budget."""
    summary: str = ""
    """Replacement of the left-out turns: the summary, or the passages quoted from them."""
    ledger: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Token breakdown by section, with drops and their reasons."""
    drops: tuple[Drop, ...] = ()
    kept: tuple[tuple[int, str], ...] = ()
    """Messages of the view, as `(raw position, reason)`."""
    quoted: tuple[Quote, ...] = ()
    """Quotes from left-out messages, with reasons; empty in a view that only extends an earlier one."""
    unsaid: tuple[str, ...] = ()
    """The same as `absent`, in a view that leaves messages out."""
    error: str | None = None
    record: Record | None = None

    @property
    def absent(self) -> tuple[str, ...]:
        """Ids, paths, long numbers, names and dates of the prompt that nothing said before it contains, as written.

        They are not recorded.
        """
        if self.status not in ("raw", "mended"):
            return self.unsaid
        history = reader_of(as_counter(None)).read(self.messages)
        question = pending_question(history, as_counter(None))
        return absent_terms(history, question) if question is not None else ()

    @property
    def tokens_sent(self) -> int:
        """Tokens of the whole request as its model counts them; `views list` shows the same number."""
        return self.tokens if self.record is None else self.record.tokens_sent

    def __repr__(self) -> str:
        of = f" of {self.budget:,}" if self.budget else ""
        what = f"{self.tokens_sent:,}{of} tokens, {len(self.messages)} messages, {self.status}"
        return f"View({what})" if self.error is None else f"View({what}, error={self.error!r})"

    def _repr_html_(self) -> str:
        """Render the view for a notebook: budget bar and messages, colored by the reason why they are there."""
        return fragment(*self._display())

    def to_html(self, path: str | Path) -> Path:
        """Write the view to a self-contained HTML file and return its path."""
        file = Path(path)
        file.write_text(document(*self._display()), encoding="utf-8")
        return file

    def _display(self) -> tuple[str, list[tuple[str, str]], list[ShownMessage], list[Bar]]:
        sent = reader_of(as_counter(None)).read(self.messages)
        shown = [show_message(sent, origin) for origin in message_origins(self, None, sent)]
        facts = [("status", self.status), *([("budget", f"{self.budget:,}")] if self.budget else [])]
        if self.error is not None:
            facts.append(("error", self.error))
        title = f"{self.tokens_sent:,} tokens in {len(self.messages)} messages"
        return title, facts, shown, bars(self.ledger.get("tokens", {}), self.budget)


def note_text(text: str, preface: str) -> str:
    """Summary part as sent: prefix, preface and text; empty for an empty text."""
    return f"{SUMMARY_PREFIX}\n{preface.strip()}\n\n{text.strip()}" if text.strip() else ""


def head(
    cycle: Cycle, *, stamp: datetime, mark: Mapping[str, Any], cache_point: bool = False
) -> tuple[ModelRequest, ...]:
    """Requests that contain the note, the rules and the quotes of a cycle; a note that is no user text has its own.

    With `cache_point`, a cache breakpoint ends the texts on the user channel.
    """
    note, rules = cycle.note if cycle.channel == "user" else "", rules_text(cycle.rules) if cycle.rules else ""
    texts = [text for text in (note, rules, cycle.quotes) if text]
    end = [CachePoint()] if cache_point else []
    quoted = (ModelRequest(parts=[_user(texts, stamp, mark, *end)]),) if texts else ()
    if cycle.note and cycle.channel != "user":
        return ModelRequest(parts=[_note(cycle.note, cycle.channel, stamp, mark)]), *quoted
    return quoted


def _user(texts: Sequence[str], stamp: datetime, mark: Mapping[str, Any], *end: CachePoint) -> UserPromptPart:
    return UserPromptPart(content=[*_pieces(texts, mark), *end], timestamp=stamp)


def _pieces(texts: Iterable[str], mark: Mapping[str, Any]) -> list[TextContent]:
    return [TextContent(content=text, metadata={MARK: dict(mark)}) for text in texts]


def _note(text: str, channel: str, stamp: datetime, mark: Mapping[str, Any]) -> Any:
    if channel == "system":
        return SystemPromptPart(content=text, timestamp=stamp, metadata={MARK: dict(mark)})
    return CompactionPart(content=text, metadata={MARK: dict(mark)})


def with_texts(message: ModelRequest, *texts: str) -> ModelRequest:
    """Copy a request with our texts directly before its prompt, as parts of the same user message."""
    return _with_pieces(message, _pieces(texts, {"v": 1}))


def _with_pieces(message: ModelRequest, pieces: Sequence[UserContent]) -> ModelRequest:
    """Copy a request with pieces of content before its prompt, or at its end if it has none."""
    parts = list(message.parts)
    for index, part in enumerate(parts):
        if isinstance(part, UserPromptPart):
            parts[index] = replace(part, content=[*pieces, *_content(part)])
            return replace(message, parts=parts)
    return replace(message, parts=[*parts, UserPromptPart(content=list(pieces), timestamp=stamp_of(message))])


def _content(part: UserPromptPart) -> Sequence[UserContent]:
    return [part.content] if isinstance(part.content, str) else part.content


def with_opening_text(messages: Sequence[ModelMessage], text: str, mark: Mapping[str, Any]) -> list[ModelMessage]:
    """Copy messages with our text at their beginning: in the first message if that has a prompt, else before it."""
    first = messages[0] if messages else None
    if isinstance(first, ModelRequest) and any(part.part_kind == "user-prompt" for part in first.parts):
        return [_with_pieces(first, _pieces([text], mark)), *messages[1:]]
    return [marked_request([text], mark), *messages]


def marked_request(texts: Sequence[str], mark: Mapping[str, Any]) -> ModelRequest:
    """Request that contains only our texts, with a mark."""
    return ModelRequest(parts=[_user(texts, UNDATED, mark)])


def find_mark(message: ModelMessage) -> dict[str, Any] | None:
    """Our mark on any part of a message, into which the host may have merged it; None if there is none."""
    for part in message.parts:
        for marked in (part, *user_content(getattr(part, "content", None))):
            mark = mark_of(marked)
            if mark is not None:
                return mark
    return None


def begins_with_assistant(messages: list[ModelMessage]) -> bool:
    """True if the messages would begin with the assistant, which providers reject.

    A `tool-availability-delta` part counts as such, because some hosts render loaded tools as an assistant message.
    """
    for message in messages:
        kinds = {part.part_kind for part in message.parts}
        if isinstance(message, ModelResponse) or "tool-availability-delta" in kinds:
            return True
        if kinds & {"user-prompt", "compaction"}:
            return False
    return False


def stamp_of(message: ModelMessage) -> datetime:
    """Timestamp of a message, which text that we put in its place gets too; a fixed day if it has none."""
    times = (getattr(part, "timestamp", None) for part in message.parts)
    stamp = getattr(message, "timestamp", None) or next((time for time in times if time is not None), None)
    return stamp or UNDATED


def assemble(history: History, cycle: Cycle, base: Mapping[int, Shape], reader: Reader) -> list[ModelMessage]:
    """Build the messages of a view; those that are kept whole are the same objects as in the history.

    Args:
        history: The raw history.
        cycle: The current cycle.
        base: Shapes of broken messages.
        reader: Reads messages and counts tokens.
    """
    first, start = opening(history, cycle, base, reader)
    return [*first, *messages_since(history, start, base, reader)]


def opening(
    history: History,
    cycle: Cycle,
    base: Mapping[int, Shape],
    reader: Reader,
    inserted: Inserted = NOTHING,
    *,
    cache_point: bool = False,
) -> tuple[list[ModelMessage], int]:
    """Build the part of a view that a cycle fixed: host parts, note, rules, quotes, and kept messages.

    Returns:
        The messages, and the raw position at which the rest begins: after a prompt that contains note and quotes.
    """
    before: list[Placed] = []
    kept: list[Placed] = []
    led = 0
    prompt = max((index for index, _ in cycle.kept if history.readings[index].has_prompt), default=cycle.decided)
    for index, shape in cycle.kept:
        message = apply_shape(history.messages[index], history.readings[index], shape, reader.counter)
        if isinstance(message, ModelRequest) and index < prompt:
            message = replace(message, instructions=None)
        if isinstance(message, ModelRequest) and index in inserted and not shape.bare:
            message = with_texts(message, *inserted[index])
        if message is not None:
            (before if shape.bare else kept).append((index, message))
        led = len(kept) if index < cycle.lead else led
    stop = cycle.decided
    later = [*islice(_messages_at(history, range(stop, len(history)), base, reader, inserted), 1)]
    stamp = stamp_of(history.messages[stop - 1]) if stop else UNDATED
    mark = {"v": 1, "tip": cycle.tip}
    notes = head(cycle, stamp=stamp, mark=mark, cache_point=cache_point)
    line = head(replace(cycle, note="", rules=(), quotes=LEFT_OUT), stamp=stamp, mark=mark, cache_point=cache_point)
    if any(isinstance(message, ModelResponse) for _, message in before):
        before = [*((OURS, text) for text in line), *before]
    elif not notes and _begins_with_response([*map(itemgetter(1), kept), *map(itemgetter(1), later)]):
        notes = line
    placed = [*before, *kept[:led], *((OURS, text) for text in notes), *kept[led:]]
    messages, start = _in_turns(placed, later, _newest_prompt(cycle, history))
    return messages, start or stop


def _newest_prompt(cycle: Cycle, history: History) -> int:
    """Position of the prompt that was the current one when a cycle began; of the newest one if that is unknown."""
    if cycle.at is not None:
        return cycle.at
    asked = (position for position in range(len(history) - 1, -1, -1) if history.readings[position].has_prompt)
    return next(asked, len(history))


def _in_turns(placed: Sequence[Placed], later: Sequence[Placed], newest: int) -> tuple[list[ModelMessage], int]:
    """Let the sides take turns where messages are left out: join our texts with prompts, or put a line in between.

    Args:
        placed: Messages in order.
        later: The message that follows them, if there is one.
        newest: Position from which on prompts are not joined with our texts.

    Returns:
        The messages, and the position of the first one that they do not contain; 0 if there is no later one.
    """
    messages: list[ModelMessage] = []
    before, side = OURS, ""
    for index, message in [*placed, *later]:
        gap = index != before + 1
        if gap and _begins_with_response(messages[-1:]) and _begins_with_response([message]):
            messages.append(ModelRequest(parts=[_user([BETWEEN], stamp_of(message), {"v": 1})]))
        elif gap and side == "user" == _side(message) and not _calls(messages[-1:]):
            joins = OURS < index < newest or _calls(messages[-2:-1])  # nothing may part a call and its result
            texts = messages[-1].parts[0] if before == OURS and joins else None
            if isinstance(message, ModelRequest) and isinstance(texts, UserPromptPart):
                message = _with_pieces(message, _content(texts))
                messages.pop()
            else:
                stamp = stamp_of(message)
                messages.append(ModelResponse(parts=[TextPart(ELLIPSIS)], timestamp=stamp, metadata={MARK: {"v": 1}}))
        messages.append(message)
        before, side = index, _side(message) or side
    if not later:
        return messages, 0
    position, following = later[0]
    return (messages[:-1], position) if messages[-1] is following else (messages, position + 1)


def join_notes(messages: Sequence[ModelMessage], reader: Reader) -> list[ModelMessage]:
    """Join requests of ours with the prompts that follow them, except the newest prompt; a line precedes that."""
    readings = list(map(reader.one, messages))
    newest = max((index for index, reading in enumerate(readings) if reading.has_prompt), default=len(messages))
    ours = [bool(reading.items) and all(item.mark is not None for item in reading.items) for reading in readings]
    placed = [(OURS if ours[index] else index, message) for index, message in enumerate(messages)]
    return _in_turns(placed, (), newest)[0]


def _side(message: ModelMessage) -> str:
    """The side that a message takes the turn of: user, assistant, or none for tool exchanges and system text."""
    kinds = {part.part_kind for part in message.parts}
    if isinstance(message, ModelResponse):
        return "" if _calls([message]) else "assistant"
    return "user" if kinds & {"user-prompt", "compaction"} else ""


def _calls(messages: Sequence[ModelMessage]) -> bool:
    """True if one of the messages is a response with tool calls."""
    return any(isinstance(part, ToolCallPart) for message in messages for part in message.parts)


def _begins_with_response(messages: Sequence[ModelMessage]) -> bool:
    return bool(messages) and isinstance(messages[0], ModelResponse)


def messages_since(
    history: History, start: int, base: Mapping[int, Shape], reader: Reader, inserted: Inserted = NOTHING
) -> list[ModelMessage]:
    """Build the part of a view from a position on: whole messages without broken parts, and our texts before them."""
    if not inserted and not any(index >= start for index in base):
        return list(history.messages[start:])
    return _in_turns([*_messages_at(history, range(start, len(history)), base, reader, inserted)], (), start)[0]


def _messages_at(
    history: History, positions: Iterable[int], base: Mapping[int, Shape], reader: Reader, inserted: Inserted
) -> Iterator[Placed]:
    for index in positions:
        shape = base.get(index, WHOLE)
        message = apply_shape(history.messages[index], history.readings[index], shape, reader.counter)
        if isinstance(message, ModelRequest) and index in inserted:
            message = with_texts(message, *inserted[index])
        if message is not None:
            yield index, message


def check_view(sent: History, raw: History) -> None:
    """Check that a view may be sent: calls are paired with answers, and the active request is last.

    Raises:
        ContextCompilerError: The view must not be sent.
    """
    if not sent.readings or sent.readings[-1].request != raw.readings[-1].request:
        raise ContextCompilerError("the view does not end with the active request")
    last, asked = sent.readings[-1], raw.readings[-1]
    if (asked.has_user_part and not last.has_user_part) or not set(last.answers) <= set(asked.answers):
        raise ContextCompilerError("the view ends with a request other than the active one")
    if pair(sent).broken:
        raise ContextCompilerError("the view has a call without its answer, or an answer without its call")


def without_folded_instructions(messages: Sequence[ModelMessage], reader: Reader) -> list[ModelMessage]:
    """Copy messages without the instructions of requests that others follow.

    The host merges such requests, and would send instructions twice, or those of an agent whose run failed. A request
    without a prompt or a result, such as one of system text, belongs to the one before it.
    """
    kept, told = list(messages), False
    for index in range(len(kept) - 1, -1, -1):
        message = kept[index]
        if not isinstance(message, ModelRequest):
            told = False
            continue
        if told and message.instructions:
            kept[index] = reader.without_instructions(message)
        if not told and index and isinstance(kept[index - 1], ModelRequest):  # else nobody asks
            reading = reader.one(message)
            told = bool(message.instructions) or reading.has_user_part or reading.exchanges
    return kept


def cycle_drops(cycle: Cycle, plan: Plan) -> tuple[Drop, ...]:
    """Drops of a cycle, turn by turn: everything that it leaves out or shortens, with reasons.

    If a pinned message is missing or shortened, the reason is lack of room, even if it was cut before it was pinned.
    """
    shapes, readings = dict(cycle.kept), plan.history.readings
    why = {index: reason for start, stop, reason in cycle.why for index in range(start, stop)}
    why.update((pin, PIN_WAITS.text) for pin in plan.pinned() if shapes.get(pin) != plan.base.get(pin, WHOLE))
    drops: list[Drop] = []
    for turn in plan.outline.turns:
        gone: dict[str, list[int]] = {}
        for index in range(turn.start, min(turn.stop, cycle.decided)):
            shape = shapes.get(index)
            if shape is None or shape.bare:
                gone.setdefault(why.get(index, DROPPED_EARLIER), []).append(index)
            elif tokens := readings[index].tokens - _price(index, shape, plan):
                drops.append(drop_of(index, index + 1, why.get(index, SHORTENED_EARLIER), tokens))
        for reason, indices in gone.items():
            for start, stop in spans(indices):
                run = range(start, stop)
                tokens = sum(readings[index].tokens - _price(index, shapes.get(index), plan) for index in run)
                drops.append(drop_of(start, stop, reason, tokens))
    return tuple(drops)


def broken_drops(start: int, plan: Plan) -> tuple[Drop, ...]:
    """Drops of broken parts from a position on."""
    gone = [(index, shape) for index, shape in sorted(plan.base.items()) if index >= start and shape.skip]
    tokens = [plan.history.readings[index].tokens - _price(index, shape, plan) for index, shape in gone]
    return tuple(drop_of(index, index + 1, BROKEN.text, cost) for (index, _), cost in zip(gone, tokens, strict=True))


def _price(index: int, shape: Shape | None, plan: Plan) -> int:
    return price(plan.history.messages[index], plan.history.readings[index], shape, plan.counter) if shape else 0


def summary_of(cycle: Cycle) -> str:
    """Text that replaces the left-out turns, without prefix and preface: the summary, else the note or the quotes."""
    body = cycle.note.partition("\n\n")[2] if cycle.own else ""
    return cycle.summary or body or cycle.quotes or cycle.note


def why_kept(cycle: Cycle, plan: Plan) -> tuple[tuple[int, str], ...]:
    """Messages of a view, as `(raw position, reason)`."""
    shapes = dict(cycle.kept)
    active, pins = plan.active_start, plan.pinned()
    reasons: list[tuple[int, str]] = []
    decided = sorted(position for position in shapes if position < cycle.decided)
    for index in (*decided, *range(cycle.decided, len(plan.history))):
        shape = shapes[index] if index < cycle.decided else WHOLE
        recent = PINNED if index in pins and shape == WHOLE else KEPT_TURN
        reason = _carried(plan, index) if shape.bare else CURRENT_TURN if index >= active else recent
        reasons.append((index, f"{reason}{AS_STUB}" if shape.skeleton else reason))
    return tuple(reasons)


def _carried(plan: Plan, index: int) -> str:
    pinned = any(item.kind is Kind.PIN for item in plan.history.readings[index].items)
    return CARRIED_PIN if pinned else CARRIED_FOR_HOST


def sections_of(
    cycle: Cycle, view: History, counter: TokenCounter, blocks: Iterable[str] = (), notes: Iterable[str] = ()
) -> dict[str, int]:
    """Exact tokens of a view by section: summary note, rules, quotes, recall blocks, and the messages themselves."""
    note, quotes, recall = counter.text(cycle.note), counter.text(cycle.quotes), sum(map(counter.text, blocks))
    rules = counter.text(rules_text(cycle.rules)) + sum(map(counter.text, notes))
    messages = view.tokens - note - rules - quotes - recall
    return {"summary": note, "rules": rules, "quotes": quotes, "recall": recall, "messages": messages}


def token_breakdown(
    sections: Mapping[str, int], dropped: Sequence[Mapping[str, object]], kept: Sequence[tuple[int, str]]
) -> dict[str, Any]:
    """Token breakdown by section, kept messages and drops `by_reason`."""
    reasons = Counter(reason for _, reason in kept)
    return {"tokens": dict(sections), "kept": dict(reasons), "dropped": list(dropped)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Origin of one message of a view, and why it was kept."""

    index: int
    """Position in the view."""
    raw: int | None
    """Position in the raw history; None if it was written for the view, or is unknown."""
    form: str
    """Display form."""
    why: str


def message_origins(view: View, raw: History | None, sent: History) -> list[Place]:
    """Origin of each message of a view.

    It follows from the order of a view: messages carried for the host come first, then those written for the view, then
    the others. If the numbers do not match, messages are looked up in the raw history by identity, if it is given.
    """
    carried = [item for item in view.kept if kept_form(item[1]) == CARRIED]
    others = [item for item in view.kept if kept_form(item[1]) != CARRIED]
    written = [index for index, item in enumerate(sent.readings) if role(item) == "notes"]
    if len(view.kept) + len(written) != len(sent):
        return _by_identity(view, raw, sent)
    queue = iter([*carried, *others])
    origins: list[Place] = []
    for index in range(len(sent)):
        if index in written:
            origins.append(Place(index=index, raw=None, form=SUMMARY, why=WRITTEN))
        else:
            position, why = next(queue)
            added = added_texts(sent.readings[index])
            shown = f"{why}, with {added}" if added else why
            origins.append(Place(index=index, raw=position, form=kept_form(why), why=shown))
    return origins


def _by_identity(view: View, raw: History | None, sent: History) -> list[Place]:
    positions = {id(message): index for index, message in enumerate(raw.messages if raw else ())}
    reasons = dict(view.kept)
    origins: list[Place] = []
    for index, message in enumerate(sent.messages):
        position = positions.get(id(message))
        why = reasons.get(position, "kept") if position is not None else OTHER_SHAPE
        form = SUMMARY if role(sent.readings[index]) == "notes" else kept_form(why)
        origins.append(Place(index=index, raw=position, form=form, why=why))
    return origins


def show_message(sent: History, origin: Place, *, longest: int | None = None) -> ShownMessage:
    """Prepare a message of a view for display; texts are cut to `longest` characters, None for no limit."""
    reading = sent.readings[origin.index]
    return ShownMessage(
        index=origin.index,
        role=role(reading),
        tokens=reading.tokens,
        form=origin.form,
        why=origin.why,
        parts=show_parts(reading, origin.form, longest=longest),
        raw=origin.raw,
        time=time_of(sent.messages[origin.index]),
    )
