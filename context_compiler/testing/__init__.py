"""Tests of contexts: run any agent, watch what reaches its model, and assert what must be there and what must not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from context_compiler.lazy import lazy_exports

if TYPE_CHECKING:
    from context_compiler.testing.contexts import Contexts
    from context_compiler.testing.conversation import ContextFailure, Conversation
    from context_compiler.testing.evals import (
        EVALUATORS,
        InContext,
        NewestInContext,
        WithinBudget,
        case_of,
        dataset_of,
        replaying,
    )
    from context_compiler.testing.live_runs import LiveConversation, live, live_async
    from context_compiler.testing.planting import Plant, Planted, Survival, plant
    from context_compiler.testing.recording import Recording, RecordingError, read_recording, recorded, recorded_async
    from context_compiler.testing.replayer import ReplayError, replay, replay_async
    from context_compiler.testing.report import junit_properties, write_html
    from context_compiler.testing.request import Request
    from context_compiler.testing.snapshots import assert_snapshot, snapshot_text

__all__ = [
    "ContextFailure",
    "Contexts",
    "Conversation",
    "EVALUATORS",
    "InContext",
    "LiveConversation",
    "NewestInContext",
    "Plant",
    "Planted",
    "Recording",
    "RecordingError",
    "ReplayError",
    "Request",
    "Survival",
    "WithinBudget",
    "assert_snapshot",
    "case_of",
    "dataset_of",
    "junit_properties",
    "live",
    "live_async",
    "plant",
    "read_recording",
    "recorded",
    "recorded_async",
    "replay",
    "replay_async",
    "replaying",
    "snapshot_text",
    "write_html",
]

_HOMES = {
    "testing.contexts": ("Contexts",),
    "testing.conversation": ("ContextFailure", "Conversation"),
    "testing.evals": "EVALUATORS InContext NewestInContext WithinBudget case_of dataset_of replaying".split(),
    "testing.live_runs": ("LiveConversation", "live", "live_async"),
    "testing.planting": ("Plant", "Planted", "Survival", "plant"),
    "testing.recording": ("Recording", "RecordingError", "read_recording", "recorded", "recorded_async"),
    "testing.replayer": ("ReplayError", "replay", "replay_async"),
    "testing.report": ("junit_properties", "write_html"),
    "testing.request": ("Request",),
    "testing.snapshots": ("assert_snapshot", "snapshot_text"),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
