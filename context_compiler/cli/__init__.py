"""The command line: `context-compiler` and `python -m context_compiler`.

One file per group of commands; each command reads its arguments, calls the library and prints. A group is imported
when it is used, so that help and a look at the record do not wait for the host to be imported.
"""

from __future__ import annotations

from context_compiler.cli.root import main

__all__ = ["main"]
