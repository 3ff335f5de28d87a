"""Layers of the sessions of a store: `Layers` runs one turn of a session at a time, and stores it when it ends."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from weakref import WeakValueDictionary

from context_compiler.cache import Memo
from context_compiler.errors import ContextCompilerError, LayersError, SettingsError, StoreError
from context_compiler.layers.context import Need, build_context, layer_prompt
from context_compiler.layers.conversation import ConversationContext, conversation_of, from_json, to_json
from context_compiler.layers.models import as_mapping
from context_compiler.layers.registry import CurationResult, SessionIdRegistry, StoredEntities, curate, merge_curations
from context_compiler.layers.retention import Ask, end_turn
from context_compiler.layers.turn import TurnState, get_current_curation
from context_compiler.record.database import Moment
from context_compiler.record.rows import Removed
from context_compiler.record.store import SQLStore, Store, Tenants, open_store
from context_compiler.resilience import SharedLock, await_within, call, try_await

CACHED_SESSIONS = 8
"""Number of sessions whose stored state stays parsed in memory."""

LOG = logging.getLogger("context_compiler")

Stored = tuple[str, int]
"""State of a session as JSON, and its version in the store."""
Place = tuple[object, str | None, str, str]
"""Store, owner, vault and name of a session."""

_LOCKS: WeakValueDictionary[tuple[int, *Place], asyncio.Lock] = WeakValueDictionary()
"""One lock per session, store and event loop, shared by all `Layers`."""
_ACTIVE_TURNS: ContextVar[tuple[Turn, ...]] = ContextVar("turns", default=())
"""Turns in progress in this task and in the tasks that started it."""

_WITH_UNSAVED: set[Layers] = set()
"""`Layers` with unsaved turns. Keeps them alive, because those of an owner may have no other reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedState:
    """State of a session as last read or stored; only copies of its registry are handed out."""

    text: str
    version: int
    conversation: ConversationContext
    registry: SessionIdRegistry


class Layers:
    """Layers of all sessions of one store.

    Args:
        store: A path or a `Store`; None keeps the layers in memory.
        vault_name: Vault of the sessions, needed if several vaults have a session of the same name.
        ask: Async function from a prompt to an answer, used to summarize old turns. None uses no model.
        timeout: Seconds allowed for `ask`; the next turn of a session waits for it.
        on_error: Called with errors that do not stop a turn, such as a store that is locked at its end; may be async.
    """

    def __init__(
        self,
        store: str | Path | Store | None = "system/context.db",
        *,
        vault_name: str = "",
        ask: Ask | None = None,
        timeout: float = 60.0,
        on_error: Callable[[Exception], Any] | None = None,
    ) -> None:
        self.store = open_store(store)
        self.vault_name = vault_name
        self.ask, self.timeout, self.on_error = ask, timeout, on_error
        self._open: dict[str, Turn] = {}
        self._unsaved: dict[str, Stored] = {}
        """States by session that could not be stored yet, each with the version that it follows."""
        self._first_tried: dict[str, Moment] = {}
        """Moment of the first attempt to store each of these."""
        self._saving: WeakValueDictionary[str, SharedLock] = WeakValueDictionary()
        """One lock per session whose state is being stored: the next one follows what is stored then."""
        self._cache: Memo[str, _CachedState] = Memo(CACHED_SESSIONS)
        self._scoped: WeakValueDictionary[str, Layers] = WeakValueDictionary()

    def scoped(self, owner: str) -> Layers:
        """Return the layers of another owner's sessions: the same object as long as it is referenced.

        Raises:
            SettingsError: The store does not support owners, or not one of that name.
        """
        if not isinstance(self.store, Tenants):
            raise SettingsError(f"{self.store!r} does not support owners: give a path, or a store that has `scoped`")
        if owner == self.store.owner:
            return self
        layers = self._scoped.get(owner)
        if layers is None:
            layers = self._scoped[owner] = Layers(
                self.store.scoped(owner),
                vault_name=self.vault_name,
                ask=self.ask,
                timeout=self.timeout,
                on_error=self.on_error,
            )
        return layers

    def __repr__(self) -> str:
        return f"Layers({self.store!r}{f', vault_name={self.vault_name!r}' if self.vault_name else ''})"

    def turn(self, session_id: str, user_message: str = "") -> Turn:
        """Return the next turn of a session, for `async with`; it waits for the previous turn and is stored at its end.

        A turn that ends with an exception is stored as blocked. A cancelled turn is not stored. If the store fails,
        the turn is kept in memory and stored later: with the next turn or read of the session, or by `close`. If the
        store cannot be read, the turn begins from what this object knows of the session.

        Raises:
            LayersError: The session id is empty or not a string.
        """
        return Turn(self, check_session_id(session_id), user_message)

    async def conversation(self, session_id: str) -> ConversationContext:
        """Return the stored state of a session; empty if the session is unknown.

        Raises:
            StoreError: The state cannot be read.
            LayersError: The stored state is invalid.
        """
        text, _ = await self._newest(session_id)
        return conversation_of(None) if text is None else from_json(text)

    async def begin(self, session_id: str, user_message: str) -> tuple[TurnState, int]:
        """Return the initial state of the session's next turn, and the version in the store that it follows."""
        cached = self._cache.get(check_session_id(session_id))
        text, version = await self._newest(session_id)
        if text is None:
            return initial_state(None, user_message), 0
        if cached is None or cached.text != text:
            conversation = from_json(text)
            registry = SessionIdRegistry.from_dict(as_mapping(conversation["id_registry"], "id_registry"))
            conversation["id_registry"] = StoredEntities(registry)
            cached = _CachedState(text=text, version=version, conversation=conversation, registry=registry)
            self._cache.keep(session_id, cached)
        return initial_state(cached, user_message), version

    async def begin_or_report(self, session_id: str, user_message: str) -> tuple[TurnState, int, bool]:
        """Return the same as `begin`, and whether the store was read; if it was not, what was known before is used.

        Raises:
            LayersError: The stored state is invalid.
        """
        begun = await try_await(self.begin(session_id, user_message))
        if begun.value is not None:
            return *begun.value, True
        error = begun.error or StoreError("the layers cannot be read")
        if isinstance(error, ContextCompilerError) and not isinstance(error, StoreError):
            raise error
        await self.report(f"session {session_id!r}: its layers cannot be read; the turn begins without them", error)
        cached = self._cache.get(session_id)
        return initial_state(cached, user_message), 0 if cached is None else cached.version, False

    async def _newest(self, session_id: str) -> tuple[str | None, int]:
        """Return the newest state of a session and its version; None and 0 if it is unknown.

        If the state is not stored yet, this tries again to store it.
        """
        await self._save_unsaved(check_session_id(session_id))
        return self._unsaved.get(session_id) or await self.store.layers(session_id, self.vault_name) or (None, 0)

    async def save(self, turn: Turn, conversation: ConversationContext, registry: SessionIdRegistry) -> None:
        """Store the state of a session after a turn; if the store fails, keep it to try again later.

        Raises:
            StoreError: Another process has stored a turn of the session since; if the turn began without reading the
                store, that is reported.
        """
        session_id = turn.session_id
        kept = from_json(to_json({**conversation, "id_registry": {}}))
        text = to_json({**kept, "id_registry": registry.to_dict()})
        kept["id_registry"] = StoredEntities(registry)
        cached = _CachedState(text=text, version=turn.version, conversation=kept, registry=registry)
        self._cache.keep(session_id, cached)
        await self._save_next(session_id, lambda: (text, turn.version), strict=turn.was_read)

    async def _save_unsaved(self, session_id: str) -> None:
        """Try again to store the state of a session, if it is not stored yet."""
        if session_id in self._unsaved:
            await self._save_next(session_id, lambda: self._unsaved.get(session_id))

    async def _save_next(self, session_id: str, state: Callable[[], Stored | None], *, strict: bool = False) -> None:
        """Store a state, which is asked for once no other state of the session is being stored."""
        async with self._saving.setdefault(session_id, SharedLock()):
            newest = state()
            fault = None if newest is None else await self._save(session_id, newest, strict=strict)
        if fault is not None:  # after the lock, because `on_error` may read the session
            await self.report(*fault)

    async def _store(self, session_id: str, state: Stored) -> int:
        """Store a state and return its version.

        A retry of a session's first state is refused if something was deleted since the first attempt.
        """
        text, version = state
        store, tried = self.store, None if version else self._first_tried.get(session_id)
        if tried is not None and isinstance(store, SQLStore):
            store = store.late(tried)
        return await store.save_layers(session_id, self.vault_name, text, after=version)

    async def _save(self, session_id: str, state: Stored, *, strict: bool) -> tuple[str, Exception] | None:
        """Store a state. If that fails, keep it to try again, unless the stored state has changed or was deleted.

        If `strict`, a changed stored state raises the store's error.

        Returns:
            What to report, if it could not be stored.
        """
        now = Moment()
        stored = await try_await(self._store(session_id, state))
        self._unsaved.pop(session_id, None)
        tried = self._first_tried.pop(session_id, now)
        if not self._unsaved:
            _WITH_UNSAVED.discard(self)
        if (error := stored.error) is None:
            return self._note_version(session_id, state, stored.value or 0)
        if isinstance(error, Removed):
            gone = f"session {session_id!r}: something was deleted meanwhile, maybe its layers; the turn is not stored"
            return "the end of a turn", StoreError(gone)
        newest = await try_await(self.store.layers(session_id, self.vault_name))
        version = newest.value[1] if newest.value is not None else 0
        if newest.error is not None or version == state[1]:
            self._unsaved[session_id], self._first_tried[session_id] = state, tried
            _WITH_UNSAVED.add(self)
            return f"session {session_id!r}: its layers are kept in memory until they can be stored", error
        if version == 0:
            gone = f"session {session_id!r}: its layers were deleted meanwhile; the turn is not stored"
            return "the end of a turn", StoreError(gone)
        if strict:
            raise error
        return f"session {session_id!r}: a turn that could not be stored in time is lost", error

    def _note_version(self, session_id: str, state: Stored, version: int) -> None:
        """Note the version of a state that has been stored, from which a turn in progress may have begun."""
        text, after = state
        cached, turn = self._cache.get(session_id), self._open.get(session_id)
        if cached is not None and cached.text == text:
            self._cache.keep(session_id, replace(cached, version=version))
        if turn is not None and turn.version == after:
            turn.version = version

    async def report(self, what: str, error: Exception) -> None:
        """Log an error and pass it to `on_error`; never raises."""
        LOG.warning("context_compiler: %s: %s: %s", what, type(error).__name__, error)
        if self.on_error is not None:
            failed = (await try_await(call(self.on_error, error))).error
            if failed is not None:
                LOG.warning("context_compiler: a callback raised %s: %s", type(failed).__name__, failed)

    async def state(self, session_id: str) -> TurnState:
        """Return the state of the session's turn in progress; if there is none, of the turn that would begin next."""
        turns = [turn for turn in reversed(_ACTIVE_TURNS.get()) if turn.is_open]
        here = self.place(session_id)
        turn = self._open.get(session_id) or next((turn for turn in turns if turn.place == here), None)
        if turn is not None:
            return turn.state
        state, version = await self.begin(session_id, "")
        mine = next((turn for turn in turns if turn.place[0] == here[0]), None)
        if not version and mine is not None:
            other = LayersError(
                f"the layers of session {_describe_place(*here)} are empty, and the turn in progress is of session"
                f" {_describe_place(*mine.place)}; {_advice(here, mine.place)}"
            )
            await self.report("layers of another session", other)
        return state

    def open_turn(self, turn: Turn) -> None:
        """Set the turn in progress."""
        self._open[turn.session_id] = turn

    def close_turn(self, turn: Turn) -> None:
        """Clear the turn in progress."""
        self._open.pop(turn.session_id, None)

    def lock(self, session_id: str) -> asyncio.Lock:
        """Return the lock that serializes the turns of a session in this event loop."""
        return _LOCKS.setdefault((id(asyncio.get_running_loop()), *self.place(session_id)), asyncio.Lock())

    def place(self, session_id: str) -> Place:
        """Return the identity of a session, which is the same for every `Layers` of one file."""
        path = getattr(self.store, "path", None)
        opened = getattr(self.store, "origin", self.store)
        where: object = os.path.abspath(path) if isinstance(path, str | Path) else id(opened)
        return where, getattr(self.store, "owner", ""), self.vault_name, session_id

    async def close(self) -> None:
        """Try to store all unsaved states, and close the store's connections, which reopen on use."""
        for layers in (*self._scoped.values(), self):
            for session_id in list(layers._unsaved):
                await layers._save_unsaved(session_id)
        await self.store.close()


def _describe_place(_store: object, owner: str | None, vault_name: str, session_id: str) -> str:
    own = (f" of {what} {name!r}" for what, name in (("owner", owner), ("vault", vault_name)) if name)
    return repr(session_id) + "".join(own)


def _advice(asked: Place, turn: Place) -> str:
    """Return advice on how to give the agent the layers of the turn in progress."""
    if asked[3] != turn[3]:
        return f"run the agent with conversation_id={turn[3]!r}"
    if asked[1] != turn[1]:
        return f"begin the turn with layers.scoped({asked[1]!r}).turn(...)"
    return f"give the agent Layers with vault_name={turn[2]!r}"


LayerSource = Layers | Callable[[str], Any]
"""Source of session states: `Layers`, or a sync or async function from a session id to its state."""


async def load_state(source: LayerSource, session_id: str, *, timeout: float) -> Mapping[str, Any]:
    """Load the state of a session from its source.

    Raises:
        LayersError: The state is not a mapping, or did not come within `timeout` seconds.
    """
    late = LayersError(f"the layers of session {session_id!r} did not come within {timeout:g} seconds")
    return await await_within(timeout, _state(source, session_id), late)


async def _state(source: LayerSource, session_id: str) -> Mapping[str, Any]:
    if isinstance(source, Layers):
        return cast("Mapping[str, Any]", await source.state(session_id))
    return as_mapping(await call(source, session_id), "the state")


def check_session_id(session_id: object) -> str:
    """Return a valid session id unchanged.

    Raises:
        LayersError: The id is empty or not a string.
    """
    if not isinstance(session_id, str) or not session_id.strip():
        raise LayersError(f"session {session_id!r} is not a name; give a string that is not empty")
    return session_id


def initial_state(last: _CachedState | None, user_message: str) -> TurnState:
    """Return the initial state of the turn that follows a state of the session; of the first turn for None."""
    registry = SessionIdRegistry() if last is None else last.registry.copy()
    registry.set_turn(registry.current_turn + 1)
    return {
        "id_registry": registry,
        "current_turn": registry.current_turn,
        "conversation": {**(conversation_of(None) if last is None else last.conversation)},
        "user_message": user_message,
        "steps": [],
    }


class Turn:
    """One turn of a session: it builds the prompts of the nodes, and records their reports."""

    def __init__(self, layers: Layers, session_id: str, user_message: str) -> None:
        self.session_id = session_id
        self.state: TurnState = {"user_message": user_message}
        self.layers = layers
        self.is_open = False
        self._lock: asyncio.Lock | None = None
        self.version = 0
        """Version of the session's state from which the turn began."""
        self.was_read = True
        """False if the turn began without reading the store."""

    async def __aenter__(self) -> Turn:
        """Wait for the previous turn, and begin from the stored state.

        Raises:
            LayersError: This task is already in a turn of the session and would wait for itself, or the stored state is
                invalid.
        """
        if any(turn.is_open and turn.place == self.place for turn in _ACTIVE_TURNS.get()):
            raise LayersError(
                f"session {self.session_id!r} is in a turn already, begun by this task or the one that started it;"
                " end that turn before the next one begins"
            )
        lock = self.layers.lock(self.session_id)
        await lock.acquire()
        self._lock = lock
        try:
            message = self.state.get("user_message", "")
            self.state, self.version, self.was_read = await self.layers.begin_or_report(self.session_id, message)
            self.layers.open_turn(self)
            self.is_open = True
            _ACTIVE_TURNS.set((*(turn for turn in _ACTIVE_TURNS.get() if turn.is_open), self))
        finally:
            if not self.is_open:  # reading failed: let the next waiting turn try
                self._release()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the turn, unless it was cancelled.

        Raises:
            LayersError: A value reported to the turn is wrong.
            StoreError: Another process has stored a turn of the session since.
        """
        try:
            if isinstance(error, Exception):
                self.state.setdefault("blocked_action", f"{type(error).__name__}: {error}"[:500])
            if error is None or isinstance(error, Exception):
                state, layers = cast("Mapping[str, Any]", self.state), self.layers
                stored, registry = await end_turn(state, ask=layers.ask, timeout=layers.timeout)
                await layers.save(self, stored, registry)
        finally:
            self.is_open = False
            self.layers.close_turn(self)
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def place(self) -> Place:
        """Identity of the turn's session."""
        return self.layers.place(self.session_id)

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
        registry = self.state.get("id_registry")
        if not isinstance(registry, SessionIdRegistry):
            raise LayersError("the turn has not begun; enter it with `async with layers.turn(...) as turn`")
        return registry

    def curate(self, *, retained: Mapping[str, str] | None = None, demoted: list[str] | None = None) -> CurationResult:
        """Apply Understand's curation: `retained` maps refs to reasons, `demoted` lists refs.

        If a turn has several calls, the last one for a ref wins.
        """
        why = dict(as_mapping(retained, "retained"))
        done = curate(self.registry, retained=why, demoted=demoted or [], reasons=why)
        before = get_current_curation(cast("Mapping[str, Any]", self.state))
        self.understood(entity_curation=merge_curations(before, done.summary))
        return done

    def understood(self, **facts: Any) -> None:
        """Report findings of Understand, such as `clarification_questions`."""
        self.state["understand_output"] = {**self.state.get("understand_output", {}), **facts}

    def set_theme(self, text: str) -> None:
        """Set the theme of the session; by default, it is the goal of the first turn."""
        self.state["engagement_summary"] = text

    def mention(self, name: str) -> list[str]:
        """Make all entities that a name matches active again, even those no longer shown; return their refs."""
        refs = [entity.ref for entity in self.registry.find(name)]
        for ref in refs:
            self.registry.touch(ref)
        return refs

    def decided(self, decision: str, goal: str, **facts: Any) -> None:
        """Report Think's decision, with `proposal_message`, `user_expressed` etc.

        plan_direct, propose and clarify have a built-in meaning; a custom decision is kept as given.

        Raises:
            LayersError: The decision is empty or not a string.
        """
        _check_word("decision", decision, "plan_direct, propose or clarify")
        self.state["think_output"] = {"decision": decision, "goal": goal, **facts}

    def did(self, type: str, description: str, *, result: object = None, **facts: Any) -> None:
        """Report an executed step, with `subdomain`, `result_summary`, `note` etc.

        read, analyze, generate and write have a built-in meaning; a custom type is kept as given.

        Raises:
            LayersError: The type is empty or not a string.
        """
        _check_word("type", type, "read, analyze, generate or write")
        step = {"type": type, "description": description, "result": result, **facts}
        self.state["steps"] = [*self.state.get("steps", []), step]

    def blocked(self, details: str, **facts: Any) -> None:
        """Report that the turn cannot continue, with `attempted_context` (tool, table, items), `suggested_next` etc."""
        self.state["blocked_action"] = {"details": details, **facts}

    def answered(self, text: str) -> None:
        """Report the final answer to the user."""
        self.state["final_response"] = text

    def context(self, role: str | Need) -> dict[str, Any]:
        """Build the current context of a node, as values."""
        return build_context(role, cast("Mapping[str, Any]", self.state))

    def prompt(self, role: str | Need, task: str) -> str:
        """Build the current prompt of a node, ending with its task."""
        return layer_prompt(role, cast("Mapping[str, Any]", self.state), task)


def _check_word(name: str, value: object, usual: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise LayersError(f"{name} {value!r} is not a word; give {usual}, or one of your own")
