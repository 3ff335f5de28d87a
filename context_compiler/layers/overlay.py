"""A mapping with cheap copies: a copy shares all entries that neither side has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

_REMOVED: Any = object()
"""Marks a removed key."""
_UNCHANGED: Any = object()
"""Marks a key without a change."""


class Overlay(MutableMapping[K, V]):
    """A dict with a cheap `copy`: a dict of changes over a base dict that copies share and never modify.

    `copy` rebuilds the base once there are more changes than the square root of its size n. Thus a copy duplicates
    at most about sqrt(n) entries, and rebuilding costs about sqrt(n) steps per change.
    """

    __slots__ = ("_base", "_changes", "_length")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._base: dict[K, V] = dict(entries)
        self._changes: dict[K, V] = {}
        self._length = len(self._base)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: object) -> bool:
        change = self._changes.get(cast(K, key), _UNCHANGED)
        return key in self._base if change is _UNCHANGED else change is not _REMOVED

    def __getitem__(self, key: K) -> V:
        change: Any = self._changes.get(key, _UNCHANGED)
        if change is _UNCHANGED:
            return self._base[key]
        if change is _REMOVED:
            raise KeyError(key)
        return change

    def __setitem__(self, key: K, value: V) -> None:
        self._length += key not in self
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._length -= 1
        if key in self._base:
            self._changes[key] = _REMOVED
        else:
            del self._changes[key]

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys in insertion order."""
        return iter(self.flat() if self._changes else self._base)

    def flat(self) -> dict[K, V]:
        """Return a plain dict of the same entries."""
        changes = self._changes  # read before the base: `copy` in another thread moves changes into the base
        entries = {**self._base, **changes}
        if len(entries) != self._length:
            return {key: value for key, value in entries.items() if value is not _REMOVED}
        return entries

    def copy(self) -> Overlay[K, V]:
        """Return an independent mapping of the same entries."""
        if len(self._changes) ** 2 > len(self._base):
            self._base = self.flat()
            self._changes = {}
        other = Overlay[K, V]()
        other._changes, other._length = dict(self._changes), self._length
        other._base = self._base
        return other
