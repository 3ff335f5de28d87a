"""A history is read once: what is known by object or by content is not read again, and nothing of it is lost."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pydantic_ai.messages
import pytest
from hypothesis import given
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelSettingsDeltaPart,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.messages import history as module
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.history import Reader, Reading, searchable
from context_compiler.messages.items import Kind
from context_compiler.messages.turns import superseded_parts
from context_compiler.tokens import TokenCounter
from tests.support.builders import answer, assistant, call, exchange, snapshot, user
from tests.support.histories import histories, long_history
from tests.support.parts import retry_prompt

SpeechPart: Any = getattr(pydantic_ai.messages, "SpeechPart", None)


class Counting(TokenCounter):
    """A counter that says how many texts it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def text(self, text: str) -> int:
        self.asked += 1
        return super().text(text)


def reader() -> tuple[Reader, Counting]:
    counter = Counting()
    return Reader(counter), counter


def test_an_empty_history_has_no_tip_and_costs_nothing() -> None:
    history = reader()[0].read([])
    assert (len(history), history.tip, history.tokens, list(history.items())) == (0, None, 0, [])


def test_a_history_knows_its_messages_prices_and_names_by_position() -> None:
    messages = [user("hello there"), assistant("hi"), user("bye")]
    history = reader()[0].read(messages)
    assert list(history.messages) == messages
    assert history.tokens == sum(reading.tokens for reading in history.readings) == history.sums[-1]
    assert history.sums[1] == history.readings[0].tokens
    assert history.tip == history.ids[2]
    assert history.text(1) == "hi"
    assert history.body(1) == message_body(messages[1])
    assert [(position, item.text) for position, item in history.items(1)] == [(1, "hi"), (2, "bye")]
    assert [position for position, _ in history.items(0, 2)] == [0, 1]


def test_a_reading_lists_calls_answers_and_prompts() -> None:
    messages = [user("go", system="be kind"), *exchange(1, calls=2), user("and?", run_id="r")]
    asked, called, answered, prompted = reader()[0].read(messages).readings
    assert (asked.request, asked.has_user_part, asked.exchanges) == (True, True, False)
    assert asked.stays == asked.items[0].tokens
    assert (called.request, called.calls, called.exchanges) == (False, ("call_1", "call_1_1"), True)
    assert (answered.answers, answered.has_user_part, answered.exchanges) == (("call_1", "call_1_1"), False, True)
    assert (prompted.run_id, prompted.calls, prompted.answers) == ("r", (), ())


def test_the_same_objects_are_not_read_again() -> None:
    messages = long_history(3)
    read, counter = reader()
    first = read.read(messages)
    counter.asked = 0
    again = read.read([*messages])
    assert counter.asked == 0
    assert (again.ids, again.readings) == (first.ids, first.readings)


def test_equal_messages_are_known_by_content_in_another_object() -> None:
    messages = long_history(3)
    read, counter = reader()
    first = read.read(messages)
    counter.asked = 0
    assert read.read(deepcopy(messages)).ids == first.ids
    assert counter.asked == 0


def test_only_new_messages_are_read_when_a_run_continues() -> None:
    messages = long_history(4)
    read, counter = reader()
    before = read.read(messages)
    counter.asked = 0
    after = read.read(
        [*messages, assistant("a new answer of some length, longer than is read every time")], last=before
    )
    assert counter.asked == 1
    assert after.ids[:-1] == before.ids
    assert after.sums[: len(before.sums)] == before.sums
    assert after.tokens == before.tokens + after.readings[-1].tokens


def test_a_message_edited_in_place_is_read_again() -> None:
    message = user("first")
    read, _ = reader()
    before = read.read([message, assistant("a"), user("b")])
    message.parts = [UserPromptPart(content="second")]
    assert read.read([message, *before.messages[1:]]).text(0) == "second"
    part: Any = message.parts[0]
    part.content = "third"
    assert read.one(message).items[0].text == "third"


def longer(count: int = 60) -> list[Any]:
    """A history with every kind of content that may be edited in place, longer than is compared one by one."""
    made: list[Any] = []
    for number in range(count // 4):
        made += [user(f"question {number}"), *exchange(number), assistant(f"answer {number}")]
    made[40:40] = [user("a prompt that nobody answered", system="be kind"), user("the next")]
    made[20].instructions = "be kind"
    made[21].parts[0].args = {"paths": ["a.py"], "deep": {"depth": 1}}
    made[22].parts[0].content = {"lines": [1, 2, 3]}
    return made


EDITS: dict[str, Callable[[list[Any]], object]] = {
    "a text": lambda made: setattr(made[8].parts[0], "content", "another question"),
    "an item deep in arguments": lambda made: made[21].parts[0].args["deep"].update(depth=2),
    "an item of a list in arguments": lambda made: made[21].parts[0].args["paths"].append("b.py"),
    "arguments": lambda made: setattr(made[25].parts[0], "args", {"path": "c.py"}),
    "a result": lambda made: made[22].parts[0].content["lines"].clear(),
    "an outcome": lambda made: setattr(made[26].parts[0], "outcome", "failed"),
    "instructions": lambda made: setattr(made[20], "instructions", "be short"),
    "new instructions": lambda made: setattr(made[24], "instructions", "be short"),
    "a part more": lambda made: made[3].parts.append(TextPart("and one more thing")),
    "a part less": lambda made: made[27].parts.clear(),
    "a part moved to the next message": lambda made: made[41].parts.insert(0, made[40].parts.pop()),
    "a part for another": lambda made: made[7].parts.__setitem__(0, TextPart("another answer")),
    "a list of parts": lambda made: setattr(made[11], "parts", [TextPart("a third answer")]),
}


def test_an_edit_of_speech_is_found_by_the_next_run() -> None:
    if SpeechPart is None:
        pytest.skip("this host has no speech")
    spoken: Any = SpeechPart(speaker="assistant", transcript="alpha")  # its content is computed from the transcript
    made = longer()
    made[21] = ModelResponse(parts=[spoken])
    read, _ = reader()
    before = read.read(made)
    spoken.transcript = "beta"
    after = read.read(made)
    assert after.exact[21] != before.exact[21]
    assert after.exact == reader()[0].read(deepcopy(made)).exact


@pytest.mark.parametrize("more", [0, 1, 30])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_place_is_found_by_the_next_run(edit: str, more: int) -> None:
    made = longer()
    read, _ = reader()
    before = read.read(made)
    read.read([*made, user("and?")], last=before)
    EDITS[edit](made)
    made += [user(f"and {number}?") for number in range(more)]
    after, fresh = read.read(made), reader()[0].read(deepcopy(made))
    assert after.exact[: len(before)] != before.exact
    assert (after.ids, after.exact, after.sums) == (fresh.ids, fresh.exact, fresh.sums)
    again = read.read([*made])
    assert (again.exact, again.readings) == (after.exact, after.readings)


def test_an_edit_between_two_requests_of_a_run_is_found_by_the_next_run() -> None:
    made = longer()
    read, _ = reader()
    last = read.read(made)
    EDITS["a text"](made)
    kept = read.read([*made, user("and?")], last=last)
    assert kept.exact[:-1] == last.exact
    assert read.read([*made, user("and?")]).exact == reader()[0].read(deepcopy([*made, user("and?")])).exact


class Looking(Reader):
    """A reader that says how many messages it has looked at one by one."""

    looked = 0

    def one(self, message: ModelMessage) -> Reading:
        self.looked += 1
        return super().one(message)


@pytest.mark.parametrize("runs", [1, 3])
def test_the_next_run_looks_only_at_new_messages_one_by_one(runs: int) -> None:
    made, read = longer(), Looking(TokenCounter())
    for run in range(runs):
        first = read.read([*made, user(f"prompt {run}")])
        read.read([*first.messages, assistant(f"answer {run}")], last=first)
        made = [*first.messages, assistant(f"last answer {run}")]
    read.looked = 0
    after = read.read([*made, user("and?")])
    assert read.looked <= 2
    assert after.exact == reader()[0].read(after.messages).exact


def test_the_last_messages_of_a_request_may_have_been_edited_by_the_host() -> None:
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    read, _ = reader()
    last = read.read(messages)
    edited = [*messages[:3], replace(messages[3], parts=assistant("e").parts)]
    assert read.read(edited, last=last).text(3) == "e"


def test_a_branch_shares_names_up_to_where_it_parts() -> None:
    messages = long_history(2)
    fork = [*messages[:5], user("something else")]
    history, other = reader()[0].read(messages), reader()[0].read(fork)
    assert history.ids[:5] == other.ids[:5]
    assert history.ids[5] != other.ids[5]


def test_many_readers_and_orders_give_the_same_names() -> None:
    messages = long_history(4)
    read, _ = reader()
    read.read(messages[:7])
    read.read([user("something else"), *messages[:3]])
    middle = read.read(messages[:9])
    assert read.read(messages, last=middle).ids == reader()[0].read(messages).ids
    assert read.read(messages, last=middle).sums == reader()[0].read(messages).sums


def test_deleted_messages_are_forgotten() -> None:
    read, _ = reader()
    message = user("short lived")
    read.one(message)
    seen = read._seen  # pyright: ignore[reportPrivateUsage]
    assert id(message) in seen
    del message
    gc.collect()
    assert not seen


def test_contents_are_remembered_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_CHARACTERS", 4 * module.ENTRY)
    read, counter = reader()
    for number in range(5):
        read.one(user(f"message {number} that is long enough to be remembered"))
    counter.asked = 0
    read.one(user("message 4 that is long enough to be remembered"))
    assert counter.asked == 0
    read.one(user("message 0 that is long enough to be remembered"))
    assert counter.asked == 1


@given(histories(future=False))
def test_bodies_restore_a_history_without_loss(history: list[ModelMessage]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_messages([message_body(message) for message in history])
        again = load_messages([message_body(message) for message in loaded])
    assert snapshot(again) == snapshot(loaded)
    assert [message.kind for message in loaded] == [message.kind for message in history]


@given(histories(surrogates=True))
def test_every_history_has_a_body_for_every_message(history: list[ModelMessage]) -> None:
    assert all(message_body(message).decode() for message in history)


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    (loaded,) = load_messages([message_body(user("half \ud83d", BinaryContent(b"\x00\xff", media_type="image/png")))])
    part: Any = loaded.parts[0]
    assert part.content[0] == "half \ufffd"
    assert part.content[1].data == b"\x00\xff"


def test_a_message_is_searchable_by_its_text_calls_and_results() -> None:
    read, _ = reader()
    assert searchable(read.one(user("what is it?", system="secret"))) == "what is it?"
    assert searchable(read.one(assistant(call("look", "c", path="a.py")))) == 'look {"path":"a.py"}'
    assert searchable(read.one(user(answer("c", "42 lines")))) == "look 42 lines"


def test_repeated_system_text_need_not_be_carried() -> None:
    messages = [
        user("a", system="be kind"),
        user("b", system="be brief"),
        ModelRequest(parts=[SystemPromptPart(content="be kind"), SystemPromptPart(content="be brief")]),
        user("c", system="be bold"),
    ]
    history = reader()[0].read(messages)
    assert superseded_parts(history) == {2: frozenset({0, 1})}
    assert [item.kind for _, item in history.items(2, 3)] == [Kind.SYSTEM, Kind.SYSTEM]


LOAD, LOADED = (
    LoadCapabilityCallPart(args={"id": "maps"}, tool_call_id="c"),
    LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="c"),
)


@pytest.mark.parametrize(
    ("asked", "told", "alone"),
    [
        (LOAD, LOADED, {}),
        (LOAD, replace(LOADED, outcome="failed"), {1: {0}, 2: {0}}),
        (LOAD, answer("c", "[shortened]", tool="load_capability"), {1: {0}}),
        (LOAD, retry_prompt("no such capability", tool="load_capability", ident="c"), {1: {0}}),
        (call("load_capability", "c", id="maps"), LOADED, {2: {0}}),
    ],
)
def test_a_load_is_carried_only_with_an_answer_that_loads(asked: Any, told: Any, alone: Any) -> None:
    history = reader()[0].read([user("a"), assistant(asked), ModelRequest(parts=[told]), assistant("b"), user("c")])
    assert superseded_parts(history) == alone


def settings_and_a_compaction(compacted: ModelMessage) -> list[ModelMessage]:
    """The host's note of a setting, then a compaction, then the same note again."""
    noted = [ModelSettingsDeltaPart(settings={"thinking": "low"}), UserPromptPart(content="go on")]
    return [ModelRequest(parts=noted), assistant("yes"), compacted, assistant("done"), ModelRequest(parts=noted)]


@pytest.mark.parametrize(
    "compacted", [ModelRequest(parts=[CompactionPart(content="so far")]), ModelResponse(parts=[CompactionPart()])]
)
def test_notes_of_the_host_before_a_compaction_need_not_be_carried(compacted: ModelMessage) -> None:
    history = reader()[0].read(settings_and_a_compaction(compacted))
    assert superseded_parts(history) == {0: frozenset({0})}


def test_notes_of_the_host_since_the_turn_of_a_compaction_are_carried() -> None:
    noted, _, *rest = settings_and_a_compaction(ModelRequest(parts=[CompactionPart(content="so far")]))
    assert superseded_parts(reader()[0].read([noted, *rest])) == {}


def test_a_number_too_long_for_json_is_kept_as_text() -> None:
    digits = "9" * 5_000
    said = {"product": 1 - 10**5_000, "small": 7, "said": f'he wrote "{digits}"', digits: digits}
    message = user(answer("c", said))
    (restored,) = load_messages([message_body(message)])
    assert restored.parts[0] == answer("c", {**said, "product": f"-{digits}"})
    assert len(Reader(TokenCounter()).read([message]).ids) == 1


@pytest.mark.parametrize("depth", [60, 300])
def test_a_message_is_refused_at_once_if_it_is_nested_deeper_than_can_be_written(depth: int) -> None:
    """Old versions of Pydantic would try for hours."""
    content: object = "leaf"
    for _ in range(depth):
        content = {"inner": [content]}
    message = ModelRequest(parts=[ToolReturnPart(tool_name="look", content=content, tool_call_id="c")])
    if depth == 60:
        assert load_messages([message_body(message)]) == [message]
        return
    with pytest.raises(ValueError, match="nested more than 251 levels"):
        message_body(message)
