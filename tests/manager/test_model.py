"""Any sequence of turns, answers, summaries, checkpoints and rollbacks is what a simple model says it is."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from context_compiler.errors import ContextMemoryError
from context_compiler.manager import ContextManager, SQLiteMemory, VolatileMemory
from tests.manager.fakes import Scribe, managed, said
from tests.support.builders import apart, texts_of

KEEP, INTERVAL = 2, 3
WORDS = st.sampled_from(["heron", "harbour", "ferry", "anchor"])


@dataclass
class Model:
    """A session as lists: what was said, what a summary stands for, what is remembered."""

    turns: list[list[str]] = field(default_factory=list[list[str]])
    open: bool = False
    covered: int = 0
    summary: str = ""
    memories: list[str] = field(default_factory=list[str])
    since: int = 0
    below: Any = None
    """The checkpoint that a rollback goes back to, as a model of its own."""

    def kept(self) -> Model:
        copy = deepcopy(self)
        copy.since = 0
        return copy


class Sessions(RuleBasedStateMachine):
    """A manager and its model, side by side."""

    file = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = TemporaryDirectory()
        self.told = 0

    @initialize()
    def begin(self) -> None:
        path = Path(self.folder.name) / "context.db"
        self.memory: Any = SQLiteMemory("s", path) if self.file else VolatileMemory()
        self.scribe = Scribe(lambda number: f"summary {number}.")
        self.manager = self.made()
        self.model = Model()

    def made(self) -> ContextManager:
        return managed(
            self.scribe,
            self.memory,
            recent_turns_to_keep=KEEP,
            checkpoint_interval=INTERVAL,
            auto_summarize=False,
            grounding_memories=0,
        )

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @rule(word=WORDS)
    def turn(self, word: str) -> None:
        model = self.model
        self.told += 1
        text = f"{word} {self.told} " + "please " * 12
        result = self.do(self.manager.process_turn(text))
        model.turns.append([text])
        model.open = True
        model.since += 1
        assert bool(result.checkpoint_created) is (model.since >= INTERVAL)
        if model.since >= INTERVAL:
            self._checkpointed()

    @rule(word=WORDS)
    def answer(self, word: str) -> None:
        assert self.manager.add_response(f"{word}!") is self.model.open
        if self.model.open:
            self.model.turns[-1].append(f"{word}!")
            self.model.open = False

    @rule()
    def summarize(self) -> None:
        model, stop = self.model, len(self.model.turns) - KEEP
        done = self.do(self.manager.summarize())
        assert done.turns_summarized == max(0, stop - model.covered)
        if stop > model.covered:
            model.covered, model.summary = stop, done.summary
            self._remembered(f"[context-summary] {done.summary}")

    @rule(word=WORDS)
    def remember(self, word: str) -> None:
        self.do(self.memory.remember(word))
        self._remembered(word)

    @rule()
    def checkpoint(self) -> None:
        assert self.do(self.manager.checkpoint("by hand"))
        self._checkpointed()

    @rule()
    def rollback(self) -> None:
        below = self.model.below
        if below is None:
            with pytest.raises(ContextMemoryError):
                self.do(self.manager.rollback())
            return
        done = self.do(self.manager.rollback())
        assert done.turns_lost == max(0, len(self.model.turns) - len(below.turns))
        self.model = below

    @rule()
    def restart(self) -> None:
        """Another manager goes on over the same memory."""
        assert self.do(self.manager.checkpoint("before a restart"))
        self._checkpointed()
        self.manager = self.made()
        assert self.do(self.manager.resume())

    @invariant()
    def the_session_is_the_models(self) -> None:
        if not hasattr(self, "manager"):
            return
        model = self.model
        assert said(self.manager.transcript()) == [text for turn in model.turns for text in turn]
        sent = [
            text
            for message in self.manager.get_context_messages()
            for part in apart(message).parts
            for text in texts_of(part)
        ]
        verbatim = [text for turn in model.turns[model.covered :] for text in turn]
        assert sent[len(sent) - len(verbatim) :] == verbatim
        assert (model.summary in " ".join(sent)) if model.summary else len(sent) == len(verbatim)
        assert self.manager.turn_count == len(model.turns)

    @invariant()
    def the_memory_is_the_models(self) -> None:
        if not hasattr(self, "manager"):
            return
        summaries = [text for text in self.model.memories if text.startswith("[context-summary]")]
        expected = [text for text in self.model.memories if text not in summaries[:-1]]
        for word in ("heron", "harbour", "ferry", "anchor", "summary"):
            matches = self.do(self.memory.search(word, 99))
            assert sorted(match.memory.text for match in matches) == sorted(text for text in expected if word in text)

    def teardown(self) -> None:
        if self.file and hasattr(self, "manager"):
            assert self.do(self.memory.store.verify()) == ()
            self.do(self.memory.close())
        self.loop.close()
        self.folder.cleanup()

    def _remembered(self, text: str) -> None:
        if text not in self.model.memories:
            self.model.memories.append(text)

    def _checkpointed(self) -> None:
        self.model.since = 0
        self.model.below = self.model.kept()


class FileSessions(Sessions):
    """The same over a file."""

    file = True


@pytest.mark.parametrize("machine", [Sessions, FileSessions], ids=["volatile", "sqlite"])
def test_any_sequence_of_steps_agrees_with_the_model(machine: type[Sessions]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=5, stateful_step_count=16))


@pytest.mark.parametrize("machine", [Sessions, FileSessions], ids=["volatile", "sqlite"])
def test_any_long_sequence_of_steps_agrees_with_the_model(machine: type[Sessions]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=50, derandomize=False))
