"""Conversations with an agent: stored in full, and sent to the model either whole or as a view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.chat.demo_model import ScriptedModel
    from context_compiler.chat.session import ChatSession, Reply
    from context_compiler.chat.transcript import Transcript, safe_id
    from context_compiler.messages.failures import Failure, Occasion, Reflection, ReflectionPolicy

__all__ = [
    "ChatSession",
    "Failure",
    "Occasion",
    "Reflection",
    "ReflectionPolicy",
    "Reply",
    "ScriptedModel",
    "Transcript",
    "safe_id",
]

_HOMES = {
    "chat.session": ("ChatSession", "Reply"),
    "messages.failures": ("Failure", "Occasion", "Reflection", "ReflectionPolicy"),
    "chat.demo_model": ("ScriptedModel",),
    "chat.transcript": ("Transcript", "safe_id"),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
