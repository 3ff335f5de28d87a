"""Histories to measure on: real ones if available, else a small generated one.

Real data are not part of this repository. `CONTEXT_COMPILER_DATA` names their folder; the default is `../shared/data`
next to the checkout. A generated history only shows that the benchmarks work, and the tables say so.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import UserPromptPart as Prompt

from benchmarks import facts, labelled, recall
from benchmarks.recall import Conversation, Question
from context_compiler.messages.importers import read_transcripts

FILES = {
    "locomo": "locomo/conversations.json",
    "beam-100k": "beam/100K/*/*.json",
    "beam-500k": "beam/500K/*/*.json",
    "swe": "swe_agent/*.traj",
    "tau": "tau_bench/airline.json",
    "pi": "pi_sessions/large-session.jsonl",
    **labelled.FILES,
}
"""Glob pattern of the files of every set."""

SESSIONS = [f"session_{number}" for number in range(1, 100)]
GENERATED = "generated"
ASKED = {
    "locomo": (1_000, 2_000, 4_000, 8_000),
    "beam-100k": (2_000, 4_000, 8_000, 16_000, 32_000),
    "beam-500k": (8_000,),
}
"""Sets with questions, and their budgets."""
LABELLED = {
    "locomo": (1_000, 4_000),
    "beam-100k": (4_000, 16_000),
    "tau": (1_000,),
    "pi": (16_000,),
    "qmsum": (1_000, 2_000, 4_000),
    "realmem": (1_000, 8_000),
    "preferences": (1_000, 8_000),
    "cues": (1_000, 8_000),
}
"""Sets whose questions name their evidence, and the budgets of one view."""
LIVED = {"pi": (16_000, 32_000, 64_000), "swe": (4_000,), "tau": (1_000,)}
"""Sets of sessions, and their budgets."""

TURNED = {
    "locomo": (1_000, 2_000, 4_000, 8_000),
    "beam-100k": (4_000, 16_000),
    "tau": (1_000, 2_000),
    "pi": (16_000, 32_000),
}
"""Sets that are run turn by turn, and their budgets."""

FAST_ASKED = {"locomo": (1_000, 4_000)}
FAST_LIVED = {"tau": (1_000,)}
FAST_SESSIONS = 4


@dataclass(frozen=True)
class Data:
    """The available data sets."""

    folder: Path | None
    """None if no data are available."""
    fast: bool = False
    every: int = 1
    """Ask one question in this number."""
    most: int | None = None
    """Maximum number of conversations of a set; None for all."""
    models: tuple[str, ...] = ()
    """Models that answer; empty for those that are installed."""
    _loaded: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    @property
    def asked(self) -> dict[str, tuple[int, ...]]:
        """Available sets with questions, and their budgets."""
        return self._there(FAST_ASKED if self.fast else ASKED) or {GENERATED: (500, 1_000)}

    @property
    def labelled(self) -> dict[str, tuple[int, ...]]:
        """Available labelled sets, and their budgets."""
        return self._there(LABELLED) or {GENERATED: (500, 1_000)}

    @property
    def lived(self) -> dict[str, tuple[int, ...]]:
        """Available sets of sessions, and their budgets."""
        return self._there(FAST_LIVED if self.fast else LIVED) or {GENERATED: (1_000,)}

    @property
    def turn_by_turn(self) -> dict[str, tuple[int, ...]]:
        """Available sets that are run turn by turn, and their budgets."""
        return self._there(FAST_LIVED if self.fast else TURNED) or {GENERATED: (1_000,)}

    def _there(self, sets: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {name: budgets for name, budgets in sets.items() if self.files(name)}

    def files(self, name: str) -> list[Path]:
        """Return the files of a set, sorted."""
        name = labelled.HIDING.get(name, name)
        return sorted(self.folder.glob(FILES[name])) if self.folder is not None and name in FILES else []

    def fingerprint(self, name: str) -> str:
        """Return a hash that changes when the histories of a set change; `locomo+tools5` names a set and a scenario."""
        part = "" if self.most is None else f" {self.most}"
        mark = hashlib.sha256(f"{name} {self.fast} {self.every}{part}".encode())
        for path in self.files(name.partition("+")[0]):
            mark.update(path.name.encode() + path.read_bytes())
        return mark.hexdigest()[:16]

    def conversations(self, name: str) -> list[Conversation]:
        """Return the conversations of a set with the questions to ask; questions about tool sessions ask for facts."""
        if name == GENERATED or self.folder is None:
            return generated_conversations()
        if name in LIVED:
            if (asked := f"{name} facts") not in self._loaded:
                self._loaded[asked] = facts.conversations(self.sessions(name), name)
            return self._loaded[asked]
        if name not in self._loaded:
            self._loaded[name] = (recall if name in recall.SETS else labelled).load(name, self.folder)
        loaded = self._loaded[name]
        every = 20 if self.fast else self.every
        chosen = loaded[:2] if self.fast else loaded[: self.most]
        return [replace(conversation, questions=_drawn(conversation, every)) for conversation in chosen]

    def sessions(self, name: str) -> list[list[ModelMessage]]:
        """Return the sessions of a set, without system prompts because budgets here cover messages only."""
        if name == GENERATED or self.folder is None:
            return generated_sessions()
        if name not in self._loaded:
            read = [
                transcript
                for path in self.files(name)
                for transcript in read_transcripts(path, format="swe-agent" if name == "swe" else None)
            ]
            self._loaded[name] = [_spoken(transcript.messages) for transcript in read]
        return self._loaded[name][:FAST_SESSIONS] if self.fast else self._loaded[name]

    def summaries(self, conversation: str) -> list[tuple[str, str]]:
        """Return the first line of every session of a LoCoMo conversation, and its summary as recorded from a model."""
        for path in self.files("locomo"):
            for talk in json.loads(path.read_text(encoding="utf-8")):
                if conversation == f"locomo {talk['sample_id']}":
                    chats, summaries = talk["conversation"], talk["session_summary"]
                    pairs = [(chats.get(name), summaries.get(f"{name}_summary")) for name in SESSIONS]
                    return [(lines[0]["text"], summary) for lines, summary in pairs if lines and summary]
        return []


def _spoken(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    kept = [
        replace(message, parts=[part for part in message.parts if part.part_kind != "system-prompt"])
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]
    return [message for message in kept if message.parts]


def _drawn(conversation: Conversation, every: int) -> tuple[Question, ...]:
    """Draw one question in `every`, with a seed per conversation, because questions of one kind are adjacent."""
    questions = conversation.questions
    count = max(1, len(questions) // every) if questions else 0
    dice = random.Random(f"{recall.SEED} {conversation.name}")
    return tuple(questions[index] for index in sorted(dice.sample(range(len(questions)), count)))


@cache
def at_hand(fast: bool, every: int, most: int | None = None, models: tuple[str, ...] = ()) -> Data:
    folder = recall.data_folder()
    return Data(folder if folder.is_dir() else None, fast=fast, every=every, most=most, models=models)


WORDS = (
    "harbour lantern meadow copper violin saddle orchard granite feather candle marble thicket canyon ribbon".split()
)


def generated_conversations() -> list[Conversation]:
    """Generate two conversations of forty turns; each fact is mentioned once and asked for at the end."""
    return [_generated(random.Random(seed), f"generated {seed}") for seed in (1, 2)]


def _generated(draw: random.Random, name: str) -> Conversation:
    messages: list[ModelMessage] = []
    questions: list[Question] = []
    for turn in range(40):
        thing, shelf = f"{draw.choice(WORDS)}{turn}", f"{draw.choice(WORDS)} {draw.randint(100, 999)}"
        fact = f"The {thing} is kept in {shelf}, since the {draw.choice(WORDS)} was moved."
        chatter = " ".join(draw.choices(WORDS, k=25))
        if turn % 4 == 3:
            asked = f"Where is the {thing} kept?"
            position = len(messages)
            questions.append(Question(text=asked, evidence=(fact,), kind="fact", answer=f"In {shelf}.", after=position))
        messages.append(ModelRequest(parts=[Prompt(fact)]))
        messages.append(ModelResponse(parts=[TextPart(f"Noted. {chatter.capitalize()}.")]))
    return Conversation(name=name, messages=tuple(messages), questions=tuple(questions), whole=True)


def generated_sessions() -> list[list[ModelMessage]]:
    """Generate two sessions of forty tool calls; every path occurs again later."""
    return [_session(random.Random(seed)) for seed in (1, 2)]


def _session(draw: random.Random) -> list[ModelMessage]:
    messages: list[ModelMessage] = [ModelRequest(parts=[Prompt("Tidy up the modules, please.")])]
    for step in range(40):
        module = step if step < 20 else draw.randrange(20)
        path = f"src/{WORDS[module % len(WORDS)]}/module_{module}.py"
        messages.append(ModelResponse(parts=[ToolCallPart("read", {"path": path}, tool_call_id=f"call-{step}")]))
        following = f"src/{WORDS[(step + 1) % len(WORDS)]}/module_{step + 1}.py"
        content = f"{path}: {' '.join(draw.choices(WORDS, k=60))}; see {following}"
        messages.append(ModelRequest(parts=[ToolReturnPart("read", content, tool_call_id=f"call-{step}")]))
    return [*messages, ModelResponse(parts=[TextPart("All is tidy.")])]
