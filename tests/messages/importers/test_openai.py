from __future__ import annotations

from datetime import UTC, datetime

from pydantic_ai.messages import BinaryContent, ImageUrl, ModelRequest, ModelResponse, UploadedFile

from tests.messages.importers.samples import HELLO, PIXEL, kinds, parts, read


def call(id: str | None, name: str, arguments: object) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(content: object = None, *calls: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **more}


def result(id: str | None, content: object, **more: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def test_a_system_message_leads_the_request_of_the_user_after_it():
    transcript = read([{"role": "system", "content": "Be brief."}, HELLO, says("Hi")])
    assert transcript.format == "openai"
    assert kinds(transcript.messages) == [["system-prompt", "user-prompt"], ["text"]]
    assert parts(transcript.messages, "system-prompt")[0].content == "Be brief."


def test_a_developer_message_is_a_system_prompt_even_in_the_middle():
    transcript = read([HELLO, says("Hi"), {"role": "developer", "content": "Now be long."}, HELLO])
    assert kinds(transcript.messages) == [["user-prompt"], ["text"], ["system-prompt", "user-prompt"]]


def test_every_user_message_is_a_request_of_its_own():
    assert kinds(read([HELLO, HELLO]).messages) == [["user-prompt"], ["user-prompt"]]


def test_consecutive_tool_results_share_one_request_and_take_the_names_of_their_calls():
    calls = says(None, call("a", "look", '{"at": 1}'), call("b", "touch", "{}"))
    messages = read([HELLO, calls, result("a", "seen"), result("b", "felt"), HELLO]).messages
    assert kinds(messages) == [
        ["user-prompt"],
        ["tool-call", "tool-call"],
        ["tool-return", "tool-return"],
        ["user-prompt"],
    ]
    assert [(part.tool_call_id, part.tool_name, part.content) for part in parts(messages, "tool-return")] == [
        ("a", "look", "seen"),
        ("b", "touch", "felt"),
    ]


def test_text_beside_a_call_comes_first():
    (response,) = (m for m in read([HELLO, says("Wait.", call("a", "look", "{}"))]).messages if m.kind == "response")
    assert [part.part_kind for part in response.parts] == ["text", "tool-call"]


def test_valid_arguments_become_an_object_and_others_stay_as_they_are():
    given = ['{"a": [1, null]}', '{"a": 1,', "[1]", "", '{"a": NaN}', '{"a": "\\ud83d"}', '{"a": 1e999}', {"b": 2}]
    calls = says(None, *(call(str(n), "f", arguments) for n, arguments in enumerate(given)))
    kept = [part.args for part in parts(read([HELLO, calls]).messages, "tool-call")]
    assert kept == [{"a": [1, None]}, '{"a": 1,', "[1]", "", '{"a": NaN}', '{"a": "\\ud83d"}', '{"a": 1e999}', {"b": 2}]


def test_arguments_nested_too_deeply_for_an_object_stay_a_string():
    for depth in (240, 400):
        deep = '{"a": ' + "[" * depth + "]" * depth + "}"
        assert parts(read([says(None, call("a", "f", deep))]).messages, "tool-call")[0].args == deep


def test_the_older_function_call_is_answered_by_the_function_role():
    legacy = says(None, function_call={"name": "look", "arguments": '{"at": 1}'})
    messages = read([HELLO, legacy, {"role": "function", "name": "look", "content": "seen"}]).messages
    asked, answered = parts(messages, "tool-call")[0], parts(messages, "tool-return")[0]
    assert (asked.tool_name, asked.args) == ("look", {"at": 1})
    assert (answered.tool_call_id, answered.tool_name) == (asked.tool_call_id, "look")


def test_results_without_ids_answer_the_calls_in_order():
    calls = says(None, call(None, "look", "{}"), call(None, "touch", "{}"), call(None, "look", "{}"))
    transcript = read([calls, result(None, "1"), result(None, "2", name="look"), result(None, "3")])
    ids = [part.tool_call_id for part in parts(transcript.messages, "tool-call")]
    assert len(set(ids)) == 3
    answers = [(part.tool_call_id, part.content) for part in parts(transcript.messages, "tool-return")]
    assert answers == [(ids[0], "1"), (ids[2], "2"), (ids[1], "3")]
    assert any("without an id" in note for note in transcript.notes)


def test_broken_pairs_stay_broken():
    calls = says(None, call("a", "look", "{}"), call("b", "look", "{}"))
    transcript = read([calls, result("b", "twice"), result("b", "twice"), result("nobody", "lost"), HELLO])
    answers = [(part.tool_call_id, part.tool_name) for part in parts(transcript.messages, "tool-return")]
    assert answers == [("b", "look"), ("b", "look"), ("nobody", "unknown")]
    assert transcript.notes == ("tool result without a name or a call (at 3)",)


def test_typed_content_keeps_its_order_and_data_becomes_bytes():
    content = [
        {"type": "text", "text": "Compare"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    (prompt,) = parts(read([{"role": "user", "content": content}]).messages, "user-prompt")
    text, pixel, linked, sound, document, uploaded = prompt.content
    assert text == "Compare"
    assert isinstance(pixel, BinaryContent) and pixel.is_image and pixel.data.startswith(b"\x89PNG")
    assert isinstance(linked, ImageUrl) and linked.url == "https://example.org/a.png"
    assert linked.vendor_metadata == {"detail": "low"}
    assert sound.media_type == "audio/mpeg" and document.media_type == "application/pdf"
    assert isinstance(uploaded, UploadedFile) and uploaded.file_id == "file-1"


def test_a_single_text_block_is_the_same_as_a_string():
    assert read([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]).messages == read([HELLO]).messages


def test_unknown_blocks_are_kept_as_text_with_a_note():
    odd = {"type": "hologram", "depth": 3}
    torn = {"type": "image_url", "image_url": {"url": "data:image/png;base64,<cut>"}}
    transcript = read([HELLO, {"role": "user", "content": [odd, torn]}])
    said = parts(transcript.messages, "user-prompt")[1].content
    assert '"hologram"' in said[0] and "<cut>" in said[1]
    assert transcript.notes == (
        "block of unknown type 'hologram' kept as text (at 1)",
        "block of unreadable type 'image_url' kept as text (at 1)",
    )


def test_media_are_kept_by_name_where_only_text_is_possible():
    pictures = [
        {"type": "image_url", "image_url": {"url": "https://example.org/a"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ]
    transcript = read([{"role": "system", "content": pictures}, HELLO, says(pictures)])
    assert [part.content for part in parts(transcript.messages, "system-prompt")] == [
        "[https://example.org/a]",
        "[image/png]",
        "[file-1]",
    ]
    assert kinds(transcript.messages)[1] == ["text", "file", "text"]
    assert "medium replaced by its name where only text is possible (at 0, 0, 0, 2, 2)" in transcript.notes


def test_refusal_and_reasoning_are_kept():
    by_block = says([{"type": "refusal", "refusal": "No."}])
    by_key = says(None, refusal="Never.", reasoning_content="Hm.")
    messages = read([HELLO, by_block, by_key]).messages
    assert kinds(messages)[1:] == [["text"], ["thinking", "text"]]
    assert [part.content for part in parts(messages, "text")] == ["No.", "Never."]


def test_a_tool_result_of_blocks_is_one_text_unless_it_holds_media():
    words = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    picture = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    calls = says(None, call("1", "f", "{}"), call("2", "f", "{}"), call("3", "f", "{}"))
    messages = read([calls, result("1", words), result("2", picture), result("3", None)]).messages
    plain, mixed, empty = (part.content for part in parts(messages, "tool-return"))
    assert plain == "a\nb"
    assert mixed == ["a", ImageUrl(url="https://example.org/a.png")]
    assert empty == ""


def test_an_empty_assistant_message_is_a_response_without_parts():
    transcript = read([HELLO, says(""), HELLO])
    assert kinds(transcript.messages) == [["user-prompt"], [], ["user-prompt"]]
    assert transcript.notes == ("response without content (at 1)",)


def test_times_are_kept_and_a_message_without_one_reads_the_same_every_time():
    asked, answered = read(
        [{**HELLO, "timestamp": "2025-02-03T04:05:06+01:00"}, says("Hi", created_at=1738552000)]
    ).messages
    assert isinstance(asked, ModelRequest) and asked.timestamp == datetime(2025, 2, 3, 3, 5, 6, tzinfo=UTC)
    assert isinstance(answered, ModelResponse) and answered.timestamp == datetime.fromtimestamp(1738552000, UTC)
    undated = [{"role": "system", "content": "x"}, HELLO, says("Hi"), result("a", "seen")]
    assert read(undated) == read(undated)


def test_an_invalid_time_is_ignored():
    for time in ("yesterday", -1e300, 10**30, True, {}, "0001-01-01T00:00:00+14:00"):
        assert read([{**HELLO, "timestamp": time}]).messages == read([HELLO]).messages
