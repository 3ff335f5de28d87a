from __future__ import annotations

from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl, UploadedFile

from tests.messages.importers.samples import HELLO, PIXEL, kinds, parts, read

USES = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Both.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "a", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "b", "name": "touch", "input": {}},
    ],
}


def results(*blocks: dict[str, object]) -> dict[str, object]:
    return {"role": "user", "content": list(blocks)}


def answers(id: str, content: object = None, **more: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def test_the_system_text_leads_the_first_request():
    transcript = read({"system": "Be brief.", "messages": [HELLO]})
    assert transcript.format == "anthropic"
    assert kinds(transcript.messages) == [["system-prompt", "user-prompt"]]
    blocks = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    messages = read({"system": blocks, "messages": [HELLO]}).messages
    assert [part.content for part in parts(messages, "system-prompt")] == ["One.", "Two."]


def test_thinking_text_and_calls_keep_their_order_and_their_signatures():
    messages = read([HELLO, USES]).messages
    assert kinds(messages)[1] == ["thinking", "thinking", "text", "tool-call", "tool-call"]
    open_, redacted = parts(messages, "thinking")
    assert (open_.content, open_.signature, open_.provider_name) == ("Both.", "sig", "anthropic")
    assert (redacted.id, redacted.content, redacted.signature) == ("redacted_thinking", "", "zzz")
    assert [(part.tool_call_id, part.args) for part in parts(messages, "tool-call")] == [("a", {"at": 1}), ("b", {})]


def test_results_take_the_names_of_their_calls_and_failed_ones_are_marked():
    messages = read([HELLO, USES, results(answers("b", "felt", is_error=True), answers("a", "seen"))]).messages
    kept = [(part.tool_call_id, part.tool_name, part.outcome) for part in parts(messages, "tool-return")]
    assert kept == [("b", "touch", "failed"), ("a", "look", "success")]


def test_user_text_next_to_results_is_in_the_same_request_in_order():
    said = {"type": "text", "text": "Go on"}
    before = read([HELLO, USES, results(said, answers("a", "1"), answers("b", "2"))]).messages
    after = read([HELLO, USES, results(answers("a", "1"), answers("b", "2"), said, said)]).messages
    assert kinds(before)[2] == ["user-prompt", "tool-return", "tool-return"]
    assert kinds(after)[2] == ["tool-return", "tool-return", "user-prompt"]
    assert parts(after, "user-prompt")[1].content == ["Go on", "Go on"]


def test_results_in_consecutive_messages_share_one_request():
    messages = read([HELLO, USES, results(answers("a", "1")), results(answers("b", "2")), HELLO]).messages
    assert kinds(messages)[2:] == [["tool-return", "tool-return"], ["user-prompt"]]


def test_a_result_may_be_text_blocks_pictures_or_nothing():
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    words = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = read([USES, results(answers("a", words), answers("b", [*words, png]), answers("c"))]).messages
    plain, mixed, empty = (part.content for part in parts(messages, "tool-return"))
    assert plain == "a\nb" and empty == ""
    assert mixed[:2] == ["a", "b"] and isinstance(mixed[2], BinaryContent) and mixed[2].media_type == "image/png"


def test_images_and_documents_of_every_source_are_read():
    def block(kind: str, **source: str) -> dict[str, object]:
        return {"type": kind, "source": source}

    content = [
        block("image", type="url", url="https://example.org/a.png"),
        block("document", type="url", url="https://example.org/a.pdf"),
        block("document", type="base64", media_type="application/pdf", data="AAAA"),
        block("document", type="text", media_type="text/plain", data="plain words"),
        block("document", type="file", file_id="file_1"),
    ]
    (prompt,) = parts(read([{"role": "user", "content": content}]).messages, "user-prompt")
    assert [type(piece) for piece in prompt.content] == [ImageUrl, DocumentUrl, BinaryContent, str, UploadedFile]
    assert prompt.content[3] == "plain words"
    assert prompt.content[4].provider_name == "anthropic"


def test_a_block_of_the_provider_s_own_tools_stays_as_text_with_a_note():
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    transcript = read([HELLO, {"role": "assistant", "content": [search, *USES["content"]]}])
    assert "web_search" in parts(transcript.messages, "text")[0].content
    assert transcript.notes == ("block of unknown type 'server_tool_use' kept as text (at 1)",)
