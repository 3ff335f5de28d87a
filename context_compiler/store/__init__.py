"""Former import path of the stores in `context_compiler.record.store`, kept for compatibility."""

from __future__ import annotations

from context_compiler.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"record.store": ("Store", "SQLiteStore", "MemoryStore")})
