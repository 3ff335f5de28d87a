"""A shape makes a message smaller without touching it, and never leaves half of what belongs together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    CachePoint,
    CompactionPart,
    FilePart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelRequest,
    NativeToolReturnPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.history import Reader
from context_compiler.history.items import Kind, read_items, read_part
from context_compiler.shapes import WHOLE, Shape, largest, price, shaped
from context_compiler.shapes.clamps import clamp
from tests.support.builders import answer, assistant, call, prose, snapshot, user
from tests.support.histories import histories
from tests.support.parts import PNG, FuturePart, native_pair, retry_prompt
from tests.support.texts import texts
from tests.support.views import counter

LONG = prose(1, 900)


def cut(message: ModelMessage, **shape: Any) -> Any:
    return shaped(message, Reader(counter).one(message), Shape(**shape), counter)


def part(message: ModelMessage, **shape: Any) -> Any:
    """The only part that a shape leaves of a message."""
    (left,) = cut(message, **shape).parts
    return left


def cost(piece: Any) -> int:
    return read_part(piece, counter).tokens


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
def test_a_shape_changes_no_message_and_its_price_is_what_it_leaves(history: list[ModelMessage], shape: Shape) -> None:
    before = snapshot(history)
    reader = Reader(counter)
    for message in history:
        reading = reader.one(message)
        left = shaped(message, reading, shape, counter)
        known = price(message, reading, shape, counter)
        assert known == (sum(item.tokens for item in read_items(left, counter)) if left else 0)
        assert left is None or left.parts
        assert left is None or type(left) is type(message)
    assert snapshot(history) == before


@given(histories())
def test_a_whole_message_is_the_same_object(history: list[ModelMessage]) -> None:
    reader = Reader(counter)
    assert all(shaped(message, reader.one(message), WHOLE, counter) is message for message in history)


@given(histories(), st.sampled_from([6, 12, 40, 200]), st.booleans())
def test_a_clamped_exchange_keeps_its_ids(history: list[ModelMessage], limit: int, skeleton: bool) -> None:
    reader = Reader(counter)
    for message in history:
        reading = reader.one(message)
        left = shaped(message, reading, Shape(limit=limit, skeleton=skeleton), counter)
        kept = reader.one(left) if left else None
        assert (kept.calls if kept else ()) == reading.calls
        assert (kept.answers if kept else ()) == reading.answers
        assert (kept.run_id if kept else None) == reading.run_id


@given(histories(), st.sampled_from([6, 16, 40, 200]))
def test_only_what_no_limit_can_shorten_is_above_the_limit(history: list[ModelMessage], limit: int) -> None:
    reader = Reader(counter)
    for message in history:
        left = shaped(message, reader.one(message), Shape(limit=limit), counter)
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


# --- clamps


@given(texts(surrogates=True), st.integers(0, 60))
def test_a_clamped_text_is_within_its_limit(text: str, limit: int) -> None:
    assert counter.text(clamp(text, limit, counter)) <= max(limit, 0)


def test_a_clamped_text_keeps_head_and_tail_and_says_how_much_it_was() -> None:
    short = clamp(LONG, 100, counter)
    assert LONG.startswith(short.split("\n")[0])
    assert LONG.endswith(short.split("\n")[-1])
    assert f"{counter.text(LONG):,} tokens in full" in short
    assert counter.text(short) > 90


def test_where_no_marker_fits_the_beginning_is_kept() -> None:
    short = clamp(LONG, 10, counter)
    assert short.endswith("…")
    assert LONG.startswith(short[:-1])
    assert len(short) > 20


def test_a_short_text_is_not_touched() -> None:
    assert clamp("as it is", 10, counter) == "as it is"


@pytest.mark.parametrize(
    "long",
    [
        UserPromptPart(content=LONG),
        answer("c", LONG),
        answer("c", {"rows": [LONG]}),
        answer("c", [LONG, PNG]),
        RetryFeedbackPart(content=LONG, retry=RetryInfo(cause="model_retry")),
        CompactionPart(content=LONG),
    ],
    ids=lambda given: type(given).__name__,
)
def test_parts_of_requests_are_cut_to_the_limit(long: Any) -> None:
    left = part(ModelRequest(parts=[long]), limit=100)
    assert type(left) is type(long)
    assert 80 < cost(left) <= 116
    assert "tokens in full" in left.content


def test_an_old_retry_prompt_becomes_what_the_host_loads_it_as() -> None:
    answers = part(ModelRequest(parts=[retry_prompt(LONG, tool="look", ident="c")]), limit=100)
    assert isinstance(answers, ToolReturnPart)
    assert (answers.tool_call_id, answers.outcome) == ("c", "retried")
    feedback = part(ModelRequest(parts=[retry_prompt(LONG, tool=None)]), limit=100)
    assert isinstance(feedback, UserPromptPart)


def test_speech_becomes_the_text_that_it_was() -> None:
    assert isinstance(
        part(ModelRequest(parts=[SpeechPart(speaker="user", transcript=LONG)]), limit=100), UserPromptPart
    )
    assert isinstance(part(assistant(SpeechPart(speaker="assistant", transcript=LONG)), limit=100), TextPart)


def test_a_prompt_in_pieces_is_cut_piece_by_piece() -> None:
    message = user("short", CachePoint(), TextContent(content=LONG, metadata={"a": 1}), PNG, "never seen")
    left = part(message, limit=100)
    assert left.content[:2] == ["short", CachePoint()]
    assert left.content[2].metadata == {"a": 1}
    assert cost(left) <= 100
    assert "never seen" not in left.content


def test_a_file_that_fits_stays_and_one_that_does_not_is_named() -> None:
    assert part(user("see", PNG, LONG), limit=2_000).content[1] is PNG
    assert part(user("see", PNG), limit=100).content == ["see", "[image/png 1 kB]"]
    assert part(assistant(FilePart(content=PNG)), limit=50).content == "[image/png 1 kB]"


def test_arguments_are_cut_all_of_them_before_any_is_left_out() -> None:
    left = part(assistant(call("write", "c", path="src/a.py", body=LONG, force=True)), limit=120)
    assert left.args["path"] == "src/a.py"
    assert left.args["force"] is True
    assert "tokens in full" in left.args["body"]
    assert cost(left) <= 120


def test_where_not_all_arguments_fit_the_first_ones_do() -> None:
    left = part(assistant(call("write", "c", **{f"key_{at}": at for at in range(100)})), limit=60)
    assert 0 < len(left.args) < 100
    assert list(left.args) == [f"key_{at}" for at in range(len(left.args))]
    assert cost(left) <= 60


def test_arguments_that_are_no_object_are_kept_under_a_name() -> None:
    left = part(assistant(ToolCallPart(tool_name="w", args='["' + LONG, tool_call_id="c")), limit=60)
    assert list(left.args) == ["arguments"]
    assert json.loads(left.args_as_json_str())


def test_a_summary_of_an_application_can_be_cut_and_one_of_a_provider_cannot() -> None:
    own, foreign = CompactionPart(content=LONG), CompactionPart(content=LONG, provider_name="acme")
    assert cost(part(assistant(own), limit=50)) <= 50
    assert part(assistant(foreign), limit=50) is foreign


@pytest.mark.parametrize("whole", [ThinkingPart(content=LONG, signature="s"), FuturePart(content=LONG)])
def test_thinking_and_unknown_parts_stay_whole_or_go(whole: Any) -> None:
    assert part(assistant(whole), limit=6) is whole
    assert cut(assistant(whole), without=frozenset({Kind.THINKING, Kind.OTHER})) is None


# --- what stays for others


def test_no_limit_touches_what_the_host_reads_back() -> None:
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


def test_a_bare_message_keeps_only_what_stays() -> None:
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


def test_short_exchanges_are_their_own_skeleton() -> None:
    asked, told = assistant("I look.", call("look", "c", path="a.py")), user(answer("c", "42 lines"))
    assert cut(asked, skeleton=True).parts == asked.parts
    assert cut(told, skeleton=True).parts == told.parts


def test_what_was_said_around_a_call_is_cut_in_a_skeleton() -> None:
    said, spoken = TextPart(content=LONG), SpeechPart(speaker="assistant", transcript=LONG)
    for left in cut(assistant(said, spoken, call("look", "c")), skeleton=True).parts[:2]:
        assert cost(left) <= 64


def test_files_beside_an_answer_are_named_in_a_skeleton() -> None:
    left = cut(user(answer("c", "See file 1."), "This is file 1:", PNG), skeleton=True)
    assert left.parts[1].content == ["This is file 1:", "[image/png 1 kB]"]


def test_a_skeleton_can_be_cut_further() -> None:
    assert cost(part(user(answer("c", LONG)), skeleton=True, limit=12)) <= 12


# --- what the provider ran itself


def native(size: int) -> ModelMessage:
    return assistant(*native_pair("n", prose(1, size)), "so")


@pytest.mark.parametrize("shape", [{"limit": 60}, {"skeleton": True}, {"limit": 6, "skeleton": True}])
def test_a_long_exchange_of_the_provider_becomes_text_on_both_sides(shape: dict[str, Any]) -> None:
    left = cut(native(300), **shape)
    assert [one.part_kind for one in left.parts] == ["text", "text", "text"]
    assert all(cost(one) <= shape.get("limit", 60) for one in left.parts)


def test_the_text_of_such_an_exchange_says_what_was_asked_and_what_came() -> None:
    asked, told, _ = cut(native(300), limit=60).parts
    assert asked.content.startswith("[tool] web_search(query=")
    assert told.content.startswith("[tool] web_search: [1 entries]")


def test_a_short_exchange_of_the_provider_stays_as_it_is() -> None:
    message = native(3)
    assert cut(message, limit=200, skeleton=True).parts == message.parts


def test_half_an_exchange_of_the_provider_is_never_cut_alone() -> None:
    _, told = native_pair("n", LONG)
    assert isinstance(part(assistant(told), limit=20, skeleton=True), NativeToolReturnPart)


# --- tool history of earlier turns


def test_dropped_exchanges_leave_what_was_said_and_what_was_loaded() -> None:
    loaded = LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="l")
    assert [one.part_kind for one in cut(assistant("I look.", call("look", "c")), tools="drop").parts] == ["text"]
    assert cut(user(answer("c")), tools="drop") is None
    assert part(ModelRequest(parts=[answer("c"), loaded]), tools="drop") is loaded


def test_rendered_exchanges_stand_as_text_each_on_its_side() -> None:
    asked = part(assistant(call("look", "c", path="a.py")), tools="render")
    assert asked == TextPart(content="[tool] look(path=a.py)")
    told = part(user(answer("c", "42 lines")), tools="render")
    assert isinstance(told, UserPromptPart)
    assert told.content == "[tool] look: 42 lines"


def test_the_largest_part_is_found() -> None:
    assert largest(read_items(assistant("a", LONG), counter)) == cost(TextPart(content=LONG))
    assert largest(()) == 0
