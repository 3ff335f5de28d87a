"""A cache with a bound on size, least recently used first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Values by key, for any number of threads."""

    def __init__(self, room: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        """Keep values of at most `room` total weight; without `weigh`, at most `room` values."""
        self._room, self._weigh = room, weigh
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._held = 0
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Value under a key, which counts as a use; None if there is none."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def take(self, key: K) -> V | None:
        """Remove and return the value under a key; None if there is none."""
        with self._lock:
            value, weight = self._kept.pop(key, (None, 0))
            self._held -= weight
            return value

    def discard(self, unwanted: Callable[[V], bool]) -> None:
        """Remove the values that are unwanted."""
        with self._lock:
            for key in [key for key, (value, _) in self._kept.items() if unwanted(value)]:
                self._held -= self._kept.pop(key)[1]

    def keep(self, key: K, value: V) -> None:
        """Store or replace a value; one that is larger than the room is not kept."""
        weight = self._weigh(value)
        with self._lock:
            self._held -= self._kept.pop(key, (None, 0))[1]
            if weight > self._room:
                return
            self._kept[key] = value, weight
            self._held += weight
            while self._held > self._room:
                self._held -= self._kept.popitem(last=False)[1][1]
