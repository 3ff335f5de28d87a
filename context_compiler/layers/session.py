"""`Layers` keeps the three layers of every session: one turn at a time, stored when it ends, however it ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from inspect import isawaitable
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from context_compiler.errors import LayersError
from context_compiler.layers.context import build_context, layer_prompt
from context_compiler.layers.conversation import ConversationContext, conversation_of, from_json, to_json
from context_compiler.layers.models import as_mapping
from context_compiler.layers.registry import CurationResult, SessionIdRegistry, curate, merge_curations
from context_compiler.layers.retention import Ask, summarise_turn
from context_compiler.layers.turn import TurnState, get_current_curation
from context_compiler.record.store import Store, open_store

_LOCKS: WeakValueDictionary[tuple[int, object, str, str], asyncio.Lock] = WeakValueDictionary()
"""One lock a session of a store and event loop, whichever `Layers` asks for it."""
_TASKS: WeakKeyDictionary[asyncio.Lock, asyncio.Task[Any] | None] = WeakKeyDictionary()
"""The task whose turn holds a lock."""


class Layers:
    """The layers of all sessions of one store.

    Args:
        store: Where they live: a path or a `Store`; None keeps them in memory.
        vault_name: Of several vaults with a session of one name, whose it is.
        ask: Words what turns come to that grow too old: one prompt in, one answer out. None asks no model.
        timeout: Seconds that it may take: the next turn of a session waits for it.
    """

    def __init__(
        self,
        store: str | Path | Store | None = "system/context.db",
        *,
        vault_name: str = "",
        ask: Ask | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.store = open_store(store)
        self.vault_name = vault_name
        self.ask, self.timeout = ask, timeout
        self._open: dict[str, Turn] = {}

    def __repr__(self) -> str:
        return f"Layers({self.store!r}{f', vault_name={self.vault_name!r}' if self.vault_name else ''})"

    def turn(self, session_id: str, user_message: str = "") -> Turn:
        """The next turn of a session, for `async with`: it waits for the one before, and is stored at its end.

        A turn that an exception ends is stored too, as blocked; one that is cancelled never was.

        Raises:
            LayersError: that is no name of a session.
        """
        return Turn(self, check_session_id(session_id), user_message)

    async def conversation(self, session_id: str) -> ConversationContext:
        """What is stored of a session; empty when it is unknown.

        Raises:
            StoreError: it cannot be read.
            LayersError: what is stored is broken.
        """
        return (await self.load(session_id))[0]

    async def load(self, session_id: str) -> tuple[ConversationContext, int]:
        """The same, and its version in the store."""
        found = await self.store.layers(check_session_id(session_id), self.vault_name)
        return (conversation_of(None), 0) if found is None else (from_json(found[0]), found[1])

    async def state(self, session_id: str) -> TurnState:
        """The state of a session's turn in progress; where there is none, of the turn that would begin next."""
        turn = self._open.get(session_id)
        return turn.state if turn is not None else initial_state(await self.conversation(session_id), "")

    def begun(self, turn: Turn) -> None:
        """A turn is in progress."""
        self._open[turn.session_id] = turn

    def ended(self, turn: Turn) -> None:
        """It is not any more."""
        self._open.pop(turn.session_id, None)

    def lock(self, session_id: str) -> asyncio.Lock:
        """What serialises the turns of a session in this event loop."""
        path = getattr(self.store, "path", None)
        place: object = os.path.abspath(path) if isinstance(path, str | Path) else id(self.store)
        key = (id(asyncio.get_running_loop()), place, self.vault_name, session_id)
        return _LOCKS.setdefault(key, asyncio.Lock())

    async def close(self) -> None:
        """Let go of the store's connections; it opens them again when it is used again."""
        await self.store.close()


LayerSource = Layers | Callable[[str], Any]
"""Where the states of sessions are: `Layers`, or a function from a session's id to its state, plain or async."""


async def load_state(source: LayerSource, session_id: str) -> Mapping[str, Any]:
    """The state of a session, wherever the application keeps it."""
    if isinstance(source, Layers):
        return cast("Mapping[str, Any]", await source.state(session_id))
    found: object = source(session_id)
    return as_mapping(await found if isawaitable(found) else found, "the state")


def check_session_id(session_id: object) -> str:
    """The name of a session.

    Raises:
        LayersError: it is none.
    """
    if not isinstance(session_id, str) or not session_id.strip():
        raise LayersError(f"session {session_id!r} is no name; give a text that is not empty")
    return session_id


def initial_state(conversation: ConversationContext, user_message: str) -> TurnState:
    """The state in which a turn begins: the one after the last that is stored."""
    registry = SessionIdRegistry.from_dict(conversation["id_registry"])
    registry.set_turn(registry.current_turn + 1)
    return {
        "id_registry": registry,
        "current_turn": registry.current_turn,
        "conversation": cast("Mapping[str, Any]", conversation),
        "user_message": user_message,
        "steps": [],
    }


class Turn:
    """One turn of a session: what its nodes are told, and what they report."""

    def __init__(self, layers: Layers, session_id: str, user_message: str) -> None:
        self.session_id = session_id
        self.state: TurnState = {"user_message": user_message}
        self._layers = layers
        self._lock: asyncio.Lock | None = None
        self._version = 0

    async def __aenter__(self) -> Turn:
        """Wait for the turn before, and begin from what it left.

        Raises:
            LayersError: this task is in a turn of that session already and would wait for itself.
            StoreError: what is stored cannot be read.
        """
        lock = self._layers.lock(self.session_id)
        if _TASKS.get(lock) is asyncio.current_task():
            raise LayersError(f"session {self.session_id!r} is in a turn already; end it before the next begins")
        await lock.acquire()
        self._lock, _TASKS[lock] = lock, asyncio.current_task()
        try:
            stored, self._version = await self._layers.load(self.session_id)
            self.state = initial_state(stored, self.state.get("user_message", ""))
            self._layers.begun(self)
        finally:
            if "id_registry" not in self.state:  # it could not be read: whoever waits may try
                self._release()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store what the turn came to, unless it was cancelled."""
        try:
            if isinstance(error, Exception):
                self.state.setdefault("blocked_action", f"{type(error).__name__}: {error}"[:500])
            if error is None or isinstance(error, Exception):
                said, layers = cast("Mapping[str, Any]", self.state), self._layers
                stored = await summarise_turn(said, ask=layers.ask, timeout=layers.timeout)
                keep = self._layers.store.save_layers
                await keep(self.session_id, self._layers.vault_name, to_json(stored), after=self._version)
        finally:
            self._layers.ended(self)
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            del _TASKS[self._lock]
            self._lock.release()
            self._lock = None

    @property
    def number(self) -> int:
        """Which turn of its session this is, counted from 1."""
        return self.state.get("current_turn", 0)

    @property
    def registry(self) -> SessionIdRegistry:
        """The entities of the session.

        Raises:
            LayersError: the turn has not begun.
        """
        found = self.state.get("id_registry")
        if not isinstance(found, SessionIdRegistry):
            raise LayersError("the turn has not begun; enter it with `async with layers.turn(...) as turn`")
        return found

    def curate(self, *, retained: Mapping[str, str] | None = None, demoted: list[str] | None = None) -> CurationResult:
        """What Understand decides: `retained` refs with the reason of each, and those to let go of.

        Said more than once in a turn, what was said last of a ref counts.
        """
        why = dict(as_mapping(retained, "retained"))
        done = curate(self.registry, retained=why, demoted=demoted or [], reasons=why)
        before = get_current_curation(cast("Mapping[str, Any]", self.state))
        self.understood(entity_curation=merge_curations(before, done.summary))
        return done

    def understood(self, **facts: Any) -> None:
        """What Understand found, such as `clarification_questions`."""
        self.state["understand_output"] = {**self.state.get("understand_output", {}), **facts}

    def decided(self, decision: str, goal: str, **facts: Any) -> None:
        """What Think decided: plan_direct, propose or clarify; with `proposal_message`, `user_expressed` and so on."""
        self.state["think_output"] = {"decision": decision, "goal": goal, **facts}

    def did(self, type: str, description: str, *, result: object = None, **facts: Any) -> None:
        """A step was done: read, analyze, generate or write; with `subdomain`, `result_summary`, `note`."""
        step = {"type": type, "description": description, "result": result, **facts}
        self.state["steps"] = [*self.state.get("steps", []), step]

    def blocked(self, details: str, **facts: Any) -> None:
        """The turn cannot go on; with `attempted_context` (tool, table, items) and `suggested_next`."""
        self.state["blocked_action"] = {"details": details, **facts}

    def answered(self, text: str) -> None:
        """What the user was told."""
        self.state["final_response"] = text

    def context(self, role: str) -> dict[str, Any]:
        """What a node is told now, as values."""
        return build_context(role, cast("Mapping[str, Any]", self.state))

    def prompt(self, role: str, task: str) -> str:
        """What a node is told now, as a prompt that ends with its task."""
        return layer_prompt(role, cast("Mapping[str, Any]", self.state), task)
