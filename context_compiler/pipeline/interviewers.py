"""Interviewers ask people the questions of human gates.

They ask on the terminal, call a function, return prepared answers, or approve everything; one records the others.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from context_compiler.messages.printable import safe, safe_line
from context_compiler.resilience import SharedLock, call_in_thread, start_in_thread

_terminal: Any = import_module("termios") if find_spec("termios") else None
"""None on systems without termios."""

MAX_TRIES = 5
"""Lines that the console reads for one question; if none of them names a choice, the last one is the answer."""

_YES, _NO = frozenset(("yes", "y", "true")), frozenset(("no", "n", "false"))


class QuestionType(StrEnum):
    """Kinds of answers a question expects."""

    YES_NO = "yes_no"
    MULTIPLE_CHOICE = "multiple_choice"
    FREEFORM = "freeform"
    CONFIRMATION = "confirmation"


class AnswerValue(StrEnum):
    """Answers that are not one of the choices offered."""

    YES = "yes"
    NO = "no"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    """Nobody can be asked here. The run stops at the gate and can be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One choice of a question."""

    key: str
    label: str
    target: str = ""
    """The stage that the choice leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question for a person."""

    text: str
    type: QuestionType = QuestionType.MULTIPLE_CHOICE
    options: tuple[Option, ...] = ()
    default: str | None = None
    """Target of the choice to take if nobody answers in time. An empty line on the console takes it too."""
    timeout_seconds: float | None = None
    stage: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further facts about the origin of the question, such as the run."""

    @property
    def default_option(self) -> Option | None:
        """The default choice; None if the question has none."""
        return next((option for option in self.options if self.default and option.target == self.default), None)

    def parse_reply(self, text: str) -> Reply:
        """Match a text with an option by label, key or target, ignoring case; any other text is a free answer.

        Labels and keys come first because people see them. A target may have the same name as the key of another
        option. Words such as `yes` and `false` match the only option that says yes or no.
        """
        said, word = text.strip(), safe_line(text).lower()
        for name in ("label", "key", "target"):
            for option in self.options:
                if word and word == safe_line(str(getattr(option, name))).lower():
                    return Reply(value=option.key, option=option, text=said)
        for words in (_YES, _NO):
            options = [option for option in self.options if word in words and _says(option, words)]
            if len(options) == 1:
                return Reply(value=options[0].key, option=options[0], text=said)
        return Reply(value=said, text=said)

    def chosen_option(self, reply: Reply) -> Option | None:
        """Return the choice that a reply names; None if it names none of the question's."""
        if reply.option in self.options:
            return reply.option
        return self.parse_reply(reply.value if reply.option is None else reply.option.key).option

    def unclear(self, reply: Reply) -> str:
        """Return a message that a reply names none of the choices."""
        said = (reply.text or reply.value)[:80]
        choices = ", ".join(f"[{safe_line(option.key)}] {safe_line(option.label)}" for option in self.options)
        return f"{repr(said) if said else 'an empty line'} is none of the choices: {choices}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A person's answer."""

    value: str
    """The key of an option, free text, or an `AnswerValue`."""
    option: Option | None = None
    text: str = ""


class Interviewer(Protocol):
    """Asks people. Only `ask` is required; subclasses inherit the rest."""

    @property
    def keeps_time(self) -> bool:
        """True if `ask` applies the time limit of a question itself. False by default: the time starts at the call."""
        return False

    async def ask(self, question: Question) -> Reply:
        """Ask a question and return the reply; `AnswerValue.SKIPPED` means that nobody answered.

        A reply that names no choice fails the gate.
        """
        ...

    async def ask_multiple(self, questions: Sequence[Question]) -> list[Reply]:
        """Ask several questions, one after another."""
        return [await self.ask(question) for question in questions]

    async def inform(self, message: str, stage: str = "") -> None:
        """Show a message that needs no answer, about the stage `stage`. Does nothing by default."""


async def ask_in_time(interviewer: Interviewer, question: Question) -> Reply:
    """Ask a question, and return `AnswerValue.TIMEOUT` if its time is over before the answer."""
    asked = interviewer.ask(question)
    return await (asked if getattr(interviewer, "keeps_time", False) else _within(question.timeout_seconds, asked))


async def _within(seconds: float | None, asked: Awaitable[Reply]) -> Reply:
    """Await a reply; after `seconds`, cancel it and return `AnswerValue.TIMEOUT`."""
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await asked
    except TimeoutError:
        if not timeout.expired():
            raise
        return Reply(value=AnswerValue.TIMEOUT)


def _says(option: Option, words: frozenset[str]) -> bool:
    """True if an option says one of the words: as the first word of its label, or as its key.

    A key that is only the initial of the label says nothing: `N` of `Now` is no `no`.
    """
    label, key = safe_line(option.label).lower(), safe_line(option.key).lower()
    return re.split(r"\W", label, maxsplit=1)[0] in words or (key in words and key != label[:1])


class AutoApprove(Interviewer):
    """Answers yes, or takes the first option."""

    async def ask(self, question: Question) -> Reply:
        """Return the first option, else yes, or `auto-approved` for a free-form question."""
        if question.options:
            first = question.options[0]
            return Reply(value=first.key, option=first, text=first.label)
        free = question.type is QuestionType.FREEFORM
        return Reply(value="auto-approved" if free else AnswerValue.YES, text="auto-approved")


class ConsoleInterviewer(Interviewer):
    """Asks on the terminal: questions on standard error, answers from standard input."""

    def __init__(self, read: Callable[[], str] | None = None, show: Callable[[str], Any] | None = None) -> None:
        """`read` returns one line, or an empty string at the end of the input; `show` prints one line."""
        self._read, self._print = read, show or _print_to_stderr
        self._turn = SharedLock()
        self._pending: Future[str] | None = None

    @property
    def keeps_time(self) -> bool:
        """True: the time of a question starts when it is shown, not while it waits for an earlier one."""
        return True

    async def ask(self, question: Question) -> Reply:
        """Ask until a line names a choice, at most `MAX_TRIES` times; `AnswerValue.UNAVAILABLE` if the input has ended.

        Concurrent questions are asked one after another.
        """
        async with self._turn:
            self._ignore_typed()
            return await _within(question.timeout_seconds, self._converse(question))

    async def _converse(self, question: Question) -> Reply:
        """Show a question, and read lines until one is an answer. If none is, the reply has the last text alone."""
        default = question.default_option
        self._show(question.text)
        for option in question.options:
            mark = " (default)" if option is default else ""
            self._show(f"  [{safe_line(option.key)}] {safe_line(option.label)}{mark}")
        reply = Reply(value=AnswerValue.UNAVAILABLE)
        for left in reversed(range(MAX_TRIES)):
            line = await self._read_line()
            if not line:
                return reply if reply.text else Reply(value=AnswerValue.UNAVAILABLE)
            if default is not None and not line.strip():
                return Reply(value=default.key, option=default)
            reply = question.parse_reply(line)
            if reply.option is not None or not question.options:
                return reply
            if left:
                self._show(f"{question.unclear(reply)}; answer again")
        return reply

    async def inform(self, message: str, stage: str = "") -> None:
        """Print the message like a question."""
        self._show(f"{stage}: {message}" if stage else message)

    def _show(self, line: str) -> None:
        """Show a line without control characters and escape sequences, because labels may come from anywhere."""
        self._print(safe(line))

    def _ignore_typed(self) -> None:
        """Discard what was typed before this question: an answer to an earlier one, or to none.

        Lines from a pipe or file stay, because they are answers in order, except one that an earlier question left.
        """
        line = self._pending
        if line is not None and line.done() and (line.exception() is not None or line.result() or self._on_terminal):
            self._pending = None
            if line.exception() is None:
                self._show_late(line.result())
        if self._on_terminal and _terminal is not None:
            with suppress(OSError, _terminal.error):
                _terminal.tcflush(sys.stdin.fileno(), _terminal.TCIFLUSH)

    @property
    def _on_terminal(self) -> bool:
        return self._read is None and sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # it is None without a console

    async def _read_line(self) -> str:
        """Return the next line. One that an earlier question left is skipped, unless it is typed on a terminal now."""
        if self._pending is not None and not self._on_terminal:
            line = await self._next_line()
            if not line:
                return line
            self._show_late(line)
        return await self._next_line()

    def _show_late(self, line: str) -> None:
        if line.strip():
            self._show(f"{line.strip()[:80]!r} came too late for an earlier question, and is ignored")

    async def _next_line(self) -> str:
        """Return the line that a thread reads. If nobody waits for it any longer, it is left to the next question."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._pending = line = self._pending or start_in_thread(self._read or _read_stdin)

        def wake(_: Future[str]) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits for the line
                loop.call_soon_threadsafe(arrived.set)

        line.add_done_callback(wake)
        await arrived.wait()
        self._pending = None
        return line.result()


def _read_stdin() -> str:
    """Read a line from standard input; an empty string if there is none."""
    return sys.stdin.readline() if sys.stdin is not None else ""  # pyright: ignore[reportUnnecessaryComparison]  # it is None without a console


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class CallbackInterviewer(Interviewer):
    """Asks a function that returns a string, True or False, an option or a reply; None skips the question.

    A function that is plain instead of async runs in a thread of its own, which goes on after a timeout.
    """

    def __init__(self, answer: Callable[[Question], Any], inform: Callable[[str, str], Any] | None = None) -> None:
        """`inform` is called with each message that needs no answer, and its stage."""
        self._answer, self._inform = answer, inform

    async def ask(self, question: Question) -> Reply:
        """Return the function's answer."""
        return _to_reply(question, await call_in_thread(self._answer, question))

    async def inform(self, message: str, stage: str = "") -> None:
        """Pass the message to `inform`, if it was given."""
        if self._inform is not None:
            await call_in_thread(self._inform, message, stage)


class QueueInterviewer(Interviewer):
    """Returns prepared answers in order; once they are used up, questions are skipped."""

    def __init__(self, answers: Iterable[str | Option | Reply] = ()) -> None:
        self.answers: list[str | Option | Reply] = list(answers)

    async def ask(self, question: Question) -> Reply:
        """Return the next answer."""
        return _to_reply(question, self.answers.pop(0) if self.answers else None)


@dataclass
class RecordingInterviewer(Interviewer):
    """Passes questions to another interviewer, and records them with their answers."""

    inner: Interviewer
    asked: list[tuple[Question, Reply]] = field(default_factory=list[tuple[Question, Reply]])
    told: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Messages that needed no answer, each with its stage."""

    @property
    def keeps_time(self) -> bool:
        """True if the inner interviewer applies time limits itself."""
        return bool(getattr(self.inner, "keeps_time", False))

    async def ask(self, question: Question) -> Reply:
        """Return and record the inner interviewer's answer."""
        reply = await self.inner.ask(question)
        self.asked.append((question, reply))
        return reply

    async def inform(self, message: str, stage: str = "") -> None:
        """Record the message and pass it on."""
        self.told.append((message, stage))
        await inform(self.inner, message, stage)


async def inform(interviewer: Interviewer, message: str, stage: str) -> None:
    """Pass a message to an interviewer, if it has an `inform` method."""
    method: Any = getattr(interviewer, "inform", None)
    if method is not None:
        await method(message, stage)


def _to_reply(question: Question, answer: Any) -> Reply:
    if answer is None:
        return Reply(value=AnswerValue.SKIPPED)
    if isinstance(answer, Option):
        return Reply(value=answer.key, option=answer, text=answer.label)
    return answer if isinstance(answer, Reply) else question.parse_reply(str(answer))
