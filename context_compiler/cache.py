"""Size-limited cache that evicts the least recently used values first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

CACHED = 32_768
"""Number of entries of a cache by words or short texts."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Thread-safe cache of values by key."""

    def __init__(self, room: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        """Keep values of at most `room` total weight; without `weigh`, at most `room` values."""
        self._room, self._weigh = room, weigh
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Return the value under a key and mark it as used; None if there is none."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            return entry[0]

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value under a key; if there is none, make and store it."""
        value = self.get(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value

    def take(self, key: K) -> V | None:
        """Remove and return the value under a key; None if there is none."""
        with self._lock:
            value, weight = self._kept.pop(key, (None, 0))
            self._weight -= weight
            return value

    def discard(self, unwanted: Callable[[V], bool]) -> None:
        """Remove all values for which `unwanted` returns true."""
        with self._lock:
            for key in [key for key, (value, _) in self._kept.items() if unwanted(value)]:
                self._weight -= self._kept.pop(key)[1]

    def keep(self, key: K, value: V) -> None:
        """Store or replace a value; a value heavier than the whole cache is not stored."""
        weight = self._weigh(value)
        with self._lock:
            self._weight -= self._kept.pop(key, (None, 0))[1]
            if weight > self._room:
                return
            self._kept[key] = value, weight
            self._weight += weight
            while self._weight > self._room:
                self._weight -= self._kept.popitem(last=False)[1][1]
