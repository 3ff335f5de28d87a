"""What a person types: a line with history and editing, several with Alt-Enter, and whatever is pasted."""

from __future__ import annotations

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

from context_compiler.cli.text import within

_terminal: Any = import_module("termios") if find_spec("termios") else None
"""None where terminals are of another kind."""

LARGE = 2_000
"""Characters above which a paste stands as one word on the line."""

REMEMBERED = 500
"""Earlier prompts that the arrow keys bring back."""


class Interrupted(Exception):
    """Ctrl-C at the prompt. No `KeyboardInterrupt`, which would end the event loop from inside a task."""


class Leave(Exception):
    """The person has had enough."""


HELP = {
    "help": "this list",
    "endless": "on | off: whether a model is sent what fits, or the whole history",
    "template": "[NAME]: the templates, and which one is used; or use that one",
    "view": "[full]: what was sent last, and why each part is there",
    "recall": "WORDS: what was said about them, word for word",
    "stats": "turns and tokens",
    "quit": "leave; the conversation is kept",
}
"""What each command is for."""


class Keyboard:
    """Reads what is typed on a terminal.

    Args:
        status: What stands below the line.
        shown: Called each time the line has been drawn.
    """

    def __init__(self, status: Callable[[], str], shown: Callable[[], None]) -> None:
        self._pasted: dict[str, str] = {}
        self._status = status
        self._history = InMemoryHistory()
        completer = WordCompleter(
            [f"/{name}" for name in HELP],
            meta_dict={f"/{name}": text for name, text in HELP.items()},
            sentence=True,
        )
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=completer,
            complete_while_typing=False,
            key_bindings=self._keys(),
            bottom_toolbar=self._below,
            enable_history_search=True,
            enable_suspend=True,
            interrupt_exception=Interrupted,
        )
        self._session.app.after_render.add_handler(lambda app: shown())

    def _below(self) -> FormattedText:
        """What stands below the line, as far as the terminal is wide."""
        room = self._session.app.output.get_size().columns
        return FormattedText([("noreverse fg:ansibrightblack", within(self._status(), room))])

    def remember(self, prompts: Iterable[str]) -> None:
        """Let the arrow keys bring back what was said before, on this line already if nothing is typed yet."""
        for prompt in list(prompts)[-REMEMBERED:]:
            self._history.append_string(prompt if len(prompt) <= LARGE else prompt[:LARGE])
        app = self._session.app
        if app.is_running and not self._session.default_buffer.text:
            app.erase_when_done = True
            app.exit(result="")
        app.invalidate()

    async def line(self) -> str:
        """What was typed.

        Raises:
            Interrupted: Ctrl-C.
            EOFError: Ctrl-D.
        """
        with patch_stdout(raw=True):
            text = await self._session.prompt_async(FormattedText([("bold fg:ansigreen", "› ")]), handle_sigint=False)
        self._session.app.erase_when_done = False
        for name, pasted in self._pasted.items():
            text = text.replace(name, pasted)
        self._pasted.clear()
        return text

    @contextmanager
    def silent(self) -> Generator[None]:
        """What is typed while an answer comes waits for the next line, and is not written into the answer."""
        if _terminal is None:
            yield
            return
        file = sys.stdin.fileno()
        before = _terminal.tcgetattr(file)
        quiet = [*before]
        quiet[3] &= ~_terminal.ECHO
        _terminal.tcsetattr(file, _terminal.TCSANOW, quiet)
        try:
            yield
        finally:
            _terminal.tcsetattr(file, _terminal.TCSANOW, before)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add(Keys.Escape, Keys.Enter)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.Vt100MouseEvent)
        def _(event: KeyPressEvent) -> None:
            """Pass over what looks like a mouse: a pasted colour does too, and the editor breaks on it."""

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > LARGE:
                name = f"[pasted {len(text):,} characters #{len(self._pasted) + 1}]"
                self._pasted[name] = text
                text = name
            event.current_buffer.insert_text(text)

        return keys
