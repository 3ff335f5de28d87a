"""Spend limit of a session's compiles: once it is reached, no model is called for them any more.

Requests do not count, because the limit only stops compiles. Spending is summed from the record, so it survives a
restart and is shared between processes; without a record it is kept in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal

from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryResponse, model_alias
from context_compiler.errors import BudgetError
from context_compiler.messages.printable import safe_line
from context_compiler.middleware.archive import Archive
from context_compiler.middleware.request import Conversation
from context_compiler.middleware.store_access import limited
from context_compiler.middleware.summary_calls import answer_room
from context_compiler.record.costs import compile_cost
from context_compiler.resilience import Report
from context_compiler.tokens import Ratios, TokenCounter, model_family
from context_compiler.tokens.prices import cost_of, dollars, highest_price

SESSIONS = 1_000
"""Maximum number of sessions whose spending is kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCall:
    """A summary that a model is to write for one conversation."""

    key: str
    """Cache key of the compile."""
    prompts: Sequence[str]
    """All prompts for the model, answered one after another."""
    cap: int
    """Maximum tokens of each answer."""
    writer: Model | str
    """The model that writes it."""
    archive: Archive
    """Archive of the owner."""
    session: str

    @property
    def place(self) -> Conversation:
        """Owner and session."""
        return self.archive.owner, self.session


class Spending:
    """Spending on the compiles of one compiler, by session."""

    def __init__(self, limit: Decimal, counter: TokenCounter, report: Report) -> None:
        """Limit each session to `limit` US dollars; count prompts with `counter`, and `report` once per session."""
        self._limit, self._counter, self._report = limit, counter, report
        self._spent: Memo[Conversation, Decimal] = Memo(SESSIONS)
        """Recorded sums with the costs of this process since then, whose rows may not be on the record yet."""
        self._recorded: Memo[Conversation, Decimal] = Memo(SESSIONS)
        """Sums on the record when it was last read."""
        self._under_way: dict[Conversation, Decimal] = {}
        self._reported: Memo[Conversation, bool] = Memo(SESSIONS)

    async def reserve(self, call: SummaryCall) -> tuple[Decimal, str | None]:
        """Reserve the maximum cost of a compile until `settle`; return it with a reason if the compile is refused."""
        key = call.place
        most, refused = await self.estimate(call)
        if refused is not None:
            if self._reported.get(key) is None:
                self._reported.keep(key, True)
                await self._report(BudgetError(f"{refused}: no model is asked for it any more; passages are quoted"))
            return Decimal(0), refused
        self._under_way[key] = self._under_way.get(key, Decimal(0)) + most
        return most, None

    async def estimate(self, call: SummaryCall) -> tuple[Decimal, str | None]:
        """The maximum cost of a compile, and the reason if it would be refused; nothing is reserved."""
        alias, cap = model_alias(call.writer), call.cap
        price = highest_price(alias, provider_of(call.writer))
        if price is None:
            unpriced = f"no price is known for {safe_line(alias)}"
            return Decimal(0), f"{unpriced}, so its compiles cannot be held to a limit of {dollars(self._limit)}"
        ratio = Ratios().of(model_family(None, alias))
        sizes = (round(self._counter.text(prompt) * ratio) for prompt in call.prompts)
        answer = answer_room(cap, call.writer)
        most = sum((price.cost(tokens + cap, output=answer) for tokens in sizes), Decimal(0))
        spent = await self._sum(call)
        if spent + most > self._limit:
            why = f"the compiles of this session have cost {dollars(spent)}, and one more might pass the limit"
            return Decimal(0), f"{why} of {dollars(self._limit)}"
        return most, None

    async def _sum(self, call: SummaryCall) -> Decimal:
        """US dollars spent on the compiles of a session, including those in progress; unknown prices are left out."""
        key = call.place
        last_sum = self._recorded.get(key)
        with (
            limited(None) if last_sum is None else nullcontext()
        ):  # the first sum is waited for, as nothing replaces it
            rows = await call.archive.compiles(call.session)
        recorded = last_sum or Decimal(0)
        if rows is not None:
            recorded = sum((cost for row in rows if (cost := compile_cost(row)) is not None), Decimal(0))
            if recorded < (last_sum or 0):  # the session was deleted or pruned: start again
                self._spent.keep(key, recorded)
                self._reported.take(key)
            self._recorded.keep(key, recorded)
        return max(recorded, self._spent.get(key) or Decimal(0)) + self._under_way.get(key, Decimal(0))

    def settle(self, call: SummaryCall, held: Decimal, response: SummaryResponse | None) -> None:
        """Replace the reservation for a compile by its cost."""
        key, writer = call.place, call.writer
        if left := self._under_way.pop(key, Decimal(0)) - held:
            self._under_way[key] = left
        usage = response.usage if response is not None else {}
        cost = cost_of(model_alias(writer), usage, provider_of(writer)) if usage else Decimal(0)
        if cost is None or cost:
            before = max(self._spent.get(key) or Decimal(0), self._recorded.get(key) or Decimal(0))
            self._spent.keep(key, before + (held if cost is None else cost))


def provider_of(writer: Model | str) -> str | None:
    """Provider of a model, by the host's name for it; None for a model given by its name."""
    return None if isinstance(writer, str) else writer.system
