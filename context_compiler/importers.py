"""Former import path of `context_compiler.messages.importers`, kept for compatibility."""

from __future__ import annotations

from context_compiler.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__, {"messages.importers": ("FORMATS", "read_transcripts", "parse_transcripts", "Transcript")}
)
