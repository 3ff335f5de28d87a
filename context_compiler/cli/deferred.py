"""Commands and output in modules of their own, imported when they are needed, so that lists of the record are quick."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from typer.main import get_command

from context_compiler.cli.options import Group


def load(module: str) -> Any:
    """Import a module of `context_compiler.cli`."""
    return import_module(f"context_compiler.cli.{module}")


load_view_text = partial(load, "view_text")
load_placeholders = partial(load, "placeholders")
load_remedy = partial(load, "remedy")
load_written = partial(import_module, "context_compiler.testing.written")
"""Text of `views show`, placeholders of templates, the remedy of `views why`, writer of tests; most need the host."""


class Deferred(Group):
    """A group of commands in other modules, each imported when it is called or listed."""

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Module of each such command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of all commands."""
        return [*(name for name in self.commands if name not in self.elsewhere), *self.elsewhere]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command and return it; None if there is none of that name."""
        if cmd_name in self.elsewhere and cmd_name not in self.commands:
            loaded: Any = get_command(load(self.elsewhere[cmd_name]).app)
            self.commands[cmd_name] = getattr(loaded, "commands", {}).get(cmd_name, loaded)
        return self.commands.get(cmd_name)


class Views(Deferred):
    """The commands of `views`."""

    elsewhere = {"why": "facts", "diff": "diff", "replay": "view_changes", "verdict": "view_changes"} | {
        "export": "written_tests"
    }


class Sessions(Deferred):
    """The commands of `sessions`."""

    elsewhere = (
        {"show": "session_show", "find": "facts"}
        | dict.fromkeys(["delete", "compact", "undo", "pin", "unpin", "pins", "rules", "dismiss"], "session_commands")
        | {"test": "written_tests"}
    )
