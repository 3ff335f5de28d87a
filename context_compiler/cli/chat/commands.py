"""Slash commands of the chat."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from operator import is_
from pathlib import Path

from context_compiler.chat.reconcile import visible_turns
from context_compiler.chat.session import ChatSession
from context_compiler.cli.chat.prompt import HELP, Leave
from context_compiler.cli.explanation import print_explanation
from context_compiler.cli.screen import Column, Screen
from context_compiler.cli.show import print_messages, read_history
from context_compiler.cli.steering import print_outcome, print_pins, print_rules
from context_compiler.cli.text import first_word, number, one_line, plural, sent_share, share
from context_compiler.compiler.view import View
from context_compiler.errors import SettingsError, StoreError, TemplateError
from context_compiler.messages.history import History
from context_compiler.recall.passages import write_quotation
from context_compiler.record.values import Drop
from context_compiler.template import TemplateLibrary
from context_compiler.tokens.prices import dollars

TEMPLATES = (Column(""), Column("template", style="bold"), Column("from"), Column("what it writes", elastic=True))
_COMPACT = re.compile(
    r"(?is)(?:(?:(?P<preview>--preview)|--from +(?P<start>(?:turn |message |m|t)?#?\d{1,9}))(?!\S)\s*)*(?P<focus>.*)"
)

REST = "/view full, after the next answer"
"""Hint that tells where to see the whole summary of a compile."""

USAGE = {
    "recall": "WORDS: finds passages about them in the whole conversation",
    "pin": "TURN or WORDS: keeps that message in every view, as in /pin turn 3",
    "unpin": "TURN or WORDS: /pins lists the pinned messages",
    "dismiss": "WORDS: /rules lists the rules",
}
"""Hints that replace a command without its argument."""

LINES = 6
"""Maximum lines per message in `/view full`."""


class Commands:
    """The commands of one chat.

    Args:
        chat: The conversation.
        screen: Output.
        vault: Folder whose templates come first.
        system: Folder whose templates come second.
    """

    def __init__(self, chat: ChatSession, screen: Screen, *, vault: Path | None, system: Path) -> None:
        self._chat, self._screen = chat, screen
        self._library = TemplateLibrary(vault=vault, system=system)

    async def run(self, line: str) -> None:
        """Run a line that begins with `/`.

        Raises:
            Leave: it was `/quit`.
        """
        name, _, rest = line[1:].strip().partition(" ")
        command, argument = name.lower(), rest.strip()
        if command not in HELP:
            close = get_close_matches(command, HELP, n=1, cutoff=0.5)
            hint = f", but there is /{close[0]}" if close else ""
            self._screen.line(
                f"there is no /{one_line(name, 40)}{hint}; /help lists all, and // begins a message with /"
            )
            return
        if command in USAGE and not argument:
            self._screen.line(f"/{command} {USAGE[command]}")
            return
        try:
            await getattr(self, f"_{command}")(argument)
        except (SettingsError, StoreError) as error:
            self._screen.line((f"/{command}: ", "bold red"), one_line(str(error), 400))

    async def _help(self, rest: str) -> None:
        self._screen.facts((f"/{name}", text) for name, text in HELP.items())
        self._screen.line()
        self._screen.line(("Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves.", "dim"))

    async def _quit(self, rest: str) -> None:
        raise Leave

    async def _endless(self, rest: str) -> None:
        if rest not in ("", "on", "off"):
            self._screen.line(f"/endless {one_line(rest, 40)}: say on or off")
            return
        self._chat.endless = self._chat.endless if not rest else rest == "on"
        if self._chat.endless:
            self._screen.line(f"Endless is on: views are written with {one_line(self._chat.template, 60)}")
        else:
            self._screen.line("Endless is off: the whole history is sent")

    async def _template(self, rest: str) -> None:
        if rest:
            await self._select(rest)
            return
        rows = [
            (
                "*" if template.name == self._chat.template.removesuffix(".md") else "",
                template.name,
                template.source,
                template.description,
            )
            for template in self._library.list()
            if not template.shadowed
        ]
        self._screen.table(TEMPLATES, rows)
        try:
            self._library.find(self._chat.template)
        except TemplateError as error:
            self._screen.line(("selected, but invalid: ", "bold red"), one_line(str(error)))

    async def _select(self, name: str) -> None:
        try:
            template = self._library.find(name)
        except TemplateError as error:
            self._screen.line(("not selected: ", "bold red"), one_line(str(error)))
            return
        self._chat.template = name
        mode = "" if self._chat.endless else "; Endless is off, so it is not used yet: /endless on"
        self._screen.line(f"views are written with {one_line(name, 60)} ({template.source}){mode}")

    async def _view(self, rest: str) -> None:
        if rest not in ("", "full"):
            self._screen.line(f"/view {one_line(rest, 40)}: say full, or nothing")
            return
        last = self._chat.last
        if last is None:
            self._screen.line("nothing has been sent yet since this chat was opened")
            return
        raw = read_history(last.history)
        if last.view is None or first_word(last.view.status) == "raw" or _is_whole(last.view, raw):
            room = f" of {number(last.view.budget)}" if last.view is not None and last.view.budget else ""
            size = f"{plural(len(raw), 'message')}, {number(raw.tokens)}{room} tokens"
            self._screen.line(f"the whole history was sent as it is: {size}")
            self._print_failure(last.view)
            return
        view, sent = last.view, read_history(last.view.messages)
        self._screen.line(
            (first_word(view.status), "bold"),
            f": {number(last.raw)} tokens became {number(last.sent)}, {number(view.budget)} at most; ",
            f"{plural(len(raw), 'message')} became {len(sent)}",
        )
        self._print_failure(view)
        compiled = view.record.compile if view.record is not None else None
        if compiled is not None and compiled.compiled_prompt is None and compiled.error:
            self._screen.line(("no model was asked: ", "yellow"), one_line(compiled.error))
        if rest == "full":
            print_messages(self._screen, sent, lines=LINES)
        print_explanation(self._screen, _with_drops(view, raw), raw, sent)

    def _print_failure(self, view: View | None) -> None:
        if view is not None and view.error:
            self._screen.line(("what failed: ", "yellow"), one_line(view.error))

    async def _recall(self, rest: str) -> None:
        passages = await self._chat.recall(rest)
        if not passages:
            self._screen.line(f"nothing was said about {one_line(rest, 60)}")
            return
        self._screen.indented(write_quotation(passages, numbered=True))

    async def _compact(self, rest: str) -> None:
        match = _COMPACT.fullmatch(rest)
        preview, start, focus = match.group("preview", "start", "focus") if match else (None, None, rest)
        if not self._chat.endless:
            self._screen.line("Endless is off, so the whole history is sent: /endless on, then /compact")
            return
        if focus.startswith("--"):
            self._screen.line(f"/compact {one_line(focus, 40)}: say /compact {HELP['compact'].partition(':')[0]}")
            return
        result = await self._chat.compact(focus, start=start, preview=preview is not None)
        print_outcome(self._screen, result, rest=REST)

    async def _undo(self, rest: str) -> None:
        print_outcome(self._screen, await self._chat.undo(), rest=REST)

    async def _pin(self, rest: str) -> None:
        pin = await self._chat.pin(rest)
        self._screen.line(f"turn {pin.turn} stays in every view, {number(pin.tokens)} tokens: {one_line(pin.text)}")

    async def _unpin(self, rest: str) -> None:
        pin = await self._chat.unpin(rest)
        self._screen.line(f"turn {pin.turn} is no longer pinned, from the next compile on: {one_line(pin.text)}")

    async def _pins(self, rest: str) -> None:
        print_pins(await self._chat.pins())

    async def _rules(self, rest: str) -> None:
        print_rules(await self._chat.rules())

    async def _dismiss(self, rest: str) -> None:
        rule = await self._chat.dismiss(rest)
        self._screen.line(f"no longer a rule, from the next request on: {one_line(rule.text)}")

    async def _stats(self, rest: str) -> None:
        chat, spent = self._chat, self._chat.usage
        by_model = f", {number(spent.model_compiles)} of them by a model" if spent.compiles else ""
        self._screen.facts(
            (
                ("session", chat.session),
                ("turns", number(len(visible_turns(chat.messages)))),
                ("messages", number(len(chat.messages))),
                ("answers here", number(spent.answers)),
                ("compiles here", f"{number(spent.compiles)}{by_model}"),
                ("tokens raw", number(spent.raw)),
                ("tokens sent", f"{number(spent.sent)} {sent_share(spent.sent, spent.raw)}".strip()),
                ("tokens cached", number(spent.cached)),
                ("compile cost", dollars(spent.compile_cost)),
                ("recall blocks", f"{number(spent.recalled)} {share(spent.recalled, spent.sent)}".strip()),
                ("transcript", chat.storage.transcript.path),
                ("record", getattr(chat.storage.store, "path", "in memory")),
            )
        )


def _is_whole(view: View, raw: History) -> bool:
    """True if a view is the whole history, message for message."""
    return len(view.messages) == len(raw) and all(map(is_, view.messages, raw.messages))


def _with_drops(view: View, raw: History) -> View:
    """Return the view; if it has no drops of its own, add the messages that an earlier compile left out."""
    if not view.kept:
        positions = {id(message): position for position, message in enumerate(raw.messages)}
        origins = [positions[id(message)] for message in view.messages if id(message) in positions]
        view = replace(view, kept=tuple((position, "all that could be sent") for position in origins))
    kept = {position for position, _ in view.kept}
    dropped = [position for position in range(len(raw)) if position not in kept]
    if view.drops or not dropped:
        return view
    cost = sum(raw.readings[position].tokens for position in dropped)
    why = "left out by the last compile; replaced by notes and quotes"
    return replace(view, drops=(Drop(what=f"messages {dropped[0]} to {dropped[-1]}", reason=why, tokens=cost),))
