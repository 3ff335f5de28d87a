"""Entry point of `python -m context_compiler`: the command line."""

from __future__ import annotations

from context_compiler.cli import main

if __name__ == "__main__":
    main()
