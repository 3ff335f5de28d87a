"""Sessions of a store: `Layers` keeps their layers, one turn at a time, and stores each turn when it ends."""

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
"""One lock for each session, store and event loop, shared by all `Layers`."""
_TASKS: WeakKeyDictionary[asyncio.Lock, asyncio.Task[Any] | None] = WeakKeyDictionary()
"""Task whose turn holds a lock."""


class Layers:
    """Layers of all sessions of one store.

    Args:
        store: A path or a `Store`; None keeps the layers in memory.
        vault_name: Vault of the sessions, if several vaults have sessions of one name.
        ask: Summarizes old turns: a function from a prompt to an answer. None asks no model.
        timeout: Seconds allowed for `ask`; the next turn of a session waits for it.
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
        """Next turn of a session, for `async with`: it waits for the turn before, and is stored when it ends.

        A turn that ends with an exception is stored as blocked; a cancelled turn is not stored.

        Raises:
            LayersError: The session id is empty or not a text.
        """
        return Turn(self, check_session_id(session_id), user_message)

    async def conversation(self, session_id: str) -> ConversationContext:
        """Stored state of a session; empty if the session is unknown.

        Raises:
            StoreError: It cannot be read.
            LayersError: The stored state is broken.
        """
        return (await self.load(session_id))[0]

    async def load(self, session_id: str) -> tuple[ConversationContext, int]:
        """Stored state of a session and its version in the store."""
        found = await self.store.layers(check_session_id(session_id), self.vault_name)
        return (conversation_of(None), 0) if found is None else (from_json(found[0]), found[1])

    async def state(self, session_id: str) -> TurnState:
        """State of the session's turn in progress; if there is none, of the turn that would begin next."""
        turn = self._open.get(session_id)
        return turn.state if turn is not None else initial_state(await self.conversation(session_id), "")

    def begun(self, turn: Turn) -> None:
        """Set the turn in progress."""
        self._open[turn.session_id] = turn

    def ended(self, turn: Turn) -> None:
        """Clear the turn in progress."""
        self._open.pop(turn.session_id, None)

    def lock(self, session_id: str) -> asyncio.Lock:
        """Lock that serializes the turns of a session in this event loop."""
        path = getattr(self.store, "path", None)
        place: object = os.path.abspath(path) if isinstance(path, str | Path) else id(self.store)
        key = (id(asyncio.get_running_loop()), place, self.vault_name, session_id)
        return _LOCKS.setdefault(key, asyncio.Lock())

    async def close(self) -> None:
        """Close the store's connections; it reopens on use."""
        await self.store.close()


LayerSource = Layers | Callable[[str], Any]
"""Source of session states: `Layers`, or a function from a session id to its state, plain or async."""


async def load_state(source: LayerSource, session_id: str) -> Mapping[str, Any]:
    """State of a session from its source."""
    if isinstance(source, Layers):
        return cast("Mapping[str, Any]", await source.state(session_id))
    found: object = source(session_id)
    return as_mapping(await found if isawaitable(found) else found, "the state")


def check_session_id(session_id: object) -> str:
    """Return a session id.

    Raises:
        LayersError: It is empty or not a text.
    """
    if not isinstance(session_id, str) or not session_id.strip():
        raise LayersError(f"session {session_id!r} is no name; give a text that is not empty")
    return session_id


def initial_state(conversation: ConversationContext, user_message: str) -> TurnState:
    """State at the beginning of a turn: the one after the last stored."""
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
    """One turn of a session: prompts for its nodes, and reports from them."""

    def __init__(self, layers: Layers, session_id: str, user_message: str) -> None:
        self.session_id = session_id
        self.state: TurnState = {"user_message": user_message}
        self._layers = layers
        self._lock: asyncio.Lock | None = None
        self._version = 0

    async def __aenter__(self) -> Turn:
        """Wait for the turn before, and begin from the stored state.

        Raises:
            LayersError: This task is already in a turn of the session and would wait for itself.
            StoreError: The stored state cannot be read.
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
        """Store the turn, unless it was cancelled."""
        try:
            if isinstance(error, Exception):
                self.state.setdefault("blocked_action", f"{type(error).__name__}: {error}"[:500])
            if error is None or isinstance(error, Exception):
                state, layers = cast("Mapping[str, Any]", self.state), self._layers
                stored = await summarise_turn(state, ask=layers.ask, timeout=layers.timeout)
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
        """Number of the turn in its session, counted from 1."""
        return self.state.get("current_turn", 0)

    @property
    def registry(self) -> SessionIdRegistry:
        """Entities of the session.

        Raises:
            LayersError: The turn has not begun.
        """
        found = self.state.get("id_registry")
        if not isinstance(found, SessionIdRegistry):
            raise LayersError("the turn has not begun; enter it with `async with layers.turn(...) as turn`")
        return found

    def curate(self, *, retained: Mapping[str, str] | None = None, demoted: list[str] | None = None) -> CurationResult:
        """Apply Understand's curation: `retained` refs with the reason of each, and `demoted` ones.

        Of several calls in a turn, the last one about a ref counts.
        """
        why = dict(as_mapping(retained, "retained"))
        done = curate(self.registry, retained=why, demoted=demoted or [], reasons=why)
        before = get_current_curation(cast("Mapping[str, Any]", self.state))
        self.understood(entity_curation=merge_curations(before, done.summary))
        return done

    def understood(self, **facts: Any) -> None:
        """Report findings of Understand, such as `clarification_questions`."""
        self.state["understand_output"] = {**self.state.get("understand_output", {}), **facts}

    def decided(self, decision: str, goal: str, **facts: Any) -> None:
        """Report Think's decision: plan_direct, propose or clarify; with `proposal_message`, `user_expressed` etc."""
        self.state["think_output"] = {"decision": decision, "goal": goal, **facts}

    def did(self, type: str, description: str, *, result: object = None, **facts: Any) -> None:
        """Report an executed step: read, analyze, generate or write; with `subdomain`, `result_summary`, `note`."""
        step = {"type": type, "description": description, "result": result, **facts}
        self.state["steps"] = [*self.state.get("steps", []), step]

    def blocked(self, details: str, **facts: Any) -> None:
        """Report that the turn cannot go on; with `attempted_context` (tool, table, items) and `suggested_next`."""
        self.state["blocked_action"] = {"details": details, **facts}

    def answered(self, text: str) -> None:
        """Report the answer to the user."""
        self.state["final_response"] = text

    def context(self, role: str) -> dict[str, Any]:
        """Context of a node now, as values."""
        return build_context(role, cast("Mapping[str, Any]", self.state))

    def prompt(self, role: str, task: str) -> str:
        """Prompt of a node now, ending with its task."""
        return layer_prompt(role, cast("Mapping[str, Any]", self.state), task)
