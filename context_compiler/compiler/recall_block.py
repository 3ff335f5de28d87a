"""Recall blocks: past text that a prompt asks for, directly before the prompt, once a user turn.

A block is found at the first request of a user turn and stays byte for byte while the turn lasts, whatever is cut back
meanwhile. It counts against the budget and not against the mark at which a view is cut back, because it goes again:
at the next user turn, unless that would cost a prompt cache more than carrying it on.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from statistics import median

from context_compiler.compiler.cycle import DAMAGED, Cycle, well_typed
from context_compiler.compiler.metrics import CACHED, FRESH
from context_compiler.compiler.policy import LARGE, Limits, Plan
from context_compiler.compiler.view import Quote
from context_compiler.fidelity import Fidelity
from context_compiler.messages.fences import fence
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.prompts import asking_part, asking_share, asks, is_short
from context_compiler.messages.shapes import apply_shape
from context_compiler.messages.turns import Turn
from context_compiler.recall import Index, Question, Ranking, Relevance, indexed, question_text
from context_compiler.recall.changes import Changes, mark_changes
from context_compiler.recall.passages import Passage, answer_text, passages, quoted
from context_compiler.recall.ranking import BESIDE, CLOSE, merit
from context_compiler.recall.selection import choose, spread
from context_compiler.settings import Amount
from context_compiler.tokens import TokenCounter

TITLE = "RECALLED FROM EARLIER TURNS"

LEAST = 48
"""Minimum in tokens; a smaller block would be little more than its fence."""

MOST = 6_500
"""Cap in tokens on a share of the room; a larger block adds less than it costs."""

NARROW, WIDER, FROM = 4_000, 4_800, 0.25
"""A share is taken of at least this room, in tokens: in a small room every free token is worth its price. A dial above
`FROM` prefers answers to economy: each 0.1 above it raises the minimum by 480 tokens."""

MENTIONS = 24
"""Passages, on average, for which a block needs room before mentions are spread over the conversation; with room for
fewer, the best passages hold more of a sequence or of the whole."""

SMALL = 0.06
"""Share of the dial for a prompt that asks nothing."""

BEARING, NEAREST = 8, 8
"""For a statement about something said earlier, such as "I need the code of the gate" or "write to the caterer": a
divisor of the dial, and the number of best messages of which one must hold the subject."""

ABOUT, TERMS = 0.3, 2
"""Minimum share of such a prompt that a passage must hold, and minimum number of its terms."""

DUE = 3
"""Divisor of the room: the share that should be free when a prompt asks for something."""

MOSTLY, ASIDE = 0.6, 8
"""Share of a prompt above which all of it counts as a question; divisor of the room for one that asks in passing."""

LONG_TURNS = 8
"""Divisor of the room that caps a block in tool work with long turns, beside `FILL`."""

TURNS = 5
"""Number of newest turns from which growth is estimated."""

RESERVE, LEAST_RESERVE = 20, 64
"""Reserve for the growth of a turn after its first request: a divisor of the room, and a minimum in tokens."""

UNRESERVED = 7_000
"""Room in tokens below which nothing is reserved before the first tool call: most chats make none."""

MOST_RESERVE = 4
"""Divisor of the room: the cap on that reserve. A block is shortened if the turn outgrows it."""

WIDE, DEEP = 4, 2
"""Tokens of messages ranked, and of passages weighed, as multiples of the room."""

FILL = 2_000
"""Tokens up to which the block of a question is filled with passages that share no word with it, nearest first. In a
larger block such a passage replaces an answering one only if it scores higher."""

FLOORS = (0.15, 0.4)
"""Least share of a question that its best passage holds where tools are used, and of one that is asked by the way;
with less a block is not worth it."""

TELLING = 0.5
"""Least share that every passage holds where tools said what is asked, as a share of that of the best one."""

STEP = 128
"""Messages whose passages are looked at together, best first."""

COMPARED = 256
"""Passages that are compared with the question as a whole, the best ones."""

STANDING = 0.35
"""Blocks of earlier turns go once they take this share of the room."""

CUTS, CUT = 2, 10
"""Times that a block over the budget is cut before it goes, and the divisor of the room that it is cut to at last."""

MORE = 8
"""Divisor of the room that a single large turn adds to the reserve at most."""

TIGHTER = 0.7
"""The share of a block that is left once a provider has refused the request as too long."""


@dataclass(frozen=True, slots=True)
class Block:
    """Past text for one prompt."""

    at: int
    """Position of the prompt's message in the raw history."""
    name: str
    """Its chain id: the block counts only in histories that hold that prompt."""
    turn: int
    """The user turn that the prompt opens."""
    text: str
    """As sent, fenced; empty where there is none, which is not looked for again."""
    cuts: int = 0
    """Times that it was cut because the request had no room for it."""

    def tokens(self, counter: TokenCounter) -> int:
        """Its price in a view."""
        return counter.text(self.text) + MESSAGE_OVERHEAD if self.text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks in the requests of one user turn."""

    own: Block
    """That of the turn itself, which may be empty."""
    config: str
    """Configuration of the cycle that they belong to."""
    earlier: tuple[Block, ...] = ()
    """Those of earlier turns that still stand."""

    @property
    def all(self) -> tuple[Block, ...]:
        """All that have a text, in order."""
        return tuple(block for block in (*self.earlier, self.own) if block.text)

    @property
    def quotes(self) -> list[Quote]:
        """Quotes of the blocks, as a view lists them."""
        why = "recalled for its prompt"
        return [Quote(what=f"before turn {block.turn + 1}", why=why, text=block.text) for block in self.all]

    def without(self) -> Blocks:
        """The same turn without any block: there is no room for it, and it is not looked for again."""
        return replace(self, own=replace(self.own, text="", cuts=CUTS), earlier=())

    def texts(self) -> dict[int, str]:
        """Text of each block, by the position of its prompt."""
        return {block.at: block.text for block in self.all}

    def tokens(self, counter: TokenCounter) -> int:
        """Their price in a view."""
        return sum(block.tokens(counter) for block in self.all)

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps([astuple(block) for block in (*self.earlier, self.own)], ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str, config: str) -> Blocks | None:
        """Back from JSON text; None when another version wrote something this one cannot read."""
        try:
            found = [Block(*one) for one in json.loads(text)]
            sound = bool(found) and all(map(well_typed, found))
        except DAMAGED:
            return None
        return cls(own=found[-1], earlier=tuple(found[:-1]), config=config) if sound else None


def holding(blocks: Blocks, history: History, config: str) -> Blocks | None:
    """The blocks, if the prompt of the newest is in this history and views are still written in the same way.

    The host may have joined that prompt with the tool results before it, see `History.splits`.
    """
    own = blocks.own
    if blocks.config != config or own.at > len(history):
        return None
    if own.at < len(history) and history.ids[own.at] == own.name:
        return blocks
    if own.at and any(split.rest == own.name for split in history.splits(own.at - 1)):
        return replace(blocks, own=replace(own, at=own.at - 1, name=history.ids[own.at - 1]))
    return None


def prompt_at(history: History) -> int | None:
    """Position of the current turn's prompt."""
    return next((index for index in reversed(range(len(history))) if history.readings[index].asks), None)


def reserve(plan: Plan, limits: Limits) -> int:
    """Tokens kept free for the rest of a turn after its first request: in most rooms none before any tool call."""
    grown = [_growth(plan.history, turn) for turn in plan.outline.turns[-TURNS - 1 : -1]]
    usual = min(max(median(grown), min(max(grown), limits.room // MORE)), limits.room // MOST_RESERVE) if grown else 0
    least = max(limits.room // RESERVE, LEAST_RESERVE) if plan.work or limits.room >= UNRESERVED else 0
    return max(least, int(usual))


def _growth(history: History, turn: Turn) -> int:
    """Tokens that a turn added between its first and its last request."""
    start = turn.groups[0].stop if turn.groups else turn.start
    stop = turn.stop - (not history.readings[turn.stop - 1].request)
    return history.sums[max(start, stop)] - history.sums[start]


def share_tokens(recall: Amount, limits: Limits) -> int:
    """The most that one block may take: a share of the room, which counts for more where it is small, or tokens."""
    if isinstance(recall, int):
        return recall
    return min(MOST, int(recall * max(limits.room, NARROW + WIDER * max(0.0, recall - FROM))))


def small_tokens(recall: Amount, limits: Limits) -> int:
    """The most that the block of a prompt which asks nothing may take."""
    return int(SMALL * (recall * limits.room if isinstance(recall, float) else recall))


def wanted(plan: Plan, limits: Limits, cycle: Cycle, prompt: str) -> int:
    """The most tokens that the block of a prompt may take.

    In tool work few prompts ask for the past, and where turns are long a block is paid for again in every request.
    """
    most = share_tokens(plan.policy.recall, limits)
    if plan.prompt_tokens > limits.room // LARGE:
        return most
    if plan.work and cycle.tools and cycle.loops:
        most = min(most, limits.room // LONG_TURNS, FILL)
    if not _asks(plan, limits, prompt):
        return 0 if plan.work else min(most, small_tokens(plan.policy.recall, limits))
    return most if asking_share(asking_part(prompt, plan.counter)) >= MOSTLY else min(most, limits.room // ASIDE)


def _asks(plan: Plan, limits: Limits, prompt: str) -> bool:
    """True if a prompt may ask for the past, by stricter cues where tools are used; always true of a large one."""
    large = plan.prompt_tokens > limits.room // LARGE
    return large or asks(asking_part(prompt, plan.counter), plan.counter, strict=plan.work > 0)


def block_tokens(known: Blocks | None, plan: Plan, limits: Limits, cycle: Cycle) -> int:
    """Tokens of this turn's block; before it has been found, its limit."""
    if known is not None and known.own.turn == plan.turn:
        return known.own.tokens(plan.counter)
    at = prompt_at(plan.history)
    if at is None or not plan.policy.recall or plan.policy.fidelity is Fidelity.TRUNCATE:
        return 0
    return wanted(plan, limits, cycle, question_text(plan.history.readings[at]))


def due(plan: Plan, limits: Limits) -> int:
    """Tokens above which a request is cut back for a prompt that asks, by at least a sixth of the room."""
    return max(limits.budget - reserve(plan, limits) - limits.room // DUE + 1, limits.low + limits.room // DUE // 2)


def crowded(plan: Plan, limits: Limits, cycle: Cycle, cost: int) -> bool:
    """True if a prompt that asks finds so little room for its block that the view is better cut back first.

    Args:
        plan: The raw history, with the new prompt.
        limits: The thresholds.
        cycle: What of it is in the view.
        cost: What the request takes without any block, in exact tokens.
    """
    at = prompt_at(plan.history)
    if at is None or not plan.policy.recall or plan.policy.fidelity is Fidelity.TRUNCATE:
        return False
    least = limits.room // DUE
    if cost < due(plan, limits) or wanted(plan, limits, cycle, question_text(plan.history.readings[at])) < least:
        return False
    return bool(recalled(plan, cycle, at, least))


def free(plan: Plan, limits: Limits, cost: int) -> int:
    """The tokens that are free for blocks where a request costs `cost` without them."""
    return limits.budget - cost - reserve(plan, limits)


def carried_on(blocks: Blocks | None, plan: Plan, limits: Limits, cost: int, most: int) -> tuple[Block, ...]:
    """The blocks of earlier turns that still stand at a new one: all of them, or none.

    Args:
        blocks: Those of the turn before.
        plan: The raw history, with the new prompt.
        limits: The marks.
        cost: What the request takes without any block, in exact tokens.
        most: What the block of the new prompt may take.
    """
    standing = blocks.all if blocks is not None else ()
    if not standing:
        return ()
    tokens = sum(block.tokens(plan.counter) for block in standing)
    if tokens > STANDING * limits.room or tokens > free(plan, limits, cost) - most:
        return ()
    history, starts = plan.history, plan.outline.starts
    first = starts[max(0, len(starts) - 1 - TURNS)]
    growth = (history.sums[starts[-1]] - history.sums[first]) / max(1, min(TURNS, len(starts) - 1))
    turns = (limits.high - cost) / max(1, growth)
    behind = history.sums[-1] - history.sums[standing[0].at]
    return standing if CACHED * tokens * turns < (FRESH - CACHED) * behind else ()


def recalled_first(plan: Plan, limits: Limits, cycle: Cycle, at: int, most: int, room: int, said: Sequence[str]) -> str:
    """The block for the prompt at `at` at its first request, of at most `most` tokens within `room`.

    A short prompt that asks nothing may still be about something said earlier. It gets a block of its own size, unless
    the dial is too low for even one line.
    """
    prompt = question_text(plan.history.readings[at])
    if _asks(plan, limits, prompt):
        return recalled(plan, cycle, at, min(most, room), said, fill=FILL)
    bearing = min(share_tokens(plan.policy.recall, limits) // BEARING, limits.room // ASIDE)
    if most and bearing >= 2 * LEAST and is_short(prompt, plan.counter):
        return recalled(plan, cycle, at, min(bearing, room), said, small=most)
    return recalled(plan, cycle, at, min(most, room), said)


def recalled(
    plan: Plan,
    cycle: Cycle,
    at: int,
    room: int,
    said: Sequence[str] = (),
    *,
    within: str = "",
    fill: int = 0,
    small: int | None = None,
) -> str:
    """The fenced block for the prompt at `at`, within `room` tokens; empty where nothing bears on it.

    Args:
        plan: The raw history.
        cycle: What of it is in the view.
        at: Position of the prompt.
        room: The most tokens.
        said: Texts in the view other than those of the cycle.
        within: Text to which the passages are restricted; empty for no restriction.
        fill: Tokens up to which passages without an answer may fill the room, nearest first; 0 for none.
        small: Limit in tokens if no passage holds the subject of the prompt; None for `room`.
    """
    if room < LEAST:
        return ""
    history, counter, index = plan.history, plan.counter, indexed(plan.history)
    question = _question(history, index, at, cycle.decided, counter)
    if question is None:
        return ""
    ranking = Ranking(index, question, cycle.decided)
    whole, abridged = _visible_positions(plan, cycle)
    best, about = ranking.best(cycle.decided, whole, beside=fill > 0), Counter[int]()
    shown = "\n".join((cycle.note, cycle.quotes, *said, *_texts(plan, cycle, abridged)))
    words = set(shown.split())

    def quotable(positions: Sequence[int]) -> list[Passage]:
        found = passages(history, plan.outline, positions, counter, ranking.weight)
        return [one for one in found if _is_new(one.text, words, shown) and (not within or one.text.strip() in within)]

    if small is not None:
        about = _about(index, question_text(history.readings[at]), quotable(best[:NEAREST]))
        room = min(room, max(small, LEAST * bool(about) + about.total()))
    index.changes.extend(history)
    near = _best(plan, best, WIDE * room)
    candidates = quotable(near) if question.wide else _nearest(ranking, near, quotable, index.changes, room, fill)
    wide = question.wide and room * len(candidates) >= MENTIONS * sum(one.tokens for one in candidates)
    if wide:
        candidates = quotable(_best(plan, spread(best, int), WIDE * room))
    ranked = _ranked(candidates, ranking.passages(candidates), about.keys())
    answering = [pair for pair in ranked if pair[1] > 0]
    if plan.work and not within:
        by_the_way = asking_share(asking_part(question_text(history.readings[at]), counter)) < MOSTLY
        answering, of_tools = _telling(answering, Relevance(index, question, floor=0), FLOORS[by_the_way])
        fill = 0 if of_tools or by_the_way else fill
    if not (answering or (fill and ranking.of_somebody)) or room < LEAST:
        return ""
    told, room = _filled(answering, ranked, room, fill, wide=wide)
    told, newer = mark_changes(
        index.changes, history, at, plan.outline, told, lambda at: () if at in whole else quotable([at]), counter
    )
    return _written(told, room, counter, wide=wide, newer=newer)


def _about(index: Index, prompt: str, candidates: Sequence[Passage]) -> Counter[int]:
    """Tokens of the messages that hold most of the subject of a prompt, by position; empty if all hold little of it."""
    relevance = Relevance(index, Question.of(prompt), floor=0)
    held = [relevance.held(one.text) for one in candidates]
    shares = [relevance.share(terms) * (len(terms) >= TERMS) for terms in held]
    least = max(ABOUT, TELLING * max(shares, default=0.0))
    telling = {one.position for one, share in zip(candidates, shares, strict=True) if share >= least}
    found = Counter[int]()
    for one in candidates:
        if one.position in telling:
            found[one.position] += one.tokens
    return found


def _nearest(
    ranking: Ranking,
    positions: Sequence[int],
    quotable: Callable[[Sequence[int]], list[Passage]],
    changes: Changes,
    room: int,
    fill: int,
) -> list[Passage]:
    """The passages of these messages, given best first, that may be weighed for a block of `room` tokens.

    A passage scores like its message, the best `CLOSE` of all somewhat more, and pieces of a tool's result less. A
    later message that changes a passage comes with it; passages that answer nothing come only if there is a `fill`.
    """
    merits = {at: merit(ranking.score(at)) for at in (positions if fill else ranking.answering(positions))}
    ordered = sorted(merits, key=merits.__getitem__, reverse=True)
    found: list[Passage] = []
    stop = 0
    while stop < len(ordered):
        start, stop = stop, min(stop + STEP, len(ordered))
        while stop < len(ordered) and merits[ordered[stop]] == merits[ordered[stop - 1]]:
            stop += 1
        found += quotable(ordered[start:stop])
        sizes = [one.tokens for one in found if not one.tool]
        if len(sizes) >= CLOSE and sum(sizes) > max(DEEP * room, fill):
            later = changes.changing(ordered[:stop])
            found += quotable([at for at in ordered[stop:] if at in later])
            break
    return sorted(found, key=lambda one: one.position)


def _ranked(candidates: Sequence[Passage], scores: Sequence[float], first: Set[int]) -> list[tuple[Passage, float]]:
    """Passages best first, those of the messages `first` before all others.

    Repeated pieces of tool results are left out.
    """
    raised = ((one, score + BESIDE * (one.position in first)) for one, score in zip(candidates, scores, strict=True))
    ranked, texts = sorted(raised, key=lambda pair: -merit(pair[1])), set[str]()
    return [pair for pair in ranked if not pair[0].tool or not (pair[0].text in texts or texts.add(pair[0].text))]


def _telling(
    ranked: Sequence[tuple[Passage, float]], relevance: Relevance, floor: float
) -> tuple[Sequence[tuple[Passage, float]], bool]:
    """The passages that are worth their price where tools are used, and if tools said what the best of them holds.

    None if the best holds less than `floor` of the question; if tools said it, those that hold half as much.
    What the call and the other pieces of a tool's result hold counts half for each of them.
    """
    compared = ranked[:COMPARED]
    held = [relevance.held(one.text) for one, _ in compared]
    exchanges: defaultdict[int, set[str]] = defaultdict(set)
    for (one, _), terms in zip(compared, held, strict=True):
        if one.speaker == "tool":
            exchanges[one.position] |= terms
    shares = [
        (relevance.share(terms) + relevance.share(terms | exchanges.get(one.position, set()))) / 2
        for (one, _), terms in zip(compared, held, strict=True)
    ]
    best = max(shares, default=0.0)
    of_tools = any(share == best and one.speaker == "tool" for (one, _), share in zip(compared, shares, strict=True))
    if best < floor:
        return (), False
    if not of_tools:
        return ranked, False
    return [pair for pair, share in zip(compared, shares, strict=True) if share >= best * TELLING], True


def _filled(
    answering: Sequence[tuple[Passage, float]],
    ranked: Sequence[tuple[Passage, float]],
    room: int,
    fill: int,
    *,
    wide: bool,
) -> tuple[Sequence[tuple[Passage, float]], int]:
    """The passages to choose from, best first, and their room: the size of those that answer, or `fill` if larger."""
    enough = sum(one.tokens for one, _ in answering)
    if fill and not (wide and enough >= fill):
        answering, room = ranked, min(room, max(fill, enough))
    return spread(answering, lambda pair: pair[0].turn) if wide else answering, room


def _written(
    ranked: Sequence[tuple[Passage, float]],
    room: int,
    counter: TokenCounter,
    *,
    wide: bool,
    newer: Mapping[tuple[int, int], tuple[int, int]],
) -> str:
    """The passages that answer best, fenced, within `room` tokens."""
    before = accumulate((one.tokens for one, _ in ranked), initial=0)
    weighed = [pair for pair, tokens in zip(ranked, before, strict=False) if tokens <= DEEP * room]
    candidates, ranks = [one for one, _ in weighed], [score for _, score in weighed]
    left = room - counter.text(fence(TITLE, "x")) - 8 - MESSAGE_OVERHEAD
    while left > 0 and (chosen := choose(candidates, left, ranks, wide=wide, newer=newer)):
        text = fence(TITLE, quoted(chosen))
        over = counter.labelled(text) + MESSAGE_OVERHEAD - room
        if over <= 0:
            return text
        left -= over + 8
    return ""


def _question(history: History, index: Index, at: int, stop: int, counter: TokenCounter) -> Question | None:
    """Question of a prompt; with the exchange before it if none of its terms occur before `stop`.

    None where that has no words either, or the prompt is not text at all.
    """
    said = [item for item in history.readings[at].items if item.kind is Kind.USER and item.mark is None]
    if all(item.media for item in said):
        return None
    whole = question_text(history.readings[at])
    for text in dict.fromkeys((asking_part(whole, counter), whole)):
        question = Question.of(text)
        if _known(question, index, stop):
            return question
    before = next((place for place in reversed(range(at)) if history.readings[place].asks), at)
    items = [item for _, item in history.items(before, at + 1)]
    texts = [
        answer_text(item) or item.text for item in items if item.kind in (Kind.USER, Kind.TEXT) or answer_text(item)
    ]
    question = Question.of("\n".join(texts))
    return question if _known(question, index, stop) else None


def _known(question: Question, index: Index, stop: int) -> bool:
    """True if a term of the question was said before a position."""
    return bool(question.months) or any(index.posts[term][0] < stop for term in question.terms & index.posts.keys())


def _is_new(text: str, words: set[str], shown: str) -> bool:
    """True if a passage is not in what is `shown`, which has these words."""
    plain, some = _opening_words(text)
    return bool(plain) and not (words.issuperset(some) and plain in shown)


@lru_cache(maxsize=8_192)
def _opening_words(text: str) -> tuple[str, Sequence[str]]:
    """A passage without white space around it, and some words near its beginning, none of which is cut off."""
    return text.strip(), text.split(maxsplit=8)[1:-1]


def _best(plan: Plan, ranked: list[int], tokens: int) -> list[int]:
    """The first of these messages within `tokens`, a call with its answer; a long one counts in part."""
    readings, pairs = plan.history.readings, dict[int, int]()
    for call, answer in plan.pairing.pairs:
        pairs[call] = pairs.get(call, readings[call].tokens) + pairs.get(answer, readings[answer].tokens)
    left, most = tokens, tokens // WIDE
    for number, at in enumerate(ranked):
        size = pairs[at] if at in pairs else readings[at].tokens
        left -= size if size < most else most
        if left < 0:
            return ranked[:number]
    return ranked


def _visible_positions(plan: Plan, cycle: Cycle) -> tuple[set[int], list[int]]:
    """Positions of messages that a view has whole, except calls whose answers are cut, and of those it has in part."""
    here = [(at, shape) for at, shape in cycle.kept if not shape.bare]
    abridged = [at for at, shape in here if shape.skeleton or shape.limit is not None]
    partly = set(abridged)
    calls = {call for call, answer in plan.pairing.pairs if answer in partly}
    return {at for at, _ in here} - partly - calls, abridged


def _texts(plan: Plan, cycle: Cycle, abridged: Sequence[int]) -> list[str]:
    """The remaining texts of messages that are cut in the view."""
    shapes, history = dict(cycle.kept), plan.history
    messages = (apply_shape(history.messages[at], history.readings[at], shapes[at], plan.counter) for at in abridged)
    return [item.text for message in messages if message is not None for item in plan.reader.one(message).items]


def cut_room(plan: Plan, limits: Limits, cycle: Cycle, block: Block, over: int, *, refused: bool) -> int:
    """The tokens that a block is cut to which makes a request `over` its budget; 0 where it has been cut enough.

    In a chat whose turns are short it is cut by what is over, as often as that takes. Else it first leaves room for
    what the turn may add, and at last keeps a tenth of the room; once a provider `refused` it, seven tenths of itself.
    """
    size = block.tokens(plan.counter)
    if not (refused or cycle.tools or plan.loops):
        return size - over
    if block.cuts >= CUTS and not refused:
        return 0
    least = limits.room // CUT
    share = int(TIGHTER * size) if refused else max(least, size - over - limits.room // RESERVE)
    return min(least if block.cuts else share, size - over)


def smaller(plan: Plan, cycle: Cycle, block: Block, room: int) -> Block:
    """The best passages of a block within `room` tokens."""
    return replace(block, text=recalled(plan, cycle, block.at, room, within=block.text, fill=room), cuts=block.cuts + 1)
