"""Run recorded conversations turn by turn through a real agent: does the request hold what its question needs?

Every message of a conversation is a turn of a running agent, whose model answers as recorded; the next turn continues
from the history that the host stored. Every labelled question is a turn of its own, at a boundary after its evidence
that is drawn with a fixed seed, and its answer stays in the history.

`held`: evidence in the last request of the question's turn, without the question itself, in per cent; `one-shot`: the
same for `compile_view` with the same history, question and budget; `unasked`: evidence in the last request of the
ordinary turn before the question. A budget covers all messages of a request, the question included. Tool sessions are
replayed request by request as recorded, and the questions ask for their facts (`benchmarks.facts`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks import facts, recall
from benchmarks.answering import LOCAL, served
from benchmarks.approaches import Approach
from benchmarks.data import GENERATED, LIVED, Data
from benchmarks.lives import SETTINGS, AgentLife, Ledger, Life, Lived, SessionLife, look_up, steps
from benchmarks.measures.evidence import summariser
from benchmarks.peers.baselines import price
from benchmarks.recall import Conversation, Question
from context_compiler import ContextCompiler, compile_view
from context_compiler.chat.local_model import served_model
from context_compiler.middleware.replay import LiveSession

BLAND = "The conversation went on."
OPENING = "Hello."
"""User prompt if a recorded conversation begins with the assistant."""
EACH = {"tools1": 1, "tools5": 5}
"""Turns per tool call, by scenario."""
LONGER = 1.5
"""Minimum length of a session that is run, as a multiple of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A user prompt and its answer."""

    prompt: ModelRequest
    answer: str
    when: Any
    question: Question | None = None
    script: tuple[ModelMessage, ...] = ()
    """Messages after the prompt, if more than an answer is recorded."""


def turns_of(conversation: Conversation, *, last: bool = False) -> tuple[list[Turn], list[Turn]]:
    """Return the turns of a conversation with its questions among them.

    Returns:
        Turns that are history from the beginning, and turns to run. The first list is empty, unless `last` is set: then
        it has all turns of the conversation, and the second has only the questions.
    """
    plain, turn_of = (_recorded if uses_tools(conversation) else _ordinary)(conversation)
    dice = random.Random(f"{recall.SEED} lived {conversation.name}")
    drawn: list[tuple[int, float, Question]] = []
    for question in conversation.questions:
        position = dice.randint(turn_of[question.after] + 1, len(plain))
        drawn.append((position, dice.random(), question))
    if last:
        return plain, [_asked(question, plain[-1]) for _, _, question in sorted(drawn, key=lambda draw: draw[1])]
    drawn.sort(key=lambda draw: draw[:2])
    turns: list[Turn] = []
    for position in range(len(plain) + 1):
        turns += [_asked(question, plain[position - 1]) for asked, _, question in drawn if asked == position]
        turns += plain[position : position + 1]
    return [], turns


def _asked(question: Question, before: Turn) -> Turn:
    prompt = recall.said("user", question.text, before.when)
    assert isinstance(prompt, ModelRequest)
    return Turn(prompt=prompt, answer=question.answer or "I see.", when=before.when, question=question)


def uses_tools(conversation: Conversation) -> bool:
    """True if tools are called in a conversation; it is then replayed as recorded."""
    return any(isinstance(part, ToolCallPart) for message in conversation.messages for part in message.parts)


def _recorded(conversation: Conversation) -> tuple[list[Turn], list[int]]:
    """Return the turns of a tool session, and the turn of each message.

    A turn begins with a prompt that neither answers nor interrupts a call.
    """
    groups = [list(group) for _, group in groupby(conversation.messages, lambda message: message.kind)]
    turns: list[list[ModelMessage]] = []
    turn_of: list[int] = []
    for number, group in enumerate(groups):
        before = groups[number - 1] if number else []
        parts: list[Any] = [part for message in [*before, *group] for part in message.parts]
        tools = any(part.part_kind in ("tool-call", "tool-return", "retry-prompt") for part in parts)
        message = group[0]
        if isinstance(message, ModelRequest):
            joined = [part for message in group if isinstance(message, ModelRequest) for part in message.parts]
            group = [replace(message, parts=joined)]
            if not turns or not tools:
                turns.append([])
        turns[-1] += group
        turn_of += [len(turns) - 1] * len(groups[number])
    return [_turn(messages) for messages in turns], turn_of


def _turn(messages: Sequence[ModelMessage]) -> Turn:
    prompt, *script = messages
    assert isinstance(prompt, ModelRequest)
    if not script or isinstance(script[-1], ModelRequest):
        script.append(ModelResponse(parts=[TextPart("I see.")]))
    return Turn(prompt=prompt, answer="", when=messages[-1].timestamp, script=tuple(script))


def _ordinary(conversation: Conversation) -> tuple[list[Turn], list[int]]:
    """Return the turns of a conversation, and the turn of each message; adjacent messages of one role are joined."""
    turns: list[Turn] = []
    turn_of: list[int] = []
    prompt: ModelRequest | None = None
    for requests, group in groupby(conversation.messages, lambda message: isinstance(message, ModelRequest)):
        messages = list(group)
        turn_of += [len(turns)] * len(messages)
        parts: list[Any] = [part for message in messages for part in message.parts]
        when = messages[-1].timestamp
        if requests:
            prompt = ModelRequest(parts=parts, timestamp=messages[0].timestamp)
            continue
        if prompt is None:
            prompt = recall.said("user", OPENING, messages[0].timestamp)  # pyright: ignore[reportAssignmentType, reportArgumentType]
        answer = "\n\n".join(part.content for part in parts)
        turns.append(Turn(prompt=prompt, answer=answer, when=when))  # pyright: ignore[reportArgumentType]
        prompt = None
    if prompt is not None:
        turns.append(Turn(prompt=prompt, answer="I see.", when=prompt.timestamp))
    return turns, turn_of


def shown(messages: Sequence[ModelMessage], without: str = "") -> str:
    """Return the text of a request, without the pending question."""
    return "\n".join(
        text for message in messages for part in message.parts for text in _said(part) if text and text != without
    )


def _said(part: Any) -> list[str]:
    if isinstance(part, ToolCallPart):
        return ["\n".join(map(str, part.args_as_dict().values()))]
    if isinstance(part, ToolReturnPart) and not isinstance(part.content, str):
        return [json.dumps(part.content, ensure_ascii=False, default=str)]
    return recall.texts_of(part)


async def live(
    conversation: Conversation, life: Life, budget: int, *, scenario: str = "plain", paired: bool = True
) -> Lived:
    """Run a conversation.

    Args:
        conversation: Conversation with the questions to ask.
        life: A new life; it cannot be used again.
        budget: Maximum tokens for a request's messages.
        scenario: plain, tools1, tools5, toolask, output or everyasks.
        paired: Also make a one-shot view at every question.
    """
    lived = Lived()
    ledger = Ledger(lived, budget)
    earlier, turns = turns_of(conversation, last=scenario == "everyasks")
    whole: list[ModelMessage] = [message for turn in earlier for message in (turn.prompt, *script_of(turn, "plain", 0))]
    tokens = price(whole)
    life.start(whole)
    ended: Sequence[ModelMessage] = whole[-2:-1]
    for number, turn in enumerate(turns, 1):
        question = turn.question
        if question is not None:
            lived.unasked.append(evidence(conversation, question, shown(ended)))
            if paired:
                view = (await compile_view([*whole, turn.prompt], "extractive", budget, system=None)).messages
                lived.one_shot.append(evidence(conversation, question, shown(view, question.text)))
                if scenario == "everyasks":
                    ledger.charge_view(view)
        requests = await life.turn(turn.prompt, script_of(turn, scenario, number))
        whole += [turn.prompt]
        tokens += price([turn.prompt])
        for sent, (responses, returned) in zip(requests, steps(life.added), strict=True):
            ledger.charge(sent, tokens)
            tokens += price([*responses, *returned])
            whole += [*responses, *returned]
        if question is None:
            ended = requests[-1]
        else:
            lived.held.append(evidence(conversation, question, shown(requests[-1], question.text)))
    return lived


def evidence(conversation: Conversation, question: Question, view: str) -> float:
    if question.kind in (facts.LINE, facts.FIELD):
        return facts.held(question, view)
    return recall.score(question, view, whole=conversation.whole)


def script_of(turn: Turn, scenario: str, number: int) -> list[ModelMessage]:
    """Return the messages after a prompt, beginning with a tool call if the scenario has one."""
    script: list[ModelMessage] = []
    calls = turn.question is not None if scenario == "toolask" else scenario in EACH and number % EACH[scenario] == 0
    if calls:
        query, name = {"query": f"entry {number}"}, f"look-{number}"
        call = ToolCallPart("look_up", query, tool_call_id=name)
        back = ToolReturnPart("look_up", look_up(**query), tool_call_id=name)
        script += [ModelResponse(parts=[call], timestamp=turn.when), ModelRequest(parts=[back])]
    if scenario == "output":
        part = ToolCallPart("final_result", {"text": turn.answer}, tool_call_id=f"final-{number}")
        return [*script, ModelResponse(parts=[part], timestamp=turn.when)]
    if turn.script:
        return [*script, *turn.script]
    return [*script, ModelResponse(parts=[TextPart(turn.answer)], timestamp=turn.when)]


def writer(name: str, recorded: Sequence[tuple[str, str]]) -> Model:
    """Build the model that summarises: `good` answers with the recorded summaries, `bland` and `none` say nothing."""
    if name in ("none", "bland"):
        return FunctionModel(lambda *_: ModelResponse([TextPart(BLAND)]))
    if name in LOCAL:
        return served_model(served(name), name)
    return summariser(recorded) if name == "good" else infer_model(name)


def life_of(conversation: Conversation, compiler: ContextCompiler, *, scenario: str = "plain") -> Life:
    """Build the life of a conversation with this package; a tool session is replayed request by request."""
    if uses_tools(conversation):
        return SessionLife(LiveSession([compiler], settings=SETTINGS))
    return AgentLife([compiler], scenario=scenario)


async def ours(
    conversation: Conversation, budget: int, data: Data, *, scenario: str, model: str, paired: bool, **settings: Any
) -> Lived:
    """Run a conversation with this package; `settings` are arguments of `ContextCompiler`."""
    inner, began, calls = writer(model, data.summaries(conversation.name)), list[str](), 0

    async def summarise(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal calls
        calls += 1
        return await inner.request(messages, info.model_settings, info.model_request_parameters)

    compiler = ContextCompiler(
        budget=budget,
        model="none" if model == "none" else FunctionModel(summarise),
        on_view=lambda view: began.append(view.status),
        **{"store": None, "system": None, **settings},
    )
    life = life_of(conversation, compiler, scenario=scenario)
    lived = await live(conversation, life, budget, scenario=scenario, paired=paired)
    fell = sum(status.startswith("fallback") for status in began)
    return replace(lived, compiles=began.count("compiled"), asked=calls, fallbacks=fell)


async def a_peer(conversation: Conversation, budget: int, data: Data, approach: Approach) -> Lived | str:
    """Run a conversation with another approach; return the reason if it cannot run one."""
    if approach.session is not None:
        session = approach.session(budget)
    elif approach.summarising is not None and (recorded := data.summaries(conversation.name)):
        session = LiveSession(approach.summarising(summariser(recorded), budget))
    else:
        return approach.dashes.get("session", "cannot live through a conversation")
    return await live(conversation, SessionLife(session), budget, paired=False)


def conversations(data: Data, name: str, budget: int) -> list[Conversation]:
    """Return the conversations of a set that are run at a budget."""
    every = data.conversations(name)[: 1 if name == GENERATED else None]
    long = [conversation for conversation in every if price(conversation.messages) > LONGER * budget]
    return long[: data.most] if name in LIVED else every
