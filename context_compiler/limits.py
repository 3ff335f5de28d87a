"""An earlier path of `context_compiler.compiler.limits`."""

from __future__ import annotations

from context_compiler.lazy import public

__getattr__, __dir__ = public(
    __name__,
    {
        "Asked": "compiler.limits",
        "limits": "compiler.limits",
        "Limits": "compiler.limits",
    },
)
