"""A shape makes a message smaller without touching it, and never leaves half of what belongs together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    Citation,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    NativeToolReturnPart,
    SpeechPart,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    UserPromptPart,
    WebCitationSource,
)

from context_compiler.messages.history import Reader
from context_compiler.messages.items import Kind, read_items
from context_compiler.messages.shapes import WHOLE, Shape, apply_shape, largest, price
from tests.messages.cutting import LONG, cost, cut, part
from tests.support.builders import answer, assistant, call, prose, snapshot, user
from tests.support.histories import histories
from tests.support.parts import PNG, native_pair
from tests.support.views import counter

# --- any message, any shape

SHAPES = st.builds(
    Shape,
    skip=st.frozensets(st.integers(0, 3), max_size=2),
    without=st.sampled_from([frozenset(), frozenset({Kind.THINKING}), frozenset({Kind.OTHER, Kind.COMPACTION})]),
    limit=st.sampled_from([None, 6, 16, 40, 200]),
    system=st.sampled_from([None, 6, 64]),
    skeleton=st.booleans(),
    bare=st.booleans(),
    tools=st.sampled_from(["paired", "drop", "render"]),
)


@given(histories(), SHAPES)
def test_a_shape_does_not_change_the_message_and_is_priced_by_the_result(
    history: list[ModelMessage], shape: Shape
) -> None:
    before = snapshot(history)
    reader = Reader(counter)
    for message in history:
        reading = reader.one(message)
        left = apply_shape(message, reading, shape, counter)
        tokens = price(message, reading, shape, counter)
        assert tokens == (sum(item.tokens for item in read_items(left, counter)) if left else 0)
        assert left is None or left.parts
        assert left is None or type(left) is type(message)
    assert snapshot(history) == before


@given(histories())
def test_a_whole_message_is_the_same_object(history: list[ModelMessage]) -> None:
    reader = Reader(counter)
    assert all(apply_shape(message, reader.one(message), WHOLE, counter) is message for message in history)


@given(histories(), st.sampled_from([6, 12, 40, 200]), st.booleans())
def test_a_clamped_exchange_keeps_its_ids(history: list[ModelMessage], limit: int, skeleton: bool) -> None:
    reader = Reader(counter)
    for message in history:
        reading = reader.one(message)
        left = apply_shape(message, reading, Shape(limit=limit, skeleton=skeleton), counter)
        kept = reader.one(left) if left else None
        assert (kept.calls if kept else ()) == reading.calls
        assert (kept.answers if kept else ()) == reading.answers
        assert (kept.run_id if kept else None) == reading.run_id


@given(histories(), st.sampled_from([6, 16, 40, 200]))
def test_only_parts_that_no_limit_can_shorten_exceed_the_limit(history: list[ModelMessage], limit: int) -> None:
    reader = Reader(counter)
    for message in history:
        left = apply_shape(message, reader.one(message), Shape(limit=limit), counter)
        for item in reader.one(left).items if left else ():
            name = counter.text(item.tool or "")
            spare = {Kind.CALL: 6 + name, Kind.RETURN: name}.get(item.kind, 0) + (16 if item.failed else 0)
            free = (
                item.stays
                or item.native
                or item.kind in (Kind.THINKING, Kind.OTHER, Kind.COMPACTION)
                or item.text == ""
            )
            assert free or item.tokens <= limit + spare, item


# --- what stays for others


def test_no_limit_changes_parts_that_the_host_reads_back() -> None:
    loaded = LoadCapabilityReturnPart(content={"message": LONG}, tool_call_id="c")
    delta = ToolAvailabilityDeltaPart(tools_added=["look"])
    message = ModelRequest(parts=[loaded, delta])
    left = cut(message, limit=6, system=6, skeleton=True, tools="drop", without=frozenset({Kind.CONTROL, Kind.RETURN}))
    assert left.parts == [loaded, delta]


def test_system_text_has_a_limit_of_its_own() -> None:
    message = user("hi", system=LONG)
    assert cut(message, limit=50).parts[0] is message.parts[0]
    clamped = cut(message, system=50)
    assert cost(clamped.parts[0]) <= 50
    assert clamped.parts[1] is message.parts[1]


def test_a_bare_message_keeps_only_parts_that_must_stay() -> None:
    message = user("hi", answer("c"), ToolAvailabilityDeltaPart(tools_added=["look"]), system="be kind")
    assert [one.part_kind for one in cut(message, bare=True).parts] == ["system-prompt", "tool-availability-delta"]
    assert cut(user("hi"), bare=True) is None


def test_skipped_parts_are_gone() -> None:
    assert part(assistant("a", call("look", "c")), skip=frozenset({1})).content == "a"


# --- skeletons


def test_a_skeleton_keeps_name_key_arguments_and_outcome() -> None:
    asked = part(assistant(call("write", "c", path="src/a.py", body=LONG)), skeleton=True)
    assert (asked.tool_name, asked.tool_call_id, asked.args["path"]) == ("write", "c", "src/a.py")
    assert counter.text(asked.args_as_json_str()) <= 96
    told = part(user(answer("c", f"Error: no such file\n{LONG}", tool="write")), skeleton=True)
    assert told.content.startswith("Error: no such file")
    assert "outcome only" in told.content


def test_short_exchanges_are_not_changed_by_a_skeleton() -> None:
    asked, told = assistant("I look.", call("look", "c", path="a.py")), user(answer("c", "42 lines"))
    assert cut(asked, skeleton=True).parts == asked.parts
    assert cut(told, skeleton=True).parts == told.parts


def test_text_around_a_call_is_cut_in_a_skeleton() -> None:
    said, spoken = TextPart(content=LONG), SpeechPart(speaker="assistant", transcript=LONG)
    for left in cut(assistant(said, spoken, call("look", "c")), skeleton=True).parts[:2]:
        assert cost(left) <= 64


def test_files_returned_with_a_result_are_named_in_a_skeleton() -> None:
    left = cut(user(answer("c", "See file 1."), "This is file 1:", PNG), skeleton=True)
    assert left.parts[1].content == ["This is file 1:", "[image/png 1 kB]"]


def test_a_skeleton_can_be_cut_further() -> None:
    assert cost(part(user(answer("c", LONG)), skeleton=True, limit=12)) <= 12


# --- ids, by which a provider uses its stored copy instead of what is sent


def test_a_changed_part_has_neither_its_id_nor_its_citations() -> None:
    details = {"citations": [{"url": "https://example.com"}], "phase": "final_answer"}
    cited = [Citation([WebCitationSource("https://example.com")])]
    said = TextPart(LONG, id="msg_1", provider_name="openai", provider_details=details, citations=cited)
    asked = replace(call("write", "c", body=LONG), id="fc_1", provider_name="openai")
    for shape in ({"limit": 60}, {"skeleton": True}):
        text, wrote = cut(assistant(said, asked), **shape).parts
        assert (text.id, text.citations, text.provider_details) == (None, None, {"phase": "final_answer"})
        assert (wrote.id, wrote.tool_call_id) == (None, "c")


def test_parts_of_one_item_keep_its_id_only_together() -> None:
    short = TextPart("in short", id="msg_1", provider_name="openai")
    other = TextPart("and more", id="msg_2", provider_name="openai")
    message = assistant(TextPart(LONG, id="msg_1", provider_name="openai"), short, other)
    assert [one.id for one in cut(message, limit=60).parts] == [None, None, "msg_2"]
    assert [one.id for one in cut(message, skip=frozenset({0})).parts] == [None, "msg_2"]


def test_thinking_stays_with_the_item_that_it_led_to() -> None:
    thought = ThinkingPart("hm", id="rs_1", signature="s", provider_name="openai")
    asked = replace(call("write", "c", body=LONG), id="fc_1", provider_name="openai")
    short = TextPart("I write.", id="msg_1", provider_name="openai")
    assert [one.part_kind for one in cut(assistant(thought, asked), limit=60).parts] == ["tool-call"]
    assert [one.id for one in cut(assistant(thought, short, asked), limit=60).parts] == ["rs_1", "msg_1", None]


def test_thinking_that_led_to_a_part_without_an_id_stays() -> None:
    """A provider that names no items may require thinking before a call."""
    signed = ThinkingPart("hm", signature="s", provider_name="anthropic")
    message = assistant(signed, call("write", "c", body=LONG))
    assert [one.part_kind for one in cut(message, limit=60).parts] == ["thinking", "tool-call"]


# --- what the provider ran itself


def native(size: int) -> ModelMessage:
    return assistant(*native_pair("n", prose(1, size)), "so")


@pytest.mark.parametrize("shape", [{"limit": 60}, {"skeleton": True}, {"limit": 6, "skeleton": True}])
def test_a_long_exchange_of_the_provider_becomes_text_on_both_sides(shape: dict[str, Any]) -> None:
    left = cut(native(300), **shape)
    assert [one.part_kind for one in left.parts] == ["text", "text", "text"]
    assert all(cost(one) <= shape.get("limit", 60) for one in left.parts)


def test_the_text_of_a_provider_exchange_shows_query_and_result() -> None:
    asked, told, _ = cut(native(300), limit=60).parts
    assert asked.content.startswith("[tool] web_search(query=")
    assert told.content.startswith("[tool] web_search: [1 entries]")


def test_a_short_exchange_of_the_provider_stays_as_it_is() -> None:
    message = native(3)
    assert cut(message, limit=200, skeleton=True).parts == message.parts


def test_one_half_of_a_provider_exchange_is_never_cut_alone() -> None:
    _, told = native_pair("n", LONG)
    assert isinstance(part(assistant(told), limit=20, skeleton=True), NativeToolReturnPart)


# --- tool history of earlier turns


def test_dropping_exchanges_keeps_text_and_loaded_capabilities() -> None:
    loaded = LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="l")
    assert [one.part_kind for one in cut(assistant("I look.", call("look", "c")), tools="drop").parts] == ["text"]
    assert cut(user(answer("c")), tools="drop") is None
    assert part(ModelRequest(parts=[answer("c"), loaded]), tools="drop") is loaded


def test_rendered_exchanges_become_text_in_their_messages() -> None:
    asked = part(assistant(call("look", "c", path="a.py")), tools="render")
    assert asked == TextPart(content="[tool] look(path=a.py)")
    told = part(user(answer("c", "42 lines")), tools="render")
    assert isinstance(told, UserPromptPart)
    assert told.content == "[tool] look: 42 lines"


def test_the_largest_part_is_found() -> None:
    assert largest(read_items(assistant("a", LONG), counter)) == cost(TextPart(content=LONG))
    assert largest(()) == 0


@pytest.mark.parametrize(
    ("shape", "partial"),
    [
        (WHOLE, False),
        (Shape(tools="render"), False),
        (Shape(skip=frozenset({1})), True),
        (Shape(skeleton=True), True),
        (Shape(limit=40), True),
        (Shape(prompt=40), True),
    ],
)
def test_a_shape_that_leaves_out_a_part_or_may_shorten_one_is_partial(shape: Shape, partial: bool) -> None:
    """Recall may quote from such messages, and a newer value in them does not count as sent."""
    assert shape.is_partial is partial
