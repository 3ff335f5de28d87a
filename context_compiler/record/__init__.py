"""The record of requests and compiles: value types, the `Store` protocol, and the SQLite and in-memory stores."""

from __future__ import annotations

from context_compiler.record.store import MemoryStore, SQLiteStore, Store, Tenants, open_store
from context_compiler.record.values import Chain, Compile, Cycle, Drop, Entry, OwnerInfo, Record, SessionInfo

__all__ = [
    "Chain",
    "Compile",
    "Cycle",
    "Drop",
    "Entry",
    "MemoryStore",
    "OwnerInfo",
    "Record",
    "SQLiteStore",
    "SessionInfo",
    "Store",
    "Tenants",
    "open_store",
]
