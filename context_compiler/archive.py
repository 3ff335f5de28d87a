"""What a compiler keeps and finds again: views, compiles, cycles and the raw history, through one store.

A store that fails is reported, left alone for a while after three failures, and never stops a request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from pydantic_ai.messages import ModelMessage

from context_compiler.agent import Answer
from context_compiler.cycles import Cycles
from context_compiler.failing import Breaker, attempted
from context_compiler.frozen import Frozen
from context_compiler.history import History, load_messages
from context_compiler.live import Result
from context_compiler.record import Cycle, Record
from context_compiler.recording import Redactor, entry
from context_compiler.store import Store, open_store
from context_compiler.wanted import Wanted

Report = Callable[[Exception], Awaitable[None]]
ANSWERS = 200
"""Answers remembered in memory, for records that may not keep them."""


class Archive:
    """The record of one compiler."""

    def __init__(self, wanted: Wanted, cycles: Cycles, report: Report) -> None:
        """Open nothing yet."""
        self._wanted = wanted
        self._cycles = cycles
        self._report = report
        self._store: Store | None = None
        self._breaker = Breaker()
        self._redactor = Redactor(wanted.redact) if wanted.redact else None
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    @property
    def store(self) -> Store:
        """The store, opened when it is first asked for."""
        if self._store is None:
            self._store = open_store(self._wanted.store)
        return self._store

    @property
    def whole(self) -> bool:
        """Whether the record keeps content as it is, so that it can be used again."""
        return self._wanted.record == "full" and self._redactor is None

    async def keep(self, record: Record, result: Result, frozen: Frozen | None) -> Record:
        """Keep one request; the record as it was kept, or as it was given when it could not be."""
        if self._wanted.record == "off" or self._breaker.open:
            return record
        cycle = Cycle(tip=frozen.tip, state=frozen.to_json()) if frozen and self.whole else None
        outcome = await attempted(self._save(record, result, cycle))
        if outcome.error is not None or outcome.value is None:
            self._breaker.failed()
            await self._report(outcome.error or RuntimeError("the store kept nothing"))
            return record
        self._breaker.succeeded()
        return replace(outcome.value, compile=result.row)

    async def _save(self, record: Record, result: Result, cycle: Cycle | None) -> Record:
        kept = entry(
            record,
            result.raw,
            result.sent,
            row=result.row,
            cycle=cycle,
            keep=self._wanted.record,
            redactor=self._redactor,
        )
        return await self.store.save(kept)

    async def raw(self, session_id: str, history: History) -> None:
        """Keep a raw history without a request: what the last answer of a run adds to it."""
        if self._wanted.record != "full" or self._breaker.open:
            return
        chain = self._redactor.chain(history) if self._redactor else history
        outcome = await attempted(self.store.archive(session_id, self._wanted.vault_name, chain))
        if outcome.error is not None:
            await self._report(outcome.error)

    async def answered(self, key: str) -> Answer | None:
        """An earlier answer to the same order."""
        if key in self._answers or not self.whole or self._breaker.open:
            return self._answers.get(key)
        found = (await attempted(self.store.find_compile(key))).value
        return Answer(text=found[1].raw_output, row=found[0]) if found and found[1].raw_output else None

    def remember(self, key: str, answer: Answer) -> None:
        """Keep an answer in memory until it is on the record, or for good where the record may not have it."""
        self._answers[key] = replace(answer, usage={})
        if len(self._answers) > ANSWERS:
            self._answers.popitem(last=False)

    async def cycle(self, ids: Sequence[str], config: str) -> Frozen | None:
        """The newest cycle of the longest known ancestor, in memory or on the record."""
        found = self._cycles.find(ids, config)
        if found is None and self.whole and not self._breaker.open:
            stored = (await attempted(self.store.find_cycle(ids))).value
            found = Frozen.from_json(stored.state) if stored else None
        return found

    async def transcript(self, session_id: str) -> list[ModelMessage]:
        """The raw history of a conversation, as last seen."""
        return load_messages(await self.store.transcript(session_id))

    async def rest(self) -> None:
        """Let go of the store's connections."""
        if self._store is not None:
            await attempted(self._store.close())
