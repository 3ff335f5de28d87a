"""The limit of what the compiles of one session may cost: once it is reached, no model is asked any more.

Requests do not count, and neither do runs: a limit that stops compiles is about compiles. It is kept by what the record
holds, so that a restart or another process does not begin anew; in memory where nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from pydantic_ai.models import Model

from context_compiler.cache import Memo
from context_compiler.compiler.summary import SummaryResponse, model_alias
from context_compiler.errors import BudgetError
from context_compiler.messages.printable import safe_line
from context_compiler.middleware.archive import Archive
from context_compiler.record.costs import compile_cost
from context_compiler.resilience import Report
from context_compiler.tokens import Ratios, TokenCounter, model_family
from context_compiler.tokens.prices import cost_of, dollars, highest_price

SESSIONS = 1_000
"""Sessions whose spending is remembered."""

Place = tuple[str | None, str]
"""Owner and session."""


class Spending:
    """Costs of the compiles of one compiler, by session."""

    def __init__(self, limit: Decimal, counter: TokenCounter, report: Report) -> None:
        """Count prompts with `counter`; call `report` once a session whose limit, in US dollars, is reached."""
        self._limit, self._counter, self._report = limit, counter, report
        self._spent: Memo[Place, Decimal] = Memo(SESSIONS)
        self._recorded: Memo[Place, Decimal] = Memo(SESSIONS)
        """Sums on the record when last read."""
        self._under_way: dict[Place, Decimal] = {}
        self._reported: Memo[Place, bool] = Memo(SESSIONS)

    async def reserve(
        self, archive: Archive, session: str, writer: Model | str, prompts: Sequence[str], cap: int
    ) -> tuple[Decimal, str | None]:
        """The most that a compile will cost, held until `settle`, and the reason why it may not be made.

        Args:
            archive: The record of the owner.
            session: The conversation.
            writer: Model that will be asked.
            prompts: All that the model will be asked.
            cap: The most tokens of each answer.
        """
        place = archive.owner, session
        most, refused = await self.quote(archive, session, writer, prompts, cap)
        if refused is not None:
            return Decimal(0), await self._tell(place, refused)
        self._under_way[place] = self._under_way.get(place, Decimal(0)) + most
        return most, None

    async def quote(
        self, archive: Archive, session: str, writer: Model | str, prompts: Sequence[str], cap: int
    ) -> tuple[Decimal, str | None]:
        """The same, with nothing held."""
        alias = model_alias(writer)
        price = highest_price(alias, _provider(writer))
        if price is None:
            unpriced = f"no price is known for {safe_line(alias)}"
            return Decimal(0), f"{unpriced}, so its compiles cannot be held to a limit of {dollars(self._limit)}"
        ratio = Ratios().of(model_family(None, alias))
        given = (round(self._counter.text(prompt) * ratio) for prompt in prompts)
        most = sum((price.cost(tokens + cap, output=cap) for tokens in given), Decimal(0))
        spent = await self.spent(archive, session)
        if spent + most > self._limit:
            why = f"the compiles of this session have cost {dollars(spent)}, and one more might pass the limit"
            return Decimal(0), f"{why} of {dollars(self._limit)}"
        return most, None

    async def spent(self, archive: Archive, session: str) -> Decimal:
        """US dollars of the compiles of a session, those under way included; unknown prices are not."""
        place = archive.owner, session
        rows = await archive.compiles(session)
        recorded = sum((cost for row in rows or () if (cost := compile_cost(row)) is not None), Decimal(0))
        if rows is not None:
            if recorded < (self._recorded.get(place) or 0):  # the session was deleted or pruned, and counts anew
                self._spent.keep(place, recorded)
                self._reported.take(place)
            self._recorded.keep(place, recorded)
        return max(recorded, self._spent.get(place) or Decimal(0)) + self._under_way.get(place, Decimal(0))

    def settle(
        self, owner: str | None, session: str, held: Decimal, response: SummaryResponse | None, writer: Model | str
    ) -> None:
        """Put the cost of a compile in place of what was held for it."""
        place = owner, session
        if left := self._under_way.pop(place, Decimal(0)) - held:
            self._under_way[place] = left
        usage = response.usage if response is not None else {}
        cost = cost_of(model_alias(writer), usage, _provider(writer)) if usage else Decimal(0)
        if cost is None or cost:
            self._spent.keep(place, (self._spent.get(place) or Decimal(0)) + (held if cost is None else cost))

    async def _tell(self, place: Place, why: str) -> str:
        if self._reported.get(place) is None:
            self._reported.keep(place, True)
            await self._report(BudgetError(f"{why}: no model is asked for it any more, passages are quoted instead"))
        return why


def _provider(writer: Model | str) -> str | None:
    return None if isinstance(writer, str) else writer.system
