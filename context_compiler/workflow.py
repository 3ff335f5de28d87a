"""Workflows: markdown files whose steps run one after another as a pipeline, with directives at the top of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.pipeline.workflow import (
        Directive,
        Directives,
        Finding,
        apply_directives,
        load_workflow,
        parse_workflow,
        read_directives,
    )

__all__ = [
    "Directive",
    "Directives",
    "Finding",
    "apply_directives",
    "load_workflow",
    "parse_workflow",
    "read_directives",
]

__getattr__, __dir__ = lazy_exports(__name__, {"pipeline.workflow": __all__})
