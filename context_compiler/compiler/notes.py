"""What stands in place of what is left out: one note, and one fenced part with everything verbatim.

The note is compiler-written text only. Whatever users, tools and documents said goes into the fenced part,
which is always on the user channel.
"""

from __future__ import annotations

from dataclasses import dataclass

from context_compiler.compiler.plan import Cut
from context_compiler.compiler.prompt import TITLES, about
from context_compiler.compiler.quotes import SMALLEST, cost, verbatim
from context_compiler.compiler.sections import fitted, gathered
from context_compiler.compiler.view import Quote, note_text
from context_compiler.messages.fences import fence, neutral
from context_compiler.messages.truncate import clamp
from context_compiler.recall.selection import choose, passages, quoted
from context_compiler.template.prompts import prose
from context_compiler.tokens import TokenCounter

SPARE = 4
"""Tokens that disarming a cut text may cost."""

LASTING, PART = 1_000, 16
"""What is quoted in a live view is paid for with every request: so many tokens and one part of the room are enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What stands in place of what is out."""

    note: str = ""
    quotes: str = ""
    channel: str = "user"
    own: bool = False
    """The note is the body of a template that asks no model."""
    quoted: tuple[Quote, ...] = ()
    """What the verbatim part holds, and why."""


def written_for(cut: Cut, summary: str, covered: set[int]) -> Written:
    """The note and the verbatim part, together within what was set aside and what is left below the target.

    Args:
        cut: What stays.
        summary: What a model wrote; empty for a note that needs none.
        covered: Positions that the summary covers; the rest of what is out may be quoted.
    """
    if not cut.reserve or not (cut.out or cut.abridged):
        return Written()
    counter, options = cut.counter, cut.options
    cap = min(cut.limits.cap(options.fidelity), cut.reserve)
    note = _note(summary, cut, cap) if cut.out else ""
    left = cut.target - cut.kept - cost(note, counter)
    if options.named:
        left = min(left, cap - cost(note, counter))
    if cut.lasting:
        left = min(left, LASTING + cut.limits.room // PART)
    own_body = options.template.compiler == "none" and not summary
    loose = [] if own_body else [index for index in cut.out if index not in covered]
    quotes, quoted = verbatim(cut, loose, left, note=note, lost=bool(summary), recall=bool(options.recall))
    return Written(note=note, quotes=quotes, channel=options.inject if summary else "user", own=own_body, quoted=quoted)


def _note(summary: str, cut: Cut, cap: int) -> str:
    counter = cut.counter
    preface = prose("preface")
    room = cap - cost(note_text("x", preface), counter)
    if room < SMALLEST:
        return ""
    return note_text(_disarmed(summary, room, counter) if summary else _own_note(cut, room), preface)


def _disarmed(text: str, room: int, counter: TokenCounter) -> str:
    """A text cut to its room: what is cut apart could pass for a fence again, and is looked at again."""
    return neutral(clamp(neutral(text), room - SPARE, counter))


def _own_note(cut: Cut, room: int) -> str:
    """The note that needs no model: the template's own body where it is of that kind, else the shipped one.

    What it asks for is cut until the body fits, so that no fence loses its end.
    """
    options = cut.options
    template = options.template if options.template.compiler != "agent" else options.extractive
    wanted = template.wants()
    values, _ = fitted(gathered(cut, cut.out, wanted), rules=template.sections, room=None, counter=cut.counter)
    candidates = passages(cut.history, cut.bench.outline, cut.out, cut.counter) if "recent_turns" in wanted else ()
    gone = set(cut.out)
    left_out = sum(turn.start in gone for turn in cut.bench.outline.turns)
    about_it = {"template": about(template), "cap": room, "turns_left_out": left_out}
    share = room
    while share > SMALLEST and (values or candidates):
        said = {name: clamp(text, share, cut.counter) for name, text in values.items()}
        said["recent_turns"] = quoted(choose(candidates, share))
        fenced = {name: fence(TITLES[name], text) for name, text in said.items() if text.strip()}
        body = template.render({**fenced, **about_it})
        if cut.counter.text(body) <= room:
            return body
        share //= 2
    return _disarmed(template.render(about_it), room, cut.counter)
