"""Every part of every message is read for what it is, what it says and what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ImageUrl,
    InstructionDeltaPart,
    LoadCapabilityCallPart,
    LoadCapabilityReturnPart,
    ModelMessage,
    ModelSettingsDeltaPart,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolAvailabilityDeltaPart,
    ToolCallPart,
    ToolReturnPart,
    ToolSearchReturnPart,
    UserPromptPart,
)

from context_compiler.messages.items import (
    CALL_OVERHEAD,
    MARK,
    MESSAGE_OVERHEAD,
    Item,
    Kind,
    mark_of,
    media_cost,
    parse_arguments,
    plain_text,
    read_part,
    user_content,
    without_media,
)
from tests.messages.cutting import part as cut_part
from tests.support.builders import answer, call, user
from tests.support.histories import histories
from tests.support.parts import PDF, PNG, STRUCTURED, WAV, FuturePart, native_pair, retry_prompt
from tests.support.views import counter, wire_tokens


def read(part: Any) -> Item:
    return read_part(part, counter)


def size(text: str) -> int:
    return counter.text(text)


SAID = "the build fails at src/main.py:12"


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (SystemPromptPart(content=SAID), Kind.SYSTEM),
        (UserPromptPart(content=SAID), Kind.USER),
        (TextPart(content=SAID), Kind.TEXT),
        (ThinkingPart(content=SAID), Kind.THINKING),
        (CompactionPart(content=SAID), Kind.COMPACTION),
        (SpeechPart(speaker="user", transcript=SAID), Kind.USER),
        (SpeechPart(speaker="assistant", transcript=SAID), Kind.TEXT),
        (FuturePart(content=SAID), Kind.OTHER),
    ],
)
def test_a_part_with_a_text_costs_the_text_and_its_frame(part: Any, kind: Kind) -> None:
    item = read(part)
    assert (item.kind, item.text, item.tokens) == (kind, SAID, size(SAID) + MESSAGE_OVERHEAD)


def test_a_signature_is_sent_and_counts() -> None:
    signed = read(ThinkingPart(content=SAID, signature="c2lnbmF0dXJl" * 9))
    assert signed.text == SAID
    assert signed.tokens == size(SAID) + size("c2lnbmF0dXJl" * 9) + MESSAGE_OVERHEAD


def test_a_call_has_name_arguments_and_id() -> None:
    item = read(call("look", "call_1", path="a.py"))
    assert (item.kind, item.text, item.call_id, item.tool) == (Kind.CALL, '{"path":"a.py"}', "call_1", "look")
    assert item.tokens == size('{"path":"a.py"}') + size("look") + CALL_OVERHEAD
    assert not item.native
    assert not item.stays


@pytest.mark.parametrize(("args", "text"), [(None, "{}"), ('{"a": 1', '{"a": 1'), ("{}", "{}")])
def test_arguments_are_read_unchanged(args: Any, text: str) -> None:
    assert read(ToolCallPart(tool_name="look", args=args, tool_call_id="c")).text == text


def test_an_answer_has_the_content_as_a_model_reads_it() -> None:
    item = read(answer("call_1", {"rows": [1, 2]}))
    assert (item.kind, item.text, item.call_id) == (Kind.RETURN, '{"rows":[1,2]}', "call_1")
    assert item.tokens == size(item.text) + size("look") + MESSAGE_OVERHEAD
    assert not item.failed


@pytest.mark.parametrize("outcome", ["failed", "denied", "interrupted", "retried"])
def test_any_outcome_other_than_success_has_failed(outcome: Any) -> None:
    info: Any = RetryInfo(cause="model_retry") if outcome == "retried" else None
    assert read(answer("c", "no", outcome=outcome, retry=info)).failed


@pytest.mark.parametrize("outcome", ["failed", "retried"])
def test_an_error_is_wrapped_in_json_and_priced_so(outcome: Any) -> None:
    part = answer("c", 'he said "no"\n', outcome=outcome)
    assert read(part).text == 'he said "no"\n'
    assert read(part).tokens == size(part.model_response_str()) + size("look") + MESSAGE_OVERHEAD


def test_a_file_in_an_answer_costs_what_the_file_costs() -> None:
    item = read(answer("c", ["see", PNG]))
    assert item.media == media_cost(PNG) > 1_000
    assert item.text == '["see","[image/png 1 kB]"]'
    assert item.tokens == size(item.text) + size("look") + MESSAGE_OVERHEAD + item.media


def test_a_prompt_may_hold_texts_files_and_cache_points() -> None:
    item = read(UserPromptPart(content=["look", PNG, CachePoint(), TextContent(content="and say"), WAV]))
    assert item.text == "look\n[image/png 1 kB]\nand say\n[audio/wav 1 kB]"
    assert item.media == media_cost(PNG) + media_cost(WAV)
    pieces = ("look", "[image/png 1 kB]", "and say", "[audio/wav 1 kB]")
    assert item.tokens == sum(map(size, pieces)) + item.media + MESSAGE_OVERHEAD


def test_an_unknown_piece_of_content_is_priced_by_its_text() -> None:
    part = SimpleNamespace(part_kind="user-prompt", content=["see", {"kind": "hologram"}])
    assert read(part).text == 'see\n{"kind":"hologram"}'


def test_a_file_that_a_model_made_is_media() -> None:
    item = read(FilePart(content=PNG))
    assert (item.kind, item.text, item.tokens) == (Kind.MEDIA, "[image/png 1 kB]", media_cost(PNG) + MESSAGE_OVERHEAD)


def test_kept_sound_of_a_user_counts_and_that_of_a_model_is_not_sent() -> None:
    heard = read(SpeechPart(speaker="user", transcript="hi", audio=WAV))
    assert heard.tokens == size("hi") + media_cost(WAV) + MESSAGE_OVERHEAD
    assert read(SpeechPart(speaker="user", audio=WAV)).text == "[audio/wav 1 kB]"
    assert read(SpeechPart(speaker="assistant", transcript="hi", audio=WAV)).tokens == size("hi") + MESSAGE_OVERHEAD


def test_a_retry_with_a_tool_answers_its_call_and_one_without_answers_none() -> None:
    answers = read(retry_prompt("wrong", tool="look", ident="call_1"))
    assert (answers.kind, answers.call_id, answers.failed) == (Kind.RETURN, "call_1", True)
    feedback = read(retry_prompt("wrong", tool=None))
    assert (feedback.kind, feedback.call_id, feedback.failed) == (Kind.FEEDBACK, None, True)
    newer = read(RetryFeedbackPart(content="wrong", retry=RetryInfo(cause="model_retry")))
    assert (newer.kind, newer.text, newer.call_id) == (Kind.FEEDBACK, "wrong", None)


def test_calls_executed_by_the_provider_are_native() -> None:
    asked, told = map(read, native_pair("n", "news"))
    assert (asked.kind, told.kind) == (Kind.CALL, Kind.RETURN)
    assert asked.native
    assert told.native
    assert asked.call_id == told.call_id == "n"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (ToolAvailabilityDeltaPart(tools_added=["maps_find"]), "maps_find"),
        (ModelSettingsDeltaPart(settings={"thinking": "low"}), "low"),
    ],
)
def test_control_parts_of_the_host_are_kept_and_priced(part: Any, said: str) -> None:
    item = read(part)
    assert item.kind is Kind.CONTROL
    assert item.stays
    assert said in item.text


def test_a_changed_instruction_is_priced_by_its_text() -> None:
    delta: Any = InstructionDeltaPart(id=None, content=SAID)  # pyright: ignore[reportArgumentType] # any id will do
    assert read(delta).tokens == size(SAID) + MESSAGE_OVERHEAD


@pytest.mark.parametrize(
    "part",
    [
        LoadCapabilityCallPart(args={"id": "maps"}, tool_call_id="c"),
        LoadCapabilityReturnPart(content={"message": "loaded"}, tool_call_id="c"),
        ToolSearchReturnPart(content={"discovered_tools": []}, tool_call_id="c"),
    ],
)
def test_parts_that_load_a_capability_or_find_a_tool_are_kept(part: Any) -> None:
    assert read(part).loads
    assert read(part).stays


def test_system_text_of_others_is_kept_and_ours_is_not() -> None:
    assert read(SystemPromptPart(content="be kind")).stays
    ours = read(SystemPromptPart(content="notes", metadata={MARK: {"v": 1}}))
    assert not ours.stays
    assert ours.mark == {"v": 1}


def test_our_mark_is_found_on_parts_and_pieces_and_cannot_be_forged_in_text() -> None:
    assert read(UserPromptPart(content=[TextContent(content="x", metadata={MARK: {"v": 1}})])).mark == {"v": 1}
    assert read(UserPromptPart(content=f"{MARK}: v1")).mark is None
    assert mark_of(TextContent(content="x", metadata={MARK: "forged"})) is None
    assert mark_of(TextContent(content="x", metadata={"other": {}})) is None


@given(histories())
def test_no_part_costs_less_than_the_texts_that_are_sent(history: list[ModelMessage]) -> None:
    for message in history:
        assert sum(read(part).tokens for part in message.parts) >= wire_tokens([message])


@pytest.mark.parametrize("content", [*STRUCTURED, "text", None, b"\x00\xff", object(), float("nan"), {1: {2: {3}}}])
def test_any_content_has_a_text(content: object) -> None:
    assert isinstance(plain_text(content), str)


def test_values_that_are_not_valid_json_are_written_loosely_or_by_type() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle
    assert plain_text({"half": "\ud83d"}) == '{"half":"\ud83d"}'
    assert plain_text({"half": "\ud83d", "thing": object()}) == '{"half":"\ud83d","thing":"<object>"}'
    assert plain_text(circle) == "<dict>"
    assert plain_text({"a": object()}) == '{"a":"<object>"}'


def test_media_are_replaced_at_any_depth() -> None:
    content = {"a": [PNG, {"b": (PDF, "x")}], "c": 1}
    assert without_media(content) == {"a": ["[image/png 1 kB]", {"b": ["[application/pdf 1 kB]", "x"]}], "c": 1}


BIG = BinaryContent(bytes(range(256)) * 40, media_type="image/png")


@pytest.mark.parametrize("content", [{"title": "x", "image": BIG}, ("x", BIG), ["x", [BIG]], ["x", {"image": BIG}]])
@pytest.mark.parametrize("outcome", ["success", "failed"])
def test_a_file_within_a_result_costs_the_text_as_which_the_host_sends_it(content: Any, outcome: Any) -> None:
    sent = answer("c", content, outcome=outcome)
    item = read(sent)
    assert (item.media, sent.files) == (0, [])
    assert item.tokens >= size(sent.model_response_str()) + size("look") + MESSAGE_OVERHEAD > 5_000
    assert item.text.replace('"', "").count("[image/png 10 kB]") == 1
    assert size(item.text) < 40


def test_a_shortened_result_names_the_files_within_it() -> None:
    left = cut_part(user(answer("c", {"title": "login page", "image": BIG})), limit=100)
    assert left.content == '{"title":"login page","image":"[image/png 10 kB]"}'


@pytest.mark.parametrize("content", [PNG, [PNG, "x", PDF]])
def test_files_that_the_host_sends_as_files_cost_as_such(content: Any) -> None:
    item = read(answer("c", content))
    assert item.media == sum(map(media_cost, answer("c", content).files)) > 1_000


def test_media_given_by_reference_are_named_by_their_kind() -> None:
    assert without_media(AudioUrl("https://example.com/a.mp3")) == "[audio]"
    assert without_media(ImageUrl("https://example.com/a.png", media_type="image/webp")) == "[image/webp]"
    assert without_media(BinaryContent(b"x", media_type="")) == "[application/octet-stream 1 kB]"


def test_the_content_of_a_prompt_is_a_sequence_of_pieces() -> None:
    assert list(user_content("one")) == ["one"]
    assert list(user_content(["one", PNG])) == ["one", PNG]
    assert list(user_content(7)) == [7]


@pytest.mark.parametrize(
    ("text", "given"), [('{"a": 1}', {"a": 1}), ("[1]", None), ('{"a": ', None), ("", None), ("[" * 10**5, None)]
)
def test_arguments_are_a_mapping_or_nothing(text: str, given: Any) -> None:
    assert parse_arguments(text) == given


def test_a_tool_return_without_an_outcome_has_not_failed() -> None:
    part = ToolReturnPart(tool_name="look", content="x", tool_call_id="c")
    object.__setattr__(part, "outcome", None)
    assert not read(part).failed
