"""`chat` as somebody sits before it: typed, streamed, stopped, killed, and gone on with, in both modes."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals that a test could type into", allow_module_level=True)

from tests.cli.terminal import Terminal, terminal
from tests.support.warm import SCRIPT

PROMPT = "›"
MODES = pytest.mark.parametrize("mode", [(), ("--endless",)], ids=["normal", "endless"])


def chat(folder: Path, *args: str, model: str = "scripted:0") -> object:
    return terminal(folder, "chat", "--model", model, "--budget", "900", *args)


SHELL = "import os, subprocess; subprocess.run({command}, env={{**os.environ, 'PS1': 'shell> '}}, check=True)"
"""A script that runs a shell, which sets its own modes of the terminal when a program is suspended."""


@contextmanager
def chat_in_a_shell(folder: Path, *, model: str) -> Iterator[Terminal]:
    """A chat that a shell has started, which can be suspended, and which leaves the shell behind."""
    script = folder / "shell.py"
    script.write_text(SHELL.format(command=["bash", "--norc", "--noprofile", "--noediting", "-i"]))
    with terminal(folder, SCRIPT, str(script)) as screen:
        screen.wait_for("shell> ")
        screen.type(f"{sys.executable} -m context_compiler chat --budget 900 --model {model}\r")
        screen.wait_for("Ctrl-D leaves")
        yield screen
        screen.wait_for("shell> ")
        screen.type("exit\r")
        assert screen.ended() == 0


def suspend(screen: Terminal) -> None:
    """Press Ctrl-Z, and go back to the chat from the shell.

    The shell writes the chat's command before it gives the terminal back; until then a Ctrl-C is the shell's.
    """
    chat_group = screen.foreground()
    screen.type("\x1a")
    screen.wait_for("shell> ")
    screen.type("fg\r")
    screen.wait_for("chat --budget")
    screen.wait_until(lambda: screen.foreground() == chat_group)


def transcript(folder: Path, session: str = "main") -> str:
    return (folder / "system" / "Chat_Sessions" / f"{session}.md").read_text()


def say(screen: Terminal, text: str) -> str:
    """Say something and wait for the status line below its answer."""
    screen.type(f"{text}\r")
    return screen.wait_for(" s\n")


def less_was_sent(said: str) -> bool:
    """Whether the line below an answer names a share; the prompt above it shows that of the answer before."""
    return "%)" in said.rstrip().splitlines()[-1]


def leave(screen: Terminal) -> None:
    """Press Ctrl-D at the prompt."""
    screen.wait_for(PROMPT)
    screen.type("\x04")
    assert screen.ended() == 0


@MODES
def test_a_conversation_is_typed_and_answered(mode: tuple[str, ...], tmp_path: Path) -> None:
    with chat(tmp_path, *mode) as screen:
        screen.wait_for(PROMPT)
        first = say(screen, "What about the queue?")
        assert "On “What about the queue?”:" in first
        assert "raw " in first and "sent " in first and "cached " in first
        for number in range(8):
            last = say(screen, f"Question number {number} about the receipts?")
        assert less_was_sent(last) == bool(mode), "in Endless mode less is sent than there is"
        screen.type("/view\r")
        screen.wait_for("Kept: " if mode else "the whole history was sent as it is")
        screen.type("/endless " + ("off" if mode else "on") + "\r")
        screen.wait_for("Endless is " + ("off" if mode else "on"))
        last = say(screen, "And in the other mode?")
        assert less_was_sent(last) != bool(mode)
        leave(screen)
    assert transcript(tmp_path).count("**User:**") == 10


def test_a_chat_greets_and_shows_the_last_turn_of_a_resumed_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with chat(tmp_path, "--endless") as screen:
        assert "main, a chat with scripted:0: each request is a view within 900 tokens\n/help" in screen.wait_for(
            PROMPT
        )
        say(screen, "What about the queue?")
        say(screen, "And the receipts?")
        leave(screen)
        assert "resumed" not in screen.text
    monkeypatch.setenv("NO_COLOR", "1")
    with chat(tmp_path) as screen:
        screen.wait_for("each request is the whole history")
        said = screen.wait_for("And the receipts?”")
        assert "resumed: 2 turns, the last of 20" in said and "› And the receipts?\n" in said and "queue" not in said
        screen.wait_for(PROMPT)
        leave(screen)
        assert set(re.findall(r"\x1b\[([\d;]*)m", screen.raw)) <= {"", "0", "0;7"}, "no colour, no bold text"


def test_the_transcripts_of_the_two_modes_differ_in_nothing_but_the_time(tmp_path: Path) -> None:
    told: list[list[str]] = []
    for name, mode in (("normal", ()), ("endless", ("--endless",))):
        (tmp_path / name).mkdir()
        with chat(tmp_path / name, *mode) as screen:
            screen.wait_for(PROMPT)
            for number in range(8):
                say(screen, f"Question number {number} about the receipts?")
            screen.type("/quit\r")
            assert screen.ended() == 0
        told.append([line for line in transcript(tmp_path / name).splitlines() if not line.endswith(" UTC*")])
    assert told[0] == told[1] and told[0].count("**User:**") == 8


@MODES
def test_ctrl_c_stops_an_answer_and_keeps_what_was_shown(mode: tuple[str, ...], tmp_path: Path) -> None:
    with chat(tmp_path, *mode, model="scripted:0.2") as screen:
        screen.wait_for(PROMPT)
        screen.type("What about the queue?\r")
        screen.wait_for("On “What")
        screen.interrupt()
        screen.wait_for("stopped · ")
        screen.wait_for(PROMPT)
        screen.type("And what about the log?\r")
        screen.wait_for("On “And")
        screen.interrupt()
        screen.wait_for("stopped · ")
        leave(screen)
    said = transcript(tmp_path)
    assert said.count("**User:**") == said.count("**Assistant:**") == 2
    assert "On “What" in said and "On “And" in said


def test_ctrl_c_at_the_prompt_does_not_end_the_chat(tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for(PROMPT)
        screen.type("half a thou")
        screen.interrupt()
        screen.wait_for("Ctrl-D or /quit leaves")
        say(screen, "A whole one.")
        screen.type("/quit\r")
        assert screen.ended() == 0
    assert "half a thou" not in transcript(tmp_path)


def test_an_interrupt_signal_acts_like_ctrl_c(tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for(PROMPT)
        screen.type("half a thou")
        screen.wait_for("half a thou")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("Ctrl-D or /quit leaves")
        say(screen, "A whole one.")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("Ctrl-D or /quit leaves")
        leave(screen)
    assert "half a thou" not in transcript(tmp_path)


@pytest.mark.parametrize("words", ["each request", "Ctrl-D leaves", PROMPT])
def test_ctrl_c_during_start_acts_like_ctrl_c_at_the_prompt(words: str, tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for(words)
        screen.interrupt()
        screen.wait_for("Ctrl-D or /quit leaves")
        say(screen, "A whole one.")
        leave(screen)


def test_a_chat_suspended_at_its_prompt_keeps_the_typed_text(tmp_path: Path) -> None:
    with chat_in_a_shell(tmp_path, model="scripted:0") as screen:
        screen.wait_for(PROMPT)
        screen.type("half a ")
        screen.wait_for("half a")
        suspend(screen)
        screen.wait_for("half a")
        say(screen, "thought")
        screen.wait_for(PROMPT)
        screen.type("\x04")
    assert transcript(tmp_path).count("**User:**\n\nhalf a thought\n") == 1


def test_keys_during_an_answer_wait_for_the_prompt_also_after_the_chat_was_suspended(tmp_path: Path) -> None:
    with chat_in_a_shell(tmp_path, model="scripted:0.2") as screen:
        screen.wait_for(PROMPT)
        screen.type("What about the queue?\r")
        screen.wait_for("On “What")
        suspend(screen)
        screen.interrupt()
        screen.wait_for("stopped · ")
        screen.wait_for(PROMPT)
        screen.type("And what about the log?\r")
        screen.wait_for("On “And")
        screen.type("/stats")
        assert "/stats" not in screen.wait_for(" s\n"), "no key is shown before the prompt is"
        screen.wait_for("/stats")
        screen.type("\r")
        screen.wait_for("turns          2")
        screen.type("\x04")


def test_ctrl_d_during_an_answer_ends_the_chat_after_the_answer(tmp_path: Path) -> None:
    with chat(tmp_path, model="scripted:0.02") as screen:
        screen.wait_for(PROMPT)
        screen.type("What about the queue?\r")
        screen.wait_for("On “What")
        screen.type("\x04")
        screen.wait_for(" s\n")
        assert screen.ended() == 0


@MODES
def test_a_chat_killed_in_the_middle_of_an_answer_resumes_with_the_part_that_was_shown(
    mode: tuple[str, ...], tmp_path: Path
) -> None:
    with chat(tmp_path, *mode, model="scripted:0.1") as screen:
        screen.wait_for(PROMPT)
        screen.type("What about the queue?\r")
        screen.wait_for("queue?”:")
        screen.kill()
    before = transcript(tmp_path)
    assert "queue?”:" in before
    with chat(tmp_path, *mode) as screen:
        screen.wait_for(PROMPT)
        say(screen, "Go on.")
        screen.type("/stats\r")
        screen.wait_for("turns          2")
        screen.wait_for("messages       4")
        screen.type("/quit\r")
        assert screen.ended() == 0
    after = transcript(tmp_path)
    assert after.startswith(before) and after.count("**User:**") == 2 and after.count("What about the queue?") == 2


def test_two_terminals_take_turns(tmp_path: Path) -> None:
    with chat(tmp_path, model="scripted:0.05") as one, chat(tmp_path) as two:
        one.wait_for("normal")
        two.wait_for("normal")
        one.type("This is the first.\r")
        one.wait_for("On “This is the first.”")
        two.type("This is the second.\r")
        two.wait_for("another terminal is answering in this session")
        two.wait_for("another terminal added a turn")
        two.wait_for("On “This is the second.”")
        one.wait_for(" s\n")
        two.wait_for(" s\n")
        one.type("This is the third.\r")
        one.wait_for("another terminal added a turn")
        one.wait_for("On “This is the third.”")
        one.wait_for(" s\n")
    said = transcript(tmp_path)
    places = [said.index(f"**User:**\n\nThis is the {which}.") for which in ("first", "second", "third")]
    assert places == sorted(places) and said.count("**User:**") == said.count("**Assistant:**") == 3


def test_a_paste_of_a_megabyte_with_control_characters_is_one_message(tmp_path: Path) -> None:
    pasted = "\x01\x1b[31mred " + "word " * 200_000
    with chat(tmp_path, "--endless") as screen:
        screen.wait_for(PROMPT)
        screen.type("\x1b[200~")
        for start in range(0, len(pasted), 1_000):
            screen.type(pasted[start : start + 1_000])
        screen.type("\x1b[201~")
        screen.wait_for("characters #1]")
        screen.type("\r")
        screen.wait_for("On “")
        screen.wait_for(" s\n")
        shown = screen.raw.rpartition("#1]")[2]
        screen.type("/quit\r")
        assert screen.ended() == 0
    assert "\x1b[31mred" not in shown and "\x01" not in shown
    assert "word word" in transcript(tmp_path) and len(transcript(tmp_path)) > 1_000_000


def test_earlier_prompts_come_back_with_the_arrow_keys_after_a_restart(tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for(PROMPT)
        say(screen, "A prompt to remember.")
        leave(screen)
    with chat(tmp_path) as screen:
        screen.wait_for("normal")
        screen.type("\x1b[A")
        screen.wait_for("A prompt to remember.")
        screen.type("\r")
        screen.wait_for("On “A prompt to remember.”")
        screen.wait_for(" s\n")
    assert transcript(tmp_path).count("A prompt to remember.") == 4


def test_a_prompt_typed_during_an_answer_is_answered(tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for(PROMPT)
        screen.type("typed ahead\r")
        screen.wait_for("On “typed ahead”")


def test_an_error_on_opening_ends_the_chat_with_one_line(tmp_path: Path) -> None:
    with terminal(tmp_path, "chat", "--model", "nobody:knows") as screen:
        assert screen.ended() == 2
        assert "error: --model 'nobody:knows'" in screen.text


def test_a_terminal_without_capabilities_gets_answers_too(tmp_path: Path) -> None:
    with terminal(tmp_path, "chat", "--model", "scripted:0", kind="dumb") as screen:
        screen.wait_for(PROMPT)
        say(screen, "What about the queue?")
        screen.type("/quit\r")
        assert screen.ended() == 0
    assert "On “What about the queue?”" in transcript(tmp_path)


def test_an_escape_sequence_typed_into_a_prompt_breaks_nothing(tmp_path: Path) -> None:
    with chat(tmp_path) as screen:
        screen.wait_for("normal")
        say(screen, "a \x1b[31mred word")
        leave(screen)
    assert "Traceback" not in screen.text and "Unhandled" not in screen.text
    assert "red word" in transcript(tmp_path)
