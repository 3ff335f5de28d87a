"""The command line: `context-compiler` and `python -m context_compiler`.

One module per group of commands; each command reads its arguments, calls the library and prints the result. A module
is imported when its command is called, so that `--help` and commands that only read the record do not import the host.
"""

from __future__ import annotations

import sys
from importlib import import_module

from context_compiler.lazy import EXTRAS

__all__ = ["main"]


def main() -> None:
    """Run the command line on the arguments of this process.

    Ctrl-C ends it with one line, even while it loads; so does a package of the extra `cli` that is not installed.
    """
    try:
        import_module("context_compiler.cli.root").main()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS["cli"].packages:
            raise
        install = import_module("context_compiler.paths").install_command("cli")
        sys.stderr.write(f"error: the command line needs {error.name}: {install}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(130)
