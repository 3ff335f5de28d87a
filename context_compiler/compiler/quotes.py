"""The verbatim part: what users, tools and documents said, word for word, in one fence on the user channel.

In this order: what was laid down for good, what was worked on when, the ledger of identifiers, and passages: those
that answer what is asked first, then those that are worth most. Whatever one of them does not need is the next one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.identifiers import identifiers_and_quotes
from context_compiler.compiler.summary import TITLES, fit_sections, gather_sections, template_facts
from context_compiler.compiler.view import Quote, note_text
from context_compiler.messages.fences import fence, neutralize, one_line
from context_compiler.messages.history import History
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.prompts import Instruction
from context_compiler.messages.shapes import truncate
from context_compiler.messages.turns import Outline
from context_compiler.recall import Question, indexed, pending, rank
from context_compiler.recall.changes import mark_changes
from context_compiler.recall.selection import Passage, choose, passages, quoted
from context_compiler.recall.terms import STOPS, words
from context_compiler.template import prompt_text
from context_compiler.tokens import TokenCounter

QUOTES = "QUOTED FROM EARLIER TURNS"
SMALLEST = 16
"""Below this many tokens a note or a quote says nothing."""

PINNED_WHY = "pinned: a standing instruction"
PINNED = "Standing instructions the user gave earlier:"
PINS = 10
"""Divisor of the room for messages that standing instructions may take."""
PINNED_MOST = 3
"""And of what there is for everything verbatim: a view also has to answer."""
PINNED_LEAST = 96
"""Tokens that they may take all the same, as long as they leave half: one rule has room in a small view too."""

OUTLINED = "What was worked on when:"
OUTLINE = 20
"""Divisor of the view's room that the outline may take."""


def cost(text: str, counter: TokenCounter) -> int:
    """Tokens of a text in a view."""
    return counter.text(text) + MESSAGE_OVERHEAD + 1 if text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """Candidates for quotes."""

    candidates: Sequence[Passage]
    ranks: Sequence[float]
    """Score of each candidate for the pending question; empty if that does not count."""
    broad: bool
    """True if questions to this view may be about the whole conversation."""
    wide: bool
    """True if the pending question is for a sequence or for the whole."""
    newer: Mapping[tuple[int, int], tuple[int, int]]
    """Of candidates that a later one changes: the place of that."""

    @classmethod
    def of(cls, selection: Selection, loose: Sequence[int], recall: bool) -> _Sources:
        """Everything that these messages say, and what is asked of it."""
        candidates = passages(selection.history, selection.draft.outline, loose, selection.counter) if loose else ()
        question = Question.of(selection.focus or pending(selection.history)) if recall else None
        ranks: Sequence[float] = []
        newer: Mapping[tuple[int, int], tuple[int, int]] = {}
        if question and candidates:
            history, index = selection.history, indexed(selection.history)
            ranked = [*zip(candidates, rank(index, question, candidates), strict=True)]
            ranked, newer = mark_changes(
                index.changes, history, len(history), selection.draft.outline, ranked, lambda _: (), selection.counter
            )
            candidates, ranks = [one for one, _ in ranked], [score for _, score in ranked]
        return cls(
            candidates=candidates,
            ranks=ranks,
            broad=selection.lasting or (question is not None and question.broad),
            wide=question is not None and question.wide,
            newer=newer,
        )


def verbatim(
    selection: Selection, loose: Sequence[int], room: int, *, note: str, lost: bool, recall: bool
) -> tuple[str, tuple[Quote, ...]]:
    """The fenced part and what it holds, at most `room` tokens; empty when nothing fits.

    Args:
        selection: What stays and what is out.
        loose: Positions that no summary covers.
        room: The most tokens.
        note: What stands before it.
        lost: A model has written a summary, and what it lost is listed.
        recall: What answers the pending question comes first.
    """
    counter = selection.counter
    inner = room - cost(fence(QUOTES, "x"), counter)
    sources = _Sources.of(selection, loose if inner > SMALLEST else (), recall)
    while inner > SMALLEST:
        body, held = _body(selection, sources, inner, note, lost)
        if not body:
            return "", ()
        text = fence(QUOTES, body)
        over = cost(text, counter) - room
        if over <= 0:
            return text, held
        inner -= over + 8
    return "", ()


def _body(selection: Selection, sources: _Sources, room: int, note: str, lost: bool) -> tuple[str, tuple[Quote, ...]]:
    """Everything within the fence, and what it is; an instruction that is quoted with its text is not said twice."""
    share = max(room // PINNED_MOST, min(PINNED_LEAST, room // 2))
    pins = _pins(selection, min(share, selection.limits.room // PINS))
    body, held = _verbatim(selection, sources, room, note, lost, pins)
    quoted_too = [pin for pin in pins if any(pin.text in quote.text for quote in held if quote.why != PINNED_WHY)]
    if not quoted_too:
        return body, held
    fewer, again = _verbatim(selection, sources, room, note, lost, [pin for pin in pins if pin not in quoted_too])
    lost_pins = [pin for pin in quoted_too if not any(pin.text in quote.text for quote in again)]
    return (body, held) if lost_pins else (fewer, again)


def _verbatim(
    selection: Selection, sources: _Sources, room: int, note: str, lost: bool, pins: Sequence[Instruction]
) -> tuple[str, tuple[Quote, ...]]:
    counter = selection.counter
    pinned = "\n".join([PINNED, *(f"- turn {pin.turn + 1}: {pin.text}" for pin in pins)]) if pins else ""
    left = room - cost(pinned, counter)
    outline = _outlined(selection, min(left, selection.target // OUTLINE)) if sources.broad else ""
    left -= cost(outline, counter)
    chosen: list[Passage] = []

    def quoting(tokens: int) -> str:
        chosen[:] = choose(sources.candidates, tokens, sources.ranks, wide=sources.wide, newer=sources.newer)
        return quoted(chosen)

    quotes = identifiers_and_quotes(selection, (note, pinned), left, quoting, lost=lost)
    body = "\n\n".join(block for block in (pinned, outline, quotes) if block)
    listed = quotes.removesuffix(quoted(chosen))
    return body, (*_reasons(pins, outline, listed), *_why(chosen, sources))


def _pins(selection: Selection, room: int) -> list[Instruction]:
    """The newest pins that fit, oldest first."""
    kept: list[Instruction] = []
    left = room - SMALLEST
    for pin in reversed(selection.pinned):
        left -= selection.counter.text(f"- turn {pin.turn + 1}: {pin.text}") + 1
        if left < 0:
            break
        kept.append(pin)
    return kept[::-1]


def _outlined(selection: Selection, room: int) -> str:
    text = phases(selection.history, selection.draft.outline, set(selection.out), room - SMALLEST, selection.counter)
    return f"{OUTLINED}\n{text}" if text else ""


def _reasons(pins: Sequence[Instruction], outline: str, listed: str) -> list[Quote]:
    found = [Quote(what=f"turn {pin.turn + 1}", why=PINNED_WHY, text=pin.text) for pin in pins]
    found += [Quote(what=_label(line), why="outline", text=line) for line in outline.splitlines()[1:]]
    return [*found, *(Quote(what=_label(line), why="ledger", text=line) for line in listed.splitlines() if line)]


def _label(line: str) -> str:
    return line.partition("]")[0].partition(" ·")[0].removeprefix("[")


def _why(chosen: Sequence[Passage], sources: _Sources) -> list[Quote]:
    scores = dict(zip(((one.position, one.order) for one in sources.candidates), sources.ranks, strict=False))
    found: list[Quote] = []
    for passage in chosen:
        score = scores.get((passage.position, passage.order), 0.0)
        why = f"recalled, score {score:.2f}" if score > 0 else "worth most for its tokens"
        found.append(Quote(what=f"turn {passage.turn + 1}", why=why, text=passage.text))
    return found


SPARE = 4
"""Tokens that disarming a cut text may cost."""

LASTING, PART = 1_000, 16
"""Limits of the quotes of a live view, which every request pays for: tokens, and a divisor of the room."""

BRIEFLY = 4
"""Divisor of the room that they have at most in a brief view: what a prompt asks for is in its block, which goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Summary and quotes that replace the left-out messages."""

    note: str = ""
    quotes: str = ""
    channel: str = "user"
    own: bool = False
    """The note is the body of a template that asks no model."""
    quoted: tuple[Quote, ...] = ()
    """Contents of the verbatim part, with reasons."""


def written_for(selection: Selection, summary: str, covered: set[int]) -> Written:
    """The note and the verbatim part, together within what was set aside and what is left below the target.

    Args:
        selection: What stays.
        summary: What a model wrote; empty for a note that needs none.
        covered: Positions that the summary covers; the rest of what is out may be quoted.
    """
    if not selection.reserve or not (selection.out or selection.abridged):
        return Written()
    counter, policy = selection.counter, selection.policy
    cap = min(selection.limits.cap(policy.fidelity), selection.reserve)
    note = _note(summary, selection, cap) if selection.out else ""
    left = _below_high(selection) - cost(note, counter)
    if policy.fidelity_named:
        left = min(left, cap - cost(note, counter))
    if selection.order is not None:
        left = min(left, selection.reserve - cost(note, counter))
    if selection.lasting and not selection.limits.notes:
        left = min(left, LASTING + selection.limits.room // PART)
        left = min(left, selection.limits.room // BRIEFLY) if selection.brief else left
    own_body = policy.template.compiler == "none" and not summary
    said = set[int]() if selection.lasting else covered
    loose = [] if own_body else [index for index in selection.out if index not in said]
    recall = bool(selection.focus) or (bool(policy.recall) and (selection.brief or not selection.lasting))
    quotes, quoted = verbatim(selection, loose, left, note=note, lost=bool(summary), recall=recall)
    return Written(note=note, quotes=quotes, channel=policy.inject if summary else "user", own=own_body, quoted=quoted)


def _below_high(selection: Selection) -> int:
    """Tokens for note and quotes: what is left below the target, more where a turn that is spared took it.

    Not more than leaves what is recalled for the prompt its room: the quotes were not chosen for it.
    """
    limits, left = selection.limits, selection.target - selection.kept
    if not selection.lasting or not limits.notes:
        return left
    free = max(0, limits.budget - limits.low - limits.block)
    return min(limits.notes, left + min(free, (limits.high - limits.low) // 2))


def _note(summary: str, selection: Selection, cap: int) -> str:
    counter = selection.counter
    preface = prompt_text("preface")
    room = cap - cost(note_text("x", preface), counter)
    if room < SMALLEST:
        return ""
    return note_text(_disarmed(summary, room, counter) if summary else _own_note(selection, room), preface)


def _disarmed(text: str, room: int, counter: TokenCounter) -> str:
    """A text cut to its room: what is cut apart could pass for a fence again, and is looked at again."""
    return neutralize(truncate(neutralize(text), room - SPARE, counter))


def _own_note(selection: Selection, room: int) -> str:
    """The note that needs no model: the template's own body where it is of that kind, else the shipped one.

    What it asks for is cut until the body fits, so that no fence loses its end.
    """
    policy = selection.policy
    template = policy.template if policy.template.compiler != "agent" else policy.extractive
    wanted = template.wants()
    values, _ = fit_sections(
        gather_sections(selection, selection.out, wanted), rules=template.sections, room=None, counter=selection.counter
    )
    candidates = (
        passages(selection.history, selection.draft.outline, selection.out, selection.counter)
        if "recent_turns" in wanted
        else ()
    )
    gone = set(selection.out)
    left_out = sum(turn.start in gone for turn in selection.draft.outline.turns)
    about_it = {"template": template_facts(template), "cap": room, "turns_left_out": left_out}
    share = room
    while share > SMALLEST and (values or candidates):
        said = {name: truncate(text, share, selection.counter) for name, text in values.items()}
        said["recent_turns"] = quoted(choose(candidates, share))
        fenced = {name: fence(TITLES[name], text) for name, text in said.items() if text.strip()}
        body = template.render({**fenced, **about_it})
        if selection.counter.text(body) <= room:
            return body
        share //= 2
    return _disarmed(template.render(about_it), room, selection.counter)


PHASE_LINE = 40
"""Tokens that a phase takes, about."""

LEAST_PHASES, MOST_PHASES = 3, 24
"""Phases; fewer say nothing, more are not an outline."""

PHASE_TURNS = 3
"""Minimum turns of a phase, and turns compared on each side of a gap."""

SCANNED = 2_000
"""Characters of what a user said that are looked at."""

OPENING = 80
"""Characters of how a phase began."""

TELLING_WORDS = 5
"""Words that tell a phase from the others."""

NEW_DAY = 0.25
"""Depth added to a gap by a change of day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserTurn:
    """User text of one turn."""

    turn: int
    day: str
    opening: str
    words: Counter[str]


def phases(history: History, outline: Outline, out: Collection[int], room: int, counter: TokenCounter) -> str:
    """One line a phase of what is out, together at most `room` tokens; empty where there is too little of either.

    A phase ends where the talk turns to other words, at the deepest gaps in lexical cohesion between what users said
    before and after (TextTiling; Hearst 1997), and rather where a day ends than within one. Questions about order,
    progress and the whole have this to stand on, which no ranking of passages gives them.

    Args:
        history: The raw history.
        outline: Its turns.
        out: Positions of the messages that are left out.
        room: The most tokens.
        counter: What prices the lines.
    """
    turns = _turns(history, outline, out)
    wanted = min(MOST_PHASES, room // PHASE_LINE, len(turns) // PHASE_TURNS)
    gaps = _gaps(turns) if wanted >= LEAST_PHASES else []
    while wanted >= LEAST_PHASES:
        parts = _split(turns, gaps, wanted)
        text = "\n".join(_line(part, telling) for part, telling in zip(parts, _telling(parts), strict=True))
        if counter.text(text) <= room:
            return text
        wanted -= 1 + wanted // 8
    return ""


def _turns(history: History, outline: Outline, out: Collection[int]) -> list[_UserTurn]:
    found: list[_UserTurn] = []
    for turn in outline.turns:
        if turn.start not in out or turn.index < 0:
            continue
        items = [item for item in history.readings[turn.start].items if item.kind is Kind.USER and item.mark is None]
        text = " ".join(item.text[:SCANNED] for item in items)
        own = Counter(word for word in words(text) if _tells(word))
        day = history.readings[turn.start].day
        found.append(_UserTurn(turn=turn.index, day=day, opening=one_line(text, OPENING), words=own))
    return found


def _tells(word: str) -> bool:
    """True if a word can tell one phase from another; in scripts without spaces, words are pairs of characters."""
    return word not in STOPS and not word.isdigit() and (len(word) > 2 or not word.isascii())


def _gaps(turns: Sequence[_UserTurn]) -> list[int]:
    """Possible beginnings of a phase, deepest gap first, ties to the earlier."""
    depths = [
        (
            _cohesion(turns[max(0, at - PHASE_TURNS) : at], turns[at : at + PHASE_TURNS])
            - NEW_DAY * _new_day(turns, at),
            at,
        )
        for at in range(PHASE_TURNS, len(turns) - PHASE_TURNS + 1)
    ]
    return [at for _, at in sorted(depths)]


def _split(turns: Sequence[_UserTurn], gaps: Sequence[int], wanted: int) -> list[Sequence[_UserTurn]]:
    """As many phases as wanted, where they can have their least length."""
    cuts: list[int] = []
    for at in gaps:
        if len(cuts) + 1 == wanted:
            break
        if all(abs(at - other) >= PHASE_TURNS for other in cuts):
            cuts.append(at)
    edges = [0, *sorted(cuts), len(turns)]
    return [turns[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


def _new_day(turns: Sequence[_UserTurn], at: int) -> bool:
    return turns[at].day != turns[at - 1].day


def _cohesion(before: Sequence[_UserTurn], after: Sequence[_UserTurn]) -> float:
    """Cosine similarity of the word counts of two stretches."""
    one, other = _together(before), _together(after)
    both = sum(times * other[word] for word, times in one.items())
    sizes = sqrt(sum(times * times for times in one.values()) * sum(times * times for times in other.values()))
    return both / sizes if sizes else 0.0


def _together(part: Sequence[_UserTurn]) -> Counter[str]:
    words = Counter[str]()
    for one in part:
        words.update(one.words)
    return words


def _telling(parts: Sequence[Sequence[_UserTurn]]) -> list[list[str]]:
    """The words of each phase that tell it from the others, most telling first (tf-idf; ties in alphabetic order)."""
    counts = [_together(part) for part in parts]
    spread = Counter(word for count in counts for word in count)
    found: list[list[str]] = []
    for count in counts:
        weights = {word: times * log((1 + len(parts)) / spread[word]) for word, times in count.items()}
        best = sorted((word for word in weights if weights[word] > 0), key=lambda word: (-weights[word], word))
        found.append(best[:TELLING_WORDS])
    return found


def _line(part: Sequence[_UserTurn], telling: Sequence[str]) -> str:
    first, last = part[0], part[-1]
    turns = f"turns {first.turn + 1}-{last.turn + 1}" if last is not first else f"turn {first.turn + 1}"
    days = f"{first.day} to {last.day}" if first.day != last.day else first.day
    label = " · ".join(filter(None, (turns, days)))
    about = f" ({', '.join(telling)})" if telling else ""
    return f"[{label}] {first.opening}{about}"
