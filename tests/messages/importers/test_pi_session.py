from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic_ai.messages import ModelResponse

from context_compiler.messages.importers import Transcript, parse_transcripts
from tests.messages.importers.samples import PIXEL, kinds, lines, parts, survives

HEADER = {"type": "session", "id": "s1", "timestamp": "2025-11-20T23:33:50.805Z", "cwd": "/home/ada"}


def entry(role: str, content: object, **more: object) -> dict[str, object]:
    return {"type": "message", "message": {"role": role, "content": content, **more}}


def word(said: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": said}]


def session(*entries: object) -> Transcript:
    (transcript,) = parse_transcripts(lines(HEADER, *entries), file="session.jsonl")
    survives(transcript.messages)
    return transcript


ASKED = entry("user", word("Fix it"), timestamp=1763681581544)
CALLED = entry(
    "assistant",
    [
        {"type": "thinking", "thinking": "Hm", "thinkingSignature": "sig"},
        *word("Reading."),
        {"type": "toolCall", "id": "a", "name": "read", "arguments": {"path": "x.py"}},
    ],
    provider="anthropic",
    model="claude-sonnet-4-5",
    stopReason="toolUse",
    usage={"input": 3, "output": 40, "cacheRead": 500, "cacheWrite": 60, "cost": {"total": 0.01}},
    timestamp=1763681594572,
)
ANSWERED = entry("toolResult", word("print(1)"), toolCallId="a", toolName="read", isError=False)


def test_messages_are_read_with_their_times():
    transcript = session(ASKED, CALLED, ANSWERED)
    assert (transcript.name, transcript.format, transcript.notes) == ("session", "pi", ())
    assert kinds(transcript.messages) == [["user-prompt"], ["thinking", "text", "tool-call"], ["tool-return"]]
    asked, called = transcript.messages[:2]
    assert asked.timestamp == datetime.fromtimestamp(1763681581.544, UTC)
    assert called.timestamp == datetime.fromtimestamp(1763681594.572, UTC)


def test_the_time_of_the_entry_replaces_a_missing_time_of_the_message():
    dated = {**entry("user", "Fix it"), "timestamp": "2025-11-20T23:33:01.550Z"}
    assert session(dated).messages[0].timestamp == datetime(2025, 11, 20, 23, 33, 1, 550_000, UTC)


def test_the_usage_of_the_provider_is_kept_with_cached_tokens_in_the_input():
    response = session(ASKED, CALLED).messages[1]
    assert isinstance(response, ModelResponse)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (563, 40)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (500, 60)
    assert (response.provider_name, response.model_name) == ("anthropic", "claude-sonnet-4-5")
    assert (response.finish_reason, response.state) == ("tool_call", "complete")


def test_a_failed_result_is_marked():
    failed = entry("toolResult", word("no such file"), toolCallId="a", toolName="read", isError=True)
    assert parts(session(ASKED, CALLED, failed).messages, "tool-return")[0].outcome == "failed"


@pytest.mark.parametrize("stop", ["aborted", "error"])
def test_a_response_that_was_cut_off_is_kept_with_a_note(stop: str):
    cut = entry("assistant", [], stopReason=stop, errorMessage="Request was aborted")
    transcript = session(ASKED, cut, ASKED)
    response = transcript.messages[1]
    assert isinstance(response, ModelResponse) and not response.parts and response.state == "interrupted"
    assert f"response {stop}, 'Request was aborted' (at 2)" in transcript.notes


def test_an_aborted_call_stays_unanswered():
    cut = entry("assistant", CALLED["message"]["content"], stopReason="aborted")
    assert kinds(session(ASKED, cut, ASKED).messages)[1:] == [["thinking", "text", "tool-call"], ["user-prompt"]]


def test_other_entries_are_skipped_and_counted():
    change, level = {"type": "model_change", "modelId": "x"}, {"type": "thinking_level_change"}
    compaction = {"type": "compaction", "summary": "long ago", "tokensBefore": 9}
    transcript = session(ASKED, change, *[level] * 7, compaction)
    assert len(transcript.messages) == 1
    assert transcript.notes == (
        "skipped entry of type 'model_change' (at 2)",
        "skipped entry of type 'thinking_level_change' (at 3, 4, 5, 6, 7 and 2 more)",
        "skipped entry of type 'compaction' (at 10)",
    )


def test_a_command_run_by_the_user_becomes_a_user_prompt():
    ran = {"command": "ls", "output": "a.py", "exitCode": 2}
    shown = {"type": "message", "message": {"role": "bashExecution", **ran}}
    hidden = {"type": "message", "message": {"role": "bashExecution", "excludeFromContext": True, **ran}}
    transcript = session(shown, hidden)
    (said,) = parts(transcript.messages, "user-prompt")
    assert said.content == "Ran `ls`\n```\na.py\n```\nexit code 2"


def test_pictures_in_results_are_bytes():
    shot = entry("toolResult", [{"type": "image", "data": PIXEL, "mimeType": "image/png"}], toolCallId="a")
    (result,) = parts(session(ASKED, CALLED, shot).messages, "tool-return")
    assert result.content[0].media_type == "image/png" and result.tool_name == "read"


def node(id: str, parent: str | None, said: str) -> dict[str, object]:
    return {**entry("user", said), "id": id, "parentId": parent}


def said_in(transcript: Transcript) -> list[str]:
    return [part.content for part in parts(transcript.messages, "user-prompt")]


def test_the_branch_of_the_last_entry_of_a_tree_is_read():
    transcript = session(node("a", None, "1"), node("b", "a", "2"), node("c", "b", "3"), node("d", "a", "4"))
    assert said_in(transcript) == ["1", "4"]
    assert transcript.notes == ("left out an entry of another branch (at 2, 3)",)


def test_a_missing_parent_is_replaced_by_the_previous_entry():
    assert said_in(session(node("a", None, "1"), node("c", "lost", "2"))) == ["1", "2"]


def test_parents_that_go_in_a_circle_end():
    assert said_in(session(node("a", "b", "1"), node("b", "a", "2"))) == ["1", "2"]


def test_messages_of_extensions_and_branch_summaries_are_kept():
    told = {"type": "custom_message", "id": "a", "parentId": None, "customType": "x", "content": "Mind the gap"}
    summed = {"type": "branch_summary", "id": "b", "parentId": "a", "summary": "We tried left"}
    assert said_in(session(told, summed)) == ["Mind the gap", "We tried left"]
