"""Former import path of `context_compiler.compiler.specifics`, kept for compatibility."""

from __future__ import annotations

from context_compiler.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__, {"compiler.specifics": ("TextSet", "Told:TextSet", "specifics", "Specific")}
)
