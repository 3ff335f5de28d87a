"""A model rates how well an answer follows from what was asked, where somebody wants to pay for that."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from context_compiler.compiler.sections import lines
from context_compiler.manager.llm import Questions
from context_compiler.manager.quality import clamped
from context_compiler.messages.fences import fence
from context_compiler.messages.history import Reader
from context_compiler.template.prompts import prose

UNREAD = 0.7
"""What an answer counts that holds no number from 0 to 1."""
MOST = 4_000
"""Tokens of the exchange that are shown."""

_NUMBER = re.compile(r"(?<![\w.])(?:0?\.\d+|[01](?:\.\d+)?)(?![\w.]*\d|\w|%)")


async def coherence_of(messages: Sequence[ModelMessage], llm: Questions, reader: Reader) -> float:
    """How coherent a turn is, from 0 to 1; 0.7 where the answer is no number.

    Raises:
        CompileError: the model could not be asked.
    """
    history = reader.read(messages)
    said = reader.counter.tail("\n".join(lines(history, range(len(history)), 1)), MOST)
    prompt = f"{prose('coherence')}\n\n{fence('exchange', said)}"
    answer = await llm([prompt], instructions="rating")
    return rated(answer.text)


def rated(text: str) -> float:
    """The first number from 0 to 1 in a text, or 0.7."""
    found = _NUMBER.search(text)
    value = float(found[0]) if found else UNREAD
    return clamped(value) if value <= 1 else UNREAD
