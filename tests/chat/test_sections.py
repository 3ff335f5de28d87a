"""What the summary of a chat is written from, where a template gives its sections little room."""

from __future__ import annotations

from pathlib import Path

from context_compiler import SQLiteStore
from context_compiler.record.values import Compile
from tests.chat.support import Model, Room
from tests.support.templates import tight_template

TURNS = 12


def prompts() -> list[str]:
    matter = "what is known of the queue, the lock, the log, the port and the disk of this service. " * 4
    return [
        "Never deploy on Fridays. I want to move the queue to another host and keep every message that is in it.",
        *(f"Question {number}: {matter}" for number in range(1, TURNS)),
    ]


async def compiled(room: Room, system: Path) -> tuple[Model, Compile]:
    """A chat in Endless mode until a summary has been written, and the record of that."""
    model = Model(answer=lambda prompt: f"About {prompt[:12]} " + "it is known that nothing is wrong. " * 12)
    chat = room.chat(model, endless=True, template=tight_template(system))
    for prompt in prompts():
        await chat.say(prompt)
        if model.compiles:
            break
    await chat.close()
    store = SQLiteStore(room.path / "context.db")
    (made,) = await store.summaries("talk")
    await store.close()
    return model, made


async def test_older_turns_are_dropped_before_constraints_and_latest_input(room: Room) -> None:
    model, made = await compiled(room, room.path / "system")
    told = {drop.what: drop.reason for drop in made.sections_dropped}
    assert told == {"recent_turns": "over its section budget", "topic": "over its section budget"}
    assert {"constraints", "latest_input", "recent_turns", "topic"} <= set(made.sections_included)
    (prompt,) = model.compiles
    assert "Never deploy on Fridays." in prompt and "keep every message that is in it" not in prompt
    assert made.input_payload is not None and made.input_payload["missing"] == ["reflections"]
