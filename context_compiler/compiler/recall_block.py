"""Recall: which passages of the past a prompt gets.

The block of a prompt is searched at the first request of its user turn (`find_first_block`), and is sent directly
before the prompt. During the turn its bytes change only if the view is cut back, if the block must be shortened, or if
a question is added to the turn. `block_sizes` says how large it may be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

from context_compiler.compiler.block_sizes import BlockSizes
from context_compiler.compiler.cycle import Block
from context_compiler.compiler.policy import Plan
from context_compiler.compiler.rules import without_rules
from context_compiler.messages.fences import RECALLED_TITLE, fence
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.prompts import asking_part
from context_compiler.messages.shapes import apply_shape
from context_compiler.recall import Index, Question, Ranking, Relevance, index_of, question_text
from context_compiler.recall.passages import Passage, answer_text, new_passages, passages, write_quotation
from context_compiler.recall.ranking import CLOSE
from context_compiler.recall.selection import Candidates, mark_changes, spread
from context_compiler.recall.unknown import spelt
from context_compiler.tokens import TokenCounter

MIN_BLOCK = 48
"""Minimum size of a block in tokens; a smaller one would be little more than its fence."""

MENTIONS = 24
"""Minimum number of average passages that a block must have room for if mentions are to be spread over the
conversation. In a smaller block, the best passages contain more of a sequence or of the whole."""

NEAREST = 8
"""For a short statement about something said earlier, such as "I need the code of the gate" or "write to the caterer":
number of best messages one of which must contain its subject."""

ABOUT, TERMS = 0.3, 2
"""A passage contains the subject of such a statement if it has at least this fraction of it (by idf) and this number of
its terms, one of which no message has that is whole in the view."""

FLOOR = 0.2
"""In tool work, the best passage must contain at least this fraction of the question, or the block is not worth its
tokens."""

WIDE = 4
"""Candidates for a block, in tokens as a multiple of its room. More candidates find little more and cost time."""

TELLING = 0.5
"""If that best passage is from a tool, minimum fraction of its coverage that any other passage must have."""

NEVER_SAID = "Never said here:"
"""Beginning of the line that names the terms of a question which nobody has said."""


def lacks_room_for_block(sizes: BlockSizes, cost: int) -> bool:
    """True if the view should be cut back first, because a prompt that asks would find too little room for its block.

    Args:
        sizes: Sizes of the blocks of this request.
        cost: Exact tokens of the request without any block.
    """
    return sizes.is_narrow(cost, sizes.expected(None)) and sizes.is_narrow(cost, wanted_tokens(sizes))


def wanted_tokens(sizes: BlockSizes) -> int:
    """Size of the block that the prompt of a request would get if nothing but `recall=` limited it."""
    question, most = sizes.plan.question, sizes.expected(None)
    return sizes.plan.counter.text(find_first_block(sizes, question.at, most, most, ())) if question and most else 0


def find_first_block(sizes: BlockSizes, position: int, most: int, room: int, said: Sequence[str]) -> str:
    """Find the block for the prompt at `position`, at the first request of its turn; empty if nothing is relevant.

    A prompt that does not ask, but is about something said earlier, gets only messages that contain its subject.

    Args:
        sizes: Sizes of the blocks of this request.
        position: Position of the prompt.
        most: Maximum size in tokens, from `BlockSizes.most`.
        room: Tokens that are free.
        said: Other texts in the view, which are not repeated.
    """
    search = _Search(sizes, position, said)
    return search.find(min(most, room), asks=sizes.asks_past(search.prompt))


def shorten_block(sizes: BlockSizes, block: Block, room: int) -> Block:
    """Shorten a block to its best passages within `room` tokens."""
    text = _Search(sizes, block.at, within=block.text).find(room)
    return replace(block, text=text, cuts=block.cuts + 1)


class _Search:
    """The search for the block of one prompt."""

    def __init__(self, sizes: BlockSizes, position: int, said: Sequence[str] = (), within: str = "") -> None:
        """Prepare a search; nothing is searched before `find`.

        Args:
            sizes: Sizes of the blocks of this request.
            position: Position of the prompt.
            said: Texts in the view other than those of the cycle.
            within: Text to which the passages are restricted; empty for no restriction.
        """
        self._plan, self._cycle = sizes.plan, sizes.cycle
        self._at, self._said, self._within = position, said, within
        self._history, self._counter = sizes.plan.history, sizes.plan.counter
        pending, own = sizes.plan.question, self._history.readings[position]
        self.prompt = pending.text if pending is not None and pending.at == position else question_text(own)

    def find(self, room: int, *, asks: bool = True) -> str:
        """Find past text for the prompt, as a fenced block of at most `room` tokens; empty for none.

        1. Rank the messages that the view leaves out or shortens, and take the best, up to `WIDE` times the room.
        2. Split them into passages; skip texts that the view contains. For a question about a sequence or the whole
           conversation, take passages from all parts of it instead.
        3. Rank the passages, and end where the answer ends: at the score `Ranking.end`. In tool work, give up if the
           best one contains too little of the question.
        4. Mark passages that later messages revise, select passages for the room (see `recall.selection`), and write
           them.

        Args:
            room: Maximum size in tokens.
            asks: The prompt asks; else only messages with its subject are taken.
        """
        if room < MIN_BLOCK:
            return ""
        first = self._absent if asks else ""
        if not self._occurs(self._question):
            return _write((), room, self._counter, first=first)
        best = self._ranking.best(self._whole)
        about = Counter[int]() if asks else self._subject_messages(best)
        if not asks:
            room = min(room, MIN_BLOCK * bool(about) + about.total())
        candidates, wide = self._candidates(best, room)
        pool = _rank(candidates, self._ranking.passages(candidates), self._ranking.end, about.keys())
        if self._plan.tool_work and not self._within:
            pool = _relevant_in_tool_work(pool, Relevance(self._index, self._question, floor=0))
        if not pool or room < MIN_BLOCK:
            return _write((), room, self._counter, first=first)
        pool = mark_changes(
            self._history,
            self._plan.outline,
            spread(pool, lambda pair: pair[0].turn) if wide else pool,
            self._counter,
            until=self._at,
            quote=self._left_out,
        )
        mentions = self._ranking.end if wide else None
        return _write(pool, room, self._counter, first=first, mentions=mentions)

    @property
    def _absent(self) -> str:
        """Line that names the terms of the question which nobody has said; empty unless it is wanted."""
        absent = self._plan.absent if self._plan.policy.says_absent else ()
        return f"{NEVER_SAID} {', '.join(absent)}" if absent else ""

    @cached_property
    def _index(self) -> Index:
        return index_of(self._history)

    @cached_property
    def _question(self) -> Question:
        """Analysis of the question.

        If none of its terms occurs in what the view may leave out, the exchange before the prompt is added, because a
        prompt such as "And then?" refers to it. The question is empty if the prompt has no text.
        """
        history, position = self._history, self._at
        if not self.prompt.strip():
            return Question.of("")
        for text in dict.fromkeys((asking_part(self.prompt, self._counter), self.prompt)):
            question = spelt(Question.of(text), self._index, self._cycle.decided)
            if self._occurs(question):
                return question
        before = next(
            (earlier for earlier in reversed(range(position)) if history.readings[earlier].has_prompt), position
        )
        items = [item for _, item in history.items(before, position + 1)]
        texts = [
            answer_text(item) or item.text for item in items if item.kind in (Kind.USER, Kind.TEXT) or answer_text(item)
        ]
        return Question.of("\n".join(texts))

    def _occurs(self, question: Question) -> bool:
        """True if a term of the question occurs in what the view may leave out, or if the question names a month."""
        posts, stop = self._index.posts, self._cycle.decided
        return bool(question.months) or any(posts[term][0] < stop for term in question.terms & posts.keys())

    @cached_property
    def _ranking(self) -> Ranking:
        """Scores of the messages for the question."""
        return Ranking(self._index, self._question, self._cycle.decided, question_at=self._at)

    @cached_property
    def _abridged(self) -> list[int]:
        """Positions of messages that are shortened in the view, or that lack parts there."""
        return [position for position, shape in self._cycle.kept if not shape.bare and shape.is_partial]

    @cached_property
    def _whole(self) -> set[int]:
        """Positions of messages that are whole in the view; a call whose result is shortened is not."""
        partly = set(self._abridged)
        calls = {call for call, answer in self._plan.pairing.pairs if answer in partly}
        return {position for position, shape in self._cycle.kept if not shape.bare} - partly - calls

    @cached_property
    def _rules(self) -> Sequence[str]:
        """Rules that the view contains: listed, in a message that is whole in it, or in a text before a prompt."""
        cycle, whole, said = self._cycle, self._whole, "\n".join(self._said)
        contained = (
            rule.text
            for rule in self._plan.rules
            if rule.position >= cycle.decided or rule.position in whole or rule.text in said
        )
        return (*cycle.rules, *contained)

    @cached_property
    def _shown(self) -> str:
        """Text of the view, without messages that are whole in it: these are no candidates."""
        shapes, history, reader = dict(self._cycle.kept), self._history, self._plan.reader
        left = (
            apply_shape(history.messages[index], history.readings[index], shapes[index], self._counter)
            for index in self._abridged
        )
        abridged = [item.text for message in left if message is not None for item in reader.one(message).items]
        return "\n".join((self._cycle.note, self._cycle.quotes, *self._said, *abridged))

    def _quotable(self, positions: Sequence[int]) -> list[Passage]:
        """Passages of messages that the view does not contain; a former copy of the prompt is none either."""
        quotable = passages(self._history, self._plan.outline, positions, self._counter, self._ranking.weight)
        new = new_passages(without_rules(quotable, self._rules), self.prompt, self._shown)
        return [passage for passage in new if passage.text.strip() in self._within] if self._within else new

    def _left_out(self, position: int) -> Sequence[Passage]:
        """Passages of a message, none if it is whole in the view."""
        return () if position in self._whole else self._quotable([position])

    def _subject_messages(self, best: Sequence[int]) -> Counter[int]:
        """Tokens of those of the best messages that contain the subject of the prompt, by position."""
        candidates = self._quotable(best[:NEAREST])
        relevance = Relevance(self._index, Question.of(self.prompt), floor=0)
        held = [relevance.held(passage.text) for passage in candidates]
        shares = [relevance.share(terms) * (len(terms) >= TERMS and not terms <= self._in_view) for terms in held]
        least = max(ABOUT, TELLING * max(shares, default=0.0))
        telling = {passage.position for passage, share in zip(candidates, shares, strict=True) if share >= least}
        tokens = Counter[int]()
        for passage in candidates:
            if passage.position in telling:
                tokens[passage.position] += passage.tokens
        return tokens

    @cached_property
    def _in_view(self) -> set[str]:
        """Terms of the question that a message has which is whole in the view."""
        posts, decided = self._index.posts, self._cycle.decided
        return {
            term
            for term in self._question.terms & posts.keys()
            if any(decided <= position < self._at or position in self._whole for position in posts[term][::2])
        }

    def _candidates(self, best: list[int], room: int) -> tuple[list[Passage], bool]:
        """Passages to select from, in order of the conversation, and True if they are spread over all of it."""
        self._index.changes.extend(self._history)
        candidates = self._quotable(_first_within(self._plan, best, WIDE * room))
        if self._question.wide and room * len(candidates) >= MENTIONS * sum(passage.tokens for passage in candidates):
            return self._quotable(_first_within(self._plan, spread(best, int), WIDE * room)), True
        return candidates, False


def _rank(
    candidates: Sequence[Passage], scores: Sequence[float], end: float, first: Set[int]
) -> Sequence[tuple[Passage, float]]:
    """Sort the passages that score at least `end` best first, with those of the messages `first` before all others.

    Repeated pieces of tool results are dropped.
    """
    texts = set[str]()
    pairs = [(passage, score) for passage, score in zip(candidates, scores, strict=True) if score >= end]
    pairs.sort(key=lambda pair: (pair[0].position in first, pair[1]), reverse=True)
    return [pair for pair in pairs if not pair[0].tool or not (pair[0].text in texts or texts.add(pair[0].text))]


def _relevant_in_tool_work(
    ranked: Sequence[tuple[Passage, float]], relevance: Relevance
) -> Sequence[tuple[Passage, float]]:
    """Filter passages for tool work by coverage, the fraction of the question that they contain.

    There are none if the best coverage is below `FLOOR`. If the best passage is from a tool, only passages with at
    least half of its coverage are left. The coverage of a passage from a message with a tool exchange is the mean of
    two values: that of the passage alone, and that of the passage together with the exchange.
    """
    compared = ranked[:CLOSE]
    held = [relevance.held(passage.text) for passage, _ in compared]
    exchanges: defaultdict[int, set[str]] = defaultdict(set)
    for (passage, _), terms in zip(compared, held, strict=True):
        if passage.speaker == "tool":
            exchanges[passage.position] |= terms
    shares = [
        (relevance.share(terms) + relevance.share(terms | exchanges.get(passage.position, set()))) / 2
        for (passage, _), terms in zip(compared, held, strict=True)
    ]
    best = max(shares, default=0.0)
    of_tools = any(
        share == best and passage.speaker == "tool" for (passage, _), share in zip(compared, shares, strict=True)
    )
    if best < FLOOR:
        return ()
    if not of_tools:
        return ranked
    return [pair for pair, share in zip(compared, shares, strict=True) if share >= best * TELLING]


def _write(
    ranked: Sequence[tuple[Passage, float]],
    room: int,
    counter: TokenCounter,
    *,
    first: str,
    mentions: float | None = None,
) -> str:
    """Select passages and write them fenced, after a line `first`, in at most `room` tokens; empty if nothing fits."""
    before = accumulate((passage.tokens for passage, _ in ranked), initial=0)
    weighed = [pair for pair, tokens in zip(ranked, before, strict=False) if tokens <= WIDE * room]
    ranks = [score for _, score in weighed]
    candidates = Candidates([passage for passage, _ in weighed], ranks, mentions=mentions)
    alone = fence(RECALLED_TITLE, first) if first else ""
    left = room - counter.text(alone or fence(RECALLED_TITLE, "x")) - 8 - MESSAGE_OVERHEAD
    while left > 0 and (chosen := candidates.choose(left)):
        text = fence(RECALLED_TITLE, "\n".join(filter(None, (first, write_quotation(chosen)))))
        over = counter.labelled(text) + MESSAGE_OVERHEAD - room
        if over <= 0:
            return text
        left -= over + 8
    return alone if counter.labelled(alone) + MESSAGE_OVERHEAD <= room else ""


def _first_within(plan: Plan, ranked: list[int], tokens: int) -> list[int]:
    """First messages of a ranking that have at most `tokens` tokens together.

    A tool call counts with its result, and every message for at most a quarter of `tokens`.
    """
    readings, pairs = plan.history.readings, dict[int, int]()
    for call, answer in plan.pairing.pairs:
        pairs[call] = pairs.get(call, readings[call].tokens) + pairs.get(answer, readings[answer].tokens)
    left, most = tokens, tokens // WIDE
    for number, position in enumerate(ranked):
        size = pairs[position] if position in pairs else readings[position].tokens
        left -= size if size < most else most
        if left < 0:
            return ranked[:number]
    return ranked
