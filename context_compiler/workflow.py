"""A workflow is a markdown file whose steps run one after another as a pipeline; directives stand at their tops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import public

if TYPE_CHECKING:
    from context_compiler.pipeline.directives import Directive, Directives, Finding, read_directives
    from context_compiler.pipeline.workflow import apply_directives, load_workflow, parse_workflow

__all__ = [
    "Directive",
    "Directives",
    "Finding",
    "apply_directives",
    "load_workflow",
    "parse_workflow",
    "read_directives",
]

_HOMES = {
    "Directive": "pipeline.directives",
    "Directives": "pipeline.directives",
    "Finding": "pipeline.directives",
    "apply_directives": "pipeline.workflow",
    "load_workflow": "pipeline.workflow",
    "parse_workflow": "pipeline.workflow",
    "read_directives": "pipeline.directives",
}

__getattr__, __dir__ = public(__name__, _HOMES)
