"""A recorded message is read without the host as the host's own copy of it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from pydantic_ai.messages import BinaryContent, CachePoint, ImageUrl, ModelMessage, ModelRequest, TextContent

from context_compiler.errors import StoreError
from context_compiler.messages.bodies import load_messages, message_body
from context_compiler.messages.display import role, time_of
from context_compiler.messages.history import Reader, Reading
from context_compiler.messages.recorded import read_bodies
from context_compiler.tokens import TokenCounter
from tests.support.builders import answer, user
from tests.support.histories import histories


def both_readings(messages: list[ModelMessage]) -> list[tuple[Reading, Reading]]:
    """Readings of what is recorded of messages, with the host's classes and without them."""
    bodies = [message_body(message) for message in messages]
    host = load_messages(bodies)
    bodies = [message_body(message) for message in host]  # loading changes what a newer host writes in another way
    loaded = [Reader(TokenCounter()).one(message) for message in host]
    return list(zip(loaded, Reader(TokenCounter()).read_recorded(read_bodies(bodies)).readings, strict=True))


@given(histories(future=False))
def test_a_recorded_message_reads_like_the_message_that_the_host_loads(history: list[ModelMessage]) -> None:
    for loaded, recorded in both_readings(history):
        assert recorded == loaded and role(recorded) == role(loaded)


PICTURE = BinaryContent(b"\xff\xfe\xfd" * 800, media_type="image/png")
LINK = ImageUrl("https://example.org/plan.webp", media_type="image/webp")


@pytest.mark.parametrize(
    "message",
    [
        user("Look at this.", PICTURE, CachePoint()),
        user(LINK),
        user(TextContent(content="A note of ours.", metadata={"context_compiler": {"cycle": 1}}), "What now?"),
        ModelRequest(parts=[answer("1", {"pages": [PICTURE, {"kind": "binary", "page": 2}], "more": LINK})]),
        ModelRequest(parts=[answer("1", "no such file", outcome="failed")], instructions="Be brief."),
    ],
    ids=["picture", "link", "ours", "pictures of a tool", "failure"],
)
def test_files_and_our_own_marks_are_recognized_in_a_recorded_message(message: ModelMessage) -> None:
    [(loaded, recorded)] = both_readings([message])
    assert recorded == loaded
    assert recorded.items == loaded.items and len(recorded.items) > 0


def test_a_recorded_message_has_its_time_instructions_and_bytes_as_they_are_stored() -> None:
    body = message_body(replace(user("Look.", PICTURE), instructions="Be brief."))
    (message,) = read_bodies([body])
    assert message.body == body and message.instructions == "Be brief."
    assert time_of(message) == time_of(load_messages([body])[0]) != ""
    assert message.parts[0].content[1].data == PICTURE.data


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b'{"parts": 3}', b'{"parts": ["text"]}', b"[" * 100_000])
def test_damage_in_a_recorded_message_is_a_store_error(body: bytes) -> None:
    with pytest.raises(StoreError, match="verify the record"):
        read_bodies([body])


@pytest.mark.parametrize("body", [b'{"parts": []}', b'{"kind": "response", "parts": [{"part_kind": "text"}]}'])
def test_a_recorded_message_that_lacks_something_is_a_store_error_when_it_is_read(body: bytes) -> None:
    (message,) = read_bodies([body])
    for read in (Reader(TokenCounter()).one_recorded, lambda one: Reader(TokenCounter()).read_recorded([one])):
        with pytest.raises(StoreError, match="verify the record"):
            read(message)
