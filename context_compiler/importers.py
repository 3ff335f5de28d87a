"""Former import path of `context_compiler.messages.importers`, kept for compatibility."""

from __future__ import annotations

from context_compiler.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FORMATS": "messages.importers",
        "read_transcripts": "messages.importers",
        "parse_transcripts": "messages.importers",
        "Transcript": "messages.importers",
    },
)
