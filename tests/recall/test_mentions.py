"""A question for a sequence or for the whole gets mentions spread over the session, in the order of their turns."""

from __future__ import annotations

import re

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from context_compiler import compile_view
from tests.recall.test_blocks import block_of, words
from tests.support.agents import Talker, compiler, run
from tests.support.histories import assistant, user
from tests.support.views import own_texts

ORDER = "In what order did I bring up the parts of the greenhouse?"
PLAIN = "What have I said of the parts of the greenhouse?"
PARTS = ("foundation", "frame", "glazing", "heating", "irrigation", "shelves", "blinds", "paint")


def renovation(answer: int = 60) -> list[ModelMessage]:
    """Eight parts of a greenhouse over 160 turns, of which the first twenty talk about little else.

    An answer has so many words.
    """
    messages: list[ModelMessage] = []
    for turn in range(160):
        text = f"Something about {words(turn, 8)}."
        if turn % 20 == 10:
            text = f"{words(turn, 14)}. About the greenhouse: its {PARTS[turn // 20]} comes next."
        elif turn < 20:
            text = f"Which parts does a greenhouse like greenhouse {turn} have, {words(turn, 9)}?"
        messages += [user(text), assistant(f"Fine, {words(turn + 500, answer)}.")]
    return messages


def mentioned(text: str) -> list[str]:
    """The parts of the greenhouse that a text mentions, in its order."""
    return re.findall(rf"its ({'|'.join(PARTS)}) comes next", text)


async def test_a_view_holds_mentions_of_all_of_the_session_in_their_order() -> None:
    view = await compile_view([*renovation(), user(ORDER)], "extractive", 800, system=None)
    found = mentioned("\n".join(own_texts(view)))
    assert len(found) >= len(PARTS) - 2 and found == [part for part in PARTS if part in found]


async def test_a_view_for_a_narrow_question_holds_the_best_matches() -> None:
    view = await compile_view([*renovation(), user(PLAIN)], "extractive", 800, system=None)
    assert len(mentioned("\n".join(own_texts(view)))) <= len(PARTS) // 2


async def test_a_live_block_also_covers_the_whole_session() -> None:
    found = [await recalled(one, answer=10, room=1_000) for one in (ORDER, PLAIN)]
    assert found[0] == sorted(found[0]) and {turn // 40 for turn in found[0]} == {0, 1, 2, 3}
    assert sum(turn >= 40 for turn in found[1]) < sum(turn >= 40 for turn in found[0])


async def test_a_live_block_with_little_room_has_the_best_passages() -> None:
    assert max(await recalled(ORDER, answer=60, room=500)) < 40


async def recalled(prompt: str, *, answer: int, room: int) -> list[int]:
    """The turns of the block that a live agent sends before a prompt, where answers have so many words."""
    talker = Talker("Fine.")
    agent = Agent(talker.model, capabilities=[compiler(budget=2_000, recall=room)])
    history = (await run(agent, "Hello.", message_history=renovation(answer), conversation_id="c")).messages
    await run(agent, prompt, message_history=history, conversation_id="c")
    block = block_of(talker.last.messages, prompt)
    return [turn for turn in range(160) if words(turn, 8) in block]


async def test_the_words_that_request_a_summary_are_not_its_topic() -> None:
    history = renovation()
    history[40:40] = [user("Give me a summary of how this conversation developed."), assistant("Here is an overview.")]
    asked = "Can you give me a complete summary of how the greenhouse has developed throughout our conversation?"
    view = await compile_view([*history, user(asked)], "extractive", 900, system=None)
    assert len(mentioned("\n".join(own_texts(view)))) > 5
