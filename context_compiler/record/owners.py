"""Owners of sessions, and the names under which their rows are stored.

A session belongs to an owner, and so do the rows that refer to it. Messages, contents and memories are named by what
they hold; so that no two owners share one, an owner's names begin with a prefix of their own. The owner ``""``, whose
names have none, has everything that no other owner has, such as all rows of earlier versions.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar, cast, overload

from context_compiler.errors import SettingsError, StoreError
from context_compiler.record.database import Database

EVERY_OWNER = None
"""In place of an owner: all of them, for those who operate the store."""

LONGEST = 400
"""Characters of the name of an owner."""

_PREFIX = re.compile(r"[a-z2-7]{16}/")


Name = TypeVar("Name", bound=str | None)


def check_owner(owner: object) -> str | None:
    """Return an owner that a store can keep.

    Raises:
        SettingsError: It is no such text.
    """
    if owner is None:
        return None
    if not isinstance(owner, str):
        raise SettingsError(f"owner={owner!r:.80}: give a name, or None for every owner")
    if len(owner) > LONGEST or "\x00" in owner or any("\ud800" <= char <= "\udfff" for char in owner):
        raise SettingsError(f"owner={owner!r:.80}: give at most {LONGEST} characters of valid Unicode")
    return owner


@lru_cache(maxsize=10_000)
def prefix(owner: str) -> str:
    """The beginning of all names of an owner."""
    if not owner:
        return ""
    return b32encode(blake2b(owner.encode(), digest_size=10).digest()).decode().lower() + "/"


def prefix_of(name: str) -> str:
    """The prefix of a stored name."""
    found = _PREFIX.match(name)
    return found[0] if found else ""


def bare(name: Name) -> Name:
    """A stored name without its prefix."""
    return cast(Name, name[len(prefix_of(name)) :]) if isinstance(name, str) else name


def owner_of(db: Database) -> str | None:
    """The owner that a connection works for; None is every owner."""
    return db.owner


def writer_of(db: Database) -> str:
    """The owner that a connection writes for.

    Raises:
        StoreError: It works for every owner.
    """
    owner = owner_of(db)
    if owner is None:
        raise StoreError("a store of every owner only reads and removes; name the owner: scoped(owner)")
    return owner


def stored(db: Database, name: Name) -> Name:
    """The name under which the connection's owner stores what is named so; as given for every owner."""
    owner = owner_of(db)
    if owner is None or not isinstance(name, str) or not name:
        return name
    if not owner:
        return cast(Name, f"/{name}") if prefix_of(name) else name  # another owner's, which this one has not
    return cast(Name, prefix(owner) + name)


def work_for(db: Database, owner: str | None) -> None:
    """Let a connection of a store work for an owner from now on."""
    db.owner = owner


@dataclass(frozen=True, slots=True)
class Names(Sequence[str]):
    """Names of a chain with a prefix, each put together when it is asked for."""

    prefix: str
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.prefix + name for name in self.names[index]]
        return self.prefix + self.names[index]
