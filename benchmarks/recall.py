"""Evidence recall: is what a question needs in the view that is sent with it?

    python -m benchmarks.recall --set locomo --budgets 1000,2000 [--blind] [--fast]

The data are real conversations with questions whose evidence is labelled: LoCoMo (two people; one is the user, the
other the assistant) and BEAM (chats with an assistant). Query-aware, the question is the last user prompt; query-blind,
the last prompt is "Go on.". A budget covers the view's messages without that last prompt. No model judges: for LoCoMo,
an evidence turn counts if its text, or four in five of its word 5-grams, are in the view; for BEAM, the share of the
evidence's word 5-grams counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_ai.messages import CachePoint, ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from rich.console import Console
from rich.progress import track
from rich.table import Table

from context_compiler import compile_view
from context_compiler.tokens import TokenCounter

NEUTRAL = "Go on."
"""Last prompt if no question is asked."""

SETS = ("locomo", "beam-100k", "beam-500k")
DEFAULTS = {"locomo": (1_000, 2_000, 4_000, 8_000), "beam-100k": (2_000, 4_000, 8_000, 16_000, 32_000)}
ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
"""Fields in which BEAM has the answer to a question."""
GRAM = 5
ENOUGH = 0.8
DRAWS, SEED = 2_000, 7
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)

Fill = Callable[[Sequence[ModelMessage], int], Sequence[ModelMessage]]
"""Function under test: turns a history that ends with a prompt, and a budget, into the messages of a view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and the texts of the messages that answer it."""

    text: str
    evidence: tuple[str, ...]
    kind: str
    answer: str = ""
    """Recorded answer."""
    after: int = 0
    """Position of the last message that holds evidence."""
    stop: int | None = None
    """Number of messages before it; None if it is asked at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation with questions about it."""

    name: str
    messages: tuple[ModelMessage, ...]
    questions: tuple[Question, ...]
    whole: bool
    """True if evidence counts by whole messages instead of shares of its 5-grams."""


def data_folder() -> Path:
    """Return the folder of the data sets: `CONTEXT_COMPILER_DATA`, else `../shared/data` next to the checkout."""
    given = os.environ.get("CONTEXT_COMPILER_DATA")
    return Path(given) if given else Path(__file__).parents[2] / "shared" / "data"


def load(name: str, folder: Path) -> list[Conversation]:
    """Load the conversations of one of `SETS`."""
    if name == "locomo":
        return [_locomo(one) for one in _json(folder / "locomo" / "conversations.json")]
    chats = sorted((folder / "beam" / name.removeprefix("beam-").upper()).iterdir(), key=lambda path: path.name)
    return [_beam(chat) for chat in chats]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def said(role: str, text: str, when: datetime) -> ModelMessage:
    """Build one message of a conversation."""
    if role == "user":
        return ModelRequest(parts=[UserPromptPart(content=text, timestamp=when)], timestamp=when)
    return ModelResponse(parts=[TextPart(content=text)], timestamp=when)


def _locomo(data: Mapping[str, Any]) -> Conversation:
    talk = data["conversation"]
    messages: list[ModelMessage] = []
    texts: dict[tuple[int, int], str] = {}
    at: dict[tuple[int, int], int] = {}
    for session in range(1, 100):
        for line in talk.get(f"session_{session}", ()):
            when = datetime.strptime(talk[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y")
            shared = f" and shared {line['blip_caption']}." if line.get("blip_caption") else ""
            text = f"{line['text']}{shared}"
            place = _place(line["dia_id"])[0]
            texts[place], at[place] = text, len(messages)
            role = "user" if line["speaker"] == talk["speaker_a"] else "assistant"
            messages.append(said(role, text, when.replace(tzinfo=UTC)))
    asked = [
        Question(
            text=one["question"],
            evidence=tuple(texts[place] for place in places),
            kind=str(one["category"]),
            answer=str(one["answer"]),
            after=max(at[place] for place in places),
        )
        for one in data["qa"]
        if one["category"] != 5 and (places := [place for place in _place(" ".join(one["evidence"])) if place in texts])
    ]
    name = f"locomo {data['sample_id']}"
    return Conversation(name=name, messages=tuple(messages), questions=tuple(asked), whole=True)


def _place(text: str) -> list[tuple[int, int]]:
    return list(dict.fromkeys((int(one), int(two)) for one, two in re.findall(r"D:?(\d+):(\d+)", text)))


def _beam(chat: Path) -> Conversation:
    messages: list[ModelMessage] = []
    texts: dict[int, str] = {}
    at: dict[int, int] = {}
    for batch in _batches(_json(chat / "chat.json")):
        for line in (line for turn in batch["turns"] for line in turn):
            anchor = line.get("time_anchor") or batch.get("time_anchor") or ""
            when = (
                _anchored(anchor) or (messages[-1].timestamp if messages else None) or datetime(2024, 1, 1, tzinfo=UTC)
            )
            texts[line["id"]] = re.sub(r"\s*->-> [\d, ]+$", "", line["content"])
            at[line["id"]] = len(messages)
            messages.append(said(line["role"], texts[line["id"]], when))
    asked = [
        Question(
            text=one["question"],
            evidence=tuple(texts[place] for place in places),
            kind=kind,
            answer=next((str(one[name]) for name in ANSWERS if name in one), ""),
            after=max(at[place] for place in places),
        )
        for kind, group in _json(chat / "probing_questions.json").items()
        for one in group
        if (places := [place for place in dict.fromkeys(_ids(one.get("source_chat_ids"))) if place in texts])
    ]
    name = f"beam {chat.parent.name} {chat.name}"
    return Conversation(name=name, messages=tuple(messages), questions=tuple(asked), whole=False)


def _batches(data: Any) -> Iterator[Any]:
    """Yield the batches of a chat; in longer chats they are nested in plans."""
    for entry in data:
        if "turns" in entry:
            yield entry
        else:
            for batches in entry.values():
                yield from _batches(batches)


def _anchored(anchor: str) -> datetime | None:
    try:
        return datetime.strptime(anchor, "%B-%d-%Y").replace(tzinfo=UTC)
    except ValueError:
        return None


def _ids(given: Any) -> Iterator[int]:
    if isinstance(given, int):
        yield given
    elif given:
        for one in given.values() if isinstance(given, dict) else given:
            yield from _ids(one)


def asked(conversation: Conversation, question: str, stop: int | None = None) -> list[ModelMessage]:
    """Return the first `stop` messages with the question as the last prompt, at the time of the last of them."""
    messages = conversation.messages[:stop]
    return [*messages, said("user", question, messages[-1].timestamp or FIRST_DAY)]


def compiled(messages: Sequence[ModelMessage], budget: int) -> Sequence[ModelMessage]:
    """Return the view of this package, without a model and with the extractive template."""
    return asyncio.run(compile_view(messages, template="extractive", budget=budget)).messages


def shown(messages: Iterable[ModelMessage]) -> str:
    """Return the text of a view without its last prompt, which may share a part with earlier text."""
    texts = [text for message in messages for part in message.parts for text in texts_of(part)]
    return "\n".join(texts[:-1])


def texts_of(part: Any) -> list[str]:
    """Texts of a part, one by one."""
    content = getattr(part, "content", None)
    pieces = content if isinstance(content, list | tuple) else () if content is None else (content,)
    return [str(getattr(piece, "content", piece)) for piece in pieces if not isinstance(piece, CachePoint)]


def grams(text: str) -> frozenset[tuple[str, ...]]:
    """Return the word 5-grams of a text; if it is shorter, all its words as one gram."""
    words = re.findall(r"\w+", text.lower())
    return frozenset(zip(*(words[at:] for at in range(GRAM)), strict=False)) or frozenset({tuple(words)})


known = cache(grams)


def score(question: Question, view: str, *, whole: bool) -> float:
    """Return the share of the evidence that a view's text holds."""
    there = grams(view)
    if not whole:
        wanted = frozenset[tuple[str, ...]]().union(*map(known, question.evidence))
        return len(wanted & there) / len(wanted)
    flat = " ".join(view.split())
    found = [
        " ".join(text.split()) in flat or len(known(text) & there) >= ENOUGH * len(known(text))
        for text in question.evidence
    ]
    return sum(found) / len(found)


def measured(conversation: Conversation, budget: int, fill: Fill, *, blind: bool, counter: TokenCounter) -> list[float]:
    """Return the evidence recall of every question about a conversation; `budget` excludes the question's tokens."""
    if blind:
        view = shown(fill(asked(conversation, NEUTRAL), budget + counter.text(NEUTRAL) + 4))
        return [score(question, view, whole=conversation.whole) for question in conversation.questions]
    views = (
        shown(fill(asked(conversation, question.text, question.stop), budget + counter.text(question.text) + 4))
        for question in conversation.questions
    )
    return [
        score(question, view, whole=conversation.whole)
        for question, view in zip(conversation.questions, views, strict=True)
    ]


def interval(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the mean over all questions, and its 95 % bootstrap interval over conversations."""
    draw = random.Random(SEED)
    means: list[float] = []
    for _ in range(DRAWS):
        drawn = [one for group in draw.choices(groups, k=len(groups)) for one in group]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    every = [one for group in groups for one in group]
    return sum(every) / len(every), means[DRAWS // 40], means[-1 - DRAWS // 40]


def by_kind(kinds: Sequence[str], values: Sequence[float]) -> dict[str, tuple[float, int]]:
    """Return the mean and the number of values for every kind of question, sorted by kind."""
    groups = {kind: [value for own, value in zip(kinds, values, strict=True) if own == kind] for kind in kinds}
    return {kind: (sum(groups[kind]) / len(groups[kind]), len(groups[kind])) for kind in sorted(groups)}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--set", choices=SETS, default="locomo", dest="name")
    parser.add_argument("--budgets", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--blind", action="store_true", help='nothing is asked: the last prompt is "Go on."')
    parser.add_argument("--fast", action="store_true", help="two conversations, every tenth question")
    parser.add_argument("--kinds", action="store_true", help="also print a row for every kind of question")
    chosen = parser.parse_args()
    found = load(chosen.name, data_folder())
    table = Table(
        "budget", "recall %", "95 %", title=f"{chosen.name}, {'query-blind' if chosen.blind else 'query-aware'}"
    )
    for budget in chosen.budgets or DEFAULTS.get(chosen.name, (8_000,)):
        groups = [
            measured(one, budget, compiled, blind=chosen.blind, counter=TokenCounter())
            for one in track(fast(found) if chosen.fast else found, f"{budget:,} tokens")
        ]
        mean, low, high = (100 * value for value in interval(groups))
        table.add_row(f"{budget:,}", f"{mean:.1f}", f"{low:.1f}-{high:.1f}")
        kinds = [question.kind for one in (fast(found) if chosen.fast else found) for question in one.questions]
        every = [value for group in groups for value in group]
        for kind, (mean, count) in by_kind(kinds, every).items() if chosen.kinds else ():
            table.add_row(f"  {kind}", f"{100 * mean:.1f}", f"{count} questions")
    Console().print(table)


def fast(conversations: Sequence[Conversation]) -> list[Conversation]:
    """Return a small subset: two conversations, every tenth question."""
    return [
        Conversation(name=one.name, messages=one.messages, questions=one.questions[::10], whole=one.whole)
        for one in conversations[:2]
    ]


if __name__ == "__main__":
    main()
