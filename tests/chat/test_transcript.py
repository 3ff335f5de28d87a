"""A transcript reads like a conversation, and gives every word back whatever the words are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context_compiler.chat.transcript import Transcript, TranscriptTurn, safe_id
from context_compiler.errors import SettingsError
from context_compiler.paths import unify_lines

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

HOSTILE = [
    "**User:**",
    "**Assistant:**",
    "*2026-11-21 12:00:00 UTC*",
    "# Chat Session: talk",
    "**User:**\\",
    "**User:**" + "\\" * 300,
    "**User:** hello",
    "\n\n**Assistant:**\n\nnot really\n\n",
    "\n",
    "end\n\n",
    "a\r\n**User:**\r\nb",
    "مرحبا\u202eabc",
    "\x1b]0;title\x07\x00binary\x1b[2J",
]
texts = st.lists(st.sampled_from([*HOSTILE, "word", " ", "\n"]), min_size=1, max_size=6).map("".join)


def told(folder: Path, turns: list[tuple[str, list[str]]]) -> list[TranscriptTurn]:
    """What is read back after turns were written, each answer in pieces."""
    transcript = Transcript(folder, "talk")
    transcript.path.unlink(missing_ok=True)
    transcript.repair()
    for user, pieces in turns:
        transcript.begin_turn(user, NOON)
        for piece in pieces:
            transcript.write_answer(piece)
        transcript.end_turn()
    transcript.close()
    assert transcript.fault is None
    return transcript.read()


def test_a_transcript_reads_like_a_conversation(tmp_path: Path) -> None:
    told(tmp_path, [("Which port?", ["80", "81."])])
    assert (tmp_path / "talk.md").read_text() == (
        "# Chat Session: talk\n\n*2026-11-21 12:00:00 UTC*\n\n**User:**\n\nWhich port?\n\n**Assistant:**\n\n8081.\n\n"
    )


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_message_that_looks_like_a_mark_is_read_back_except_for_its_line_ends(text: str, tmp_path: Path) -> None:
    turns = told(tmp_path, [(text, [text]), ("and", list(text)), (text, [])])
    text = unify_lines(text)
    assert [(turn.user, turn.assistant) for turn in turns] == [(text, text), ("and", text), (text, None)]
    assert turns[0].when == NOON


@given(st.lists(st.tuples(texts, st.lists(texts, max_size=4)), max_size=4))
def test_any_message_is_read_back_except_for_its_line_ends(turns: list[tuple[str, list[str]]]) -> None:
    with TemporaryDirectory() as folder:
        back = told(Path(folder), turns)
    written = [(unify_lines(user), unify_lines("".join(pieces))) for user, pieces in turns]
    assert [(turn.user, turn.assistant or "") for turn in back] == written


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_transcript_that_a_tool_of_windows_saved_goes_on_in_its_encoding(encoding: str, tmp_path: Path) -> None:
    told(tmp_path, [("Which port?", ["8081."]), ("And ß?", ["é"])])
    path = tmp_path / "talk.md"
    path.write_bytes(path.read_text("utf-8").replace("\n", "\r\n").encode(encoding))
    transcript = Transcript(tmp_path, "talk")
    assert [(turn.user, turn.assistant) for turn in transcript.read()] == [("Which port?", "8081."), ("And ß?", "é")]
    transcript.repair()
    transcript.append([TranscriptTurn(user="And now?", assistant="8082 ☃")], NOON)
    transcript.close()
    assert [turn.assistant for turn in transcript.read()] == ["8081.", "é", "8082 ☃"]
    assert path.read_bytes().decode(encoding).count("**User:**") == 3


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/b", "..", ".", "a\x00b", "C:\\x", "é", "x" * 500]
)
def test_a_name_that_tries_to_leave_the_folder_stays_in_it(name: str, tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "sessions", name)
    transcript.repair()
    transcript.close()
    assert transcript.path.parent == tmp_path / "sessions"
    assert [path.name for path in (tmp_path / "sessions").iterdir()] == [transcript.path.name]
    assert set(safe_id(name)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def test_sessions_with_like_names_have_files_of_their_own() -> None:
    assert len({safe_id(name) for name in ("a b", "a/b", "a_b", "a.b")}) == 4
    assert safe_id("plan-2_b") == "plan-2_b"


def test_a_session_name_must_not_be_empty() -> None:
    with pytest.raises(SettingsError, match="give the session a name"):
        safe_id(" ")
