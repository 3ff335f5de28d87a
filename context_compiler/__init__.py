"""Context middleware for Pydantic AI: what a model sees of a long conversation, budgeted, recorded, fail-open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import public

if TYPE_CHECKING:
    from context_compiler.capability import ContextCompiler
    from context_compiler.compiler import compile_view
    from context_compiler.errors import ContextCompilerError
    from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
    from context_compiler.fidelity.preamble import build_fidelity_preamble
    from context_compiler.manager.config import ContextConfig
    from context_compiler.manager.managing import ContextManager
    from context_compiler.processor import build_compiling_history_processor
    from context_compiler.recall.tools import Recall
    from context_compiler.record import Record
    from context_compiler.settings import Settings
    from context_compiler.store import Store
    from context_compiler.store.memory import MemoryStore
    from context_compiler.store.sqlite import SQLiteStore
    from context_compiler.template import Template
    from context_compiler.template.lookup import TemplateLibrary, list_templates
    from context_compiler.tokens import TokenCounter
    from context_compiler.view import View

__version__ = "0.1.0"

__all__ = [
    "ContextCompiler",
    "ContextCompilerError",
    "ContextConfig",
    "ContextManager",
    "Fidelity",
    "MemoryStore",
    "Recall",
    "Record",
    "SQLiteStore",
    "Settings",
    "Store",
    "Template",
    "TemplateLibrary",
    "TokenCounter",
    "View",
    "build_compiling_history_processor",
    "build_fidelity_preamble",
    "compile_view",
    "fidelity_on_resume",
    "list_templates",
    "resolve_fidelity",
    "resolve_thread_id",
]

_HOMES = {
    "ContextCompiler": "capability",
    "ContextCompilerError": "errors",
    "ContextConfig": "manager.config",
    "ContextManager": "manager.managing",
    "Fidelity": "fidelity",
    "MemoryStore": "store.memory",
    "Recall": "recall.tools",
    "Record": "record",
    "SQLiteStore": "store.sqlite",
    "Settings": "settings",
    "Store": "store",
    "Template": "template",
    "TemplateLibrary": "template.lookup",
    "TokenCounter": "tokens",
    "View": "view",
    "build_compiling_history_processor": "processor",
    "build_fidelity_preamble": "fidelity.preamble",
    "compile_view": "compiler",
    "fidelity_on_resume": "fidelity",
    "list_templates": "template.lookup",
    "resolve_fidelity": "fidelity",
    "resolve_thread_id": "fidelity",
}

__getattr__, __dir__ = public(__name__, _HOMES)
