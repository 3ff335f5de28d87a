from __future__ import annotations

import json
from pathlib import Path

import pytest

from context_compiler.errors import TranscriptError
from context_compiler.messages.importers import FORMATS, parse_transcripts, read_transcripts
from tests.messages.importers.samples import HELLO, lines, refused


def says(**more: object) -> dict[str, object]:
    return {"role": "assistant", **more}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, "has no role; use one of system, developer, user, assistant, tool, function"),
        ({"role": "wizard", "content": "x"}, "unknown role 'wizard'; use one of"),
        ({"role": ["user"], "content": "x"}, "unknown role"),
        ({"role": "user", "content": 5}, "content is a number; it must be a string, null or a list"),
        ({"role": "user", "content": {"text": "x"}}, "content is an object"),
        ({"role": "user", "content": True}, "content is true"),
        ({"role": "user", "content": ["x", 7]}, "block 1 of the content is a number"),
        ({"role": "tool", "tool_call_id": "a", "content": 1.5}, "content is a number"),
        ("Hello", "a message is a string; it must be an object with a role"),
        (None, "a message is null"),
        (says(tool_calls={}), "tool_calls is an object; it must be a list"),
        (says(tool_calls=[{"id": "a"}]), "a tool call has no name"),
        (says(tool_calls=["f"]), "a tool call has no name"),
        (says(function_call={"arguments": "{}"}), "a tool call has no name"),
        (says(content=[{"type": "tool_use", "id": "a"}]), "a tool call has no name"),
    ],
)
def test_a_message_that_is_wrong_is_named_by_its_index(message: object, words: str):
    error = refused([HELLO, HELLO, message], format="openai")
    assert error.index == 2
    assert str(error).startswith("sample.json[2]: ") and words in str(error)


def test_an_error_in_one_of_several_conversations_names_the_conversation():
    error = refused([{"id": "x", "messages": [HELLO]}, {"id": "y", "messages": [HELLO, {"role": "wizard"}]}])
    assert error.index == 1
    assert "in conversation sample#y: unknown role 'wizard'" in str(error)


def test_wrong_entries_of_a_session_are_named_by_their_index():
    header, good = {"type": "session", "cwd": "/"}, {"type": "message", "message": HELLO}
    assert refused(lines(header, good, {"type": "message", "message": "x"})).index == 2
    assert "has no role" in str(refused(lines(header, good, {"type": "message", "message": {}})))
    assert "an entry is a number" in str(refused(lines(header, good, 3)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \r\n", "is empty"),
        (b'[{"role": "us\xff"}]', "byte 13 is not UTF-8"),
        (b"\xff\xfe\x00", "byte 2 is not UTF-16-LE"),
        (b"User:\r\n\r\nAssistant:\r\n", "contains no messages"),
        (b'[{"role": "user",\n "content": }]', "line 2, column 13"),
        (b'[{"role": "user", "content": "\0"}]', "NUL bytes"),
        (b"hello", "neither JSON nor a text"),
        (b'[{"role": "user", "content": "NaN"},\n {"x": NaN}]', "NaN at line 2, column 8"),
        (b'[{"role": "user", "content": -Infinity}]', "-Infinity at line 1, column 30"),
        (b'[{"role": "user", "content": "x", "x": 1e999}]', "1e999 at line 1, column 40"),
        (b'[{"x": ' + b"9" * 5000 + b"}]", "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"role": "user"}\n' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_json_is_refused_with_the_position(data: bytes, words: str):
    assert words in str(refused(data))


def test_a_broken_line_is_named_by_line_and_column():
    error = refused(lines(HELLO, HELLO) + b'\n\n{"role": "user" "content"}\n')
    assert error.index == 2
    assert "line 4, column 17" in str(error)


def test_a_lone_surrogate_is_refused_with_its_position():
    linked = [{"type": "image_url", "image_url": {"url": "data:,\udc00"}}]
    called = says(tool_calls=[{"function": {"name": "\udc00"}}])
    for broken in ({"role": "user", "content": "\ud83d"}, {"role": "user", "content": linked}, called):
        error = refused([HELLO, broken, HELLO])
        assert error.index == 1
        assert "half a character" in str(error)


def test_arguments_nested_too_deeply_are_refused_with_their_position():
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    error = refused([HELLO, says(tool_calls=[{"function": {"name": "f", "arguments": {"a": deep}}}])])
    assert error.index == 1
    assert "cannot be stored as JSON" in str(error)


def test_every_depth_of_nesting_is_read_or_refused():
    for depth in range(900, 1_000):
        data = b'[{"role": "user", "content": [{"type": "x", "y": ' + b"[" * depth + b"]" * depth + b"}]}]"
        try:
            parse_transcripts(data, file="deep.json")
        except TranscriptError as error:
            assert "nested too deeply" in str(error)


@pytest.mark.parametrize("value", [5, "x", None, {}, {"a": 1}, [1, 2], [[1]], [{"a": 1}], {"messages": "x"}])
def test_json_of_unknown_shape_is_refused_with_the_known_shapes(value: object):
    said = str(refused(value))
    assert all(format in said for format in FORMATS)
    assert "--from" in said


def test_the_keys_that_were_found_are_named():
    assert "'speaker', 'said'" in str(refused({"speaker": "Ann", "said": "Hello"}))


@pytest.mark.parametrize("value", [[], {"messages": []}, [{"messages": []}, {"messages": []}]])
def test_a_file_without_messages_is_refused(value: object):
    assert "contains no messages" in str(refused(value))


def test_an_unknown_format_is_refused():
    assert "unknown format 'word'; use one of pydantic-ai, chatgpt" in str(refused([HELLO], format="word"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    for path, words in ((tmp_path / "none.json", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(TranscriptError, match=words) as caught:
            read_transcripts(path)
        assert caught.value.file == str(path)
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_transcripts("a\0b")


def test_an_error_can_always_be_printed():
    for value in ([{"role": "\ud83d", "content": ""}], {"\ud83d": 1}):
        json.dumps(str(refused(value)), ensure_ascii=False).encode()
