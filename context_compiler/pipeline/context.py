"""Shared values of a run under dotted keys, and an append-only log.

Values are JSON and never modified once set, so a snapshot needs no copy of their content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from threading import RLock
from typing import Any, cast

LONGEST_KEY = 256
"""Maximum length of a key, in characters."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*")
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def check_key(key: object) -> str:
    """Check a key and return it.

    Raises:
        ValueError: it is empty, too long, or not a dotted name.
    """
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"{str(key)[:80]!r} is not a key: give dotted names of at most {LONGEST_KEY} characters")
    return key


def segment(name: str) -> str:
    """A name as one segment of a key."""
    fit = _UNFIT.sub("_", name)[:100]
    return fit if fit[:1].isalpha() or fit[:1] == "_" else f"_{fit}"


def to_json(value: Any) -> Any:
    """An independent copy of a value as JSON data.

    Raises:
        ValueError: it cannot be written as JSON.
    """
    if value is None or isinstance(value, str | bool | int) and not hasattr(value, "__dict__"):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(value).__name__} cannot be kept as JSON: {error}") from None


class ContextStore:
    """The values of a run; thread-safe.

    Every method raises `ValueError` for an invalid key and for a value that is not JSON.
    """

    def __init__(self, values: Mapping[str, Any] | None = None, logs: Iterable[Any] = ()) -> None:
        self._lock = RLock()
        self._values: dict[str, Any] = {}
        self._logs: list[Any] = [to_json(one) for one in logs]
        self._changed: set[str] = set()
        self.apply_updates(values or {})

    @classmethod
    def sharing(cls, values: Mapping[str, Any], logs: Iterable[Any] = ()) -> ContextStore:
        """A store of values known to be JSON, such as those of a checkpoint, without copying them."""
        store = cls()
        store._values, store._logs = dict(values), list(logs)
        return store

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self.apply_updates({key: value})

    def get(self, key: str, default: Any = None) -> Any:
        """A copy of a value."""
        with self._lock:
            return deepcopy(self._values.get(check_key(key), default))

    def get_string(self, key: str, default: str = "") -> str:
        """A value as text; numbers and flags as JSON writes them."""
        value = self.get(key)
        if value is None:
            return default
        return value if isinstance(value, str) else json.dumps(value)

    def remove(self, key: str) -> None:
        """Delete a value, if it is set."""
        with self._lock:
            self._values.pop(check_key(key), None)
            self._changed.add(key)

    def apply_updates(self, updates: Mapping[str, Any]) -> None:
        """Set several values: all of them, or none."""
        given = {check_key(key): to_json(value) for key, value in updates.items()}
        with self._lock:
            self._values.update(given)
            self._changed.update(given)

    def append_log(self, entry: Any) -> None:
        """Add to the log."""
        kept = to_json(entry)
        with self._lock:
            self._logs.append(kept)

    def changed_keys(self) -> frozenset[str]:
        """Keys set or removed since the store was created."""
        with self._lock:
            return frozenset(self._changed)

    def keys(self) -> list[str]:
        """Keys in the order in which they were first set."""
        with self._lock:
            return list(self._values)

    def logs(self) -> list[Any]:
        """The log. Do not modify its entries."""
        with self._lock:
            return list(self._logs)

    def values(self) -> dict[str, Any]:
        """The values, shared: do not modify what is in them."""
        with self._lock:
            return dict(self._values)

    def snapshot(self) -> dict[str, Any]:
        """An independent copy of `values` and `logs`."""
        with self._lock:
            return cast("dict[str, Any]", deepcopy({"values": self._values, "logs": self._logs}))

    def clone_isolated(self) -> ContextStore:
        """An independent store with the same content."""
        with self._lock:
            return ContextStore.sharing(self._values, self._logs)
