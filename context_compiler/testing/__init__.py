"""Tests of contexts: run any agent, watch what reaches its model, and assert what must be there and what must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.testing.conversation import ContextFailure, Conversation
    from context_compiler.testing.live_runs import LiveConversation, live, live_async
    from context_compiler.testing.recording import Recording, RecordingError, read_recording, recorded, recorded_async
    from context_compiler.testing.replayer import ReplayError, replay, replay_async
    from context_compiler.testing.request import Request

__all__ = [
    "ContextFailure",
    "Conversation",
    "LiveConversation",
    "Recording",
    "RecordingError",
    "ReplayError",
    "Request",
    "live",
    "live_async",
    "read_recording",
    "recorded",
    "recorded_async",
    "replay",
    "replay_async",
]

_HOMES = {
    "testing.conversation": ("ContextFailure", "Conversation"),
    "testing.live_runs": ("LiveConversation", "live", "live_async"),
    "testing.recording": ("Recording", "RecordingError", "read_recording", "recorded", "recorded_async"),
    "testing.replayer": ("ReplayError", "replay", "replay_async"),
    "testing.request": ("Request",),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
