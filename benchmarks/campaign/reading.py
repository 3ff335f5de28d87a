"""Agents that read files: none is read twice without need, whatever its size, and the newest results stay whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.usage import UsageLimits

from benchmarks.campaign.case import Case
from benchmarks.campaign.drawn import Drawn
from benchmarks.campaign.strict import COUNTER, StrictModel, refusals
from context_compiler import ContextCompiler, View

FIXED = 400
"""Tokens for prompts, instructions, schemas and calls of a turn."""
SHARE = 0.85
"""Share of the budget up to which the files of one turn must stay readable together."""


@dataclass
class Reader:
    """A model that reads what it wants to know, and decides only by what a request shows."""

    random: Random
    bodies: dict[str, str]
    whole: bool
    """True if it needs the content of every file at once; otherwise it is enough to see that a file was read."""
    parallel: int
    wanted: list[str] = field(default_factory=list[str])
    reads: Counter[str] = field(default_factory=Counter[str])
    newest: list[str] = field(default_factory=list[str])
    """Files of its last calls."""

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Read the next files that the request does not show, or end the turn."""
        missing = [name for name in self.wanted if not self._shows(messages, name)]
        self.newest = missing[: self.parallel]
        if not missing:
            return ModelResponse(parts=[TextPart(f"Read: {' '.join(self.wanted)}.")])
        self.reads.update(self.newest)
        return ModelResponse(
            parts=[ToolCallPart("read", {"name": name}, f"{name}_{self.reads[name]}") for name in self.newest]
        )

    def _shows(self, messages: list[ModelMessage], name: str) -> bool:
        if self.whole:
            return self.bodies[name] in results_of(messages)
        return any(
            isinstance(part, ToolCallPart) and part.args_as_dict().get("name") == name
            for message in messages
            for part in message.parts
        ) or any(name in text for text in results_of(messages))


def results_of(messages: list[ModelMessage]) -> list[Any]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


async def read(case: Case) -> None:
    """Run an agent that reads files of 5 to 60 % of its budget, one after another or at once."""
    random, drawn = case.random, Drawn(case.random, hostile=0)
    budget = int(1_000 * 2 ** random.uniform(2, 6))
    reader = Reader(random, {}, whole=drawn.sometimes(0.5), parallel=random.choice((1, 1, 2, 4)))
    views, errors = list[View](), list[Exception]()
    ours = ContextCompiler(
        budget=budget, model="none", store=None, system=None, on_view=views.append, on_error=errors.append
    )
    strict = StrictModel(reader)

    async def open_file(name: str) -> str:
        """Read a file."""
        return reader.bodies[name]

    agent = Agent(strict.model, capabilities=[ours])
    agent.tool_plain(name="read")(open_file)
    history: list[ModelMessage] = []
    new = 0
    for turn in range(random.choice((1, 2, 4, 8))):
        reader.wanted = _files(drawn, reader, turn, budget)
        new += sum(COUNTER.text(reader.bodies[name]) for name in reader.wanted) + FIXED
        where = f"[files of {[COUNTER.text(reader.bodies[name]) for name in reader.wanted]} tokens, budget {budget}, "
        where += f"{reader.parallel} at once, {'whole' if reader.whole else 'seen'}, turn {turn}] "
        asked, most = len(strict.sent), 3 * len(reader.wanted) + 4
        try:
            limits = UsageLimits(request_limit=most)
            result = await agent.run(f"Compare {turn}.", message_history=history, usage_limits=limits)
        except Exception as error:
            case.check(False, "files that are read for ever", f"{where}{type(error).__name__} after {most} requests")
            break
        history = result.all_messages()
        twice = {name: reader.reads[name] for name in reader.wanted if reader.reads[name] > 1}
        case.count("files read", len(reader.wanted))
        case.check(not twice, "files that are read twice without need", f"{where}{twice}")
        for sent in strict.sent[asked:]:
            case.check(sent.tokens <= budget, "requests over budget", f"{where}{sent.tokens}")
            broken = list(refusals(sent.messages))
            case.check(not broken, "broken pairs or shapes", f"{where}{broken[:3]}")
    cycles = sum(view.status == "compiled" for view in views)
    case.check(
        cycles <= 2 * new / budget + 2, "needless cycles", f"[budget {budget}] {cycles} in {new} tokens of new text"
    )
    case.count("requests", len(strict.sent))
    case.check(not errors, "unexpected errors", lambda: f"{errors[0]!r}")
    await ours.aclose()


def _files(drawn: Drawn, reader: Reader, turn: int, budget: int) -> list[str]:
    """Draw the files of a turn; a model that needs them all at once gets files that fit together."""
    random, free = drawn.random, SHARE * budget - FIXED
    wanted: list[str] = []
    for number in range(random.choice((1, 2, 2, 3, 5, 8))):
        tokens = int(random.uniform(0.05, 0.6) * budget)
        if reader.whole and tokens > free:
            break
        free -= tokens
        name = f"file_{turn}_{number}"
        reader.bodies[name] = drawn.sized(name, tokens)
        wanted.append(name)
    return wanted
