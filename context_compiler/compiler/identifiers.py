"""What later calls may need of what a view leaves out, the likeliest first.

What calls were made with says what calls are made with: where the values of a field have been used, its other
values are likely to be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log2

from context_compiler.compiler.mentions import Mention, mentions, readable
from context_compiler.compiler.patterns import Sort
from context_compiler.compiler.plan import Cut
from context_compiler.compiler.specifics import Told
from context_compiler.messages.items import Kind
from context_compiler.messages.shapes import WHOLE, shaped

LATER = frozenset({Sort.ID, Sort.PATH, Sort.URL})
"""What a call is made with."""

LONG = 1.0
"""What it takes away from anything else to be twice as long: a long command has the room of ten numbers."""

CALLED, REPEATED, RECENT, MANY, FIELD = 2.0, 0.5, 1.0, 0.5, 2.0
"""What it adds to have been called with, to be repeated, to be recent, to stand alone, and to be in a used field."""


@dataclass(slots=True, kw_only=True)
class Need:
    """Something that the view does not hold."""

    homes: list[Mention]
    """Where it may be quoted from: the last call that was made with it, where it stood last, and where first."""
    times: int = 0
    called: bool = False
    last: int = 0
    """The position of the last message that holds it."""
    fields: set[str] = field(default_factory=set[str])


def needs(cut: Cut, told: Sequence[str]) -> list[Need]:
    """What is left out and neither the messages kept nor `told` hold, what calls are made with first.

    Args:
        cut: What stays and what is out.
        told: What stands beside the messages: note and quotes.
    """
    whole = {index for index, shape in enumerate(cut.bench.shapes) if shape == WHOLE}
    found: dict[str, Need] = {}
    beside: Counter[tuple[int, int]] = Counter()
    called: set[str] = set()
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for mention in mentions(cut.history, cut.bench.outline, range(len(cut.history)), rules=False):
        text = mention.specific.text
        fields[mention.field].add(text)
        if mention.called:
            called.add(text)
        if mention.position in whole:
            continue
        beside[mention.position, mention.part] += 1
        _note(found.setdefault(text, Need(homes=[mention, mention, mention])), mention)
    rates = {name: (len(values & called) + 0.5) / (len(values) + 2) for name, values in fields.items() if name}
    holds = Told(*_kept(cut), *told).holds
    length = max(1, len(cut.history))

    def rank(need: Need) -> tuple[bool, float]:
        alone = min(beside[home.position, home.part] for home in need.homes)
        rate = max((rates.get(name, 0.0) for name in need.fields), default=0.0)
        worth = CALLED * need.called + REPEATED * log2(1 + need.times) + RECENT * need.last / length
        one = need.homes[0].specific
        later = one.sort in LATER
        long = 0.0 if later else LONG * log2(1 + len(one.verbatim))
        return not later, MANY * log2(1 + alone) + long - worth - FIELD * rate

    return sorted((need for need in found.values() if not holds(need.homes[0].specific)), key=rank)


def _note(need: Need, mention: Mention) -> None:
    need.times, need.last = need.times + 1, mention.position
    need.called = need.called or mention.called
    need.fields.add(mention.field)
    need.homes[1] = mention
    if mention.called or not need.homes[0].called:
        need.homes[0] = mention


def _kept(cut: Cut) -> Iterator[str]:
    """What the messages say that stay, as they stay."""
    for index, shape in enumerate(cut.bench.shapes):
        if shape is None or shape.bare:
            continue
        reading, message = cut.history.readings[index], cut.history.messages[index]
        if shape == WHOLE:
            yield from (readable(item) for item in reading.items if item.kind is not Kind.THINKING)
            continue
        left = shaped(message, reading, shape, cut.counter)
        yield from (
            (str(getattr(part, "content", "") or getattr(part, "args", "")) for part in left.parts) if left else ()
        )
