"""The record in this process's memory, for as long as the process runs; it grows until it is pruned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from context_compiler.errors import StoreError
from context_compiler.record import rows
from context_compiler.record.tables import Tables, key
from context_compiler.record.values import Chain, Compile, Cycle, Entry, Record, SessionInfo


class MemoryStore:
    """A store without a file: for tests, for trials, and where nothing may be left behind."""

    def __init__(self) -> None:
        self._tables = Tables()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def save(self, entry: Entry) -> Record:
        """Keep an entry and give back its record with `id` and `summary_id`."""
        owner = (entry.record.session_id, entry.record.vault_name)
        session = self._session(owner, entry.record.created_at, entry.raw, entry.view)
        record = rows.whole(entry)
        if entry.compile is not None and rows.reusable(entry.compile):
            self._compile(entry.compile, session)  # worth keeping even where the request is known already
        unsaved = dict(zip(rows.VIEW, rows.view_row(record, session), strict=True))
        known = self._tables.index.get(key("views", unsaved))
        if known is not None:
            return replace(record, id=known, summary_id=self._tables.rows["views"][known]["summary"])
        return self._insert(record, session, entry)

    async def archive(self, session_id: str, vault_name: str, raw: Chain) -> None:
        """Keep a raw history without a request, as the newest of its conversation."""
        session = self._session((session_id, vault_name), datetime.now(UTC), raw, None)
        if raw.ids:
            self._tables.change("sessions", session, raw_tip=raw.ids[-1])

    async def find_compile(self, cache_key: str) -> tuple[int, Compile] | None:
        """The reusable compile with that cache key and its row number."""
        number = self._tables.index.get(("context_summaries", cache_key))
        return None if number is None else (number, self._to_compile(number))

    async def find_cycle(self, tips: Sequence[str], config: str) -> Cycle | None:
        """The newest cycle of the last of `tips` that has one of this `config`."""
        cycles = self._tables.rows["cycles"].values()
        newest = {row["raw_tip"]: row["state"] for row in cycles if row["config"] == config}
        tip = next((tip for tip in reversed(tips) if tip in newest), None)
        if tip is None:
            return None
        return Cycle(tip=tip, config=config, state=rows.to_text(self._tables.contents[newest[tip]]))

    async def close(self) -> None:
        """Nothing to let go of: what is remembered stays."""

    async def chain(self, tip: str) -> list[bytes]:
        """The message bodies of the chain that ends in `tip`, oldest first."""
        return self._bodies(tip, None)

    def _bodies(self, tip: str, session: int | None) -> list[bytes]:
        tables, names = self._tables, list(self._tables.ancestry(tip))
        if not names:
            raise StoreError(f"no message {tip!r}; it was never recorded, or has been deleted or pruned")
        own = {} if session is None else {name: at for (who, name), at in tables.copies.items() if who == session}
        return [tables.contents[own.get(name, tables.nodes[name].content)] for name in reversed(names)]

    async def view(self, view_id: int) -> Record | None:
        """One request with its compile."""
        return self._to_record(view_id) if view_id in self._tables.rows["views"] else None

    async def views(self, session_id: str | None = None, *, limit: int | None = None) -> list[Record]:
        """Requests, newest first; each with its compile."""
        return [self._to_record(number) for number in self._newest("views", session_id, limit)]

    async def summaries(self, session_id: str, *, limit: int | None = None) -> list[Compile]:
        """Compiles of a session, newest first."""
        return [self._to_compile(number) for number in self._newest("context_summaries", session_id, limit)]

    async def sessions(self) -> list[SessionInfo]:
        """Every conversation, the one used last first."""
        return [self._info(number) for number in self._by_use()]

    async def transcript(self, session_id: str) -> list[bytes]:
        """The bodies of a session's raw history as last seen; empty when it is unknown."""
        for number in self._by_use():
            row = self._tables.rows["sessions"][number]
            if row["session_id"] == session_id and row["raw_tip"]:
                return self._bodies(row["raw_tip"], number)
        return []

    async def layers(self, session_id: str, vault_name: str = "") -> tuple[str, int] | None:
        """The newest state of a session's layers and its version; None where it has none."""
        session = self._tables.index.get(("sessions", session_id, vault_name))
        number = self._tables.index.get(("layers", session))
        row = None if number is None else self._tables.rows["layers"][number]
        return None if row is None else (row["state"], row["version"])

    async def save_layers(self, session_id: str, vault_name: str, state: str, *, after: int) -> int:
        """Keep a state of a session's layers in place of version `after`; its own version."""
        rows.follows(session_id, await self.layers(session_id, vault_name), after)
        session = self._session((session_id, vault_name), datetime.now(UTC), None, None)
        former = self._tables.index.get(("layers", session))
        self._tables.remove("layers", [] if former is None else [former])
        self._tables.insert("layers", (session, after + 1, state))
        return after + 1

    async def delete(self, session_id: str) -> int:
        """Remove a conversation and everything only it used; the number of requests removed."""
        gone = self._tables.where("sessions", lambda row: row["session_id"] == session_id)
        removed = self._tables.remove("views", self._tables.where("views", lambda row: row["session"] in gone))
        self._forget(gone)
        self._tables.sweep()
        return removed

    async def prune(self, *, older_than_days: float | None = None, keep_last: int | None = None) -> int:
        """Remove the requests that are both old and beyond the newest; the number of requests removed."""
        tables, removed = self._tables, 0
        if older_than_days is not None or keep_last is not None:
            end = "~" if older_than_days is None else rows.days_ago(older_than_days)
            spared, before = self._last("views", keep_last or 0), tables.column("views", "session")
            old = tables.where("views", lambda row: row["created_at"] < end)
            removed = tables.remove("views", [number for number in old if number not in spared])
            tables.remove("cycles", set(tables.rows["cycles"]) - self._last("cycles", 1))
            after = tables.column("views", "session") | tables.column("layers", "session")
            self._forget([number for number in tables.rows["sessions"] if number in before - after])
            tables.remove("context_summaries", self._unused())
        tables.sweep()
        return removed

    async def verify(self) -> tuple[str, ...]:
        """Every name that does not follow from what it names; empty when all do."""
        return tuple(self._tables.defects())

    async def export(self) -> AsyncIterator[Mapping[str, object]]:
        """Every row as it stood when this began, ready for JSON."""
        for row in list(self._tables.export()):
            yield row

    def _session(self, owner: tuple[str, str], created_at: datetime, raw: Chain | None, view: Chain | None) -> int:
        """The row of a conversation, made when it is first heard of, with these messages of its own."""
        session = self._tables.index.get(("sessions", *owner))
        shared = self._tables.add_messages(session, raw, view)
        if session is None:
            session = self._tables.insert("sessions", (*owner, None, rows.stamp(created_at)))
        self._tables.add_copies(session, shared)
        return session

    def _insert(self, record: Record, session: int, entry: Entry) -> Record:
        made = None if entry.compile is None else self._compile(entry.compile, session)
        record = replace(record, summary_id=made if record.summary_id is None else record.summary_id)
        if entry.cycle is not None:
            former = self._tables.index.get(("cycles", session, entry.cycle.config, entry.cycle.tip))
            self._tables.remove("cycles", [] if former is None else [former])
            state = self._tables.add_body(rows.to_bytes(entry.cycle.state))
            self._tables.insert("cycles", (session, entry.cycle.tip, entry.cycle.config, state))
        if entry.raw is not None and entry.raw.ids:
            self._tables.change("sessions", session, raw_tip=entry.raw.ids[-1])
        return replace(record, id=self._tables.insert("views", rows.view_row(record, session)))

    def _compile(self, compile: Compile, session: int) -> int:
        known = self._tables.index.get(("context_summaries", rows.reusable(compile)))
        if known is not None:
            return known
        for body in rows.texts_of(compile).values():
            self._tables.add_body(body)
        return self._tables.insert("context_summaries", rows.summary_row(compile, session))

    def _forget(self, sessions: Sequence[int]) -> None:
        """Remove conversations without requests; a compile that another one uses becomes that one's."""
        tables = self._tables
        for view in sorted(tables.rows["views"].values(), key=lambda row: row["session"]):
            if view["summary"] is not None and tables.rows["context_summaries"][view["summary"]]["session"] in sessions:
                tables.change("context_summaries", view["summary"], session=view["session"])
        for table in ("context_summaries", "cycles", "layers"):
            tables.remove(table, tables.where(table, lambda row: row["session"] in sessions))
        tables.remove("sessions", sessions)

    def _unused(self) -> list[int]:
        views = self._tables.rows["views"].values()
        turns = {(row["session"], row["turn_index"]) for row in views}
        idle = self._tables.where("context_summaries", lambda row: (row["session"], row["turn_index"]) not in turns)
        return [number for number in idle if number not in {row["summary"] for row in views}]

    def _last(self, table: str, count: int) -> set[int]:
        """The newest `count` rows of each session; cycles, of each way of writing too."""
        own: dict[tuple[int, str], list[int]] = {}
        for number, row in self._tables.rows[table].items():
            own.setdefault((row["session"], row.get("config", "")), []).append(number)
        return {number for numbers in own.values() for number in numbers[max(len(numbers) - count, 0) :]}

    def _newest(self, table: str, session_id: str | None, limit: int | None) -> list[int]:
        sessions = self._tables.rows["sessions"]
        found = self._tables.where(
            table, lambda row: session_id is None or sessions[row["session"]]["session_id"] == session_id
        )
        return found[::-1][: None if limit is None else max(limit, 0)]

    def _by_use(self) -> list[int]:
        """Sessions, the one used last first."""
        last = {row["session"]: number for number, row in self._tables.rows["views"].items()}
        return sorted(self._tables.rows["sessions"], key=lambda number: (last.get(number, 0), number), reverse=True)

    def _info(self, number: int) -> SessionInfo:
        row = self._tables.rows["sessions"][number]
        views = [view for view in self._tables.rows["views"].values() if view["session"] == number]
        return SessionInfo(
            session_id=row["session_id"],
            vault_name=row["vault_name"],
            created_at=rows.moment(row["created_at"]),
            last_at=rows.moment(max(view["created_at"] for view in views)) if views else None,
            requests=len(views),
            compiles=len(self._tables.where("context_summaries", lambda row: row["session"] == number)),
            tokens_raw=sum(view["tokens_raw"] for view in views),
            tokens_sent=sum(view["tokens_sent"] for view in views),
            raw_tip=row["raw_tip"],
        )

    def _to_compile(self, number: int) -> Compile:
        row = self._tables.rows["context_summaries"][number]
        texts = {row[name]: rows.to_text(self._tables.contents[row[name]]) for name in rows.TEXTS if row[name]}
        return rows.to_compile({**row, **self._place(row["session"])}, texts)

    def _to_record(self, number: int) -> Record:
        row = self._tables.rows["views"][number]
        compile = None if row["summary"] is None else self._to_compile(row["summary"])
        return rows.to_record({**row, **self._place(row["session"]), "id": number}, compile)

    def _place(self, session: int) -> Mapping[str, str]:
        row = self._tables.rows["sessions"][session]
        return {"session_id": row["session_id"], "vault_name": row["vault_name"]}
