"""The command line: `context-compiler` and `python -m context_compiler`.

One file a group of commands, each of which reads its arguments, calls the library and prints. A group is
loaded when it is used, so that help and a look at the record do not wait for the host to be imported.
"""

from __future__ import annotations

from context_compiler.cli.root import main

__all__ = ["main"]
