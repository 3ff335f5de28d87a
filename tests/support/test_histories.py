"""The histories that property tests draw hold what real ones hold, and what is said of them is true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextContent,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from tests.support.anthropic_server import AnthropicServer
from tests.support.histories import (
    answer,
    answered_id,
    assert_pairs_whole,
    assistant,
    call,
    exchange,
    histories,
    long_history,
    snapshot,
    tokens_of,
    user,
)
from tests.support.openai_server import OpenAIServer
from tests.support.parts import PNG, retry_prompt

pytestmark = pytest.mark.slow  # these test the tools of the tests

History = list[ModelMessage]


def parts_of(history: History) -> list[Any]:
    return [part for message in history for part in message.parts]


def calls_of(history: History) -> list[str]:
    return [part.tool_call_id for part in parts_of(history) if part.part_kind == "tool-call"]


def answers_of(history: History) -> list[str]:
    return [ident for part in parts_of(history) if (ident := answered_id(part)) is not None]


def kind(name: str, **fields: Any) -> Callable[[History], bool]:
    """Whether some part is of that kind, with those fields."""
    return lambda history: any(
        part.part_kind == name and all(getattr(part, field, None) == value for field, value in fields.items())
        for part in parts_of(history)
    )


def prompted_with(what: type) -> Callable[[History], bool]:
    def found(history: History) -> bool:
        prompts = (part.content for part in parts_of(history) if part.part_kind == "user-prompt")
        return any(isinstance(piece, what) for content in prompts if not isinstance(content, str) for piece in content)

    return found


def said(text: str) -> Callable[[History], bool]:
    return lambda history: text in snapshot(history)


def returned(what: type) -> Callable[[History], bool]:
    return lambda history: any(
        isinstance(part.content, what) for part in parts_of(history) if part.part_kind == "tool-return"
    )


OCCURS: dict[str, Callable[[History], bool]] = {
    "system prompt": kind("system-prompt"),
    "text with metadata": prompted_with(TextContent),
    "image by address": prompted_with(ImageUrl),
    "binary file": prompted_with(BinaryContent),
    "cache point": prompted_with(CachePoint),
    "signed thinking": kind("thinking", signature="c2ln"),
    "structured result": returned(dict),
    "binary result": returned(BinaryContent),
    "retried": kind("tool-return", outcome="retried"),
    "failed": kind("tool-return", outcome="failed"),
    "old retry": kind("retry-prompt"),
    "feedback": kind("retry-feedback"),
    "native call": kind("builtin-tool-call"),
    "file from the model": kind("file"),
    "compaction": kind("compaction"),
    "baseline": kind("instruction-baseline"),
    "delta": kind("instruction-delta"),
    "availability": kind("tool-availability-delta"),
    "capability load": kind("tool-return", tool_kind="capability-load"),
    "tool search": kind("tool-return", tool_kind="tool-search"),
    "the future": kind("from-the-future"),
    "run ids": lambda history: all(message.run_id for message in history),
    "no run ids": lambda history: not any(message.run_id for message in history),
    "some run ids": lambda history: len({bool(message.run_id) for message in history}) == 2,
    "parallel calls": lambda history: any(len(calls_of([message])) > 1 for message in history),
    "unanswered call": lambda history: bool(set(calls_of(history)) - set(answers_of(history))),
    "orphan": lambda history: bool(set(answers_of(history)) - set(calls_of(history))),
    "repeated return": lambda history: any(len(set(ids := answers_of([one]))) < len(ids) for one in history),
    "answered turns later": lambda history: answered_turns_later(history),
    "id used again": lambda history: len(set(ids := calls_of(history))) < len(ids),
    "template text": said("{{ x }}"),
    "a fence": said("=== END RECENT CONVERSATION ==="),
    "our own heading": said("Context summary (compiled):"),
    "huge": lambda history: tokens_of(history) > 4_000,
    "ends with results": lambda history: bool(answers_of(history[-1:])),
    "ends with a prompt": lambda history: not answers_of(history[-1:]),
}


def answered_turns_later(history: History) -> bool:
    asked = {ident: at for at, message in enumerate(history) for ident in calls_of([message])}
    replies = [(ident, at) for at, message in enumerate(history) for ident in answers_of([message])]
    return any(at - asked.get(ident, at) > 2 for ident, at in replies)


def test_histories_contain_every_kind_of_part() -> None:
    missing = dict(OCCURS)

    class Complete(Exception):
        """No kind is missing any more."""

    @settings(max_examples=2_000, phases=[Phase.generate], derandomize=True, database=None)
    @given(histories())
    def look(history: History) -> None:
        for what in [what for what, occurs in missing.items() if occurs(history)]:
            del missing[what]
        if not missing:
            raise Complete

    with suppress(Complete):
        look()
    assert not missing


@given(histories())
def test_every_history_begins_with_a_prompt_and_ends_with_a_request(history: History) -> None:
    assert history[0].kind == history[-1].kind == "request"
    assert any(isinstance(part, UserPromptPart) for part in parts_of(history))
    assert all(message.parts for message in history)


@given(histories(broken=False))
def test_unbroken_histories_are_whole(history: History) -> None:
    assert_pairs_whole(history)


@given(st.data(), st.sampled_from(["prompt", "results"]))
def test_the_end_can_be_chosen(data: st.DataObject, ends: Any) -> None:
    history = data.draw(histories(ends=ends))
    called = [ident for message in history[-2:-1] for ident in calls_of([message])]
    assert (ends == "results") == bool(called and set(called) <= set(answers_of(history[-1:])))


@given(histories(future=False))
def test_the_host_accepts_any_history(history: History) -> None:
    agent = Agent(FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(content="fine")])))
    assert asyncio.run(agent.run(message_history=history)).output == "fine"


@given(histories(wire=True))
def test_histories_for_the_wire_survive_storage(history: History) -> None:
    stored = ModelMessagesTypeAdapter.dump_json(history)
    assert len(ModelMessagesTypeAdapter.validate_json(stored)) == len(history)


@settings(max_examples=10)
@given(history=histories(wire=True, broken=False))
@pytest.mark.parametrize("provider", [OpenAIServer, AnthropicServer])
def test_providers_accept_unbroken_histories_as_they_are(
    provider: type[OpenAIServer] | type[AnthropicServer], history: History
) -> None:
    with provider("fine") as server:
        outcome = asyncio.run(Agent(server.model()).run(message_history=history))
    assert outcome.output == "fine", server.refusals


BROKEN: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "no messages"),
    "begins with a response": ([assistant("hi"), user("hi")], "begins with a response"),
    "ends with a response": ([user("hi"), assistant("hi")], "ends with a response"),
    "an empty message": ([user("hi"), assistant(), user("hi")], "without parts"),
    "unanswered": ([user("hi"), assistant(call("look", "a")), user("go")], r"called \['a'\], answered \[\]"),
    "half answered": ([user("hi"), assistant(call("look", "a"), call("look", "b")), user(answer("a"))], "called"),
    "orphan": ([user("hi", answer("a"))], r"called \[\], answered \['a'\]"),
    "twice": ([user("hi"), assistant(call("look", "a")), user(answer("a"), answer("a"))], "answered"),
    "twice by a retry": (
        [user("hi"), assistant(call("look", "a")), user(answer("a"), retry_prompt("no", tool="look", ident="a"))],
        "answered",
    ),
    "late": ([user("hi"), assistant(call("look", "a")), user("go"), assistant("ok"), user(answer("a"))], "called"),
    "one id for two calls": (
        [user("hi"), assistant(call("look", "a"), call("look", "a")), user(answer("a"), answer("a"))],
        "one id for several calls",
    ),
    "native return alone": (
        [user("hi"), assistant(NativeToolReturnPart(tool_name="web", content=[], tool_call_id="n")), user("go")],
        "native return of n without its call",
    ),
    "native call alone": (
        [user("hi"), assistant(NativeToolCallPart(tool_name="web", tool_call_id="n")), user("go")],
        "native calls without a return",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_pair_is_detected(case: str) -> None:
    history, reason = BROKEN[case]
    with pytest.raises(AssertionError, match=reason):
        assert_pairs_whole(history)


def test_whole_pairs_pass_in_any_order_and_over_two_requests() -> None:
    history = [user("go"), assistant(call("look", "a"), call("look", "b")), user(answer("b")), user(answer("a"), "and")]
    assert_pairs_whole([*history, *exchange(1, calls=3), assistant("again"), *exchange(1)])


CHANGES: dict[str, Callable[[Any], object]] = {
    "a text": lambda history: setattr(history[1].parts[0], "content", "changed"),
    "an argument": lambda history: history[1].parts[1].args.update(more=1),
    "a stamp": lambda history: setattr(history[0], "run_id", "other"),
    "a part added": lambda history: history[1].parts.append(TextPart(content="more")),
    "a message gone": lambda history: history.pop(),
    "a file": lambda history: setattr(history[0].parts[0].content[1], "data", b"other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_shows_every_change(change: str) -> None:
    called = assistant("yes", call("look", "a", path="b"))
    history: History = [user("look at", deepcopy(PNG)), called, user(answer("a"))]
    before = snapshot(history)
    assert snapshot(deepcopy(history)) == before
    CHANGES[change](history)
    assert snapshot(history) != before


def test_a_long_history_is_always_the_same_and_whole() -> None:
    history = long_history(20, tools_per_turn=3, words=25)
    assert len(history) == 20 * (2 + 2 * 3) + 1
    assert snapshot(history) == snapshot(long_history(20, tools_per_turn=3, words=25))
    assert len({snapshot([message]) for message in history}) == len(history)
    assert_pairs_whole(history)


def test_more_words_are_more_tokens_and_files_are_none() -> None:
    short, long = tokens_of(long_history(5, words=20)), tokens_of(long_history(5, words=40))
    assert 1.5 * short < long < 2 * short
    assert tokens_of([user("look", BinaryContent(bytes(100_000), media_type="image/png"))]) < 40
    assert tokens_of([assistant(call("look", "a", path="src/main.py"))]) >= 5
