"""Seeded losses: the right assertion of `context_compiler.testing` has to fail, at the right request.

    python -m benchmarks.losses --cases 100
    python -m benchmarks.losses --cases 100 --runs 10     # each case again and again: the same failures every time
    python -m benchmarks.losses --recorded 10000          # CPU time of checking recorded requests

A case is a conversation of one agent with one strategy. At a request drawn with the seed, something is lost: a rule is
cut, a value is stale, a pair of tool messages is broken, a secret is sent, the budget is passed, or the beginning is
rewritten. Losses of the strategy itself count, too. The expected request comes from the texts and ids that the model
received, read without this package; before it, no assertion may fail.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from benchmarks.campaign.strict import plain
from benchmarks.command import arguments
from benchmarks.tables import markdown
from context_compiler import ContextCompiler
from context_compiler.testing import ContextFailure, LiveConversation, live_async, recorded_async

TURNS, BUDGET, ROOM = 16, 1_500, 6_000
RULE = "Never refund more than 50 euros."
SUBJECT, OLD, NEW = "The limit of project heron is", "41107", "80217"
SECRET = "4929 0011 2233 4455"
WORDS = "order parcel ledger invoice harbour window lantern copper meadow signal drawer pencil anchor basket".split()

RULE_CUT, STALE, PAIR = "rule cut", "value stale", "pair broken"
SENT, OVER, BUSTED = "secret sent", "budget passed", "cache busted"
KINDS = (RULE_CUT, STALE, PAIR, SENT, OVER, BUSTED)


def strategies() -> dict[str, Callable[[], list[Any]]]:
    strategies: dict[str, Callable[[], list[Any]]] = {
        "context-compiler": lambda: [ContextCompiler(budget=BUDGET, model="none", store=None, system=None)],
        "none": lambda: [],
    }
    if find_spec("pydantic_ai_harness"):
        from benchmarks.peers import harness

        writer = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("All went on as planned.")]))
        strategies |= {
            "harness, sliding window": lambda: harness.window(BUDGET, harness.LIVE),
            "harness, clears results": lambda: harness.clearing(BUDGET),
            "harness, tiers": lambda: harness.tiers(BUDGET, harness.LIVE),
            "harness, summaries": lambda: harness.summaries(writer, BUDGET),
        }
    if find_spec("langchain_core"):
        from benchmarks.peers.langchain import trimmed

        async def trim(messages: list[ModelMessage]) -> list[ModelMessage]:
            return list(await trimmed(messages, BUDGET))

        strategies["LangChain, trim_messages"] = lambda: [ProcessHistory(trim)]
    return strategies


@dataclass
class Case:
    """A conversation in which something is lost at one request."""

    seed: int
    kind: str
    strategy: str
    at: int
    """Number of the request."""
    received: list[list[ModelMessage]] = field(default_factory=list)
    """Messages of each request, as the model got them."""

    async def live(self, capabilities: list[Any]) -> LiveConversation:
        """Hold the conversation."""
        agent = Agent(tools=[look], capabilities=[*capabilities, Saboteur(self)])
        return await live_async(agent, prompts(self.seed), model=FunctionModel(self.answer))

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """Answer with a call for every third prompt."""
        self.received.append(messages)
        newest = messages[-1].parts[-1]
        if isinstance(newest, UserPromptPart) and len(self.received) % 3 == 0:
            return ModelResponse(parts=[ToolCallPart("look", {"what": WORDS[len(self.received) % len(WORDS)]})])
        return ModelResponse(parts=[TextPart(f"Done, {len(self.received)}. {' '.join(WORDS)}")])

    def lose(self, messages: list[ModelMessage]) -> list[ModelMessage]:
        """The messages of the request with the loss."""
        if self.kind == RULE_CUT:
            return [edited(message, lambda text: text.replace(RULE, "")) for message in messages]
        if self.kind == STALE:
            without = [edited(message, lambda text: text.replace(NEW, "")) for message in messages]
            return with_prompt(without, f"{SUBJECT} {OLD} requests.")
        if self.kind == PAIR:
            call = ToolCallPart("look", {"what": "it"}, tool_call_id="never answered")
            return [*messages[:-1], ModelResponse(parts=[call]), messages[-1]]
        if self.kind == SENT:
            return with_prompt(messages, f"The card is {SECRET}.")
        if self.kind == OVER:
            return with_prompt(messages, " ".join(WORDS * (ROOM // 10)))
        return [edited(messages[0], lambda text: f"Once more: {text}"), *messages[1:]]


@dataclass
class Saboteur(AbstractCapability[Any]):
    """Loses something on the way to the model."""

    case: Case
    count: int = 0

    def get_wrapper_model(self, model: Model) -> Model:
        """Wrap the model."""
        case, outer = self.case, self

        class Losing(WrapperModel):
            async def request(self, messages: list[ModelMessage], *more: Any) -> ModelResponse:
                outer.count += 1
                return await super().request(case.lose(messages) if outer.count == case.at else messages, *more)

        return Losing(model)


def look(what: str) -> str:
    """Look something up."""
    return f"{what}: {' '.join(WORDS)}"


def prompts(seed: int) -> list[str]:
    draw = random.Random(seed)
    kept = {1: RULE, 2: f"{SUBJECT} {OLD} requests.", 4: f"{SUBJECT} {NEW} requests now."}
    words = (" ".join(draw.choices(WORDS, k=90)) for _ in range(TURNS))
    return [f"{kept.get(turn, '')} Matter {turn}: {text}.".strip() for turn, text in enumerate(words)]


def edited(message: ModelMessage, change: Callable[[str], str]) -> ModelMessage:
    """A copy of a message with other texts."""

    def other(content: Any) -> Any:
        if isinstance(content, str):
            return change(content)
        if isinstance(content, list):
            return [other(piece) for piece in content]
        return replace(content, content=change(content.content)) if hasattr(content, "content") else content

    def edited_part(part: Any) -> Any:
        return replace(part, content=other(part.content)) if getattr(part, "content", None) else part

    return replace(message, parts=[*map(edited_part, message.parts)])


def with_prompt(messages: list[ModelMessage], text: str) -> list[ModelMessage]:
    return [*messages, ModelRequest(parts=[UserPromptPart(text)])]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings(inner)


def said(messages: Sequence[ModelMessage]) -> list[str]:
    """The texts and ids of each message, without times and usage."""
    return ["\n".join(strings(message["parts"])) for message in plain(messages)]


def expected(case: Case, rewrites: int) -> int | None:
    """Number of the first request with a loss of the case's kind, by the messages that the model received."""
    texts = [said(messages) for messages in case.received]
    if case.kind == BUSTED:
        return next(iter(busted(texts)[rewrites:]), None)
    whole = ["\n".join(parts) for parts in texts]
    said_first = {RULE_CUT: RULE, STALE: NEW}.get(case.kind, "")
    since = next(number for number, text in enumerate(whole) if said_first in text)
    lost: dict[str, Callable[[int], bool]] = {
        RULE_CUT: lambda number: number > since and RULE not in whole[number],
        STALE: lambda number: number > since and SUBJECT in whole[number] and NEW not in whole[number],
        PAIR: lambda number: not paired(case.received[number]),
        SENT: lambda number: SECRET in whole[number],
        OVER: lambda number: len(whole[number].split()) > ROOM // 2,
    }
    return next((number + 1 for number in range(len(whole)) if lost[case.kind](number)), None)


def busted(texts: Sequence[Sequence[str]]) -> list[int]:
    """Numbers of the requests that do not begin with the request before."""
    pairs = zip(texts, texts[1:], strict=False)
    return [number for number, (before, now) in enumerate(pairs, 2) if list(now[: len(before)]) != list(before)]


def paired(messages: Sequence[ModelMessage]) -> bool:
    open_calls: Counter[str] = Counter()
    for part in (part for message in messages for part in message.parts):
        if part.part_kind == "tool-call":
            open_calls[part.tool_call_id] += 1
        elif part.part_kind == "tool-return":
            open_calls[part.tool_call_id] -= 1
            if open_calls[part.tool_call_id] < 0:
                return False
    return not any(open_calls.values())


CHECKS: dict[str, tuple[str, Callable[[LiveConversation, int], None]]] = {
    RULE_CUT: ("in_context", lambda talk, _: talk.assert_in_context(RULE)),
    STALE: ("newest", lambda talk, _: talk.assert_newest(SUBJECT, NEW)),
    PAIR: ("pairs", lambda talk, _: talk.assert_within(pairs=True)),
    SENT: ("not_in_context", lambda talk, _: talk.assert_not_in_context(SECRET)),
    OVER: ("budget", lambda talk, _: talk.assert_within(budget=ROOM)),
    BUSTED: ("compiles", lambda talk, rewrites: talk.assert_within(compiles=rewrites)),
}


async def find(case: Case, capabilities: list[Any]) -> tuple[int | None, int | None, str]:
    """Number of the request with the loss, number of the one that the assertion names, and its explanation."""
    conversation = await case.live(capabilities)
    texts = [said(messages) for messages in case.received]
    rewrites = sum(number < case.at for number in busted(texts))
    check, assertion = CHECKS[case.kind]
    try:
        assertion(conversation, rewrites)
    except ContextFailure as failure:
        assert failure.check == check and len(str(failure).splitlines()) <= 15
        return expected(case, rewrites), failure.request.number, str(failure)
    return expected(case, rewrites), None, ""


def cases(count: int) -> Iterator[Case]:
    names = list(strategies())
    for seed in range(count):
        draw = random.Random(seed)
        # requests 1 to 5 say the texts; the one after the loss shows that it is no change that stays
        yield Case(seed, KINDS[seed % len(KINDS)], names[seed // len(KINDS) % len(names)], draw.randrange(8, TURNS))


async def measure(count: int, runs: int) -> None:
    named_right: Counter[tuple[str, str]] = Counter()
    every: Counter[tuple[str, str]] = Counter()
    changing = 0
    for case in cases(count):
        outcomes = [await find(replace(case, received=[]), strategies()[case.strategy]()) for _ in range(runs)]
        wanted, named, text = outcomes[0]
        changing += any(outcome != outcomes[0] for outcome in outcomes)
        every[case.strategy, case.kind] += 1
        named_right[case.strategy, case.kind] += wanted is not None and wanted == named
        if wanted is None or wanted != named:
            print(f"seed {case.seed}, {case.strategy}, {case.kind}: lost at {wanted}, found at {named}\n{text}")
    rows = [[name, *(f"{named_right[name, kind]} of {every[name, kind]}" for kind in KINDS)] for name in strategies()]
    print(markdown(("strategy", *KINDS), rows))
    print(f"\nfound: {named_right.total()} of {every.total()}; runs of each: {runs}, of which any differs: {changing}")


async def check_recorded(requests: int) -> None:
    """CPU time of reading and checking recorded requests, in sessions of 50."""
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "record.db"
        compiler = ContextCompiler(budget=BUDGET, model="none", store=db, system=None, recall=0, record_timeout=None)
        sessions = [f"session {number}" for number in range(max(1, requests // 50))]
        for seed, session in enumerate(sessions):
            texts = [text for part in range(4) for text in prompts(4 * seed + part)][:50]
            await live_async(Agent(capabilities=[compiler]), texts, conversation_id=session)
        started, checked = time.process_time(), 0
        for session in sessions:
            conversation = await recorded_async(session, db=db)
            conversation.assert_in_context(RULE)
            conversation.assert_not_in_context(SECRET)
            conversation.assert_within(budget=BUDGET, pairs=True, compiles=len(conversation.requests))
            checked += len(conversation.requests)
        print(f"{checked:,} recorded requests read and checked in {time.process_time() - started:.1f} s of CPU")


def main() -> None:
    options = arguments(__doc__, cases=100, runs=1, recorded=0)
    started = time.process_time()
    asyncio.run(check_recorded(options.recorded) if options.recorded else measure(options.cases, options.runs))
    print(f"CPU: {time.process_time() - started:.1f} s")


if __name__ == "__main__":
    main()
