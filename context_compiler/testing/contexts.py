"""`Contexts`, the functions of this package for one test: recordings and snapshots are found beside the test's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from context_compiler.testing.conversation import Conversation
from context_compiler.testing.live_runs import live, live_async, run_sync
from context_compiler.testing.planting import plant
from context_compiler.testing.recording import Source, recorded, recorded_async
from context_compiler.testing.replayer import replay_async
from context_compiler.testing.snapshots import assert_snapshot


class Contexts:
    """The value of the fixture `contexts`.

    Args:
        file: The file of the test.
        name: Name of the test.
        update: Write snapshots instead of comparing with them.
    """

    live = staticmethod(live)
    live_async = staticmethod(live_async)
    recorded = staticmethod(recorded)
    recorded_async = staticmethod(recorded_async)
    plant = staticmethod(plant)

    def __init__(self, file: Path, name: str, *, update: bool = False) -> None:
        self._file, self._name, self._update = file, name, update

    async def replay_async(self, recording: Source, agent: Any = None, **arguments: Any) -> Conversation:
        """Run an agent on a recording, whose path may be relative to the test's folder; see `testing.replay_async`."""
        if isinstance(recording, str | Path) and (beside := self._file.parent / recording).is_file():
            recording = beside
        return await replay_async(recording, agent, **arguments)

    def replay(self, recording: Source, agent: Any = None, **arguments: Any) -> Conversation:
        """Do the same outside an event loop."""
        return run_sync(self.replay_async(recording, agent, **arguments), "contexts.replay_async")

    def snapshot(self, conversation: Conversation, name: str = "") -> None:
        """Compare all requests of a conversation with a file in `snapshots/` beside the test."""
        __tracebackhide__ = True
        label = "".join(char if char.isalnum() or char in "-_" else "_" for char in self._name)
        file = f"{self._file.stem}-{label}{f'-{name}' if name else ''}.txt"
        assert_snapshot(conversation, self._file.parent / "snapshots" / file, update=self._update)
