"""The tables of the record as dictionaries: the same rows as in a file, without one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from context_compiler import ids
from context_compiler.record import rows
from context_compiler.record.rows import Column, Row
from context_compiler.record.values import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A message as reached by way of `parent`."""

    parent: str | None
    content: str
    position: int


def _no_rows() -> dict[str, dict[int, Row]]:
    return {table: {} for table in rows.SEALED}


@dataclass(slots=True)
class Tables:
    """Rows by table and number, messages by name, bodies by hash."""

    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    copies: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    """A conversation's own content of a message that another one wrote first, with other times or run ids."""
    rows: dict[str, dict[int, Row]] = field(default_factory=_no_rows)
    index: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    """Row numbers by what is unique about a row; see `key`."""

    def add_messages(self, session: int | None, raw: Chain | None, view: Chain | None) -> Mapping[str, str]:
        """Read all that is new, then keep it: a message that cannot be read leaves no half chain behind.

        Gives back what the conversation says again of messages that it shares with others, by name: the
        content may be its own.
        """
        contents: dict[str, bytes] = {}
        nodes: dict[str, Node] = {}
        shared: dict[str, str] = {}
        for chain, is_raw in ((raw, True), (view, False)):
            if chain is None:
                continue
            names = chain.ids
            known = self._known(names, nodes)
            start = self._own(session, chain, known) if is_raw else known
            for at in range(start, len(names)):
                body = chain.body(at)
                content = ids.blob_id(body)
                contents[content] = body
                if at < known:
                    shared[names[at]] = content
                else:
                    nodes[names[at]] = Node(parent=names[at - 1] if at else None, content=content, position=at)
        self.contents.update(contents)
        self.nodes.update(nodes)
        return shared

    def add_copies(self, session: int, shared: Mapping[str, str]) -> None:
        """Keep what a conversation says of messages that it shares, where that is its own."""
        for name, content in shared.items():
            self.copies[session, name] = content
            if content == self.nodes[name].content:
                del self.copies[session, name]

    def _own(self, session: int | None, raw: Chain, known: int) -> int:
        """How many of the known first messages are kept as this conversation says them.

        Where one of the last that others wrote has the same times and run ids, so have all before it.
        """
        held = min(known, self._held(session, raw.ids))
        if held == known or any(who == session for who, _ in self.copies):
            return held
        for at in range(known - 1, max(held, known - rows.LAST) - 1, -1):
            node = self.nodes.get(raw.ids[at])
            if node is not None and node.content == ids.blob_id(raw.body(at)):
                return at + 1
        return held

    def _held(self, session: int | None, names: Sequence[str]) -> int:
        """How many of a chain's first messages the conversation has given before."""
        tip = None if session is None else self.rows["sessions"][session]["raw_tip"]
        for name in self.ancestry(tip if isinstance(tip, str) else None):
            at = self.nodes[name].position
            if at < len(names) and names[at] == name:
                return at + 1
        return 0

    def _known(self, names: Sequence[str], fresh: Collection[str]) -> int:
        """How many of a chain's first messages are known; halving works, as with a message come all before it."""
        return bisect_left(
            range(len(names)), True, key=lambda at: names[at] not in self.nodes and names[at] not in fresh
        )

    def add_body(self, body: bytes) -> str:
        """Keep a text or payload and give its hash."""
        name = ids.blob_id(body)
        self.contents[name] = body
        return name

    def insert(self, table: str, values: Sequence[Column]) -> int:
        """Add a row and give its number."""
        row = dict(zip(rows.SEALED[table], values, strict=True))
        number = next(reversed(self.rows[table]), 0) + 1
        self.rows[table][number] = row
        self.index[key(table, row)] = number
        return number

    def change(self, table: str, number: int, **values: Column) -> None:
        """Change a row in place."""
        self.rows[table][number] = {**self.rows[table][number], **values}

    def remove(self, table: str, numbers: Iterable[int]) -> int:
        """Remove rows; how many there were."""
        gone = [self.rows[table].pop(number) for number in list(numbers)]
        for row in gone:
            self.index.pop(key(table, row), None)
        return len(gone)

    def where(self, table: str, wanted: Callable[[Row], object]) -> list[int]:
        """The numbers of the rows that are wanted, oldest first."""
        return [number for number, row in self.rows[table].items() if wanted(row)]

    def column(self, table: str, name: str) -> set[Column]:
        """Every value of a column."""
        return {row[name] for row in self.rows[table].values()}

    def ancestry(self, tip: str | None) -> Iterator[str]:
        """A message and all before it, newest first."""
        while tip is not None and tip in self.nodes:
            yield tip
            tip = self.nodes[tip].parent

    def sweep(self) -> None:
        """Remove the messages and bodies that no row needs."""
        tips = {tip for table, column in rows.TIPS for tip in self.column(table, column)}
        kept: set[str] = set()
        for tip in tips:
            for name in self.ancestry(tip if isinstance(tip, str) else None):
                if name in kept:
                    break
                kept.add(name)
        self.nodes = {name: node for name, node in self.nodes.items() if name in kept}
        self.copies = {
            (session, name): content
            for (session, name), content in self.copies.items()
            if name in kept and session in self.rows["sessions"]
        }
        used: set[Column] = {node.content for node in self.nodes.values()} | self.column("cycles", "state")
        used.update(self.copies.values())
        for text in rows.TEXTS:
            used |= self.column("context_summaries", text)
        self.contents = {name: body for name, body in self.contents.items() if name in used}

    def defects(self) -> Iterator[str]:
        """Names that do not follow from what they name, and tips that name nothing."""
        for name, body in self.contents.items():
            if ids.blob_id(body) != name:
                yield f"contents {name}: the body is another than the one that was named"
        for name, node in self.nodes.items():
            if ids.chained(node.parent, ids.identity(self.contents[node.content])) != name:
                yield f"nodes {name}: the name does not follow from content and parent"
        for (session, name), content in self.copies.items():
            if ids.chained(self.nodes[name].parent, ids.identity(self.contents[content])) != name:
                yield f"copies {session} {name}: the name does not follow from content and parent"
        for table, column in rows.TIPS:
            for number, row in self.rows[table].items():
                if row[column] and row[column] not in self.nodes:
                    yield f"{table} {number}: {column} {row[column]} is no known message"

    def export(self) -> Iterator[Mapping[str, object]]:
        """Every row, ready for JSON, each after those that it points to."""
        for name, body in self.contents.items():
            yield {"table": "contents", "hash": name, "body": rows.to_text(body)}
        for name, node in sorted(self.nodes.items(), key=lambda item: (item[1].position, item[0])):
            place = {"parent": node.parent, "content": node.content, "position": node.position}
            yield {"table": "nodes", "id": name, **place}
        for table, found in self.rows.items():
            for number, row in found.items():
                yield {"table": table, "id": number, **row, "seal": rows.seal(number, list(row.values()))}
            if table == "sessions":
                for (session, name), content in sorted(self.copies.items()):
                    yield {"table": "copies", "session": session, "node": name, "content": content}


def key(table: str, row: Row) -> Hashable:
    """What is unique about a row; None where nothing is."""
    if table == "sessions":
        return table, row["session_id"], row["vault_name"]
    if table == "views":
        chains = row["raw_tip"] or "", row["view_tip"] or ""
        return table, row["session"], row["run_id"] or "", row["request_index"], *chains
    if table == "cycles":
        return table, row["session"], row["config"], row["raw_tip"]
    if table == "layers":
        return table, row["session"]
    return None if row["cache_key"] is None else (table, row["cache_key"])
