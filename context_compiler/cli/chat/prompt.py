"""The prompt: line editing with history, multiple lines with Alt-Enter, and large pastes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.patch_stdout import patch_stdout

from context_compiler.cli.text import fit_pieces

_terminal: Any = import_module("termios") if find_spec("termios") else None
"""None on systems without termios."""

LARGE = 2_000
"""Characters above which a paste is shown as one placeholder."""

MAX_REMEMBERED_PROMPTS = 500
"""Maximum earlier prompts that the arrow keys bring back."""


class Interrupted(Exception):
    """Ctrl-C at the prompt. Not a `KeyboardInterrupt`, because that would end the event loop from inside a task."""


class Leave(Exception):
    """Raised by `/quit`."""


HELP = {
    "help": "show this list",
    "endless": "on | off: send a view that fits the budget, or the whole history",
    "template": "[NAME]: list the templates, or use one",
    "view": "[full]: show what was sent last, and why each part is there",
    "recall": "WORDS: find passages of the conversation, word for word",
    "compact": "[--preview] [--from TURN] [WHAT TO KEEP]: compile now, or show what that would keep, drop and cost",
    "undo": "go back to the view before the last compile",
    "pin": "TURN or WORDS: keep that message in every view, word for word",
    "unpin": "TURN or WORDS: stop pinning that message",
    "pins": "list the pinned messages",
    "rules": "list the rules that every request contains",
    "dismiss": "WORDS: dismiss the rule that contains them",
    "stats": "show turns, tokens and where everything is stored",
    "quit": "leave; the conversation is stored",
}
"""Help of each command; `Commands` runs it with its method `_NAME`."""


class Keyboard:
    """Reads prompts on a terminal.

    Args:
        status: Returns the status line.
        on_draw: Called each time the prompt has been drawn.
    """

    def __init__(self, status: Callable[[], str], on_draw: Callable[[], None]) -> None:
        self._pasted: dict[str, str] = {}
        self._status = status
        self._history = InMemoryHistory()
        completer = WordCompleter(
            [f"/{name}" for name in HELP], meta_dict={f"/{name}": text for name, text in HELP.items()}, sentence=True
        )
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=completer,
            complete_while_typing=False,
            key_bindings=self._keys(),
            bottom_toolbar=self._toolbar,
            enable_history_search=True,
            enable_suspend=True,
            interrupt_exception=Interrupted,
        )
        self._session.app.after_render.add_handler(lambda app: on_draw())

    def _toolbar(self) -> FormattedText:
        """Format the status line, as far as it fits."""
        room = self._session.app.output.get_size().columns
        style = "noreverse" if os.environ.get("NO_COLOR") else "noreverse fg:ansibrightblack"
        return FormattedText([(style, fit_pieces(self._status(), room))])

    def remember(self, prompts: Iterable[str]) -> None:
        """Add earlier prompts to the history; the prompt reads it again if nothing is typed yet."""
        for prompt in list(prompts)[-MAX_REMEMBERED_PROMPTS:]:
            self._history.append_string(prompt[:LARGE])
        if not self._session.default_buffer.text:
            self._session.default_buffer.reset()
        self._session.app.invalidate()

    def erase(self) -> None:
        """Erase the prompt when it ends, because nothing can be answered."""
        self._session.app.erase_when_done = True

    async def read_line(self) -> str:
        """Read a prompt.

        Raises:
            Interrupted: Ctrl-C.
            EOFError: Ctrl-D.
        """
        with patch_stdout(raw=True):
            style = "" if os.environ.get("NO_COLOR") else "bold fg:ansigreen"
            text = await self._session.prompt_async(FormattedText([(style, "› ")]), handle_sigint=False)
        for name, pasted in self._pasted.items():
            text = text.replace(name, pasted)
        self._pasted.clear()
        return text

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add(Keys.Escape, Keys.Enter)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.Vt100MouseEvent)
        def _(event: KeyPressEvent) -> None:
            """Ignore mouse events, because a pasted color code can look like one and would crash the editor."""

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > LARGE:
                name = f"[pasted {len(text):,} characters #{len(self._pasted) + 1}]"
                self._pasted[name] = text
                text = name
            event.current_buffer.insert_text(text)

        return keys


@contextmanager
def quiet_terminal() -> Generator[None]:
    """Between prompts, echo nothing that is typed, and keep each key for the next prompt as it is.

    Ctrl-C is the exception: it is still a signal.
    """
    if _terminal is None:
        yield
        return
    file = sys.stdin.fileno()
    before = _terminal.tcgetattr(file)
    quiet = [*before]
    quiet[3] &= ~(_terminal.ECHO | _terminal.ICANON)  # a line editor would turn Ctrl-D into a zero
    _terminal.tcsetattr(file, _terminal.TCSANOW, quiet)
    try:
        yield
    finally:
        _terminal.tcsetattr(file, _terminal.TCSANOW, before)
