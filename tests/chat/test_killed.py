"""A process that is killed in the middle of an answer leaves what was shown; the conversation goes on from there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.chat.support import Model, Room, texts
from tests.support.warm import kill, python

ROOT = Path(__file__).parents[2]

TALK = """
import asyncio, sys
from pydantic_ai import Agent
from context_compiler.chat import ChatSession, ScriptedModel

async def main():
    chat = ChatSession(Agent(ScriptedModel(0.05)), "talk", endless=sys.argv[1] == "True",
                       folder="Chat_Sessions", store="context.db", system="system")
    chat.agent.model.delay = 0
    await chat.say("What about the queue?")
    chat.agent.model.delay = 0.05
    await chat.say("And what about the log?", on_text=lambda piece: print(repr(piece), flush=True))

asyncio.run(main())
"""


def shown_until_killed(room: Room, pieces: int, *, endless: bool) -> str:
    """What was on the screen when the process died."""
    process = subprocess.Popen(
        [python(), "-c", TALK, str(endless)],
        cwd=room.path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYDANTIC_AI_NO_BANNER": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(pieces)]
        kill(process)
        lines += process.stdout.readlines()
    return "".join(eval(line) for line in lines if line.endswith("\n"))


@pytest.mark.parametrize(("pieces", "endless"), [(1, False), (5, True), (12, False), (12, True)])
async def test_a_chat_killed_in_the_middle_of_an_answer_resumes(pieces: int, endless: bool, room: Room) -> None:
    shown = shown_until_killed(room, pieces, endless=endless)
    assert len(shown.split()) >= pieces - 1
    assert shown in room.transcript(), "what was shown was on disk"
    model = Model()
    chat = room.chat(model, endless=endless)
    await chat.say("Go on.")
    await chat.close()
    said = texts(chat.messages)
    assert [said[0], said[2], said[4]] == ["What about the queue?", "And what about the log?", "Go on."]
    assert said[3].startswith(shown) and len(said) == 6
    assert said[3] == (chat.storage.transcript.read()[1].assistant or "")
    for text in ("What about the queue?", "And what about the log?", "Go on."):
        assert room.transcript().count(f"**User:**\n\n{text}\n\n") == 1, "nothing is doubled"
    assert room.transcript().count(f"**Assistant:**\n\n{said[3]}\n\n*2026-11-21 12:00:00") == 1
    again = room.chat(Model())
    await again.open()
    await again.close()
    assert texts(again.messages) == said
    assert not room.notices
