"""What a person types: a line with history and editing, several with Alt-Enter, and whatever is pasted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.patch_stdout import patch_stdout

from context_compiler.cli.text import one_line

LARGE = 2_000
"""Characters above which a paste stands as one word on the line."""

REMEMBERED = 500
"""Earlier prompts that the arrow keys bring back."""


class Keyboard:
    """Reads what is typed on a terminal.

    Args:
        commands: Names that are completed after a `/`, and what each does.
        status: What stands below the line.
    """

    def __init__(self, commands: Mapping[str, str], status: Callable[[], str]) -> None:
        self._pasted: dict[str, str] = {}
        self._status = status
        self._history = InMemoryHistory()
        completer = WordCompleter(
            [f"/{name}" for name in commands],
            meta_dict={f"/{name}": text for name, text in commands.items()},
            sentence=True,
        )
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=completer,
            complete_while_typing=False,
            key_bindings=self._keys(),
            bottom_toolbar=lambda: FormattedText([("noreverse fg:ansibrightblack", one_line(self._status()))]),
            enable_history_search=True,
        )

    def remember(self, prompts: Iterable[str]) -> None:
        """Let the arrow keys bring back what was said before."""
        for prompt in list(prompts)[-REMEMBERED:]:
            self._history.append_string(prompt if len(prompt) <= LARGE else prompt[:LARGE])

    async def line(self) -> str:
        """What was typed.

        Raises:
            KeyboardInterrupt: Ctrl-C.
            EOFError: Ctrl-D.
        """
        with patch_stdout(raw=True):
            text = await self._session.prompt_async(FormattedText([("bold fg:ansigreen", "› ")]))
        for name, pasted in self._pasted.items():
            text = text.replace(name, pasted)
        self._pasted.clear()
        return text

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add(Keys.Escape, Keys.Enter)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > LARGE:
                name = f"[pasted {len(text):,} characters #{len(self._pasted) + 1}]"
                self._pasted[name] = text
                text = name
            event.current_buffer.insert_text(text)

        return keys
