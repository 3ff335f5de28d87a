"""An agent that decides by what a request shows reads files and views pictures once, however large they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo

from context_compiler import TokenCounter
from tests.middleware.test_common_hosts import PNG
from tests.support.agents import Step, Talker, compiler
from tests.support.histories import prose

PICTURE = BinaryContent(data=PNG, media_type="image/png")
"""A picture of 1,120 tokens."""


class Reader:
    """An agent that needs some files, or pictures, all at once or one after the other."""

    def __init__(self, files: dict[str, Any], budget: int, *, at_once: int = 1, needs: str = "content") -> None:
        self.files, self.at_once, self.needs = files, at_once, needs
        self.reads = Counter[str]()
        self.errors: list[Exception] = []
        self.talker = Talker(self._next)
        ours = compiler(budget=budget, on_error=self.errors.append)
        self.agent = Agent(self.talker.model, capabilities=[ours])
        self.agent.tool_plain(name="read")(self._read)
        self.budget = budget
        self.history: list[ModelMessage] = []

    def _read(self, name: str) -> Any:
        self.reads[name] += 1
        return self.files[name]

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Step:
        missing = [name for name in self.files if not self._shown(messages, name)]
        return [("read", {"name": name}) for name in missing[: self.at_once]] or "They differ."

    def _shown(self, messages: Sequence[ModelMessage], name: str) -> bool:
        parts: list[Any] = [part for message in messages for part in message.parts]
        if self.needs == "call":
            return any(part.part_kind == "tool-call" and part.args_as_dict()["name"] == name for part in parts)
        return any(self.files[name] in (part.content, *_pieces(part.content)) for part in parts if _said(part))

    async def work(self, prompt: str = "Compare them.") -> None:
        """Run one turn; every request must be within the budget."""
        result = await self.agent.run(prompt, message_history=self.history)
        self.history = result.all_messages()
        assert all(sent.tokens <= self.budget for sent in self.talker.sent) and not self.errors


def _said(part: Any) -> bool:
    return part.part_kind in ("tool-return", "user-prompt")


def _pieces(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list) else []


def files(count: int, tokens: int) -> dict[str, Any]:
    """Files of a size in tokens."""
    counter = TokenCounter()
    bodies = (f"file {number}\n{prose(number, tokens + 50)}" for number in range(count))
    return {f"f{number}": counter.head(body, tokens) for number, body in enumerate(bodies)}


@pytest.mark.parametrize("budget", [8_000, 16_000, 32_000, 64_000])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.35, 0.45])
@pytest.mark.parametrize("at_once", [1, 4])
async def test_two_files_in_one_turn_are_read_once(budget: int, share: float, at_once: int) -> None:
    reader = Reader(files(2, int(share * budget)), budget, at_once=at_once)
    await reader.work()
    assert dict(reader.reads) == {"f0": 1, "f1": 1}


@pytest.mark.parametrize("count", [2, 4])
async def test_parallel_results_of_one_answer_are_read_once(count: int) -> None:
    reader = Reader(files(count, 8_000 * 8 // 10 // count), 8_000, at_once=count)
    await reader.work()
    assert set(reader.reads.values()) == {1} and len(reader.talker.sent) == 2


async def test_files_stay_readable_where_it_is_enough_to_leave_out_an_earlier_turn() -> None:
    reader = Reader(files(2, 2_050), 8_000, at_once=2)
    early, body = reader.files, files(3, 1_850)
    await reader.work()
    reader.files = {f"late{number}": body[f"f{number}"][:end] for number, end in enumerate((-1, 4_000, 3_500))}
    await reader.work("And these?")
    assert set(reader.reads.values()) == {1} and len(reader.reads) == 5
    assert early["f0"].splitlines()[-1][-300:] not in reader.talker.last.text


@pytest.mark.parametrize("needs", ["call", "content"])
async def test_files_beside_a_prompt_above_the_low_threshold_are_read_once(needs: str) -> None:
    reader = Reader(files(2, 1_600), 8_000, needs=needs)
    await reader.work(TokenCounter().head(prose(99, 3_600), 3_600))
    assert dict(reader.reads) == {"f0": 1, "f1": 1}


@pytest.mark.parametrize(("budget", "count", "share"), [(8_000, 20, 0.03), (4_000, 12, 0.04), (16_000, 16, 0.03)])
async def test_a_turn_that_reads_again_what_is_hidden_is_no_longer_cut(budget: int, count: int, share: float) -> None:
    reader = Reader(files(count, int(share * budget)), budget)
    for prompt in ("Compare them.", "And once more, please."):
        reader.reads.clear()
        await reader.work(prompt)
        assert max(reader.reads.values(), default=0) <= 2 and reader.reads.total() <= 2 * count - 2


async def test_files_that_do_not_fit_together_are_not_read_for_ever() -> None:
    reader = Reader(files(6, 3_000), 8_000, needs="call")
    await reader.work()
    assert set(reader.reads.values()) == {1} and len(reader.reads) == 6


@pytest.mark.parametrize(("count", "budget"), [(2, 3_000), (3, 4_400), (2, 8_000)])
@pytest.mark.parametrize("at_once", [1, 3])
async def test_pictures_that_fit_together_are_viewed_once(count: int, budget: int, at_once: int) -> None:
    names = {f"p{number}": f"picture {number}" for number in range(count)}
    reader = Reader(names, budget, at_once=at_once, needs="call")
    reader.files = {name: [f"picture {name}", PICTURE] for name in names}
    await reader.work()
    shown = [
        piece
        for message in reader.talker.last.messages
        for part in message.parts
        for piece in _pieces(getattr(part, "content", None))
    ]
    assert set(reader.reads.values()) == {1} and len(reader.reads) == count
    assert sum(isinstance(piece, BinaryContent) for piece in shown) == count


@pytest.mark.parametrize("at_once", [1, 5])
async def test_pictures_that_do_not_fit_together_are_not_viewed_for_ever(at_once: int) -> None:
    reader = Reader(
        {f"p{number}": [f"picture {number}", PICTURE] for number in range(5)}, 3_000, at_once=at_once, needs="call"
    )
    await reader.work()
    assert set(reader.reads.values()) == {1} and len(reader.reads) == 5
