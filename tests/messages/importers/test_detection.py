from __future__ import annotations

import json
from pathlib import Path

import pytest

from context_compiler.messages.importers import FORMATS, parse_transcripts, read_transcripts
from tests.messages.importers.samples import HELLO, kinds, lines, read, read_all, refused

TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}


@pytest.mark.parametrize(
    ("value", "format"),
    [
        ([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hello"}]}], "pydantic-ai"),
        ([HELLO], "openai"),
        ([{"role": "system", "content": "x"}, HELLO], "openai"),
        ([HELLO, {"role": "assistant", "content": None, "refusal": "No"}], "openai"),
        ([HELLO, TOOL_USE], "anthropic"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}], "anthropic"),
        ({"system": "x", "messages": [HELLO]}, "anthropic"),
        ([{"type": "session", "cwd": "/"}, {"type": "message", "message": HELLO}], "pi"),
        ({"history": [{**HELLO, "agent": "main"}]}, "swe-agent"),
    ],
)
def test_the_format_is_read_off_the_content(value: object, format: str):
    assert format in FORMATS
    assert read(value).format == format


def test_a_given_format_wins():
    assert read([HELLO], format="anthropic").format == "anthropic"
    assert read({"system": "x", "messages": [HELLO]}, format="openai").format == "openai"


@pytest.mark.parametrize("key", ["messages", "traj", "history", "trajectory", "conversation"])
def test_an_object_may_hold_the_messages_under_several_keys(key: str):
    assert kinds(read({"reward": 1.0, key: [HELLO]}).messages) == [["user-prompt"]]


def test_the_list_with_messages_is_read_among_several():
    steps = [{"observation": "x"}]
    assert kinds(read({"messages": [], "trajectory": steps, "history": [HELLO]}).messages) == [["user-prompt"]]


@pytest.mark.parametrize(
    "value",
    [
        [[HELLO], [HELLO, HELLO]],
        [{"traj": [HELLO]}, {"traj": [HELLO, HELLO]}],
        {"conversations": [{"messages": [HELLO]}, {"messages": [HELLO, HELLO]}]},
    ],
)
def test_several_conversations_are_named_by_their_index(value: object):
    found = read_all(value)
    assert [(one.name, len(one.messages)) for one in found] == [("sample#0", 1), ("sample#1", 2)]


def test_several_conversations_are_named_by_their_ids_where_each_has_its_own():
    assert [transcript.name for transcript in read_all([{"id": n, "messages": [HELLO]} for n in ("x", "y")])] == [
        "sample#x",
        "sample#y",
    ]
    same = [{"id": "x", "task_id": n, "messages": [HELLO]} for n in (7, 8)]
    assert [transcript.name for transcript in read_all(same)] == ["sample#7", "sample#8"]
    lines = [{"id": id, "messages": [HELLO]} for id in ("a\nb", "c")]
    assert [transcript.name for transcript in read_all(lines)] == ["sample#a b", "sample#c"], "a name is one line"


def test_jsonl_holds_a_message_or_a_conversation_a_line():
    (one,) = parse_transcripts(lines(HELLO, TOOL_USE), file="a.jsonl")
    assert len(one.messages) == 2
    found = parse_transcripts(lines({"messages": [HELLO]}, {"messages": [HELLO, HELLO]}), file="a.jsonl")
    assert [len(one.messages) for one in found] == [1, 2]


def test_a_single_line_of_jsonl_is_a_transcript():
    assert kinds(read(HELLO).messages) == [["user-prompt"]]


def test_byte_order_mark_carriage_returns_and_blank_lines_do_not_matter():
    data = b"\xef\xbb\xbf" + lines(HELLO, HELLO).replace(b"\n", b"\r\n\r\n") + b"\r\n"
    (transcript,) = parse_transcripts(data, file="a.jsonl")
    assert len(transcript.messages) == 2


def test_a_line_separator_within_a_string_does_not_end_a_line():
    odd = {"role": "user", "content": "a\u2028b\x85c"}
    data = "\n".join(json.dumps(one, ensure_ascii=False) for one in (odd, odd)).encode()
    (transcript,) = parse_transcripts(data, file="a.jsonl")
    assert len(transcript.messages) == 2


def test_an_element_without_messages_is_left_out_with_a_note():
    first, second = read_all([{"made by": "x"}, {"messages": [HELLO]}, {"messages": []}])
    assert (first.name, first.notes) == ("sample#0", ("no messages in an element of the file (at 0)",))
    assert (second.messages, second.notes) == ((), ("conversation without messages (at 0)",))


def test_a_file_is_named_by_its_stem(tmp_path: Path):
    path = tmp_path / "chat.of.today.json"
    path.write_text(json.dumps([HELLO]))
    assert [one.name for one in read_transcripts(path)] == ["chat.of.today"]
    assert read_transcripts(str(path)) == read_transcripts(path)


def test_a_list_of_unknown_format_is_refused_unless_a_format_is_given():
    strange = {"messages": [{"speaker": "Ann", "said": "Hello"}]}
    assert "known formats are" in str(refused(strange))
    assert "has no role" in str(refused(strange, format="openai"))
