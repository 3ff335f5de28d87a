"""Recall: which passages of the past a prompt gets.

The block of a prompt is searched at the first request of its user turn (`find_block`), and is sent directly before the
prompt. During the turn its bytes change only if the view is cut back, or if the block must be shortened. `block_sizes`
says how large it may be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate

from context_compiler.compiler.block_sizes import (
    ASIDE_PART,
    ASKING_SHARE,
    FEW_PASSAGES_TOKENS,
    FILL_TOKENS,
    TIGHT_ROOM,
    BlockSizes,
)
from context_compiler.compiler.cycle import Block, Cycle
from context_compiler.compiler.policy import Plan
from context_compiler.messages.fences import RECALLED_TITLE, fence
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.prompts import asking_part, asking_share, is_short
from context_compiler.messages.shapes import apply_shape
from context_compiler.messages.turns import prompt_at
from context_compiler.recall import Index, Question, Ranking, Relevance, index_of, question_text
from context_compiler.recall.changes import Changes, mark_changes
from context_compiler.recall.passages import Passage, answer_text, new_passages, passages, write_quotation
from context_compiler.recall.ranking import BESIDE, CLOSE, merit
from context_compiler.recall.selection import choose, spread
from context_compiler.tokens import TokenCounter

MIN_BLOCK = 48
"""Minimum size of a block in tokens; a smaller one would be little more than its fence."""

MENTIONS = 24
"""Minimum number of average passages that a block must have room for if mentions are to be spread over the
conversation. In a smaller block, the best passages contain more of a sequence or of the whole."""

BEARING, NEAREST = 8, 8
"""For a short statement about something said earlier, such as "I need the code of the gate" or "write to the caterer":
divisor of `recall=` that limits its block, and number of best messages one of which must contain its subject."""

ABOUT, TERMS = 0.3, 2
"""A passage contains the subject of such a statement if it has at least this fraction of it (by idf) and this number of
its terms."""

WIDE, DEEP, MIN_WIDE = 4, 2, 250
"""Candidates for a block, in tokens as multiples of its room: messages that are split into passages, and passages from
which the block is selected. More candidates find little more and cost time. The third is the least room, in tokens, for
which messages are taken if there is a `fill`: fewer could all be from tools."""

FLOOR, TIGHT_FLOOR, PASSING_FLOOR = 0.15, 0.3, 0.4
"""In tool work, and in a room below `TIGHT_ROOM` once a tool was called, the best passage must contain at least this
fraction of the question, or the block is not worth its tokens: one value for a direct question, one for a direct
question in such a room, and one for a question asked in passing."""

TELLING = 0.5
"""If that best passage is from a tool, minimum fraction of its coverage that any other passage must have."""

STEP = 128
"""Number of messages, best first, that are split into passages at a time."""

COMPARED = 256
"""Number of best passages whose coverage of the whole question is computed."""


def lacks_room_for_block(sizes: BlockSizes, cost: int) -> bool:
    """True if the view should be cut back first, because a prompt that asks would find too little room for its block.

    Args:
        sizes: Sizes of the blocks of this request.
        cost: Exact tokens of the request without any block.
    """
    plan, budget = sizes.plan, sizes.limits.budget
    at = prompt_at(plan.history)
    if at is None or not plan.recalls:
        return False
    if cost < sizes.cut_back_threshold or not (cost >= budget or sizes.has_grown):
        return False
    prompt, wanted = question_text(plan.history.readings[at]), sizes.wanted
    most = sizes.most(prompt)
    if most < wanted:
        wanted = min(most, FEW_PASSAGES_TOKENS)
        if plan.tool_work or not sizes.asks_past(prompt) or (budget - cost) // 2 >= wanted:
            return False
    return bool(find_block(sizes, at, wanted))


def find_first_block(sizes: BlockSizes, at: int, most: int, room: int, said: Sequence[str]) -> str:
    """Find the block for the prompt at position `at`, at the first request of its turn; empty if nothing is relevant.

    A question gets a block of up to `most` tokens. A short prompt that does not ask, but is about something said
    earlier, gets the messages that contain its subject (see `BEARING`), unless `recall=` is too low for even one line.
    Any other prompt gets up to `most` tokens, which are few.

    Args:
        sizes: Sizes of the blocks of this request.
        at: Position of the prompt.
        most: Maximum size in tokens, from `BlockSizes.most`.
        room: Tokens that are free.
        said: Other texts in the view, which are not repeated.
    """
    prompt = question_text(sizes.plan.history.readings[at])
    if sizes.asks_past(prompt):
        return find_block(sizes, at, min(most, room), said, fill=FILL_TOKENS)
    bearing = min(sizes.recall // BEARING, sizes.limits.room // ASIDE_PART)
    if most and bearing >= 2 * MIN_BLOCK and is_short(prompt, sizes.plan.counter):
        return find_block(sizes, at, min(bearing, room), said, small=most)
    return find_block(sizes, at, min(most, room), said)


def find_block(
    sizes: BlockSizes,
    at: int,
    room: int,
    said: Sequence[str] = (),
    *,
    within: str = "",
    fill: int = 0,
    small: int | None = None,
) -> str:
    """Find past text for the prompt at position `at`, as a fenced block of at most `room` tokens; empty for none.

    1. Rank the messages that the view leaves out or shortens, and take the best, up to `WIDE` times the room.
    2. Split them into passages, best message first, up to `DEEP` times the room; skip texts that the view contains. For
       a question about a sequence or the whole conversation, take passages from all parts of it instead.
    3. Rank the passages. In tool work, and in a room below `TIGHT_ROOM` once a tool was called, give up if the best one
       contains too little of the question.
    4. Mark passages that later messages revise, select passages for the room (see `recall.selection`), and write them.

    Args:
        sizes: Sizes of the blocks of this request.
        at: Position of the prompt.
        room: Maximum size in tokens.
        said: Texts in the view other than those of the cycle.
        within: Text to which the passages are restricted; empty for no restriction.
        fill: Size in tokens up to which passages that do not answer may fill the block, best first; 0 for none.
        small: Maximum size in tokens if no passage contains the subject of the prompt; None for no such limit.
    """
    if room < MIN_BLOCK:
        return ""
    plan, cycle = sizes.plan, sizes.cycle
    history, counter, index = plan.history, plan.counter, index_of(plan.history)
    question = _question(history, index, at, cycle.decided, counter)
    if question is None:
        return ""
    ranking = Ranking(index, question, cycle.decided, question_at=at)
    whole, abridged = _visible_positions(plan, cycle)
    best, about = ranking.best(cycle.decided, whole, beside=fill > 0), Counter[int]()
    prompt = question_text(history.readings[at])  # a former copy of it answers nothing
    shown = "\n".join((cycle.note, cycle.quotes, *said, *_abridged_texts(plan, cycle, abridged)))

    def quotable(positions: Sequence[int]) -> list[Passage]:
        found = new_passages(passages(history, plan.outline, positions, counter, ranking.weight), prompt, shown)
        return [one for one in found if one.text.strip() in within] if within else found

    if small is not None:
        about = _subject_messages(index, prompt, quotable(best[:NEAREST]))
        room = min(room, max(small, MIN_BLOCK * bool(about) + about.total()))
    index.changes.extend(history)
    near = _first_within(plan, best, WIDE * (max(room, MIN_WIDE) if fill else room))
    candidates = quotable(near) if question.wide else _split_best(ranking, near, quotable, index.changes, room, fill)
    wide = question.wide and room * len(candidates) >= MENTIONS * sum(one.tokens for one in candidates)
    if wide:
        candidates = quotable(_first_within(plan, spread(best, int), WIDE * room))
    ranked = _rank(candidates, ranking.passages(candidates), about.keys())
    answering = [pair for pair in ranked if pair[1] > 0]
    tight = sizes.limits.room < TIGHT_ROOM
    if (plan.tool_work or (plan.tool_calls and tight)) and not within:
        in_passing = asking_share(asking_part(prompt, counter)) < ASKING_SHARE
        floor = PASSING_FLOOR if in_passing else TIGHT_FLOOR if tight else FLOOR
        answering, of_tools = _relevant_in_tool_work(answering, Relevance(index, question, floor=0), floor)
        fill = 0 if of_tools or in_passing else fill
    # a question that names one of two speakers is filled with that speaker's messages even if no passage answers
    if not (answering or (fill and ranking.of_somebody)) or room < MIN_BLOCK:
        return ""
    pool, room = _with_fill(answering, ranked, room, fill, wide=wide)
    pool, newer = mark_changes(
        index.changes, history, at, plan.outline, pool, lambda at: () if at in whole else quotable([at]), counter
    )
    return _write(pool, room, counter, wide=wide, newer=newer)


def _subject_messages(index: Index, prompt: str, candidates: Sequence[Passage]) -> Counter[int]:
    """Tokens of the messages that contain the subject of a prompt, by position; empty if none contains enough of it."""
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


def _split_best(
    ranking: Ranking,
    positions: Sequence[int],
    quotable: Callable[[Sequence[int]], list[Passage]],
    changes: Changes,
    room: int,
    fill: int,
) -> list[Passage]:
    """Split messages into candidates for a block of `room` tokens, best message first; in order of the conversation.

    It stops early, because a passage scores like its message: only the best `CLOSE` passages score somewhat more, and
    pieces of tool results less. Once all messages that answer are split, no more are needed than `_with_fill` has room
    for. Later messages that revise a candidate are split too. Messages that do not answer are split only if there is a
    `fill`.
    """
    answers = set(ranking.answering(positions))
    ordered = sorted(positions if fill else answers)
    merits = dict(zip(ordered, map(merit, ranking.scores(ordered)), strict=True))
    ordered.sort(key=merits.__getitem__, reverse=True)
    last = max((number for number, at in enumerate(ordered) if at in answers), default=len(ordered))
    found: list[Passage] = []
    stop = 0
    while stop < len(ordered):
        start, stop = stop, min(stop + STEP, len(ordered))
        while last >= stop < len(ordered) and merits[ordered[stop]] == merits[ordered[stop - 1]]:
            stop += 1
        found += quotable(ordered[start:stop])
        sizes = [one.tokens for one in found if not one.tool]
        least, enough = CLOSE, max(DEEP * room, fill)
        if stop > last:
            answering = sum([one.tokens for one in found if one.position in answers])
            least, enough = 0, DEEP * min(room, max(fill, answering))
        if len(sizes) >= least and sum(sizes) > enough:
            later = changes.changing(ordered[:stop])
            found += quotable([at for at in ordered[stop:] if at in later])
            break
    return sorted(found, key=lambda one: one.position)


def _rank(candidates: Sequence[Passage], scores: Sequence[float], first: Set[int]) -> list[tuple[Passage, float]]:
    """Sort passages best first, with those of the messages `first` before all others.

    Repeated pieces of tool results are dropped.
    """
    raised = [score + BESIDE * (one.position in first) for one, score in zip(candidates, scores, strict=True)]
    ranked = sorted(range(len(raised)), key=[*map(merit, raised)].__getitem__, reverse=True)
    pairs, texts = [(candidates[at], raised[at]) for at in ranked], set[str]()
    return [pair for pair in pairs if not pair[0].tool or not (pair[0].text in texts or texts.add(pair[0].text))]


def _relevant_in_tool_work(
    ranked: Sequence[tuple[Passage, float]], relevance: Relevance, floor: float
) -> tuple[Sequence[tuple[Passage, float]], bool]:
    """Filter passages for tool work by coverage, the fraction of the question that they contain.

    There are none if the best coverage is below `floor`. If the best passage is from a tool, only passages with at
    least half of its coverage are left. The coverage of a passage from a message with a tool exchange is the mean of
    two values: that of the passage alone, and that of the passage together with the exchange.

    Returns:
        The passages, best first, and True if the best coverage is that of a tool's passage.
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


def _with_fill(
    answering: Sequence[tuple[Passage, float]],
    ranked: Sequence[tuple[Passage, float]],
    room: int,
    fill: int,
    *,
    wide: bool,
) -> tuple[Sequence[tuple[Passage, float]], int]:
    """Passages to select from, best first, and the room for them.

    With a `fill`, these are all passages, and the room is limited to `fill` tokens or to the size of the answering
    passages, whichever is larger. Without one, or if a wide question has enough answers, these are the answering ones.
    """
    enough = sum(one.tokens for one, _ in answering)
    if fill and not (wide and enough >= fill):
        answering, room = ranked, min(room, max(fill, enough))
    return spread(answering, lambda pair: pair[0].turn) if wide else answering, room


def _write(
    ranked: Sequence[tuple[Passage, float]],
    room: int,
    counter: TokenCounter,
    *,
    wide: bool,
    newer: Mapping[tuple[int, int], tuple[int, int]],
) -> str:
    """Select passages and write them fenced, in at most `room` tokens; empty if none fits."""
    before = accumulate((one.tokens for one, _ in ranked), initial=0)
    weighed = [pair for pair, tokens in zip(ranked, before, strict=False) if tokens <= DEEP * room]
    candidates, ranks = [one for one, _ in weighed], [score for _, score in weighed]
    left = room - counter.text(fence(RECALLED_TITLE, "x")) - 8 - MESSAGE_OVERHEAD
    while left > 0 and (chosen := choose(candidates, left, ranks, wide=wide, newer=newer)):
        text = fence(RECALLED_TITLE, write_quotation(chosen))
        over = counter.labelled(text) + MESSAGE_OVERHEAD - room
        if over <= 0:
            return text
        left -= over + 8
    return ""


def _question(history: History, index: Index, at: int, stop: int, counter: TokenCounter) -> Question | None:
    """Analyze the question of the prompt at `at`; None if there is nothing to search for.

    If none of its terms occurs before position `stop`, the exchange before the prompt is added, because a prompt such
    as "And then?" refers to it. None if that does not help, or if the prompt has no text.
    """
    said = [item for item in history.readings[at].items if item.kind is Kind.USER and item.mark is None]
    if all(item.media for item in said):
        return None
    whole = question_text(history.readings[at])
    for text in dict.fromkeys((asking_part(whole, counter), whole)):
        question = Question.of(text)
        if _occurs(question, index, stop):
            return question
    before = next((place for place in reversed(range(at)) if history.readings[place].has_prompt), at)
    items = [item for _, item in history.items(before, at + 1)]
    texts = [
        answer_text(item) or item.text for item in items if item.kind in (Kind.USER, Kind.TEXT) or answer_text(item)
    ]
    question = Question.of("\n".join(texts))
    return question if _occurs(question, index, stop) else None


def _occurs(question: Question, index: Index, stop: int) -> bool:
    """True if a term of the question occurs before position `stop`, or if the question names a month."""
    return bool(question.months) or any(index.posts[term][0] < stop for term in question.terms & index.posts.keys())


def _first_within(plan: Plan, ranked: list[int], tokens: int) -> list[int]:
    """First messages of a ranking that have at most `tokens` tokens together.

    A tool call counts with its result, and every message for at most a quarter of `tokens`.
    """
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
    """Positions of messages that are whole in the view, and of those that are shortened in it.

    A call whose result is shortened is in neither.
    """
    here = [(at, shape) for at, shape in cycle.kept if not shape.bare]
    abridged = [at for at, shape in here if shape.skeleton or shape.limit is not None]
    partly = set(abridged)
    calls = {call for call, answer in plan.pairing.pairs if answer in partly}
    return {at for at, _ in here} - partly - calls, abridged


def _abridged_texts(plan: Plan, cycle: Cycle, abridged: Sequence[int]) -> list[str]:
    """Texts that are left of messages shortened in the view."""
    shapes, history = dict(cycle.kept), plan.history
    messages = (apply_shape(history.messages[at], history.readings[at], shapes[at], plan.counter) for at in abridged)
    return [item.text for message in messages if message is not None for item in plan.reader.one(message).items]


def shorten_block(sizes: BlockSizes, block: Block, room: int) -> Block:
    """Shorten a block to its best passages within `room` tokens."""
    text = find_block(sizes, block.at, room, within=block.text, fill=room)
    return replace(block, text=text, cuts=block.cuts + 1)
