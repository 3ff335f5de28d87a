"""The command line: `context-compiler` and `python -m context_compiler`.

One module per group of commands; each command reads its arguments, calls the library and prints the result. A module
is imported when its command is called, so that `--help` and commands that only read the record do not import the host.
"""

from __future__ import annotations

from context_compiler.cli.root import main

__all__ = ["main"]
