"""Conversations lived turn by turn through a real agent: does the request hold what its question needs?

    python -m benchmarks.lived --data locomo --budget 4000 --jobs 2
    python -m benchmarks.lived --data locomo --budget 2000 --scenario tools5 --set recall=0.5 --every 3

Every message of a conversation is a turn of a running agent, whose model answers as it is recorded; the history is
carried on as the host stores it. Every labelled question is a turn of its own at a boundary after its evidence, drawn
with a fixed seed, and its answer stays in the history. `held`: the evidence in the request whose response ends the
question's turn, in per cent, its prompt left out; `one-shot`: the same of `compile_view` at the same point, same
history, question and budget; `unasked`: the evidence in the request that ended the ordinary turn before the question.
A budget is all that a request's messages may cost, the question included.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import fmean
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks import recall
from benchmarks.data import Data, at_hand
from benchmarks.measures.evidence import summariser
from benchmarks.peers.baselines import READER, price
from benchmarks.recall import Conversation, Question
from context_compiler import ContextCompiler, compile_view
from context_compiler.compiler.metrics import CACHED, FRESH, PromptCache, broken_pairs
from context_compiler.middleware.replay import View

SCENARIOS = ("plain", "tools5", "toolask", "output", "everyasks")
MODELS = ("none", "bland", "good")
BLAND = "The conversation went on."
OPENING = "Hello."
"""What the user says where a recorded conversation begins with the assistant."""
USELESS = "entry {at}: shelf {shelf}, checked, in order, nothing to report"
LINES = 8
"""Of what a tool returns that is of no use."""
EACH = 5
"""Scenario `tools5`: a tool is called in every so manieth turn."""

POINTS, BACK = 4, 20
"""Breakpoints that a provider takes in one request, and content blocks before one in which it looks for an entry."""
SETTINGS: Any = {"anthropic_cache_messages": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a user says, and what is answered."""

    prompt: ModelRequest
    answer: str
    when: Any
    question: Question | None = None


def turns_of(
    conversation: Conversation, *, last: bool = False, seed: int = recall.SEED
) -> tuple[list[Turn], list[Turn]]:
    """The turns of a conversation with its questions among them; `last` puts all questions behind, as a second list."""
    plain, turn_of = _ordinary(conversation)
    dice = random.Random(f"{seed} lived {conversation.name}")
    drawn: list[tuple[int, float, Question]] = []
    for question in conversation.questions:
        place = dice.randint(turn_of[question.after] + 1, len(plain))
        drawn.append((place, dice.random(), question))
    if last:
        return plain, [_asked(question, plain[-1]) for _, _, question in sorted(drawn, key=lambda one: one[1])]
    waiting = deque(sorted(drawn, key=lambda one: one[:2]))
    found: list[Turn] = []
    for place in range(len(plain) + 1):
        while waiting and waiting[0][0] == place:
            found.append(_asked(waiting.popleft()[2], plain[place - 1]))
        found += plain[place : place + 1]
    return [], found


def _asked(question: Question, before: Turn) -> Turn:
    prompt = recall.said("user", question.text, before.when)
    assert isinstance(prompt, ModelRequest)
    return Turn(prompt=prompt, answer=question.answer or "I see.", when=before.when, question=question)


def _ordinary(conversation: Conversation) -> tuple[list[Turn], list[int]]:
    """The turns of a conversation, and the turn that each of its messages is in; what is adjacent is one message."""
    found: list[Turn] = []
    turn_of: list[int] = []
    prompt: ModelRequest | None = None
    for requests, group in groupby(conversation.messages, lambda one: isinstance(one, ModelRequest)):
        messages = list(group)
        turn_of += [len(found)] * len(messages)
        parts: list[Any] = [part for message in messages for part in message.parts]
        when = messages[-1].timestamp
        if requests:
            prompt = ModelRequest(parts=parts, timestamp=messages[0].timestamp)
            continue
        if prompt is None:
            prompt = recall.said("user", OPENING, messages[0].timestamp)  # pyright: ignore[reportAssignmentType, reportArgumentType]
        answer = "\n\n".join(part.content for part in parts)
        found.append(Turn(prompt=prompt, answer=answer, when=when))  # pyright: ignore[reportArgumentType]
        prompt = None
    if prompt is not None:
        found.append(Turn(prompt=prompt, answer="I see.", when=prompt.timestamp))
    return found, turn_of


class Reply(BaseModel):
    """What the scenario `output` has for an output type."""

    text: str


def look_up(query: str) -> str:
    """Look something up that has nothing to do with the conversation."""
    first = sum(map(ord, query))
    return "\n".join(USELESS.format(at=first + line, shelf=(first * line) % 97) for line in range(LINES))


class Life(Protocol):
    """A running conversation."""

    compiles: int
    """Requests that began a new cycle, where the approach tells."""

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Take over what was stored before."""
        ...

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelResponse]) -> list[Sequence[ModelMessage]]:
        """One turn, answered with a script; what each of its requests sent. A last response ends it."""
        ...

    def added(self) -> Sequence[ModelMessage]:
        """What the last turn added to the whole history behind its prompt."""
        ...


class AgentLife:
    """A live agent with some capabilities; its history is what the host stores."""

    def __init__(self, capabilities: Sequence[Any], *, scenario: str = "plain") -> None:
        """Begin without a history."""
        self.stored: list[ModelMessage] = []
        self.compiles = 0
        self._script: deque[ModelResponse] = deque()
        self._sent: list[Sequence[ModelMessage]] = []
        self._added: Sequence[ModelMessage] = ()
        self._agent: Agent[None, Any] = Agent(
            FunctionModel(self._answer),
            capabilities=list(capabilities),
            output_type=Reply if scenario == "output" else str,
            tools=[look_up] if scenario in ("tools5", "toolask") else (),
            model_settings=SETTINGS,
        )

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._sent.append(list(messages))
        spent = RequestUsage(input_tokens=price(messages), output_tokens=1)
        return replace(self._script.popleft(), usage=spent)

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Take over what was stored before."""
        self.stored = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelResponse]) -> list[Sequence[ModelMessage]]:
        """Run the agent once."""
        self._sent, self._script = [], deque(script)
        result = await self._agent.run(message_history=[*self.stored, prompt])
        self.stored = result.all_messages()
        self._added = result.new_messages()
        return self._sent

    def added(self) -> Sequence[ModelMessage]:
        """What the last run added."""
        return self._added


class PlainLife:
    """A function from history and budget to messages; the history is kept whole."""

    compiles = 0

    def __init__(self, view: View, budget: int) -> None:
        """Begin without a history."""
        self._stored: list[ModelMessage] = []
        self._view, self._budget = view, budget
        self._added: list[ModelMessage] = []

    def start(self, history: Sequence[ModelMessage]) -> None:
        """Take over what was stored before."""
        self._stored = list(history)

    async def turn(self, prompt: ModelRequest, script: Sequence[ModelResponse]) -> list[Sequence[ModelMessage]]:
        """Make the messages of every request of a turn."""
        host = AgentLife([], scenario="toolask")
        host.start(self._stored)
        whole = await host.turn(prompt, script)
        self._stored, self._added = host.stored, list(host.added())
        return [await self._view(list(messages), self._budget) for messages in whole]

    def added(self) -> Sequence[ModelMessage]:
        """What the last turn added."""
        return self._added


class PointedCache:
    """What a provider charges that writes its cache only at breakpoints, in plain input tokens.

    The end of every request is one, and so is every `CachePoint`; an entry is found within so many content blocks
    before a breakpoint. What stands behind the last breakpoint costs its tokens and is not written.
    """

    def __init__(self) -> None:
        self._entries: set[int] = set()
        self._blocks: dict[int, tuple[object, list[tuple[int, int, bool]]]] = {}

    def charge(self, messages: Sequence[ModelMessage]) -> float:
        """The price of the next request."""
        mark, sums, tokens = 0, [0], 0
        marks = [mark]
        points: list[int] = []
        for message in messages:
            for name, cost, point in self._of(message):
                if point:
                    points.append(len(marks) - 1)
                    continue
                mark, tokens = hash((mark, name)), tokens + cost
                marks.append(mark)
                sums.append(tokens)
        points = sorted({*points, len(marks) - 1})[-POINTS:]
        known = max((at for point in points for at in self._near(marks, point)), default=0)
        self._entries |= {marks[point] for point in points}
        return CACHED * sums[known] + FRESH * (tokens - sums[known])

    def _near(self, marks: Sequence[int], point: int) -> Iterator[int]:
        for at in range(point, max(-1, point - BACK - 1), -1):
            if marks[at] in self._entries:
                yield at
                return

    def _of(self, message: ModelMessage) -> list[tuple[int, int, bool]]:
        seen = self._blocks.get(id(message))
        if seen is not None and seen[0] is message:
            return seen[1]
        texts: list[str | None] = []
        for part in message.parts:
            content = getattr(part, "content", None)
            pieces = content if isinstance(part, UserPromptPart) and not isinstance(content, str) else (part,)
            for piece in pieces:
                texts.append(None if isinstance(piece, CachePoint) else _block(piece))
        lengths = sum(len(text) for text in texts if text is not None) or 1
        tokens = READER.one(message).tokens
        found = [
            (hash((message.kind, text)), round(tokens * len(text or "") / lengths), text is None) for text in texts
        ]
        self._blocks[id(message)] = (message, found)
        return found


def _block(piece: Any) -> str:
    text = getattr(piece, "content", piece)
    if isinstance(piece, ToolCallPart):
        text = f"{piece.tool_name} {piece.args_as_json_str()}"
    return text if isinstance(text, str) else str(text)


@dataclass(kw_only=True)
class Lived:
    """What one conversation came to."""

    name: str
    held: list[float] = field(default_factory=list[float])
    """The share of every question's evidence, as they were asked."""
    one_shot: list[float] = field(default_factory=list[float])
    unasked: list[float] = field(default_factory=list[float])
    requests: int = 0
    over: int = 0
    worst: float = 0.0
    """The largest request, in budgets."""
    broken: int = 0
    cost: float = 0.0
    """Of all requests, in plain input tokens, with a prompt cache."""
    whole: float = 0.0
    """The same when everything is sent."""
    pointed: float = 0.0
    """With a cache that is written at breakpoints only."""
    one_shot_cost: float = 0.0
    """Scenario `everyasks`: of a one-shot view at every request."""
    sent: int = 0
    """Tokens of all requests."""
    compiles: int = 0
    asked: int = 0
    """Calls of a summarising model."""
    seconds: float = 0.0


class Ledger:
    """Counts the requests of one conversation."""

    def __init__(self, lived: Lived, budget: int) -> None:
        self.lived, self.budget = lived, budget
        self._cache, self._pointed, self._views = PromptCache(), PointedCache(), PromptCache()
        self._before = 0

    def charge(self, sent: Sequence[ModelMessage], whole: int) -> None:
        """One request was sent, of a whole history of so many tokens."""
        lived, readings = self.lived, [READER.one(message) for message in sent]
        tokens = sum(reading.tokens for reading in readings)
        lived.requests += 1
        lived.sent += tokens
        lived.over += tokens > self.budget
        lived.worst = max(lived.worst, tokens / self.budget)
        lived.broken += any(broken_pairs(readings))
        lived.cost += self._cache.charge(readings)
        lived.pointed += self._pointed.charge(sent)
        lived.whole += CACHED * self._before + FRESH * (whole - self._before)
        self._before = whole

    def charge_view(self, view: Sequence[ModelMessage]) -> None:
        """A one-shot view was made where a request was sent."""
        self.lived.one_shot_cost += self._views.charge([READER.one(message) for message in view])


def shown(messages: Sequence[ModelMessage], without: str = "") -> str:
    """The text that a request shows, but for the pending question."""
    return "\n".join(
        text for message in messages for part in message.parts if (text := _said(part)) and text != without
    )


def _said(part: Any) -> str:
    if isinstance(part, ToolCallPart):
        return "\n".join(map(str, part.args_as_dict().values()))
    content = getattr(part, "content", None)
    if isinstance(content, str):
        return content
    pieces = content if isinstance(content, list | tuple) else ()
    return "\n".join(str(getattr(piece, "content", piece)) for piece in pieces if not isinstance(piece, CachePoint))


async def live(
    conversation: Conversation,
    life: Life,
    budget: int,
    *,
    scenario: str = "plain",
    paired: bool = True,
    seed: int = recall.SEED,
) -> Lived:
    """Live through a conversation.

    Args:
        conversation: With the questions to ask.
        life: A fresh one; it is used up.
        budget: Tokens of a request's messages.
        scenario: One of `SCENARIOS`.
        paired: Make a one-shot view at every question, too.
        seed: Draws where questions are asked.
    """
    lived = Lived(name=conversation.name)
    ledger = Ledger(lived, budget)
    known, turns = turns_of(conversation, last=scenario == "everyasks", seed=seed)
    whole: list[ModelMessage] = [one for turn in known for one in (turn.prompt, _responses(turn, "plain", 0)[0])]
    tokens = price(whole)
    life.start(whole)
    ended: Sequence[ModelMessage] = whole[-2:-1]
    started = time.perf_counter()
    for number, turn in enumerate(turns, 1):
        question = turn.question
        if question is not None:
            lived.unasked.append(recall.score(question, shown(ended), whole=conversation.whole))
            if paired:
                view = (await compile_view([*whole, turn.prompt], "extractive", budget, system=None)).messages
                lived.one_shot.append(recall.score(question, shown(view, question.text), whole=conversation.whole))
                if scenario == "everyasks":
                    ledger.charge_view(view)
        requests = await life.turn(turn.prompt, _responses(turn, scenario, number))
        added = list(life.added())
        whole += [turn.prompt]
        tokens += price([turn.prompt])
        for sent in requests:
            ledger.charge(sent, tokens)
            tokens += price(added[:2])  # the answer, and what its call returned
            whole, added = [*whole, *added[:2]], added[2:]
        if question is None:
            ended = requests[-1]
        else:
            lived.held.append(recall.score(question, shown(requests[-1], question.text), whole=conversation.whole))
    lived.compiles = life.compiles
    lived.seconds = time.perf_counter() - started
    return lived


def _responses(turn: Turn, scenario: str, number: int) -> list[ModelResponse]:
    """What the model answers in a turn: a call of a tool first, where the scenario has one."""
    found: list[ModelResponse] = []
    if (scenario == "tools5" and number % EACH == 0) or (scenario == "toolask" and turn.question is not None):
        call = ToolCallPart("look_up", {"query": f"entry {number}"}, tool_call_id=f"look-{number}")
        found.append(ModelResponse(parts=[call], timestamp=turn.when))
    if scenario == "output":
        part = ToolCallPart("final_result", {"text": turn.answer}, tool_call_id=f"final-{number}")
        return [*found, ModelResponse(parts=[part], timestamp=turn.when)]
    return [*found, ModelResponse(parts=[TextPart(turn.answer)], timestamp=turn.when)]


@dataclass(kw_only=True)
class Counting:
    """A summarising model that counts how often it is asked."""

    model: Model
    times: int = 0

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """What the model says."""
        self.times += 1
        return await self.model.request(messages, None, info.model_request_parameters)


def bland() -> Model:
    """A model whose summaries say nothing."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(BLAND)])

    return FunctionModel(answer)


async def ours(
    conversation: Conversation,
    budget: int,
    data: Data,
    *,
    scenario: str,
    model: str,
    paired: bool,
    seed: int = recall.SEED,
    **given: Any,
) -> Lived:
    """This package, live: `given` are arguments of `ContextCompiler`."""
    counting = Counting(model=summariser(data.summaries(conversation.name)) if model == "good" else bland())
    began: list[str] = []
    compiler = ContextCompiler(
        budget=budget,
        model="none" if model == "none" else FunctionModel(counting.answer),
        on_view=lambda view: began.append(view.status),
        **{"store": None, "system": None, **given},
    )
    life = AgentLife([compiler], scenario=scenario)
    lived = await live(conversation, life, budget, scenario=scenario, paired=paired, seed=seed)
    return replace(lived, compiles=began.count("compiled"), asked=counting.times)


Job = Callable[[], Lived]


def line(all_lived: Sequence[Lived]) -> str:
    """All conversations together, in one line."""
    total = {
        name: sum(getattr(one, name) for one in all_lived)
        for name in (
            "requests",
            "over",
            "broken",
            "cost",
            "whole",
            "pointed",
            "one_shot_cost",
            "sent",
            "compiles",
            "asked",
        )
    }
    mean, low, high = (100 * one for one in recall.interval([one.held for one in all_lived]))
    requests = total["requests"]
    pairs = [(one.held, one.one_shot) for one in all_lived if one.one_shot]
    shown = [f"held {mean:.1f} [{low:.0f}, {high:.0f}]"]
    if pairs:
        once = 100 * fmean(value for _, values in pairs for value in values)
        less = [[here - there for here, there in zip(*pair, strict=True)] for pair in pairs]
        delta, least, most = (100 * one for one in recall.interval(less))
        shown.append(f"one-shot {once:.1f} (Δ {delta:+.1f} [{least:+.0f}, {most:+.0f}])")
    shown += [
        f"unasked {100 * fmean(value for one in all_lived for value in one.unasked):.1f}",
        f"cost {total['cost'] / total['whole']:.3f}",
        f"tokens {total['cost'] / requests:,.0f}",
        f"breakpoints {total['pointed'] / total['whole']:.3f}",
        f"sent {total['sent'] / requests:,.0f}",
        f"over {total['over']}",
        f"broken {total['broken']}",
        f"cycles {total['compiles']}",
        f"model calls {total['asked']}",
        f"{requests:,} requests",
    ]
    if total["one_shot_cost"]:
        shown.insert(4, f"one-shot cost {total['one_shot_cost'] / total['whole']:.3f}")
    return " | ".join(shown)


def _run(number: int, chosen: argparse.Namespace, given: Mapping[str, Any]) -> Lived:
    data = at_hand(False, chosen.every)
    conversation = data.conversations(chosen.data)[number]
    doing = ours(
        conversation,
        chosen.budget,
        data,
        scenario=chosen.scenario,
        model=chosen.model,
        paired=not chosen.no_paired,
        seed=chosen.seed,
        **given,
    )
    return asyncio.run(doing)


def _given(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="locomo", choices=[*recall.SETS])
    parser.add_argument("--budget", type=int, default=4_000)
    parser.add_argument("--scenario", default="plain", choices=SCENARIOS)
    parser.add_argument("--model", default="none", choices=MODELS, help="who writes summaries")
    parser.add_argument("--every", type=int, default=1, help="ask one question in so many, drawn with a fixed seed")
    parser.add_argument("--conversations", type=int, default=None, help="only the first so many")
    parser.add_argument("--set", action="append", type=_given, default=[], metavar="NAME=VALUE", dest="given")
    parser.add_argument("--no-paired", action="store_true", help="no one-shot views")
    parser.add_argument("--seed", type=int, default=recall.SEED, help="draws where questions are asked")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--each", action="store_true", help="a line for every conversation, too")
    chosen = parser.parse_args()
    started = time.perf_counter()
    count = len(at_hand(False, chosen.every).conversations(chosen.data)[: chosen.conversations])
    given = dict(chosen.given)
    if chosen.jobs > 1:
        with ProcessPoolExecutor(chosen.jobs) as pool:
            found = list(pool.map(_run, range(count), [chosen] * count, [given] * count))
    else:
        found = [_run(number, chosen, given) for number in range(count)]
    if chosen.each:
        for one in found:
            print(f"  {one.name}: {line([one])} | {one.seconds:.0f} s")
    what = f"{chosen.data} {chosen.budget:,} {chosen.scenario} model={chosen.model}"
    what += "".join(f" {name}={value}" for name, value in given.items())
    print(f"{what}: {line(found)} | {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
