"""What a compiler's model is asked about what went, why none is, and which answers are of no use. Pure."""

from __future__ import annotations

from hashlib import blake2b

from context_compiler.compiler.cycle import spans
from context_compiler.compiler.plan import Cut
from context_compiler.compiler.prompt import ALWAYS, TITLES, Order, written
from context_compiler.compiler.sections import chunks, fitted, gathered, lines, recent

TOO_SMALL = 200
"""Below this cap, in tokens, no model is asked: it could not say anything."""

PROMPT_ROOM = 32_000
"""The least that one prompt may carry of a span, in tokens, where the compiler's window is not known."""


def why_no_model(cut: Cut, turn: int) -> str | None:
    """Why no model is asked this time; None when one is."""
    options, cap = cut.options, cut.limits.cap(cut.options.fidelity)
    if options.model == "none" or options.template.compiler != "agent":
        return "no model by choice"
    if not cut.span or not cut.reserve:
        return "nothing to compile"
    if cut.previous is not None and cut.previous.compiled_turn == turn:
        return "one model compile a turn"
    if options.every_turn:
        return None
    if cap < TOO_SMALL:
        return f"a cap of {cap} tokens is too small"
    cost = sum(cut.history.readings[index].tokens for index in cut.span)
    if cost < max(cut.limits.room // 10, cap):
        return f"only {cost} tokens are new"
    return None


def order(cut: Cut) -> Order:
    """What a model is asked about everything that went since it was last asked."""
    options = cut.options
    cap = min(cut.limits.cap(options.fidelity), cut.reserve)
    given = gathered(cut, cut.span, options.template.wants() | set(ALWAYS))
    room, rules = max(options.prompt_room, cut.limits.budget), options.template.sections
    spoken = lines(cut.history, cut.span, options.recent_tool_results)
    newer, older = recent(spoken, rules=rules, counter=cut.counter)
    earlier = {"previous_summary": cut.previous.summary if cut.previous else ""}
    notes, shorter = fitted(earlier, rules=rules, room=None, counter=cut.counter)
    values, dropped = fitted(given, rules=rules, room=room // 4, counter=cut.counter)
    turns = chunks(newer, room // 2, cut.counter)
    prompts = written(options.template, values, turns, previous=notes["previous_summary"], cap=cap)
    said = {**values, **notes, "recent_turns": "".join(turns)}
    had = {**said, **given}
    return Order(
        key=_key(cut, cap),
        prompts=prompts,
        cap=cap,
        included=tuple(name for name in TITLES if said.get(name, "").strip()),
        missing=tuple(
            sorted(name for name in options.template.wants() if name in TITLES and not had.get(name, "").strip())
        ),
        dropped=(*older, *shorter, *dropped),
    )


def _key(cut: Cut, cap: int) -> str:
    """The name of a compile: the same span is never compiled twice with the same template, fidelity and model."""
    options = cut.options
    facts = (
        cut.history.ids[cut.out[-1]],
        spans(cut.out),
        options.template.sha256,
        str(options.fidelity),
        options.model,
        cap,
        options.recent_tool_results,
        options.scope,
    )
    return blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def refusal(cut: Cut, text: str) -> str | None:
    """Why an answer is not used: it is empty, or it does not save anything."""
    if not text.strip():
        return "the answer is empty"
    size = cut.counter.text(text)
    cost = sum(cut.history.readings[index].tokens for index in cut.span)
    cost += cut.counter.text(cut.previous.summary) if cut.previous else 0
    return f"{size} tokens are not fewer than the {cost} they stand for" if size >= cost else None
