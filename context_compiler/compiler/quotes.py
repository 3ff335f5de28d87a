"""Write the verbatim part of a view: quotes from left-out messages, in one fence on the user channel.

It contains, in this order, an outline of the phases of the conversation, the list of identifiers, and passages. Room
that one of them does not need goes to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from context_compiler.compiler.cut_order import Selection
from context_compiler.compiler.identifiers import identifiers_and_quotes
from context_compiler.compiler.policy import LARGE, SMALL
from context_compiler.compiler.rules import RULE_WHY, STATES, fitting_rules, rule_origin, unlisted, without_rules
from context_compiler.compiler.summary import TITLES, fit_sections, gather_sections, template_facts
from context_compiler.compiler.view import Quote, note_text
from context_compiler.messages.fences import ELLIPSIS, QUOTED_TITLE, fence, neutralize
from context_compiler.messages.items import MESSAGE_OVERHEAD
from context_compiler.messages.prompts import asking_part, asks
from context_compiler.messages.rules import Rule
from context_compiler.messages.shapes import WHOLE, truncate
from context_compiler.recall import Question, Ranking, changes_of, index_of, pending_question
from context_compiler.recall.changes import corrections
from context_compiler.recall.outline import phases
from context_compiler.recall.passages import MIN_QUOTE, Passage, passages, write_quotation
from context_compiler.recall.ranking import MAX_TERMS
from context_compiler.recall.selection import Candidates, mark_changes
from context_compiler.recall.unknown import spelt
from context_compiler.resilience import in_time
from context_compiler.template import prompt_text
from context_compiler.tokens import TokenCounter

OUTLINED = "What was worked on when:"


def cost(text: str, counter: TokenCounter) -> int:
    """Tokens of a text as a part of a view; 0 for an empty text."""
    return counter.text(text) + MESSAGE_OVERHEAD + 1 if text else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """Candidates for quotes, with their relevance to the pending question."""

    candidates: Sequence[Passage]
    ranks: Sequence[float]
    """Relevance of each candidate to the pending question; empty if the quotes are not chosen for it."""
    broad: bool
    """True if questions to this view may be about the whole conversation."""
    pool: Candidates
    """The candidates, ready to be selected from."""

    @classmethod
    def of(cls, selection: Selection, loose: Sequence[int], rules: Sequence[str], recall: bool) -> _Sources:
        """Split the messages at `loose` into candidates; rank them for the pending question if `recall`."""
        history, outline, counter = selection.history, selection.draft.outline, selection.counter
        asked, question = _pending_question(selection) if recall else (False, None)
        stop = max(loose, default=-1) + 1
        question = spelt(question, index_of(history), stop) if loose and question else question
        ranking = Ranking(index_of(history), question, stop) if loose and question else None
        bears = None if ranking is None or selection.lasting else ranking.weight  # a live view has a block for that
        pieces = passages(history, outline, loose, counter, bears) if loose else ()
        stays = zip(history.readings, selection.draft.shapes, strict=True)
        shown = {item.text.strip() for reading, shape in stays if shape == WHOLE for item in reading.items}
        unquoted = (*rules, *selection.retired_rules[-STATES:])
        candidates = without_rules((passage for passage in pieces if passage.text.strip() not in shown), unquoted)
        ranks: Sequence[float] = []
        if candidates:
            scores = ranking.passages(candidates) if ranking else [0.0] * len(candidates)
            ranked = mark_changes(history, outline, [*zip(candidates, scores, strict=True)], counter)
            candidates = [candidate for candidate, _ in ranked]
            ranks = [score for _, score in ranked] if question else []
        return cls(
            candidates=candidates,
            ranks=ranks,
            broad=selection.lasting or (question is not None and question.broad),
            pool=Candidates(
                candidates,
                ranks,
                asked=asked,
                mentions=ranking.end if ranking and question and question.wide else None,
            ),
        )


def _pending_question(selection: Selection) -> tuple[bool, Question]:
    """Question for which quotes are chosen, the focus or the pending prompt, and True unless the prompt asks nothing.

    Of a very long one only the asking part counts.
    """
    counter, pending = selection.counter, pending_question(selection.history, selection.counter)
    text = selection.focus or (pending.text if pending else "")
    question, part = Question.of(text), asking_part(text, counter)
    asked = bool(selection.focus) or asks(part, counter)
    return asked, question if len(question.terms) <= MAX_TERMS else Question.of(part)


def write_quotes(
    selection: Selection, sources: _Sources, room: int, *, note: str, rules: Sequence[str], lost: bool
) -> tuple[str, tuple[Quote, ...]]:
    """Write the verbatim part in at most `room` tokens; returns its text and its quotes, empty if nothing fits.

    Args:
        selection: The messages that stay and those that are left out.
        sources: What may be quoted.
        room: Maximum number of tokens.
        note: Note that precedes it.
        rules: Rules that the view contains anyway, which are not quoted as well.
        lost: A model has written a summary, and identifiers that it lost are listed.
    """
    counter = selection.counter
    inner = room - cost(fence(QUOTED_TITLE, "x"), counter)
    while inner > MIN_QUOTE:
        body, held = _verbatim(selection, sources, inner, note, rules, lost)
        if not body:
            return "", ()
        text = fence(QUOTED_TITLE, body)
        over = cost(text, counter) - room
        if over <= 0:
            return text, held
        inner -= over + 8
    return "", ()


def _verbatim(
    selection: Selection, sources: _Sources, room: int, note: str, rules: Sequence[str], lost: bool
) -> tuple[str, tuple[Quote, ...]]:
    """Text within the fence, and its quotes."""
    outline = _outline_text(selection, min(room, selection.target // SMALL), rules) if sources.broad else ""
    left = room - cost(outline, selection.counter)
    chosen: list[Passage] = []

    def quoting(tokens: int) -> str:
        chosen[:] = sources.pool.choose(tokens)
        return write_quotation(chosen)

    quotes = identifiers_and_quotes(
        selection, (note, *(rule.text for rule in selection.rules)), left, quoting, lost=lost
    )
    body = "\n\n".join(block for block in (outline, quotes) if block)
    listed = quotes.removesuffix(write_quotation(chosen))
    return body, (*_other_quotes(outline, listed), *_passage_quotes(chosen, sources))


def _outline_text(selection: Selection, room: int, rules: Sequence[str]) -> str:
    history, counter, out = selection.history, selection.counter, set(selection.out)
    text = phases(history, selection.draft.outline, out, room - MIN_QUOTE, counter, rules)
    return f"{OUTLINED}\n{text}" if text else ""


def _other_quotes(outline: str, listed: str) -> list[Quote]:
    quotes = [Quote(what=_label(line), why="outline", text=line) for line in outline.splitlines()[1:]]
    return [*quotes, *(Quote(what=_label(line), why="ledger", text=line) for line in listed.splitlines() if line)]


def _label(line: str) -> str:
    return line.partition("]")[0].partition(" ·")[0].removeprefix("[")


def _passage_quotes(chosen: Sequence[Passage], sources: _Sources) -> list[Quote]:
    scores = dict(zip((candidate.place for candidate in sources.candidates), sources.ranks, strict=False))
    quotes: list[Quote] = []
    for passage in chosen:
        is_answer = passage.place in sources.pool.answers
        why = f"recalled, score {scores[passage.place]:.2f}" if is_answer else "worth most for its tokens"
        quotes.append(Quote(what=f"turn {passage.turn + 1}", why=why, text=passage.text))
    return quotes


SPARE = 4
"""Tokens reserved for the characters that `neutralize` may add to a truncated text."""

LASTING = 1_000
"""Maximum size in tokens of the quotes of a live view, to which a small part of the room is added. They are few because
every request pays for them, and a prompt that asks gets a recall block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Summary and quotes that replace the left-out messages."""

    note: str = ""
    quotes: str = ""
    channel: str = "user"
    own: bool = False
    """True if the note is the body of a template that asks no model."""
    rules: tuple[str, ...] = ()
    """Rules that the view lists."""
    quoted: tuple[Quote, ...] = ()
    """Contents of the verbatim part, with reasons."""


def written_for(selection: Selection, summary: str) -> Written:
    """Write the note and the verbatim part, together within the tokens reserved for them and left below the target.

    Args:
        selection: The messages that stay and those that are left out.
        summary: Summary by a model; empty for a note without a model.
    """
    if not selection.reserve or not (selection.out or selection.abridged):
        return _with_rules(Written(), selection)
    counter, policy = selection.counter, selection.policy
    cap = min(selection.limits.cap(policy.fidelity), selection.reserve)
    note = _note(summary, selection, cap) if selection.out else ""
    left = _room_for_quotes(selection) - cost(note, counter)
    if policy.fidelity_named:
        left = min(left, cap - cost(note, counter))
    if selection.order is not None:
        left = min(left, selection.reserve - cost(note, counter))
    if selection.lasting and not selection.limits.max_notes:
        left = min(left, LASTING + selection.limits.room // SMALL)
        left = min(left, selection.limits.room // LARGE) if selection.brief else left
    written = _with_rules(Written(note=note), selection)
    own_body = policy.template.compiler == "none" and not summary
    loose = () if own_body or left <= MIN_QUOTE else selection.out
    recall = bool(selection.focus) or (bool(policy.recall) and (selection.brief or not selection.lasting))
    said_rules, nothing = _said_rules(written, selection), ("", tuple[Quote, ...]())
    quotes, quoted = in_time(
        lambda: write_quotes(
            selection,
            _Sources.of(selection, loose, said_rules, recall),
            left,
            note=note,
            rules=said_rules,
            lost=bool(summary),
        ),
        nothing,
    )
    channel = policy.inject if summary else "user"
    return replace(written, quotes=quotes, channel=channel, own=own_body, quoted=(*written.quoted, *quoted))


def _with_rules(written: Written, selection: Selection) -> Written:
    """Add the rules that neither the kept messages nor the note contain, as far as they fit."""
    missing = _missing_rules(written, selection)
    rules = fitting_rules(missing, selection.limits.rules, selection.counter)
    quoted = tuple(Quote(what=rule_origin(rule), why=RULE_WHY, text=rule.text) for rule in rules)
    return replace(written, rules=tuple(rule.text for rule in rules), quoted=quoted)


def _missing_rules(written: Written, selection: Selection) -> list[Rule]:
    return unlisted(selection.rules, selection.history, selection.draft.shapes, written.note, selection.counter)


def _said_rules(written: Written, selection: Selection) -> list[str]:
    """Rules in force that a kept message, the note or the list contains."""
    missing = _missing_rules(written, selection)
    return [rule.text for rule in selection.rules if rule.text in written.rules or rule not in missing]


def _room_for_quotes(selection: Selection) -> int:
    """Tokens for note and quotes: the rest below the target, and more if a spared turn has used that up.

    The extra tokens must leave room for the recall block, because quotes are not chosen for the prompt.
    """
    draft, limits = selection.draft, selection.limits
    joined = any(draft.here(index) is not None for index in draft.before_active())
    line = 0 if joined else cost(ELLIPSIS, selection.counter)  # between note or quotes and the current prompt
    left = selection.target - selection.kept - line
    if not selection.lasting or not limits.max_notes:
        return left
    free = max(0, limits.budget - limits.low - limits.block_reserve)
    return min(limits.max_notes, left + min(free, (limits.high - limits.low) // 2))


def _note(summary: str, selection: Selection, cap: int) -> str:
    counter = selection.counter
    preface = prompt_text("preface")
    room = cap - cost(note_text("x", preface), counter)
    if room < MIN_QUOTE:
        return ""
    if not summary:
        note = note_text(in_time(lambda: _own_note(selection, room), ""), preface)
        small = selection.policy.template.compiler != "none" and cost(note, counter) * SMALL > selection.target // 2
        return "" if small else note
    corrected = in_time(lambda: corrections(changes_of(selection.history), summary), "")
    left = room - counter.text(corrected) - 2 if corrected else room
    return note_text("\n\n".join(filter(None, (_fit_safely(summary, left, counter), neutralize(corrected)))), preface)


def _fit_safely(text: str, room: int, counter: TokenCounter) -> str:
    """Truncate a text to `room` tokens and neutralize fences, again after the cut because it may join new ones."""
    return neutralize(truncate(neutralize(text), room - SPARE, counter))


def _own_note(selection: Selection, room: int) -> str:
    """Write a note without a model, from the template if it needs none, else from the shipped extractive one.

    Its sections are cut until the whole body fits, so that no fence loses its end.
    """
    policy = selection.policy
    template = policy.template if policy.template.compiler != "agent" else policy.extractive
    wanted = template.wants()
    history, outline, counter = selection.history, selection.draft.outline, selection.counter
    sections = gather_sections(selection, selection.out, wanted)
    values, _ = fit_sections(sections, rules=template.sections, room=None, counter=counter)
    candidates = passages(history, outline, selection.out, counter) if "recent_turns" in wanted else ()
    unranked = [(passage, 0.0) for passage in candidates]
    ranked = mark_changes(history, outline, unranked, counter)
    current = Candidates([passage for passage, _ in ranked])
    gone = set(selection.out)
    left_out = sum(turn.start in gone for turn in outline.turns)
    about_it = {"template": template_facts(template), "cap": room, "turns_left_out": left_out}
    share = room
    while share > MIN_QUOTE and (values or candidates):
        said = {name: truncate(text, share, counter) for name, text in values.items()}
        said["recent_turns"] = write_quotation(current.choose(share))
        fenced = {name: fence(TITLES[name], text) for name, text in said.items() if text.strip()}
        body = template.render({**fenced, **about_it})
        if counter.text(body) <= room:
            return body
        share //= 2
    return _fit_safely(template.render(about_it), room, counter)
