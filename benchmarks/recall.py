"""Evidence recall: is what a question needs in the view that is sent with it?

The data are real conversations with questions whose evidence is labelled: LoCoMo (two people; one is the user, the
other the assistant) and BEAM (chats with an assistant). Query-aware, the question is the last user prompt; query-blind,
the last prompt is "Go on.". A budget covers the view's messages without that last prompt. No model judges: for LoCoMo,
an evidence turn counts if its text, or four in five of its word 5-grams, are in the view; for BEAM, the share of the
evidence's word 5-grams counts.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_ai.messages import CachePoint, ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

NEUTRAL = "Go on."
"""Last prompt if no question is asked."""

SETS = ("locomo", "beam-100k", "beam-500k")
ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
"""Fields in which BEAM has the answer to a question."""
GRAM = 5
ENOUGH = 0.8
DRAWS, SEED = 2_000, 7
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)


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
    speakers: tuple[str, str] = ("user", "assistant")
    """Names by which questions call the user and the assistant."""


def data_folder() -> Path:
    """Return the folder of the data sets: `CONTEXT_COMPILER_DATA`, else `../shared/data` next to the checkout."""
    folder = os.environ.get("CONTEXT_COMPILER_DATA")
    return Path(folder) if folder else Path(__file__).parents[2] / "shared" / "data"


def load(name: str, folder: Path) -> list[Conversation]:
    if name == "locomo":
        return [_locomo(talk) for talk in _json(folder / "locomo" / "conversations.json")]
    chats = sorted((folder / "beam" / name.removeprefix("beam-").upper()).iterdir(), key=lambda path: path.name)
    return [_beam(chat) for chat in chats]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def said(role: str, text: str, when: datetime) -> ModelMessage:
    if role == "user":
        return ModelRequest(parts=[UserPromptPart(content=text, timestamp=when)], timestamp=when)
    return ModelResponse(parts=[TextPart(content=text)], timestamp=when)


def _locomo(data: Mapping[str, Any]) -> Conversation:
    talk = data["conversation"]
    messages: list[ModelMessage] = []
    said_at: dict[tuple[int, int], tuple[str, int]] = {}
    for session in range(1, 100):
        for line in talk.get(f"session_{session}", ()):
            when = datetime.strptime(talk[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y")
            shared = f" and shared {line['blip_caption']}." if line.get("blip_caption") else ""
            text = f"{line['text']}{shared}"
            said_at[_places(line["dia_id"])[0]] = text, len(messages)
            role = "user" if line["speaker"] == talk["speaker_a"] else "assistant"
            messages.append(said(role, text, when.replace(tzinfo=UTC)))
    questions = [
        question_on(query["question"], str(query["category"]), str(query["answer"]), evidence)
        for query in data["qa"]
        if query["category"] != 5
        if (evidence := [said_at[line] for line in _places(" ".join(query["evidence"])) if line in said_at])
    ]
    name = f"locomo {data['sample_id']}"
    speakers = talk["speaker_a"], talk["speaker_b"]
    return Conversation(name=name, messages=tuple(messages), questions=tuple(questions), whole=True, speakers=speakers)


def question_on(text: str, kind: str, answer: str, evidence: Sequence[tuple[str, int]]) -> Question:
    texts, positions = zip(*evidence, strict=True)
    return Question(text=text, evidence=texts, kind=kind, answer=answer, after=max(positions))


def _places(text: str) -> list[tuple[int, int]]:
    return list(dict.fromkeys((int(session), int(line)) for session, line in re.findall(r"D:?(\d+):(\d+)", text)))


def _beam(chat: Path) -> Conversation:
    messages: list[ModelMessage] = []
    said_at: dict[int, tuple[str, int]] = {}
    for batch in _batches(_json(chat / "chat.json")):
        for line in (line for turn in batch["turns"] for line in turn):
            anchor = line.get("time_anchor") or batch.get("time_anchor") or ""
            when = _anchored(anchor) or (messages[-1].timestamp if messages else None) or FIRST_DAY
            text = re.sub(r"\s*->-> [\d, ]+$", "", line["content"])
            said_at[line["id"]] = text, len(messages)
            messages.append(said(line["role"], text, when))
    questions = [
        question_on(
            query["question"], kind, next((str(query[name]) for name in ANSWERS if name in query), ""), evidence
        )
        for kind, group in _json(chat / "probing_questions.json").items()
        for query in group
        if (evidence := [said_at[id] for id in dict.fromkeys(_ids(query.get("source_chat_ids"))) if id in said_at])
    ]
    name = f"beam {chat.parent.name} {chat.name}"
    return Conversation(name=name, messages=tuple(messages), questions=tuple(questions), whole=False)


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


def _ids(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif value:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _ids(inner)


def asked(conversation: Conversation, question: str, stop: int | None = None) -> list[ModelMessage]:
    """Return the first `stop` messages with the question as the last prompt, at the time of the last of them."""
    messages = conversation.messages[:stop]
    return [*messages, said("user", question, messages[-1].timestamp or FIRST_DAY)]


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
    return frozenset(zip(*(words[start:] for start in range(GRAM)), strict=False)) or frozenset({tuple(words)})


grams_of = cache(grams)


def score(question: Question, view: str, *, whole: bool) -> float:
    """Return the share of the evidence that a view's text holds."""
    there = grams(view)
    if not whole:
        wanted = frozenset[tuple[str, ...]]().union(*map(grams_of, question.evidence))
        return len(wanted & there) / len(wanted)
    flat = " ".join(view.split())
    hits = [
        " ".join(text.split()) in flat or len(grams_of(text) & there) >= ENOUGH * len(grams_of(text))
        for text in question.evidence
    ]
    return sum(hits) / len(hits)


def interval(groups: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return the mean over all questions, and its 95 % bootstrap interval over conversations."""
    draw = random.Random(SEED)
    means: list[float] = []
    for _ in range(DRAWS):
        drawn = [value for group in draw.choices(groups, k=len(groups)) for value in group]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    every = [value for group in groups for value in group]
    return sum(every) / len(every), means[DRAWS // 40], means[-1 - DRAWS // 40]
