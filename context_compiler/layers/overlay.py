"""A mapping whose copies share what neither has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

_GONE: Any = object()
"""Value of a key that was removed."""
_SAME: Any = object()
"""Value of a key that was not changed."""


class Overlay(MutableMapping[K, V]):
    """A dict with a cheap copy: changes lie over a base, which copies share and nobody changes.

    The base is made anew once the changes are more than its square root; so a copy, and each change, costs at most
    about that many steps.
    """

    __slots__ = ("_base", "_changes", "_length")

    def __init__(self, given: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._base: dict[K, V] = dict(given)
        self._changes: dict[K, V] = {}
        self._length = len(self._base)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: object) -> bool:
        found = self._changes.get(cast(K, key), _SAME)
        return key in self._base if found is _SAME else found is not _GONE

    def __getitem__(self, key: K) -> V:
        found: Any = self._changes.get(key, _SAME)
        if found is _SAME:
            return self._base[key]
        if found is _GONE:
            raise KeyError(key)
        return found

    def __setitem__(self, key: K, value: V) -> None:
        self._length += key not in self
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._length -= 1
        if key in self._base:
            self._changes[key] = _GONE
        else:
            del self._changes[key]

    def __iter__(self) -> Iterator[K]:
        """Keys in the order in which they came first."""
        return iter(self.flat() if self._changes else self._base)

    def flat(self) -> dict[K, V]:
        """A dict of the same content."""
        changes = self._changes  # first: another thread may be copying, which moves changes into the base
        found = {**self._base, **changes}
        if len(found) != self._length:
            return {key: value for key, value in found.items() if value is not _GONE}
        return found

    def copy(self) -> Overlay[K, V]:
        """Another mapping of the same content."""
        if len(self._changes) ** 2 > len(self._base):
            self._base = self.flat()
            self._changes = {}
        other = Overlay[K, V]()
        other._changes, other._length = dict(self._changes), self._length
        other._base = self._base
        return other
