"""A research chat without end: findings of the first day are still in the requests of the last.

`ChatSession` stores the conversation as markdown and on the record, and sends a view of it. The example closes the
chat and opens it again, as after a restart. The bundled model answers from a script. If you have a key, give
`Agent` the name of a real model.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler.chat import ChatSession, Reply, ScriptedModel

FINDING = "The 1911 survey of the Ostrow valley counted 318 mills, 40 of them wind mills."


def open_chat(folder: Path) -> ChatSession:
    """Open the chat of this folder: a new one, or the one that was closed."""
    agent = Agent(ScriptedModel(delay=0))
    return ChatSession(agent, "mills", endless=True, budget=2_000, system=folder, store=folder / "context.db")


async def read_on(chat: ChatSession, first: int, last: int) -> Reply:
    """Ask about some volumes, and return the last reply."""
    reply = Reply(text="")
    for volume in range(first, last):
        reply = await chat.say(
            f"Volume {volume} of the county archive: what does it say about rivers, weirs and bridges?"
        )
    return reply


def texts(messages: list[ModelMessage]) -> str:
    """Text of a request."""
    return "\n".join(str(getattr(part, "content", "")) for message in messages for part in message.parts)


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chat = open_chat(folder)
        await chat.say(f"Note this: {FINDING}")
        await read_on(chat, 1, 30)
        await chat.close()

        chat = open_chat(folder)  # another day, another process
        reply = await read_on(chat, 30, 50)
        print(f"{len(chat.messages)} messages are stored; the last request had {reply.sent:,} of {reply.raw:,} tokens")
        reply = await chat.say("How many wind mills did the survey of the Ostrow valley count?")
        assert reply.view is not None
        print(f"compiled or recalled ({reply.view.status}): {FINDING in texts(list(reply.view.messages))}")
        print(f"compiles since it was opened: {chat.usage.compiles}, by a model: {chat.usage.model_compiles}")
        await chat.close()
        print(f"the transcript: {next(folder.glob('Chat_Sessions/*.md')).name}")


if __name__ == "__main__":
    asyncio.run(main())
