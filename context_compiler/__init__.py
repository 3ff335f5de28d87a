"""Context middleware for Pydantic AI: fits long conversations into a token budget, records every view, fails open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.compiler.view import View
    from context_compiler.errors import ContextCompilerError
    from context_compiler.fidelity import Fidelity, fidelity_on_resume, resolve_fidelity, resolve_thread_id
    from context_compiler.manager.config import ContextConfig
    from context_compiler.manager.manager import ContextManager
    from context_compiler.middleware.capability import ContextCompiler
    from context_compiler.middleware.conversations import RecordConversationStore
    from context_compiler.middleware.harness import RecordHistory
    from context_compiler.middleware.one_shot import compile_view
    from context_compiler.middleware.processor import build_compiling_history_processor
    from context_compiler.middleware.recall_tools import Recall
    from context_compiler.pipeline.preamble import build_fidelity_preamble
    from context_compiler.record.postgres import PostgresStore
    from context_compiler.record.store import MemoryStore, SQLiteStore, Store
    from context_compiler.record.values import Record
    from context_compiler.settings import Settings
    from context_compiler.template import Template, TemplateLibrary, list_templates
    from context_compiler.tokens import TokenCounter
    from context_compiler.tokens.prices import Money

__version__ = "0.2.0"

__all__ = [
    "ContextCompiler",
    "ContextCompilerError",
    "ContextConfig",
    "ContextManager",
    "Fidelity",
    "MemoryStore",
    "Money",
    "PostgresStore",
    "Recall",
    "Record",
    "RecordConversationStore",
    "RecordHistory",
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
    "compiler.view": ("View",),
    "errors": ("ContextCompilerError",),
    "fidelity": ("Fidelity", "fidelity_on_resume", "resolve_fidelity", "resolve_thread_id"),
    "manager.config": ("ContextConfig",),
    "manager.manager": ("ContextManager",),
    "middleware.capability": ("ContextCompiler",),
    "middleware.conversations": ("RecordConversationStore",),
    "middleware.harness": ("RecordHistory",),
    "middleware.one_shot": ("compile_view",),
    "middleware.processor": ("build_compiling_history_processor",),
    "middleware.recall_tools": ("Recall",),
    "pipeline.preamble": ("build_fidelity_preamble",),
    "record.postgres": ("PostgresStore",),
    "record.store": ("MemoryStore", "SQLiteStore", "Store"),
    "record.values": ("Record",),
    "settings": ("Settings",),
    "template": ("Template", "TemplateLibrary", "list_templates"),
    "tokens": ("TokenCounter",),
    "tokens.prices": ("Money",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
