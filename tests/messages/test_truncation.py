"""A text, a part, a list of arguments is cut to its limit, and says how much it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    CompactionPart,
    FilePart,
    ModelRequest,
    RetryFeedbackPart,
    RetryInfo,
    SpeechPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.items import MESSAGE_OVERHEAD, Kind
from context_compiler.messages.shapes import truncate
from tests.messages.cutting import LONG, cost, cut, part
from tests.support.builders import answer, assistant, call, prose, user
from tests.support.parts import PNG, FuturePart, retry_prompt
from tests.support.texts import texts
from tests.support.views import counter


@given(texts(surrogates=True), st.integers(0, 60))
def test_a_clamped_text_is_within_its_limit(text: str, limit: int) -> None:
    assert counter.text(truncate(text, limit, counter)) <= max(limit, 0)


def test_a_clamped_text_keeps_head_and_tail_and_shows_its_original_length() -> None:
    short = truncate(LONG, 100, counter)
    assert LONG.startswith(short.split("\n")[0])
    assert LONG.endswith(short.split("\n")[-1])
    assert f"{counter.text(LONG):,} tokens in full" in short
    assert counter.text(short) > 90


def test_without_room_for_the_marker_the_beginning_is_kept() -> None:
    short = truncate(LONG, 10, counter)
    assert short.endswith("…")
    assert LONG.startswith(short[:-1])
    assert len(short) > 20


def test_a_short_text_is_not_touched() -> None:
    assert truncate("as it is", 10, counter) == "as it is"


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


def test_an_old_retry_prompt_becomes_the_part_that_the_host_loads() -> None:
    answers = part(ModelRequest(parts=[retry_prompt(LONG, tool="look", ident="c")]), limit=100)
    assert isinstance(answers, ToolReturnPart)
    assert (answers.tool_call_id, answers.outcome) == ("c", "retried")
    feedback = part(ModelRequest(parts=[retry_prompt(LONG, tool=None)]), limit=100)
    assert isinstance(feedback, UserPromptPart)


def test_speech_becomes_its_transcript() -> None:
    assert isinstance(
        part(ModelRequest(parts=[SpeechPart(speaker="user", transcript=LONG)]), limit=100), UserPromptPart
    )
    assert isinstance(part(assistant(SpeechPart(speaker="assistant", transcript=LONG)), limit=100), TextPart)


def test_only_the_long_pieces_of_a_prompt_are_cut() -> None:
    message = user("short", CachePoint(), TextContent(content=LONG, metadata={"a": 1}), PNG, "the question")
    left = part(message, limit=100)
    assert left.content[:2] == ["short", CachePoint()]
    assert left.content[2].metadata == {"a": 1}
    assert "tokens in full" in left.content[2].content
    assert left.content[3:] == ["[image/png 1 kB]", "the question"]
    assert 90 < cost(left) <= 100


def test_long_pieces_of_a_prompt_share_its_limit() -> None:
    first, _, second = part(user(LONG, "and", LONG), limit=200).content
    assert abs(counter.text(first) - counter.text(second)) < 10


def test_a_text_file_in_a_prompt_is_cut_by_its_text() -> None:
    question = "what does it say?"
    left = part(user(BinaryContent(LONG.encode(), media_type="text/plain"), question), limit=200)
    assert left.content[0].startswith(LONG[:40])
    assert left.content[0].endswith(LONG[-40:])
    assert left.content[1] == question
    assert cost(left) <= 200


@given(st.lists(st.sampled_from(["a", "why?", prose(2, 60), LONG, PNG]), min_size=1, max_size=9), st.integers(5, 400))
def test_no_piece_of_a_prompt_is_left_out_that_has_room_for_a_token(pieces: list[Any], limit: int) -> None:
    left = part(user(*pieces, CachePoint()), limit=limit)
    assert cost(left) <= limit or cost(left) <= cost(UserPromptPart(content="a"))
    if limit - MESSAGE_OVERHEAD >= len(pieces):
        assert len(left.content) == len(pieces) + 1
    assert all(left.content)


def test_a_file_that_fits_stays_and_one_that_does_not_is_named() -> None:
    assert part(user("see", PNG, PNG, "?"), limit=2_000).content == ["see", PNG, "[image/png 1 kB]", "?"]
    assert part(user("see", PNG, LONG), limit=cost(UserPromptPart(content=LONG))).content[1] == "[image/png 1 kB]"
    assert part(user("see", PNG), limit=100).content == ["see", "[image/png 1 kB]"]
    assert part(assistant(FilePart(content=PNG)), limit=50).content == "[image/png 1 kB]"


def test_arguments_are_cut_all_of_them_before_any_is_left_out() -> None:
    left = part(assistant(call("write", "c", path="src/a.py", body=LONG, force=True)), limit=120)
    assert left.args["path"] == "src/a.py"
    assert left.args["force"] is True
    assert "tokens in full" in left.args["body"]
    assert cost(left) <= 120


def test_if_not_all_arguments_fit_the_first_ones_are_kept() -> None:
    left = part(assistant(call("write", "c", **{f"key_{at}": at for at in range(100)})), limit=60)
    assert 0 < len(left.args) < 100
    assert list(left.args) == [f"key_{at}" for at in range(len(left.args))]
    assert cost(left) <= 60


def test_arguments_that_are_not_an_object_are_kept_under_a_name() -> None:
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


@pytest.mark.parametrize("limit", [90, 160, 400])
def test_shortened_validation_errors_can_be_read_back(limit: int) -> None:
    errors: Any = [
        {"type": "missing", "loc": ("field", at), "msg": "Field required", "input": {"a": LONG[:900]}}
        for at in range(3)
    ]
    message = ModelRequest(parts=[RetryFeedbackPart(content=errors, retry=RetryInfo(cause="validation_error"))])
    left = cut(message, limit=limit)
    assert cost(left.parts[0]) <= limit + 16
    assert [error["loc"] for error in left.parts[0].content] == [("field", at) for at in range(3)]
    assert load_messages([message_body(left)])[0].parts[0].content == left.parts[0].content
