"""Interviewers answer human gates: a terminal, a function, a queue, or nobody; one of them records the rest."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Thread
from typing import Any, Protocol, TypeAlias

from context_compiler.resilience import attempt


class QuestionType(StrEnum):
    """Kind of answer expected."""

    YES_NO = "yes_no"
    MULTIPLE_CHOICE = "multiple_choice"
    FREEFORM = "freeform"
    CONFIRMATION = "confirmation"


class AnswerValue(StrEnum):
    """Answers other than the offered choices."""

    YES = "yes"
    NO = "no"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A choice: its key and its label."""

    key: str
    label: str
    target: str = ""
    """The stage it leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to a person."""

    text: str
    type: QuestionType = QuestionType.MULTIPLE_CHOICE
    options: tuple[Option, ...] = ()
    default: str | None = None
    """The answer in case of silence."""
    timeout_seconds: float | None = None
    stage: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further facts about its origin, such as the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A person's answer."""

    value: str
    """A key, a label, a text, or an `AnswerValue`."""
    option: Option | None = None
    text: str = ""


class Interviewer(Protocol):
    """Asks people. Only `ask` is required; subclasses inherit the rest."""

    async def ask(self, question: Question) -> Reply:
        """Ask a question; `AnswerValue.SKIPPED` means no answer."""
        ...

    async def ask_multiple(self, questions: Sequence[Question]) -> list[Reply]:
        """Ask several questions, one after another."""
        return [await self.ask(question) for question in questions]

    async def inform(self, message: str, stage: str = "") -> None:
        """Inform about something that needs no answer; `stage` is its subject. Does nothing by default."""


def parse_reply(question: Question, text: str) -> Reply:
    """Interpret an answer: an option by its label, its key or its target, ignoring case; else free text.

    What a person is shown counts before the stage that it leads to, which may be called like the key of another option.
    """
    word = text.strip()
    for name in ("label", "key", "target"):
        for option in question.options:
            if word and word.lower() == str(getattr(option, name)).lower():
                return Reply(value=option.key, option=option, text=word)
    return Reply(value=word, text=word)


class AutoApprove(Interviewer):
    """Says yes, and takes the first option."""

    async def ask(self, question: Question) -> Reply:
        """The first option, yes, or `auto-approved`."""
        if question.options:
            first = question.options[0]
            return Reply(value=first.key, option=first, text=first.label)
        free = question.type is QuestionType.FREEFORM
        return Reply(value="auto-approved" if free else AnswerValue.YES, text="auto-approved")


class ConsoleInterviewer(Interviewer):
    """Asks on the terminal: questions on standard error, answers from standard input."""

    def __init__(self, read: Callable[[], str] | None = None, show: Callable[[str], Any] | None = None) -> None:
        """`read` returns one line, empty at the end of the input; `show` prints one line."""
        self._read, self._show = read, show or _on_stderr
        self._turn = asyncio.Lock()
        self._coming: Future[str] | None = None

    async def ask(self, question: Question) -> Reply:
        """Read a line; the end of the input skips the question. Concurrent questions wait for each other."""
        async with self._turn:
            self._show(question.text)
            for option in question.options:
                self._show(f"  [{option.key}] {option.label}")
            line = await self._line()
        return parse_reply(question, line) if line else Reply(value=AnswerValue.SKIPPED)

    async def inform(self, message: str, stage: str = "") -> None:
        """Print the message where questions are printed."""
        self._show(f"{stage}: {message}" if stage else message)

    async def _line(self) -> str:
        """The next line. A line that came too late for its question answers the next one."""
        loop, there = asyncio.get_running_loop(), asyncio.Event()
        self._coming = coming = self._coming or _read_in_thread(self._read or sys.stdin.readline)

        def wake(_: Future[str]) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits any more
                loop.call_soon_threadsafe(there.set)

        coming.add_done_callback(wake)
        await there.wait()
        self._coming = None
        return coming.result()


def _read_in_thread(read: Callable[[], str]) -> Future[str]:
    """Read a line on a daemon thread, so that neither cancellation nor exit waits for it."""
    coming: Future[str] = Future()

    def work() -> None:
        done = attempt(read)
        if done.error is not None:
            coming.set_exception(done.error)
        else:
            coming.set_result(done.value or "")

    Thread(target=work, daemon=True).start()
    return coming


def _on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


AnswerFunction: TypeAlias = Callable[[Question], Any]


class CallbackInterviewer(Interviewer):
    """Asks a function, async or not, that returns a text, an option or a reply; None skips."""

    def __init__(self, answer: AnswerFunction, inform: Callable[[str, str], Any] | None = None) -> None:
        """`inform` receives messages that need no answer, and the stage they are about."""
        self._answer, self._inform = answer, inform

    async def ask(self, question: Question) -> Reply:
        """The function's answer."""
        answer: Any = self._answer(question)
        return _reply(question, await answer if inspect.isawaitable(answer) else answer)

    async def inform(self, message: str, stage: str = "") -> None:
        """Pass the message to `inform`, if given."""
        done: Any = self._inform(message, stage) if self._inform is not None else None
        if inspect.isawaitable(done):
            await done


class QueueInterviewer(Interviewer):
    """Returns prepared answers in order; an empty queue skips."""

    def __init__(self, answers: Iterable[str | Option | Reply] = ()) -> None:
        self.answers: list[str | Option | Reply] = list(answers)

    async def ask(self, question: Question) -> Reply:
        """The next answer."""
        return _reply(question, self.answers.pop(0) if self.answers else None)


@dataclass
class RecordingInterviewer(Interviewer):
    """Asks another interviewer, and records its questions and answers."""

    inner: Interviewer
    asked: list[tuple[Question, Reply]] = field(default_factory=list[tuple[Question, Reply]])
    told: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Messages that needed no answer, with their stages."""

    async def ask(self, question: Question) -> Reply:
        """The inner interviewer's answer."""
        reply = await self.inner.ask(question)
        self.asked.append((question, reply))
        return reply

    async def inform(self, message: str, stage: str = "") -> None:
        """Record the message and pass it on."""
        self.told.append((message, stage))
        await inform(self.inner, message, stage)


async def inform(whom: Interviewer, message: str, stage: str) -> None:
    """Inform an interviewer, if it has an `inform` method."""
    telling: Any = getattr(whom, "inform", None)
    if telling is not None:
        await telling(message, stage)


def _reply(question: Question, answer: Any) -> Reply:
    if answer is None:
        return Reply(value=AnswerValue.SKIPPED)
    if isinstance(answer, Option):
        return Reply(value=answer.key, option=answer, text=answer.label)
    return answer if isinstance(answer, Reply) else parse_reply(question, str(answer))
