"""Live agents in random conversations; checks each request against providers' rules and against the record."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, DeferredToolResults, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import AgentRunError, ApprovalRequired, ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.campaign.case import Case
from benchmarks.campaign.drawn import EVALUATED, HOSTILE, LOCKER, NAMED, SHARED, Drawn
from benchmarks.campaign.rules import DECLARED, MODE, PLAIN, Given, check_rules, given_rules
from benchmarks.campaign.strict import (
    HALVES,
    READER,
    Script,
    Sent,
    StrictModel,
    all_texts,
    difference,
    in_order,
    plain,
    prompt_tokens,
    refusals,
    rendered,
)
from context_compiler import ContextCompiler, MemoryStore, Money, Recall, SQLiteStore, Store, Template, View
from context_compiler.compiler.reasons import PIN_WAITS
from context_compiler.errors import SettingsError, StoreError, TemplateError
from context_compiler.messages.bodies import load_messages
from context_compiler.messages.history import current_instructions
from context_compiler.recall.terms import prose
from context_compiler.record.values import positions_of
from context_compiler.tokens.prices import price_of
from tests.support.wordings import TOO_LONG

LEFT = "Requests so far: "
"""Beginning of a system prompt for one request."""
SECRET = "The staging database of Maria has the password KESTREL-77."
"""Text of another owner, which must not be sent to anybody else."""
INSTRUCTIONS = (None, "Be brief.", "You are a careful engineer. Name files with their lines.")
BUDGETS = ((300, 900), (900, 3_000), (3_000, 9_000), (9_000, 40_000))
CHOICES: dict[str, Sequence[Any]] = {
    "tool_history": ("paired", "drop", "render"),
    "inject": ("user", "system", "compaction"),
    "recent_turns": (0, 1, 3, "all"),
    "every_turn": (True,),
    "fidelity": ("full", "truncate", "compact", "summary:low", "summary:high"),
    "trigger": (0.3, 0.7, 1.0),
    "recall": (0, 0.1, 1.0, 200),
    "template": ("extractive", "goal_oriented", "chat_compiler"),
    "background": (True,),
    "counter": ("provider",),
    "recall_across": (0.1, 0.3, 400),
    "compile_spend_limit": ("$0.001", "$5"),
}
LOCKERS = re.compile(LOCKER.format(r"(\w+)", r"(\d{4})"))
"""Statements that are made again with other values, with their subject and value."""
PRICED = "claude-sonnet-4-5"
"""Model with a known price, to express a token budget as money."""
FOCUS = ("", "the staging database", "who owns what", "x" * 1_999)
FLOOR = 260
"""Tokens above the fixed costs with which a view is always possible."""
OF_ANSWER = 512
"""Tokens of an answer that a refusal leaves out of the window when it states how long an input may be."""
LEAST_WINDOW = 512
"""Tokens below which no context window is believed."""
SHARE_OF_WINDOW = 0.7
"""Minimum share of a stated window that requests may fill."""
LEAST_ROOM, PART_ROOM, LONG_ROOM = 40, 40, 130
"""Room in tokens below which even the shortest prompt may be cut, extra room for each part of the last message, and
room below which a long prompt may lose all its words."""
JUMPS = (0, 0, 86_400, -86_400, 3, -3)
"""Seconds by which the clock is wrong during a turn."""
GADGETS = (
    "{{ ''.__class__.__mro__ }} {{ recent_turns }}",
    "{% for a in range(100000000) %}x{% endfor %}",
    "{{ plan.__init__.__globals__ }} {{ latest_input }} {{ latest_input | map('upper') | list }}",
    "{{ ('a' * 1000000) * 1000 }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ latest_input }}{{ constraints }}{{ previous_summary }}",
    "{% include '/etc/passwd' %}",
    "{{ unclosed",
)


class Report(BaseModel):
    """A structured output."""

    title: str
    lines: list[str]


class Spending(AbstractCapability[Any]):
    """Tells the model at each request what is left, in a system prompt for that request alone."""

    requests = 0

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Enqueue the prompt."""
        self.requests += 1
        ctx.enqueue(SystemPromptPart(f"{LEFT}{self.requests}.", scope="request"))
        return request_context


@dataclass
class Writer:
    """The model that writes summaries, good or bad; `bad` counts the bad ones."""

    drawn: Drawn
    kind: str
    bad: int = 0

    @property
    def failed(self) -> bool:
        """True if a summary was bad; a model that hangs always counts, because it may time out before it is called."""
        return self.kind == "hangs" or self.bad > 0

    @property
    def model(self) -> FunctionModel:
        """The model."""
        return FunctionModel(self._write, model_name=f"writer-{self.kind}")

    async def _write(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        kind = self.kind if self.kind != "mixed" else self.drawn.random.choice(("good", "raises", "empty", "long"))
        self.bad += kind != "good"
        if kind == "raises":
            raise ModelHTTPError(503, "writer", body={"error": "overloaded"})
        if kind == "hangs":
            await asyncio.sleep(60)
        said = self.drawn.text(60)
        self.bad += said in HOSTILE
        text = {"empty": " \n", "long": "word " * 9_000}.get(kind) or f"- Goal: {NAMED}. {said}"
        return ModelResponse(parts=[TextPart(text)])


@dataclass
class Turn:
    """One run of an agent: requests that the model received, and views and errors that the compiler reported."""

    sent: list[Sent] = field(default_factory=list[Sent])
    views: list[View] = field(default_factory=list[View])
    errors: list[Exception] = field(default_factory=list[Exception])
    resumed: set[int] = field(default_factory=set[int])
    """Indexes of the requests that begin a run which answers deferred calls."""
    ratio: float = 1.0
    """Ratio of the count that a refusal stated to the exact one."""
    window: int = 0
    """Context window that the refusal of a request stated; 0 for none."""
    spends: bool = False
    """True if each request has a system prompt for itself alone."""
    spent: int = 0
    """Number in the newest of these prompts."""
    steered: bool = False
    """True if the last prompt differs from the first."""


def tools_of(drawn: Drawn, *, deferred: bool) -> list[Callable[..., Any]]:
    """Return tools that answer, raise `ModelRetry`, or defer; async, because threads would draw in any order."""
    seen: set[str] = set()

    async def look(path: str) -> str:
        """Look at a path."""
        if drawn.sometimes(0.1) and path not in seen:
            seen.add(path)
            raise ModelRetry(f"no such path: {path}")
        return drawn.long() if drawn.sometimes(0.04) else drawn.result_text()

    async def ask(path: str) -> str:
        """Ask a person."""
        raise ApprovalRequired if drawn.sometimes(0.5) else CallDeferred

    return [look, ask] if deferred else [look]


class Conversation:
    """One application with one conversation, or several with forks."""

    def __init__(self, case: Case, *, hostile: float = 0.02, counted: bool = False) -> None:
        self.case, self.random = case, case.random
        self.drawn = Drawn(case.random, hostile=hostile)
        self.turn = Turn()
        self.hostile = hostile > 0.1
        self.path = case.folder / "context.db" if self.drawn.sometimes(0.3) else None
        self.store = self._open()
        hostile_names, names = ("x\ud800", "a\x00b", "'; --", "\u202e", "talk"), ("talk", None, "café/..", "a" * 300)
        self.session = self.random.choice(hostile_names if self.hostile else names)
        self.history: list[ModelMessage] = self.drawn.history(self.random.choice((0, 0, 1, 3, 12)))
        self.earlier: list[list[ModelMessage]] = []
        self._windowed = set[str | None]()
        self._recorded = set[str]()
        self._steered = self.random.choice((0, 0.15, 0.6))
        self._pinned: dict[tuple[str, str], tuple[str, ...]] = {}
        self._dismissed: dict[str, list[tuple[str, str]]] = {}
        self._modes = 0
        self._blamed = set[tuple[str, int]]()
        self._blamed_positions = set[int]()
        """Positions that views said were cut over budget. A view keeps the reasons of earlier cuts, on a branch too."""
        self._refused_above = math.inf
        """Smallest limit that a refusal named: what was left out for it stays out while a cut is continued."""
        self._known_windows: dict[str, float] = {}
        """Context windows that refusals have stated, by model."""
        self._tenants = self.drawn.sometimes(0.2)
        self._spends = Random(f"spends {case.seed} {case.number}").random() < 0.1
        self._writer = Writer(self.drawn, self.random.choice(("good", "good", "raises", "empty", "long", "mixed")))
        if self.drawn.sometimes(0.01):
            self._writer.kind = "hangs"
        self._usage = self.random.choice((1.0, 1.0, 1.0, 0.8, 1.3))
        self._framing, self._system, self._counted = 0, "function", counted
        if counted:
            self._usage, self._framing = self.random.choice((0.8, 1.1, 1.3, 1.7)), self.random.choice((0, 30, 346))
            self._system = self.random.choice(("function", "anthropic", "google"))
        self._others: dict[str, list[ModelMessage]] = {}
        self._new_compiler()

    @property
    def windowed(self) -> bool:
        """True once the application has sent only the last turns of this conversation."""
        return self.session in self._windowed

    def _open(self) -> Store:
        return SQLiteStore(self.path) if self.path is not None else MemoryStore()

    def _new_compiler(self) -> None:
        low, high = self.random.choice(BUDGETS)
        self.budget = self.random.randint(low, high)
        chosen = {name: self.random.choice(values) for name, values in CHOICES.items() if self.drawn.sometimes(0.25)}
        if self.hostile and self.drawn.sometimes(0.5):
            with suppress(TemplateError):  # most of them are refused this way
                chosen["template"] = Template.parse(self.random.choice(GADGETS), name="gadget")
        self.drawn.budget = self.budget if self.drawn.sometimes(0.5) else 0
        self._rules = self.random.choice(((), (), (), (DECLARED,), (DECLARED, self._mode)))
        self._detects = not self.drawn.sometimes(0.1)
        if chosen.get("background") and "every_turn" in chosen:
            del chosen[self.random.choice(("background", "every_turn"))]
        if self._counted:
            chosen["counter"] = "provider"
        if self._writer.kind == "hangs":
            chosen.pop("counter", None)  # a count has the same short timeout
        self.choices = chosen
        self.name, budget = "strict", self.budget
        if self.drawn.sometimes(0.1):
            self.name, budget = self._money()
        self.model = "none" if self.drawn.sometimes(0.5) else self._writer.model
        self.ours = ContextCompiler(
            budget=budget,
            model=self.model,
            store=self.store,
            system=None,
            timeout=0.05 if self._writer.kind == "hangs" else 20,
            record_timeout=60,  # a busy machine is no fault
            rules=self._rules,
            detect_rules=self._detects,
            on_view=lambda view: self.turn.views.append(view),
            on_error=lambda error: self.turn.errors.append(error),
            **chosen,
        )

    def _mode(self, ctx: object) -> str:
        """Return a rule of the application that changes from time to time."""
        return MODE.format(self._modes)

    async def _dismiss(self, session: str) -> Any:
        """Dismiss a rule of the user, and note the newest message that gives it."""
        rule = await self.ours.dismiss_rule(session, self.random.choice(PLAIN))
        tip = READER.read(await self.ours.transcript(session)).ids[rule.position]
        self._dismissed.setdefault(session, []).append((rule.text, tip))
        return rule

    async def _check_rules(self, where: str, sent: Sent, view: View, room: float) -> None:
        """Check that the rules in force are in a request."""
        record = view.record
        if record is None or not record.raw_tip or view.status == "floor_over_budget":
            return
        rules: list[Given] = []
        if self._detects and not self.windowed:
            raw = load_messages(await self.store.chain(record.raw_tip))
            rules = given_rules(raw, self._dismissed.get(self.session or "", ()))
        rules += [Given(rule if isinstance(rule, str) else rule(None)) for rule in self._rules]
        room = min(room, view.budget / _ratio(view) - sent.overhead)  # a refusal holds for the rest of a cycle
        last_alone = any(drop.reason.endswith("the last exchange is sent") for drop in view.drops)
        free = 0.0 if last_alone else room + sent.overhead - sent.tokens
        check_rules(self.case, where, rules, sent.messages, view.drops, room=room, free=free)

    async def _take_pin(self, name: str, outcome: Any) -> None:
        """Note the texts of a pinned message, which belongs to the newest request, not to the next one."""
        session = self.session or ""
        if name == "unpin":
            self._pinned.pop((session, outcome.tip), None)
        if name == "pin" and not self.windowed:
            kept = await self.ours.transcript(session)
            tips = READER.read(kept).ids
            self._pinned[session, outcome.tip] = _words(kept[tips.index(outcome.tip)]) if outcome.tip in tips else ()

    async def _check_pins(self, where: str, sent: Sent, view: View) -> None:
        pinned = {tip: texts for (session, tip), texts in self._pinned.items() if session == self.session and texts}
        record = view.record
        if self.windowed or view.status not in ("raw", "compiled", "cycle") or not pinned or record is None:
            return
        raw = load_messages(await self.store.chain(record.raw_tip)) if record.raw_tip else []
        positions = {tip: position for position, tip in enumerate(READER.read(raw).ids)}
        whole = str(plain(sent.messages))
        drops = (drop for drop in view.drops if drop.reason == PIN_WAITS.text)
        waiting = {position for drop in drops for position in positions_of(drop.what)}
        for position, texts in ((positions[tip], texts) for tip, texts in pinned.items() if tip in positions):
            gone = [text for text in texts if str([text])[1:-1] not in whole]
            self.case.check(position in waiting or not gone, "pins that are gone", f"{where}m{position}: {gone[:1]}")

    def _money(self) -> tuple[str, Any]:
        """Return a model and a budget in money, converted by its price or by a fallback."""
        price = price_of(PRICED)
        if price is None or self.drawn.sometimes(0.5):
            return "strict", Money(0.01, fallback=self.budget)
        money = Money(price.cost(self.budget))
        self.budget = price.affordable(money.amount) or self.budget
        return PRICED, money

    def describe(self) -> str:
        """Return the settings as text for a fault."""
        chosen = {name: getattr(value, "name", value) for name, value in self.choices.items()}
        return f"[budget {self.budget}, {chosen}, writer {self._writer.kind if self.model != 'none' else 'none'}] "

    def _check(self, holds: object, what: str, text: Callable[[], str] | str) -> None:
        """Check an invariant; the text of its fault begins with the settings."""
        self.case.check(holds, what, lambda: f"{self.describe()}{text() if callable(text) else text}")

    async def go_on(self) -> None:
        """Run one step of the application: a turn, sometimes preceded by a fork, an edit, a restart or steering."""
        self._modes += self.drawn.sometimes(0.2)
        if self.drawn.sometimes(0.08) and self.earlier:
            self.history = self.random.choice(self.earlier)  # a fork
        if self.drawn.sometimes(0.05):
            self.history = self._edited(self.history)
        if self.drawn.sometimes(0.07):
            self._new_compiler()
        if self.drawn.sometimes(0.05) and self.path is not None:
            await self.ours.aclose()
            await self.store.close()
            self.store = self._open()
            self._new_compiler()
        if self.drawn.sometimes(0.06) and self.session and not self.hostile:
            self._other_conversation()
        for _ in range(self.random.choice((1, 1, 2)) if self.drawn.sometimes(self._steered) else 0):
            await self._steer()
        await self.say()
        self.earlier = [*self.earlier[-4:], self.history]

    async def begin(self) -> None:
        """Run a turn of another owner on the same record, in some cases."""
        if self._tenants:
            other = ContextCompiler(owner="bob", store=self.store, model="none", system=None, record_timeout=60)
            agent = Agent(StrictModel(lambda *_: self.drawn.answer()).model, capabilities=[other])
            await agent.run(f"{SECRET} Who owns it? {self.drawn.text()}", conversation_id="desk")
            await other.aclose()

    def _other_conversation(self) -> None:
        """Switch to another conversation of the same record, new or existing."""
        self._others[self.session or ""] = self.history
        self.session = self.random.choice(("talk", "desk", "trip"))
        self.history = self._others.get(self.session) or self.drawn.history(self.random.choice((0, 1, 5)))
        self.earlier = []

    async def _steer(self) -> None:
        """Take one action by hand: compile, preview, undo, pin or unpin."""
        if not self.session or not self.history:
            return
        before, session, ours = plain(self.history), self.session, self.ours
        self.turn.errors.clear()
        target: Any = self.random.choice(("turn 1", "m0", len(self.history) - 1, "the", self.random.randint(0, 99)))
        focus, start = self.random.choice(FOCUS), (target if self.drawn.sometimes(0.2) else None)
        steps: dict[str, Callable[[], Awaitable[Any]]] = {
            "compile_now": lambda: ours.compile_now(session, focus, start=start),
            "preview": lambda: ours.preview(session, focus, start=start),
            "undo_compile": lambda: ours.undo_compile(session),
            "pin": lambda: ours.pin(session, target),
            "unpin": lambda: ours.unpin(session, target),
            "pins": lambda: ours.pins(session),
            "dismiss": lambda: self._dismiss(session),
        }
        name = self.random.choice(list(steps))
        self.case.count(f"steps by hand: {name}")
        try:
            outcome = await steps[name]()
            await self._take_pin(name, outcome)
        except (SettingsError, StoreError) as error:
            unknown = "no request" in str(error) or "nothing of" in str(error).lower()
            expected = isinstance(error, SettingsError) or unknown or session not in self._recorded
            self._check(expected, "unexpected failures by hand", f"{name}({target!r}): {error!r}")
            return
        if name == "compile_now" and outcome.done:
            sizes = f"{outcome.before} to {outcome.after}"
            self._check(outcome.after < outcome.before or focus, "compiles by hand that save nothing", sizes)
        self._check(plain(self.history) == before, "changed transcripts", name)
        self._check_errors()

    def _edited(self, history: list[ModelMessage]) -> list[ModelMessage]:
        starts = [index for index, message in enumerate(history) if _begins_turn(message)]
        if not starts:
            return history
        start = self.random.choice(starts)
        if self.drawn.sometimes(0.5):
            return history[:start]  # edit and retry
        parts = [
            part if part.part_kind != "user-prompt" else UserPromptPart(self.drawn.prompt()[1])
            for part in history[start].parts
        ]
        return [*history[:start], replace(history[start], parts=parts), *history[start + 1 :]]  # pyright: ignore

    def _window(self) -> list[ModelMessage]:
        starts = [index for index, message in enumerate(self.history) if _begins_turn(message)]
        if not starts or not self.drawn.sometimes(0.1):
            return self.history
        self._windowed.add(self.session)
        return self.history[self.random.choice(starts[-6:]) :]

    async def say(self) -> None:
        """Run one user turn through an agent, and check everything."""
        marker, prompt = self.drawn.prompt()
        kind = self.random.choice(("text", "text", "text", "report", "tool"))
        deferred = kind == "text" and self.drawn.sometimes(0.15)
        script = self._script(deferred=deferred, kind=kind)
        strict = StrictModel(script, self._usage, self._framing, self.name, self._system)
        self.turn = Turn(sent=strict.sent)
        self.turn.spends = self._spends
        capabilities: list[Any] = [*([Spending()] if self.turn.spends else []), self.ours]
        if self.session and self.drawn.sometimes(0.2):
            capabilities.append(Recall(transcript=self.ours.transcript))
        output: Any = {"text": str, "report": Report, "tool": [str, Report]}[kind]
        agent: Agent[Any, Any] = Agent(
            strict.model,
            tools=tools_of(self.drawn, deferred=deferred),
            output_type=[output, DeferredToolRequests] if deferred else output,
            instructions=self.random.choice(INSTRUCTIONS),
            capabilities=capabilities,
            retries=3,
        )
        if self.drawn.sometimes(0.15):
            agent.system_prompt(dynamic=self.drawn.sometimes(0.5))(
                lambda: f"It is {self.random.randint(1, 12)} o'clock."
            )
        history = self._window()
        before, were = plain(history), list(history)
        ways = (Agent.run, Agent.run, _stream, _steps)
        way: Any = self.random.choice(ways) if kind == "text" and not deferred else Agent.run
        self.way = way
        try:
            result = await way(agent, prompt, message_history=history, conversation_id=self.session)
            result = await self._resumed(agent, result)
        except (AgentRunError, ExceptionGroup) as error:
            self.case.count("runs that failed as their model did")
            refused = any(sent.refused for sent in strict.sent)
            expected = refused or "retries" in str(error) or "deferred" in str(error)
            self._check(expected, "unexpected failures of runs", f"{error!r}")
            result = None
        self.case.count("runs")
        self._check_untouched(history, were, before, result)
        if result is not None:
            self.history = result.all_messages()
            parts = [part for message in self.history for part in message.parts if isinstance(part, UserPromptPart)]
            said = any(part.content == prompt for part in parts)
            self.case.check(said, "changed transcripts", f"{marker} is not in all_messages")
        await self._check_requests(strict, prompt)
        for number, (sent, view) in enumerate(zip(strict.sent, self.turn.views, strict=False)):
            where = f"{self.describe()}request {number + 1}, {view.status}: "
            await self._check_pins(where, sent, view)
            self.case.check("KESTREL" not in str(sent.messages), "words of another owner that are sent", where)
        if result is not None:
            self._recorded.add(self.session or "")
            await self._check_transcript()

    def _script(self, *, deferred: bool, kind: str) -> Script:
        steps = self.random.choice((0, 0, 1, 1, 2, 5)) if not self.drawn.sometimes(0.02) else 25
        fails, refuses = self.drawn.sometimes(0.03), self.drawn.sometimes(0.04)
        made = 0

        def next(messages: list[ModelMessage], info: AgentInfo) -> Any:
            nonlocal made
            made += 1
            if refuses and made == 1:
                return self._overflow()
            if fails and made > steps:
                return ModelHTTPError(500, "strict", body={"error": "down"})
            if made <= steps:
                names = ["look", *(["ask"] if deferred else [])]
                calls = [
                    ToolCallPart(self.random.choice(names), self.drawn.arguments(), self.drawn.call_id())
                    for _ in range(self.random.choice((1, 1, 1, 2, 3)))
                ]
                return ModelResponse(parts=[*([TextPart("Let me see.")] if self.drawn.sometimes(0.2) else []), *calls])
            if kind != "text" and info.output_tools and (kind == "report" or self.drawn.sometimes(0.5)):
                wrong = self.drawn.sometimes(0.1)
                args = {"title": 3} if wrong else {"title": self.drawn.fact(), "lines": [self.drawn.text(40)]}
                return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, args, self.drawn.call_id())])
            return self.drawn.answer()

        return next

    def _overflow(self) -> ModelHTTPError:
        """Refuse the newest request as too long, in the words of some provider."""
        body, window, count = self.random.choice(list(TOO_LONG.values()))
        counted = round(self.turn.sent[-1].tokens * self._usage) + self._framing
        self.turn.window = int(counted * self.random.uniform(0.5, 0.95)) if window else 0
        self.turn.ratio = counted / self.turn.sent[-1].tokens if count else 1.0
        rest = max(1, self.turn.window - OF_ANSWER)
        stated = {window: self.turn.window, count: counted, window and window - OF_ANSWER: rest}
        numbers = {text: str(number) for size, number in stated.items() if size for text in (f"{size:,}", str(size))}
        # at once, because a number that was put in may be one to replace
        told = re.sub(
            "|".join(map(re.escape, sorted(numbers, key=len, reverse=True))) or "$^",
            lambda match: numbers[match[0]],
            json.dumps(body),
        )
        return ModelHTTPError(self.random.choice((400, 413)), "strict", body=json.loads(told))

    async def _resumed(self, agent: Agent[Any, Any], result: Any) -> Any:
        """Answer deferred calls until the run ends, and return its result."""
        for _ in range(60):
            if not isinstance(result.output, DeferredToolRequests):
                return result
            self.case.count("deferred calls resumed")
            answers = DeferredToolResults(
                approvals={call.tool_call_id: False for call in result.output.approvals},
                calls={call.tool_call_id: self.drawn.text() for call in result.output.calls},
            )
            more = self.drawn.sometimes(0.3)
            self.turn.steered |= more
            self.turn.resumed.add(len(self.turn.sent))
            result = await agent.run(
                "And go on." if more else None,
                message_history=result.all_messages(),
                deferred_tool_results=answers,
                conversation_id=self.session,
            )
        return result

    def _check_untouched(
        self, history: Sequence[ModelMessage], were: Sequence[ModelMessage], before: Any, result: Any
    ) -> None:
        same = [*map(id, history)] == [*map(id, were)] and plain(history) == before
        self._check(same, "changed transcripts", lambda: f"what was given: {difference(before, plain(history))}")
        if result is not None:
            want = _settled(in_order(history))
            kept = _settled(in_order(result.all_messages()))[: len(want)]
            self._check(kept == want, "changed transcripts", lambda: f"all_messages: {difference(want, kept)}")

    async def _check_requests(self, strict: StrictModel, prompt: Any) -> None:
        turn, case = self.turn, self.case
        case.count("requests", len(turn.sent))
        counts = f"{len(turn.sent)} sent, {len(turn.views)} views"
        self._check(len(turn.sent) == len(turn.views), "requests without a view", counts)
        window = self._known_windows.get(self.name, self.budget / SHARE_OF_WINDOW)
        most, least = float(min(self.budget, window)), min(self.budget, SHARE_OF_WINDOW * window)
        ratio, refused = 1.0, False
        for number, (sent, view) in enumerate(zip(turn.sent, turn.views, strict=False)):
            where = f"{self.describe()}request {number + 1} of {len(turn.sent)}, {view.status}: "
            if (view.status == "compiled" and not refused) or number in turn.resumed:
                most = min(self.budget, window)  # a refusal lowers the limit for the rest of a cycle and of a run
            ratio = max(ratio, _ratio(view)) if view.status.startswith("cycle") else _ratio(view)
            self._check_view(where, strict, sent, view, prompt, most, least / ratio - sent.overhead)
            await self._check_values(where, sent, view, prompt if isinstance(prompt, str) else prompt[0])
            await self._check_rules(where, sent, view, least / ratio - sent.overhead)
            refused = sent.refused
            if refused:
                stated = turn.window if turn.window >= LEAST_WINDOW else 0
                most = min(most, stated or 0.7 * sent.tokens * max(turn.ratio, _ratio(view)))
                self._refused_above = min(self._refused_above, most)
                least = 0.4 * most if stated else most
                if stated:
                    window = self._known_windows[self.name] = stated
            await self._check_row(where, strict, sent, view)
        self._check_errors()

    def _check_view(
        self, where: str, strict: StrictModel, sent: Sent, view: View, prompt: Any, most: float, room: float
    ) -> None:
        case, floor = self.case, view.status == "floor_over_budget"
        case.count(f"views: {view.status.partition(' ')[0]}")
        ratio = view.record.ratio if view.record else 1.0
        over = sent.tokens * ratio > most + 1 and not floor
        case.check(
            not over,
            "requests over budget",
            lambda: f"{where}{sent.tokens} tokens of {most:.0f} at ratio {ratio:.3f}; {view.ledger}",
        )
        blamed = {
            (drop.reason, drop.tokens): positions_of(drop.what) for drop in view.drops if "over budget" in drop.reason
        }
        positions = {position for drop, of_drop in blamed.items() if drop not in self._blamed for position in of_drop}
        new = positions - self._blamed_positions  # a host may merge earlier requests, so that positions change
        self._blamed_positions.update(*blamed.values())
        self._blamed.update(blamed)
        # a budget holds by the larger of our count and the provider's, and the row has the provider's
        raw = view.record.tokens_raw / min(view.record.ratio, 1) if view.record else most + 1
        if any(rule["state"] in ("listed", "left out") for rule in view.ledger.get("rules", ())):
            raw += most / 4  # they are not in the raw history, and may take that much
        case.check(
            # what a provider counted for the views that it was asked about before is not on the row
            view.status != "compiled"
            or not new
            or raw > min(most, view.budget, self._refused_above)
            or bool(self.choices.get("counter")),
            "reasons that are not true",
            lambda: f"{where}{raw:.0f} tokens of {most:.0f}, {[*blamed][:2]}",
        )
        if self.choices.get("counter") and not floor and not view.error:
            counted = strict.counted(sent.tokens)
            text = f"{where}{counted} of {most:.0f}, ratio {ratio:.3f}"
            case.check(counted <= most + 1, "requests over budget by the provider's count", text)
        told = f"{sent.overhead} of {sent.tokens} tokens are instructions and schemas; {view.ledger}"
        open_parts = len(sent.messages[-1].parts)
        needed = room < FLOOR + 80 * open_parts or view.error
        case.check(not floor or needed, "floors that need not be", f"{where}{told}")
        broken = list(refusals(sent.messages, shared=SHARED))
        case.check(not broken, "broken pairs or shapes", lambda: f"{where}{broken[:3]}")
        text = prompt if isinstance(prompt, str) else prompt[0]
        tokens = prompt_tokens(strict.model, text, sent.parameters)
        short = tokens <= room / (5 if self.choices.get("counter") else 4)  # a view is cut before its ratio is known
        there = any(text == said if short else said.startswith(text.split(" ")[0]) for said in sent.prompts)
        case.check(
            there or floor or self.turn.steered or room < (LEAST_ROOM + PART_ROOM * open_parts if short else LONG_ROOM),
            "prompts that are gone",
            lambda: f"{where}{text[:60]!r} ({tokens} tokens) not in {[said[-60:] for said in sent.prompts]}; {told}",
        )
        numbers = [int(digits) for said in all_texts(sent.messages) for digits in re.findall(f"{LEFT}(\\d+)", said)]
        case.check(
            len(numbers) == self.turn.spends or (not numbers and (floor or room < FLOOR)),
            "prompts for one request that come again or not",
            lambda: f"{where}{numbers}; {told}",
        )
        case.check(numbers >= [self.turn.spent] or not numbers, "prompts for one request that come again or not", where)
        self.turn.spent = max([self.turn.spent, *numbers])
        case.check(view.status != "fallback" or view.error, "fallbacks without a reason", where)
        busy = self._writer.kind == "hangs" and "OutOfTimeError" in (view.error or "")  # a busy machine is no fault
        fine = self.hostile or busy or (self._writer.failed and "CompileError" in (view.error or ""))
        case.check(not view.status.startswith("fallback") or fine, "unexpected fallbacks", f"{where}{view.error}")
        case.check(EVALUATED not in str(sent.messages), "templates run on what was said", where)

    async def _check_values(self, where: str, sent: Sent, view: View, prompt: str) -> None:
        """Check that a replaced value is added only beside the newest; the middle of a long prompt replaces nothing.

        A kept message may say an old value, whole or shortened: it is known by its first word.
        """
        tip = view.record.raw_tip if view.record else None
        whole = [*self.history, *(load_messages(await self.store.chain(tip)) if tip else ())]
        raw = {text.partition(" ")[0] for text in all_texts(whole)}
        added = "\n".join(text for text in all_texts(sent.messages) if text.partition(" ")[0] not in raw)
        said = [pair for text in all_texts(self.history, UserPromptPart) for pair in LOCKERS.findall(prose(text))]
        newest, shown = dict([*said, *LOCKERS.findall(prose(prompt))]), str(sent.messages)
        for name, code in set(LOCKERS.findall(added)):
            new = newest.get(name, code)
            self.case.count("statements shown that were made again", code != new)
            self.case.check(new in shown, "replaced values that stand alone", f"{where}{name}: {code}, not {new}")

    async def _check_row(self, where: str, strict: StrictModel, sent: Sent, view: View) -> None:
        case, record = self.case, view.record
        errors = f"{where}{self.turn.errors[:1]}"
        case.check(record is not None and record.id is not None, "requests unrecorded", errors)
        if record is None or record.id is None or record.view_tip is None:
            return
        kept = load_messages(await self.store.chain(record.view_tip))
        row, viewed = in_order(kept), in_order(view.messages)
        self._check_same(f"{where}from the view: ", row, viewed)
        if row == viewed:
            again = rendered(strict.model, kept, sent.parameters)
            self._check_same(f"{where}from what the model got: ", again, in_order(sent.messages))
        told = current_instructions(kept)
        both = f"{where}{told!r}, sent were {sent.instructions!r}"
        case.check(told == sent.instructions, "rows with other instructions", both)

    def _check_same(self, where: str, kept: Sequence[Any], sent: Sequence[Any]) -> None:
        self.case.check(kept == sent, "rows that differ from what was sent", lambda: f"{where}{difference(kept, sent)}")

    def _check_errors(self) -> None:
        for error in self.turn.errors:
            name = type(error).__name__
            fine = (name == "CompileError" and self._writer.failed) or name == "BudgetError"
            fine = fine or (name == "CompileError" and "are unusable" in str(error))  # no writer here counts its tokens
            fine = fine or (name == "OutOfTimeError" and self._writer.kind == "hangs")  # a busy machine is no fault
            fine = fine or (name == "SettingsError" and "no price is known" in str(error))
            fine = fine or (self.hostile and name == "TemplateError")
            self._check(fine, "unexpected errors", f"{error!r} from {error.__cause__!r}")

    async def _check_transcript(self) -> None:
        """Check that the record returns the raw history."""
        if self.session is None:
            return
        kept = _settled(in_order(await self.ours.transcript(self.session)))
        want = _settled(in_order(self.history))
        if self.way is _stream:  # its last calls are answered after the run, before the next
            kept, want = _without_last_results(kept), _without_last_results(want)
        if self.windowed:
            kept = kept[-len(want) :]
        self._check(kept == want, "transcripts that differ", lambda: difference(kept, want))

    async def finish(self) -> None:
        """Verify the record, in some cases delete all of it, and close it."""
        await self.ours.aclose()
        defects = await self.store.verify()
        self.case.check(not defects, "defects that verify finds", lambda: str(defects[:2]))
        if self.session is not None and self.drawn.sometimes(0.3):
            await self._delete_all()
        await self.store.close()

    async def _delete_all(self) -> None:
        """Delete every conversation; the others stay whole, and the last one leaves nothing behind."""
        sessions = [session.session_id for session in await self.store.sessions()]
        self.random.shuffle(sessions)
        kept = {session: await self.store.transcript(session) for session in sessions}
        for session in sessions:
            await self.store.delete(session)
            del kept[session]
            self.case.count("conversations deleted")
            for other, bodies in kept.items():
                same = await self.store.transcript(other) == bodies
                self._check(same, "transcripts that differ", f"{other!r} after {session!r} was deleted")
        defects = await self.store.verify()
        self._check(not defects, "defects that verify finds", lambda: f"after deletion: {defects[:2]}")
        left = [row async for row in self.store.export()]
        self._check(not left, "rows that a deletion left", lambda: f"{len(left)}: {left[:2]}")


def _words(message: ModelMessage) -> tuple[str, ...]:
    """Return the user's or model's texts in a message, as recorded."""
    parts = [part for part in message.parts if part.part_kind in ("user-prompt", "text")]
    texts = (part.content for part in parts if isinstance(part.content, str))
    return tuple(HALVES.sub("\ufffd", text) for text in texts if text.strip())


def _ratio(view: View) -> float:
    """Return the ratio with which a view was cut; it is never below 1."""
    return max(1.0, view.record.ratio if view.record else 1.0)


def _settled(parts: Sequence[Any]) -> list[Any]:
    """Return parts without the text of a dynamic system prompt, because the host renders it again."""
    return [(role, {**part, "content": ""} if part.get("dynamic_ref") else part) for role, part in parts]


def _without_last_results(parts: list[Any]) -> list[Any]:
    while parts and parts[-1][1]["part_kind"] == "tool-return":
        parts = parts[:-1]
    return parts


def _begins_turn(message: ModelMessage) -> bool:
    return (
        message.kind == "request"
        and any(part.part_kind == "user-prompt" for part in message.parts)
        and not any(getattr(part, "tool_call_id", None) and part.part_kind != "user-prompt" for part in message.parts)
    )


async def _stream(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Any:
    async with agent.run_stream(prompt, **options) as stream:
        await stream.get_output()
        messages = stream.all_messages()
    return SimpleNamespace(output=None, all_messages=lambda: messages)


async def _steps(agent: Agent[Any, Any], prompt: Any, **options: Any) -> Any:
    async with agent.iter(prompt, **options) as steps:
        async for _ in steps:
            pass
    return steps.result


async def converse(case: Case, *, hostile: float = 0.02, counted: bool = False) -> None:
    """Run a random conversation; if `counted`, the provider counts the tokens."""
    case.count("conversations")
    talk = Conversation(case, hostile=hostile, counted=counted)
    await talk.begin()
    jumps = talk.drawn.sometimes(0.15)
    for _ in range(case.random.choice((1, 2, 4, 8, 16))):
        with clock(case.random.choice(JUMPS) if jumps else 0):
            await talk.go_on()
    await talk.finish()


@contextmanager
def clock(seconds: float) -> Iterator[None]:
    """Set the clock of this process forward or back."""
    real = time.time
    with patch.object(time, "time", lambda: real() + seconds):
        yield
