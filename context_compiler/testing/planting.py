"""Planting: facts, rules, changed values and secrets at seeded places of a conversation, and how long they survive."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart

from context_compiler.testing.conversation import Conversation

FACT, RULE, UPDATE, SECRET = "fact", "rule", "update", "secret"
"""Kinds of plants."""

NAMES = "heron swan otter lynx falcon badger marten osprey plover curlew dunlin siskin".split()
THINGS = "staging host|archive bucket|billing queue|mail relay|report folder|key vault|test tenant|image cache".split(
    "|"
)
TEXTS = {
    FACT: "The {thing} of project {name} is called {value}.",
    RULE: "Always write {value} before the name of project {name}.",
    UPDATE: "The limit of project {name} is {value} requests.",
    SECRET: "My access code for project {name} is {value}.",
}
HALF = 0.5
"""Share below which plants count as lost."""

EARLY = 0.7
"""Fraction of the turns, from the first, in which something is planted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A text that was planted."""

    kind: str
    text: str
    turn: int
    """Turn in which it is said, from 1; of an update, the turn of the newest value."""
    value: str
    """Words by which it is found; of an update, the newest value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Share of plants that requests contain, by kind and by round: the number of turns since they were said."""

    counts: Mapping[str, Mapping[int, tuple[int, int]]]
    """Plants that are there and all plants, by kind and round."""

    def share(self, kind: str, round: int | None = None) -> float:
        """Share of the plants of a kind that requests contain, in one round or in all."""
        if not (rounds := self.counts.get(kind)):
            raise ValueError(f"{kind!r}: nothing of this kind was planted, only: {', '.join(self.counts)}")
        counts = list(rounds.values()) if round is None else [rounds[round]]
        return sum(there for there, _ in counts) / sum(every for _, every in counts)

    def cliff(self, kind: str) -> int | None:
        """The first round in which less than half of the plants of a kind are left; None if there is none."""
        return next((round for round in sorted(self.counts[kind]) if self.share(kind, round) < HALF), None)

    def assert_at_least(self, **shares: float) -> None:
        """Check the share of each kind over all rounds, such as `fact=0.9`."""
        __tracebackhide__ = True
        low = [kind for kind, least in shares.items() if self.share(kind) < least]
        if low:
            wanted = ", ".join(f"{kind} {self.share(kind):.2f} of {shares[kind]:.2f}" for kind in low)
            raise AssertionError(f"too few plants survive: {wanted}\n{self}")

    def __str__(self) -> str:
        """A table: a line for each kind, its share in all rounds, its cliff, and its share in some rounds."""
        last = max((round for rounds in self.counts.values() for round in rounds), default=0)
        shown = sorted({0, *(2**power for power in range(12) if 2**power <= last), last})
        lines = [f"{'kind':8}{'all':>6}{'cliff':>7}" + "".join(f"{round:>6}" for round in shown)]
        for kind, rounds in self.counts.items():
            shares = "".join(f"{self.share(kind, round):>6.2f}" if round in rounds else f"{'':6}" for round in shown)
            cliff = self.cliff(kind)
            lines.append(f"{kind:8}{self.share(kind):>6.2f}{'-' if cliff is None else cliff:>7}{shares}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A conversation with plants in it."""

    prompts: list[Any]
    """The prompts, or the messages of a recording, with the plants."""
    plants: tuple[Plant, ...] = field(repr=False)

    def survival(self, conversation: Conversation) -> Survival:
        """Find the plants in the requests of a conversation with these prompts."""
        counts: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        last = {request.turn: request for request in conversation.requests}
        for plant in self.plants:
            for turn in sorted(turn for turn in last if turn >= plant.turn):
                there, every = counts[plant.kind].get(turn - plant.turn, (0, 0))
                there += conversation.contains(last[turn], plant.value)
                counts[plant.kind][turn - plant.turn] = there, every + 1
        return Survival(counts=counts)


def plant(
    prompts: Sequence[Any],
    *,
    facts: int | Sequence[str] = 0,
    rules: int | Sequence[str] = 0,
    updates: int | Sequence[Sequence[str]] = 0,
    secrets: int | Sequence[str] = 0,
    seed: int = 0,
) -> Planted:
    """Plant texts into a conversation, at places that depend only on the seed.

    Args:
        prompts: Prompts for `live`, or the messages of a recording for `replay`.
        facts: Texts, or the number of texts to make up, as for the other kinds.
        rules: Texts.
        updates: Texts that replace each other, oldest first, for each value.
        secrets: Texts.
        seed: Seed of the places and of what is made up.

    Raises:
        ValueError: There are too few prompts.
    """
    draw, planted = random.Random(seed), list(prompts)
    positions = [position for position, prompt in enumerate(planted) if _has_prompt(prompt)]
    if not positions:
        raise ValueError("there is no prompt in which something can be planted")
    early = range(max(1, int(len(positions) * EARLY)))
    plants: list[Plant] = []
    for kind, wanted in ((FACT, facts), (RULE, rules), (UPDATE, updates), (SECRET, secrets)):
        for texts, value in _texts(kind, wanted, draw, len(plants)):
            if len(texts) > len(positions):
                raise ValueError(
                    f"{len(texts)} texts that replace each other need as many prompts; there are {len(positions)}"
                )
            places = early if len(texts) <= len(early) else range(len(positions))
            turns = sorted(draw.sample(places, len(texts)))
            for turn, text in zip(turns, texts, strict=True):
                planted[positions[turn]] = _with_text(planted[positions[turn]], text)
            plants.append(Plant(kind=kind, text=texts[-1], turn=turns[-1] + 1, value=value))
    return Planted(prompts=planted, plants=tuple(plants))


def _texts(kind: str, wanted: Any, draw: random.Random, first: int) -> Iterator[tuple[Sequence[str], str]]:
    """Texts of each plant of a kind, oldest first, and the words by which the newest is found."""
    if not isinstance(wanted, int):
        for text in wanted:
            texts: Sequence[str] = [text] if isinstance(text, str) else text
            yield texts, texts[-1]
        return
    for number in range(first, first + wanted):
        name = f"{NAMES[number % len(NAMES)]}-{number}"
        values = [_value(kind, draw) for _ in range(2 if kind == UPDATE else 1)]
        subject = draw.choice(THINGS)
        yield [TEXTS[kind].format(thing=subject, name=name, value=value) for value in values], values[-1]


def _value(kind: str, draw: random.Random) -> str:
    if kind == UPDATE:
        return str(draw.randrange(10_000, 1_000_000))
    word = draw.choice(NAMES)
    return f"{word}-{draw.randrange(16**6):06x}" if kind != SECRET else f"{draw.randrange(10**16):016d}"


def _has_prompt(prompt: Any) -> bool:
    if isinstance(prompt, ModelRequest):
        return any(isinstance(part, UserPromptPart) for part in prompt.parts)
    return not isinstance(prompt, ModelResponse)


def _with_text(prompt: Any, text: str) -> Any:
    """A prompt, or the message with it, that begins with a text."""
    if isinstance(prompt, str):
        return f"{text} {prompt}"
    if not isinstance(prompt, ModelRequest):
        return [text, *cast("Sequence[Any]", prompt)]
    parts = list(prompt.parts)
    index = next(index for index, part in enumerate(parts) if isinstance(part, UserPromptPart))
    part = cast(UserPromptPart, parts[index])
    parts[index] = replace(part, content=_with_text(part.content, text))
    return replace(prompt, parts=parts)
